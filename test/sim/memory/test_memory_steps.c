/* SPDX-License-Identifier: Apache-2.0 */
/* Cards that an agent keeps are invalid, foreign, or disappear while they are read, and memory for
 * reading them is short: lib/memory/memory_steps.c lists the right steps or returns an error. */
#include <errno.h>
#include <stdlib.h>
#include "image_card.h"
#include "crc64.h"
#include "memory_dir_fill.h"
#include "step.h"
#include "memory_steps.h"
#include "restarts.h"
#include "starve.h"
#include "t.h"

#define RUN "0123456789abcdef0123456789abcdef"
#define OTHER_RUN "ffffffffffffffffffffffffffffffff"
#define JOB_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define JOB_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define SESSION_A "11111111111111111111111111111111"
#define SESSION_B "22222222222222222222222222222222"

struct world {
	struct simdisk *disk;
	const struct shf_sys *sys;
	int keep;
	struct sheaf_error err;
};

static void begin(struct world *w)
{
	static uint64_t pid = 80000;

	*w = (struct world){ .disk = re_world(1) };
	w->sys = simdisk_process(w->disk, pid++, 0);
	CHECK_INT(shf_sys_keep_open(w->sys, "auto/x", "", "", &w->keep, NULL), 0);
}

static void end(struct world *w)
{
	CHECK_INT(simdisk_open_n(w->sys), 0);
	shf_sys_keep_close(w->sys, w->keep, true);
	simdisk_kill(w->disk, w->sys);
	simdisk_free(w->disk);
}

static struct shf_card card_of(int64_t step, int rank, int ranks, const char *session)
{
	struct shf_card c = { .run = RUN, .step = step, .rank = rank, .ranks = ranks };

	memcpy(c.session, session, 33);
	return c;
}

static void put_as(struct world *w, const char *name, const struct shf_card *c, uint64_t base,
                   uint64_t next)
{
	struct shf_buf body = SHF_BUF_INIT;
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_card_head *h;

	shf_card_encode(&body, c);
	CHECK_INT(shf_sys_shm_new(w->sys, &shm, sizeof(*h) + body.len, true), 0);
	h = shf_card_head(&shm);
	memset(h, 0, sizeof(*h));
	h->magic = SHF_CARD_MAGIC;
	h->body_bytes = body.len;
	memcpy(h + 1, body.data, body.len);
	atomic_store(&h->base, base);
	atomic_store(&h->next, next);
	atomic_store(&h->whole, shf_crc64(body.data, body.len) | 1);
	CHECK_INT(shf_sys_keep_put(w->sys, w->keep, name, &shm), 0);
	shf_sys_shm_free(w->sys, &shm);
	shf_buf_release(&body);
}

static void put(struct world *w, const char *job, int image, const struct shf_card *c,
                uint64_t base, uint64_t next)
{
	char name[SHF_KEEP_NAME];

	shf_card_name(name, job, c->rank, image, true);
	put_as(w, name, c, base, next);
}

struct told {
	struct shf_memory_step a[8];
	int n;
};

static int tell(void *arg, const struct shf_memory_step *r)
{
	struct told *t = arg;

	t->a[t->n++] = *r;
	return 0;
}

static struct told told(struct world *w, int want)
{
	struct told t = { .n = 0 };

	CHECK_INT(shf_memory_steps_list(w->sys, w->keep, RUN, tell, &t), want);
	return t;
}

/* ---- what is there ---- */

TEST(what_is_no_card_of_this_run_is_passed_over)
{
	struct world w;
	struct shf_card good = card_of(5, 0, 1, SESSION_A), alien = card_of(6, 0, 1, SESSION_A),
		elsewhere = card_of(7, 1, 2, SESSION_A);
	struct told t;

	begin(&w);
	memcpy(alien.run, OTHER_RUN, sizeof(alien.run));
	put_as(&w, "a name of somebody", &good, 1, 1);
	put_as(&w, JOB_A ".0.0.image", &good, 1, 1);
	put_as(&w, JOB_A ".0.3.card", &alien, 1, 1);
	put_as(&w, JOB_A ".0.2.card", &elsewhere, 1, 1); /* it says that it is rank 1's */
	put(&w, JOB_A, 1, &good, 1, 1);
	put(&w, JOB_A, SHF_CARD_REPLICA, &elsewhere, 1, 1);       /* another node's */
	t = told(&w, 0);
	CHECK_INT(t.n, 1);
	CHECK_INT(t.a[0].step, 5);
	CHECK_STR(t.a[0].job, JOB_A);
	end(&w);
}

