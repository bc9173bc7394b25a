/* SPDX-License-Identifier: Apache-2.0 */
/* Pruning, rewinding, marking and closing a run (lib/engine/run_ops.c), on two simulated ranks. */
#include "err.h"
#include "list.h"
#include "save.h"
#include "simdisk.h"
#include "simgroup.h"
#include <errno.h>
#include <stdlib.h>
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "run_ops.h"
#include "step_open.h"
#include "load.h"
#include "sheaf-admin.h"
enum { RANKS = 2, ITEMS = 64 };

struct world {
	struct simdisk *disk;
	const struct shf_sys *sys[RANKS];
	struct shf_opts opts;
	int (*play)(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err);
	char kept[64], gone[64];        /* what rank 0's item heard: step digits */
	char why[500];
	const char *noted;              /* val.loss of what is saved; NULL: none */
	int heard_elsewhere;
	bool dies;                      /* the job, when it has played */
	uint64_t load_flags;
	int64_t loaded;                 /* which step load_latest found */
	char log[2000];                 /* warnings of rank 0 */
};
static const struct world *playing;

static int play_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int rc = shf_run_open(&run, "run", group, &w->opts, w->sys[rank], &err);

	if (rc == 0)
		rc = w->play(w, rank, run, &err);
	if (rc < 0 && !w->why[0])
		snprintf(w->why, sizeof(w->why), "rank %d: %.400s", rank, err.msg);
	if (w->dies)
		simdisk_kill(w->disk, w->sys[rank]);    /* what follows frees memory only */
	if (run)
		shf_run_close(run);
	return rc;
}

/* One job: opens, plays, closes. What both ranks returned. */
static int play(struct world *w, int (*fn)(struct world *, int, struct sheaf_run *,
                                           struct sheaf_error *))
{
	static uint64_t pid = 500, seed = 1;
	struct simgroup_opts o = { .seed = seed++, .ranks = RANKS };
	int results[RANKS];

	w->play = fn;
	playing = w;
	w->why[0] = w->kept[0] = w->gone[0] = w->log[0] = '\0';
	for (int r = 0; r < RANKS; r++)
		w->sys[r] = simdisk_process(w->disk, pid++, 0);
	CHECK_INT(simgroup_run(&o, play_rank, w, results), 0);
	CHECK_INT(results[0], results[1]);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(simdisk_open_n(w->sys[r]), 0);
		simdisk_kill(w->disk, w->sys[r]);
	}
	if (results[0] < 0 && w->why[0])
		print_message("%s\n", w->why);
	return results[0];
}

static void world_init(struct world *w)
{
	*w = (struct world){ .disk = simdisk_new(7, SIMDISK_STRICT),
		.opts = { .flags = SHEAF_RUN_CREATE, .timeout_ms = 60000,
		          .grace_s = -1 } };
}

static int save(int rank, struct sheaf_run *run, int64_t step, bool commit, struct sheaf_error *err)
{
	float data[ITEMS] = { (float)step };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { RANKS * ITEMS }, .start = { rank * ITEMS }, .count = { ITEMS },
		.data = data };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_save *sv = NULL;
	int rc;

	(void)shf_state_add(st, &s, NULL);
	rc = shf_save_begin(&sv, run, step, st, NULL, err);
	if (rc == 0 && playing && playing->noted)
		rc = shf_save_note(sv, "val.loss", playing->noted, NULL);
	if (rc == 0 && commit)
		rc = shf_save_commit(sv, -1, err);
	if (!commit && playing && playing->dies)
		simdisk_kill(playing->disk, playing->sys[rank]);
	if (commit || (playing && playing->dies))
		shf_save_free(sv);
	shf_state_put(st);
	return rc;
}

static int save_four(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = 0;

	(void)w;
	for (int64_t step = 1; step <= 4 && rc == 0; step++)
		rc = save(rank, run, step, true, err);
	return rc;
}

static bool has(struct world *w, int step)
{
	char path[80];
	void *bytes;
	size_t n;

	snprintf(path, sizeof(path), "run/checkpoint-%d/sheaf.json", step);
	bytes = simdisk_get(w->disk, path, &n);
	free(bytes);
	return bytes != NULL;
}

