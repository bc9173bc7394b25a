/* SPDX-License-Identifier: Apache-2.0 */
/* A power cut after every call of the engine's deeds: a save of one to four ranks over a committed
 * step, a prune, a rewind, marks, and the recovery from a job that was killed in one of them. Each
 * choice of what reached the disk is then opened by a new job of one process, which loads every
 * step it finds and compares every item.
 *
 *   test_cuts [--long] [--seed N] [part of a test's name ...]
 *
 * With --long: every subset of up to 12 unsynced items; beyond that those of up to 3, their
 * complements and 2,000 drawn ones. Otherwise 3 items, 1 and 2. Pages are torn at 512 and 4096. */
#include "everycut.h"
#include "jobs.h"

#define main t_main
#include "t.h"
#undef main

static const int32_t each_a_node[JOB_RANKS] = { 1, 2 };
static const int32_t two_nodes[JOB_RANKS] = { 1, 1, 2, 2 };
static const int32_t four_nodes[JOB_RANKS] = { 1, 2, 3, 4 };

static bool lazily;                     /* saves copy behind */
static bool staying;                    /* what is large is not staged */
static bool asking;                     /* and are published so */

struct story {
	struct job j;                   /* what was done since the disk settled */
	int64_t first, steps;           /* first..steps were committed before and are there */
	bool killed;                    /* a stage of the dead is deleted, in any order */
	int thin;                       /* one of so many cuts, with few states each; 0: off */
	int each;                       /* without thin: one of so many cuts; 0: all */
	bool twice;                     /* half a rename leaves a directory under both names */
	int64_t newest[JOB_DEEDS + 1];  /* before deed i; [deeds_n] at the end */
};

/* ---- one crash state ---- */

/* How many deeds were acknowledged at the cut. */
static int done_n(const struct story *s, int64_t cut)
{
	int n = 0;

	while (n < s->j.deeds_n && s->j.deeds[n].acked >= 0 && s->j.deeds[n].acked <= cut)
		n++;
	return n;
}

/* Is that step being published, perhaps? */
static bool is_asked(const struct story *s, int64_t cut, int64_t step)
{
	for (int i = 0; i < s->j.deeds_n; i++)
		if (s->j.deeds[i].kind == DEED_ASK && s->j.deeds[i].step == step &&
		    s->j.deeds[i].begun <= cut)
			return true;
	return false;
}

/* May step i be gone after this deed? */
static bool takes_away(const struct story *s, const struct deed *d, int64_t i)
{
	return (d->kind == DEED_PRUNE && i < s->steps) || (d->kind == DEED_REWIND && i > d->step);
}

/* What a job finds is what was promised: "" or what is wrong. */
static const char *judge_seen(const struct story *s, int64_t cut, const struct seen *seen,
                              char why[300])
{
	int done = done_n(s, cut);
	const struct deed *now = done < s->j.deeds_n ? &s->j.deeds[done] : NULL;
	const struct deed *last = done > 0 ? &s->j.deeds[done - 1] : NULL;
	bool next = now && now->begun <= cut;

	why[0] = '\0';
	if (seen->newest != s->newest[done] && !(next && seen->newest == s->newest[done + 1]) &&
	    !(s->newest[done] < seen->newest && is_asked(s, cut, seen->newest)))
		snprintf(why, 300, "the newest step is %lld, and %lld was acknowledged",
		         (long long)seen->newest, (long long)s->newest[done]);
	else if (seen->damaged)
		snprintf(why, 300, "%d steps are damaged", seen->damaged);
	else if (last && (last->kind == DEED_SAVE || last->kind == DEED_COMMIT) && !now &&
	         seen->staged)
		snprintf(why, 300, "step %lld is still staged", (long long)last->step);
	else if (s->j.deeds[0].kind == DEED_REWIND && (done > 0 || !s->twice) &&
	         seen->n + (size_t)seen->aside < 3)     /* until then half a rename may lose both */
		snprintf(why, 300, "a step set aside is gone");
	for (int64_t i = s->first; i <= s->steps && !why[0]; i++) {
		bool may_go = false;

		for (int k = 0; k < s->j.deeds_n; k++)
			may_go |= takes_away(s, &s->j.deeds[k], i) && s->j.deeds[k].begun <= cut;
		if (!may_go && !seen_has(seen, i))
			snprintf(why, 300, "step %lld is gone", (long long)i);
	}
	return why;
}

static uint64_t hash_without_lock(struct simdisk *disk)
{
	(void)simdisk_remove(disk, "run/.sheaf/lock");
	return simdisk_hash(disk, "run");
}