TEST(steps_are_told_newest_first_and_each_save_apart)
{
	struct world w;
	struct shf_card old = card_of(5, 0, 1, SESSION_A), first = card_of(7, 0, 2, SESSION_A),
		second = card_of(7, 1, 2, SESSION_A), other = card_of(7, 0, 1, SESSION_B);
	struct told t;

	begin(&w);
	put(&w, JOB_A, 0, &old, 1, 1);
	put(&w, JOB_B, 0, &first, 1, 1);        /* a session of two jobs is not one save */
	put(&w, JOB_A, 1, &other, 1, 1);
	put(&w, JOB_A, 2, &first, 1, 1);
	put(&w, JOB_A, 3, &second, 1, 1);
	t = told(&w, 0);
	CHECK_INT(t.n, 4);
	CHECK(t.a[0].step == 7 && t.a[1].step == 7 && t.a[2].step == 7 && t.a[3].step == 5);
	CHECK_STR(t.a[0].session, SESSION_A);
	CHECK_STR(t.a[0].job, JOB_A);
	CHECK_INT(t.a[0].here, 2);
	CHECK_STR(t.a[1].job, JOB_B);
	CHECK_INT(t.a[1].here, 1);
	CHECK_STR(t.a[2].session, SESSION_B);
	end(&w);
}

/* Some ranks have heard of a step that comes to disk before theirs, some have not. */
TEST(a_step_may_follow_two_whoever_has_heard_of_the_second)
{
	static const uint64_t says[][4] = { { 1, 1, 1, 2 }, { 1, 2, 1, 1 }, { 1, 1, 2, 2 },
		{ 1, 2, 2, 2 } };

	for (int i = 0; i < 4; i++) {
		struct world w;
		struct shf_card a = card_of(5, 0, 2, SESSION_A), b = card_of(5, 1, 2, SESSION_A);
		struct told t;

		begin(&w);
		put(&w, JOB_A, 0, &a, says[i][0], says[i][1]);
		put(&w, JOB_A, 0, &b, says[i][2], says[i][3]);
		t = told(&w, 0);
		CHECK_INT(t.n, 1);
		CHECK_INT(t.a[0].here, 2);
		CHECK_INT(t.a[0].base, 1);
		CHECK_INT(t.a[0].next, 2);
		end(&w);
	}
}

static void fail_keep(struct world *w, int nth, int error)
{
	simdisk_faults_clear(w->disk);
	simdisk_fault(w->disk, &(struct simdisk_fault){ .nth = nth, .error = error,
	                                                .kind = SIMDISK_KEEP });
}

static const struct shf_memory_step four = { .job = JOB_A, .step = 4 };

TEST(a_card_that_goes_while_all_are_looked_at_is_no_failure)
{
	struct world w;
	struct shf_card a = card_of(5, 0, 1, SESSION_A), b = card_of(6, 0, 1, SESSION_B);
	struct shf_memory_step r = { .job = JOB_A, .session = SESSION_A, .step = 5 };
	struct shf_view *v = NULL;

	begin(&w);
	put(&w, JOB_A, 0, &a, 1, 1);
	put(&w, JOB_A, 1, &b, 1, 1);
	for (int nth = 2; nth <= 3; nth++) { /* after the list of names */
		fail_keep(&w, nth, ENOENT);
		CHECK_INT(told(&w, 0).n, 1);
		fail_keep(&w, nth, ENOENT);
		CHECK_INT(shf_memory_steps_rebase(w.sys, w.keep, RUN, &four, 1, 2), 0);
		fail_keep(&w, nth, ENOENT);
		CHECK_INT(shf_memory_step_open_parts(w.sys, w.keep, &r, NULL, &v, &w.err), 0);
		CHECK_INT(shf_view_parts(v), nth == 3);
		shf_view_free(v);
	}
	for (int nth = 1; nth <= 3; nth++) {
		fail_keep(&w, nth, EPIPE);
		CHECK_INT(told(&w, -EPIPE).n, 0);
		fail_keep(&w, nth, EPIPE);
		CHECK_INT(shf_memory_steps_rebase(w.sys, w.keep, RUN, &four, 1, 2), -EPIPE);
		fail_keep(&w, nth, EPIPE);
		CHECK(shf_memory_step_open_parts(w.sys, w.keep, &r, NULL, &v, &w.err) == SHEAF_EIO);
		CHECK(strstr(w.err.msg, "sending a request to the agent") != NULL);
	}
	simdisk_faults_clear(w.disk);
	end(&w);
}

