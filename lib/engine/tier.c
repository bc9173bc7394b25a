/* SPDX-License-Identifier: Apache-2.0 */
/* Keeping images and their cards (card.h: M1-M3) with the agent of the node. */
#include "tier.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "attach.h"
#include "card.h"
#include "crc64.h"
#include "err.h"
#include "nodes.h"
#include "opts.h"
#include "record.h"
#include "run_env.h"
#include "save.h"
#include "save_stage.h"
#include "sums_out.h"

#define ASK_AGAIN_NS INT64_C(1000000000)        /* after that; then after twice as long, ... */
#define ASK_SELDOM_NS INT64_C(64000000000)      /* one that is stopped costs its deadline */
#define CARD_STEP (UINT64_C(64) << 10)

static struct shf_card_head *head_of(const struct shf_tier *t, int image)
{
	return t->cards[image].base ? shf_card_head(&t->cards[image]) : NULL;
}

static void make_nothing(struct shf_tier *t, int image)
{
	struct shf_card_head *h = head_of(t, image);

	if (h)
		atomic_store_explicit(&h->whole, 0, memory_order_seq_cst);
	if (t->steps[image] >= 0)
		shf_guests_forget(&t->guests, t->steps[image]);
	if (t->guests.copied == image)
		t->guests.copied = -1;
	t->steps[image] = -1;
	t->left[image] = 0;
	t->on_disk[image] = false;
}

/* ---- the agent ---- */

static void lost(struct sheaf_run *run, int sys, const char *doing)
{
	struct shf_tier *t = &run->tier;
	struct sheaf_error why;

	shf_fail_sys(&why, sys, "%s", doing);
	if (!t->said)
		shf_log(run, 1, "%s: steps are not kept in memory until an agent answers: %s, "
		        "rank %d", run->store.path, why.msg, run->team.rank);
	t->said = true;
	run->sys->ops->keep_close(run->sys->arg, t->keep, true); /* we live */
	t->keep = -1;
	t->ask_ns = shf_now(run) + t->wait_ns;
}

static void put(struct sheaf_run *run, int image, bool card)
{
	const struct shf_sys *sys = run->sys;
	const struct shf_shm *shm = card ? &run->tier.cards[image] : &run->images[image].own;
	char name[SHF_KEEP_NAME];
	int rc;

	if (run->tier.keep < 0 || !shm->base || run->opts.flags & SHEAF_READONLY) /* T1 */
		return;
	shf_card_name(name, run->tier.job, run->team.rank, image, card);
	rc = sys->ops->keep_put(sys->arg, run->tier.keep, name, shm);
	if (rc < 0)
		lost(run, -rc, "handing memory to the agent");
}

void shf_tier_where(char where[SHF_KEEP_NAME], const char *agent, const char *identity)
{
	bool itself = !agent || strcmp(agent, "auto") == 0;

	snprintf(where, SHF_KEEP_NAME, "%s%s", itself ? "auto/" : "", itself ? identity : agent);
}

static int knock(const struct shf_store *store, const char *agent, const char *job, int *keep,
                 int *steps, struct sheaf_error *err)
{
	const struct shf_sys *sys = store->sys;
	char where[SHF_KEEP_NAME], identity[SHF_IDENTITY];
	int rc = shf_store_identity(store, identity, err);

	if (rc < 0)
		return rc;
	shf_tier_where(where, agent, identity);
	rc = sys->ops->keep_open(sys->arg, where, identity, job, keep, steps);
	if (rc >= 0) {
		rc = sys->ops->keep_at(sys->arg, *keep, store->dir);
		if (rc < 0) {
			sys->ops->keep_close(sys->arg, *keep, true);
			*keep = -1;
		}
	}
	if (rc == -2 || rc == -111) /* ENOENT, ECONNREFUSED */
		return shf_fail(err, SHEAF_ENOENT, "no agent answers (sheaf agent RUN is one)");
	if (rc == -18) /* EXDEV */
		return shf_fail(err, SHEAF_EINVAL, "the agent there is another run's, or that of a "
		                "copy of this run: give each a socket of its own");
	return rc < 0 ? shf_fail_sys(err, -rc, "the agent") : 0;
}

int shf_tier_reach(const struct shf_store *store, const char *agent, int *keep, int *steps,
                   struct sheaf_error *err)
{
	return knock(store, agent, "", keep, steps, err);
}

