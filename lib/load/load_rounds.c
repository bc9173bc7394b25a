/* SPDX-License-Identifier: Apache-2.0 */
/* What several ranks want is read once and shared, in rounds. In a round each reader reads some of
 * its segments into one window of its image. The image has two windows, which rounds use in turn:
 * while the ranks take their bytes from one window, the other one is read.
 *
 * The ranks of a reader's node have its image mapped and copy their bytes from it. Ranks of other
 * nodes get theirs in messages.
 *
 * How damage is found: a reader sums its window, and copies what it wants itself, only after every
 * other rank has taken its bytes from the window. So if a byte in an image changes before or while
 * another rank copies it, the sum is wrong, and the load fails on all ranks. A message to another
 * node has a proof of its own: the sum of the bytes, computed in the pass that copied them into the
 * message. */
#include "load_rounds.h"
#include "box_copy.h"
#include "crc64.h"
#include "deal_home.h"
#include "err.h"
#include "image.h"
#include "load.h"
#include "load_common.h"
#include "load_read.h"
#include "nodes.h"
#include "run_env.h"
#include "state.h"
#include "step_files.h"
#include "streams.h"
#include "work.h"

/* ---- reading ---- */

/* The reads of one round. There is one struct for each window of the image. */
struct window {
	struct shf_read *reads;         /* owned; as many as the largest round needs. They must not
	                                 * move, because the queue keeps pointers to them */
	size_t n;
};

/* Returns whether more than half of the segment is in the page cache. If so, the segment is read
 * through the cache, otherwise with direct I/O. */
static bool is_mostly_cached(const struct shf_load *ld, const struct shf_seg *g, int fd)
{
	const struct shf_sys *sys = ld->step->run->sys;

	return shf_sys_resident(sys, fd, g->lo, g->hi - g->lo) >
	       (int64_t)((g->hi - g->lo) / 2);
}

/* Starts to read all segments of the round into the image, in pieces. If it fails, the reads that
 * were started stay in flight, for shf_load_rounds_free. */
static int window_start(struct shf_load *ld, struct window *h, uint32_t round,
                        struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&ld->work, round);
	uint8_t *image = shf_load_image(ld);
	int rc = 0;

	h->n = 0;
	for (size_t i = segs.first; i < segs.end && rc == 0; i++) {
		const struct shf_seg *g = &ld->work.segs[i];
		int fd = shf_step_fd(ld->step, g->file, err);
		bool cached = fd >= 0 && is_mostly_cached(ld, g, fd);

		rc = fd < 0 ? fd : 0;
		for (uint64_t lo = g->lo, n; lo < g->hi && rc == 0; lo += n) {
			struct shf_read *r = &h->reads[h->n++];

			n = g->hi - lo < SHF_LOAD_PIECE ? g->hi - lo : SHF_LOAD_PIECE;
			r->buf = image + g->image + (lo - g->lo);
			rc = shf_load_read_set(ld, r, g->file, lo, n, !cached, err);
			if (rc == 0)
				rc = shf_read_start(ld->step->run, r);
			if (r->rc < 0)
				rc = shf_load_read_check(ld, r, 0, err);
		}
	}
	return rc;
}

/* Waits for all reads of the window. Returns 0, or the failure of the first read that failed. */
static int window_finish(struct shf_load *ld, struct window *h, struct sheaf_error *err)
{
	struct sheaf_run *run = ld->step->run;
	int64_t from = shf_now(run);
	int rc = 0;

	for (size_t i = 0; i < h->n; i++) {
		if (rc == 0)
			rc = shf_load_read_check(ld, &h->reads[i],
			                         shf_read_wait(run, &h->reads[i], &ld->retries),
			                         err);
		else
			shf_read_drop(run, &h->reads[i]);
	}
	ld->read_ns += shf_now(run) - from;
	h->n = 0;
	return rc;
}

/* Closes the direct I/O descriptors of all files that no later round reads. next: the number of the
 * next round. Segments are in the order of the files, so later rounds read no file before the first
 * one of that round. */
