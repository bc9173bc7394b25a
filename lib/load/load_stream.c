/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank alone wants goes through a ring of buffers: while one piece is looked at, the
 * others are read. What is in memory already is taken by the crew meanwhile, and by this thread
 * when nothing is left to be read.
 *
 * Always true: pieces [tail, head) are under way or read, each in slot number mod slots; they are
 * finished in the order in which they were started, which is that of the files: with its last
 * piece, what a file was opened for past the page cache is over. All ranks meet after each lap, so
 * that none waits longer for another than a lap takes, and all hear of a failure. */
#include "load_stream.h"
#include "err.h"
#include "load.h"
#include "load_base.h"
#include "load_read.h"
#include "load_workers.h"
#include "read_way.h"
#include "run_env.h"
#include "run_io.h"
#include "step_files.h"
#include "work.h"

#define SLOTS_MAX 12
#define LAP (UINT64_C(256) << 20)

struct slot {
	struct shf_read read;
	uint8_t *buf;                   /* a piece of the image */
	const struct shf_seg *seg;
	uint64_t lo, n;
};

struct shf_flow {
	struct shf_load *ld;
	struct slot slots[SLOTS_MAX];
	uint64_t slots_n, piece, head, tail;
	size_t *segs;                   /* owned; of the plan: what is to be read, then the rest */
	size_t segs_n, cold, next;      /* next: the next to be read */
	uint64_t at;                    /* its next byte */
	uint64_t done;                  /* bytes looked at */
	struct shf_trial trial;
};

static bool is_cached(const struct shf_load *ld, const struct shf_seg *g)
{
	const struct shf_sys *sys = ld->step->run->sys;
	struct sheaf_error unsaid; /* a file that cannot be opened is told by who reads it */
	int fd = shf_step_fd(ld->step, g->file, &unsaid);

	return fd >= 0 && sys->ops->resident(sys->arg, fd, g->lo, g->hi - g->lo) ==
	       (int64_t)(g->hi - g->lo);
}

/* Segments that are to be read first, in their order, then those that are in memory. */
static void sort_out(struct shf_flow *s, struct shf_span own)
{
	const struct shf_load *ld = s->ld;
	size_t held = 0;

	for (size_t i = own.first; i < own.end; i++) {
		bool is_held = ld->apart || is_cached(ld, &ld->work.segs[i]);

		s->segs[is_held ? s->segs_n - ++held : s->cold++] = i;
	}
	for (size_t lo = s->cold, hi = s->segs_n; lo + 1 < hi; lo++) {
		size_t other = s->segs[--hi];

		s->segs[hi] = s->segs[lo];
		s->segs[lo] = other;
	}
}