struct ear {
	struct world *w;
	int rank;
};

static void hear(void *arg, int64_t step, int32_t action, const char *why)
{
	struct ear *e = arg;
	char *to = action == SHEAF_PRUNE_REMOVE ? e->w->gone : e->w->kept;
	size_t n = strlen(to);

	(void)why;
	e->w->heard_elsewhere += e->rank != 0;
	to[n] = (char)('0' + step);
	to[n + 1] = '\0';
}

static int prune(struct world *w, int rank, struct sheaf_run *run, bool dry,
                 struct sheaf_error *err)
{
	struct ear e = { w, rank };

	return shf_run_prune(run, dry, hear, &e, err);
}

static int prune_dry(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	return prune(w, rank, run, true, err);
}

static int prune_real(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	return prune(w, rank, run, false, err);
}

TEST(a_dry_prune_tells_what_a_real_one_then_does)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	w.opts.keep_last = 2;
	CHECK_INT(play(&w, prune_dry), 2);
	CHECK_STR(w.gone, "12");
	CHECK_STR(w.kept, "34");
	CHECK(has(&w, 1) && has(&w, 2) && has(&w, 3) && has(&w, 4));
	CHECK_INT(play(&w, prune_real), 2);
	CHECK_STR(w.gone, "12");
	CHECK_STR(w.kept, "34");
	CHECK(!has(&w, 1) && !has(&w, 2) && has(&w, 3) && has(&w, 4));
	CHECK_INT(play(&w, prune_real), 0);
	CHECK_INT(w.heard_elsewhere, 0);
	simdisk_free(w.disk);
}

static void spoil(struct world *w, int step)
{
	char path[100];
	uint8_t *bytes;
	size_t n;

	snprintf(path, sizeof(path), "run/checkpoint-%d/model-00001-of-00001.safetensors", step);
	bytes = simdisk_get(w->disk, path, &n);
	CHECK(bytes != NULL && n > 4100);
	bytes[4100] ^= 1;
	(void)simdisk_put(w->disk, path, bytes, n);
	free(bytes);
}

TEST(nothing_goes_when_the_newest_step_is_not_sound)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	spoil(&w, 4);
	w.opts.keep_last = 1;
	CHECK_INT(play(&w, prune_real), SHEAF_ECORRUPT);
	CHECK(has(&w, 1) && has(&w, 2) && has(&w, 3) && has(&w, 4));
	simdisk_free(w.disk);
}

static int mark_keep_1(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_mark(run, 1, SHEAF_MARK_KEEP, err);
}

static int mark_bad_4(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_mark(run, 4, SHEAF_MARK_BAD, err);
}

TEST(marks_keep_and_condemn)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, mark_keep_1), 0);
	CHECK_INT(play(&w, mark_bad_4), 0);
	spoil(&w, 4);                   /* so 3 dominates, not 4 */
	w.opts.keep_last = 1;
	CHECK_INT(play(&w, prune_real), 1);
	CHECK_STR(w.gone, "2");
	CHECK(has(&w, 1) && has(&w, 3) && has(&w, 4));
	simdisk_free(w.disk);
}

static int marks_differ(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	return shf_run_mark(run, rank, SHEAF_MARK_KEEP, err);
}

static int mark_wrong(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	return shf_run_mark(run, 1, rank ? 'x' : SHEAF_MARK_KEEP, err);
}

static int rewinds_differ(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	return shf_run_rewind(run, 1 + rank, err);
}

static int prunes_differ(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	return shf_run_prune(run, rank == 0, NULL, NULL, err);
}

TEST(ranks_that_ask_for_different_things_are_all_told)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, marks_differ), SHEAF_EINVAL);
	CHECK_INT(play(&w, mark_wrong), SHEAF_EINVAL);
	CHECK_INT(play(&w, rewinds_differ), SHEAF_EINVAL);
	CHECK_INT(play(&w, prunes_differ), SHEAF_EINVAL);
	CHECK(has(&w, 1) && has(&w, 2) && has(&w, 3) && has(&w, 4));
	simdisk_free(w.disk);
}

