/* SPDX-License-Identifier: Apache-2.0 */
/* From memory to images to files. A round covers one window of every writer's segments: ranks
 * scatter into their node's images, pack what must travel, agree; then the owners unpack, sum and
 * write. All rounds but the last are carried through inside begin; the last one is copied there,
 * so that the caller may change his tensors, and what must still travel waits in `net`. */
#include <string.h>
#include "copy.h"
#include "crc64.h"
#include "err.h"
#include "save.h"

void shf_net_release(struct shf_net *net)
{
	shf_free(net->out);
	shf_free(net->in);
	shf_free(net->out_bytes);
	shf_free(net->in_bytes);
	shf_free(net->out_at);
	shf_free(net->in_at);
	*net = (struct shf_net){ 0 };
}

static uint8_t *own_image(const struct sheaf_save *save)
{
	return save->run->images.own.base;
}

/* Do we share memory with that rank? Asked by both sides of a move, so it goes by nodes. */
static bool reaches(const struct sheaf_save *save, uint32_t peer)
{
	return save->run->place.nodes[peer] == save->run->place.node;
}

/* Does the move travel, and how long is it in the stream? */
static size_t stream_bytes(const struct sheaf_save *save, uint32_t tensor, uint32_t peer,
                           bool witness, const struct shf_box *box)
{
	if (witness)
		return 8;
	if (reaches(save, peer))
		return 0;
	return (size_t)shf_box_bytes(&save->plan->layout.tensors[tensor], box);
}

static size_t net_starts(const size_t *bytes, size_t *at, size_t ranks, uint64_t *most)
{
	size_t total = 0;

	for (size_t r = 0; r < ranks; r++) {
		at[r] = total;
		total += bytes[r];
		*most = bytes[r] > *most ? bytes[r] : *most;
	}
	return total;
}

static int net_prepare(struct sheaf_save *save, uint32_t round, uint64_t *most,
                       struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_net *net = &save->net;
	size_t ranks = (size_t)save->run->team.ranks;
	struct shf_span serves = shf_work_serves(w, round), segs = shf_work_segs(w, round);

	shf_net_release(net);
	net->out_bytes = shf_zalloc(ranks, sizeof(size_t));
	net->in_bytes = shf_zalloc(ranks, sizeof(size_t));
	net->out_at = shf_zalloc(ranks, sizeof(size_t));
	net->in_at = shf_zalloc(ranks, sizeof(size_t));
	if (!net->out_bytes || !net->in_bytes || !net->out_at || !net->in_at)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu ranks", ranks);
	for (size_t i = serves.first; i < serves.end; i++)
		net->out_bytes[w->serves[i].rank] += stream_bytes(save, w->serves[i].tensor,
			w->serves[i].rank, w->serves[i].witness, &w->serves[i].box);
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_mv *v = &w->moves[w->segs[i].first_move + k];

			net->in_bytes[v->rank] += stream_bytes(save, v->tensor, v->rank, v->witness,
			                                       &v->box);
		}
	net->out_total = net_starts(net->out_bytes, net->out_at, ranks, most);
	net->in_total = net_starts(net->in_bytes, net->in_at, ranks, most);
	net->out = shf_alloc(net->out_total, 1);
	net->in = shf_alloc(net->in_total, 1);
	if (!net->out || !net->in)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu bytes that travel",
		                net->out_total + net->in_total);
	return 0;
}

/* The slice that holds a box of a tensor: it was cut from one of this rank's holds. */
static const struct shf_slice *slice_of(const struct sheaf_save *save, uint32_t tensor,
                                        const struct shf_box *box)
{
	const struct shf_holds *h = &save->plan->holds;

	for (size_t i = shf_holds_first(h, tensor); i < h->n && h->a[i].tensor == tensor; i++)
		if (shf_box_contains(&h->a[i].box, box))
			return &save->state->slices[h->a[i].slice];
	return NULL;
}

