/* SPDX-License-Identifier: Apache-2.0 */
/* Copies memory into images, from where save_write.c writes files. A round covers a window of every
 * writer's segments: each rank copies its boxes into images of its node, and packs those for other
 * nodes into streams (save_net.c).
 *
 * Each byte is checksummed by the rank that copies it from memory: the pass that fills the page
 * also adds to the sum of its block and to the digest of its tensor. (With stores past the caches
 * each byte is read twice, the second time within 16 KiB of the first. A caller that changes memory
 * in between, which it must not, gets a step that every load refuses.)
 *
 * A segment is written as soon as its last byte is in the image, while others are still copied. The
 * counter in the segment's control (struct shf_ctl) shows which rank copied last. All rounds but
 * the last are completed inside begin. The last round is copied inside begin, too, so that the
 * caller may change its tensors; but its streams may be exchanged later. */
#include "save_rounds.h"
#include <stdatomic.h>
#include <string.h>
#include "averages.h"
#include "crc64.h"
#include "deal_home.h"
#include "err.h"
#include "image.h"
#include "run_env.h"
#include "run_io.h"
#include "save_copier.h"
#include "save_status.h"
#include "save_net.h"
#include "save_order.h"
#include "save_where.h"
#include "save_write.h"
#include "scrub_run.h"
#include "state.h"
#include "unstaged_copy.h"
#include "work.h"

/* Returns how long a piece of a box may be; begin copies a box as a single piece. The rank that
 * copies and the owner of the segment compute the same number of pieces. */
static uint64_t piece_bytes_max(const struct sheaf_save *save)
{
	return shf_save_is_async(save) ? SHF_PIECE_BYTES : UINT64_MAX;
}

void shf_save_rounds_init(struct sheaf_save *save)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;

	for (size_t i = 0; i < w->segs_n; i++) {
		const struct shf_seg *g = &w->segs[i];
		struct shf_ctl *ctl = shf_save_own_ctl(save, i);
		/* `left` counts what the segment waits for: one for its header, one for all that
		 * comes from other nodes, and one for each piece that ranks of this node copy. */
		uint32_t left = shf_save_has_header(save, g) + shf_save_waits_for_net(save, g);

		for (uint32_t k = 0; k < g->moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[g->first_move + k];

			if (!v->witness && shf_save_reaches(save, v->rank))
				left += shf_save_cuts_of(&l->tensors[v->tensor], &v->box,
				                         piece_bytes_max(save));
		}
		memset(ctl, 0, sizeof(*ctl));
		atomic_store_explicit(&ctl->left, left, memory_order_relaxed);
	}
}

#define FUSED (UINT64_C(128) << 10)     /* bytes; small enough that weights are still in the core's
	                                 * cache when they are copied after the update of their
	                                 * averages */

/* Returns the index in memory of the unit after the last one of the box. */
static int64_t end_of(const struct shf_mem *m, const struct shf_box *box)
{
	int64_t last = m->origin;

	for (int d = 0; d < box->ndim; d++)
		last += (box->start[d] + box->count[d] - 1 - m->box.start[d]) * m->stride[d];
	return last + 1;
}

/* A box on its way from a slice: a piece of a serve, or a part of a piece. */
struct copy {
	const struct shf_lt_tensor *tensor;
	const struct shf_slice *slice;
	struct shf_ema_window *due;     /* as in shf_save_rounds_copy */
};

/* Copies a box of weights or of averages. If averages are due, updates them FUSED bytes at a time,
 * and copies each part right after its update, so that memory is read once. */
static void copy_in(const struct sheaf_save *save, const struct copy *c, const struct shf_box *box,
                    struct shf_place_at to, struct shf_box_copy_sums *sums)
{
	bool due = c->due && c->due->at < c->due->hi;
	uint32_t n = due ? shf_save_cuts_of(c->tensor, box, FUSED) : 1;

	for (uint32_t i = 0; n > 1 && i < n; i++) {
		struct shf_place_at at = to;
		struct shf_box part;
		uint64_t before = shf_save_cut_at(c->tensor, box, FUSED, i, &part);

		if (to.packed)
			at.data += before;
		copy_in(save, c, &part, at, sums);
	}
	if (n > 1)
		return;
	if (due)
		shf_emas_update(save->state, save->copy.fresh, c->due, end_of(&c->slice->mem, box));
	shf_box_copy_in(c->tensor, c->slice, box, to, sums);
}

