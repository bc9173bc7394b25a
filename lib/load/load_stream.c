/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that only this rank wants are read through a ring of buffers: while one piece is checked
 * and copied, others are read. Segments that are in memory already are taken by worker threads
 * meanwhile, and by this thread when it has nothing left to read.
 *
 * Pieces are read and taken in the order of the files. So when a piece of a file has been taken,
 * the descriptors for direct I/O of all files before it can be closed.
 *
 * The ranks agree after every lap of 256 MiB, so that a failure on one rank ends the load on all
 * within a lap, and no rank waits longer than that for another. There is no agreement after the
 * last lap: the caller's next operation makes it. */
#include "load_stream.h"
#include "err.h"
#include "load.h"
#include "load_common.h"
#include "load_read.h"
#include "load_workers.h"
#include "read_ring.h"
#include "step_files.h"
#include "work.h"

#define BUFFERS_MAX 12                  /* buffers of the ring */
#define LAP (UINT64_C(256) << 20)       /* bytes that a rank checks between two agreements */

/* The segments that this rank streams, and how far it has come. */
struct shf_load_stream {
	struct shf_load *ld;
	struct shf_read_ring ring;
	struct shf_read reads[BUFFERS_MAX];
	uint64_t piece;                 /* bytes of a buffer, and of a read at most */
	size_t *segs;                   /* owned; indices into work.segs: first `cold` segments to
	                                 * read from disk, then those that are in memory */
	size_t segs_n, cold, next;      /* numbers of all segments and of those to read; segs[next]
	                                 * is the next to read */
	uint64_t at;                    /* offset of the next byte of segs[next]; 0: none of it was
	                                 * read yet */
	uint64_t done;                  /* bytes read and checked, without those of the workers */
};

/* Returns whether all of the segment is in the page cache. */
static bool is_all_cached(const struct shf_load *ld, const struct shf_seg *g)
{
	const struct shf_sys *sys = ld->step->run->sys;
	struct sheaf_error unsaid; /* not reported: reading the file fails the same way */
	int fd = shf_step_fd(ld->step, g->file, &unsaid);

	return fd >= 0 && shf_sys_resident(sys, fd, g->lo, g->hi - g->lo) ==
	       (int64_t)(g->hi - g->lo);
}

/* Sorts the segments into s->segs: those to be read from disk from the front, those in memory from
 * the end. */
static void sort_out(struct shf_load_stream *s, struct shf_span own)
{
	const struct shf_load *ld = s->ld;
	size_t held = 0;

	for (size_t i = own.first; i < own.end; i++) {
		bool is_held = ld->apart || is_all_cached(ld, &ld->work.segs[i]);

		s->segs[is_held ? s->segs_n - ++held : s->cold++] = i;
	}
	/* The second part was filled from its end; it is reversed, into the order of the files. */
	for (size_t lo = s->cold, hi = s->segs_n; lo + 1 < hi; lo++) {
		size_t other = s->segs[--hi];

		s->segs[hi] = s->segs[lo];
		s->segs[lo] = other;
	}
}

/* Sets *r to the read of the next piece; callback of the ring. Returns 1; 0 if all pieces were
 * started; or a negative code. */
static int describe_piece(void *arg, struct shf_read *r, struct sheaf_error *err)
{
	struct shf_load_stream *s = arg;
	const struct shf_seg *g;
	uint64_t lo, n;
	int rc;

	if (s->next == s->cold)
		return 0;
	g = &s->ld->work.segs[s->segs[s->next]];
	lo = s->at < g->lo ? g->lo : s->at;
	n = g->hi - lo < s->piece ? g->hi - lo : s->piece;
	r->buf = shf_load_image(s->ld) + (size_t)(r - s->reads) * s->piece;
	r->of = g;
	r->timed = true;
	rc = shf_load_read_set(s->ld, r, g->file, lo, n, shf_read_trial_direct(&s->ring.trial),
	                       err);
	if (rc < 0)
		return rc;
	s->at = lo + n;
	if (s->at == g->hi) {
		s->next++;
		s->at = 0;
	}
	return 1;
}

/* Checks a piece that was read, and copies what this rank wants of it; callback of the ring. */
static int take_piece(void *arg, struct shf_read *r, int64_t got, struct sheaf_error *err)
{
	struct shf_load_stream *s = arg;
	int rc = shf_load_read_check(s->ld, r, got, err);

	shf_step_direct_close(s->ld->step, r->file);
	if (rc == 0)
		rc = shf_load_pass_begin(s->ld, r->of, r->req.off, r->req.len, err);
	if (rc == 0)
		rc = shf_load_pass_feed(s->ld, r->buf, r->req.len, err);
	s->done += r->req.len;
	return rc;
}

/* The ring has as many buffers as fit in `room`, 12 at most, and no more than there are pieces. A
 * load with little data gets small buffers, because memory that is touched for the first time costs
 * time. */