static int reach(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_tier *t = &run->tier;
	const char *job = run->opts.flags & SHEAF_READONLY ? "" : t->job;
	int rc = knock(&run->store, run->opts.agent, job, &t->keep, &t->steps_told, err);

	if (rc < 0) {
		t->keep = -1;
		t->ask_ns = shf_now(run) + t->wait_ns;
		t->wait_ns = 2 * t->wait_ns < ASK_SELDOM_NS ? 2 * t->wait_ns : ASK_SELDOM_NS;
	} else {
		t->wait_ns = ASK_AGAIN_NS;
		if (t->steps_told == 1) /* one is kept while the next is being copied */
			t->steps_told = 2;
	}
	return rc;
}

static int at_most(int images, int bound)
{
	return bound && bound < images ? bound : images;
}

int shf_tier_allows(const struct sheaf_run *run, int images)
{
	return at_most(images, run->tier.steps_max);
}

int shf_tier_images(const struct sheaf_run *run)
{
	return shf_tier_allows(run, run->opts.images_max ? run->opts.images_max
	                                                 : run->tier.wanted ? 2 : 1);
}

static void offer_image(struct sheaf_run *run, int image)
{
	if (run->tier.wanted && image < shf_tier_images(run))
		put(run, image, false);
}

static void image_goes(struct sheaf_run *run, int image)
{
	const struct shf_sys *sys = run->sys;
	char name[SHF_KEEP_NAME];

	if (!run->tier.wanted || run->tier.keep < 0 || run->opts.flags & SHEAF_READONLY)
		return;
	shf_card_name(name, run->tier.job, run->team.rank, image, false);
	/* If it has nothing of that name, good; if it is gone, the next put finds out. */
	(void)sys->ops->keep_drop(sys->arg, run->tier.keep, name);
}

static void offer(struct sheaf_run *run)
{
	int rc;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		offer_image(run, i);
		put(run, i, true);
	}
	rc = shf_guests_offer(run);
	if (rc < 0)
		lost(run, -rc, "handing copies to the agent");
}

static void image_moves(struct sheaf_run *run, int image, bool goes)
{
	if (image >= SHF_IMAGES_MAX)
		return;
	if (goes)
		image_goes(run, image);
	else
		offer_image(run, image);
}

int shf_tier_open(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_tier *t = &run->tier;
	struct sheaf_error why;
	uint8_t bits[16];
	int rc = 0;

	t->keep = t->newest = -1;
	t->base_step = t->beyond = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		t->steps[i] = -1;
	t->wanted = run->opts.agent;
	t->wait_ns = ASK_AGAIN_NS;
	if (!t->wanted)
		return 0;
	run->image_moves = image_moves;
	if (run->team.rank == 0)
		rc = run->sys->ops->random(run->sys->arg, bits, sizeof(bits));
	rc = rc < 0 ? shf_fail_sys(err, -rc, "drawing a number") : shf_guests_open(run, err);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, bits, sizeof(bits), err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < sizeof(bits); i++)
		snprintf(t->job + 2 * i, 3, "%02x", bits[i]);
	t->said = reach(run, &why) < 0;
	if (t->said)
		shf_log(run, 1, "%s: nothing is kept in memory: %s, rank %d", run->store.path,
		        why.msg, run->team.rank);
	return run->opts.flags & SHEAF_READONLY ? 0 : shf_tier_settle(run, err);
}

void shf_tier_close(struct sheaf_run *run, bool bye)
{
	const struct shf_sys *sys = run->sys;

	shf_guests_close(run);
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (run->tier.cards[i].base)
			sys->ops->shm_free(sys->arg, &run->tier.cards[i]);
	if (run->tier.wanted && run->tier.keep >= 0)
		sys->ops->keep_close(sys->arg, run->tier.keep, bye);
	run->tier.keep = -1;
}

bool shf_tier_is_up(struct sheaf_run *run)
{
	struct shf_tier *t = &run->tier;

	if (!t->wanted)
		return false;
	if (t->keep >= 0 && run->sys->ops->keep_lives(run->sys->arg, t->keep) < 0)
		lost(run, 32, "the agent"); /* EPIPE */
	if (t->keep < 0 && shf_now(run) >= t->ask_ns) {
		(void)reach(run, NULL);
		offer(run);
	}
	return t->keep >= 0;
}

/* ---- images ---- */