/* Copies a box of a serve into the image of a rank of this node. Returns the digest of its bytes. A
 * background copy stores past the caches, because the caller is using them. Copies inside begin are
 * timed, to find out which way is faster (streaming_stores.h). */
static uint64_t copy_to_image(struct sheaf_save *save, const struct copy *c,
                              const struct shf_serve *v, const struct shf_box *box)
{
	uint8_t *image = shf_image_of(save->run, save->copy.image, v->rank);
	struct shf_ctl *ctl = (struct shf_ctl *)(void *)(image + v->ctl);
	struct shf_box_copy_sums sums = shf_save_sums_at(save, c->tensor->file, v->seg_lo, ctl);
	bool async = shf_save_is_async(save);
	bool timed = !async && !(c->due && c->due->at < c->due->hi);
	int64_t from = shf_now(save->run);

	sums.past = async || shf_nt_stores_next(&save->copy.stores);
	copy_in(save, c, box, shf_place_in(image, v->image, v->seg_lo, c->tensor), &sums);
	if (timed)
		shf_nt_stores_took(&save->copy.stores, shf_box_bytes(c->tensor, box),
		                   shf_now(save->run) - from);
	shf_ctl_count_part(ctl);
	return sums.digest;
}

int shf_save_rounds_copy(struct sheaf_save *save, const struct shf_save_order_piece *p,
                         const struct shf_slice *slice, struct shf_ema_window *due,
                         struct shf_save_added *added, struct sheaf_error *err)
{
	const struct shf_serve *v = added->serve = &save->plan->work.serves[p->serve];
	const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];
	struct copy c = { t, slice, due };
	struct shf_box_copy_sums sums = { 0 };
	struct shf_box box;
	uint64_t before;

	if (v->witness) {
		if (due)
			shf_emas_update(save->state, save->copy.fresh, due,
			                end_of(&slice->mem, &v->box));
		if (!shf_box_copy_check(t, slice, &v->box, &sums.digest))
			return shf_fail(err, SHEAF_EDIVERGED, "%s: replicas whose data_dtype is "
			                "not their dtype cannot be compared; open the run without "
			                "SHEAF_RUN_REPLICAS", t->name);
		shf_put64(save->copy.streams.out + p->stream, sums.digest);
		return 0;
	}
	before = shf_save_cut_at(t, &v->box, piece_bytes_max(save), p->piece, &box);
	if (shf_save_reaches(save, v->rank)) {
		added->digest = copy_to_image(save, &c, v, &box);
	} else {
		copy_in(save, &c, &box,
		        (struct shf_place_at){ .data = save->copy.streams.out + p->stream + before,
		                               .packed = true }, &sums);
		added->digest = sums.digest;
	}
	added->bytes = shf_box_bytes(t, &box);
	atomic_fetch_add_explicit(&save->took.copied, added->bytes, memory_order_relaxed);
	return 0;
}

#define LOOK_BYTES_IN_BEGIN (UINT64_C(2) << 20)  /* copied before whole segments are looked for */
#define LOOK_SEGS 64                    /* segments checked each time */

/* Copies this rank's boxes of the round into images and streams, and writes segments that are
 * complete meanwhile. */
static int copy_round(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct sheaf_state *state = save->state;
	struct shf_save_order_piece *all;
	uint64_t since = 0;
	size_t n;
	int rc = shf_save_order_list(save, shf_work_serves(&save->plan->work, round),
	                             piece_bytes_max(save), &all, &n, err);

	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct shf_save_order_piece *p = &all[i];
		struct shf_ema_window *due = save->copy.due;
		struct shf_save_added c = { 0 };

		if (due)
			due += shf_emas_before(state, due, p->slice);
		rc = shf_save_rounds_copy(save, p, &state->slices[p->slice], due, &c, err);
		save->copy.held[c.serve->tensor] ^= c.digest;
		since += shf_box_bytes(&save->plan->layout.tensors[c.serve->tensor], &c.serve->box);
		if (rc == 0 && since >= LOOK_BYTES_IN_BEGIN) {
			since = 0;
			rc = shf_save_write_some(save, LOOK_SEGS, err);
			(void)shf_io_drain(save->run, &save->disk.io, 0);
		}
	}
	shf_free(all);
	return rc;
}

