/* SPDX-License-Identifier: Apache-2.0 */
#include "recall.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "tier.h"

#define TRIES_MAX 2             /* sessions that may load a step and come no further */

/* ---- what one agent has ---- */

struct names {
	struct shf_buf bytes;           /* each with its end */
};

static int note(void *arg, const char *name)
{
	struct names *n = arg;
	char job[33];
	int rank, image;
	bool card;

	if (shf_card_parse(name, job, &rank, &image, &card) && card)
		shf_buf_add(&n->bytes, name, strlen(name) + 1);
	return 0;
}

struct looking {
	const struct shf_sys *sys;
	int keep;
	const char *run_id;
	struct shf_recalled *found;     /* owned */
	size_t n;
};

static int add(struct looking *l, const char *job, const struct shf_card *card,
               const struct shf_card_head *h)
{
	struct shf_recalled *r = NULL, *more;

	for (size_t i = 0; i < l->n && !r; i++)
		if (strcmp(l->found[i].session, card->session) == 0 &&
		    strcmp(l->found[i].job, job) == 0)
			r = &l->found[i];
	if (!r) {
		more = shf_realloc(l->found, l->n + 1, sizeof(*more));
		if (!more)
			return -12; /* ENOMEM */
		l->found = more;
		r = &more[l->n++];
		*r = (struct shf_recalled){ .step = card->step, .ranks = card->ranks,
			.base = atomic_load(&h->base), .next = atomic_load(&h->next) };
		memcpy(r->job, job, sizeof(r->job));
		memcpy(r->session, card->session, sizeof(r->session));
	}
	r->here++;
	r->bytes += card->image_bytes;
	r->due = atomic_load(&h->due) ? 1 : r->due;
	r->tries = atomic_load(&h->tries) > r->tries ? atomic_load(&h->tries) : r->tries;
	if (card->rank == 0) {
		r->base = atomic_load(&h->base);
		r->next = atomic_load(&h->next);
	}
	return 0;
}

/* One card, if it is whole and of this run. */
static int look(struct looking *l, const char *name)
{
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	struct shf_card card;
	char job[33];
	int rank, image, rc = l->sys->ops->keep_get(l->sys->arg, l->keep, name, &shm);
	bool is_card;

	if (rc == -2) /* ENOENT: it has just been dropped */
		return 0;
	if (rc < 0)
		return rc;
	if (shf_card_parse(name, job, &rank, &image, &is_card) &&
	    shf_card_decode(&card, &arena, &shm) == 0 && strcmp(card.run, l->run_id) == 0 &&
	    card.rank == rank)
		rc = add(l, job, &card, shf_card_head(&shm));
	shf_arena_release(&arena);
	l->sys->ops->shm_free(l->sys->arg, &shm);
	return rc;
}

static int newest_first(const void *a, const void *b)
{
	const struct shf_recalled *x = a, *y = b;

	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	return strcmp(x->session, y->session);
}

int shf_recall_list(const struct shf_sys *sys, int keep, const char *run_id,
                    int (*item)(void *arg, const struct shf_recalled *r), void *arg)
{
	struct looking l = { .sys = sys, .keep = keep, .run_id = run_id };
	struct names names = { SHF_BUF_INIT };
	int rc = sys->ops->keep_list(sys->arg, keep, note, &names);

	for (size_t at = 0; rc == 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1)
		rc = look(&l, (char *)names.bytes.data + at);
	if (l.n)
		qsort(l.found, l.n, sizeof(*l.found), newest_first);
	for (size_t i = 0; i < l.n && rc == 0; i++)
		rc = item(arg, &l.found[i]);
	shf_free(l.found);
	shf_buf_release(&names.bytes);
	return rc;
}

/* ---- what is in memory goes on from a step that comes to disk ---- */

struct going_on {
	struct looking *l;              /* for sys and keep */
	uint64_t was, is;
	int64_t step;
};