static int rewind_to_2(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = shf_run_rewind(run, 2, err);

	(void)w;
	if (rc == 0 && (run->lineage.parent != 2 || strlen(run->lineage.parent_session) != 32))
		rc = shf_fail(err, SHEAF_EBUG, "parent %d", (int)run->lineage.parent);
	return rc ? rc : save(rank, run, 3, true, err);
}

static int list_parent(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_list list;
	int rc = rank ? 0 : shf_store_list(&run->store, &list, err);

	if (rank || rc < 0)
		return rc;
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].state == SHF_COMMITTED)
			snprintf(w->kept + strlen(w->kept), 10, "%d<%d ", (int)list.entries[i].step,
			         (int)list.entries[i].parent);
		else if (list.entries[i].state == SHF_ASIDE)
			snprintf(w->gone + strlen(w->gone), 10, "%d ", (int)list.entries[i].step);
	shf_list_release(&list);
	return 0;
}

static int save_3_again(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = shf_run_rewind(run, 1, err);

	(void)w;
	rc = rc ? rc : save(rank, run, 5, true, err);
	return rc ? rc : save(rank, run, 3, true, err);
}

TEST(a_step_older_than_the_newest_is_not_saved)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, save_3_again), SHEAF_EINVAL);
	CHECK(strstr(w.why, "step 3 is older than step 5"));
	CHECK(has(&w, 5) && !has(&w, 3));
	simdisk_free(w.disk);
}

static int load_2(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	float data[ITEMS] = { 0 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { RANKS * ITEMS }, .start = { rank * ITEMS }, .count = { ITEMS },
		.data = data };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_checkpoint *step = NULL;
	int rc;

	(void)w;
	(void)shf_state_add(st, &s, NULL);
	rc = shf_step_open(&step, run, 2, err);
	rc = rc ? rc : shf_step_load(step, st, 0, NULL, err);
	if (rc == 0 && data[0] != 2)
		rc = shf_fail(err, SHEAF_EBUG, "loaded %f", (double)data[0]);
	shf_step_put(step);
	shf_state_put(st);
	return rc;
}

static int load_2_and_save(struct world *w, int rank, struct sheaf_run *run,
                           struct sheaf_error *err)
{
	int rc = load_2(w, rank, run, err);

	return rc ? rc : save(rank, run, 5, true, err);
}

static int load_2_and_prune(struct world *w, int rank, struct sheaf_run *run,
                            struct sheaf_error *err)
{
	int rc = load_2(w, rank, run, err);

	return rc ? rc : prune(w, rank, run, false, err);
}

TEST(who_loaded_an_older_step_rewinds_before_saving)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, load_2_and_save), SHEAF_EINVAL);
	CHECK(strstr(w.why, "step 2 was loaded"));
	CHECK(has(&w, 4) && !has(&w, 5));
	simdisk_free(w.disk);
}

TEST(the_loaded_step_is_never_pruned)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	w.opts.keep_last = 1;
	CHECK_INT(play(&w, load_2_and_prune), 2);
	CHECK_STR(w.gone, "13");
	CHECK_STR(w.kept, "24");
	CHECK(has(&w, 2) && has(&w, 4));
	simdisk_free(w.disk);
}

TEST(saving_goes_on_from_where_it_was_rewound_to)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, rewind_to_2), 0);
	CHECK_INT(play(&w, list_parent), 0);
	CHECK_STR(w.kept, "1<-1 2<1 3<2 ");
	CHECK_STR(w.gone, "3 4 ");
	simdisk_free(w.disk);
}

static int rewind_to_none(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	(void)w;
	(void)rank;
	return shf_run_rewind(run, 9, err);
}

static int rewind_while_saving(struct world *w, int rank, struct sheaf_run *run,
                               struct sheaf_error *err)
{
	struct sheaf_save *first;
	int rc = save(rank, run, 5, false, err);

	(void)w;
	first = run->saves.first;
	if (rc == 0)
		rc = shf_run_rewind(run, 2, err);
	shf_save_free(first);
	return rc;
}

TEST(a_rewind_needs_a_step_and_no_save_under_way)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	CHECK_INT(play(&w, rewind_to_none), SHEAF_ENOENT);
	CHECK_INT(play(&w, rewind_while_saving), SHEAF_EINVAL);
	CHECK(has(&w, 3) && has(&w, 4));
	simdisk_free(w.disk);
}

