/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the steps that agents have in memory. An agent keeps memory under names, and does not know
 * its contents; the cards describe them. A step is in memory if there are whole cards of all its
 * ranks, on one node or on several. */
#include "memory_steps.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "aside.h"
#include "err.h"
#include "marks.h"
#include "marks_read.h"
#include "memory_dir_fill.h"
#include "tries.h"

/* ---- what one agent has ---- */

/* Names of cards that an agent has. */
struct names {
	struct shf_buf bytes;           /* each with its NUL */
};

/* Collects the names of cards; images are found through them. */
static int note_card_name(void *arg, const char *name)
{
	struct names *n = arg;
	char job[33];
	int rank, image;
	bool card;

	if (shf_card_parse(name, job, &rank, &image, &card) && card)
		shf_buf_add(&n->bytes, name, strlen(name) + 1);
	return n->bytes.oom ? -ENOMEM : 0;
}

/* A search through the cards of one agent. */
struct looking {
	const struct shf_sys *sys;
	int keep;                       /* the connection to the agent */
	const char *run_id;             /* cards of other runs are ignored */
	bool guests;                    /* replicas are listed, too */
	struct shf_buf *out;            /* receives a struct shf_card_info for each card */
};

/* Adds the contents of a card to the list. */
static void list_card(struct looking *l, const char *job, bool guest, const struct shf_card *card,
                      const struct shf_card_head *h)
{
	struct shf_card_info t = { .step = card->step, .rank = card->rank, .ranks = card->ranks,
		.base = atomic_load(&h->base), .next = atomic_load(&h->next),
		.from = atomic_load(&h->from),
		.due = atomic_load(&h->due), .tries = atomic_load(&h->tries),
		.turn = atomic_load(&h->turn), .bytes = card->image_bytes, .guest = guest };

	memcpy(t.job, job, sizeof(t.job));
	memcpy(t.session, card->session, sizeof(t.session));
	shf_buf_add(l->out, &t, sizeof(t));
}

/* Lists one card, if it is whole and of this run. A card that is not whole is no error: a job is
 * copying into its image, or died while it did. Returns 0 or a negative errno. */
static int look_at_card(struct looking *l, const char *name)
{
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	struct shf_card card;
	char job[33];
	int rank, image, rc = shf_sys_keep_get(l->sys, l->keep, name, &shm);
	bool is_card;

	if (rc == -ENOENT) /* the agent has just dropped the card */
		return 0;
	if (rc < 0)
		return rc;
	if (always(shf_card_parse(name, job, &rank, &image, &is_card)) &&
	    (l->guests || image < SHF_CARD_REPLICA)) {
		rc = shf_card_decode(&card, &arena, &shm);
		if (rc == 0 && strcmp(card.run, l->run_id) == 0 && card.rank == rank)
			list_card(l, job, image >= SHF_CARD_REPLICA, &card, shf_card_head(&shm));
	}
	shf_arena_release(&arena);
	shf_sys_shm_free(l->sys, &shm);
	return rc == SHEAF_ENOMEM || l->out->oom ? -ENOMEM : 0;
}

int shf_memory_steps_read_cards(const struct shf_sys *sys, int keep, const char *run_id,
                                bool guests, struct shf_buf *out)
{
	struct looking l = { .sys = sys, .keep = keep, .run_id = run_id, .guests = guests,
		.out = out };
	struct names names = { SHF_BUF_INIT };
	int rc = shf_sys_keep_list(sys, keep, note_card_name, &names);

	for (size_t at = 0; rc == 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1)
		rc = look_at_card(&l, (char *)names.bytes.data + at);
	shf_buf_release(&names.bytes);
	return rc;
}

/* Orders cards by job, the latest first, and those of a job by step, the newest first. The cards of
 * one step are in the order of ranks, a rank's own card before a replica of it. */
static int latest_first(const void *a, const void *b)
{
	const struct shf_card_info *x = a, *y = b;
	int d;

	if (x->turn != y->turn)
		return x->turn > y->turn ? -1 : 1;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	d = strcmp(x->session, y->session);
	if (d == 0)
		d = strcmp(x->job, y->job);
	if (d == 0)
		d = x->rank < y->rank ? -1 : x->rank > y->rank;
	return d ? d : x->guest - y->guest;
}

/* Joins the n sorted cards of one step. A rank counts once, however many cards there are of it, and
 * as a replica only if its own card was not found. While an earlier step is being published, some
 * cards may be changed already and some not. The step may then follow either of two states of the
 * disk, base and next. */
static struct shf_memory_step join_cards(const struct shf_card_info *t, size_t n)
{
	struct shf_memory_step r = { .step = t->step, .ranks = t->ranks, .base = t->base,
		.next = t->next, .from = t->from, .turn = t->turn };

