/* SPDX-License-Identifier: Apache-2.0 */
/* Everything a run is asked for, each time without one thing: an allocation, or a call of the
 * disk. All ranks then return one code, with a sentence where it is an error; every step that is
 * there is whole; and the same act, once it has all it needs, succeeds or finds itself done.
 *
 *   test_acts [--long] [part of a test's name ...]
 *
 * A call fails with each error that somebody asks about. Without --long the first of each way to
 * an allocation or a call (its innermost callers) is taken, of those one of three, what an act took
 * before is not taken again, and one of three reads is short; with it all of everything. */
#include "acts.h"
#include <errno.h>
#include <execinfo.h>
#include <stdlib.h>
#include "starve.h"
#include "run_ops.h"

#define main t_main
#include "t.h"
#undef main

static bool all_of_it;                  /* --long */
#define THIN 3
static const int32_t apart[] = { 1, 2 };

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

/* The same in each run of one build: the kernel moves a program about. */
static uint64_t place(const void *at)
{
	extern const char __executable_start[], etext[];
	uintptr_t a = (uintptr_t)at, start = (uintptr_t)__executable_start;

	return a >= start && a < (uintptr_t)etext ? a - start : 1;
}

static void write_down(struct asks *asks, size_t call)
{
	enum { OWN = 3, DEPTH = 5 };
	void *at[OWN + DEPTH];
	int n = backtrace(at, OWN + DEPTH);
	uint64_t way = 1;

	for (int i = OWN - 1; i < n; i++)
		way = (way ^ place(at[i])) * UINT64_C(0x9E3779B97F4A7C15);
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
		less.fault.process = acts_process(h);
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
	struct play p = hands_play(disk, a->ranks, acts_hold);

	p.nodes = a->nodes;
	p.path = "";
	p.opts.keep_last = 1;
	less.act = a->act;
	return p;
}

static int run(struct play *p)
{
	return hands_run(p, act_with_less, false);
}

static unsigned again_n;        /* without --long one of three is done again */

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
	if (hands_run(&after, act_look_after, false) != 0)
		return snprintf(why, 300, "afterwards: %.280s", after.err.msg), why;
	if (p->rc == 0 || (!all_of_it && again_n++ % 3))
		return why;
	after = play_of(a, p->disk);
	if (run(&after) != 0 && !(a->may_be_done && (after.rc == SHEAF_EEXIST ||
	                                                after.rc == SHEAF_ENOENT)))
		snprintf(why, 300, "again: %d: %.280s", after.rc, after.err.msg);
	return why;
}

static int bad_n;

/* false: there was no such thing to take away. */
static bool one(const struct act *a, struct simdisk *base, const char *what, long nth)
{
	struct simdisk *disk = acts_disk_copy(base);
	struct play p = play_of(a, disk);
	char why[300];
	bool fired;

	simdisk_set_trace(disk, false);
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

	if (what / SLOTS % THIN)
		return true;
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

/* Each read of bytes, by a call or by the queue, may find a file shorter than it just was. */
static struct {
	int rank, nth;
} brief;

static void be_brief(struct hand *h)
{
	if (h->rank == brief.rank)
		simdisk_fault(h->play->disk, &(struct simdisk_fault){ .nth = brief.nth,
			.kind = SIMDISK_PREAD, .how = SIMDISK_PART,
			.process = acts_process(h) });
}

static long with_each_read_short(const struct act *a, struct simdisk *base)
{
	long tried = 0;

	for (brief.nth = 1; bad_n < 20; brief.nth += all_of_it ? 1 : THIN) {
		struct simdisk *disk = acts_disk_copy(base);
		struct play p = play_of(a, disk);
		char why[300];
		int fired;

		simdisk_set_trace(disk, false);
		p.tamper = be_brief;
		(void)run(&p);
		fired = simdisk_fired(disk);
		if (*judge(a, &p, why)) {
			print_error("%s: rank %d, read %d is short: %s (%d: %s)\n", a->name,
			            brief.rank, brief.nth, why, p.rc, p.err.msg);
			bad_n++;
		}
		simdisk_free(disk);
		if (!fired)
			break;
		tried++;
	}
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
	struct simdisk *base = acts_disk(a->ranks);
	long allocations = 0, calls = 0, reads = 0;

	bad_n = 0;
	for (less.rank = 0; less.rank < a->ranks && bad_n < 20; less.rank++) {
		struct simdisk *disk = acts_disk_copy(base);
		struct play p = play_of(a, disk);

		less.allocations.n = less.calls.n = 0;
		less.writes = true;
		simdisk_set_turn(disk, call_asked, disk);
		CHECK_RC(run(&p), 0, &p.err);
		less.writes = false;
		allocations += without_each_allocation(a, base);
		calls += without_each_call(a, base, disk);
		simdisk_free(disk);
		brief.rank = less.rank;
		reads += with_each_read_short(a, base);
	}
	printf("# %s, %d ranks: %ld allocations, %ld calls failed, %ld reads were short\n",
	       a->name, a->ranks, allocations, calls, reads);
	simdisk_free(base);
	CHECK_INT(bad_n, 0);
	CHECK(!all_of_it || allocations + calls > 0);
}

#define ACT(name, ranks, nodes, may_be_done)                                           \
	TEST(name##_by_##ranks##_goes_without_each_thing)                                    \
	{                                                                                    \
		each(&(struct act){ #name, act_##name, ranks, nodes, may_be_done });   \
	}
ACT(save, 1, NULL, false)
ACT(save_again, 2, apart, false)
ACT(load, 1, NULL, false)
ACT(load, 2, apart, false)
ACT(take, 1, NULL, false)
ACT(take, 2, apart, false)
ACT(verify, 1, NULL, false)
ACT(verify, 2, NULL, false)
ACT(foreign, 1, NULL, false)
ACT(foreign, 2, apart, false)
ACT(shards, 1, NULL, false)
ACT(file, 1, NULL, false)
ACT(peek, 1, NULL, false)
ACT(plan, 1, NULL, false)
ACT(look, 1, NULL, false)
ACT(prune, 1, NULL, true)
ACT(rewind, 1, NULL, false)
ACT(salvage, 1, NULL, true)
ACT(copy, 1, NULL, false)

int main(int argc, char **argv)
{
	all_of_it = t_takes(&argc, argv, "--long");
	return t_main(argc, argv);
}