static int go_on(const struct going_on *g, const char *name)
{
	const struct shf_sys *sys = g->l->sys;
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	struct shf_card card;
	int rc = sys->ops->keep_get(sys->arg, g->l->keep, name, &shm);

	if (rc < 0)
		return rc == -2 ? 0 : rc;
	if (shf_card_decode(&card, &arena, &shm) == 0 && strcmp(card.run, g->l->run_id) == 0 &&
	    card.step > g->step) {
		struct shf_card_head *h = shf_card_head(&shm);

		if (atomic_load(&h->base) == g->was || atomic_load(&h->next) == g->was) {
			atomic_store(&h->base, g->was);
			atomic_store(&h->next, g->is);
		}
	}
	shf_arena_release(&arena);
	sys->ops->shm_free(sys->arg, &shm);
	return 0;
}

int shf_recall_go_on(const struct shf_sys *sys, int keep, const char *run_id, int64_t step,
                     uint64_t was, uint64_t is)
{
	struct looking l = { .sys = sys, .keep = keep, .run_id = run_id };
	struct going_on g = { &l, was, is, step };
	struct names names = { SHF_BUF_INIT };
	int rc = sys->ops->keep_list(sys->arg, keep, note, &names);

	for (size_t at = 0; rc == 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1)
		rc = go_on(&g, (char *)names.bytes.data + at);
	shf_buf_release(&names.bytes);
	return rc;
}

/* ---- one step ---- */

static int get_part(const struct shf_sys *sys, int keep, const char *name, const char *session,
                    struct shf_part_held *part)
{
	struct shf_arena arena = { 0 };
	struct shf_card card;
	char job[33], image_name[SHF_KEEP_NAME];
	int rank, image, rc = sys->ops->keep_get(sys->arg, keep, name, &part->card);
	bool is_card;

	if (rc < 0)
		return rc;
	rc = shf_card_decode(&card, &arena, &part->card) == 0 &&
	     strcmp(card.session, session) == 0;
	if (rc == 1 && shf_card_parse(name, job, &rank, &image, &is_card)) {
		shf_card_name(image_name, job, rank, image, false);
		rc = sys->ops->keep_get(sys->arg, keep, image_name, &part->image);
		rc = rc < 0 ? rc : 1;
	}
	shf_arena_release(&arena);
	if (rc <= 0)
		sys->ops->shm_free(sys->arg, &part->card);
	return rc;
}

int shf_recall_view(const struct shf_sys *sys, int keep, const struct shf_recalled *which,
                    struct shf_view **view, struct sheaf_error *err)
{
	struct names names = { SHF_BUF_INIT };
	struct shf_view *v = shf_view_new(sys);
	int rc = v ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory"), got;

	got = rc == 0 ? sys->ops->keep_list(sys->arg, keep, note, &names) : 0;
	for (size_t at = 0; rc == 0 && got >= 0 && at < names.bytes.len;
	     at += strlen((char *)names.bytes.data + at) + 1) {
		const char *name = (char *)names.bytes.data + at;
		struct shf_part_held part = { { NULL, 0, -1 }, { NULL, 0, -1 }, 0 };

		if (strncmp(name, which->job, 32))
			continue;
		got = get_part(sys, keep, name, which->session, &part);
		if (got == 1)
			rc = shf_view_add(v, &part, err);
		got = got == -2 ? 0 : got;
	}
	if (rc == 0 && got < 0)
		rc = shf_fail_sys(err, -got, "step %" PRId64 " in memory: asking the agent",
		                  which->step);
	if (rc == 0)
		rc = shf_view_finish(v, err);
	shf_buf_release(&names.bytes);
	if (rc == 0)
		*view = v;
	else
		shf_view_free(v);
	return rc;
}

/* ---- which one ---- */

struct choice {
	bool memory;
	struct shf_recalled which;
	int64_t base_step;              /* of the disk, that it follows; -1: none */
	char base_session[33];
};
struct choosing {
	struct sheaf_run *run;
	struct shf_newest disk;
	int64_t n;
	struct choice *choice;
};