static const char *look(const struct story *s, struct simdisk *disk, bool write, struct seen *seen,
                        char why[300])
{
	const struct job_state state = { .rows = s->j.rows };

	return s->killed ? job_look_at(disk, write, &state, seen, why)
	                 : job_look(disk, write, s->j.rows, seen, why);
}

static const char *judge(const void *arg, struct simdisk *disk, int64_t cut, char why[300])
{
	const struct story *s = arg;
	struct seen seen, again;
	uint64_t h;

	if (*look(s, disk, false, &seen, why) ||        /* I2 */
	    *look(s, disk, true, &seen, why) || *judge_seen(s, cut, &seen, why))
		return why;
	/* Two days later what other nodes left may go as well; then nothing changes any more. */
	simdisk_advance(disk, 2 * 86400);
	if (*look(s, disk, true, &again, why) || *judge_seen(s, cut, &again, why))
		return why;
	h = hash_without_lock(disk);
	if (*look(s, disk, true, &again, why))
		return why;
	if (h != hash_without_lock(disk) || again.newest != seen.newest ||
	    (again.staged && !s->twice))
		snprintf(why, 300, "another recovery changes something, or %d stages stay",
		         again.staged);
	return why;
}

static uint64_t promised(const void *arg, int64_t cut)
{
	const struct story *s = arg;
	uint64_t n = 0;

	for (int i = 0; i < s->j.deeds_n; i++)
		n += (uint64_t)(s->j.deeds[i].begun <= cut) +
		     (uint64_t)(s->j.deeds[i].acked <= cut);
	return n;
}

/* Cuts what was done since the disk settled, wherever the story says: false at the first wrong
 * state. */
static bool hunt(const struct story *s, char why[400])
{
	int stride = s->thin ? s->thin : s->each && !everycut.all ? s->each : 1;

	return everycut_hunt(&(struct everycut_hunt){
		.disk = s->j.disk, .stride = (size_t)stride,
		.first = s->each ? (size_t)t_from(stride) : 0, .all_max = s->thin ? 0 : 3,
		.small_max = s->thin ? 0 : 1, .seeded = 2, .promised = promised, .judge = judge,
		.story = s }, why);
}

/* ---- stories ---- */

static int64_t newest_after(const struct deed *d, int64_t before)
{
	switch (d->kind) {
	case DEED_SAVE:
	case DEED_COMMIT:
	case DEED_REWIND:
		return d->step;
	case DEED_MARK_BAD:
		return d->step - 1;
	default:
		return before;
	}
}

static void tell(struct story *s, enum simdisk_model model, int ranks, const int32_t *nodes,
                 int64_t steps, const struct deed *deeds, int n)
{
	struct simdisk *disk = simdisk_new(everycut.seed, model);

	*s = (struct story){ .first = 1, .steps = steps, .newest = { steps ? steps : -1 },
		.twice = model == SIMDISK_STRICT,
		.j = { .disk = disk, .ranks = ranks, .nodes = nodes, .deeds_n = 1,
		       .rows = staying ? 1200 : 0, .group = { .seed = everycut.seed } } };
	for (int64_t i = 1; i <= steps; i++) {
		s->j.deeds[0] = (struct deed){ .kind = DEED_SAVE, .step = i };
		job_prepare(&s->j);
		CHECK(job_run(&s->j));
		CHECK_INT(job_rc(&s->j), 0);
	}
	simdisk_settle(disk);
	s->j.deeds_n = n;
	for (int i = 0; i < n; i++) {
		s->j.deeds[i] = deeds[i];
		s->newest[i + 1] = newest_after(&deeds[i], s->newest[i]);
	}
	s->j.keep_last = deeds[0].kind == DEED_PRUNE ? 1 : 0;
	s->j.images = 2;
	s->j.lazy = lazily;
	s->j.asks = asking;
	s->j.stays = staying;
	job_prepare(&s->j);
}

static void act(struct story *s)
{
	bool fine = job_run(&s->j);

	if (!fine || job_rc(&s->j))
		print_error("%s %d %s\n", s->j.why, job_rc(&s->j), job_word(&s->j));
	CHECK(fine);
	CHECK_INT(job_rc(&s->j), 0);
}

