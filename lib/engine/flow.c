/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank alone wants goes through a ring of buffers: while one piece is looked at, the
 * others are read. What the page cache has already is copied out of it a little at a time, and
 * looked at while it is in the cache of the core.
 *
 * Always true: pieces [tail, head) are under way or read, each in slot number mod slots; they are
 * finished in the order in which they were started, which is that of the files: with its last
 * piece, what a file was opened for past the page cache is over. All ranks meet after each lap, so
 * that none waits longer for another than a lap takes, and all hear of a failure. */
#include <string.h>
#include "err.h"
#include "load.h"
#include "trial.h"
#include "view.h"

#define SLOTS_MAX 12
#define SIP (UINT64_C(256) << 10)       /* of what the page cache has; stays in the core's cache */
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
	size_t seg, first, end;         /* of the plan; seg: the next to be read */
	uint64_t at;                    /* its next byte */
	uint64_t done;                  /* bytes looked at */
	uint8_t *cached;                /* owned; by segment from first: is in memory already */
	uint64_t sip_at;                /* in the image: room for a sip */
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

int shf_flow_new(struct shf_flow **flow, struct shf_load *ld, uint64_t room,
                   uint64_t *image_bytes, struct sheaf_error *err)
{
	struct shf_span own = shf_work_segs(&ld->work, SHF_ROUND_OWN);
	struct shf_flow *s = shf_zalloc(1, sizeof(*s));
	uint64_t cold = 0, longest = SHF_PAGE;

	if (s)
		s->cached = shf_zalloc(own.end - own.first + 1, 1);
	if (!s || !s->cached) {
		shf_free(s);
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a ring of buffers");
	}
	s->ld = ld;
	s->first = s->seg = own.first;
	s->end = own.end;
	for (size_t i = own.first; i < own.end; i++) {
		const struct shf_seg *g = &ld->work.segs[i];

		s->cached[i - own.first] = is_cached(ld, g);
		if (s->cached[i - own.first])
			continue;
		cold += (g->hi - g->lo + SHF_LOAD_PIECE - 1) / SHF_LOAD_PIECE;
		longest = g->hi - g->lo > longest ? g->hi - g->lo : longest;
	}
	/* A small load stages little. */
	longest = (longest + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE;
	s->piece = room / 2 < SHF_LOAD_PIECE ? room / 2 : SHF_LOAD_PIECE;
	s->piece = longest < s->piece ? longest : s->piece;
	s->slots_n = room / s->piece < SLOTS_MAX ? room / s->piece : SLOTS_MAX;
	/* Pieces shorter than that are more, but then the ring is short too. */
	s->slots_n = s->slots_n < cold ? s->slots_n : cold;
	s->trial.turn = 2 * s->slots_n;
	s->sip_at = s->slots_n * s->piece;
	*image_bytes = s->sip_at + (own.end > own.first ? SIP : 0);
	*flow = s;
	return 0;
}

void shf_flow_free(struct shf_flow *s)
{
	if (!s)
		return;
	for (; s->tail < s->head; s->tail++)
		(void)shf_io_drain(s->ld->step->run, &s->slots[s->tail % s->slots_n].read.io, -1);
	shf_step_direct_close(s->ld->step, (uint32_t)s->ld->step->layout.files_n);
	shf_free(s->cached);
	shf_free(s);
}

/* A whole segment that is in the page cache. */
static int sip(struct shf_flow *s, const struct shf_seg *g, struct sheaf_error *err)
{
	struct shf_load *ld = s->ld;
	uint8_t *buf = shf_load_image(ld) + s->sip_at;
	const struct shf_view *view = ld->step->run->view;
	int rc = shf_load_begin(ld, g, g->lo, g->hi - g->lo, err);

	for (uint64_t at = g->lo, n; at < g->hi && rc == 0; at += n) {
		const uint8_t *held = NULL;

		n = g->hi - at < SIP ? g->hi - at : SIP;
		if (view) /* it lies in memory: no copy of it is needed */
			held = shf_view_at(view, g->file, at, &n);
		if (held)
			ld->disk_bytes += n;
		else
			rc = shf_read_here(ld, g->file, at, n, buf, err);
		if (rc == 0)
			rc = shf_load_look(ld, held ? held : buf, n, err);
	}
	s->done += g->hi - g->lo;
	return rc;
}

/* The next piece, into a slot that is free. */
static int start(struct shf_flow *s, struct sheaf_error *err)
{
	const struct shf_seg *g = &s->ld->work.segs[s->seg];
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
		s->seg++;
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
static int run_to(struct shf_flow *s, uint64_t bytes, struct sheaf_error *err)
{
	int rc = 0;

	while (s->done < bytes && rc == 0) {
		while (rc == 0 && s->seg < s->end && s->head - s->tail < s->slots_n &&
		       !s->cached[s->seg - s->first])
			rc = start(s, err);
		if (rc == 0 && s->seg < s->end && s->cached[s->seg - s->first]) {
			rc = sip(s, &s->ld->work.segs[s->seg], err);
			s->seg++;
		} else if (rc == 0 && s->tail < s->head) {
			rc = finish(s, err);
		} else {
			break;
		}
	}
	return rc;
}

int shf_flow_run(struct shf_flow *s, struct sheaf_error *err)
{
	struct shf_load *ld = s->ld;
	int rc = 0;

	for (uint64_t lap = 0; lap < ld->work.own_most && rc == 0; lap += LAP) {
		rc = shf_agree(&ld->step->run->team, run_to(s, lap + LAP, err), err);
		shf_load_progress(ld);
	}
	return rc;
}