static void close_before(struct shf_load *ld, uint32_t next)
{
	struct shf_span segs = shf_work_segs(&ld->work, next);
	uint32_t end = (uint32_t)ld->step->layout.files_n;

	shf_step_direct_close(ld->step,
	                      segs.first < segs.end ? ld->work.segs[segs.first].file : end);
}

/* All rounds of a load on one rank. */
struct shf_load_rounds {
	struct shf_load *load;
	struct window windows[2];
};

/* Allocates the reads of the largest round, for each window. */
int shf_load_rounds_new(struct shf_load_rounds **rounds, struct shf_load *ld,
                        struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	struct shf_load_rounds *r = shf_zalloc(1, sizeof(*r));
	size_t most = 0, n = 0;

	*rounds = r;
	if (!r)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to read in rounds");
	r->load = ld;
	/* Segments are sorted by round; n counts the reads of one round so far. */
	for (size_t i = 0; i < w->segs_n && w->segs[i].round != SHF_ROUND_OWN; i++) {
		n = i > 0 && w->segs[i].round == w->segs[i - 1].round ? n : 0;
		n += (size_t)((w->segs[i].hi - w->segs[i].lo - 1) / SHF_LOAD_PIECE) + 1;
		most = n > most ? n : most;
	}
	for (int k = 0; k < 2; k++)
		/* Zeroed, because a read that was never started must count as finished. */
		r->windows[k].reads = shf_zalloc(most, sizeof(*r->windows[k].reads));
	return r->windows[0].reads && r->windows[1].reads ? 0
	       : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu reads", most);
}

/* A failure may have left reads in flight, which write into the image, so this waits for them. */
void shf_load_rounds_free(struct shf_load_rounds *r)
{
	for (int k = 0; r && k < 2; k++) {
		for (size_t i = 0; i < r->windows[k].n; i++)
			shf_read_drop(r->load->step->run, &r->windows[k].reads[i]);
		shf_free(r->windows[k].reads);
	}
	shf_free(r);
}

/* ---- messages to other nodes (streams.h): for each move 8 bytes of proof, then the box ---- */

/* Computes the proof of a box: a sum of its bytes and of what they are. The digest alone is not
 * enough: it would also be right for a box of another tensor at the same place, for bytes of
 * another step, and, if zeros were sent, for zeros anywhere. So the number of the tensor, its
 * stored digest, and the box are summed as well. */
static uint64_t proof_of_box(uint64_t digest, uint32_t tensor, const struct shf_lt_tensor *t,
                             const struct shf_box *box)
{
	uint8_t label[16 + 16 * SHEAF_DIMS_MAX];
	size_t n = 16;

	shf_put64(label, tensor);
	shf_put64(label + 8, t->digest);
	for (int32_t d = 0; d < box->ndim; d++, n += 16) {
		shf_put64(label + n, (uint64_t)box->start[d]);
		shf_put64(label + n + 8, (uint64_t)box->count[d]);
	}
	return digest ^ shf_crc64(label, n);
}

/* Returns whether this rank has the image of that rank mapped, because both are on one node. */
static bool shares_memory(const struct shf_load *ld, uint32_t rank)
{
	const struct shf_nodes *p = &ld->step->run->place;

	return p->nodes[rank] == p->node;
}

/* Returns how many bytes a box takes in a message. 0 if the peer is on the same node, where nothing
 * is sent. */
static size_t message_bytes(const struct shf_load *ld, uint32_t peer, uint32_t tensor,
                            const struct shf_box *box)
{
	return shares_memory(ld, peer)
	       ? 0 : 8 + (size_t)shf_box_bytes(&ld->step->layout.tensors[tensor], box);
}

/* Computes the sizes of all messages of a round and allocates them. Sender and receiver both
 * compute them from the plan, so no sizes are exchanged. ENOMEM. */
static int net_size(struct shf_load *ld, uint32_t round, struct shf_streams *net,
                    struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	int ranks = ld->step->run->team.ranks;
	struct shf_span segs = shf_work_segs(w, round), serves = shf_work_serves(w, round);

	if (shf_streams_init(net, ranks) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", ranks);
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg_move *v = &w->moves[w->segs[i].first_move + k];

			net->out_bytes[v->rank] += message_bytes(ld, v->rank, v->tensor, &v->box);
		}
	for (size_t i = serves.first; i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];

		net->in_bytes[v->rank] += message_bytes(ld, v->rank, v->tensor, &v->box);
	}
	return shf_streams_reserve(net) == 0
	       ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for bytes that travel");
}