	memcpy(r.job, t->job, sizeof(r.job));
	memcpy(r.session, t->session, sizeof(r.session));
	for (size_t i = 0; i < n; i++) {
		r.next = t[i].base != r.base ? t[i].base : t[i].next != r.base ? t[i].next : r.next;
		r.due = t[i].due ? 1 : r.due;
		r.tries = t[i].tries > r.tries ? t[i].tries : r.tries;
		if (i && t[i].rank == t[i - 1].rank)
			continue;
		r.here++;
		r.copied += t[i].guest;
		r.bytes += t[i].bytes;
	}
	return r;
}

/* Returns the cards, *n of them, in the order of latest_first(), for the caller to free; NULL: no
 * memory. */
static struct shf_card_info *sorted(const struct shf_buf *cards, size_t *n)
{
	struct shf_card_info *t;

	*n = cards->len / sizeof(*t);
	t = shf_alloc(*n, sizeof(*t));
	if (t && *n) {
		memcpy(t, cards->data, *n * sizeof(*t));
		qsort(t, *n, sizeof(*t), latest_first);
	}
	return t;
}

/* Returns whether the card belongs to that step. */
static bool is_of(const struct shf_card_info *t, const char *job, const char *session, int64_t step)
{
	return t->step == step && strcmp(t->session, session) == 0 && strcmp(t->job, job) == 0;
}

/* The first card of each rank decides: if it is a replica, the rank's own card was not found. */
int shf_memory_step_replicas(const struct shf_buf *cards, const struct shf_memory_step *which,
                             struct shf_buf *ranks)
{
	size_t n;
	struct shf_card_info *t = sorted(cards, &n);

	for (size_t i = 0; t && i < n; i++) {
		if (!is_of(&t[i], which->job, which->session, which->step) || !t[i].guest ||
		    (i && is_of(&t[i - 1], which->job, which->session, which->step) &&
		     t[i - 1].rank == t[i].rank))
			continue;
		shf_buf_add(ranks, &t[i].rank, sizeof(t[i].rank));
	}
	shf_free(t);
	return t && !ranks->oom ? 0 : SHEAF_ENOMEM;
}

int shf_memory_steps_join(struct shf_buf *cards, int (*item)(void *arg,
                                                             const struct shf_memory_step *r),
                          void *arg)
{
	size_t n, end;
	struct shf_card_info *t = sorted(cards, &n);
	int rc = t ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && rc == 0; i = end) {
		struct shf_memory_step r;

		for (end = i + 1; end < n && is_of(&t[end], t[i].job, t[i].session, t[i].step);)
			end++;
		r = join_cards(&t[i], end - i);
		rc = item(arg, &r);
	}
	shf_free(t);
	return rc;
}

int shf_memory_steps_list(const struct shf_sys *sys, int keep, const char *run_id,
                          int (*item)(void *arg, const struct shf_memory_step *r), void *arg)
{
	struct shf_buf cards = SHF_BUF_INIT;
	int rc = shf_memory_steps_read_cards(sys, keep, run_id, false, &cards);

	if (rc == 0)
		rc = shf_memory_steps_join(&cards, item, arg);
	shf_buf_release(&cards);
	return rc;
}

/* ---- later steps follow a step that is written to disk ---- */

/* The arguments of shf_memory_steps_rebase(). */
struct going_on {
	struct looking *l;              /* only its members sys and keep are used */
	const struct shf_memory_step *which;
	uint64_t was, is;
};

/* Returns whether the card with this name belongs to that job. */
static bool is_of_job(const char *name, const char *job)
{
	char own[33];
	int rank, image;
	bool card;

	return always(shf_card_parse(name, own, &rank, &image, &card)) && strcmp(own, job) == 0;
}

/* Changes the card of a later step of the same job, if that step follows the state `was` of the
 * disk: it then follows both `was` and `is`. `next` is set before `base`, so that one of the two is
 * right at any moment. If the job is still running it may be changing the same words for another
 * step, hence the compare-and-exchange. */
static int let_card_follow(const struct going_on *g, const char *name)
{
	const struct shf_sys *sys = g->l->sys;
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	struct shf_card card;
	int rc;

	if (!is_of_job(name, g->which->job)) /* another job may have gone on from another step */
		return 0;
	rc = shf_sys_keep_get(sys, g->l->keep, name, &shm);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	rc = shf_card_decode(&card, &arena, &shm);
	if (rc == 0 && strcmp(card.run, g->l->run_id) == 0 && card.step > g->which->step) {
		struct shf_card_head *h = shf_card_head(&shm);

		uint64_t next = atomic_load(&h->next);

		if ((atomic_load(&h->base) == g->was || next == g->was ||
		     atomic_load(&h->from) == g->was) &&
		    atomic_compare_exchange_strong(&h->next, &next, g->is))
			atomic_store(&h->base, g->was);
	}
	shf_arena_release(&arena);
	shf_sys_shm_free(sys, &shm);
	return rc == SHEAF_ENOMEM ? -ENOMEM : 0;
}

