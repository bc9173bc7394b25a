/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf copy: copies one step into another run, and verifies it on the way. */
#include "cli.h"

#include <unistd.h>
#include "sheaf-admin.h"
#include "workload.h"

static int answer(const struct cli_args *a, const struct cli_step *s, const char *dst,
		  const struct sheaf_report *r)
{
	const char *action = r->held ? "copy" : "there";
	char size[32];

	if (a->json) {
		cli_line(json_pack("{s:o,s:s,s:o,s:I,s:I,s:I,s:I}", "step",
				   cli_num(sheaf_checkpoint_number(s->step)), "action", action,
				           "to",
				   cli_str(dst), "files", (json_int_t)r->files, "tensors",
				   (json_int_t)r->loaded, "bytes", (json_int_t)r->bytes, "written",
				   (json_int_t)r->held));
	} else if (isatty(STDOUT_FILENO)) {
		printf("%s: step %lld, %s\n", r->held ? "copied" : "there already, and good",
		       (long long)sheaf_checkpoint_number(s->step), wl_size(size, r->bytes));
	}
	return 0;
}

static int run(const struct cli_args *a)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	const char *dst = a->pos[1];
	struct cli_step s;
	int64_t step;
	size_t n;
	int rc;

	if (wl_step_at(dst, &n, &step) == 0)
		return cli_usage(a, dst, "this names a step, and a step is copied into a run",
				 "name the run's directory");
	rc = cli_step_open(&s, a, a->pos[0], false);
	if (rc)
		return rc;
	rc = sheaf_checkpoint_copy(s.step, dst, &report, &err);
	rc = rc < 0 ? cli_error(a, rc, rc == SHEAF_EEXIST ? dst : a->pos[0], err.msg, NULL)
	            : answer(a, &s, dst, &report);
	cli_step_close(&s);
	return rc;
}

static const struct cli_opt opts[] = { { 0 } };
const struct cli_verb cli_copy = {
	.name = "copy",
	.brief = "copy a step into another run, and prove it on the way",
	.synopsis = "sheaf copy RUN@N|PATH DST [--json]",
	.text = "Copies one committed step into the run DST, under the same number. Each block\n"
		"is compared with its checksum and each tensor with its digest on the way; the\n"
		"step appears in DST whole and durable, or not at all. The manifest stays byte\n"
		"for byte what it is, and the parent need not be there. DST is made where there\n"
		"is none, and is then the same run; a step of another run is refused.\n\n"
		"A copy that was killed is resumed by the next one: files that were finished\n"
		"are read there and compared, not written again. An incomplete copy that was\n"
		"not resumed for a week is deleted by the next job that opens DST for writing.\n\n"
		"Where DST has the same save already, it is proved there, and that is success:\n"
		"exit 0 always means that DST holds the step and every byte of it is good. With\n"
		"--json one line: {step, action (copy or there), to, files, tensors, bytes,\n"
		"written}. Silent when it worked, except on a terminal.",
	.exits = "  0  DST has the step\n  1  the step is damaged or foreign, or DST has another "
		 "save of its number\n  2  no such step, DST is "
		 "locked or another run, or a disk failed",
	.examples = "  sheaf copy runs/gpt@1000 /project/gpt\n"
		    "  sheaf copy runs/gpt@latest /project/gpt && echo safe",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "STEP DST",
	.run = run,
};