/* Which a card says that it follows, and what comes of it when `is` comes after `was`. */
TEST(what_lies_behind_a_step_that_comes_to_disk_follows_it)
{
	static const struct {
		int64_t step;
		uint64_t base, next, then_base, then_next;
		bool alien, other_job;
	} cases[] = { { 9, 1, 1, 1, 2, false, false }, { 9, 7, 1, 1, 2, false, false },
		{ 9, 1, 7, 1, 2, false, false }, { 9, 7, 8, 7, 8, false, false },
		{ 4, 1, 1, 1, 1, false, false }, { 9, 1, 1, 1, 1, true, false },
		{ 9, 1, 1, 1, 1, false, true } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world w;
		struct shf_card c = card_of(cases[i].step, 0, 1, SESSION_A);
		struct shf_shm shm = { NULL, 0, -1 };

		begin(&w);
		if (cases[i].alien)
			memcpy(c.run, OTHER_RUN, sizeof(c.run));
		put(&w, cases[i].other_job ? JOB_B : JOB_A, 0, &c, cases[i].base, cases[i].next);
		CHECK_INT(shf_memory_steps_rebase(w.sys, w.keep, RUN, &four, 1, 2), 0);
		CHECK_INT(shf_sys_keep_get(w.sys, w.keep, cases[i].other_job
					   ? JOB_B ".0.0.card" : JOB_A ".0.0.card", &shm), 0);
		CHECK_INT(atomic_load(&shf_card_head(&shm)->base), cases[i].then_base);
		CHECK_INT(atomic_load(&shf_card_head(&shm)->next), cases[i].then_next);
		shf_sys_shm_free(w.sys, &shm);
		end(&w);
	}
}

TEST(of_ranks_that_have_copies_alone_each_is_told_once)
{
	struct shf_memory_step which = { .job = JOB_A, .session = SESSION_A, .step = 5 };
	struct shf_card_info t[] = {
		{ .job = JOB_A, .session = SESSION_A, .step = 5, .rank = 0, .guest = 1 },
		{ .job = JOB_A, .session = SESSION_A, .step = 5, .rank = 1, .guest = 1 },
		{ .job = JOB_A, .session = SESSION_A, .step = 5, .rank = 1 },
		{ .job = JOB_A, .session = SESSION_A, .step = 5, .rank = 2, .guest = 1 },
		{ .job = JOB_A, .session = SESSION_A, .step = 5, .rank = 2, .guest = 1 },
		{ .job = JOB_A, .session = SESSION_A, .step = 4, .rank = 3, .guest = 1 },
		{ .job = JOB_A, .session = SESSION_B, .step = 5, .rank = 4, .guest = 1 },
		{ .job = JOB_B, .session = SESSION_A, .step = 5, .rank = 5, .guest = 1 } };
	struct shf_buf cards = { (uint8_t *)t, sizeof(t), sizeof(t), false };
	struct shf_buf ranks = SHF_BUF_INIT;
	int32_t want[] = { 0, 2 };

	CHECK_INT(shf_memory_step_replicas(&cards, &which, &ranks), 0);
	CHECK_INT(ranks.len, sizeof(want));
	CHECK(memcmp(ranks.data, want, sizeof(want)) == 0);
	shf_buf_release(&ranks);
	for (starve_left = 1; starve_left <= 3; starve_left++) {
		long nth = starve_left;

		CHECK_INT(shf_memory_step_replicas(&cards, &which, &ranks), SHEAF_ENOMEM);
		starve_left = nth;
		shf_buf_release(&ranks);
	}
	starve_left = 0;
}

/* ---- a real step ---- */

struct step {
	struct world w;
	struct shf_store store;
	struct shf_memory_step newest;
};

static int take_first(void *arg, const struct shf_memory_step *r)
{
	*(struct shf_memory_step *)arg = *r;
	return 1;
}

static void begin_step(struct step *s)
{
	struct re_job j;

	*s = (struct step){ .store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 } };
	begin(&s->w);
	j = re_on(s->w.disk, 2, (struct re_plan){ .last = 1 });
	PLAYED(j, 0);
	CHECK_RC(shf_store_open(&s->store, s->w.sys, "run", &s->w.err), 0, &s->w.err);
	CHECK(shf_memory_steps_list(s->w.sys, s->w.keep, s->store.run, take_first, &s->newest) == 1
	      && s->newest.step == 1);
}

static void end_step(struct step *s)
{
	shf_store_close(&s->store);
	end(&s->w);
}

static int view_of(struct step *s, struct shf_view **v)
{
	return shf_memory_step_open(s->w.sys, s->w.keep, &s->newest, v, &s->w.err);
}