int shf_load_stream_new(struct shf_load_stream **flow, struct shf_load *ld, uint64_t room,
                          uint64_t *image_bytes, struct sheaf_error *err)
{
	struct shf_span own = shf_work_segs(&ld->work, SHF_ROUND_OWN);
	struct shf_load_stream *s = shf_zalloc(1, sizeof(*s));
	uint64_t pieces = 0, longest = SHF_PAGE;

	if (s)
		s->segs = shf_alloc(own.end - own.first + 1, sizeof(*s->segs));
	if (!s || !s->segs) {
		shf_free(s);
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a ring of buffers");
	}
	s->ld = ld;
	s->ring = (struct shf_read_ring){ .run = ld->step->run, .reads = s->reads,
		.next = describe_piece, .took = take_piece, .arg = s };
	s->segs_n = own.end - own.first;
	sort_out(s, own);
	for (size_t i = 0; i < s->cold; i++) {
		const struct shf_seg *g = &ld->work.segs[s->segs[i]];

		pieces += (g->hi - g->lo + SHF_LOAD_PIECE - 1) / SHF_LOAD_PIECE;
		longest = g->hi - g->lo > longest ? g->hi - g->lo : longest;
	}
	/* No buffer is larger than the longest segment, in whole pages. */
	longest = (longest + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
	/* At least two buffers, so that one can be read while the other is checked. */
	s->piece = room / 2 < SHF_LOAD_PIECE ? room / 2 : SHF_LOAD_PIECE;
	s->piece = longest < s->piece ? longest : s->piece;
	s->ring.n = room / s->piece < BUFFERS_MAX ? room / s->piece : BUFFERS_MAX;
	/* `pieces` was counted for the full size of a piece. If pieces are smaller, there are more
	 * of them, and the ring is only shorter than it could be. */
	s->ring.n = s->ring.n < pieces ? s->ring.n : pieces;
	/* In the trial (direct_reads.h) a way of reading is used for twice as many reads as are in
	 * flight before the other way has its turn. */
	s->ring.trial.turn = 2 * s->ring.n;
	*image_bytes = s->ring.n * s->piece;
	*flow = s;
	return 0;
}

/* A rank without segments of its own waits for the disk, too: for what others read in rounds. */
bool shf_load_stream_waits(const struct shf_load_stream *s)
{
	return s->cold > 0 || (s->segs_n == 0 && !s->ld->apart);
}

/* Waits for reads in flight, because they write into the image. */
void shf_load_stream_free(struct shf_load_stream *s)
{
	if (!s)
		return;
	shf_read_ring_drop(&s->ring);
	shf_step_direct_close(s->ld->step, (uint32_t)s->ld->step->layout.files_n);
	shf_free(s->segs);
	shf_free(s);
}

/* Works until at least `bytes` bytes are checked, or nothing is left to do on this thread. This
 * thread takes segments in memory only while no read is in flight; otherwise a read that has
 * finished would wait for it. Returns 0, or the failure of a read or of a worker. */
static int run_to(struct shf_load_stream *s, struct shf_load_workers *crew, uint64_t bytes,
                  struct sheaf_error *err)
{
	int rc = 1;

	while (rc >= 0 && s->done + shf_load_workers_done(crew) < bytes) {
		rc = shf_read_ring_turn(&s->ring, err);
		if (rc == 0 && !shf_load_workers_take(crew))
			break;
	}
	return rc >= 0 ? shf_load_workers_check(crew, err) : rc;
}

/* Every rank runs the same number of laps, so that the agreements match: own_most is the largest
 * share of any rank. After the last lap there is no agreement, because the next operation of the
 * load agrees on the result anyway. [collective] */
int shf_load_stream_run(struct shf_load_stream *s, int rc, struct sheaf_error *err)
{
	struct shf_load *ld = s->ld;
	struct shf_team *team = &ld->step->run->team;
	struct shf_load_workers *crew = NULL;
	struct sheaf_error own = { 0 };
	int end;

	if (rc == 0)
		rc = shf_load_workers_new(&crew, ld, s->segs + s->cold, s->segs_n - s->cold, err);
	for (uint64_t lap = 0; lap < ld->work.own_most; lap += LAP) {
		if (rc == 0)
			rc = run_to(s, crew, lap + LAP, err);
		if (ld->work.own_most - lap > LAP)
			rc = shf_agree(team, rc, err);
		if (rc < 0)
			break;
		rc = shf_load_progress(ld, err);
	}
	ld->retries += s->ring.retries;
	ld->read_ns += s->ring.wait_ns;
	end = shf_load_workers_end(crew, ld, &own);
	if (rc == 0 && end < 0 && err)
		*err = own;
	return rc < 0 ? rc : end;
}