/* What lies on disk goes on where this step begins: nobody has rewound since. */
static bool follows(struct shf_store *store, const struct shf_recalled *r,
                    const struct shf_newest *disk)
{
	uint64_t on = shf_card_on(disk->known, disk->session, shf_store_rewinds(store));

	return disk->known == disk->newest && (r->base == on || r->next == on);
}

int shf_recall_is_lost(struct shf_store *store, const struct shf_recalled *r, bool *lost,
                       struct sheaf_error *err)
{
	struct shf_newest disk;
	int rc = shf_store_newest(store, r->step, &disk, err);

	*lost = rc == 0 && r->step > disk.newest && !follows(store, r, &disk);
	return rc;
}

static int consider(void *arg, const struct shf_recalled *r)
{
	struct choosing *c = arg;
	bool same = r->step == c->disk.known && strcmp(r->session, c->disk.session) == 0;
	const char *why = NULL;

	if (c->n != SHEAF_LATEST && r->step != c->n)
		return 0;
	if (c->n == SHEAF_LATEST && r->step <= c->disk.newest && !same)
		return 0;       /* the disk's is newer */
	if (r->here != r->ranks)
		why = "not all of it is on this node";
	else if (r->tries >= TRIES_MAX)
		why = "it failed to resume twice";
	else if (!same && !follows(&c->run->store, r, &c->disk))
		why = "it does not follow the newest step on disk";
	if (why) {
		shf_log(c->run, 1, "%s: step %" PRId64 " in memory is passed over: %s",
		        c->run->store.path, r->step, why);
		return 0;
	}
	c->choice->memory = true;
	c->choice->which = *r;
	c->choice->base_step = c->disk.known;
	memcpy(c->choice->base_session, c->disk.session, sizeof(c->disk.session));
	return 1;
}

/* [rank 0] */
static int choose(struct sheaf_run *run, int64_t n, struct choice *choice, struct sheaf_error *err)
{
	struct choosing c = { .run = run, .n = n, .choice = choice };
	int rc = shf_store_newest(&run->store, n == SHEAF_LATEST ? 0 : n, &c.disk, err);

	if (rc == 0 && shf_store_rewinds(&run->store) == UINT64_MAX)
		rc = shf_fail(err, SHEAF_EIO, "%s/.sheaf/rewinds cannot be read: was what is in "
		              "memory rewound?", run->store.path);
	if (rc < 0)
		return rc;
	rc = shf_recall_list(run->sys, run->tier.keep, run->store.run, consider, &c);
	if (rc < 0) {
		struct sheaf_error why;

		shf_fail_sys(&why, -rc, "asking the agent");
		shf_log(run, 1, "%s: what is in memory is not known: %s", run->store.path, why.msg);
	}
	return 0;
}

int shf_recall(struct sheaf_run *run, int64_t n, struct shf_view **view, struct shf_base *base,
               struct sheaf_error *err)
{
	struct choice choice = { .memory = false };
	struct sheaf_error own;
	uint64_t not_here = !shf_tier_is_up(run);
	int rc, here = 0;

	*view = NULL;
	if (!run->tier.wanted)
		return 0;
	rc = shf_allreduce(&run->team, &not_here, 1, SHEAF_MAX, err);
	if (rc == 0 && !not_here)
		rc = shf_agree(&run->team, run->team.rank == 0 ? choose(run, n, &choice, err) : 0,
		               err);
	if (rc == 0 && !not_here)
		rc = shf_bcast(&run->team, &choice, sizeof(choice), err);
	if (rc < 0 || not_here || !choice.memory)
		return rc;
	here = shf_recall_view(run->sys, run->tier.keep, &choice.which, view, &own);
	if (here < 0)
		shf_log(run, 1, "%s: step %" PRId64 " is not taken from memory: %s, rank %d",
		        run->store.path, choice.which.step, own.msg, run->team.rank);
	not_here = here < 0;
	rc = shf_allreduce(&run->team, &not_here, 1, SHEAF_MAX, err);
	if (rc < 0 || not_here) {
		shf_view_free(*view);
		*view = NULL;
	} else {
		base->step = choice.base_step;
		memcpy(base->session, choice.base_session, sizeof(base->session));
	}
	return rc;
}
