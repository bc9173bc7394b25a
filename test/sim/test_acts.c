/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a run is asked for, each time without one thing: an allocation, or a call of the
 * disk. All ranks then return one code, with a sentence where it is an error; every step that is
 * there is whole; and the same act, once it has all it needs, succeeds or finds itself done.
 *
 *   test_acts [--long] [part of a test's name ...]
 *
 * A call fails with each error that somebody asks about. Without --long the first of each
 * way to an allocation or a call (its innermost callers) is taken, and what an act took before is
 * not taken again; with it each allocation and each call. */
#include "hands.h"
#include <errno.h>
#include <execinfo.h>
#include <stdlib.h>
#include "err.h"
#include "simcore.h"
#include "starve.h"

#define main t_main
#include "t.h"
#undef main

static bool all_of_it;                  /* --long */
static const int32_t apart[] = { 1, 2 };

/* ---- what ranks hold, and what they do ---- */

enum { MANY = 12, FILES = 18, NOTES = 18 };

static void rich(struct hand *h)
{
	static const struct sheaf_slice tie = { .family = "model", .name = "head" };
	struct sheaf_slice *s = hand_add(h, "model", "embed", SHEAF_BF16, 2, 61, 37);

	hand_cut(s, 1, h->rank, h->ranks);
	s = hand_add(h, "model", tie.name, SHEAF_BF16, 2, 61, 37);
	hand_cut(s, 1, h->rank, h->ranks);
	s->tied_to = "embed";
	s->data = hand_block(h, 61 * 37 * 2);
	s = hand_add(h, "optimizer", "embed/moment1_0", SHEAF_F32, 2, 61, 37);
	s->flags = SHEAF_FLAT;
	s->flat_start = 61 * 37 * h->rank / h->ranks;
	s->flat_count = 61 * 37 * (h->rank + 1) / h->ranks - s->flat_start;
	s = hand_add(h, "ema", "wide", SHEAF_F32, 2, 8, 700);
	hand_cut(s, 0, h->rank, h->ranks);
	hand_add(h, "model", "scalar", SHEAF_I64, 0);
	hand_add(h, "model", "packed", SHEAF_F4, 2, 8, 64);
	for (int i = 0; i < MANY; i++) {
		char number[12];

		snprintf(number, sizeof(number), "%d", i);
		hand_cut(hand_add(h, "model", hand_text(h, "l.", number), SHEAF_F32, 1, 29 + i),
		         0, h->rank, h->ranks);
	}
}

/* The process of a rank, as the disk knows it. */
static const struct shf_sys *process_of(const struct hand *h)
{
	return &((struct simproc *)h->sys->arg)->sys;
}

static int open_run(struct hand *h, uint32_t flags)
{
	static const char *const ignore[] = { "model/l.7*", NULL };
	struct sheaf_opts o = h->play->opts;

	o.flags = flags;
	o.ignore = ignore;
	o.keep_last = 1;
	o.keep_best = 1;
	o.best_note = "loss";
	o.grace_s = -1;
	o.io_threads = 1;
	return shf_run_open(&h->run, "run", h->group, &o, h->sys, &h->err);
}

static void give(struct hand *h, struct sheaf_save *save)
{
	char name[24];

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "extra-%d.json", (7 * i) % FILES);
		(void)shf_save_attach(save, name, "{}", 2);
	}
	for (int i = 0; h->rank == 0 && i < NOTES; i++) {
		snprintf(name, sizeof(name), "note-%d", (7 * i) % NOTES);
		(void)shf_save_note(save, name, "said");
	}
	(void)shf_save_note(save, "loss", "0.5");
}

static int save_one(struct hand *h, int64_t step)
{
	struct sheaf_save *save = NULL;
	int rc = shf_save_begin(&save, h->run, step, h->state, NULL, &h->err);

	if (rc == 0) {
		give(h, save);
		do {
			rc = shf_save_exchange(save, 10000, &h->err);
		} while (rc == SHEAF_EAGAIN);
	}
	if (rc == 0)
		rc = shf_save_commit(save, -1, &h->err);
	shf_save_free(save);
	return rc;
}

static int save_act(struct hand *h)
{
	int rc = open_run(h, SHEAF_CREATE);

	if (rc == 0)
		rc = save_one(h, 20);
	return rc == SHEAF_EEXIST ? 0 : rc;
}

static int save_again_act(struct hand *h)
{
	int rc = save_act(h);

	if (rc == 0)
		rc = save_one(h, 21);
	return rc == SHEAF_EEXIST ? 0 : rc;
}

