/* SPDX-License-Identifier: Apache-2.0 */
/* Salvage: a step that a dead job left complete in its stage is verified as any step, and
 * published. */
#include "run_salvage.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "salvage.h"
#include "sheaf-inspect.h"
#include "step_folder.h"
#include "step_open.h"
#include "verify_step.h"

/* The argument of note_salvage_finding. */
struct salvaging {
	const struct sheaf_report *report;      /* the caller's; may be NULL */
	int findings;
};

/* Callback for the findings of the stage's verification: counts and forwards them. sheaf.json.tmp
 * does not count, because a crash during C6 may leave the manifest under both names, and the
 * temporary name is removed before the publish. */
static void note_salvage_finding(void *arg, const struct sheaf_finding *f)
{
	struct salvaging *s = arg;

	if (f->kind == SHEAF_FINDING_EXTRA && strcmp(f->file, "sheaf.json.tmp") == 0)
		return;
	s->findings++;
	if (s->report && s->report->finding)
		s->report->finding(s->report->arg, f);
}

/* Verifies every byte of the stage, and returns its manifest (*text) and run id. If the only
 * finding was sheaf.json.tmp, the stage counts as right. */
static int prove_stage(struct shf_store *s, const struct shf_stage *g,
                       const struct shf_opts *opts, struct sheaf_report *report,
                       struct shf_buf *text, char run[33], struct sheaf_error *err)
{
	struct salvaging heard_of = { report, 0 };
	struct sheaf_report own = { .size = sizeof(own), .finding = note_salvage_finding,
		.arg = &heard_of };
	struct shf_buf path = SHF_BUF_INIT;
	struct sheaf_checkpoint *step = NULL;
	int rc;

	shf_buf_addf(&path, "%s/.sheaf/stage/%s", s->path, g->name);
	shf_buf_u8(&path, 0);
	rc = path.oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", s->path)
	              : shf_step_open_path(&step, (char *)path.data, NULL, opts, s->sys, err);
	if (rc == 0 && step->number != g->step)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: its manifest says step %" PRId64 ", so "
		              "this is not the checkpoint that was to be published",
		              step->path, step->number);
	if (rc == 0)
		rc = shf_step_verify(step, &own, err);
	/* The verification counted sheaf.json.tmp as a finding; note_salvage_finding() did not. */
	if (rc == SHEAF_ECORRUPT && own.findings && heard_of.findings == 0)
		rc = 0;
	if (rc == 0) {
		rc = shf_text_read(s->sys, step->dir, "sheaf.json", text, SHF_MANIFEST_MAX);
		rc = rc < 0 ? shf_fail_io(err, -rc, "%s/sheaf.json", step->path) : 0;
		memcpy(run, step->manifest.run, sizeof(step->manifest.run));
	}
	/* Returns the counts, but the caller's own callbacks. */
	if (report) {
		own.finding = report->finding;
		own.arg = report->arg;
		*report = own;
	}
	shf_step_put(step);
	shf_buf_release(&path);
	return rc;
}

/* The stage is locked while it is verified, so that no other process salvages or deletes it. */
int shf_run_salvage(const char *dir, int64_t step, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct shf_opts o = { 0 }, look;
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_stage g;
	struct shf_store s;
	char run[33];
	int rc = shf_opts_take(&o, opts, err);

	if (rc == 0 && (!dir || !dir[0] || step < 0))
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL or empty, or the step is "
		              "negative");
	look = o;
	/* The stage is opened as a step by path, read-only, so that nothing in it changes. */
	look.flags = SHEAF_RUN_READONLY | (o.flags & SHEAF_RUN_BUFFERED);
	if (rc == 0)
		rc = shf_salvage_begin(&s, &g, sys, dir, shf_opts_wait_ms(&o, SHF_LOCK_WAIT_MS),
		                       step, err);
	if (rc == 0) {
		rc = shf_folder_is(&s, o.folder, err);
		if (rc == 0)
			rc = prove_stage(&s, &g, &look, report, &text, run, err);
		if (rc == 0)
			rc = shf_salvage_finish(&s, &g, &text, run, err);
		shf_stage_close(&s, &g);
		shf_store_close(&s);
	}
	shf_buf_release(&text);
	shf_opts_release(&o);
	return rc;
}