uint64_t shf_tier_room(struct sheaf_run *run)
{
	if (!shf_tier_is_up(run))
		return 0;
	return (uint64_t)(1 + SHF_IMAGES_MAX - at_most(SHF_IMAGES_MAX, run->tier.steps_told));
}

void shf_tier_bound(struct sheaf_run *run, uint64_t most)
{
	struct shf_tier *t = &run->tier;

	if (t->bounded)
		return;
	t->bounded = true;
	t->steps_max = most > 1 ? (int)(1 + SHF_IMAGES_MAX - most) : 0;
	if (t->steps_max && run->opts.images_max > t->steps_max && run->team.rank == 0)
		shf_log(run, 1, "%s: an agent keeps %d steps at most: saves have as many images, "
		        "not %d", run->store.path, t->steps_max, run->opts.images_max);
}

/* Stops a copy of the image that is on its way to the next node, as happens if images are few. */
static void stop_copy(struct sheaf_run *run, int image)
{
	if (run->tier.guests.image == image)
		shf_guests_stop(run, true);
}

uint64_t shf_tier_hide(struct sheaf_run *run, int image)
{
	struct shf_card_head *h = run->tier.wanted ? head_of(&run->tier, image) : NULL;

	if (run->tier.wanted)
		stop_copy(run, image);
	return h ? atomic_exchange_explicit(&h->whole, 0, memory_order_seq_cst) : 0;
}

void shf_tier_show(struct sheaf_run *run, int image, uint64_t whole)
{
	struct shf_card_head *h = run->tier.wanted ? head_of(&run->tier, image) : NULL;

	if (h)
		atomic_store_explicit(&h->whole, whole, memory_order_seq_cst);
}

void shf_tier_reuse(struct sheaf_run *run, int image)
{
	struct shf_tier *t = &run->tier;

	if (!t->wanted)
		return;
	stop_copy(run, image);
	if (t->newest == image) { /* a state so large that it has one image */
		shf_log(run, 1, "%s: step %" PRId64 " is in memory no more: its image is needed",
		        run->store.path, t->steps[image]);
		t->newest = -1;
	}
	make_nothing(t, image);
}

/* ---- a step ---- */

/* <first half of the job's><its number among the job's>: all ranks know it, nobody else has it. */
static void name_session(struct sheaf_save *save)
{
	const struct shf_tier *t = &save->run->tier;
	char text[80];
	int n = snprintf(text, sizeof(text), "%s:%" PRIu64 ":%" PRId64, t->job, t->commits,
	                 save->step);

	if (!save->session[0])
		snprintf(save->session, sizeof(save->session), "%.16s%016" PRIx64, t->job,
		         shf_crc64(text, (size_t)n));
}

static void add_small(struct shf_card *card, const char *name, const void *bytes, size_t n)
{
	card->smalls[card->smalls_n++] = (struct shf_card_small){ name, bytes, n };
}

/* Everything of the step that is no tensor file, as a card without segments. [rank 0] */
static int smalls_make(const struct sheaf_save *save, const struct shf_given *given,
                       const struct shf_sums_out *sums, struct shf_arena *arena,
                       struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_record r = { 0 };
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_card card = { .step = save->step, .ranks = 1 };
	int rc = shf_record_make(&r, save, given, sums, arena, err);

	if (rc == 0)
		rc = shf_manifest_encode(&text, &r.manifest, err);
	card.smalls = shf_arena_alloc(arena, 2 + given->files_n + r.indexes_n,
	                              sizeof(*card.smalls));
	if (rc == 0 && !card.smalls)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	if (rc == 0) {
		add_small(&card, "sheaf.json", text.data, text.len);
		add_small(&card, "sheaf.sums", sums->table.data, sums->table.len);
		for (size_t i = 0; i < r.indexes_n; i++)
			add_small(&card, r.index_files[i].name, r.indexes[i].data,
			          r.indexes[i].len);
		for (size_t i = 0; i < given->files_n; i++)
			add_small(&card, given->files[i].name, given->data[i],
			          (size_t)given->files[i].bytes);
		memcpy(card.session, save->session, sizeof(card.session));
		memcpy(card.run, save->run->store.run, sizeof(card.run));
		shf_card_encode(out, &card);
		if (out->oom)
			rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	}
	shf_record_release(&r);
	shf_buf_release(&text);
	return rc;
}

