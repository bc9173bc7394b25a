/* SPDX-License-Identifier: Apache-2.0 */
/* Makes plans of saves: which rank writes which bytes from whose memory, how many images fit into
 * the staging memory, and which segments lie in no image. A plan is made once for a state, and
 * cached in it. */
#include "save_plan.h"
#include "averages.h"
#include "err.h"
#include "match.h"
#include "opts.h"
#include "save.h"
#include "save_order.h"
#include "save_record.h"
#include "schema.h"
#include "state.h"
#include "work.h"

void shf_plan_put(void *p)
{
	struct shf_plan *plan = p;

	if (!plan || --plan->refs > 0)
		return;
	shf_record_cache_release(&plan->stock);
	shf_save_order_release(&plan->turns);
	shf_work_release(&plan->work);
	shf_holds_release(&plan->holds);
	shf_layout_release(&plan->layout);
	shf_free(plan);
}

uint64_t shf_plan_window(const struct shf_opts *opts)
{
	return opts->staging_bytes_max / 2 / SHF_PAGE * SHF_PAGE;
}

/* Agrees on rc, and on the smallest window of all ranks; 0 (no limit) counts as the largest. The
 * operation is a maximum, so the complement is sent. [collective] */
static int agree_on_window(struct sheaf_run *run, int rc, uint64_t *window,
                           struct sheaf_error *err)
{
	uint64_t w = shf_plan_window(&run->opts), inv = w ? ~w : 0;

	rc = shf_agree_max(&run->team, rc, &inv, 1, err);
	*window = ~inv == UINT64_MAX ? 0 : ~inv;
	return rc;
}

/* Agrees on how many images of this plan fit into the window, the part of the staging memory that
 * is for images, and on whether any rank has slots. EINVAL if no rank has a slice for some average.
 * [collective] */
static int images_fit(struct sheaf_run *run, const struct sheaf_state *state,
                      struct shf_plan *plan, uint64_t window, struct sheaf_error *err)
{
	uint64_t one = plan->work.ctl_at + plan->work.slots * plan->work.slot_bytes;
	uint64_t fit = window ? window / (one ? one : 1) : SHF_IMAGES_MAX, x[2 + SHF_EMAS_MAX];
	int rc;

	fit = fit > SHF_IMAGES_MAX ? SHF_IMAGES_MAX : fit;
	x[0] = ~fit;
	x[1] = plan->work.slots > 0;
	shf_emas_mark(state, x + 2);
	rc = shf_allreduce(&run->team, x, 2 + SHF_EMAS_MAX, SHEAF_MAX, err);
	if (rc == 0)
		rc = shf_emas_check(state, x + 2, err);
	plan->images = ~x[0] ? (int)~x[0] : 1;
	plan->slotted = x[1];
	return rc;
}

/* Returns the flags that any slice of the state has. */
static uint64_t flags_of(const struct sheaf_state *state)
{
	uint64_t flags = 0;

	for (size_t i = 0; i < state->n; i++)
		flags |= state->slices[i].flags;
	return flags;
}

/* Divides the window between images and slots: half of it is for slots, but no more than
 * SHF_UNSTAGED_SLOTS slots of the largest size need. */
static void share_window(struct shf_match *m, uint64_t window)
{
	const uint64_t most = SHF_UNSTAGED_SLOTS * SHF_STRIPE;

	m->window = m->slots_window = window / 2 / SHF_PAGE * SHF_PAGE;
	if (m->slots_window > most) {
		m->slots_window = most;
		m->window = window - most;
	}
}

/* Whether the slice that holds this box has SHEAF_SLICE_IN_PLACE (in_place of struct shf_match). */
static bool in_place_at(const void *arg, uint32_t tensor, const struct shf_box *box)
{
	const struct shf_plan_slices *of = arg;
	const struct shf_hold *h = of->holds->a;

	for (size_t i = shf_holds_first(of->holds, tensor);
	     i < of->holds->n && h[i].tensor == tensor; i++)
		if (shf_box_contains(h[i].box, box))
			return of->state->slices[h[i].slice].flags & SHEAF_SLICE_IN_PLACE;
	return false;
}

void shf_plan_set_unstaged(struct shf_match *m, const struct shf_plan_slices *held, uint64_t window)
{
	m->window = window;
	m->in_place = flags_of(held->state) & SHEAF_SLICE_IN_PLACE ? in_place_at : NULL;
	m->in_place_arg = held;
	m->slots_window = 0;
	if (m->in_place)
		share_window(m, window);
}

/* Makes a plan: merges the tensors of all ranks, places them in files, and matches holders with
 * writers. rc: the result of this rank's work so far. [collective] */
static int plan_make(struct sheaf_run *run, struct sheaf_state *state, struct shf_plan *plan,
                     int rc, struct sheaf_error *err)
{
	struct shf_match m = { .layout = &plan->layout, .holds = &plan->holds,
		.nodes = run->place.nodes, .way = SHF_SAVE,
		.witness = run->opts.flags & SHEAF_RUN_REPLICAS };
	const struct shf_plan_slices held = { &plan->holds, state };
	uint64_t window = 0;

	rc = shf_schema_merge(&run->team, state, run->opts.ignore, rc, &plan->layout, err);
	if (rc == 0) {
		rc = shf_layout_place(&plan->layout, run->opts.file_bytes_max, err);
		if (rc == 0)
			rc = shf_holds_state(&plan->holds, &plan->layout, state, run->opts.ignore,
			                     err);
		if (rc == 0)
			rc = shf_save_record_bound(run, &plan->layout, state, &plan->manifest_bytes,
			                           err);
		rc = agree_on_window(run, rc, &window, err);
	}
	shf_plan_set_unstaged(&m, &held, window);
	if (rc == 0)
		rc = shf_match(&run->team, &m, 0, &plan->work, err);
	if (rc == 0)
		rc = images_fit(run, state, plan, window, err);
	plan->hash = plan->work.hash;
	return rc;
}

struct shf_plan *shf_plan_cached(const struct sheaf_run *run, const struct sheaf_state *state)
{
	struct shf_plan *plan = state->plan;
	bool good = plan && plan->run_id == run->life.id && plan->version == state->version;

	return good ? plan : NULL;
}

int shf_plan_get(struct sheaf_run *run, struct sheaf_state *state, struct shf_plan **out,
                 struct sheaf_error *err)
{
	struct shf_plan *plan = shf_plan_cached(run, state);
	struct shf_plan none = { 0 };           /* used on a rank without memory for a plan, so that
	                                         * it still takes part in the collective calls */
	uint64_t x = plan ? plan->hash : 0, same, lo, hi;
	int rc = shf_same(&run->team, 0, &x, 1, &same, &lo, &hi, err);

	if (rc == 0 && same && lo != 0) {
		plan->refs++;
		*out = plan;
		return 0;
	}
	if (rc < 0)
		return rc;
	plan = shf_zalloc(1, sizeof(*plan));
	rc = plan_make(run, state, plan ? plan : &none,
	               plan ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to plan"), err);
	if (plan) {
		plan->refs = 1;
		plan->run_id = run->life.id;
		plan->version = state->version;
	}
	if (rc < 0) {
		shf_plan_put(plan);
		return rc;
	}
	if (state->plan)
		state->plan_free(state->plan);
	state->plan = plan;
	state->plan_free = shf_plan_put;
	plan->refs++;
	*out = plan;
	return 0;
}