/* All of it, in all the ways: it is told as it is or there is no memory. */
static int ask_all(struct step *s, long nth)
{
	struct shf_memory_step r = { .step = -1 }, old = s->newest;
	struct shf_buf cards = SHF_BUF_INIT, ranks = SHF_BUF_INIT;
	struct shf_view *v = NULL;
	int rc, hit = 0;

	starved = false;
	starve_left = nth;
	rc = shf_memory_steps_list(s->w.sys, s->w.keep, s->store.run, take_first, &r);
	starve_left = 0;
	CHECK_INT(rc, starved ? -ENOMEM : 1);
	CHECK(starved || (r.step == s->newest.step && r.here == s->newest.here &&
	                  r.bytes == s->newest.bytes && r.base == s->newest.base));
	hit += starved;
	starved = false;
	starve_left = nth;
	rc = shf_memory_steps_read_cards(s->w.sys, s->w.keep, s->store.run, true, &cards);
	starve_left = 0;
	CHECK_INT(rc, starved ? -ENOMEM : 0);
	CHECK(starved || cards.len == 2 * sizeof(struct shf_card_info));
	hit += starved;
	starved = false;
	starve_left = nth;
	rc = view_of(s, &v);
	starve_left = 0;
	CHECK_RC(rc, starved ? SHEAF_ENOMEM : 0, &s->w.err);
	CHECK((v == NULL) == starved);
	hit += starved;
	shf_view_free(v);
	old.step = 0;
	starved = false;
	starve_left = nth;
	rc = shf_memory_steps_rebase(s->w.sys, s->w.keep, s->store.run, &old, 5, 6);
	starve_left = 0;
	CHECK_INT(rc, starved ? -ENOMEM : 0);
	hit += starved;
	shf_buf_release(&cards);
	shf_buf_release(&ranks);
	return hit;
}

TEST(where_memory_is_short_no_step_is_told_to_be_less_than_it_is)
{
	struct step s;
	int hit = 1, all = 0;

	begin_step(&s);
	for (long nth = 1; hit; nth++) {
		hit = ask_all(&s, nth);
		all += hit;
	}
	print_message("# %d allocations\n", all);
	CHECK(all > 30);
	end_step(&s);
}

/* ---- cards that do not fit each other ---- */

static void no_memory_to_add(struct step *s)
{
	const struct shf_sys *sys = s->w.sys;
	struct shf_view *v = shf_view_new(sys);

	for (long nth = 1; nth <= 2; nth++) { /* with an image, and without */
		struct shf_view_part part = { .card = { NULL, 0, -1 },
			.image = { NULL, 0, -1 } };

		CHECK_INT(shf_sys_shm_new(sys, &part.card, 4096, true), 0);
		if (nth == 1)
			CHECK_INT(shf_sys_shm_new(sys, &part.image, 4096, true), 0);
		starve_left = 1;
		CHECK_INT(shf_view_add(v, &part, &s->w.err), SHEAF_ENOMEM);
		starve_left = 0;
	}
	shf_view_free(v);
}

TEST(memory_that_a_view_cannot_take_is_given_back)
{
	struct step s;

	begin_step(&s);
	no_memory_to_add(&s);
	end_step(&s);
}

/* The card of a rank of that step, decoded; its body stays mapped while shm is. */
static void card_get(struct step *s, int rank, char name[SHF_KEEP_NAME], struct shf_card *c,
                     struct shf_arena *arena, struct shf_shm *shm)
{
	const struct shf_sys *sys = s->w.sys;

	for (int image = 0; image < 4; image++) {
		shf_card_name(name, s->newest.job, rank, image, true);
		if (shf_sys_keep_get(sys, s->w.keep, name, shm) < 0)
			continue;
		if (shf_card_decode(c, arena, shm) == 0)
			return;
		shf_sys_shm_free(sys, shm);
	}
	fail_msg("rank %d has no card", rank);
}

enum { SMALLS = 40, SEGS = 200 };
struct edit {
	const char *what;
	int rank;
	void (*change)(struct shf_card *c, struct shf_card_seg segs[SEGS],
	               struct shf_card_small_file smalls[SMALLS]);
	int rc;
	const char *says;
};

static void change_card(struct step *s, const struct edit *e)
{
	struct shf_card_seg segs[SEGS] = { { 0 } };
	struct shf_card_small_file smalls[SMALLS] = { { 0 } };
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	char name[SHF_KEEP_NAME];
	struct shf_card c;

	card_get(s, e->rank, name, &c, &arena, &shm);
	CHECK(c.segs_n < SEGS && c.smalls_n < SMALLS);
	memcpy(segs, c.segs, c.segs_n * sizeof(*segs));
	memcpy(smalls, c.smalls, c.smalls_n * sizeof(*smalls));
	c.segs = segs;
	c.smalls = smalls;
	e->change(&c, segs, smalls);
	put_as(&s->w, name, &c, 1, 1);
	shf_arena_release(&arena);
	shf_sys_shm_free(s->w.sys, &shm);
}