/* From rank 0 to the lowest rank of each other node. [collective] */
static int smalls_send(struct sheaf_save *save, const struct shf_buf *smalls, struct shf_buf *in,
                       struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	const struct shf_place_info *place = &save->run->place;
	size_t ranks = (size_t)team->ranks;
	struct shf_buf *to = shf_zalloc(ranks, sizeof(*to));
	size_t *in_bytes = shf_zalloc(ranks, sizeof(*in_bytes));
	bool *told = shf_zalloc((size_t)place->nodes_n, sizeof(*told));
	int rc = to && in_bytes && told ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a step "
	                                               "in memory");

	for (size_t r = 0; rc == 0 && team->rank == 0 && r < ranks; r++) {
		if (r && !told[place->nodes[r]]) /* rank 0 has them */
			shf_buf_add(&to[r], smalls->data, smalls->len);
		told[place->nodes[r]] = true;
	}
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_exchange(team, to, in, in_bytes, err);
	for (size_t r = 0; to && r < ranks; r++)
		shf_buf_release(&to[r]);
	shf_free(to);
	shf_free(in_bytes);
	shf_free(told);
	return rc;
}

/* This rank's share of the step; smalls: an encoded card that has them, or nothing. */
static int body_make(const struct sheaf_save *save, const struct shf_buf *smalls,
                     struct shf_buf *body, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_arena arena = { 0 };
	struct shf_card card = { .step = -1 };
	int rc = 0;

	if (smalls->len)
		rc = shf_card_body(&card, &arena, smalls->data, smalls->len);
	card.segs = shf_arena_alloc(&arena, w->segs_n + 1, sizeof(*card.segs));
	if (rc < 0 || !card.segs) {
		shf_arena_release(&arena);
		return shf_fail(err, always(rc != SHEAF_ECORRUPT) ? SHEAF_ENOMEM : SHEAF_EBUG,
		                "step %" PRId64 ": its card in memory", save->step);
	}
	for (size_t i = 0; i < w->segs_n; i++)
		card.segs[card.segs_n++] = (struct shf_card_seg){ w->segs[i].file, w->segs[i].lo,
			w->segs[i].hi, w->segs[i].image };
	card.step = save->step;
	card.rank = save->run->team.rank;
	card.ranks = save->run->team.ranks;
	card.image_bytes = w->image_bytes;
	memcpy(card.session, save->session, sizeof(card.session));
	memcpy(card.run, save->run->store.run, sizeof(card.run));
	shf_card_encode(body, &card);
	rc = body->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for a card") : 0;
	shf_arena_release(&arena);
	return rc;
}

/* Room for a body in the card of an image. */
static int card_need(struct sheaf_run *run, int image, size_t body, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct shf_shm *card = &run->tier.cards[image];
	uint64_t want = (sizeof(struct shf_card_head) + body + body / 4 + CARD_STEP - 1) /
	                CARD_STEP * CARD_STEP;
	int rc;

	if (card->base && card->bytes - sizeof(struct shf_card_head) >= body)
		return 0;
	if (card->base)
		sys->ops->shm_free(sys->arg, card);
	*card = (struct shf_shm){ NULL, 0, -1 };
	rc = sys->ops->shm_new(sys->arg, card, (size_t)want, true);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "the card of an image");
	shf_card_head(card)->magic = SHF_CARD_MAGIC;
	put(run, image, true);
	return 0;
}

static int stamp(struct sheaf_save *save, const struct shf_buf *smalls, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_buf body = SHF_BUF_INIT;
	struct shf_card_head *h;
	uint64_t on = shf_card_on(run->tier.base_step, run->tier.base_session,
	                          run->tier.rewinds);
	int rc = body_make(save, smalls, &body, err);

	if (rc == 0)
		rc = card_need(run, save->image, body.len, err);
	if (rc == 0 && (run->tier.keep < 0 ||
	                run->sys->ops->keep_lives(run->sys->arg, run->tier.keep) < 0)) {
		if (run->tier.keep >= 0)
			lost(run, 32, "the agent");
		rc = shf_fail(err, SHEAF_EFAILED, "step %" PRId64 ": the agent is gone, or has no "
		              "room for it", save->step);
	}
	if (rc == 0) {
		h = head_of(&run->tier, save->image);
		memcpy(h + 1, body.data, body.len);
		h->body_bytes = body.len;
		atomic_store(&h->base, on);
		atomic_store(&h->next, run->tier.coming ? run->tier.coming
		                     : run->tier.doubt ? run->tier.doubt : on);
		atomic_store(&h->due, !(save->flags & SHEAF_NO_DISK));
		atomic_store(&h->tries, 0);
		atomic_store(&h->turn, run->tier.turn);
		atomic_store_explicit(&h->whole, shf_crc64(body.data, body.len) | 1,
		                      memory_order_seq_cst);
	}
	shf_buf_release(&body);
	return rc;
}

