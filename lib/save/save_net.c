/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a round that must go to other nodes. The copy packs them into one stream for each
 * receiving rank. They are exchanged in portions, and unpacked into the receiver's image. Digests
 * of replicas are sent in the same streams. */
#include "save_net.h"
#include <inttypes.h>
#include <string.h>
#include "box_copy.h"
#include "err.h"
#include "run_env.h"
#include "save_status.h"
#include "save_where.h"
#include "save_write.h"
#include "work.h"

int shf_save_net_prepare(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_streams *s = &save->copy.streams;
	struct shf_span serves = shf_work_serves(w, round), segs = shf_work_segs(w, round);

	shf_streams_release(s);
	save->copy.streams_done = save->copy.streams_most = 0;
	if (shf_streams_init(s, save->run->team.ranks) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", save->run->team.ranks);
	for (size_t i = serves.first; i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];

		s->out_bytes[v->rank] +=
		    shf_save_stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
	}
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[w->segs[i].first_move + k];

			s->in_bytes[v->rank] +=
			    shf_save_stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
		}
	if (shf_streams_reserve(s) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu bytes that travel",
		                s->out_total + s->in_total);
	atomic_fetch_add(&save->took.to_send, s->out_total);
	return 0;
}

/* Exchanges at most `part` bytes of every stream. All ranks must pass the same `part`: each side
 * derives from it and the known lengths how many bytes the other one sends. [collective] */
static int net_portion(struct sheaf_save *save, size_t part, struct sheaf_error *err)
{
	const struct shf_streams *all = &save->copy.streams;
	struct shf_streams some;
	size_t done = save->copy.streams_done, most = save->copy.streams_most;
	int64_t from;
	int rc = shf_streams_init(&some, save->run->team.ranks);

	for (size_t r = 0; r < some.ranks; r++) {
		size_t o = all->out_bytes[r] > done ? all->out_bytes[r] - done : 0;
		size_t i = all->in_bytes[r] > done ? all->in_bytes[r] - done : 0;

		some.out_bytes[r] = o < part ? o : part;
		some.in_bytes[r] = i < part ? i : part;
	}
	if (rc == 0)
		rc = shf_streams_reserve(&some);
	for (size_t r = 0; r < some.ranks && rc == 0; r++)
		if (some.out_bytes[r])
			memcpy(some.out + some.out_at[r], all->out + all->out_at[r] + done,
			       some.out_bytes[r]);
	if (rc < 0)
		shf_fail(err, rc, "no memory for a portion of %zu bytes",
		         some.out_total + some.in_total);
	rc = shf_agree(&save->run->team, rc, err);
	from = shf_now(save->run);
	if (rc == 0)
		rc = shf_alltoallv(&save->run->team, some.out, some.out_bytes, some.in,
		                   some.in_bytes, err);
	for (size_t r = 0; r < some.ranks && rc == 0; r++)
		if (some.in_bytes[r])
			memcpy(all->in + all->in_at[r] + done, some.in + some.in_at[r],
			       some.in_bytes[r]);
	if (rc == 0) {
		save->copy.streams_done = most - done > part ? done + part : most;
		atomic_fetch_add_explicit(&save->took.sent, some.out_total, memory_order_relaxed);
		shf_rate_set(&save->run->saves.pace.send, some.out_total,
		             shf_now(save->run) - from);
	}
	shf_streams_release(&some);
	return rc;
}

/* Handles the streams of one segment, in the order in which the senders packed them; used[r]: how
 * far stream r was read. witnesses: compares digests of replicas with the bytes in the image; else
 * copies bytes into the image. EDIVERGED. */
static int unpack_moves(struct sheaf_save *save, size_t i, size_t *used, bool witnesses,
                        struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_seg *g = &w->segs[i];
	const struct shf_streams *s = &save->copy.streams;

	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_seg_move *v = &w->moves[g->first_move + k];
		const struct shf_lt_tensor *t = &save->plan->layout.tensors[v->tensor];
		struct shf_place_at at = shf_place_in(shf_save_own_image(save), g->image, g->lo, t);
		const uint8_t *from = s->in + s->in_at[v->rank] + used[v->rank];
		struct shf_box_copy_sums sums = { 0 };
		char box[160];

		used[v->rank] += shf_save_stream_bytes(save, v->tensor, v->rank, v->witness,
		                                       &v->box);
		if (!witnesses && !v->witness && !shf_save_reaches(save, v->rank)) {
			sums = shf_save_seg_sums(save, i, shf_save_own_ctl(save, i));
			shf_box_copy_unpack(t, &v->box, from, at, &sums);
		}
		if (!witnesses || !v->witness)
			continue;
		shf_box_copy_pack(t, &v->box, at, NULL, &sums);
		if (sums.digest != shf_get64(from))
			return shf_fail(err, SHEAF_EDIVERGED,
					"step %" PRId64 ": %s/%s: ranks %u and %d have different "
					"replicas of %s", save->id.step,
					save->plan->layout.families[t->family].name, t->name,
					v->rank, save->run->team.rank,
					shf_box_print(&v->box, box, sizeof(box)));
	}
	return 0;
}

/* Unpacks all streams of a round, in two passes: first the bytes, because a replica's digest is
 * compared with the complete bytes in the image. */
static int unpack_round(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&save->plan->work, round);
	size_t ranks = (size_t)save->run->team.ranks, *used = shf_alloc(ranks, sizeof(*used));
	int rc = used ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to unpack");

	for (int witnesses = 0; witnesses < 2 && rc == 0; witnesses++) {
		memset(used, 0, sizeof(*used) * ranks);
		for (size_t i = segs.first; i < segs.end && rc == 0; i++)
			rc = unpack_moves(save, i, used, witnesses, err);
	}
	shf_free(used);
	return rc;
}

void shf_save_net_drop(struct sheaf_save *save)
{
	save->copy.exchanged = true;
	shf_streams_release(&save->copy.streams);
}

int shf_save_net_finish(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err)
{
	uint64_t peers = save->run->team.ranks > 1 ? (uint64_t)save->run->team.ranks - 1 : 1;
	size_t part = bytes_max ? (size_t)(bytes_max / peers) : SIZE_MAX;
	int rc = 0;

	if (save->copy.exchanged)
		return 0;
	if (save->copy.streams_done < save->copy.streams_most)
		rc = net_portion(save, part < 4096 ? 4096 : part, err);
	if (rc == 0 && save->copy.streams_done < save->copy.streams_most)
		return SHEAF_EAGAIN;
	if (rc == 0 && save->copy.streams_most) {
		rc = unpack_round(save, save->copy.round, err);
		if (rc == 0)
			rc = shf_save_write_arrived(save, save->copy.round, err);
		rc = shf_agree(&save->run->team, rc, err);
	} else if (rc == 0) { /* a failure is recorded in the save, and the next agreement reports
	                       * it */
		(void)shf_save_write_arrived(save, save->copy.round, NULL);
	}
	/* The exchange ends after a failure, too: by the time of another call, the image and its
	 * controls may belong to the next save. */
	if (rc < 0)
		shf_save_stick(save, rc, err);
	shf_save_net_drop(save);
	return rc;
}