/* Packs the boxes for other nodes in the order of the plan. Receivers take them in the same order
 * (take_round), so messages need no headers. net->out_at[r] is where the next box for rank r goes,
 * so afterwards it is the end of the message to that rank. */
static void net_pack(struct shf_load *ld, uint32_t round, struct shf_streams *net)
{
	const struct shf_work *w = &ld->work;
	struct shf_span segs = shf_work_segs(w, round);

	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg *g = &w->segs[i];
			const struct shf_seg_move *v = &w->moves[g->first_move + k];
			const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
			uint8_t *to = net->out + net->out_at[v->rank];
			struct shf_box_copy_sums sums = { 0 };

			if (shares_memory(ld, v->rank))
				continue;
			shf_box_copy_pack(t, &v->box,
			                  shf_place_in(shf_load_image(ld), g->image, g->lo,
			                               t),
			                  to + 8, &sums);
			shf_put64(to, proof_of_box(sums.digest, v->tensor, t, &v->box));
			net->out_at[v->rank] += message_bytes(ld, v->rank, v->tensor, &v->box);
			ld->net_bytes += message_bytes(ld, v->rank, v->tensor, &v->box);
		}
}

/* ---- taking from images and messages ---- */

/* Fails with ECORRUPT: the bytes are not those that the reader put into the message. */
static int fail_as_tampered(const struct shf_load *ld, const struct shf_lt_tensor *t,
                            const struct shf_box *box, struct sheaf_error *err)
{
	char text[160];

	return shf_fail(err, SHEAF_ECORRUPT, "%s: %s/%s %s: changed in transit between nodes: the "
	                "network or a node's memory is faulty; check them, and load again",
	                ld->step->path, shf_load_family(ld, t), t->name,
	                shf_box_print(box, text, sizeof(text)));
}

/* Copies one box into every slice of this rank that contains it. told: the proof in its message,
 * which the copy is compared with; NULL: the box comes from an image of this node, whose reader
 * checks it (look_round). ECORRUPT, EBUG. */
static int scatter_box(struct shf_load *ld, const struct shf_serve *v, struct shf_place_at from,
                       const uint64_t *told, struct sheaf_error *err)
{
	const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
	const struct shf_holds *h = &ld->holds;
	bool found = false;

	for (size_t i = shf_holds_first(h, v->tensor); i < h->n && h->a[i].tensor == v->tensor;
	     i++) {
		const struct shf_slice *s = &ld->targets[h->a[i].slice].slice;
		struct shf_box_copy_sums taken = { 0 };

		if (!shf_box_contains(h->a[i].box, &v->box))
			continue;
		found = true;
		if (!told) {
			shf_box_copy_out(t, s, &v->box, from, NULL);
			continue;
		}
		shf_box_copy_out(t, s, &v->box, from, &taken);
		if (proof_of_box(taken.digest, v->tensor, t, &v->box) != *told)
			return fail_as_tampered(ld, t, &v->box, err);
	}
	if (!always(found))
		return shf_fail(err, SHEAF_EBUG, "%s: a box was received that no slice needs",
		                t->name);
	return 0;
}

/* Takes the boxes that this rank wants from the images of its node and from messages. */
static int take_round(struct shf_load *ld, uint32_t round, const struct shf_streams *net,
                      struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	struct sheaf_run *run = ld->step->run;
	struct shf_span serves = shf_work_serves(w, round);
	size_t at = 0;
	int rc = 0;

	/* Serves of a round are sorted by the rank of the reader, and messages arrive in rank
	 * order. So one cursor, `at`, goes through all messages. */
	for (size_t i = serves.first; i < serves.end && rc == 0; i++) {
		const struct shf_serve *v = &w->serves[i];
		const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
		uint64_t bytes = shf_box_bytes(t, &v->box), told;
		struct shf_place_at from;

		if (shares_memory(ld, v->rank)) {
			from = shf_place_in(shf_image_of(run, SHF_IMAGE_OF_LOAD, v->rank), v->image,
			                    v->seg_lo, t);
			ld->node_bytes += bytes;
			rc = scatter_box(ld, v, from, NULL, err);
			continue;
		}
		told = shf_get64(net->in + at);
		from = (struct shf_place_at){ .data = net->in + at + 8, .packed = true };
		at += 8 + (size_t)bytes;
		rc = scatter_box(ld, v, from, &told, err);
	}
	return rc;
}

