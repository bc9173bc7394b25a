/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf verify: checks every byte against its checksum, and every tensor against its digest. */
#include "cli.h"

#include <string.h>
#include <unistd.h>
#include "workload.h"
#include "sheaf-admin.h"
#include "sheaf-inspect.h"

struct verify {
	const struct cli_args *a;
	const char *where;              /* the step, for messages */
	int64_t step;                   /* -1: a foreign checkpoint */
	uint64_t findings, files, tensors, bytes;
	uint64_t steps, unproved;       /* unproved: intact, but not all has checksums */
	int failed;                     /* error code of a step that could not be checked */
};

static void found_json(const struct verify *v, const struct sheaf_finding *f)
{
	cli_line(json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "finding",
	                   sheaf_finding_kind_name(f->kind), "path",
			   cli_str(v->where), "step", cli_num(v->step), "file",
			   cli_str(f->file), "block", cli_num(f->block), "offset",
			   cli_num(f->offset), "family", cli_str(f->family), "tensor",
			   cli_str(f->name), "message", cli_str(f->msg)));
}

/* Returns the message without the path of the file at its beginning, which the line already has. */
static const char *without_path(const struct sheaf_finding *f)
{
	const char *at = *f->file ? strstr(f->msg, f->file) : NULL;
	size_t n = strlen(f->file);

	if (!at || (at != f->msg && at[-1] != '/') || strncmp(at + n, ": ", 2) != 0)
		return f->msg;
	for (const char *p = f->msg; p < at; p++)
		if (p[0] == ':' && p[1] == ' ') /* a file is named in the message itself */
			return f->msg;
	return at + n + 2;
}

static void found_text(const struct verify *v, const struct sheaf_finding *f)
{
	const char *msg = without_path(f);

	cli_put(stdout, v->where);
	printf(": %s", sheaf_finding_kind_name(f->kind));
	if (*f->file) {
		fputs(": ", stdout);
		cli_put(stdout, f->file);
	}
	if (f->block >= 0)
		printf(", block %lld", (long long)f->block);
	if (f->offset >= 0)
		printf(", byte %lld", (long long)f->offset);
	if (*f->name) {
		fputs(", tensor ", stdout);
		cli_put(stdout, f->family);
		putchar('/');
		cli_put(stdout, f->name);
	}
	if (*msg) {
		fputs(": ", stdout);
		cli_put(stdout, msg);
	}
	putchar('\n');
}

static void hear(void *arg, const struct sheaf_finding *f)
{
	struct verify *v = arg;
	bool unproved = f->kind == SHEAF_FINDING_UNVERIFIED;

	if (!unproved)
		v->findings++;
	if (v->a->json)
		found_json(v, f);
	else if (!unproved)
		found_text(v, f);
}

static void hear_own(struct verify *v, int32_t kind, const char *file, const char *msg)
{
	struct sheaf_finding f = { .size = sizeof(f), .kind = kind, .file = file, .family = "",
				   .name = "", .msg = msg, .block = -1, .offset = -1 };

	hear(v, &f);
}

static void cannot_tell(struct verify *v, int code, const char *msg)
{
	v->failed = code;
	cli_error(v->a, code, v->where, msg, NULL);
}

static void verify_open(struct verify *v, struct sheaf_checkpoint *step)
{
	struct sheaf_report report = { .size = sizeof(report), .finding = hear, .arg = v };
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	struct sheaf_error err = { .msg = "" };
	uint64_t before = v->findings;
	int rc = sheaf_checkpoint_verify(step, &report, &err);

	if (sheaf_checkpoint_get_info(step, &info, NULL) == 0) {
		v->tensors += info.tensors;
		v->bytes += info.bytes;
	}
	v->files += report.files;
	if (rc == SHEAF_EFORMAT && v->findings == before)
		v->unproved++;
	else if (rc == SHEAF_ECORRUPT && v->findings == before)
		/* Counts a failed open as a finding. */
		hear_own(v, SHEAF_FINDING_MANIFEST, "", err.msg);
	else if (rc < 0 && rc != SHEAF_ECORRUPT && rc != SHEAF_EFORMAT)
		cannot_tell(v, rc, err.msg);
}