/* This rank's memory into images and streams. */
static int copy_round(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	const struct shf_layout *l = &save->plan->layout;
	struct shf_net *net = &save->net;
	struct shf_span serves = shf_work_serves(w, round);
	size_t used = 0, last = SIZE_MAX;

	for (size_t i = serves.first; i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];
		const struct shf_lt_tensor *t = &l->tensors[v->tensor];
		const struct shf_slice *s = slice_of(save, v->tensor, &v->box);
		struct shf_place_at to = { .packed = true };
		struct shf_sums_to sums = { 0 };
		uint64_t digest = 0, bytes = shf_box_bytes(t, &v->box);

		if (!always(s != NULL))
			return shf_fail(err, SHEAF_EBUG, "%s: asked for a box that is not here",
					t->name);
		used = v->rank == last ? used : 0;
		last = v->rank;
		if (v->witness) {
			if (!shf_copy_check(t, s, &v->box, &digest))
				return shf_fail(err, SHEAF_EINVAL,
						"%s: replicas of another type in "
						"memory cannot be compared",
						t->name);
			shf_put64(net->out + net->out_at[v->rank] + used, digest);
			used += 8;
			continue;
		}
		if (reaches(save, v->rank)) {
			to = shf_place_in(shf_image_of(save->run, v->rank), v->image, v->seg_lo, t);
		} else {
			to.data = net->out + net->out_at[v->rank] + used;
			used += (size_t)bytes;
		}
		shf_copy_in(t, s, &v->box, to, &sums);
		save->held[v->tensor] ^= sums.digest;
		atomic_fetch_add_explicit(&save->copied, bytes, memory_order_relaxed);
	}
	return 0;
}

/* Header bytes of the segments of this round. */
static int copy_headers(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
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

		if (g->lo >= end)
			continue;
		if (have != g->file) {
			shf_buf_reset(&header);
			rc = shf_layout_header(l, g->file, &header, err);
			have = g->file;
		}
		if (rc == 0 && !always(header.len == end))
			rc = shf_fail(err, SHEAF_EBUG, "%s: header of %zu bytes, planned %llu",
			              l->files[g->file].name, header.len, (unsigned long long)end);
		if (rc == 0)
			memcpy(own_image(save) + g->image, header.data + g->lo,
			       (size_t)((g->hi < end ? g->hi : end) - g->lo));
	}
	shf_buf_release(&header);
	return rc;
}

static bool waits_for_net(const struct sheaf_save *save, const struct shf_seg *g)
{
	for (uint32_t k = 0; k < g->moves_n; k++) {
		const struct shf_mv *v = &save->plan->work.moves[g->first_move + k];

		if (v->witness || !reaches(save, v->rank))
			return true;
	}
	return false;
}

/* Sums of [a, b), which lies in one block and in one tensor (or the header: NULL). */
static void add_sum(struct sheaf_save *save, const struct shf_seg *g, uint64_t a, uint64_t b,
                    uint64_t block_end, const struct shf_lt_tensor *t, struct shf_block_sum *block)
{
	const uint8_t *p = own_image(save) + g->image + (a - g->lo);
	uint64_t sum = shf_crc64_raw(0, p, (size_t)(b - a));

	block->part ^= shf_crc64_shift(sum, block_end - b);
	if (t)
		save->wrote[t - save->plan->layout.tensors] ^=
			shf_crc64_shift(sum, t->off + t->bytes - b);
}

/* One pass over a finished segment: block sums and the tensors' digests, from the pages that
 * will be written. */
static void sum_segment(struct sheaf_save *save, const struct shf_seg *g)
{
	const struct shf_layout *l = &save->plan->layout;
	const struct shf_lt_file *file = &l->files[g->file];
	uint32_t next = shf_layout_at(l, g->file, g->lo),
		 end = file->first_tensor + file->tensors_n;
	uint64_t at = g->lo;

	while (at < g->hi) {
		uint64_t block = at / SHF_BLOCK, block_end = (block + 1) * SHF_BLOCK;
		struct shf_block_sum *sum = &save->blocks[save->blocks_n++];
		uint64_t stop;

		block_end = block_end < file->bytes ? block_end : file->bytes;
		stop = block_end < g->hi ? block_end : g->hi;
		*sum = (struct shf_block_sum){ file->first_block + block, 0 };
		while (at < stop) {
			const struct shf_lt_tensor *t = NULL;
			uint64_t b = stop;

			while (next < end && l->tensors[l->by_place[next]].off +
			                     l->tensors[l->by_place[next]].bytes <= at)
				next++;
			if (next < end)
				t = &l->tensors[l->by_place[next]];
			if (t && t->off > at) {
				b = t->off < b ? t->off : b;
				t = NULL;
			} else if (t) {
				b = t->off + t->bytes < b ? t->off + t->bytes : b;
			}
			add_sum(save, g, at, b, block_end, t, sum);
			at = b;
		}
	}
}

static int write_segment(struct sheaf_save *save, size_t i, struct sheaf_error *err)
{
	const struct shf_seg *g = &save->plan->work.segs[i];
	struct shf_io *io = &save->ios[i];

	sum_segment(save, g);
	*io = (struct shf_io){ .op = SHF_IO_WRITE, .fd = save->fds[g->file],
		.buf = own_image(save) + g->image, .len = (size_t)(g->hi - g->lo),
		.off = g->lo };
	int rc = shf_io_submit(save->run, &save->io, io);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "step %lld: %s: submitting a write",
		                    (long long)save->step, save->plan->layout.files[g->file].name);
	return 0;
}

