/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that tests of copies, exports and imports share: they write a step while a call or an
 * allocation fails, the process is killed, the power is cut, or the source changes. Include once,
 * in the test's only file, after t.h. The test must be one of `starved` in test/sim/meson.build. */
#ifndef WRITTEN_H
#define WRITTEN_H
#include <errno.h>
#include <stdlib.h>
#include "everycut.h"
#include "jobs.h"
#include "starve.h"
#include "step_open.h"

struct written {                /* the result */
	int rc;
	struct sheaf_error err;
	struct sheaf_report report;
};
typedef int write_fn(struct sheaf_checkpoint *step, struct sheaf_report *report,
                     struct sheaf_error *err);
static long hungry;             /* number of the allocation in write_by that fails; 0: none */

static inline const struct shf_sys *process(struct simdisk *disk)
{
	static uint64_t pid = 95000;

	return simdisk_process(disk, pid++, 0);
}

/* Opens the step at `from` and writes it, in a process that closes what it opened and is then
 * killed. */
static inline struct written write_by(struct simdisk *disk, const struct shf_sys *sys,
                                      const char *from, write_fn *write)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY, .io_threads = 1 };
	struct written w = { .report = { .size = sizeof(w.report) } };
	struct sheaf_checkpoint *step = NULL;

	w.rc = shf_step_open_path(&step, from, NULL, &opts, sys, &w.err);
	starve_left = hungry;
	if (w.rc == 0)
		w.rc = write(step, &w.report, &w.err);
	starve_left = 0;
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return w;
}

/* Returns a disk with step 2 of the run "run". rows, bigs, file_bytes: as in struct job. */
static inline struct simdisk *with_one_step(enum simdisk_model model, int64_t rows, int bigs,
                                            uint64_t file_bytes)
{
	struct simdisk *disk = simdisk_new(5, model);
	struct job j = { .disk = disk, .ranks = 1, .deeds_n = 1, .rows = rows, .bigs = bigs,
		.file_bytes = file_bytes, .group = { .seed = 9 },
		.deeds = { { .kind = DEED_SAVE, .step = 2 } } };

	job_prepare(&j);
	CHECK(job_run(&j));
	CHECK_INT(job_rc(&j), 0);
	return disk;
}

/* Returns whether both directories have a file of this name with the same bytes. */
static inline bool is_same_file(struct simdisk *disk, const char *from, const char *to,
                                const char *name)
{
	char a[300], b[300];
	size_t n, m;
	char *x, *y;
	bool same;

	snprintf(a, sizeof(a), "%s/%s", from, name);
	snprintf(b, sizeof(b), "%s/%s", to, name);
	x = simdisk_get(disk, a, &n);
	y = simdisk_get(disk, b, &m);
	same = x && y && n == m && memcmp(x, y, n) == 0;
	free(x);
	free(y);
	return same;
}

/* Returns a copy of the disk on which `write` was killed when it synced its nth part. */
static inline struct simdisk *killed_in_part(struct simdisk *base, int nth,
                                             struct written (*write)(struct simdisk *disk))
{
	struct simdisk *disk = simdisk_twin(base);

	simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .kind = SIMDISK_FSYNC,
	                                             .how = SIMDISK_KILL, .name = "part-" });
	CHECK(write(disk).rc < 0);
	CHECK_INT(simdisk_fired(disk), 1);
	simdisk_faults_clear(disk);
	return disk;
}
#endif
