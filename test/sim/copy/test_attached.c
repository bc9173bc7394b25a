/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files, which are whatever somebody gave to a step: copied and verified in the memory of
 * a chunk, however long they are. */
#include <stdlib.h>
#include "sheaf-inspect.h"
#include "step.h"
#include "err.h"
#include "mem.h"
#include "save.h"
#include "simdisk.h"
#include "t.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_end.h"
#include "save_attach.h"
#include "state.h"
#include "step_open.h"
#include "verify_step.h"
#include "step_copy.h"
#include "run_ops.h"

#define FROM "run/checkpoint-2"
#define CHUNK ((size_t)4 << 20)
enum { FILES = 4 };
static const char *const names[FILES] = { "empty.txt", "large.bin", "pages.bin", "small.txt" };
static const size_t sizes[FILES] = { 0, (size_t)23 << 20, 3 * CHUNK, 11 };

/* ---- the largest allocation, or buffer ---- */

static size_t most;

void *__real_shf_alloc(size_t n, size_t size);
void *__real_shf_zalloc(size_t n, size_t size);
void *__real_shf_realloc(void *p, size_t n, size_t size);
void *__wrap_shf_alloc(size_t n, size_t size);
void *__wrap_shf_zalloc(size_t n, size_t size);
void *__wrap_shf_realloc(void *p, size_t n, size_t size);

void __real_shf_buf_add(struct shf_buf *b, const void *p, size_t n);
int __real_shf_buf_reserve(struct shf_buf *b, size_t more);
void __wrap_shf_buf_add(struct shf_buf *b, const void *p, size_t n);
int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more);

static void asked(size_t bytes)
{
	most = bytes > most ? bytes : most;
}

void *__wrap_shf_alloc(size_t n, size_t size)
{
	asked(n * size);
	return __real_shf_alloc(n, size);
}

void *__wrap_shf_zalloc(size_t n, size_t size)
{
	asked(n * size);
	return __real_shf_zalloc(n, size);
}

void *__wrap_shf_realloc(void *p, size_t n, size_t size)
{
	asked(n * size);
	return __real_shf_realloc(p, n, size);
}

void __wrap_shf_buf_add(struct shf_buf *b, const void *p, size_t n)
{
	asked(b->len + n);
	__real_shf_buf_add(b, p, n);
}

int __wrap_shf_buf_reserve(struct shf_buf *b, size_t more)
{
	asked(b->len + more);
	return __real_shf_buf_reserve(b, more);
}

/* ---- a step ---- */

static const struct shf_sys *process(struct simdisk *disk)
{
	static uint64_t pid = 60000;

	return simdisk_process(disk, pid++, 0);
}

/* One tensor of so many items, and the files. */
static struct simdisk *saved(int64_t items)
{
	struct simdisk *disk = simdisk_new(0xa77, SIMDISK_EXT4);
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE,
	                           .io_threads = 1 };
	const struct shf_sys *sys = process(disk);
	struct sheaf_slice slice = { .size = sizeof(slice), .name = "w", .dtype = SHEAF_F32,
		.family = "model", .ndim = 1, .shape = { items }, .count = { items } };
	float *values = calloc((size_t)items, sizeof(*values));
	uint8_t *bytes = calloc(1, sizes[1]);
	struct sheaf_state *state = shf_state_new();
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;
	struct sheaf_error err;

	CHECK(values && bytes);
	for (size_t i = 0; i < sizes[1]; i += 4097)
		bytes[i] = (uint8_t)(i >> 12);
	slice.data = values;
	CHECK(shf_state_add(state, &slice, NULL) >= 0);
	CHECK_RC(shf_run_open(&run, "run", NULL, &opts, sys, &err), 0, &err);
	CHECK_RC(shf_save_begin(&save, run, 2, state, NULL, &err), 0, &err);
	for (int i = 0; i < FILES; i++)
		CHECK_INT(shf_save_attach(save, names[i], bytes, sizes[i], NULL), 0);
	CHECK_RC(shf_save_commit(save, -1, &err), 0, &err);
	shf_save_free(save);
	shf_state_put(state);
	shf_run_close(run);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	free(values);
	free(bytes);
	return disk;
}

static void finding(void *arg, const struct sheaf_finding *f)
{
	char *found = arg;
	size_t n = strlen(found);

	snprintf(found + n, 200 - n, "%s %s;", sheaf_finding_kind_name(f->kind), f->file);
}

/* A copy into `to`; NULL: a verify. Its code, and what was found. */
static int look(struct simdisk *disk, const char *to, char found[200])
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
	                           .io_threads = 1 };
	struct sheaf_report report = { .size = sizeof(report), .finding = finding, .arg = found };
	const struct shf_sys *sys = process(disk);
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int rc;

	found[0] = '\0';
	CHECK_RC(shf_step_open_path(&step, FROM, NULL, &opts, sys, &err), 0, &err);
	most = 0;
	rc = to ? shf_step_copy(step, to, &report, &err) : shf_step_verify(step, &report, &err);
	shf_step_put(step);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_kill(disk, sys);
	return rc;
}

TEST(attached_files_are_copied_and_verified_a_chunk_at_a_time)
{
	static const int64_t items[] = { 64, 3 << 20 };         /* of 256 bytes, of 12 MiB */
	char found[200];

	for (int i = 0; i < 2; i++) {
		struct simdisk *disk = saved(items[i]);

		CHECK_INT(look(disk, NULL, found), 0);
		CHECK(most <= CHUNK + 8192);
		CHECK_INT(look(disk, "dst", found), 0);
		CHECK(most <= CHUNK + 8192);
		printf("# %zu bytes attached, the largest allocation of a copy %zu\n",
		       sizes[1] + sizes[2] + sizes[3], most);
		CHECK(simdisk_exists(disk, "dst/checkpoint-2"));
		CHECK(simdisk_hash(disk, "dst/checkpoint-2") == simdisk_hash(disk, FROM));
		simdisk_free(disk);
	}
}

TEST(an_attached_file_that_is_damaged_anywhere_is_refused_and_named)
{
	struct simdisk *disk = saved(3 << 20);
	int flips = 0;
	char found[200];

	for (uint64_t at = 5; at < sizes[1]; at += 3 * (CHUNK / 2)) {
		CHECK_INT(simdisk_flip(disk, FROM "/large.bin", 8 * at), 0);
		CHECK_INT(look(disk, "dst", found), SHEAF_ECORRUPT);
		CHECK_STR(found, "checksum large.bin;");
		CHECK(!simdisk_exists(disk, "dst/checkpoint-2"));
		CHECK_INT(look(disk, NULL, found), SHEAF_ECORRUPT);
		CHECK_STR(found, "checksum large.bin;");
		CHECK_INT(simdisk_flip(disk, FROM "/large.bin", 8 * at), 0);
		flips++;
	}
	printf("# %d flips\n", flips);
	CHECK_INT(look(disk, "dst", found), 0);
	simdisk_free(disk);
}