#define CHANGE(name)                                                                     \
	static void name(struct shf_card *c, struct shf_card_seg segs[SEGS],             \
	                 struct shf_card_small_file smalls[SMALLS])
static void add_small(struct shf_card *c, struct shf_card_small_file *smalls, const char *name)
{
	smalls[c->smalls_n++] = (struct shf_card_small_file){ name, (const uint8_t *)"x", 1 };
}

CHANGE(no_change)
{
	(void)c, (void)segs, (void)smalls;
}

CHANGE(an_image_larger_than_it_is)
{
	(void)segs, (void)smalls;
	c->image_bytes += UINT64_C(1) << 40;
}

CHANGE(the_same_bytes_twice)
{
	(void)smalls;
	segs[c->segs_n++] = segs[0];
}

CHANGE(bytes_beyond_the_file)
{
	struct shf_card_seg *last = &segs[0];

	(void)smalls;
	for (size_t i = 0; i < c->segs_n; i++) /* whose end is the file's, on the last rank */
		last = segs[i].file == last->file && segs[i].hi > last->hi ? &segs[i] : last;
	last->hi++;
	c->image_bytes = last->image + (last->hi - last->lo) > c->image_bytes
	                 ? last->image + (last->hi - last->lo) : c->image_bytes;
}

CHANGE(a_file_that_the_step_does_not_have)
{
	(void)smalls;
	segs[c->segs_n] = segs[0];
	segs[c->segs_n++].file = 99;
}

CHANGE(many_pieces)
{
	const struct shf_card_seg all = segs[0];
	uint64_t step = (all.hi - all.lo) / 100;

	(void)smalls;
	segs[0].hi = all.lo + step;
	for (uint64_t i = 1; i < 100; i++)
		segs[c->segs_n++] = (struct shf_card_seg){ all.file, all.lo + i * step,
			i < 99 ? all.lo + (i + 1) * step : all.hi, all.image + i * step };
}

CHANGE(not_all_bytes)
{
	(void)segs, (void)smalls;
	c->segs_n--;
}

CHANGE(nothing_before_the_slash)
{
	(void)segs;
	add_small(c, smalls, "/x");
	add_small(c, smalls, "y");
}

CHANGE(a_long_folder)
{
	(void)segs;
	add_small(c, smalls, "a234567890123456789012345678901234567890123456789012345678901234/x");
}

CHANGE(folders_that_begin_alike)
{
	(void)segs;
	add_small(c, smalls, "optimizers/x");
	add_small(c, smalls, "opt/x");
	add_small(c, smalls, "opt/y");
	add_small(c, smalls, "opt/nothing");
	smalls[c->smalls_n - 1].n = 0;
}

CHANGE(no_manifest_first)
{
	struct shf_card_small_file first = smalls[0];

	(void)c, (void)segs;
	smalls[0] = smalls[1];
	smalls[1] = first;
}

CHANGE(no_small_files)
{
	(void)segs, (void)smalls;
	c->smalls_n = 0;
}

CHANGE(another_manifest)
{
	(void)c, (void)segs;
	smalls[0].bytes = (const uint8_t *)"{\"sheaf\"";
	smalls[0].n = 8;
}

static const struct edit edits[] = {
	{ "no change", 0, no_change, 0, "" },
	{ "an image that is smaller than its card says", 0, an_image_larger_than_it_is,
	  SHEAF_ECORRUPT, "the header of a staging buffer" },
	{ "bytes that are there twice", 0, the_same_bytes_twice, SHEAF_ECORRUPT, "step 1" },
	{ "bytes behind the end of a file", 1, bytes_beyond_the_file, SHEAF_ECORRUPT, "step 1" },
	{ "a file too many", 0, a_file_that_the_step_does_not_have, SHEAF_ECORRUPT, "step 1" },
	{ "many pieces", 0, many_pieces, 0, "" },
	{ "some bytes nowhere", 0, not_all_bytes, SHEAF_EFORMAT, "not all of it" },
	{ "a folder without a name", 0, nothing_before_the_slash, SHEAF_ECORRUPT, "step 1" },
	{ "a folder with a long name", 0, a_long_folder, SHEAF_ECORRUPT, "step 1" },
	{ "folders that begin alike", 0, folders_that_begin_alike, 0, "" },
	{ "another file first", 0, no_manifest_first, SHEAF_EFORMAT, "not on this node" },
	{ "no manifest", 0, no_small_files, SHEAF_EFORMAT, "its manifest is not on this node" },
	{ "half a manifest", 0, another_manifest, SHEAF_ECORRUPT, "sheaf.json in memory" },
};