/* Submit what is ready: of this round, the segments that do or do not wait for the net. */
static int write_round(struct sheaf_save *save, uint32_t round, bool net,
                       struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&save->plan->work, round);
	struct sheaf_error own;
	int rc = shf_save_rc(save, &own);

	for (size_t i = segs.first; i < segs.end && rc == 0; i++)
		if (waits_for_net(save, &save->plan->work.segs[i]) == net)
			rc = write_segment(save, i, &own);
	if (rc < 0)
		shf_save_stick(save, rc, &own);
	if (rc < 0 && err)
		*err = own;
	return rc;
}

/* One finished request. */
void shf_save_io_done(struct shf_io_owner *owner, struct shf_io *io)
{
	struct sheaf_save *save = (struct sheaf_save *)owner;
	bool sync = io->op == SHF_IO_FSYNC;
	size_t file = sync ? (size_t)io->off : save->plan->work.segs[io - save->ios].file;
	const char *name = save->plan->layout.files[file].name;

	struct sheaf_error err;
	int rc = 0;

	if (io->result < 0)
		rc = shf_fail_sys(&err, (int)-io->result, "step %lld: %s: %s",
				  (long long)save->step, name, sync ? "fsync" : "write");
	else if (!sync && (uint64_t)io->result != io->len)
		rc = shf_fail(&err, SHEAF_EIO, "step %lld: %s: %lld of %zu bytes written",
		              (long long)save->step, name, (long long)io->result, io->len);
	if (rc < 0)
		shf_save_stick(save, rc, &err);
	if (!sync)
		atomic_fetch_add_explicit(&save->written, io->len, memory_order_relaxed);
}

int shf_save_drain(struct sheaf_save *save, int timeout_ms)
{
	int rc = shf_io_drain(save->run, &save->io, timeout_ms);

	return rc < 0 ? rc : shf_save_rc(save, NULL);
}

#define SLICE_MS 250

int shf_save_drain_together(struct sheaf_save *save, int wait_ms, struct sheaf_error *err)
{
	const struct sheaf_opts *o = &save->run->opts;
	struct shf_team *team = &save->run->team;
	int left = wait_ms, rc;
	uint64_t pending;

	do {
		int slice = wait_ms < 0 || left > SLICE_MS ? SLICE_MS : left;

		rc = shf_save_drain(save, slice);
		pending = rc == SHEAF_EAGAIN;
		if (o->progress) {
			struct sheaf_stat stat;

			shf_save_stat(save, &stat);
			o->progress(o->arg, &stat);
		}
		rc = shf_agree(team, pending ? 0 : shf_save_rc(save, err), err);
		if (rc == 0)
			rc = shf_allreduce(team, &pending, 1, SHEAF_MAX, err);
		left -= slice;
	} while (rc == 0 && pending && (wait_ms < 0 || left > 0));
	if (rc == 0 && pending)
		rc = shf_fail(err, SHEAF_EAGAIN, "step %lld: some rank is still writing",
		              (long long)save->step);
	return rc;
}

/* What arrived into the image; replicas' digests compared with what will be written. */
static int unpack_round(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_net *net = &save->net;
	struct shf_span segs = shf_work_segs(w, round);
	size_t *used = shf_zalloc((size_t)save->run->team.ranks, sizeof(*used));

	if (!used)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to unpack");
	for (int pass = 0; pass < 2; pass++) {  /* bytes first: witnesses look at whole pages */
		memset(used, 0, sizeof(*used) * (size_t)save->run->team.ranks);
		for (size_t i = segs.first; i < segs.end; i++)
			for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
				const struct shf_mv *v = &w->moves[w->segs[i].first_move + k];
				const struct shf_lt_tensor *t =
				    &save->plan->layout.tensors[v->tensor];
				struct shf_place_at at = shf_place_in(
				    own_image(save), w->segs[i].image, w->segs[i].lo, t);
				const uint8_t *from = net->in + net->in_at[v->rank] + used[v->rank];
				struct shf_sums_to sums = { 0 };

				used[v->rank] +=
				    stream_bytes(save, v->tensor, v->rank, v->witness, &v->box);
				if (pass == 0 && !v->witness && !reaches(save, v->rank))
					shf_copy_unpack(t, &v->box, from, at, &sums);
				if (pass == 0 || !v->witness)
					continue;
				shf_copy_pack(t, &v->box, at, NULL, &sums);
				if (sums.digest != shf_get64(from)) {
					char box[160];

					shf_free(used);
					return shf_fail(err, SHEAF_EDIVERGED,
							"%s: rank %u's replica of %s "
							"differs from what rank %d writes",
							t->name, v->rank,
							shf_box_print(&v->box, box, sizeof(box)),
							save->run->team.rank);
				}
			}
	}
	shf_free(used);
	return 0;
}