/* Is that the step which is being published? */
static bool is_coming(const struct sheaf_run *run, int64_t step)
{
	const struct sheaf_save *save = shf_publishing_now(run);

	return save && save->step == step;
}

/* What on disk it will be found to follow. As for the disk, a step beside a newer one needs a
 * rewind first. [rank 0] */
static int find_base(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_tier *t = &run->tier;
	struct shf_newest n;
	int rc;

	if (t->based && t->base_step >= save->step)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is not newer than %" PRId64
		                " on disk", save->step, t->base_step);
	if (save->parent >= 0) {
		t->base_step = save->parent;
		memcpy(t->base_session, save->parent_session, sizeof(t->base_session));
	}
	if (t->based)
		return 0;
	shf_publishing_settle(run);
	rc = shf_store_newest(&run->store, save->step, &n, err);
	if (rc == 0)
		rc = shf_save_check_parent(save, &n, err);
	if (rc < 0)
		return rc;
	if ((n.exists && !n.is_bad) || n.newest > save->step ||
	    (save->parent >= 0 && n.newest > save->parent && n.newest != save->doubtful &&
	     !is_coming(run, n.newest)))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " in memory would lie beside %"
		                PRId64 " in %s (rewind to go back)", save->step, n.newest,
		                run->store.path);
	if (save->parent < 0 || (n.newest == n.known && n.newest == save->doubtful)) {
		t->base_step = n.known;
		memcpy(t->base_session, n.session, sizeof(t->base_session));
	}
	t->rewinds = shf_store_rewinds(&run->store);
	if (t->rewinds == UINT64_MAX)
		return shf_fail(err, SHEAF_EIO, "%s/.sheaf/rewinds cannot be read",
		                run->store.path);
	return 0;
}

/* What the step of a save is as something to follow. */
static uint64_t on_of(const struct sheaf_save *save)
{
	return shf_card_on(save->step, save->session, save->run->tier.rewinds);
}

struct on_disk {                /* what rank 0 has found */
	int64_t step;
	char session[33];
	uint64_t rewinds;
};

/* On all cards: the node of rank 0 may be the one that is lost. [collective] */
static int agree_on_base(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	struct shf_tier *t = &save->run->tier;
	const struct sheaf_save *coming = shf_publishing_now(save->run);
	bool before = save->loads != save->run->loads;
	struct on_disk on = { 0 };
	int rc;

	/* One that was begun before the last load follows another step than those begun after. */
	if (before)
		t->based = false;
	rc = shf_agree(team, team->rank ? 0 : find_base(save, err), err);
	if (rc < 0 || t->based)
		return rc;
	on.step = t->base_step;
	on.rewinds = t->rewinds;
	memcpy(on.session, t->base_session, sizeof(on.session));
	rc = shf_bcast(team, &on, sizeof(on), err);
	if (rc < 0)
		return rc;
	t->base_step = on.step;
	t->rewinds = on.rewinds;
	memcpy(t->base_session, on.session, sizeof(t->base_session));
	t->based = !before;
	t->doubt = 0;           /* it was looked for just now */
	t->coming = coming ? on_of(coming) : 0;
	return 0;
}

/* Drops the steps in memory after `step`. The handle goes on from what is left. */
static void forget_later(struct shf_tier *t, int64_t step)
{
	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		if (t->steps[i] > step)
			make_nothing(t, i);
		t->left[i] = 0;
	}
	if (t->newest >= 0 && t->steps[t->newest] < 0)
		t->newest = -1;
	t->beyond = -1;
}

/* Had this handle gone back to before the step of that image when the save began? */
static bool was_left(const struct shf_tier *t, int image, const struct sheaf_save *save)
{
	return t->left[image] && t->left[image] <= save->loads;
}

/* Drops what had been left behind in memory when the save began, which is there now; and a step
 * that is on disk and not older than the save, for it is bad, or the save would have been refused.
 */