TEST(cards_that_do_not_make_a_step_are_refused)
{
	for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
		const struct edit *e = &edits[i];
		struct shf_view *v = NULL;
		struct step s;
		int rc;

		begin_step(&s);
		change_card(&s, e);
		rc = view_of(&s, &v);
		if (rc != e->rc || (rc < 0 && !strstr(s.w.err.msg, e->says)))
			print_error("%s: %d %s\n", e->what, rc, s.w.err.msg);
		CHECK_INT(rc, e->rc);
		CHECK(rc == 0 || strstr(s.w.err.msg, e->says) != NULL);
		CHECK((v == NULL) == (rc < 0));
		shf_view_free(v);
		end_step(&s);
	}
}

static int count(void *arg, const char *name)
{
	*(int *)arg += strcmp(name, "opt") == 0 || strcmp(name, "optimizers") == 0 ||
	               strcmp(name, "optimizer") == 0 ? 100 : 1;
	return 0;
}

static int stop(void *arg, const char *name)
{
	(void)name;
	return ++*(int *)arg == 2 ? 7 : 0;
}

TEST(a_folder_lists_what_is_in_it_and_nothing_of_one_that_begins_alike)
{
	static const struct {
		const char *folder;
		int want;
	} looks[] = { { "opt", 3 }, { "optimizers", 1 }, { "optimizer", 2 } };
	const struct shf_sys *sys;
	struct shf_view *v = NULL;
	struct shf_stat st;
	struct step s;
	int dir, n = 0;

	begin_step(&s);
	change_card(&s, &(struct edit){ .change = folders_that_begin_alike });
	CHECK_RC(view_of(&s, &v), 0, &s.w.err);
	sys = shf_view_sys(v);
	dir = shf_sys_open(sys, SHF_CWD, SHF_VIEW_DIR, SHF_O_DIR, 0);
	CHECK_INT(shf_sys_list(sys, dir, count, &n), 0);
	CHECK_INT(n / 100, 3);
	n = 0;
	CHECK_INT(shf_sys_list(sys, dir, stop, &n), 7);
	CHECK_INT(n, 2);
	CHECK_INT(shf_sys_stat(sys, dir, "opt/nothing", false, &st), -ENOENT);
	for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++) {
		int folder = shf_sys_open(sys, dir, looks[i].folder, SHF_O_DIR, 0);

		n = 0;
		CHECK_INT(shf_sys_list(sys, folder, count, &n), 0);
		CHECK_INT(n, looks[i].want);
		CHECK_INT(shf_sys_stat(sys, folder, "nothing", false, &st), i == 0 ? 0 : -ENOENT);
		CHECK_INT(shf_sys_close(sys, folder), 0);
	}
	CHECK_INT(st.bytes, 0);
	CHECK_INT(shf_sys_close(sys, dir), 0);
	shf_view_free(v);
	end_step(&s);
}

/* ---- between nodes ---- */

/* What of the step rank 0 has, finished; the rest is nowhere here. */
static struct shf_view *half_of(struct step *s)
{
	struct shf_view *v = NULL;
	char name[SHF_KEEP_NAME];
	struct shf_shm shm = { NULL, 0, -1 };
	struct shf_arena arena = { 0 };
	struct shf_card c;

	card_get(s, 1, name, &c, &arena, &shm);
	shf_arena_release(&arena);
	shf_sys_shm_free(s->w.sys, &shm);
	CHECK_INT(shf_sys_keep_drop(s->w.sys, s->w.keep, name), 0);
	CHECK_RC(shf_memory_step_open_parts(s->w.sys, s->w.keep, &s->newest, NULL, &v, &s->w.err),
	         0, &s->w.err);
	CHECK_RC(shf_view_finish(v, false, &s->w.err), 0, &s->w.err);
	return v;
}

/* Eight bytes at the end of a file that are nowhere here. */
static uint64_t hole_of(const struct shf_view *v, uint32_t *file)
{
	const struct shf_manifest *m = shf_view_manifest(v);
	uint64_t n = 1;

	for (*file = 0; *file < m->files_n; ++*file)
		if (!shf_view_at(v, *file, m->files[*file].bytes - 8, &n))
			return m->files[*file].bytes - 8;
	fail_msg("%s", "all bytes are here");
	return 0;
}

struct piece {
	uint32_t file;
	uint64_t lo, hi;
	int n;
};

static int first_piece(void *arg, uint32_t file, uint64_t lo, uint64_t hi)
{
	*(struct piece *)arg = (struct piece){ file, lo, hi, 1 };
	return 1;
}

