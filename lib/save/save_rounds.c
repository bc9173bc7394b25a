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
#include <stdlib.h>
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
#include "save_where.h"
#include "save_write.h"
#include "scrub_run.h"
#include "unstaged_copy.h"
#include "work.h"

void shf_save_rounds_init(struct sheaf_save *save)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;

	for (size_t i = 0; i < w->segs_n; i++) {
		const struct shf_seg *g = &w->segs[i];
		struct shf_ctl *ctl = shf_save_own_ctl(save, i);
		/* `left` counts what the segment waits for: one for its header, one for all that
		 * comes from other nodes, and one for each copy by a rank of this node. A lazy save
		 * copies each box in pieces of SHF_PIECE_BYTES; the rank that copies and the owner
		 * of the segment compute the same number of pieces. */
		uint32_t left = shf_save_has_header(save, g) + shf_save_waits_for_net(save, g);

		for (uint32_t k = 0; k < g->moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[g->first_move + k];

			const struct shf_lt_tensor *t = &l->tensors[v->tensor];

			if (!v->witness && shf_save_reaches(save, v->rank))
				left += shf_save_is_async(save)
				            ? shf_save_cuts_of(t, &v->box, SHF_PIECE_BYTES)
				            : 1;
		}
		memset(ctl, 0, sizeof(*ctl));
		atomic_store_explicit(&ctl->left, left, memory_order_relaxed);
	}
}

/* A serve in the order of copying: by offset in the image of its rank, so that images fill from the
 * front on all ranks, and their first segments can be written early. stream: offset of the serve in
 * the stream to its rank. */
struct turn {
	uint64_t image;
	size_t serve, stream;
};

static int turn_order(const void *a, const void *b)
{
	const struct turn *x = a, *y = b;

	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	return x->serve < y->serve ? -1 : x->serve > y->serve;
}

/* Returns the serves in the order of copying (struct turn); NULL: no memory. In the streams they
 * are packed in the order of work.serves, so their offsets are computed before the sort. */
static struct turn *take_turns(const struct sheaf_save *save, struct shf_span serves)
{
	const struct shf_work *w = &save->plan->work;
	struct turn *turns = shf_alloc(serves.end - serves.first, sizeof(*turns));
	size_t used = 0, rank = SIZE_MAX;

	for (size_t i = serves.first; turns && i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];

		used = v->rank == rank ? used : 0;
		rank = v->rank;
		turns[i - serves.first] = (struct turn){ v->image, i, used };
		used += shf_save_stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
	}
	if (turns && serves.end > serves.first)
		qsort(turns, serves.end - serves.first, sizeof(*turns), turn_order);
	return turns;
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

/* Copies a box of weights or of averages. If averages are due, updates them FUSED bytes at a time,
 * and copies each part right after its update, so that memory is read once. */
static void copy_in(const struct sheaf_save *save, const struct shf_box_move *m,
                    const struct shf_box *box, struct shf_place_at to,
                            struct shf_box_copy_sums *sums)
{
	const struct shf_lt_tensor *t = &save->plan->layout.tensors[m->serve->tensor];
	bool due = m->due && m->due->at < m->due->hi;
	uint32_t n = due ? shf_save_cuts_of(t, box, FUSED) : 1;

	for (uint32_t i = 0; n > 1 && i < n; i++) {
		struct shf_place_at at = to;
		struct shf_box part;
		uint64_t before = shf_save_cut_at(t, box, FUSED, i, &part);

		if (to.packed)
			at.data += before;
		copy_in(save, m, &part, at, sums);
	}
	if (n > 1)
		return;
	if (due)
		shf_emas_update(save->state, save->copy.fresh, m->due, end_of(&m->slice->mem, box));
	shf_box_copy_in(t, m->slice, box, to, sums);
}

/* Copies a box into the image of a rank of this node. Returns the digest of its bytes. A background
 * copy stores past the caches, because the caller is using them. Copies inside begin are timed, to
 * find out which way is faster (store_way.h). */