static void forget_left(struct sheaf_save *save)
{
	struct shf_tier *t = &save->run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (was_left(t, i, save) || (t->on_disk[i] && t->steps[i] >= save->step))
			make_nothing(t, i);
	if (t->newest >= 0 && t->steps[t->newest] < 0)
		t->newest = -1;
}

static int gather_and_stamp(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	struct shf_arena arena = { 0 };
	struct shf_given given = { 0 };
	struct shf_sums_out sums = { 0 };
	struct shf_buf in = SHF_BUF_INIT, smalls = SHF_BUF_INIT, mine = SHF_BUF_INIT;
	int rc = agree_on_base(save, err);

	if (rc == 0)
		rc = shf_sums_gather(save, &arena, &sums, err);
	if (rc == 0)
		rc = shf_attach_carry(save, &arena, &given, &in, err);
	if (rc == 0)
		rc = shf_agree(team, team->rank ? 0 : smalls_make(save, &given, &sums, &arena,
		                                                  &smalls, err), err);
	if (rc == 0)
		rc = smalls_send(save, &smalls, &mine, err);
	if (rc == 0)
		rc = shf_agree(team, stamp(save, team->rank ? &mine : &smalls, err), err);
	shf_buf_release(&sums.table);
	shf_buf_release(&in);
	shf_buf_release(&smalls);
	shf_buf_release(&mine);
	shf_arena_release(&arena);
	return rc;
}

static void is_newest(struct shf_tier *t, int image)
{
	if (t->newest < 0 || t->steps[image] >= t->steps[t->newest])
		t->newest = image;
}

void shf_tier_fell_back(struct sheaf_run *run, int64_t step)
{
	struct shf_tier *t = &run->tier;

	forget_later(t, step);
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] >= 0)
			is_newest(t, i);
}

int shf_tier_commit(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_tier *t = &run->tier;
	int rc;

	name_session(save);
	rc = gather_and_stamp(save, err);
	if (rc == 0) {
		/* Only now, for a save that is refused takes nothing out of memory; but before its
		 * copies are made, which have the numbers of what goes. */
		forget_left(save);
		rc = shf_guests_send(save, err);
	}
	if (rc == SHEAF_ELOST)  /* others may think that it is there: so it may be (M2) */
		return rc;
	if (rc < 0) {
		make_nothing(t, save->image);
		return rc;
	}
	t->commits++;
	t->said = false;
	t->steps[save->image] = save->step;
	t->left[save->image] = save->loads < t->went_back ? t->went_back : 0;
	save->card = save->image;
	/* One to disk holds its image itself, and may yet be given up. */
	if (save->flags & SHEAF_NO_DISK) {
		is_newest(t, save->image);
		if (shf_guests_have_some(&t->guests))
			shf_tier_let_others_go(run);
	}
	return 0;
}

static bool has_card(const struct sheaf_save *save)
{
	return save->card >= 0 && save->run->tier.steps[save->card] == save->step;
}

bool shf_tier_has(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	const struct shf_tier *t = &run->tier;
	uint64_t gone = !save->kept || !has_card(save) || t->keep < 0 ||
	                run->sys->ops->keep_lives(run->sys->arg, t->keep) < 0;
	struct sheaf_error err;

	return shf_allreduce(&run->team, &gone, 1, SHEAF_MAX, &err) == 0 && !gone;
}

void shf_tier_unsaved(struct sheaf_save *save)
{
	if (has_card(save))
		make_nothing(&save->run->tier, save->card);
	save->card = -1;
	if (save->publishing.begun)
		save->run->tier.coming = 0;
}

void shf_tier_newest_until(struct sheaf_run *run, int64_t step)
{
	struct shf_tier *t = &run->tier;

	t->newest = -1;
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] >= 0 && t->steps[i] <= step)
			is_newest(t, i);
}

void shf_tier_left(struct sheaf_save *save)
{
	/* What fails on the way to the disk takes nothing from memory, where the step is whole. */
	if (!save->kept || atomic_load(&save->failed))
		shf_tier_unsaved(save);
	else if (has_card(save))
		is_newest(&save->run->tier, save->card);
}

/* All that is in memory and newer than the save, but for what had been left behind when the save
 * began: that follows an older step, and nothing that is saved since. */
