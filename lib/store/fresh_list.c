/* SPDX-License-Identifier: Apache-2.0 */
/* Answers questions about the steps of a run, such as which is the newest, from a list of the
 * steps. The list is read again if one of them is removed meanwhile. */
#include "fresh_list.h"
#include "marks_read.h"
#include "run_id.h"
#include "step_look.h"
#include "steps.h"
#include "run_files.h"
#include <errno.h>

#define LISTS 8                 /* how often the steps are listed before the search fails */

int shf_fresh_list_judge(struct shf_store *s,
                         int (*judge)(struct shf_store *s, const struct shf_steps *steps, void *arg,
                                      struct sheaf_error *err), void *arg, struct sheaf_error *err)
{
	for (int lists = 0; lists < LISTS; lists++) {
		struct shf_steps steps;
		int rc = shf_steps_read(s, &steps);

		/* .sheaf is looked for after the steps are listed. A job makes it before its first
		 * step, so no listed step is judged without .sheaf, where its mark would be. */
		rc = rc < 0 ? shf_fail_io(err, -rc, "%s: listing its steps", s->path)
		            : shf_store_refresh(s, err);
		if (rc == 0)
			rc = judge(s, &steps, arg, err);
		shf_free(steps.all);
		if (rc != SHF_STEP_GONE)
			return rc;
	}
	return shf_fail_io(err, ENOENT, "%s: a step was deleted each time the steps were listed; "
	                   "try again",
	                   s->path);
}

/* What shf_step_older looks for: the newest good step below `than`; found: -1 until then. */
struct older {
	int64_t than, found;
};

/* Judges a list of steps for shf_step_older. The list is descending, so the first match is the
 * answer. */
static int judge_older(struct shf_store *s, const struct shf_steps *steps, void *arg,
                       struct sheaf_error *err)
{
	struct older *o = arg;
	struct shf_entry e;

	(void)err;
	for (size_t i = 0; i < steps->n && o->found < 0; i++) {
		char mark;
		int rc = steps->all[i] < o->than
		         ? shf_step_look_at(s, steps->all[i], true, &e, NULL) : 0;

		if (rc == SHF_STEP_GONE)
			return SHF_STEP_GONE;
		if (rc != 1 || e.state != SHF_COMMITTED)
			continue;
		mark = shf_mark_read(s, e.step, NULL);
		o->found = mark == 0 || mark == 'k' ? e.step : -1;
	}
	return 0;
}

int64_t shf_step_older(struct shf_store *s, int64_t step)
{
	struct older o = { .than = step, .found = -1 };

	(void)shf_fresh_list_judge(s, judge_older, &o, NULL);
	return o.found;
}
