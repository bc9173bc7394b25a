/* SPDX-License-Identifier: Apache-2.0 */
/* Leads the reading of a load. The plan says who reads which blocks. What one rank alone wants is
 * streamed (load_stream.c), the rest is read in rounds that ranks share (load_rounds.c). Slices
 * that no plan covers are filled after that, and at the end whole tensors are compared with their
 * digests.
 *
 * Every byte that is read is summed once: blocks prove it where it is read, and digests prove
 * tensors that were read whole. */
#include "load_fill.h"
#include <string.h>
#include "box_runs.h"
#include "err.h"
#include "image.h"
#include "load.h"
#include "load_common.h"
#include "load_digests.h"
#include "load_prefault.h"
#include "load_rounds.h"
#include "load_stream.h"
#include "match.h"
#include "memory_dir.h"
#include "read_slice.h"
#include "state.h"

#define ROOM (UINT64_C(40) << 20)       /* of the image at most, for whatever is under way */

static const struct shf_slice *target_slice(const void *arg, uint32_t i)
{
	return &((const struct shf_target *)arg)[i].slice;
}

/* Lists what this rank wants, by tensor, for the plan. Tensors at odd offsets of foreign files
 * cannot be copied in units, so the plan leaves them out (fill_rest). */
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

/* Fills the slices that no plan covers: zeros, and tensors at odd offsets of foreign files. */
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

/* What staging_bytes_max leaves beside the images of saves, 40 MiB at most, and at least
 * two blocks. */
uint64_t shf_load_room(const struct sheaf_run *run)
{
	const struct sheaf_run *saves = run->lineage.memory_of ? run->lineage.memory_of : run;
	uint64_t w = run->opts.staging_bytes_max, taken = shf_images_bytes(saves);

	w = w == 0 ? ROOM : w > taken ? w - taken : 0;
	w = w > ROOM ? ROOM : w;
	return w < 2 * SHF_BLOCK ? 2 * SHF_BLOCK : w / (2 * SHF_BLOCK) * (2 * SHF_BLOCK);
}

/* Rounds whose bytes travel use smaller windows, because a rank may receive from all nodes at once.
 */
static uint64_t net_window(const struct sheaf_run *run, uint64_t window)
{
	window /= (uint64_t)run->place.nodes_n;
	return window < SHF_BLOCK ? SHF_BLOCK : window / SHF_BLOCK * SHF_BLOCK;
}

static int make_digest_tables(struct shf_load *ld, struct sheaf_error *err)
{
	size_t n = ld->step->layout.tensors_n;

	ld->got = shf_zalloc(n, sizeof(*ld->got));
	ld->got_bytes = shf_zalloc(n + 1, sizeof(*ld->got_bytes));
	ld->pass = (struct shf_pass){ .step = ld->step, .sums = shf_pass_sums(ld->step),
		.got = ld->got, .got_bytes = ld->got_bytes };
	return ld->got && ld->got_bytes ? 0
	       : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", n);
}

/* *flow and *rounds are set even if it fails, so that the caller can free them. [collective] */
static int make_plan(struct shf_load *ld, struct shf_flow **flow, struct shf_rounds **rounds,
                     struct sheaf_error *err)
{
	struct sheaf_run *run = ld->step->run;
	struct shf_match m = { .layout = &ld->step->layout, .holds = &ld->holds,
		.nodes = run->place.nodes, .way = SHF_LOAD,
		.hads = ld->step->view ? shf_view_hads(ld->step->view) : NULL };
	uint64_t bytes = 0;
	int rc = hold_all(ld, err);

	/* All of the step lies in the memory of the only node: all its ranks see it, and none
	 * stages anything for another. */
	ld->apart = m.apart = ld->step->view && !m.hads;
	m.window = ld->room / 2;
	m.net_window = net_window(run, m.window);
	rc = shf_match(&run->team, &m, rc, &ld->work, err);
	if (rc < 0)
		return rc;
	rc = make_digest_tables(ld, err);
	if (rc == 0)
		rc = shf_flow_new(flow, ld, ld->room, &bytes, err);
	if (rc == 0 && !ld->apart)
		rc = shf_rounds_new(rounds, ld, err);
	return shf_image_need(run, rc, SHF_IMAGE_OF_LOAD, bytes > ld->work.image_bytes ? bytes
	                      : ld->work.image_bytes, err);
}

/* The prefault thread runs only if there is a disk to wait for. It is stopped before fill_rest,
 * which is short. What fails on one rank is told by the next operation of the group, of whatever
 * comes next. [collective] */
int shf_fill(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_flow *flow = NULL;
	struct shf_rounds *rounds = NULL;
	int rc = make_plan(ld, &flow, &rounds, err);
	bool planned = rc == 0;
	struct shf_ahead *ahead = planned && shf_flow_waits(flow) ? shf_ahead_start(ld) : NULL;

	if (planned)
		rc = shf_flow_run(flow, err);
	shf_flow_free(flow);
	if (planned && rounds)
		rc = shf_rounds_share(rounds, rc, err);
	shf_rounds_free(rounds);
	shf_ahead_end(ahead);
	if (rc == 0)
		rc = fill_rest(ld, err);
	if (planned)
		rc = shf_prove(ld, rc, err);
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