int shf_memory_steps_rebase(const struct shf_sys *sys, int keep, const char *run_id,
                            const struct shf_memory_step *which, uint64_t was, uint64_t is)
{
	struct looking l = { .sys = sys, .keep = keep, .run_id = run_id };
	struct going_on g = { &l, which, was, is };
	struct names names = { SHF_BUF_INIT };
	int rc = shf_sys_keep_list(sys, keep, note_card_name, &names);

	for (size_t at = 0; rc == 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1)
		rc = let_card_follow(&g, (char *)names.bytes.data + at);
	shf_buf_release(&names.bytes);
	return rc;
}

/* ---- one step ---- */

/* Returns whether the rank is in the list of int32_t. NULL is an empty list. */
static bool has_rank(const struct shf_buf *ranks, int32_t rank)
{
	for (size_t at = 0; ranks && at < ranks->len; at += sizeof(rank))
		if (memcmp(ranks->data + at, &rank, sizeof(rank)) == 0)
			return true;
	return false;
}

/* Maps a card and its image, if the card is of the step. Returns 1 and the part, 0 if the card is
 * of another step or is a replica that is not needed, or a negative errno. */
static int get_part(const struct shf_sys *sys, int keep, const char *name,
                    const struct shf_memory_step *which, const struct shf_buf *copied,
                    struct shf_view_part *part)
{
	struct shf_arena arena = { 0 };
	struct shf_card card;
	char job[33], image_name[SHF_KEEP_NAME];
	int rank, image, rc;
	bool is_card;

	if (!always(shf_card_parse(name, job, &rank, &image, &is_card)) ||
	    strcmp(job, which->job) ||
	    (image >= SHF_CARD_REPLICA && !has_rank(copied, rank)))
		return 0;
	rc = shf_sys_keep_get(sys, keep, name, &part->card);
	if (rc < 0)
		return rc;
	rc = shf_card_decode(&card, &arena, &part->card);
	rc = rc == SHEAF_ENOMEM ? -ENOMEM : rc == 0 && strcmp(card.session, which->session) == 0;
	/* A rank that writes no tensor bytes has a card without segments, and no image. */
	if (rc == 1 && card.segs_n) {
		shf_card_name(image_name, job, rank, image, false);
		rc = shf_sys_keep_get(sys, keep, image_name, &part->image);
		rc = rc < 0 ? rc : 1;
	}
	shf_arena_release(&arena);
	if (rc <= 0)
		shf_sys_shm_free(sys, &part->card);
	return rc;
}

/* Names that the agent drops meanwhile are skipped: shf_view_finish() finds what is missing. */
int shf_memory_step_open_parts(const struct shf_sys *sys, int keep,
                               const struct shf_memory_step *which,
                               const struct shf_buf *copied, struct shf_view **view,
                               struct sheaf_error *err)
{
	struct names names = { SHF_BUF_INIT };
	struct shf_view *v = shf_view_new(sys);
	int rc = v ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory"), got;

	got = rc == 0 ? shf_sys_keep_list(sys, keep, note_card_name, &names) : 0;
	for (size_t at = 0; rc == 0 && got >= 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1) {
		const char *name = (char *)names.bytes.data + at;
		struct shf_view_part part = { .card = { NULL, 0, -1 },
			.image = { NULL, 0, -1 } };

		got = get_part(sys, keep, name, which, copied, &part);
		if (got == 1)
			rc = shf_view_add(v, &part, err);
		got = got == -ENOENT ? 0 : got;
	}
	if (rc == 0 && got < 0)
		rc = shf_fail_sys(err, -got, "step %" PRId64 " in memory: sending a request to the "
		                  "agent",
		                  which->step);
	shf_buf_release(&names.bytes);
	if (rc == 0 && copied && copied->len)
		shf_view_set_replicas(v);
	if (rc == 0)
		*view = v;
	else
		shf_view_free(v);
	return rc;
}

int shf_memory_step_open(const struct shf_sys *sys, int keep, const struct shf_memory_step *which,
                         struct shf_view **view, struct sheaf_error *err)
{
	int rc = shf_memory_step_open_parts(sys, keep, which, NULL, view, err);

	if (rc == 0)
		rc = shf_view_finish(*view, true, err);
	if (rc < 0) {
		shf_view_free(*view);
		*view = NULL;
	}
	return rc;
}

/* ---- a step in memory, compared with the disk ---- */

/* The argument of is_followed. */
struct following {
	const struct shf_memory_step *r;
	uint64_t rewinds;
};

/* Callback of shf_marks_some_bad and shf_asides_some. Returns whether the step in memory may follow
 * that save. */
