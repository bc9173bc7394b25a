/* SPDX-License-Identifier: Apache-2.0 */
/* Leads a load once it is decided what each slice is filled from (load.c). Makes the plan, which
 * says who reads which blocks. What only one rank wants is streamed (load_stream.c), the rest is
 * read in rounds (load_rounds.c). Then the slices that the plan does not cover are filled. At the
 * end whole tensors are compared with their digests (load_digests.c).
 *
 * Every byte that is read is summed once: blocks prove it where it is read, and digests prove
 * tensors that were read whole. */
#include "load_fill.h"
#include <string.h>
#include "deal_home.h"
#include "box_runs.h"
#include "err.h"
#include "image.h"
#include "load.h"
#include "load_common.h"
#include "load_digests.h"
#include "load_prefault.h"
#include "load_report.h"
#include "load_rounds.h"
#include "load_stream.h"
#include "match.h"
#include "memory_dir.h"
#include "read_slice.h"
#include "state.h"

#define ROOM_MAX (UINT64_C(40) << 20)   /* bytes; the largest image of a load, which holds what is
                                         * being read or shared at the moment */

/* Callback of shf_holds_make. */
static const struct shf_slice *target_slice(const void *arg, uint32_t i)
{
	return &((const struct shf_target *)arg)[i].slice;
}

/* Counts a loose tensor as unverified: only foreign files have such tensors, and there are no sums
 * of them. */
static void tally_loose(struct shf_load *ld, const struct shf_lt_tensor *t)
{
	shf_tensor_counts_add(&ld->tally, SHF_COUNT_UNVERIFIED, shf_load_family(ld, t), t->name, 0);
}

/* Lists the boxes that this rank wants, by tensor, in ld->holds. Loose tensors, which foreign files
 * have at odd offsets, cannot be copied in units, so the plan leaves them out (fill_rest). They are
 * counted here, because the plan's exchange takes the tally along. ENOMEM. */
int shf_load_hold(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	uint64_t *words = shf_alloc(ld->state->n, 2 * sizeof(*words));
	size_t n = 0;
	int rc;

	if (!words)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", ld->state->n);
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_target *t = &ld->targets[i];

		if (t->source != SHF_FROM_STEP)
			continue;
		if (!l->tensors[t->tensor].loose)
			words[n++] = shf_key(t->tensor, (uint32_t)i);
		else if (!t->slice.empty)
			tally_loose(ld, &l->tensors[t->tensor]);
	}
	rc = shf_holds_make(&ld->holds, words, n, target_slice, ld->targets, err);
	shf_free(words);
	return rc;
}

int shf_load_fill_prepare(struct shf_load *ld, struct sheaf_error *err)
{
	int ranks = ld->step->run->team.ranks;
	struct shf_match m = { .layout = &ld->step->layout, .holds = &ld->holds };
	int rc = shf_load_hold(ld, err);

	if (rc < 0)
		return rc;
	ld->tells.to = shf_zalloc((size_t)ranks, sizeof(*ld->tells.to));
	rc = ld->tells.to ? shf_holds_pack(&m, (uint32_t)ranks, &ld->tells) : SHEAF_ENOMEM;
	return rc < 0 ? shf_fail(err, rc, "planning: %s", shf_strerror(rc)) : 0;
}

/* Fills one box of a slice with zeros; callback of shf_mem_boxes. */
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

void shf_load_zero(const struct shf_slice *s)
{
	(void)shf_mem_boxes(&s->mem, zero_box, (void *)(uintptr_t)s);
}

/* Fills the slices that the plan does not cover: with zeros, or from loose tensors, which this rank
 * reads itself. */
static int fill_rest(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	int rc = 0;

	for (size_t i = 0; i < ld->state->n && rc == 0; i++) {
		struct shf_target *t = &ld->targets[i];
		struct shf_slice_read done = { 0 };

		if (t->slice.empty)
			continue;
		if (t->source == SHF_FROM_ZERO)
			shf_load_zero(&t->slice);
		if (t->source != SHF_FROM_STEP || !l->tensors[t->tensor].loose)
			continue;
		rc = shf_read_slice(ld->step, &l->tensors[t->tensor], &t->slice, &done, err);
		ld->disk_bytes += done.disk_bytes;
		shf_load_report_item(&ld->report, SHEAF_REPORT_UNVERIFIED,
		                     shf_load_family(ld, &l->tensors[t->tensor]),
		                     l->tensors[t->tensor].name, SHF_FOREIGN_MSG);
	}
	return rc;
}

/* The room is what opts.staging.bytes_max leaves beside the images of saves, but at most ROOM_MAX,
 * and at least two blocks: rounds need two windows of whole blocks. */
uint64_t shf_load_room(const struct sheaf_run *run)
{
	const struct sheaf_run *saves = run->lineage.memory_of ? run->lineage.memory_of : run;
	uint64_t w = run->opts.staging_bytes_max, taken = shf_images_bytes(saves);

	w = w == 0 ? ROOM_MAX : w > taken ? w - taken : 0;
	w = w > ROOM_MAX ? ROOM_MAX : w;
	return w < 2 * SHF_BLOCK ? 2 * SHF_BLOCK : w / (2 * SHF_BLOCK) * (2 * SHF_BLOCK);
}

/* Returns the window of rounds between nodes. It is smaller than `window`, because a rank may
 * receive bytes from readers on all nodes at once. */
static uint64_t net_window(const struct sheaf_run *run, uint64_t window)
{
	window /= (uint64_t)run->place.nodes_n;
	return window < SHF_BLOCK ? SHF_BLOCK : window / SHF_BLOCK * SHF_BLOCK;
}