static int load_act(struct hand *h)
{
	struct sheaf_step *step = NULL;
	int rc = open_run(h, 0);

	if (rc == 0)
		rc = shf_step_open(&step, h->run, 12, &h->err);
	if (rc == 0)
		rc = shf_step_load(step, h->state, 0, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int verify_act(struct hand *h)
{
	struct sheaf_step *step = NULL;
	int rc = open_run(h, SHEAF_READONLY);

	if (rc == 0)
		rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

static int by_path(struct hand *h, struct sheaf_step **step, const char *path)
{
	struct sheaf_opts o = h->play->opts;

	o.flags = 0;
	return shf_step_open_path(step, path, h->group, &o, h->sys, &h->err);
}

static int foreign_of(struct hand *h, const char *path)
{
	struct sheaf_step *step = NULL;
	const void *bytes;
	size_t n;
	int rc = by_path(h, &step, path);

	if (rc == 0)
		rc = shf_step_load(step, h->state, SHEAF_LENIENT, &h->report, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, &h->report, &h->err);
	rc = rc == SHEAF_EFORMAT ? 0 : rc;
	if (rc == 0 && h->ranks == 1 && step->plain_n)
		rc = shf_step_attached(step, step->plain[0].name, &bytes, &n, &h->err);
	shf_step_put(step);
	return rc;
}

static int foreign_act(struct hand *h) { return foreign_of(h, "hf"); }
static int shards_act(struct hand *h) { return foreign_of(h, "shards"); }
static int file_act(struct hand *h) { return foreign_of(h, "hf/model-00001-of-00002.safetensors"); }

/* ---- of one process alone ---- */

static int peek_act(struct hand *h)
{
	struct sheaf_step *step = NULL;
	const void *bytes;
	size_t n;
	int rc = by_path(h, &step, "run/checkpoint-12");

	for (int i = 0; rc == 0 && i < h->n; i++)
		rc = shf_step_read(step, &h->s[i], &h->err);
	if (rc == 0)
		rc = shf_step_attached(step, "extra-3.json", &bytes, &n, &h->err);
	shf_step_put(step);
	return rc;
}

static int heard(void *arg, const struct sheaf_item *item)
{
	(void)item;
	++*(int *)arg;
	return 0;
}

static int left(void *arg, const struct sheaf_left *l)
{
	(void)l;
	++*(int *)arg;
	return 0;
}

static int look_act(struct hand *h)
{
	int64_t steps[8];
	int n = 0, rc = open_run(h, SHEAF_READONLY);

	if (rc == 0)
		rc = sheaf_run_list(h->run, heard, &n, &h->err);
	if (rc == 0)
		rc = sheaf_run_left(h->run, left, &n, &h->err);
	if (rc == 0) {
		rc = sheaf_run_steps(h->run, steps, 8, &h->err);
		rc = rc > 0 ? 0 : rc;
	}
	return rc;
}

static int prune_act(struct hand *h)
{
	int rc = open_run(h, 0);

	if (rc == 0)
		rc = shf_run_mark(h->run, 10, 'k', &h->err);
	if (rc == 0)
		rc = shf_run_mark(h->run, 10, 0, &h->err);
	if (rc == 0)
		rc = shf_run_prune(h->run, false, NULL, NULL, &h->err);
	return rc > 0 ? 0 : rc;
}

static int rewind_act(struct hand *h)
{
	int rc = open_run(h, 0);

	return rc ? rc : shf_run_rewind(h->run, 10, &h->err);
}

static int salvage_act(struct hand *h)
{
	struct sheaf_opts o = h->play->opts;

	o.flags = 0;
	o.timeout_ms = 1000;
	return shf_run_salvage("run", 13, &o, h->sys, &h->report, &h->err);
}

static int copy_act(struct hand *h)
{
	struct sheaf_step *step = NULL;
	int rc = by_path(h, &step, "run/checkpoint-12");

	if (rc == 0)
		rc = shf_step_copy(step, "other/run", &h->report, &h->err);
	shf_step_put(step);
	return rc;
}

/* ---- one thing less ---- */

struct act {
	const char *name;
	int (*act)(struct hand *h);
	int ranks;
	const int32_t *nodes;
	bool may_be_done;               /* the second time the step is there */
};

struct asked {                  /* a thing that was asked for */
	uint64_t way;                   /* the innermost callers */
	size_t call;                    /* of the disk: its number there */
};
struct asks {
	struct asked *all;
	long n, max;
};
static struct {                 /* what is taken away, of which rank, in which act */
	int rank, (*act)(struct hand *h);
	bool writes;                    /* nothing is: what is asked for is written down */
	long nth;                       /* allocation; 0: none */
	struct simdisk_fault fault;     /* nth 0: none */
	struct asks allocations, calls;
} less;
static _Thread_local bool writes;

static void write_down(struct asks *asks, size_t call)
{
	enum { OWN = 3, DEPTH = 5 };
	void *at[OWN + DEPTH];
	int n = backtrace(at, OWN + DEPTH);
	uint64_t way = 1;

	for (int i = OWN - 1; i < n; i++)
		way = (way ^ (uint64_t)(uintptr_t)at[i]) * UINT64_C(0x9E3779B97F4A7C15);
	if (asks->n == asks->max) {
		asks->max = asks->max ? 2 * asks->max : 1024;
		asks->all = realloc(asks->all, (size_t)asks->max * sizeof(*asks->all));
		if (!asks->all)
			abort();
	}
	asks->all[asks->n++] = (struct asked){ way | 1, call };
}

static void allocation_asked(void)
{
	write_down(&less.allocations, 0);
}

static void call_asked(void *disk)
{
	if (writes)
		write_down(&less.calls, simdisk_calls(disk));
}

static int act_with_less(struct hand *h)
{
	struct simdisk *disk = h->play->disk;
	bool mine = h->rank == less.rank;
	int rc;

	if (mine && less.fault.nth) {
		less.fault.process = process_of(h);
		simdisk_fault(disk, &less.fault);
	}
	starve_left = mine ? less.nth : 0;
	writes = mine && less.writes;
	starve_asked = writes ? allocation_asked : NULL;
	rc = less.act(h);
	shf_run_close(h->run);
	h->run = NULL;
	starve_left = 0;
	writes = false;
	starve_asked = NULL;
	return rc;
}

static struct play play_of(const struct act *a, struct simdisk *disk)
{
	struct play p = hands_play(disk, a->ranks, rich);

	p.nodes = a->nodes;
	p.path = "";            /* acts open what they need */
	less.act = a->act;
	return p;
}

static int run(struct play *p)
{
	return hands_run(p, act_with_less, false);
}

static int damaged(void *arg, const struct sheaf_item *item)
{
	struct hand *h = arg;

	return strcmp(item->state, "damaged") ? 0 : shf_fail(&h->err, SHEAF_ECORRUPT, "%s",
	                                                     item->path);
}

/* Each step that is there has all its files, and the newest is whole. */
static int look_after(struct hand *h)
{
	struct sheaf_opts o = h->play->opts;
	struct sheaf_step *step = NULL;
	int rc;

	o.flags = SHEAF_READONLY;
	rc = shf_run_open(&h->run, "run", NULL, &o, h->sys, &h->err);
	if (rc == 0)
		rc = sheaf_run_list(h->run, damaged, h, NULL);
	if (rc == 0)
		rc = shf_step_open(&step, h->run, SHEAF_LATEST, &h->err);
	if (rc == 0)
		rc = shf_step_verify(step, NULL, &h->err);
	shf_step_put(step);
	return rc;
}

/* "" or what is wrong. */
static const char *judge(const struct act *a, struct play *p, char why[300])
{
	struct play after = hands_play(p->disk, 1, NULL);

	why[0] = '\0';
	if (p->rc > 0)
		snprintf(why, 300, "%s", p->rc == 1 ? "ranks have different codes" :
		         p->rc == 2 ? "the ranks fell out" : "descriptors are open");
	else if (p->rc < 0 && (p->err.code != p->rc || strlen(p->err.msg) < 8))
		snprintf(why, 300, "%d with the words '%.200s' of %d", p->rc, p->err.msg,
		         p->err.code);
	else if (p->rc == SHEAF_EBUG)
		snprintf(why, 300, "%.290s", p->err.msg);
	if (why[0])
		return why;
	less.nth = less.fault.nth = 0;
	simdisk_faults_clear(p->disk);
	simdisk_advance(p->disk, 100000);
	after.path = "";
	if (hands_run(&after, look_after, false) != 0)
		return snprintf(why, 300, "afterwards: %.280s", after.err.msg), why;
	if (p->rc == 0)
		return why;
	after = play_of(a, p->disk);
	if (run(&after) != 0 && !(a->may_be_done && (after.rc == SHEAF_EEXIST ||
	                                                after.rc == SHEAF_ENOENT)))
		snprintf(why, 300, "again: %d: %.280s", after.rc, after.err.msg);
	return why;
}

static struct simdisk *copy_of(struct simdisk *disk, bool trace)
{
	struct simdisk *copy = simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);

	simdisk_set_trace(copy, trace);
	simdisk_advance(copy, 2 * 86400);       /* who died is known to be dead */
	return copy;
}

static int die_at(struct hand *h)
{
	struct simdisk_fault fault = { .nth = 1, .kind = SIMDISK_RENAME, .how = SIMDISK_KILL,
		.name = "13-", .process = process_of(h) };
	int rc = open_run(h, 0);

	simdisk_fault(h->play->disk, &fault);
	(void)(rc ? rc : save_one(h, 13));
	return 0;
}

static void put(struct simdisk *disk, const char *path, const char *text)
{
	CHECK_INT(simdisk_put(disk, path, text, strlen(text)), 0);
}

/* Steps 10, 11, 12; 13 of a writer who died; somebody else's directories. */
static struct simdisk *base_new(int ranks)
{
	static const struct hand_tensor one[] = { { "embed", SHEAF_BF16, 2, { 61, 37 } },
	                                          { "l.0", SHEAF_F32, 1, { 29 } } };
	static const struct hand_tensor two[] = { { "l.1", SHEAF_F32, 1, { 30 } } };
	struct simdisk *disk = simdisk_new(0x5eaf, SIMDISK_STRICT);
	struct play p;

	for (int64_t step = 10; step < 13; step++) {
		p = hands_play(disk, ranks, rich);
		p.step = step;
		p.during = give;
		SAVED(p);
	}
	p = hands_play(disk, 1, rich);
	p.path = "";
	(void)hands_run(&p, die_at, true);
	simdisk_faults_clear(disk);
	for (int i = 0; i < 2; i++) {
		char path[80];
		const char *dir = i ? "shards" : "hf";

		snprintf(path, sizeof(path), "%s/model-00001-of-00002.safetensors", dir);
		hands_file(disk, path, one, 2, 3);
		snprintf(path, sizeof(path), "%s/model-00002-of-00002.safetensors", dir);
		hands_file(disk, path, two, 1, 0);
		snprintf(path, sizeof(path), "%s/config.json", dir);
		put(disk, path, "{}\n");
	}
	put(disk, "hf/model.safetensors.index.json",
	    "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
	    "\"embed\":\"model-00001-of-00002.safetensors\","
	    "\"l.0\":\"model-00001-of-00002.safetensors\","
	    "\"l.1\":\"model-00002-of-00002.safetensors\"}}\n");
	simdisk_settle(disk);
	return disk;
}

static int bad_n;

/* false: there was no such thing to take away. */
static bool one(const struct act *a, struct simdisk *base, const char *what, long nth)
{
	struct simdisk *disk = copy_of(base, false);
	struct play p = play_of(a, disk);
	char why[300];
	bool fired;

	starved = false;
	(void)run(&p);
	fired = starved || simdisk_fired(disk) > 0;
	if (!fired && p.rc != 0)
		print_error("%s: nothing was taken, and %d: %s\n", a->name, p.rc, p.err.msg);
	bad_n += !fired && p.rc != 0;
	if (starved && p.rc != 0 && p.rc != SHEAF_ENOMEM) {
		print_error("%s: rank %d, %s %ld: %d is no ENOMEM: %s\n", a->name, less.rank, what,
		            nth, p.rc, p.err.msg);
		bad_n++;
	} else if (*judge(a, &p, why)) {
		print_error("%s: rank %d, %s %ld (%s): %s (%d: %s)\n", a->name, less.rank, what,
		            nth, strerror(less.fault.error), why, p.rc, p.err.msg);
		bad_n++;
	}
	simdisk_free(disk);
	return fired;
}

/* Was it taken away before, by this act or another? It is now. */
static bool was_tried(uint64_t what)
{
	enum { SLOTS = 1 << 16 };
	static uint64_t known[SLOTS];
	size_t at = what % SLOTS;
	bool was;

	while (known[at] && known[at] != what)
		at = (at + 1) % SLOTS;
	was = known[at] != 0;
	known[at] = what;
	return was;
}

/* Is thing i the first that is come to like this? */
static bool is_first(const struct asks *asks, long i)
{
	long k = 0;

	while (asks->all[k].way != asks->all[i].way)
		k++;
	return k == i;
}

static long without_each_allocation(const struct act *a, struct simdisk *base)
{
	long tried = 0;

	for (long i = 0; i < less.allocations.n && bad_n < 20; i++) {
		if (!all_of_it && was_tried(less.allocations.all[i].way))
			continue;
		less.nth = i + 1;
		tried += one(a, base, "allocation", i + 1);
	}
	less.nth = 0;
	return tried;
}

/* What a call of this name may say, as far as somebody asks what it said. 0 ends it. */
static const int *errors_of(const char *name)
{
	static const struct {
		const char *name;
		int errors[8];
	} all[] = {
		{ "open", { ENOENT, ENOTDIR, ELOOP, EMFILE, EIO, ENOMEM, EEXIST } },
		{ "mkdir", { EEXIST, EIO } },
		{ "rename", { EEXIST, ENOTEMPTY, ENOENT, EIO } },
		{ "fsync", { EIO, EINVAL, ENOTSUP } },
		{ "lock", { EAGAIN, ENOLCK, ENOSYS, ENOTSUP, EINVAL, EIO } },
		{ "stat", { ENOENT, EIO, ENOMEM } },
		{ "list", { ENOENT, EIO, ENOMEM } },
		{ "", { EIO, ENOMEM } },
	};
	size_t i = 0;

	while (!strstr(name, all[i].name))
		i++;
	return all[i].errors;
}

static long without_this_call(const struct act *a, struct simdisk *base, long i, const char *name)
{
	const int *errors = errors_of(name);
	long tried = 0;

	for (int k = 0; errors[k]; k++) {
		uint64_t what = (less.calls.all[i].way ^ (uint64_t)errors[k]) *
		                UINT64_C(0xbf58476d1ce4e5b9) | 1;

		if (!all_of_it && was_tried(what))
			continue;
		less.fault = (struct simdisk_fault){ .nth = (int)i + 1, .error = errors[k] };
		tried += one(a, base, name, i + 1);
	}
	return tried;
}

static long without_each_call(const struct act *a, struct simdisk *base, struct simdisk *done)
{
	char name[24] = "";
	long tried = 0;

	for (long i = 0; i < less.calls.n && bad_n < 20; i++) {
		if (!all_of_it && !is_first(&less.calls, i))
			continue;
		(void)sscanf(simdisk_call_text(done, less.calls.all[i].call), "%*u %23[a-z_]",
		             name);
		tried += without_this_call(a, base, i, name);
	}
	less.fault = (struct simdisk_fault){ .nth = 0 };
	return tried;
}

static void each(const struct act *a)
{
	struct simdisk *base = base_new(a->ranks);
	long allocations = 0, calls = 0;

	bad_n = 0;
	for (less.rank = 0; less.rank < a->ranks && bad_n < 20; less.rank++) {
		struct simdisk *disk = copy_of(base, true);
		struct play p = play_of(a, disk);

		less.allocations.n = less.calls.n = 0;
		less.writes = true;
		simdisk_set_turn(disk, call_asked, disk);
		CHECK_RC(run(&p), 0, &p.err);
		less.writes = false;
		allocations += without_each_allocation(a, base);
		calls += without_each_call(a, base, disk);
		simdisk_free(disk);
	}
	printf("# %s, %d ranks: %ld allocations, %ld calls failed\n", a->name, a->ranks,
	       allocations, calls);
	simdisk_free(base);
	CHECK_INT(bad_n, 0);
	CHECK(less.calls.n > 5);
}

#define ACT(name, ranks, nodes, may_be_done)                                           \
	TEST(name##_by_##ranks##_goes_without_each_thing)                                    \
	{                                                                                    \
		each(&(struct act){ #name, name##_act, ranks, nodes, may_be_done });   \
	}
ACT(save, 1, NULL, false)
ACT(save_again, 2, apart, false)
ACT(load, 1, NULL, false)
ACT(load, 2, apart, false)
ACT(verify, 1, NULL, false)
ACT(verify, 2, NULL, false)
ACT(foreign, 1, NULL, false)
ACT(foreign, 2, apart, false)
ACT(shards, 1, NULL, false)
ACT(file, 1, NULL, false)
ACT(peek, 1, NULL, false)
ACT(look, 1, NULL, false)
ACT(prune, 1, NULL, true)
ACT(rewind, 1, NULL, false)
ACT(salvage, 1, NULL, true)
ACT(copy, 1, NULL, false)

int main(int argc, char **argv)
{
	int n = 1;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--long") == 0)
			all_of_it = true;
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	return t_main(n, argv);
}