static int all_refused(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = shf_run_rewind(run, 1, err);

	(void)rank;
	if (rc == SHEAF_EINVAL)
		rc = shf_run_mark(run, 1, SHEAF_MARK_KEEP, err);
	if (rc == SHEAF_EINVAL)
		rc = prune(w, rank, run, false, err);
	return rc;
}

TEST(a_run_open_for_reading_changes_nothing)
{
	struct world w;

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	w.opts.flags = SHEAF_RUN_READONLY;
	w.opts.keep_last = 1;
	CHECK_INT(play(&w, all_refused), SHEAF_EINVAL);
	CHECK_INT(play(&w, prune_dry), 3);
	CHECK(has(&w, 1) && has(&w, 2) && has(&w, 3) && has(&w, 4));
	simdisk_free(w.disk);
}

static struct sheaf_save *left[RANKS];

static int leave_a_save(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = save(rank, run, 5, false, err);

	(void)w;
	left[rank] = run->saves.first;
	return rc;
}

static int after_close(void *arg, int rank, struct sheaf_group *group)
{
	struct world *w = arg;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	int rc = shf_run_open(&run, "run", group, &w->opts, w->sys[rank], &err);

	if (rc == 0)
		rc = leave_a_save(w, rank, run, &err);
	shf_run_close(run);
	if (rc == 0 && shf_save_commit(left[rank], -1, &err) >= 0)
		rc = 1;
	shf_save_free(left[rank]);
	return rc;
}

TEST(closing_gives_up_what_was_not_committed)
{
	struct simgroup_opts o = { .seed = 3, .ranks = RANKS };
	struct world w;
	int results[RANKS];

	world_init(&w);
	CHECK_INT(play(&w, save_four), 0);
	for (int r = 0; r < RANKS; r++)
		w.sys[r] = simdisk_process(w.disk, 900 + (uint64_t)r, 0);
	CHECK_INT(simgroup_run(&o, after_close, &w, results), 0);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(results[r], 0);
		CHECK_INT(simdisk_open_n(w.sys[r]), 0);
	}
	CHECK(!has(&w, 5));
	CHECK_INT(play(&w, prune_dry), 0);      /* the lock is free */
	simdisk_free(w.disk);
}

TEST(a_forked_child_gives_up_its_copies_and_leaves_the_lock)
{
	struct world w;
	struct sheaf_run *run = NULL;
	struct sheaf_error err = { 0 };
	const struct shf_sys *child, *far;
	struct shf_store store;
	struct shf_queue *queue;
	size_t open_n;

	world_init(&w);
	w.sys[0] = simdisk_process(w.disk, 40, 0);
	CHECK_RC(shf_run_open(&run, "run", NULL, &w.opts, w.sys[0], &err), 0, &err);
	open_n = simdisk_open_n(w.sys[0]);
	queue = run->io.queue;
	CHECK(open_n > 0);
	child = simdisk_fork(w.disk, w.sys[0], 41);
	simdisk_act_as(w.sys[0], child);
	shf_run_close(run);
	simdisk_act_as(w.sys[0], NULL);
	CHECK_INT(simdisk_open_n(w.sys[0]), open_n);
	CHECK_INT(simdisk_open_n(child), 0);
	shf_sys_queue_free(w.sys[0], queue); /* the parent's threads */
	/* Another node's job cannot ask after the owner: to it only the lock counts. */
	far = simdisk_process(w.disk, 42, 1);
	CHECK_RC(shf_store_own(&store, far, "run", false, 0, &err), SHEAF_EBUSY, &err);
	simdisk_kill(w.disk, w.sys[0]);
	CHECK_RC(shf_store_own(&store, far, "run", false, 0, &err), 0, &err);
	shf_store_close(&store);
	simdisk_free(w.disk);
}