static void follow(const struct sheaf_save *save, uint64_t on, bool published)
{
	struct shf_tier *t = &save->run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		struct shf_card_head *h = t->steps[i] > save->step ? head_of(t, i) : NULL;

		if (!h || was_left(t, i, save))
			continue;
		atomic_store(published ? &h->base : &h->next, on);
		shf_guests_follow(&t->guests, t->steps[i], on, published);
	}
}

/* What rank 0 found when it made the stage of this save: the step in doubt before it, or not. */
static int end_doubt(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_tier *t = &run->tier;
	struct on_disk on = { .step = save->parent };
	int rc;

	memcpy(on.session, save->parent_session, sizeof(on.session));
	rc = shf_bcast(&run->team, &on, sizeof(on), err);
	if (rc < 0 || !t->based || !t->doubt)
		return rc;
	if (on.step >= 0) {
		t->base_step = on.step;
		memcpy(t->base_session, on.session, sizeof(t->base_session));
		follow(save, shf_card_on(on.step, on.session, t->rewinds), true);
	}
	t->doubt = 0;
	return 0;
}

int shf_tier_publishing(struct sheaf_save *save, struct sheaf_error *err)
{
	struct shf_tier *t = &save->run->tier;
	int rc = t->wanted ? end_doubt(save, err) : 0;

	if (rc < 0)
		return rc;
	t->coming = on_of(save);
	follow(save, t->coming, false);
	return 0;
}

void shf_tier_doubt(struct sheaf_save *save)
{
	struct shf_tier *t = &save->run->tier;

	t->doubt = on_of(save);
	t->coming = 0;
}

/* Tells the agents where the run is now, because it may have been renamed under the job. Rank 0
 * also tells its agent the step. */
static void tell(struct sheaf_run *run, int64_t step)
{
	const struct shf_sys *sys = run->sys;
	struct shf_tier *t = &run->tier;
	char text[32];
	int rc = 0;

	if (t->keep >= 0 && run->place.node_first == run->team.rank)
		rc = sys->ops->keep_at(sys->arg, t->keep, run->store.dir);
	snprintf(text, sizeof(text), "%" PRId64, step);
	if (rc >= 0 && t->keep >= 0 && run->team.rank == 0)
		rc = sys->ops->keep_tell(sys->arg, t->keep, text);
	if (rc < 0)
		lost(run, -rc, "telling the agent");
}

void shf_tier_published(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	struct shf_tier *t = &run->tier;
	uint64_t on = on_of(save);

	if (!t->wanted)
		return;
	t->doubt = t->coming = 0;
	t->base_step = save->step;
	memcpy(t->base_session, save->session, sizeof(t->base_session));
	forget_left(save);
	follow(save, on, true);
	if (has_card(save)) {
		atomic_store(&head_of(t, save->card)->due, 0);
		shf_guests_written(&t->guests, save->step);
		t->on_disk[save->card] = true;
		is_newest(t, save->card);
	}
	if (t->keep < 0 && !t->alone) { /* there may be room where others' memory is let go */
		(void)reach(run, NULL);
		shf_tier_let_others_go(run);
		offer(run);
	}
	shf_tier_let_others_go(run);
	tell(run, save->step);
}

void shf_tier_went_back(struct sheaf_run *run, int64_t step)
{
	struct shf_tier *t = &run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] > step && !t->left[i])
			t->left[i] = run->loads;
	t->went_back = run->loads;
	t->beyond = -1;
	t->based = false;
}

void shf_tier_took(struct sheaf_run *run, int64_t beyond)
{
	run->tier.beyond = beyond;
	run->tier.based = false;        /* what memory follows is looked for again */
}

int64_t shf_tier_newest(const struct sheaf_run *run)
{
	const struct shf_tier *t = &run->tier;

	return t->newest < 0 ? -1 : t->steps[t->newest];
}

bool shf_tier_is_later(const struct sheaf_run *run, int64_t step, bool to_disk)
{
	const struct shf_tier *t = &run->tier;

	return t->newest < 0 || step > t->steps[t->newest] || t->left[t->newest] ||
	       (to_disk && t->on_disk[t->newest]);
}

void shf_tier_rewind(struct sheaf_run *run, int64_t step, bool loaded)
{
	struct shf_tier *t = &run->tier;

	if (!t->wanted)
		return;
	if (loaded)
		shf_tier_fell_back(run, step);
	else
		forget_later(t, step);
	t->based = t->alone = false;
	t->doubt = t->coming = 0;
	if (!loaded)
		shf_tier_let_others_go(run);
}