/* Makes the pass over the segments that this rank has read in the round: sums them, checks their
 * blocks, and copies what this rank wants. All other ranks have taken their bytes by now
 * (share_round). */
static int look_round(struct shf_load *ld, uint32_t round, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&ld->work, round);
	int rc = 0;

	for (size_t i = segs.first; i < segs.end && rc == 0; i++) {
		const struct shf_seg *g = &ld->work.segs[i];
		const uint8_t *image = shf_load_image(ld);

		rc = shf_load_pass_begin(ld, g, g->lo, g->hi - g->lo, err);
		if (rc == 0)
			rc = shf_load_pass_feed(ld, image + g->image, g->hi - g->lo, err);
	}
	return rc;
}

/* Lets all ranks take their bytes from the windows of this round. rc: 0, or a failure of this rank
 * before. The result is the same on all ranks.
 *
 * The first agreement says that all windows are read, or that a rank has failed. In the first round
 * it also says that all ranks have made their images, so that the others can map them now. The
 * second agreement says that all ranks have taken their bytes, so that each reader may sum its
 * window and read into it again. [collective] */
static int share_round(struct shf_load *ld, uint32_t round, int rc, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	bool travels = round >= SHF_ROUND_NET;
	struct shf_streams net = { 0 };

	if (rc == 0 && travels)
		rc = net_size(ld, round, &net, err);
	if (rc == 0 && travels)
		net_pack(ld, round, &net);
	rc = shf_agree(team, rc, err); /* all windows are read */
	if (rc == 0 && travels)
		rc = shf_alltoallv(team, net.out, net.out_bytes, net.in, net.in_bytes, err);
	if (rc == 0) {
		rc = ld->sharing ? shf_image_sharing_map(ld->sharing, err) : 0;
		rc = shf_agree(team, rc == 0 ? take_round(ld, round, &net, err) : rc, err);
	}
	shf_streams_release(&net);
	return rc;
}

/* Runs n rounds, from number `first`. The reads of the next round are started before this rank
 * waits for those of the current one, so the disk is busy while the ranks exchange bytes.
 * look_round must come after share_round (see the head of this file; the planted bug
 * summed_before_taken shows what breaks otherwise).
 *
 * rc: 0, or a failure of this rank before. A failure in share_round is returned on all ranks, a
 * failure in the last look_round, or of opts.progress after it, on this rank only.
 * [collective] */
static int run_kind(struct shf_load *ld, struct window h[2], uint32_t first, uint32_t n, int rc,
                    struct sheaf_error *err)
{
	if (rc == 0 && n > 0)
		rc = window_start(ld, &h[0], first, err);

	for (uint32_t k = 0; k < n; k++) {
		/* A rank that has failed must still take part in the agreement of this round, where
		 * the other ranks learn of it. */
		if (rc == 0 && k + 1 < n)
			rc = window_start(ld, &h[(k + 1) % 2], first + k + 1, err);
		if (rc == 0)
			rc = window_finish(ld, &h[k % 2], err);
		if (rc == 0)
			close_before(ld, first + k + 1);
		rc = share_round(ld, first + k, rc, err);
		if (rc < 0)
			return rc;
		rc = look_round(ld, first + k, err);
		if (rc == 0)
			rc = shf_load_progress(ld, err);
	}
	return rc;
}

int shf_load_rounds_run(struct shf_load_rounds *r, int rc, struct sheaf_error *err)
{
	const struct shf_work *w = &r->load->work;

	rc = run_kind(r->load, r->windows, 0, w->rounds, rc, err);
	/* First the rounds inside nodes, then those between nodes. If the last round of the first
	 * kind has failed only on this rank, the first round of the second kind agrees on it. */
	return run_kind(r->load, r->windows, SHF_ROUND_NET, w->net_rounds, rc, err);
}