/* A data loader forked while an old step was open has what keeps that step from being pruned. */
static int prune_after_a_fork(struct world *w, int rank, struct sheaf_run *run,
                              struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = NULL;
	int rc = save(rank, run, 1, true, err);

	if (rc == 0)
		rc = shf_step_open(&step, run, 1, err);
	if (rc == 0)
		simdisk_fork(w->disk, w->sys[rank], 9000 + (uint64_t)rank);
	shf_step_put(step);
	for (int64_t n = 2; n <= 4 && rc == 0; n++)
		rc = save(rank, run, n, true, err);
	return rc;
}

TEST(a_step_that_is_closed_can_be_pruned_whatever_children_were_forked)
{
	struct world w;

	world_init(&w);
	w.opts.keep_last = 3;
	CHECK_INT(play(&w, prune_after_a_fork), 0);
	CHECK(!simdisk_exists(w.disk, "run/checkpoint-1"));
	CHECK(simdisk_exists(w.disk, "run/checkpoint-2"));
	simdisk_free(w.disk);
}

static int commit_prunes(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = 0;

	(void)w;
	for (int64_t step = 1; step <= 6 && rc == 0; step++)
		rc = save(rank, run, step, true, err);
	return rc;
}

/* Each with a note of its own: its number modulo 3. */
static int commit_with_notes(struct world *w, int rank, struct sheaf_run *run,
                             struct sheaf_error *err)
{
	int rc = 0;

	for (int64_t step = 1; step <= 8 && rc == 0; step++) {
		w->noted = step % 3 == 0 ? "0.0" : step % 3 == 1 ? "1e0" : "2";
		rc = save(rank, run, step, true, err);
	}
	return rc;
}

TEST(commits_keep_the_best)
{
	struct world w;

	world_init(&w);
	w.opts.keep_last = 1;
	w.opts.keep_best = 2;
	w.opts.best_note = "val.loss";
	CHECK_INT(play(&w, commit_with_notes), 0);
	CHECK(has(&w, 3) && has(&w, 6) && has(&w, 8));
	CHECK(!has(&w, 1) && !has(&w, 2) && !has(&w, 4) && !has(&w, 5));
	w.opts.best_largest = 1;
	w.opts.keep_best = 1;
	CHECK_INT(play(&w, prune_real), 2 + has(&w, 7));
	CHECK(!has(&w, 3) && !has(&w, 6) && has(&w, 8));
	w.opts.best_note = "no key!";
	CHECK_INT(play(&w, prune_real), SHEAF_EINVAL);
	w.opts.best_note = NULL;
	CHECK_INT(play(&w, prune_real), SHEAF_EINVAL);
	simdisk_free(w.disk);
}

TEST(commits_prune_by_the_rules_of_the_run)
{
	struct world w;

	world_init(&w);
	w.opts.keep_last = 2;
	w.opts.keep_every = 3;
	CHECK_INT(play(&w, commit_prunes), 0);
	CHECK(!has(&w, 1) && !has(&w, 2) && has(&w, 3) && !has(&w, 4) && has(&w, 5) && has(&w, 6));
	simdisk_free(w.disk);
}

/* ---- tries ---- */

static void hear_log(void *arg, int level, const char *line)
{
	struct world *w = arg;
	size_t n = strlen(w->log);

	if (level <= 1)
		snprintf(w->log + n, sizeof(w->log) - n, "%s\n", line);
}

static int load(struct world *w, int rank, struct sheaf_run *run, int64_t n, int64_t items,
                struct sheaf_error *err)
{
	float data[ITEMS] = { 0 };
	struct sheaf_slice s = { .size = sizeof(s), .name = "w", .dtype = SHEAF_F32, .ndim = 1,
		.shape = { items }, .start = { rank * ITEMS }, .count = { ITEMS }, .data = data };
	struct sheaf_state *st = shf_state_new();
	struct sheaf_checkpoint *step = NULL;
	int rc;

	(void)shf_state_add(st, &s, NULL);
	rc = shf_step_open(&step, run, n, err);
	if (rc == 0) {
		w->loaded = step->number;
		rc = shf_step_load(step, st, w->load_flags, NULL, err);
	}
	if (rc == 0 && rank == 0 && !(w->load_flags & SHEAF_LOAD_DRY) &&
	    data[0] != (float)step->number)
		rc = shf_fail(err, SHEAF_EBUG, "not the values of step %d", (int)step->number);
	shf_step_put(step);
	shf_state_put(st);
	return rc;
}