/* One portion of at most `part` bytes of every stream. */
static int net_portion(struct sheaf_save *save, size_t part, struct sheaf_error *err)
{
	struct shf_net *net = &save->net;
	size_t ranks = (size_t)save->run->team.ranks, out_n = 0, in_n = 0;
	size_t *out_bytes = shf_zalloc(ranks, sizeof(size_t)), *in_bytes = shf_zalloc(ranks,
	                                                                        sizeof(size_t));
	uint8_t *out = NULL, *in = NULL;
	int rc = out_bytes && in_bytes ? 0 : SHEAF_ENOMEM;

	for (size_t r = 0; r < ranks && rc == 0; r++) {
		size_t o = net->out_bytes[r] > net->done ? net->out_bytes[r] - net->done : 0;
		size_t i = net->in_bytes[r] > net->done ? net->in_bytes[r] - net->done : 0;

		out_n += out_bytes[r] = o < part ? o : part;
		in_n += in_bytes[r] = i < part ? i : part;
	}
	if (rc == 0 && (!(out = shf_alloc(out_n, 1)) || !(in = shf_alloc(in_n, 1))))
		rc = SHEAF_ENOMEM;
	for (size_t r = 0, at = 0; r < ranks && rc == 0; at += out_bytes[r], r++)
		if (out_bytes[r])
			memcpy(out + at, net->out + net->out_at[r] + net->done, out_bytes[r]);
	if (rc < 0)
		shf_fail(err, rc, "no memory for a portion of %zu bytes", out_n + in_n);
	rc = shf_agree(&save->run->team, rc, err);
	if (rc == 0)
		rc = shf_alltoallv(&save->run->team, out, out_bytes, in, in_bytes, err);
	for (size_t r = 0, at = 0; r < ranks && rc == 0; at += in_bytes[r], r++)
		if (in_bytes[r])
			memcpy(net->in + net->in_at[r] + net->done, in + at, in_bytes[r]);
	if (rc == 0) {
		net->done = net->most - net->done > part ? net->done + part : net->most;
		atomic_fetch_add_explicit(&save->sent, out_n, memory_order_relaxed);
	}
	shf_free(out);
	shf_free(in);
	shf_free(out_bytes);
	shf_free(in_bytes);
	return rc;
}

int shf_net_finish(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err)
{
	uint64_t peers = save->run->team.ranks > 1 ? (uint64_t)save->run->team.ranks - 1 : 1;
	size_t part = bytes_max ? (size_t)(bytes_max / peers) : SIZE_MAX;
	int rc = 0;

	if (save->exchanged)
		return 0;
	if (save->net.done < save->net.most)
		rc = net_portion(save, part < 4096 ? 4096 : part, err);
	if (rc == 0 && save->net.done < save->net.most)
		return SHEAF_EAGAIN;
	if (rc == 0) {
		rc = save->net.most ? unpack_round(save, save->round, err) : 0;
		if (rc == 0)
			rc = write_round(save, save->round, true, err);
		rc = shf_agree(&save->run->team, rc, err);
	}
	save->exchanged = rc == 0;
	if (rc < 0)
		shf_save_stick(save, rc, err);
	shf_net_release(&save->net);
	return rc;
}

static int one_round(struct sheaf_save *save, uint32_t round, bool last, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	uint64_t most = 0;
	int rc = net_prepare(save, round, &most, err);

	save->round = round;
	save->exchanged = false;
	if (rc == 0)
		rc = copy_round(save, round, err);
	if (rc == 0)
		rc = copy_headers(save, round, err);
	rc =
	    shf_agree(team, rc, err); /* from here on the node's images are whole but for the net */
	if (rc == 0)
		rc = shf_allreduce(team, &most, 1, SHEAF_MAX, err);
	save->net.most = (size_t)most;
	if (rc == 0) {
		rc = write_round(save, round, false, err);
		rc = shf_agree(team, rc, err);
	}
	if (rc < 0 || last)
		return rc;
	while ((rc = shf_net_finish(save, 0, err)) == SHEAF_EAGAIN)
		;
	if (rc == 0) /* the next round writes over these images (I10) */
		rc = shf_save_drain_together(save, -1, err);
	return rc;
}

int shf_rounds_run(struct sheaf_save *save, struct sheaf_error *err)
{
	uint32_t n = save->plan->work.rounds;
	int rc = 0;

	for (uint32_t k = 0; k < n && rc == 0; k++)
		rc = one_round(save, k, k + 1 == n, err);
	if (n == 0)
		save->exchanged = true;
	return rc;
}