int shf_save_rounds_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;
	struct shf_span segs = shf_work_segs(w, round);
	struct shf_buf header = SHF_BUF_INIT;
	uint32_t have = UINT32_MAX;
	int rc = 0;

	for (size_t i = segs.first; i < segs.end && rc == 0; i++) {
		const struct shf_seg *g = &w->segs[i];
		uint64_t end = l->files[g->file].header_bytes;
		struct shf_box_copy_sums sums = shf_save_seg_sums(save, i,
		                                                  shf_save_own_ctl(save, i));

		if (!shf_save_has_header(save, g))
			continue;
		if (have != g->file) {
			shf_buf_reset(&header);
			rc = shf_layout_header(l, g->file, &header, err);
			have = g->file;
		}
		if (rc == 0 && !always(header.len == end))
			rc = shf_fail(err, SHEAF_EBUG, "%s: header of %zu bytes, planned %llu",
			              l->files[g->file].name, header.len, (unsigned long long)end);
		if (rc < 0)
			break;
		end = g->hi < end ? g->hi : end;
		memcpy(shf_save_own_image(save) + g->image, header.data + g->lo,
		       (size_t)(end - g->lo));
		shf_box_copy_sums_add(&sums, g->lo, header.data + g->lo, end - g->lo);
		save->copy.headers[g->file] ^=
		    shf_crc64_shift(shf_crc64_raw(0, header.data + g->lo, (size_t)(end - g->lo)),
		                    header.len - end);
		shf_ctl_count_part(shf_save_own_ctl(save, i));
	}
	shf_buf_release(&header);
	return rc;
}

int shf_save_rounds_open(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	save->copy.round = round;
	save->copy.exchanged = false;
	save->copy.open_seg = shf_work_segs(&save->plan->work, round).first;
	return shf_save_net_prepare(save, round, err);
}

/* Copies a round; unless it is the last, also exchanges its streams and waits for its writes, on
 * all ranks. rc: the result of this rank's work so far. [collective] */
static int one_round(struct sheaf_save *save, uint32_t round, bool last, int rc,
                     struct sheaf_error *err)
{
	uint64_t most;

	if (rc == 0)
		rc = shf_save_rounds_open(save, round, err);
	if (rc == 0)
		rc = shf_save_rounds_headers(save, round, err);
	if (rc == 0)
		rc = copy_round(save, round, err);
	most = save->copy.streams.longest;
	/* After this agreement the images of the node are complete, except for bytes from other
	 * nodes. */
	rc = shf_agree_max(&save->run->team, rc, &most, 1, err);
	if (rc == 0 && last && save->plan->slotted)
		rc = shf_unstaged_run(save, err);
	if (rc < 0)
		return rc;
	save->copy.streams_most = (size_t)most;
	save->copy.exchanged = most == 0; /* nothing to exchange: the image is free once it is
	                                   * written */
	/* A failure here is recorded in the save, and the next agreement reports it. */
	if (save->copy.exchanged) {
		(void)shf_save_write_arrived(save, round, NULL);
	} else {
		struct sheaf_error own;

		rc = shf_save_write_complete(save, &own);
		if (rc < 0)
			shf_save_stick(save, rc, &own);
	}
	if (last)
		return 0;
	while ((rc = shf_save_net_finish(save, 0, err)) == SHEAF_EAGAIN)
		;
	if (rc == 0) /* the next round overwrites these images (I10) */
		rc = shf_save_drain_together(save, err);
	return rc;
}

int shf_save_rounds_run(struct sheaf_save *save, int rc, struct sheaf_error *err)
{
	uint32_t n = save->plan->work.rounds;

	if (n == 0) {
		save->copy.exchanged = true;
		return shf_agree(&save->run->team, rc, err);
	}
	rc = one_round(save, 0, n == 1, rc, err);
	for (uint32_t k = 1; k < n && rc == 0; k++)
		rc = one_round(save, k, k + 1 == n, 0, err);
	return rc;
}
