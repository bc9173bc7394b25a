/* SPDX-License-Identifier: Apache-2.0 */
/* Filling. The plan says who reads which blocks; what a reader alone wants is streamed, the rest is
 * read in rounds that the ranks share; then what no plan covers, and at the end whole tensors are
 * proved. Every byte that is read is summed once, and each tensor that was read whole is compared
 * with its stored digest besides its blocks. */
#include <string.h>
#include "err.h"
#include "image.h"
#include "load.h"
#include "run_env.h"
#include "state.h"
#include "view.h"

#define ROOM (UINT64_C(40) << 20)       /* of the image at most, for whatever is under way */

const char *shf_load_family(const struct shf_load *ld, const struct shf_lt_tensor *t)
{
	return ld->step->layout.families[t->family].name;
}

static const struct shf_slice *target_slice(const void *arg, uint32_t i)
{
	return &((const struct shf_target *)arg)[i].slice;
}

static int hold_all(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	uint64_t *words = shf_alloc(ld->state->n, 2 * sizeof(*words));
	size_t n = 0;
	int rc;

	if (!words)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", ld->state->n);
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_target *t = &ld->targets[i];

		if (t->source == SHF_FROM_STEP && !l->tensors[t->tensor].loose)
			words[n++] = shf_key(t->tensor, (uint32_t)i);
	}
	rc = shf_holds_make(&ld->holds, words, n, target_slice, ld->targets, err);
	shf_free(words);
	return rc;
}

static int zero_box(void *arg, const struct shf_box *box)
{
	const struct shf_slice *s = arg;
	struct shf_runs runs;
	uint64_t at;
	int64_t mem;

	shf_runs_init(&runs, &s->shape, &s->mem, box);
	while (shf_runs_next(&runs, &at, &mem))
		for (uint64_t i = 0; i < runs.units; i++)
			memset(s->mem.base + (mem + (int64_t)i * runs.step) * (int64_t)s->mem_unit,
			       0, s->mem_unit);
	return 0;
}

/* Slices that are not planned by stripes: zeros, and foreign tensors at odd offsets. */
static int fill_rest(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	int rc = 0;

	for (size_t i = 0; i < ld->state->n && rc == 0; i++) {
		struct shf_target *t = &ld->targets[i];
		const char *family;

		if (t->slice.empty)
			continue;
		if (t->source == SHF_FROM_ZERO)
			(void)shf_mem_boxes(&t->slice.mem, zero_box, &t->slice);
		if (t->source != SHF_FROM_STEP || !l->tensors[t->tensor].loose)
			continue;
		rc = shf_direct_read(ld->step, &l->tensors[t->tensor], &t->slice, &ld->disk_bytes,
				     err);
		family = shf_load_family(ld, &l->tensors[t->tensor]);
		shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, family, l->tensors[t->tensor].name, 0);
		shf_report_item(&ld->report, 'V', family, l->tensors[t->tensor].name,
		                SHF_FOREIGN_MSG);
	}
	return rc;
}

static int want_add(struct shf_load *ld, size_t n, const struct shf_want *want,
                    struct sheaf_error *err)
{
	if (n == ld->wants_cap) {
		size_t cap = n ? 2 * n : 64;
		struct shf_want *more = shf_realloc(ld->wants, cap, sizeof(*more));

		if (!more)
			return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu boxes", cap);
		ld->wants = more;
		ld->wants_cap = cap;
	}
	ld->wants[n] = *want;
	return 0;
}

int shf_load_begin(struct shf_load *ld, const struct shf_seg *g, uint64_t lo, uint64_t bytes,
                   struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	const struct shf_lt_file *file = &l->files[g->file];
	const struct shf_holds *h = &ld->holds;
	size_t n = 0;
	int rc = 0;

	for (uint32_t i = shf_layout_at(l, g->file, lo);
	     i < file->first_tensor + file->tensors_n && rc == 0; i++) {
		uint32_t t = l->by_place[i];

		if (l->tensors[t].off >= lo + bytes)
			break;
		for (size_t x = shf_holds_first(h, t); x < h->n && h->a[x].tensor == t && rc == 0;
		     x++) {
			struct shf_want want = { .tensor = t, .box = *h->a[x].box,
				.slice = &ld->targets[h->a[x].slice].slice };

			rc = want_add(ld, n++, &want, err);
		}
	}
	/* Memory that another rank has, too, is proved by one of them. */
	ld->pass.quiet = g->collected;
	ld->pass.sums = !g->collected && shf_pass_sums(ld->step);
	if (rc == 0)
		shf_pass_begin(&ld->pass, g->file, lo, ld->wants, n);
	return rc;
}