static uint64_t copy_to_image(struct sheaf_save *save, const struct shf_box_move *m)
{
	const struct shf_serve *v = m->serve;
	const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];
	uint8_t *image = shf_image_of(save->run, save->copy.image, v->rank);
	struct shf_ctl *ctl = (struct shf_ctl *)(void *)(image + v->ctl);
	struct shf_box_copy_sums sums = shf_save_sums_at(save, t->file, v->seg_lo, ctl);
	bool timed = !m->behind && !(m->due && m->due->at < m->due->hi);
	int64_t from = shf_now(save->run);

	sums.past = m->behind || shf_nt_stores_next(&save->copy.stores);
	copy_in(save, m, &m->box, shf_place_in(image, v->image, v->seg_lo, t), &sums);
	if (timed)
		shf_nt_stores_took(&save->copy.stores, shf_box_bytes(t, &m->box),
		                   shf_now(save->run) - from);
	shf_ctl_count_part(ctl);
	return sums.digest;
}

int shf_save_rounds_copy_box(struct sheaf_save *save, const struct shf_box_move *m,
                             uint64_t *digest, struct sheaf_error *err)
{
	const struct shf_serve *v = m->serve;
	const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];
	const struct shf_streams *streams = &save->copy.streams;
	struct shf_place_at to = { .packed = true };
	struct shf_box_copy_sums sums = { 0 };

	if (v->witness) {
		if (m->due)
			shf_emas_update(save->state, save->copy.fresh, m->due,
			                end_of(&m->slice->mem, &m->box));
		if (!shf_box_copy_check(t, m->slice, &m->box, &sums.digest))
			return shf_fail(err, SHEAF_EINVAL, "%s: replicas of another type in memory "
			                "cannot be compared", t->name);
		shf_put64(streams->out + streams->out_at[v->rank] + m->stream, sums.digest);
		return 0;
	}
	if (shf_save_reaches(save, v->rank)) {
		*digest = copy_to_image(save, m);
		return 0;
	}
	to.data = streams->out + streams->out_at[v->rank] + m->stream;
	copy_in(save, m, &m->box, to, &sums);
	*digest = sums.digest;
	return 0;
}

/* Copies one serve inside begin. */
static int copy_move(struct sheaf_save *save, const struct turn *turn, struct sheaf_error *err)
{
	const struct shf_serve *v = &save->plan->work.serves[turn->serve];
	struct shf_box_move m = { .serve = v, .slice = shf_save_slice_of(save, v->tensor, &v->box),
		.box = v->box, .stream = turn->stream };
	uint64_t digest = 0;
	int rc;

	if (!always(m.slice != NULL))
		return shf_fail(err, SHEAF_EBUG, "%s: asked for a box that is not here",
		                save->plan->layout.tensors[v->tensor].name);
	if (save->copy.due)
		m.due = &save->copy.due[shf_emas_before(save->state, save->copy.due,
		                                   (size_t)(m.slice - save->state->slices))];
	rc = shf_save_rounds_copy_box(save, &m, &digest, err);
	save->copy.held[v->tensor] ^= digest;
	return rc;
}

#define LOOK_BYTES_IN_BEGIN (UINT64_C(2) << 20)  /* copied before whole segments are looked for */
#define LOOK_SEGS 64                    /* segments checked each time */

/* Copies this rank's boxes of the round into images and streams, and writes segments that are
 * complete meanwhile. */
static int copy_round(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_span serves = shf_work_serves(w, round);
	struct turn *turns = take_turns(save, serves);
	uint64_t since = 0;
	int rc = turns ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a round of copies");

	for (size_t i = 0; i < serves.end - serves.first && rc == 0; i++) {
		const struct shf_serve *v = &w->serves[turns[i].serve];
		uint64_t bytes = shf_box_bytes(&save->plan->layout.tensors[v->tensor], &v->box);

		rc = copy_move(save, &turns[i], err);
		atomic_fetch_add_explicit(&save->took.copied, v->witness ? 0 : bytes,
		                          memory_order_relaxed);
		since += bytes;
		if (rc == 0 && since >= LOOK_BYTES_IN_BEGIN) {
			since = 0;
			rc = shf_save_write_some(save, LOOK_SEGS, err);
			(void)shf_io_drain(save->run, &save->disk.io, 0);
		}
	}
	shf_free(turns);
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