/* Reports what an index names wrongly, if that is why a foreign directory cannot be opened. */
static bool index_found(struct verify *v, const char *path)
{
	static const char name[] = "model.safetensors.index.json";
	uint64_t before = v->findings;
	json_t *index, *map, *told = json_object(), *value;
	const char *tensor;
	char file[4300];

	snprintf(file, sizeof(file), "%s/%s", path, name);
	index = json_load_file(file, JSON_REJECT_DUPLICATES, NULL);
	map = json_object_get(index, "weight_map");
	json_object_foreach(map, tensor, value) {
		const char *to = json_string_value(value);

		if (!to || json_object_get(told, to))
			continue;
		json_object_set_new(told, to, json_true());
		if (strchr(to, '/'))
			hear_own(v, SHEAF_FINDING_INDEX, name,
			         "it names a file outside its directory");
		else if (cli_lacks(path, to))
			hear_own(v, SHEAF_FINDING_MISSING, to,
			         "it is named in the index, but missing");
	}
	json_decref(index);
	json_decref(told);
	return v->findings > before;
}

/* Reports a step that could not be opened: as damaged, if it exists. */
static void not_open(struct verify *v, int code, const char *msg, const char *path)
{
	bool manifest = cli_has(path, "sheaf.json");

	if (code == SHEAF_ECORRUPT || code == SHEAF_EFORMAT) {
		if (!manifest && index_found(v, path))
			return;
		hear_own(v, manifest ? SHEAF_FINDING_MANIFEST : SHEAF_FINDING_HEADER,
		         manifest ? "sheaf.json" : "", msg);
	} else {
		cannot_tell(v, code, msg);
	}
}

/* Verifies one directory or file. run NULL: it is opened by path; otherwise as step n of that
 * run. */
static void verify_one(struct verify *v, struct sheaf_run *run, int64_t n, const char *path)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error err = { .msg = "" }, by_path = { .msg = "" };
	struct sheaf_checkpoint *step = NULL;
	uint64_t before = v->findings;
	int rc;

	v->step = n;
	v->where = path;
	v->steps++;
	/* Checksums without a manifest: this was a step, and its manifest is gone. The sums are
	 * looked for after the manifest, because the whole step may be pruned in between. */
	if (cli_lacks(path, "sheaf.json") && cli_has(path, "sheaf.sums"))
		hear_own(v, SHEAF_FINDING_MISSING, "sheaf.json",
		         "the manifest is gone, the sums are there");
	if (run)
		rc = sheaf_checkpoint_open(&step, run, n, &err);
	else
		rc = sheaf_checkpoint_open_path(&step, path, NULL, &opts, &err);
	/* A step that cannot be opened by its number may still open by its path, and show more. */
	if (rc < 0 && run && sheaf_checkpoint_open_path(&step, path, NULL, &opts, &by_path) == 0)
		verify_open(v, step);
	else if (rc == 0)
		verify_open(v, step);
	if (rc < 0 && run && cli_lacks(path, "."))
		v->steps--;     /* was pruned or set aside after the run was listed */
	else if (rc < 0 && v->findings == before)
		not_open(v, rc, err.msg, path);
	sheaf_checkpoint_close(step);
}

static int verify_run(struct verify *v, const struct cli_place *place, const char *arg)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_error err = { .msg = "" };
	struct cli_list list = { 0 };
	struct sheaf_run *run = NULL;
	bool one = place->kind == CLI_RUN_STEP;
	uint64_t before = v->steps;
	int64_t only = place->step;
	int rc = sheaf_run_open(&run, place->path, NULL, &opts, &err);

	if (rc == 0)
		rc = cli_list_read(&list, run, &err);
	if (rc < 0) {
		rc = cli_error(v->a, rc, place->path, err.msg, NULL);
		goto out;
	}
	if (one && only == SHEAF_LATEST)
		only = cli_list_newest(&list, place->path);
	for (size_t i = 0; i < list.n; i++) {
		const struct cli_item *it = &list.items[i];
		char path[4300];

		if (it->state == SHEAF_ITEM_ASIDE || it->state == SHEAF_ITEM_STAGED ||
		    (one && it->step != only))
			continue;
		snprintf(path, sizeof(path), "%s/%s", place->path, it->path);
		verify_one(v, it->state != SHEAF_ITEM_FOREIGN ? run : NULL, it->step, path);
	}
	if (v->steps == before)
		rc = cli_error(v->a, SHEAF_ENOENT, arg, place->step != SHEAF_LATEST
		               ? "no such step is here" : "every step here is marked bad, or "
		               "there is none", place->step != SHEAF_LATEST
		               ? "sheaf ls RUN lists them" : "name a step by its number");