int shf_flow_new(struct shf_flow **flow, struct shf_load *ld, uint64_t room,
                   uint64_t *image_bytes, struct sheaf_error *err)
{
	struct shf_span own = shf_work_segs(&ld->work, SHF_ROUND_OWN);
	struct shf_flow *s = shf_zalloc(1, sizeof(*s));
	uint64_t pieces = 0, longest = SHF_PAGE;

	if (s)
		s->segs = shf_alloc(own.end - own.first + 1, sizeof(*s->segs));
	if (!s || !s->segs) {
		shf_free(s);
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a ring of buffers");
	}
	s->ld = ld;
	s->segs_n = own.end - own.first;
	sort_out(s, own);
	for (size_t i = 0; i < s->cold; i++) {
		const struct shf_seg *g = &ld->work.segs[s->segs[i]];

		pieces += (g->hi - g->lo + SHF_LOAD_PIECE - 1) / SHF_LOAD_PIECE;
		longest = g->hi - g->lo > longest ? g->hi - g->lo : longest;
	}
	/* A small load stages little. */
	longest = (longest + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
	s->piece = room / 2 < SHF_LOAD_PIECE ? room / 2 : SHF_LOAD_PIECE;
	s->piece = longest < s->piece ? longest : s->piece;
	s->slots_n = room / s->piece < SLOTS_MAX ? room / s->piece : SLOTS_MAX;
	/* Pieces shorter than that are more, but then the ring is short too. */
	s->slots_n = s->slots_n < pieces ? s->slots_n : pieces;
	s->trial.turn = 2 * s->slots_n;
	*image_bytes = s->slots_n * s->piece;
	*flow = s;
	return 0;
}

bool shf_flow_waits(const struct shf_flow *s)
{
	return s->cold > 0 || (s->segs_n == 0 && !s->ld->apart);
}

void shf_flow_free(struct shf_flow *s)
{
	if (!s)
		return;
	for (; s->tail < s->head; s->tail++)
		(void)shf_io_drain(s->ld->step->run, &s->slots[s->tail % s->slots_n].read.io, -1);
	shf_step_direct_close(s->ld->step, (uint32_t)s->ld->step->layout.files_n);
	shf_free(s->segs);
	shf_free(s);
}

/* The next piece, into a slot that is free. */
static int start(struct shf_flow *s, struct sheaf_error *err)
{
	const struct shf_seg *g = &s->ld->work.segs[s->segs[s->next]];
	struct slot *slot = &s->slots[s->head % s->slots_n];
	uint64_t lo = s->at < g->lo ? g->lo : s->at;
	int rc;

	slot->buf = shf_load_image(s->ld) + s->head % s->slots_n * s->piece;
	slot->seg = g;
	slot->lo = lo;
	slot->n = g->hi - lo < s->piece ? g->hi - lo : s->piece;
	slot->read.through = shf_trial_past(&s->trial);
	rc = shf_read_start(s->ld, &slot->read, g->file, lo, slot->n, slot->buf, err);
	if (rc < 0)
		return rc;
	s->head++;
	s->at = lo + slot->n;
	if (s->at == g->hi) {
		s->next++;
		s->at = 0;
	}
	return 0;
}

static int finish(struct shf_flow *s, struct sheaf_error *err)
{
	struct slot *slot = &s->slots[s->tail % s->slots_n];
	int rc = shf_read_finish(s->ld, &slot->read, err);

	s->tail++;
	shf_step_direct_close(s->ld->step, slot->seg->file);
	shf_trial_done(&s->trial, shf_now(s->ld->step->run));
	if (rc == 0)
		rc = shf_load_begin(s->ld, slot->seg, slot->lo, slot->n, err);
	if (rc == 0)
		rc = shf_load_look(s->ld, slot->buf, slot->n, err);
	s->done += slot->n;
	return rc;
}

/* Until so many bytes are looked at, or all. */
static int run_to(struct shf_flow *s, struct shf_crew *crew, uint64_t bytes,
                  struct sheaf_error *err)
{
	int rc = 0;

	while (rc == 0 && s->done + shf_crew_done(crew) < bytes) {
		while (rc == 0 && s->next < s->cold && s->head - s->tail < s->slots_n)
			rc = start(s, err);
		if (rc == 0 && s->tail < s->head)
			rc = finish(s, err);
		else if (rc == 0 && !shf_crew_take(crew))
			break;
	}
	return rc == 0 ? shf_crew_check(crew, err) : rc;
}

int shf_flow_run(struct shf_flow *s, struct sheaf_error *err)
{
	struct shf_load *ld = s->ld;
	struct shf_team *team = &ld->step->run->team;
	struct shf_crew *crew;
	struct sheaf_error own = { 0 };
	int rc = shf_crew_new(&crew, ld, s->segs + s->cold, s->segs_n - s->cold, err), end;

	rc = shf_agree(team, rc, err);
	for (uint64_t lap = 0; lap < ld->work.own_most && rc == 0; lap += LAP) {
		rc = shf_agree(team, run_to(s, crew, lap + LAP, err), err);
		shf_load_progress(ld);
	}
	end = shf_crew_end(crew, ld, &own);
	if (rc < 0)
		return rc;
	if (end < 0 && err)
		*err = own;
	return shf_agree(team, end, err);
}