TEST(what_a_node_does_not_have_it_cannot_give)
{
	struct shf_buf out = SHF_BUF_INIT;
	struct piece p = { 0 };
	struct step s;
	struct shf_view *v;
	uint64_t n = 1, at;
	uint32_t f;

	begin_step(&s);
	v = half_of(&s);
	at = hole_of(v, &f);
	CHECK_INT(shf_view_each_range(v, first_piece, &p), 1);
	CHECK_INT(shf_view_get_bytes(v, p.file, p.lo, p.hi, &out), 0);
	CHECK_INT(out.len, p.hi - p.lo);
	CHECK_INT(shf_view_get_bytes(v, f, at, at + 8, &out), SHEAF_ECORRUPT);
	CHECK(shf_view_at(v, 1000, 0, &n) == NULL);
	shf_buf_release(&out);
	starve_left = 1;
	CHECK_INT(shf_view_get_bytes(v, p.file, p.lo, p.hi, &out), SHEAF_ENOMEM);
	starve_left = 0;
	shf_buf_release(&out);
	shf_view_free(v);
	end_step(&s);
}

/* A node tells another that has no part of the step; bytes come; who has what is set. */
TEST(what_comes_from_other_nodes_is_taken_or_there_is_no_memory)
{
	static const uint8_t some[8] = { 1 };
	static const struct shf_block_access hads[2] = { { .rank = 0 }, { .rank = 0 } };
	struct shf_buf told = SHF_BUF_INIT;
	struct step s;
	struct shf_view *v, *w;
	uint64_t at, n = 8;
	uint32_t f;
	int rc;

	begin_step(&s);
	v = half_of(&s);
	shf_view_pack_small_files(v, &told);
	at = hole_of(v, &f);
	starved = true;
	for (long nth = 1; starved; nth++) {
		w = shf_view_new(s.w.sys);
		starved = false;
		starve_left = nth;
		rc = shf_view_unpack_small_files(w, &told, &s.w.err);
		starve_left = 0;
		CHECK_INT(rc, starved ? SHEAF_ENOMEM : 0);
		CHECK(!starved || strstr(s.w.err.msg, "its description from another node") != NULL);
		CHECK(shf_view_has_small_files(w) == !starved);
		shf_view_free(w);
	}
	told.data[0] ^= 1;
	told.len--;
	w = shf_view_new(s.w.sys);
	CHECK_INT(shf_view_unpack_small_files(w, &told, &s.w.err), SHEAF_ECORRUPT);
	shf_view_free(w);
	starve_left = 1;
	CHECK_INT(shf_view_add_bytes(v, f, at, at + 8, some), SHEAF_ENOMEM);
	starve_left = 0;
	CHECK_INT(shf_view_add_bytes(v, f, at, at + 8, some), 0);
	CHECK_INT(shf_view_finish_bytes(v), 0);
	CHECK(memcmp(shf_view_at(v, f, at, &n), some, 8) == 0 && n == 8);
	for (long nth = 1; nth <= 2; nth++) {
		starve_left = nth;
		CHECK_INT(shf_view_set_access(v, hads, (uint32_t[]){ 0, 1 }, 2), SHEAF_ENOMEM);
	}
	starve_left = 0;
	CHECK_INT(shf_view_set_access(v, hads, (uint32_t[]){ 0, 1000 }, 2), SHEAF_ECORRUPT);
	CHECK(shf_view_access(v) == NULL);
	CHECK_INT(shf_view_set_access(v, hads, (uint32_t[]){ 0, 1 }, 2), 0);
	CHECK(shf_view_access(v) != NULL);
	shf_buf_release(&told);
	shf_view_free(v);
	end_step(&s);
}

static int open_named(const struct shf_sys *sys, int dir, const char *name)
{
	const char *slash = strchr(name, '/');
	char folder[64];
	int in, fd;

	if (!slash)
		return shf_sys_open(sys, dir, name, 0, 0);
	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - name), name);
	in = shf_sys_open(sys, dir, folder, SHF_O_DIR, 0);
	fd = shf_sys_open(sys, in, slash + 1, 0, 0);
	CHECK_INT(shf_sys_close(sys, in), 0);
	return fd;
}