static void survives(const char *what, enum simdisk_model model, const int32_t *nodes,
                     int64_t steps, const struct deed *deeds, int n)
{
	uint64_t before = everycut.states;
	struct story s;
	char why[400];
	bool fine;

	tell(&s, model, 4, nodes, steps, deeds, n);
	s.each = T_STRIDE;
	act(&s);
	fine = hunt(&s, why);
	if (fine)
		printf("# %s: %zu cuts, %llu states\n", what, simdisk_cut_n(s.j.disk),
		       (unsigned long long)(everycut.states - before));
	else
		print_error("%s: %s (seed %llu)\n", what, why, (unsigned long long)everycut.seed);
	simdisk_free(s.j.disk);
	CHECK(fine);
}

static const struct deed save_2[] = { { .kind = DEED_SAVE, .step = 2 } };
static const struct deed in_flight[] = { { .kind = DEED_BEGIN, .step = 2 },
                                         { .kind = DEED_BEGIN, .step = 3 },
                                         { .kind = DEED_COMMIT, .step = 2 },
                                         { .kind = DEED_COMMIT, .step = 3 } };
static const struct deed published_behind[] = { { .kind = DEED_BEGIN, .step = 2 },
                                                { .kind = DEED_ASK, .step = 2 },
                                                { .kind = DEED_BEGIN, .step = 3 },
                                                { .kind = DEED_COMMIT, .step = 2 },
                                                { .kind = DEED_COMMIT, .step = 3 } };
/* The second one finds all it needs, and makes its stage in its commit. */
static const struct deed save_2_and_3[] = { { .kind = DEED_SAVE, .step = 2 },
                                            { .kind = DEED_SAVE, .step = 3 } };
static const struct deed mark_2[] = { { .kind = DEED_MARK_BAD, .step = 2 } };
static const struct deed prune[] = { { .kind = DEED_PRUNE } };
static const struct deed rewind_1[] = { { .kind = DEED_REWIND, .step = 1 } };
static const struct deed rewind_and_save[] = { { .kind = DEED_REWIND, .step = 1 },
                                               { .kind = DEED_SAVE, .step = 2 } };
#define COUNT(deeds) (int)(sizeof(deeds) / sizeof(*(deeds)))