static int load_latest(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	int rc = load(w, rank, run, SHEAF_LATEST, RANKS * ITEMS, err);

	/* A second look in the same session finds the same. */
	if (rc == 0)
		rc = load(w, rank, run, SHEAF_LATEST, RANKS * ITEMS, err);
	return rc;
}

static int load_and_save_5(struct world *w, int rank, struct sheaf_run *run,
                           struct sheaf_error *err)
{
	int rc = load_latest(w, rank, run, err);

	return rc ? rc : save(rank, run, 5, true, err);
}

static int load_another_shape(struct world *w, int rank, struct sheaf_run *run,
                              struct sheaf_error *err)
{
	return load(w, rank, run, SHEAF_LATEST, RANKS * ITEMS + 1, err);
}

static int tries_of(struct world *w, int step)
{
	const struct shf_sys *sys = simdisk_process(w->disk, 7777, 0);
	struct sheaf_error err;
	struct shf_store s;
	struct shf_list list;
	int tries = -1;

	CHECK_RC(shf_store_open(&s, sys, "run", &err), 0, &err);
	CHECK_RC(shf_store_list(&s, &list, &err), 0, &err);
	for (size_t i = 0; i < list.n; i++)
		if (list.entries[i].step == step && list.entries[i].state == SHF_COMMITTED)
			tries = list.entries[i].tries;
	shf_list_release(&list);
	shf_store_close(&s);
	simdisk_kill(w->disk, sys);
	return tries;
}

static void four_steps(struct world *w)
{
	world_init(w);
	CHECK_INT(play(w, save_four), 0);
	w->opts.log = hear_log;
	w->opts.arg = w;
}

TEST(jobs_that_die_of_a_step_condemn_nothing_by_default)
{
	struct world w;

	four_steps(&w);
	w.dies = true;
	for (int i = 0; i < 4; i++) {
		CHECK_INT(play(&w, load_latest), 0);
		CHECK_INT(w.loaded, 4);
		CHECK_INT(tries_of(&w, 4), i + 1);
	}
	CHECK_INT(play(&w, load_and_save_5), 0);
	CHECK_INT(w.loaded, 4);
	CHECK(has(&w, 5));
	simdisk_free(w.disk);
}

static int load_and_save_4(struct world *w, int rank, struct sheaf_run *run,
                           struct sheaf_error *err)
{
	int rc = load_latest(w, rank, run, err);

	return rc ? rc : save(rank, run, 4, true, err);
}

TEST(whoever_goes_on_from_an_older_step_saves_the_number_of_a_condemned_one)
{
	struct world w;

	four_steps(&w);
	w.opts.resume_attempts_max = 1;
	w.dies = true;
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(play(&w, load_and_save_4), 0);
	CHECK_INT(w.loaded, 3);
	/* And the new one is the latest, nobody's failure, also for who does not use the option. */
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(w.loaded, 4);
	w.opts.resume_attempts_max = 0;
	CHECK_INT(play(&w, load_and_save_5), 0);
	CHECK_INT(w.loaded, 4);
	simdisk_free(w.disk);
}

/* Begun, and gone before the commit. */
static int load_and_begin_5(struct world *w, int rank, struct sheaf_run *run,
                            struct sheaf_error *err)
{
	int rc = load_latest(w, rank, run, err);

	return rc ? rc : save(rank, run, 5, false, err);
}

TEST(a_save_that_has_its_stage_forgets_the_tries)
{
	struct world w;

	four_steps(&w);
	w.dies = true;
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(tries_of(&w, 4), 1);
	CHECK_INT(play(&w, load_and_begin_5), 0);
	CHECK_INT(tries_of(&w, 4), 0);
	simdisk_free(w.disk);
}