TEST(the_rest_of_a_step_on_disk_is_leased_while_its_part_in_memory_is_open)
{
	const struct shf_sys *sys, *child;
	struct shf_view *v;
	struct step s;
	int fd;

	begin_step(&s);
	sys = s.w.sys;
	CHECK_INT(simdisk_put(s.w.disk, "run/checkpoint-1/sheaf.json", "{}", 2), 0);
	fd = shf_sys_open(sys, SHF_CWD, "run/checkpoint-1/sheaf.json", SHF_O_WRITE, 0);
	CHECK(fd >= 0);
	v = half_of(&s);
	CHECK_RC(shf_view_open_disk(v, s.store.dir, "checkpoint-1", &s.w.err), 0, &s.w.err);
	CHECK_INT(shf_sys_lock(sys, fd, true), -EAGAIN); /* as a prune asks */
	child = simdisk_fork(s.w.disk, sys, 4001);
	shf_view_free(v);
	CHECK_INT(shf_sys_lock(sys, fd, true), 0);
	simdisk_kill(s.w.disk, child);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	end_step(&s);
}

TEST(no_step_that_a_prune_has_locked_is_read_beside_memory)
{
	const struct shf_sys *sys;
	struct shf_view *v;
	struct step s;
	int fd;

	begin_step(&s);
	sys = s.w.sys;
	CHECK_INT(simdisk_put(s.w.disk, "run/checkpoint-1/sheaf.json", "{}", 2), 0);
	fd = shf_sys_open(sys, SHF_CWD, "run/checkpoint-1/sheaf.json", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_lock(sys, fd, true), 0);
	v = half_of(&s);
	CHECK_RC(shf_view_open_disk(v, s.store.dir, "checkpoint-1", &s.w.err), SHEAF_EIO, &s.w.err);
	CHECK(strstr(s.w.err.msg, "checkpoint-1: was deleted or moved while it was being opened"));
	shf_view_free(v);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	end_step(&s);
}

/* ENOENT would mean that there is no step, and a job would start afresh. */
TEST(a_file_that_is_missing_below_a_step_in_memory_is_not_ENOENT)
{
	const struct shf_sys *sys;
	struct shf_view *v;
	uint8_t byte[4];
	uint64_t at;
	struct step s;
	uint32_t f;
	int dir, fd;

	begin_step(&s);
	CHECK_INT(simdisk_put(s.w.disk, "run/checkpoint-1/sheaf.json", "{}", 2), 0);
	v = half_of(&s);
	sys = shf_view_sys(v);
	at = hole_of(v, &f);
	CHECK_RC(shf_view_open_disk(v, s.store.dir, "checkpoint-1", &s.w.err), 0, &s.w.err);
	dir = shf_sys_open(sys, SHF_CWD, SHF_VIEW_DIR, SHF_O_DIR, 0);
	fd = open_named(sys, dir, shf_view_manifest(v)->files[f].name);
	CHECK_INT(shf_sys_pread(sys, fd, byte, 4, at), -EIO);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	CHECK_INT(shf_sys_close(sys, dir), 0);
	shf_view_free(v);
	end_step(&s);
}

/* The step as it is on disk, a part of it: there too its file ends early. */
TEST(bytes_that_are_neither_in_memory_nor_on_disk_are_an_error)
{
	const struct shf_sys *sys;
	struct shf_queue *queue = NULL;
	struct shf_view *v;
	const char *name;
	char path[200];
	uint8_t byte[4];
	uint64_t at;
	struct step s;
	uint32_t f;
	int dir, fd;

	begin_step(&s);
	v = half_of(&s);
	sys = shf_view_sys(v);
	at = hole_of(v, &f);
	name = shf_view_manifest(v)->files[f].name;
	dir = shf_sys_open(sys, SHF_CWD, SHF_VIEW_DIR, SHF_O_DIR, 0);
	fd = open_named(sys, dir, name);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_pread(sys, fd, byte, 4, at), -EIO);
	snprintf(path, sizeof(path), "run/checkpoint-1/%s", name);
	CHECK_INT(simdisk_put(s.w.disk, path, "short", 5), 0);
	starve_left = 1;
	CHECK_INT(shf_view_open_disk(v, s.store.dir, "checkpoint-1", &s.w.err), SHEAF_ENOMEM);
	starve_left = 0;
	CHECK_INT(shf_view_open_disk(v, s.store.dir, "checkpoint-7", &s.w.err), SHEAF_ENOENT);
	CHECK_RC(shf_view_open_disk(v, s.store.dir, "checkpoint-1", &s.w.err), 0, &s.w.err);
	CHECK_INT(shf_sys_pread(sys, fd, byte, 4, at), -EIO);
	CHECK_INT(shf_view_disk_bytes(v), 0);
	starve_left = 1;
	CHECK_INT(shf_sys_queue_new(sys, &queue, 1), -ENOMEM);
	starve_left = 0;
	CHECK(queue == NULL);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	CHECK_INT(shf_sys_close(sys, dir), 0);
	shf_view_free(v);
	end_step(&s);
}