#define EACH_MODEL(name, nodes, steps, deeds)                                              \
	TEST(name##_survives_every_cut_strict)                                             \
	{                                                                                  \
		survives(#name " strict", SIMDISK_STRICT, nodes, steps, deeds, COUNT(deeds)); \
	}                                                                                  \
	TEST(name##_survives_every_cut_ext4)                                               \
	{                                                                                  \
		survives(#name " ext4", SIMDISK_EXT4, nodes, steps, deeds, COUNT(deeds));  \
	}

EACH_MODEL(first_save, NULL, 0, save_2)
EACH_MODEL(next_save, NULL, 1, save_2)
EACH_MODEL(next_save_of_two_nodes, two_nodes, 1, save_2)
EACH_MODEL(two_in_flight, two_nodes, 1, in_flight)
TEST(two_lazy_in_flight_survive_every_cut)
{
	lazily = true;
	survives("two lazy in flight", SIMDISK_EXT4, two_nodes, 1, in_flight, COUNT(in_flight));
	survives("one lazy after the other", SIMDISK_STRICT, NULL, 1, save_2_and_3,
	         COUNT(save_2_and_3));
	lazily = false;
}
TEST(what_is_not_staged_survives_every_cut)
{
	staying = lazily = true;
	survives("in place", SIMDISK_EXT4, NULL, 1, in_flight, COUNT(in_flight));
	staying = lazily = false;
}
TEST(what_is_published_behind_survives_every_cut)
{
	survives("published behind", SIMDISK_EXT4, two_nodes, 1, published_behind,
	         COUNT(published_behind));
	survives("published behind", SIMDISK_STRICT, NULL, 0, published_behind,
	         COUNT(published_behind));
	asking = lazily = true;
	survives("one after the other, asking", SIMDISK_STRICT, NULL, 1, save_2_and_3,
	         COUNT(save_2_and_3));
	asking = lazily = false;
}
EACH_MODEL(rewind, NULL, 3, rewind_1)
EACH_MODEL(rewind_and_save, NULL, 3, rewind_and_save)
EACH_MODEL(mark_bad, NULL, 2, mark_2)
EACH_MODEL(prune, NULL, 3, prune)

/* ---- every size, in every model ---- */

static const struct size {
	const char *name;
	int ranks;
	const int32_t *nodes;
} sizes[] = {
	{ "1 rank", 1, NULL },
	{ "2 ranks", 2, NULL },
	{ "2 nodes", 2, each_a_node },
	{ "4 ranks", 4, NULL },
	{ "4 ranks on 2 nodes", 4, two_nodes },
};
static const struct deed save_4[] = { { .kind = DEED_SAVE, .step = 4 } };

/* What happened before: rank 0 was killed when it was to rename, or sync, that. */
struct killed {
	const struct deed *deed;
	enum simdisk_kind kind;
	const char *name;               /* part of it */
	int64_t newest, first, last;    /* once somebody has recovered */
};

static void kill_in(struct story *s, const struct killed *k)
{
	struct job j = s->j;

	j.deeds[0] = *k->deed;
	j.deeds_n = 1;
	j.keep_last = k->deed->kind == DEED_PRUNE ? 1 : 0;
	job_prepare(&j);
	simdisk_fault(j.disk, &(struct simdisk_fault){ .nth = 1, .kind = k->kind,
		.name = k->name, .process = j.sys[0], .how = SIMDISK_KILL });
	(void)job_run(&j);
	CHECK_STR(j.why, "");
	CHECK_INT(simdisk_fired(j.disk), 1);
	simdisk_faults_clear(j.disk);
	simdisk_settle(j.disk);
	s->newest[0] = k->newest;
	s->first = k->first;
	s->killed = true;
	s->steps = k->last;
	for (int i = 0; i < s->j.deeds_n; i++)
		s->newest[i + 1] = newest_after(&s->j.deeds[i], s->newest[i]);
	job_prepare(&s->j);
}

static void survives_in_every_size(const char *what, int64_t steps, const struct deed *deeds,
                                   int n, const struct killed *killed)
{
	uint64_t before = everycut.states;
	int stories = 0, bad = 0, every = everycut.all ? 1 : T_STRIDE, at = t_from(every);

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int model = SIMDISK_STRICT; model <= SIMDISK_NFS; model++, at++) {
			struct story s;
			char why[400];

			if (at % every)
				continue;
			stories++;
			tell(&s, (enum simdisk_model)model, sizes[i].ranks, sizes[i].nodes, steps,
			     deeds, n);
			s.thin = everycut.all ? 0 : 9 + at % 3;
			if (killed)
				kill_in(&s, killed);
			act(&s);
			if (!hunt(&s, why)) {
				print_error("%s, %s, model %d: %s (seed %llu)\n", what,
				            sizes[i].name, model, why,
				            (unsigned long long)everycut.seed);
				bad++;
			}
			simdisk_free(s.j.disk);
		}
	printf("# %s: %d sizes and models, %llu states\n", what, stories,
	       (unsigned long long)(everycut.states - before));
	CHECK_INT(bad, 0);
}

#define EVERY_SIZE(name, steps, deeds)                                                     \
	TEST(name##_survives_in_every_size_and_model)                                      \
	{                                                                                  \
		survives_in_every_size(#name, steps, deeds, COUNT(deeds), NULL);           \
	}
/* The next job recovers and saves. */
#define EVERY_RECOVERY(from, kind, name, newest, first, last, next)                        \
	TEST(recovery_from_half_a_##from##_survives_in_every_size_and_model)               \
	{                                                                                  \
		static const struct killed k = { from, kind, name, newest, first, last };  \
											   \
		survives_in_every_size("recovery from half a " #from, 3, next, COUNT(next), &k); \
	}

EVERY_SIZE(save_4, 3, save_4)
EVERY_SIZE(rewind_1, 3, rewind_1)
EVERY_SIZE(rewind_and_save, 3, rewind_and_save)
EVERY_SIZE(mark_2, 2, mark_2)
EVERY_SIZE(prune, 3, prune)
EVERY_RECOVERY(save_4, SIMDISK_RENAME, "4-", 3, 1, 3, save_4)
EVERY_RECOVERY(rewind_1, SIMDISK_RENAME, "checkpoint-2", 1, 1, 1, save_2)
EVERY_RECOVERY(mark_2, SIMDISK_FSYNC, "marks", 3, 1, 3, save_4)
EVERY_RECOVERY(prune, SIMDISK_RENAME, "checkpoint-2", 3, 2, 3, save_4)

/* ---- mutants: one fsync does nothing, and the hunt must find it ---- */

struct mutant {
	const char *what;               /* beginning of the last name of what is synced; DATA: of
	                                 * either file, which finish in any order */
	bool harmless;
};
#define DATA ".safetensors"

/* Each rank is a node, so that nobody's fsync covers what another wrote. Every fsync there is
 * must be in the table. */
static void each_fsync_counts(const char *what, int64_t steps, const struct deed *deeds,
                              int deeds_n, bool of_deeds, const struct mutant *table, int table_n)
{
	int bad = 0;
	long n = 0;

	for (int i = 0; i < table_n; i++) {
		const struct mutant *m = &table[i];
		struct story s;
		char why[400];
		bool fine, named;

		tell(&s, SIMDISK_STRICT, 4, four_nodes, steps, deeds, deeds_n);
		s.each = T_STRIDE;
		s.j.skip_fsync = i + 1;
		s.j.skip_of_deeds = of_deeds;
		act(&s);
		n = s.j.fsyncs;
		fine = hunt(&s, why);
		s.each = 0;
		fine = fine && (m->harmless || hunt(&s, why));
		named = strcmp(m->what, DATA) == 0
		      ? strstr(s.j.skipped, DATA) && !strstr(s.j.skipped, "index")
		      : strncmp(s.j.skipped, m->what, strlen(m->what)) == 0;
		bad += fine != m->harmless || !named;
		printf("# %s without fsync %2d of %ld, %-40.40s %s%s\n", what, i + 1, n,
		       s.j.skipped,
		       fine          ? m->harmless ? "harmless" : "NOT FOUND"
		       : m->harmless ? "NOT HARMLESS: "
				     : "found: ",
		       fine ? "" : why);
		if (!named)
			print_error("fsync %d of %s is of %s, not of %s\n", i + 1, what,
			            s.j.skipped, m->what);
		simdisk_free(s.j.disk);
	}
	CHECK_INT(bad, 0);
	CHECK_INT(n, table_n);
}

#define MUTANTS(what, steps, deeds, of_deeds, ...)                                         \
	TEST(leaving_out_any_fsync_of_##what##_is_found)                                   \
	{                                                                                  \
		static const struct mutant table[] = { __VA_ARGS__ };                      \
											   \
		each_fsync_counts(#what, steps, deeds, COUNT(deeds), of_deeds, table,      \
		                  COUNT(table));                                           \
	}

MUTANTS(a_save, 1, save_2, true,
        { DATA, false }, { DATA, false },                                       /* C3 */
        { "config.json", false }, { "model.safetensors.index", false },         /* C5 */
        { "optimizer.safetensors.index", false }, { "sheaf.sums", false },
        { "optimizer", false }, { "2-", false },
        { "sheaf.json.tmp", false }, { "2-", false },                           /* C6 */
        { "run", false }, { "stage", false })                                   /* C9 */
/* A journal that comes back names the sessions it set aside, and finds none of them. */
MUTANTS(a_rewind, 3, rewind_1, true,
        { "tmp-", true }, { ".sheaf", true },   /* of the rewind count, for steps in memory */
        { "tmp-", false }, { ".sheaf", false },
        { "aside", true }, { "run", true },     /* of the first of two renames; the last cover it */
        { "aside", false }, { "run", false }, { ".sheaf", true })
/* Each of the two of / covers the other, the last one of the run what is in it, and what is lost
 * of .sheaf is made again: the run's identity is taken from a step. */
MUTANTS(a_first_save, 0, save_2, false,
        { "/", true }, { "lock", true }, { "tmp-", false }, { "stage", true },
        { ".sheaf", true }, { "run", true }, { "/", true }, { "tmp-", true },
        { DATA, false }, { DATA, false }, { "config.json", false },
        { "model.safetensors.index", false }, { "optimizer.safetensors.index", false },
        { "sheaf.sums", false }, { "optimizer", false }, { "2-", false },
        { "sheaf.json.tmp", false }, { "2-", false }, { "run", false }, { "stage", false })
MUTANTS(a_prune, 3, prune, true,
        { "trash", true }, { "run", false })    /* what is lost of the trash was to go */
MUTANTS(a_mark, 2, mark_2, true,
        { "tmp-", false }, { "marks", false },
        { ".sheaf", true })     /* .sheaf/marks is as old as the run */

TEST(a_journal_that_outlives_its_rewind_spares_what_was_saved_since)
{
	struct story s;
	char why[400];
	bool fine;

	tell(&s, SIMDISK_STRICT, 4, NULL, 3, rewind_and_save, COUNT(rewind_and_save));
	s.j.skip_fsync = 9;             /* of .sheaf, after the journal was removed */
	s.j.skip_of_deeds = true;
	act(&s);
	CHECK(strcmp(s.j.skipped, ".sheaf") == 0);
	fine = hunt(&s, why);
	if (!fine)
		print_error("%s\n", why);
	simdisk_free(s.j.disk);
	CHECK(fine);
}

int main(int argc, char **argv)
{
	return everycut_main(argc, argv, t_main);
}