static bool is_followed(void *arg, int64_t step, const char *session)
{
	const struct following *f = arg;
	uint64_t on = shf_card_disk_state(step, session, f->rewinds);

	return on == f->r->base || on == f->r->next || on == f->r->from;
}

/* The newest step on disk must be the one that the step follows, by number, session and number of
 * rewinds, and its session must be readable (known == newest). The step itself must not have been
 * set aside by a rewind.
 *
 * Steps that are marked bad do not count as newest. So if the step may follow either of two steps
 * on disk, and the newer one is marked bad, the older one would be the newest. */
int shf_memory_step_follows(struct shf_store *store, const struct shf_memory_step *r,
                            const struct shf_newest *disk, struct sheaf_error *err)
{
	struct following f = { r, shf_store_rewinds(store) };
	int bad;

	if (f.rewinds == UINT64_MAX)
		return shf_fail(err, SHEAF_EIO, "%s/.sheaf/rewinds cannot be read, so it is not "
		                "known whether the checkpoints in memory were rewound",
		                store->path);
	if (disk->known != disk->newest || !is_followed(&f, disk->known, disk->session) ||
	    shf_store_is_aside(store, r->step, r->session))
		return 0;
	bad = shf_marks_some_bad(store, disk->known, is_followed, &f);
	if (bad < 0)
		return shf_fail_sys(err, -bad, "%s/.sheaf/marks: finding out whether step %" PRId64
		                    " in memory follows a bad step", store->path, r->step);
	/* A bad step whose number is saved again loses its mark and is set aside. */
	if (bad == 0)
		bad = shf_asides_some(store, is_followed, &f);
	return bad < 0 ? shf_fail_sys(err, -bad, "%s/.sheaf/aside: finding out whether step "
	                              "%" PRId64 " in memory follows one of these", store->path,
	                              r->step) : !bad;
}

bool shf_memory_step_is_passed(struct shf_store *store, const struct shf_memory_step *r,
                               const struct shf_memory_step *latest)
{
	return latest->ranks && strcmp(latest->job, r->job) != 0 &&
	       latest->from != shf_card_disk_state(r->step, r->session, shf_store_rewinds(store));
}

/* The state of shf_memory_step_check_passed. */
struct passing {
	struct shf_store *store;
	const struct shf_memory_step *which;
	bool passed;
	int rc;
	struct sheaf_error *err;
};

/* Callback of shf_memory_steps_list. Ends at the step itself, or at the one that a later job left
 * and that the disk lacks. */
static int look_before(void *arg, const struct shf_memory_step *r)
{
	struct passing *p = arg;
	struct shf_newest disk;

	if (r->step == p->which->step && strcmp(r->session, p->which->session) == 0)
		return 1;
	p->rc = shf_memory_step_state(p->store, r, &disk, p->err);
	if (p->rc != SHF_MEMORY_UNWRITTEN)
		return p->rc < 0 ? p->rc : 0;
	p->passed = shf_memory_step_is_passed(p->store, p->which, r);
	return 1;
}

int shf_memory_step_check_passed(const struct shf_sys *sys, int keep, struct shf_store *store,
                                 const struct shf_memory_step *which, struct sheaf_error *err)
{
	struct passing p = { .store = store, .which = which, .err = err };
	int rc = shf_memory_steps_list(sys, keep, store->run, look_before, &p);

	if (p.rc < 0)
		return p.rc;
	if (rc < 0)
		return shf_fail_sys(err, -rc, "sending a request to the agent");
	return p.passed ? shf_fail(err, SHEAF_EBUSY, "step %" PRId64 " in memory: a later job has "
	                           "resumed from another step, so it is not written",
	                           which->step) : 0;
}

bool shf_memory_step_replaces(struct shf_store *store, const struct shf_memory_step *r,
                              const struct shf_newest *disk)
{
	return disk->exists && disk->is_bad &&
	       shf_store_is_bad(store, r->step, r->session, NULL) == 0 &&
	       !shf_tries_spent(store, r->step, r->session);
}

int shf_memory_step_state(struct shf_store *store, const struct shf_memory_step *r,
                          struct shf_newest *disk, struct sheaf_error *err)
{
	int rc = shf_store_newest(store, r->step, disk, err);
	bool newer = rc == 0 && r->step > disk->newest;

	if (newer)
		rc = shf_memory_step_follows(store, r, disk, err);
	if (rc < 0)
		return rc;
	if (newer && rc == 0)
		return SHF_MEMORY_LOST;
	if (newer && shf_memory_step_replaces(store, r, disk))
		disk->exists = false;
	if (disk->exists)
		return SHF_MEMORY_ON_DISK;
	return newer ? SHF_MEMORY_UNWRITTEN : SHF_MEMORY_OVERTAKEN;
}
