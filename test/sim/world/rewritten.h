/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that tests of exports and imports share, besides written.h. Include once, after it. */
#ifndef REWRITTEN_H
#define REWRITTEN_H
#include "written.h"

static struct changing {        /* a source file that another process changes */
	struct simdisk *disk;
	const char *path;
	bool done;
} changing;

/* A progress function that changes the file once. It rewrites a byte with the same value, so that
 * the file keeps its size, and the next export or import finds it intact. */
static inline int change(void *arg, uint64_t done, uint64_t total)
{
	const struct shf_sys *sys;
	char byte;
	int fd;

	(void)arg;
	(void)total;
	if (!done || changing.done)
		return 0;
	changing.done = true;
	simdisk_advance(changing.disk, 2);
	sys = process(changing.disk);
	fd = shf_sys_open(sys, SHF_CWD, changing.path, SHF_O_WRITE, 0);
	CHECK(fd >= 0);
	CHECK_INT(shf_sys_pread(sys, fd, &byte, 1, 400), 1);
	CHECK_INT(shf_sys_pwrite(sys, fd, &byte, 1, 400), 1);
	CHECK_INT(shf_sys_close(sys, fd), 0);
	return 0;
}

/* A progress function that ends the call after a third of its work. */
static inline int stop_there(void *arg, uint64_t done, uint64_t total)
{
	(void)arg;
	return done >= total / 3;
}

struct rewriting {
	struct written (*write)(struct simdisk *disk, const struct shf_sys *sys);
	const char *to;                 /* the directory that is written */
	/* Fails the test if `to` is not complete. arg: the last member. */
	void (*check)(struct simdisk *disk, const void *arg);
	int least;                      /* minimum number of failures that must be reported */
	const void *arg;
};

/* Lets each of its calls fail. The next attempt succeeds. */
static inline void each_call_may_fail(struct simdisk *base, const struct rewriting *r)
{
	int failed = 0, nth = 1 + t_from(T_STRIDE);
	bool fired = true;

	for (; fired; nth += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(base);
		const struct shf_sys *sys = process(disk);
		struct written w;

		simdisk_set_trace(disk, false);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EACCES,
		                                             .process = sys });
		w = r->write(disk, sys);
		fired = simdisk_fired(disk) > 0;
		simdisk_faults_clear(disk);
		failed += w.rc < 0;
		if (w.rc == SHEAF_EBUG || (w.rc < 0 && strlen(w.err.msg) < 8))
			print_error("call %d: %d %s\n", nth, w.rc, w.err.msg);
		CHECK(w.rc != SHEAF_EBUG && (w.rc == 0 || strlen(w.err.msg) >= 8));
		CHECK(w.rc == 0 || w.rc == SHEAF_EINDOUBT || !simdisk_exists(disk, r->to));
		if (!simdisk_exists(disk, r->to)) {
			w = r->write(disk, process(disk));
			CHECK_RC(w.rc, 0, &w.err);
		}
		r->check(disk, r->arg);
		simdisk_free(disk);
	}
	print_message("# %d calls, %d failures\n", nth / T_STRIDE, failed);
	CHECK(failed >= r->least / T_STRIDE);
}

/* Lets each of its allocations fail. The next attempt succeeds. */
static inline void each_allocation_may_fail(struct simdisk *base, const struct rewriting *r)
{
	int failed = 0;

	for (hungry = 1 + t_from(T_STRIDE);; hungry += T_STRIDE) {
		struct simdisk *disk = simdisk_twin(base);
		struct written w;
		long was = hungry;
		bool fired;

		simdisk_set_trace(disk, false);
		starved = false;
		w = r->write(disk, process(disk));
		fired = starved;
		CHECK(w.rc == 0 || w.rc == SHEAF_ENOMEM);
		CHECK(w.rc == 0 || strlen(w.err.msg) >= 8);
		failed += w.rc < 0;
		hungry = 0;
		if (w.rc < 0)
			w = r->write(disk, process(disk));
		CHECK_RC(w.rc, 0, &w.err);
		r->check(disk, r->arg);
		simdisk_free(disk);
		if (!fired)
			break;
		hungry = was;
	}
	hungry = 0;
	CHECK(failed >= r->least / T_STRIDE);
}

/* ---- power cuts ---- */

struct story {
	uint64_t was;                   /* a hash that the test compares */
	int64_t acked;                  /* the cut at which the call had succeeded */
};

/* Judges the directory or file `to` after a cut: it exists completely, with the hash story->was, or
 * `again` makes it. A cut may leave an export's marker file in a directory. */
static inline const char *judge_hash(const struct story *story, struct simdisk *disk, int64_t cut,
                                     char why[300], const char *to,
                                     struct written (*again)(struct simdisk *disk))
{
	char mark[200];

	if (!simdisk_exists(disk, to)) {
		struct written w;

		if (cut >= story->acked)
			return snprintf(why, 300, "what was written is gone"), why;
		w = again(disk);
		if (w.rc < 0)
			return snprintf(why, 300, "the next export: %.200s", w.err.msg), why;
	}
	snprintf(mark, sizeof(mark), "%s/.sheaf-export", to);
	(void)simdisk_remove(disk, mark);
	if (simdisk_hash(disk, to) != story->was)
		return snprintf(why, 300, "%s is not whole", to), why;
	return "";
}

/* Returns the hash of what `write` makes at `to`, on a copy of the disk. */
static inline uint64_t hash_of(struct simdisk *base, const char *to,
                               struct written (*write)(struct simdisk *disk))
{
	struct simdisk *disk = simdisk_twin(base);
	struct written w = write(disk);
	uint64_t hash;

	CHECK_RC(w.rc, 0, &w.err);
	hash = simdisk_hash(disk, to);
	CHECK(hash != 0);
	simdisk_free(disk);
	return hash;
}

static inline uint64_t promised(const void *story, int64_t cut)
{
	return cut >= ((const struct story *)story)->acked;
}

/* Cuts the power after each stride-th call on this disk, on which the call has just succeeded. */
static inline void hunt_cuts(struct simdisk *disk, struct story *story, int stride,
                             const char *(*judge)(const void *story, struct simdisk *disk,
                                                  int64_t cut, char why[300]))
{
	struct everycut_hunt hunt = { .disk = disk, .all_max = 2, .small_max = 1, .seeded = 3,
		.stride = (size_t)stride, .promised = promised, .judge = judge, .story = story };
	char why[400];

	story->acked = (int64_t)simdisk_cut_n(disk) - 1;
	if (!everycut_hunt(&hunt, why))
		fail_msg("%s", why);
}
#endif