int shf_load_look(struct shf_load *ld, const uint8_t *p, uint64_t n, struct sheaf_error *err)
{
	int64_t from = shf_now(ld->step->run), ns;
	int rc;

	ld->pass.past = shf_stores_past(&ld->stores);
	rc = shf_pass_feed(&ld->pass, p, n, err);
	ns = shf_now(ld->step->run) - from;
	shf_stores_took(&ld->stores, n, ns);
	ld->verify_ns += ns;
	return rc;
}

/* What a rank may use of its image, the same on all; two windows of it for rounds. */
static int room_of(struct sheaf_run *run, uint64_t *room, struct sheaf_error *err)
{
	const struct sheaf_run *saves = run->of ? run->of : run;
	uint64_t w = run->opts.staging_bytes_max, taken = shf_images_bytes(saves), inv;
	int rc;

	/* What the images of saves leave of the staging. */
	w = w == 0 ? ROOM : w > taken ? w - taken : 0;
	w = w > ROOM ? ROOM : w;
	w = w < 2 * SHF_BLOCK ? 2 * SHF_BLOCK : w / (2 * SHF_BLOCK) * (2 * SHF_BLOCK);
	inv = ~w;
	rc = shf_allreduce(&run->team, &inv, 1, SHEAF_MAX, err);
	*room = ~inv;
	return rc;
}

/* Of a window whose bytes travel: what a rank is sent at once comes from many. */
static uint64_t net_window(const struct sheaf_run *run, uint64_t window)
{
	window /= (uint64_t)run->place.nodes_n;
	return window < SHF_BLOCK ? SHF_BLOCK : window / SHF_BLOCK * SHF_BLOCK;
}

static int tables(struct shf_load *ld, struct sheaf_error *err)
{
	size_t n = ld->step->layout.tensors_n;

	ld->got = shf_zalloc(n, sizeof(*ld->got));
	ld->got_bytes = shf_zalloc(n, sizeof(*ld->got_bytes));
	ld->pass = (struct shf_pass){ .step = ld->step, .sums = shf_pass_sums(ld->step),
		.got = ld->got, .got_bytes = ld->got_bytes };
	return ld->got && ld->got_bytes ? 0
	       : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", n);
}

/* *flow: also when it fails. */
static int make_plan(struct shf_load *ld, struct shf_flow **flow, struct sheaf_error *err)
{
	struct sheaf_run *run = ld->step->run;
	struct shf_match m = { .layout = &ld->step->layout, .holds = &ld->holds,
		.nodes = run->place.nodes, .way = SHF_LOAD,
		.hads = ld->step->view ? shf_view_hads(ld->step->view) : NULL };
	uint64_t room = 0, bytes = 0;
	int rc = shf_agree(&run->team, hold_all(ld, err), err);

	if (rc == 0)
		rc = room_of(run, &room, err);
	if (rc < 0)
		return rc;
	/* In the memory of the only node: all its ranks see it, and none stages it for another. */
	ld->apart = m.apart = ld->step->view && !m.hads;
	m.window = room / 2;
	m.net_window = net_window(run, m.window);
	rc = shf_match(&run->team, &m, &ld->work, err);
	if (rc < 0)
		return rc;
	rc = tables(ld, err);
	if (rc == 0)
		rc = shf_flow_new(flow, ld, room, &bytes, err);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_image_need(run, SHF_IMAGE_OF_LOAD, bytes > ld->work.image_bytes ? bytes
		                    : ld->work.image_bytes, err);
	return rc;
}

uint8_t *shf_load_image(const struct shf_load *ld)
{
	return ld->step->run->images[SHF_IMAGE_OF_LOAD].own.base;
}

void shf_load_progress(const struct shf_load *ld)
{
	const struct sheaf_opts *o = &ld->step->run->opts;
	struct sheaf_stat stat = { .size = sizeof(stat), .phase = 4, .held = ld->work.bytes,
		.copied = ld->disk_bytes };

	if (o->progress)
		o->progress(o->arg, &stat);
}

int shf_fill(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_flow *flow = NULL;
	int rc = make_plan(ld, &flow, err);
	struct shf_ahead *ahead = rc == 0 && shf_flow_waits(flow) ? shf_ahead_start(ld) : NULL;

	if (rc == 0)
		rc = shf_flow_run(flow, err);
	shf_flow_free(flow);
	if (rc == 0 && !ld->apart)
		rc = shf_shared_run(ld, err);
	shf_ahead_end(ahead);
	if (rc == 0)
		rc = shf_agree(&ld->step->run->team, fill_rest(ld, err), err);
	if (rc == 0)
		rc = shf_prove(ld, err);
	/* One rank proves blocks that another one uses, earlier or later, so the memory must have
	 * been the step's until now. */
	if (rc == 0 && ld->step->view)
		rc = shf_agree(&ld->step->run->team,
		               shf_view_moved(ld->step->view, ld->step->path, err), err);
	shf_image_release(ld->step->run, SHF_IMAGE_OF_LOAD);
	shf_free(ld->wants);
	shf_free(ld->got);
	shf_free(ld->got_bytes);
	return rc;
}