out:
	cli_list_release(&list);
	sheaf_run_close(run);
	return rc;
}

static int answer(const struct verify *v)
{
	const char *result = v->findings ? "bad" : v->failed || v->unproved ? "unknown" : "good";
	char size[32];

	if (v->a->json)
		cli_line(json_pack("{s:s,s:I,s:I,s:I}", "result", result, "files",
				   (json_int_t)v->files, "tensors", (json_int_t)v->tensors, "bytes",
				   (json_int_t)v->bytes));
	else if (v->findings)
		printf("%llu finding%s in %llu tensors, %s\n", (unsigned long long)v->findings,
		       v->findings == 1 ? "" : "s", (unsigned long long)v->tensors,
		       wl_size(size, v->bytes));
	else if (v->unproved)
		printf("sound as far as there are checksums: not all values of the %llu tensors "
		       "have one, so not all can be verified\n",
		       (unsigned long long)v->tensors);
	else if (!v->failed && isatty(STDOUT_FILENO))
		printf("good: %llu step%s, %s\n", (unsigned long long)v->steps,
		       v->steps == 1 ? "" : "s", wl_size(size, v->bytes));
	return v->findings ? 1 : v->failed || v->unproved ? 2 : 0;
}

/* Verifies one argument. Returns non-zero if it could not be checked, after printing the error. */
static int verify_arg(struct verify *v, const char *arg)
{
	struct cli_place place;
	int rc = cli_place_parse(&place, v->a, arg);

	if (rc)
		return rc;
	if (place.kind == CLI_RUN || place.kind == CLI_RUN_STEP)
		rc = verify_run(v, &place, arg);
	else
		verify_one(v, NULL, -1, place.path);
	cli_place_release(&place);
	return rc;
}

static int run(const struct cli_args *a)
{
	struct verify v = { .a = a };

	for (int i = 0; i < a->pos_n; i++) {
		int rc = verify_arg(&v, a->pos[i]);

		if (rc && a->pos_n == 1)
			return rc;
		v.failed = rc ? SHEAF_EIO : v.failed;
	}
	return answer(&v);
}

static const struct cli_opt opts[] = { { 0 } };
const struct cli_verb cli_verify = {
	.name = "verify",
	.brief = "prove every byte of a step, or of all steps",
	.synopsis = "sheaf verify PATH ... [--json]",
	.text = "Reads every byte and compares it with its checksum, every tensor with its\n"
		"digest, every file with the manifest; sizes alone are never trusted. A run\n"
		"alone means all its steps; one that a job prunes meanwhile is passed over. A\n"
		"file that does not belong is a finding (extra).\n"
		"Several paths are all looked at, whatever is found in the first of them.\n\n"
		"A directory without sums (Hugging Face and others) has its structure\n"
		"checked: headers, offsets, index. Sound structure still proves no value:\n"
		"exit 2.\n\n"
		"Findings are checksum, digest, truncated, extended, missing, extra,\n"
		"manifest, header, index and unverified. With --json each is an object with\n"
		"path, step, file, block (of 1 MiB), offset, family, tensor, message; the\n"
		"last line is {result: good, bad or unknown, files, tensors, bytes}. Silent\n"
		"when all is good, except on a terminal.",
	.exits = "  0  all good\n"
		 "  1  something was found, in some step of some path\n"
		 "  2  nothing was found, but a step has no sums, is not there or cannot be read",
	.examples = "  sheaf verify runs/gpt\n  sheaf verify runs/gpt@latest --json | tail -1\n"
		    "  sheaf verify runs/a runs/b@latest",
	.opts = opts,
	.pos_min = 1,
	.pos_max = CLI_POS_MAX,
	.pos_names = "PATH",
	.run = run,
};