/* Allocates the sums by tensor (got, got_bytes) and sets up the pass. ENOMEM. */
static int make_digest_tables(struct shf_load *ld, struct sheaf_error *err)
{
	size_t n = ld->step->layout.tensors_n;

	ld->got = shf_zalloc(n, sizeof(*ld->got));
	ld->got_bytes = shf_zalloc(n + 1 + SHF_LOAD_REPORT_WORDS, sizeof(*ld->got_bytes));
	ld->pass = (struct shf_pass){ .step = ld->step, .sums = shf_block_pass_sums(ld->step),
		.got = ld->got, .got_bytes = ld->got_bytes };
	return ld->got && ld->got_bytes ? 0
	       : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", n);
}

/* What a rank needs to read its segments and to share them. Owned. If making one member fails, the
 * members made before stay set, so that the caller can free them. */
struct filling {
	struct shf_load_stream *flow;
	struct shf_load_rounds *rounds;
	struct shf_image_sharing *sharing;
};

/* Makes *f for the segments of this rank. The image serves streaming first and rounds after that,
 * so its size is the larger of what the two need. ENOMEM. */
static int set_up_filling(struct shf_load *ld, struct filling *f, struct sheaf_error *err)
{
	uint64_t bytes = 0;
	int rc = make_digest_tables(ld, err);

	if (rc == 0)
		rc = shf_load_stream_new(&f->flow, ld, ld->room, &bytes, err);
	if (rc == 0 && !ld->apart)
		rc = shf_load_rounds_new(&f->rounds, ld, err);
	if (bytes < ld->work.image_bytes)
		bytes = ld->work.image_bytes;
	if (rc == 0)
		rc = shf_image_sharing_new(&f->sharing, ld->step->run, SHF_IMAGE_OF_LOAD, bytes,
		                           err);
	return rc;
}

/* Makes the plan. What this rank needs for its segments is set up before the plan's last exchange,
 * so that two agreements can travel with that exchange: whether all have memory, and whether any
 * image must grow. *planned: all ranks have a plan, and make the same collective calls from here
 * on. Until then the result is the same on all ranks; with *planned set, it may be a failure of
 * this rank alone. [collective] */
static int make_plan(struct shf_load *ld, struct filling *f, bool *planned, struct sheaf_error *err)
{
	struct sheaf_run *run = ld->step->run;
	struct shf_match m = { .layout = &ld->step->layout, .holds = &ld->holds,
		.nodes = run->place.nodes, .way = SHF_LOAD, .tally = &ld->tally,
		.tells = &ld->tells, .told = ld->told,
		.hads = ld->step->view ? shf_view_access(ld->step->view) : NULL };
	struct shf_matching g;
	uint64_t grows = 0;
	int rc;

	/* This node has all of the step in memory, and no other node takes part. So every rank can
	 * read all of it, and none stages bytes for another. */
	ld->apart = m.apart = ld->step->view && !m.hads;
	m.window = ld->room / 2;
	m.net_window = net_window(run, m.window);
	rc = shf_match_deal(&run->team, &m, 0, &g, &ld->work, err);
	shf_buf_release(&ld->tells.bytes);
	if (rc == 0)
		rc = set_up_filling(ld, f, err);
	grows = rc == 0 && shf_image_sharing_grows(f->sharing);
	rc = shf_match_send(&run->team, rc, &g, &ld->work, &grows, 1, err);
	*planned = rc == 0;
	if (rc == 0)
		rc = shf_match_receive(&run->team, &m, &g, &ld->work, err);
	/* With a smaller maximum, shf_load_stream_run would end before this rank has read its
	 * segments. */
	if (rc == 0 && !always(ld->work.own_most >= ld->work.own_bytes))
		rc = shf_fail(err, SHEAF_EBUG, "a rank reads more by itself than the maximum over "
		              "all ranks");
	shf_matching_release(&g);
	if (*planned && grows) {
		rc = shf_image_sharing_allocate(f->sharing, rc, err);
		ld->sharing = f->sharing;
	}
	return rc;
}

/* The prefault thread is started only if this rank waits for a disk. It is stopped before
 * fill_rest, which is short. If something fails on a single rank, the next operation of the group
 * reports it to the others: each of these calls takes rc. The last such operation is in
 * shf_load_digests_check. [collective] */
int shf_load_fill(struct shf_load *ld, struct sheaf_error *err)
{
	struct filling f = { 0 };
	bool planned;
	int rc = make_plan(ld, &f, &planned, err);
	struct shf_load_prefault *ahead = rc == 0 && shf_load_stream_waits(f.flow)
	                                  ? shf_load_prefault_start(ld) : NULL;

	if (planned)
		rc = shf_load_stream_run(f.flow, rc, err);
	shf_load_stream_free(f.flow);
	if (planned && f.rounds)
		rc = shf_load_rounds_run(f.rounds, rc, err);
	shf_load_rounds_free(f.rounds);
	shf_load_prefault_end(ahead);
	if (rc == 0)
		rc = fill_rest(ld, err);
	if (planned)
		rc = shf_load_digests_check(ld, rc, err);
	/* Not before the operation in shf_load_digests_check, which without rounds is the first one
	 * after the images grew. A rank that closed its connections earlier could do so before the
	 * rank at the other end has handed over its memory, and that would fail. */
	shf_image_sharing_free(f.sharing);
	/* If the step is in memory, one rank checks blocks that another one copies, and not at the
	 * same moment. So the memory must not have been reused for another step up to here. */
	if (rc == 0 && ld->step->view)
		rc = shf_agree(&ld->step->run->team,
		               shf_view_check_unchanged(ld->step->view, ld->step->path, err), err);
	shf_image_release(ld->step->run, SHF_IMAGE_OF_LOAD);
	shf_free(ld->wants);
	shf_free(ld->got);
	shf_free(ld->got_bytes);
	return rc;
}