TEST(a_step_that_so_many_jobs_died_of_is_passed_over_by_the_next)
{
	struct world w;

	four_steps(&w);
	w.opts.resume_attempts_max = 2;
	w.dies = true;
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(w.loaded, 4);
	CHECK_INT(tries_of(&w, 4), 1);
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(w.loaded, 4);
	CHECK(strstr(w.log, "step 4 is loaded again, after 1 job resumed from it"));
	CHECK_INT(tries_of(&w, 4), 2);
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(w.loaded, 3);
	CHECK(strstr(w.log, "checkpoint-4: skipped: 2 jobs resumed from it"));
	CHECK_INT(tries_of(&w, 3), 1);
	w.dies = false;
	CHECK_INT(play(&w, load_and_save_5), 0);
	CHECK_INT(w.loaded, 3);
	CHECK_INT(tries_of(&w, 3), 0);
	CHECK_INT(tries_of(&w, 5), 0);
	CHECK_INT(tries_of(&w, 4), 2);
	simdisk_free(w.disk);
}

TEST(a_commit_or_a_close_forgets_the_tries)
{
	struct world w;

	four_steps(&w);
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(tries_of(&w, 4), 0);
	w.dies = true;
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(tries_of(&w, 4), 1);
	CHECK_INT(play(&w, load_and_save_5), 0);        /* dies after the commit */
	CHECK_INT(tries_of(&w, 4), 0);
	CHECK_INT(tries_of(&w, 5), 0);
	simdisk_free(w.disk);
}

TEST(what_is_no_try_is_not_counted)
{
	struct world w;

	four_steps(&w);
	w.dies = true;
	w.load_flags = SHEAF_LOAD_DRY;
	CHECK_INT(play(&w, load_latest), 0);
	w.load_flags = 0;
	CHECK_INT(play(&w, load_another_shape), SHEAF_ELAYOUT);
	w.opts.flags = SHEAF_RUN_READONLY;
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(play(&w, load_latest), 0);
	CHECK_INT(tries_of(&w, 4), 0);
	CHECK(!simdisk_exists(w.disk, "run/.sheaf/tries"));
	simdisk_free(w.disk);
}

static int load_4(struct world *w, int rank, struct sheaf_run *run, struct sheaf_error *err)
{
	return load(w, rank, run, 4, RANKS * ITEMS, err);
}

TEST(a_try_is_durable_before_a_tensor_is_read)
{
	struct simdisk *crashed;
	struct world w;
	size_t cut = SIZE_MAX;

	four_steps(&w);
	w.dies = true;
	simdisk_settle(w.disk);
	CHECK_INT(play(&w, load_4), 0);
	/* All that was written was written before the last read of the tensors' file, and what of
	 * it survives a cut without help is the count. */
	for (size_t i = 0; i < simdisk_calls(w.disk); i++)
		if (strstr(simdisk_call_text(w.disk, i), "pread") &&
		    strstr(simdisk_call_text(w.disk, i), "safetensors"))
			cut = i;
	CHECK(cut != SIZE_MAX);
	for (size_t c = 0; c < simdisk_cut_n(w.disk); c++)
		CHECK(simdisk_cut_call(w.disk, c) <= cut);
	crashed = simdisk_crash(w.disk, simdisk_cut_n(w.disk) - 1, NULL);
	simdisk_free(w.disk);
	w.disk = crashed;
	CHECK_INT(tries_of(&w, 4), 1);
	simdisk_free(w.disk);
}

TEST(no_failure_of_counting_stops_a_load_or_a_commit)
{
	static const int errors[] = { ENOSPC, EROFS, EIO };
	static const char *const names[] = { "tries", "4-" };
	int n = 0, said = 0;

	for (int i = 0; i < 6; i++)
		for (int nth = 1, more = 1; more; nth++) {
			struct world w;

			four_steps(&w);
			simdisk_fault(w.disk, &(struct simdisk_fault){
			                              .nth = nth, .error = errors[i % 3],
			                              .name = names[i / 3], .always = nth % 2 });
			CHECK_INT(play(&w, load_and_save_5), 0);
			CHECK_INT(w.loaded, 4);
			more = simdisk_fired(w.disk);
			simdisk_faults_clear(w.disk);
			CHECK(has(&w, 5));
			said += strstr(w.log, "recorded") != NULL;
			n++;
			simdisk_free(w.disk);
		}
	CHECK(n > 20 && said > 10);
	printf("# %d faults, %d of them said\n", n, said);
}
