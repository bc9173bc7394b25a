/* SPDX-License-Identifier: Apache-2.0 */
/* A file is cut into chunks, which the threads take one after the other. While it is written it is
 * called <part><name>. It gets its name when all chunks are written and its fsync has succeeded.
 * An export that continues an earlier one compares the files that have their names with the step,
 * and deletes parts: the bytes of a part may be in the page cache only, and after a failed fsync
 * they may never reach the disk.
 *
 * There are up to three passes over the files:
 * - The first one writes the files that are missing, and compares those that an earlier export
 *   finished.
 * - The second one writes the files that the comparison found wrong, if there are any.
 * - The last one reads back what was written, when all files are durable.
 * Comparing and reading back bypass the page cache if the file system allows it, so that they see
 * what the disk has.
 *
 * A zip archive has the CRC-32 of each record before its data and in its directory, and it is known
 * only when the data has been read, by several threads in any order. Each chunk adds what its part
 * contributes. A hole (export_plan.h) in the chunk of its whole tensor gets its sum there. All
 * others are 0 until the last chunk of the file is done: then they are filled in before the file is
 * synced, and the sums of their blocks are corrected. */
#include "export_pass.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "memory_dir.h"
#include "place.h"
#include "run_files.h"
#include "step_files.h"
#include "step_open.h"

#define CHUNK (UINT64_C(4) << 20)
#define PIECE (UINT64_C(1) << 20)       /* of a finished file, compared at once */
#define THREADS_MAX 16

struct worker {
	struct shf_export *x;
	struct shf_export_reader reader;
	uint8_t *memory;                /* owned; in it lie: */
	uint8_t *bytes, *there;         /* CHUNK bytes on a page; PIECE bytes */
	struct shf_task *task;          /* NULL: the thread of the caller */
};

static void part_name(char name[300], const struct shf_export *x, uint32_t f)
{
	snprintf(name, 300, "%.40s%.250s", x->part, x->targets[f].base);
}

static int fail_in_file(const struct shf_export *x, int sys, uint32_t f, struct sheaf_error *err)
{
	return shf_fail_io(err, -sys, "%s/%s", x->partial, x->plan.files[f].name);
}

/* ---- files ---- */

int shf_export_folder_open(const struct shf_sys *sys, int dir, const char *name)
{
	int in = dir;

	for (const char *slash; in >= 0 && (slash = strchr(name, '/')) != NULL; name = slash + 1) {
		char folder[256];
		int above = in;

		if ((size_t)(slash - name) >= sizeof(folder))
			in = -ENAMETOOLONG;
		if (in >= 0) {
			memcpy(folder, name, (size_t)(slash - name));
			folder[slash - name] = '\0';
			in = shf_dir_open(sys, above, folder);
		}
		if (above != dir)
			shf_sys_close(sys, above);
	}
	return in;
}

static int target_enter(const struct shf_export *x, struct shf_export_target *t)
{
	t->dir = shf_export_folder_open(x->sys, t->top, t->path);
	return t->dir < 0 ? t->dir : 0;
}

static void target_leave(const struct shf_export *x, struct shf_export_target *t)
{
	if (t->dir >= 0 && t->dir != t->top)
		shf_sys_close(x->sys, t->dir);
	t->dir = -1;
}

/* Opens a file when a thread takes its first chunk in a pass. The caller holds the lock. */
static int target_open(struct shf_export *x, uint32_t f, struct sheaf_error *err)
{
	struct shf_export_target *t = &x->targets[f];
	bool is_new = t->what == SHF_EXPORT_WRITE;
	char part[300];
	int rc;

	part_name(part, x, f);
	rc = target_enter(x, t);
	if (rc < 0)
		return fail_in_file(x, rc, f, err);
	t->fd = shf_sys_open(x->sys, t->dir, is_new ? part : t->base, SHF_O_NOFOLLOW |
	                     (is_new ? SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL : 0), 0666);
	rc = t->fd;
	/* The space is reserved at once, so that a full file system is found before bytes are
	 * read. */
	if (rc >= 0 && is_new)
		rc = shf_sys_resize(x->sys, t->fd, x->plan.files[f].bytes);
	if (rc < 0)
		return fail_in_file(x, rc, f, err);
	t->direct = shf_sys_open(x->sys, t->dir, is_new ? part : t->base,
	                         SHF_O_NOFOLLOW | SHF_O_DIRECT | (is_new ? SHF_O_WRITE : 0), 0);
	t->left = t->chunks_n;
	return 0;
}

/* ---- chunks ---- */

/* Writes n bytes, whole pages without the page cache if that is possible. */
static int chunk_put(const struct shf_export *x, const struct shf_export_target *t,
                     const uint8_t *bytes, uint64_t at, uint64_t n)
{
	uint64_t pages = t->direct >= 0 ? n / SHF_PAGE * SHF_PAGE : 0;
	int64_t put = pages ? shf_sys_pwrite(x->sys, t->direct, bytes, (size_t)pages, at) : 0;

	if (put == -EINVAL) {
		pages = 0;
		put = 0;
	}
	if (put >= 0 && pages < n)
		put = shf_sys_pwrite(x->sys, t->fd, bytes + pages, (size_t)(n - pages), at + pages);
	return put < 0 ? (int)put : 0;
}

/* ---- holes ---- */

/* Returns whether a hole is in a chunk other than its tensor's, or other than that of a part of it.
 * It is filled when all chunks of the file are done then, and until then has 0. */
static bool hole_is_late(const struct shf_layout *l, const struct shf_export_hole *h)
{
	const struct shf_lt_tensor *t = &l->tensors[h->tensor];
	uint64_t chunk = t->off / CHUNK;

	return h->at / CHUNK != chunk || (h->at + 3) / CHUNK != chunk ||
	       (t->off + t->bytes - 1) / CHUNK != chunk;
}

/* Returns the holes of a file that have some of bytes [at, end), and sets *n to their number. */
static const struct shf_export_hole *holes_in(const struct shf_export *x, uint32_t f, uint64_t at,
                                              uint64_t end, size_t *n)
{
	size_t lo = 0, hi, all;
	const struct shf_export_hole *h = shf_export_holes(&x->plan.files[f], &all);

	for (hi = all; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;

		if (h[mid].at + 4 <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (*n = 0; lo + *n < all && h[lo + *n].at < end;)
		++*n;
	return *n ? h + lo : NULL;
}

/* Fills the holes of a chunk whose tensors are in it, too. */
static void chunk_fill_holes(struct worker *w, uint32_t f, uint64_t at, uint64_t n)
{
	struct shf_export *x = w->x;
	size_t holes;
	const struct shf_export_hole *h = holes_in(x, f, at, at + n, &holes);

	pthread_mutex_lock(&x->lock);
	for (; holes--; h++)
		if (!hole_is_late(&x->plan.out, h))
			shf_put32(w->bytes + (h->at - at), x->crcs[h->tensor] ^ h->more);
	pthread_mutex_unlock(&x->lock);
}

/* Gives the late holes in bytes [at, at + n) of a file what was read of it: they are compared when
 * all chunks are done. */
static void pass_over_holes(const struct shf_export *x, uint32_t f, uint64_t at, uint64_t n,
                            uint8_t *to, const uint8_t *from)
{
	size_t holes;
	const struct shf_export_hole *h = holes_in(x, f, at, at + n, &holes);

	for (; holes--; h++)
		for (uint64_t i = h->at; i < h->at + 4 && hole_is_late(&x->plan.out, h); i++)
			if (i >= at && i < at + n)
				to[i - at] = from[i - at];
}

/* Writes bytes that became known only after the rest of the file was written, such as a CRC-32, and
 * corrects the checksum of their block, which was computed with zeros in their place. */
static int hole_fill(struct shf_export *x, uint32_t f, const struct shf_export_hole *h)
{
	uint64_t *sums = &x->sums[x->plan.out.files[f].first_block];
	uint64_t size = x->plan.files[f].bytes;
	uint8_t bytes[4];
	int64_t put;

	shf_put32(bytes, x->crcs[h->tensor] ^ h->more);
	for (int i = 0; i < 4; i++) {
		uint64_t block = (h->at + (uint64_t)i) / SHF_BLOCK, end = (block + 1) * SHF_BLOCK;

		end = end < size ? end : size;
		sums[block] ^= shf_crc64_shift(shf_crc64_raw(0, &bytes[i], 1),
		                               end - (h->at + (uint64_t)i) - 1);
	}
	put = shf_sys_pwrite(x->sys, x->targets[f].fd, bytes, sizeof(bytes), h->at);
	return put < 0 ? (int)put : 0;
}

/* Compares a late hole of a file that an earlier export has finished. */
static int hole_compare(struct shf_export *x, uint32_t f, const struct shf_export_hole *h)
{
	uint8_t bytes[4] = { 0 };
	int64_t got;

	shf_sys_forget(x->sys, x->targets[f].fd, h->at, sizeof(bytes));
	got = shf_sys_pread(x->sys, x->targets[f].fd, bytes, sizeof(bytes), h->at);

	if (got >= 0 && (got < 4 || shf_get32(bytes) != (x->crcs[h->tensor] ^ h->more)))
		x->targets[f].stale = true;
	return got < 0 ? (int)got : 0;
}

/* Fills or compares the late holes of a file, all of whose chunks are done, by the thread that did
 * the last one. Returns 0 or a negative errno. */
static int late_holes(struct shf_export *x, uint32_t f)
{
	enum shf_export_what what = x->targets[f].what;
	size_t n;
	const struct shf_export_hole *h = shf_export_holes(&x->plan.files[f], &n);
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		if (!hole_is_late(&x->plan.out, &h[i]))
			continue;
		if (what == SHF_EXPORT_WRITE)
			rc = hole_fill(x, f, &h[i]);
		else if (what == SHF_EXPORT_COMPARE)
			rc = hole_compare(x, f, &h[i]);
	}
	return rc;
}

/* Closes a file whose last chunk is done. If it was written, it becomes durable and gets its
 * name. Called by the thread that did that chunk, without the lock. */
static int target_finish(struct shf_export *x, uint32_t f, struct sheaf_error *err)
{
	struct shf_export_target *t = &x->targets[f];
	bool is_new = t->what == SHF_EXPORT_WRITE;
	int rc = late_holes(x, f), closed;
	char part[300];

	if (rc >= 0 && is_new)
		rc = shf_sys_fsync(x->sys, t->fd);
	if (t->direct >= 0)
		shf_sys_close(x->sys, t->direct);
	closed = shf_sys_close(x->sys, t->fd);
	t->fd = t->direct = -1;
	rc = rc < 0 ? rc : closed;
	part_name(part, x, f);
	if (rc >= 0 && is_new)
		rc = shf_sys_rename(x->sys, t->dir, part, t->dir, t->base, false);
	target_leave(x, t);
	return rc < 0 ? fail_in_file(x, rc, f, err) : 0;
}

/* ---- sums ---- */

/* Sums the bytes of a chunk, which are bytes [at, at + n) of the file, by tensor: adds what the
 * chunk contributes to the CRC-32 of each tensor (crc), or to its digest. */
static void chunk_sum_tensors(struct worker *w, uint32_t f, uint64_t at, uint64_t n, bool crc)
{
	struct shf_export *x = w->x;
	const struct shf_layout *l = &x->plan.out;
	uint32_t last = l->files[f].first_tensor + l->files[f].tensors_n;
	const uint64_t end = at + n;

	for (uint32_t k = shf_layout_at(l, f, at); k < last; k++) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[k]];
		uint64_t lo = t->off > at ? t->off : at, hi = t->off + t->bytes, rest;
		const uint8_t *bytes = w->bytes + (lo - at);
		uint64_t sum;

		if (t->off >= end)
			break;
		rest = hi > end ? hi - end : 0;
		hi -= rest;
		sum = crc ? shf_crc32_shift(shf_crc32_more(x->plan.crc, 0, bytes, hi - lo), rest)
		          : shf_crc64_shift(shf_crc64_raw(0, bytes, hi - lo), rest);
		pthread_mutex_lock(&x->lock);
		if (crc)
			x->crcs[l->by_place[k]] ^= (uint32_t)sum;
		else
			x->digests[l->by_place[k]] ^= sum;
		pthread_mutex_unlock(&x->lock);
	}
}

/* Sums the bytes of a chunk, which are bytes [at, at + n) of the file: by block, and if that is
 * wanted also by tensor. The sums of blocks and the digests are compared when all is written, so a
 * byte that changes in memory between them is found. */
static void chunk_sum(struct worker *w, uint32_t f, uint64_t at, uint64_t n)
{
	struct shf_export *x = w->x;
	uint64_t *sums = &x->sums[x->plan.out.files[f].first_block + at / SHF_BLOCK];

	if (x->crcs) {          /* before the blocks, which have holes that get them */
		chunk_sum_tensors(w, f, at, n, true);
		chunk_fill_holes(w, f, at, n);
	}
	for (uint64_t i = 0; i < n; i += SHF_BLOCK)
		*sums++ = shf_crc64_raw(0, w->bytes + i, n - i < SHF_BLOCK ? n - i : SHF_BLOCK);
	if (x->digests)
		chunk_sum_tensors(w, f, at, n, false);
}

static int chunk_write(struct worker *w, uint32_t f, uint64_t at, uint64_t n,
                       struct sheaf_error *err)
{
	struct shf_export *x = w->x;
	const struct shf_export_target *t = &x->targets[f];
	int rc = shf_export_fill(&w->reader, f, at, w->bytes, n, err);

	if (rc < 0)
		return rc;
	chunk_sum(w, f, at, n);
	rc = chunk_put(x, t, w->bytes, at, n);
	return rc < 0 ? fail_in_file(x, rc, f, err) : 0;
}

/* Reads what the disk has of a file at `at`, and not what the page cache has, if that is possible.
 * `to` lies on a page, and has room for whole pages: at the end of the file more is asked for,
 * because direct I/O reads whole pages. Returns how many bytes were read, which may be more than
 * n if the file is longer, or a negative errno. */
static int64_t read_disk(const struct shf_export *x, const struct shf_export_target *t, uint8_t *to,
                         uint64_t at, uint64_t n)
{
	int64_t got = -EINVAL;

	if (t->direct >= 0)
		got = shf_sys_pread(x->sys, t->direct, to,
		                    (size_t)((n + SHF_PAGE - 1) / SHF_PAGE * SHF_PAGE), at);
	if (got == -EINVAL) {
		shf_sys_forget(x->sys, t->fd, at, n);
		got = shf_sys_pread(x->sys, t->fd, to, (size_t)n, at);
	}
	return got;
}

/* Compares a chunk with a file that an earlier export has finished. Sets *differs. */
static int chunk_compare(struct worker *w, uint32_t f, uint64_t at, uint64_t n, bool *differs,
                         struct sheaf_error *err)
{
	struct shf_export *x = w->x;
	int rc = shf_export_fill(&w->reader, f, at, w->bytes, n, err);

	if (rc == 0)
		chunk_sum(w, f, at, n);
	for (uint64_t i = 0; i < n && rc == 0 && !*differs; i += PIECE) {
		uint64_t some = n - i < PIECE ? n - i : PIECE;
		int64_t got = read_disk(x, &x->targets[f], w->there, at + i, some);

		if (got < 0)
			return fail_in_file(x, (int)got, f, err);
		if (x->crcs)
			pass_over_holes(x, f, at + i, some, w->bytes + i, w->there);
		*differs = (uint64_t)got != some || memcmp(w->there, w->bytes + i, (size_t)some);
	}
	return rc;
}

/* Reads back a chunk that was written, and compares the sums of its blocks. */
static int chunk_read_back(struct worker *w, uint32_t f, uint64_t at, uint64_t n,
                           struct sheaf_error *err)
{
	struct shf_export *x = w->x;
	const uint64_t *sums = &x->sums[x->plan.out.files[f].first_block + at / SHF_BLOCK];
	int64_t got = read_disk(x, &x->targets[f], w->bytes, at, n);

	if (got < 0)
		return fail_in_file(x, (int)got, f, err);
	for (uint64_t i = 0; i < n; i += SHF_BLOCK) {
		uint64_t some = n - i < SHF_BLOCK ? n - i : SHF_BLOCK;

		if ((uint64_t)got == n &&
		    shf_crc64_raw(0, w->bytes + i, (size_t)some) == *sums++)
			continue;
		return shf_fail(err, SHEAF_EIO, "%s/%s: bytes %" PRIu64 " to %" PRIu64 " read back "
		                "differently from how they were written; check the disk and the "
		                "memory of this machine", x->partial, x->plan.files[f].name,
		                at + i, at + i + some);
	}
	return 0;
}

static int chunk_do(struct worker *w, uint32_t f, uint64_t chunk, struct sheaf_error *err)
{
	struct shf_export *x = w->x;
	enum shf_export_what what = x->targets[f].what;
	uint64_t at = chunk * CHUNK, size = x->plan.files[f].bytes;
	uint64_t n = size - at < CHUNK ? size - at : CHUNK;
	bool differs = false, last;
	int rc;

	if (what == SHF_EXPORT_READ_BACK)
		rc = chunk_read_back(w, f, at, n, err);
	else if (what == SHF_EXPORT_COMPARE)
		rc = chunk_compare(w, f, at, n, &differs, err);
	else
		rc = chunk_write(w, f, at, n, err);
	pthread_mutex_lock(&x->lock);
	x->targets[f].stale |= differs;
	x->done += n;
	if (what == SHF_EXPORT_WRITE)
		x->written += n;
	last = rc == 0 && --x->targets[f].left == 0;
	pthread_mutex_unlock(&x->lock);
	return last ? target_finish(x, f, err) : rc;
}

/* ---- threads ---- */

static bool is_of_pass(const struct shf_export *x, uint32_t f)
{
	enum shf_export_what what = x->targets[f].what;

	return x->reads_back ? what == SHF_EXPORT_READ_BACK
	                     : what == SHF_EXPORT_WRITE || what == SHF_EXPORT_COMPARE;
}

/* Takes the next chunk of the pass, and opens its file if it is the first chunk of the file.
 * Returns false if no chunk is left, or something has failed. */
static bool claim_chunk(struct shf_export *x, uint32_t *f, uint64_t *chunk)
{
	bool taken = false;

	pthread_mutex_lock(&x->lock);
	while (x->file < x->plan.out.files_n &&
	       (!is_of_pass(x, x->file) || x->chunk == x->targets[x->file].chunks_n)) {
		x->file++;
		x->chunk = 0;
	}
	if (x->rc == 0 && x->file < x->plan.out.files_n && x->chunk == 0)
		x->rc = target_open(x, x->file, &x->err);
	if (x->rc == 0 && x->file < x->plan.out.files_n) {
		*f = x->file;
		*chunk = x->chunk++;
		taken = true;
	}
	pthread_mutex_unlock(&x->lock);
	return taken;
}

static bool export_work(void *arg)
{
	struct worker *w = arg;
	struct shf_export *x = w->x;
	struct sheaf_error err;
	uint64_t chunk;
	uint32_t f;
	int rc;

	if (!claim_chunk(x, &f, &chunk))
		return false;
	rc = chunk_do(w, f, chunk, &err);
	pthread_mutex_lock(&x->lock);
	if (rc < 0 && x->rc == 0) {
		x->rc = rc;
		x->err = err;
	}
	pthread_mutex_unlock(&x->lock);
	return true;
}

/* Calls the caller's function. Returns what it returned, or 0. */
static int say_progress(struct shf_export *x, uint64_t total)
{
	uint64_t done;

	if (!x->opts->progress)
		return 0;
	pthread_mutex_lock(&x->lock);
	done = x->done;
	pthread_mutex_unlock(&x->lock);
	return x->opts->progress(x->opts->arg, done < total ? done : total, total);
}

static int worker_init(struct worker *w, struct shf_export *x, struct sheaf_error *err)
{
	size_t room = (size_t)(CHUNK + PIECE + SHF_PAGE);

	*w = (struct worker){ .x = x };
	w->memory = shf_alloc(room, 1);
	if (!w->memory)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a buffer of %zu bytes",
		                x->path, room);
	w->bytes = w->memory + (SHF_PAGE - (uintptr_t)w->memory % SHF_PAGE) % SHF_PAGE;
	w->there = w->bytes + CHUNK;
	return shf_export_reader_init(&w->reader, x->step, &x->plan, err);
}

/* Makes as many workers as the memory allows, but at most two for each processor, because a worker
 * waits for the disk about half of the time. The first worker is the thread of the caller. */
static int workers_make(struct worker **workers, int *n, struct shf_export *x,
                        struct sheaf_error *err)
{
	uint64_t each = CHUNK + PIECE + SHF_PAGE + SHF_EXPORT_READER_BYTES;
	uint64_t most = x->opts->memory_bytes / each;
	int cpus = 2 * shf_sys_cpus(x->sys), rc = 0;

	cpus = cpus > THREADS_MAX ? THREADS_MAX : cpus < 1 ? 1 : cpus;
	cpus = most < (uint64_t)cpus ? (int)most : cpus;
	cpus = cpus < 1 ? 1 : cpus;
	*workers = shf_zalloc((size_t)cpus, sizeof(**workers));
	if (!*workers)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for %d threads", x->path, cpus);
	for (*n = 0; *n < cpus && rc == 0; ++*n) {
		struct sheaf_error own;

		rc = worker_init(&(*workers)[*n], x, *n ? &own : err);
		if (rc < 0 && *n) {     /* fewer will do */
			shf_export_reader_release(&(*workers)[*n].reader);
			shf_free((*workers)[*n].memory);
			return 0;
		}
	}
	return rc;
}

static void workers_free(struct worker *workers, int n)
{
	for (int i = 0; workers && i < n; i++) {
		shf_export_reader_release(&workers[i].reader);
		shf_free(workers[i].memory);
	}
	shf_free(workers);
}

/* Closes what a pass that failed has left open. */
static void close_targets(struct shf_export *x)
{
	for (uint32_t f = 0; f < x->plan.out.files_n; f++) {
		if (x->targets[f].direct >= 0)
			shf_sys_close(x->sys, x->targets[f].direct);
		if (x->targets[f].fd >= 0)
			shf_sys_close(x->sys, x->targets[f].fd);
		target_leave(x, &x->targets[f]);
		x->targets[f].fd = x->targets[f].direct = -1;
	}
}

/* Makes one pass. The thread of the caller does chunks, too, and reports the progress. If a thread
 * cannot be started, the others do its work. */
static int do_pass(struct shf_export *x, struct worker *workers, int n, bool reads_back,
                   uint64_t total, struct sheaf_error *err)
{
	int asked = 0;

	x->reads_back = reads_back;
	x->file = 0;
	x->chunk = 0;
	for (int i = 1; i < n; i++)
		if (shf_sys_task_new(x->sys, &workers[i].task, export_work, &workers[i], NULL) < 0)
			workers[i].task = NULL;
	while (asked == 0 && export_work(&workers[0]))
		asked = say_progress(x, total);
	if (asked) {
		pthread_mutex_lock(&x->lock);
		x->rc = x->rc ? x->rc : shf_fail(&x->err, SHEAF_EFAILED, "%s: ended by "
		                                 "how.progress", x->path);
		pthread_mutex_unlock(&x->lock);
	}
	for (int i = 1; i < n; i++) {
		while (workers[i].task && !shf_sys_task_over(x->sys, workers[i].task)) {
			if (!asked)
				(void)say_progress(x, total);   /* these are the last chunks */
			shf_sys_sleep_ms(x->sys, 5);
		}
		if (workers[i].task)
			shf_sys_task_free(x->sys, workers[i].task);
		workers[i].task = NULL;
	}
	close_targets(x);
	if (x->rc != 0)
		*err = x->err;
	return x->rc;
}

/* A file that is written in another pass is summed again. */
static void forget_digests(struct shf_export *x, uint32_t f)
{
	const struct shf_lt_file *file = &x->plan.out.files[f];

	for (uint32_t i = 0; x->digests && i < file->tensors_n; i++)
		x->digests[x->plan.out.by_place[file->first_tensor + i]] = 0;
	for (uint32_t i = 0; x->crcs && i < file->tensors_n; i++)
		x->crcs[x->plan.out.by_place[file->first_tensor + i]] = 0;
}

/* Decides, after a pass that writes, what the next passes do with each file. Files that were
 * written are read back. Finished files of an earlier export that differ from the step are deleted
 * and written: then *again is set. */
static int settle_targets(struct shf_export *x, bool *again, struct sheaf_error *err)
{
	*again = false;
	for (uint32_t f = 0; f < x->plan.out.files_n; f++) {
		struct shf_export_target *t = &x->targets[f];
		int rc;

		if (t->what == SHF_EXPORT_WRITE)
			t->what = SHF_EXPORT_READ_BACK;
		else if (t->what == SHF_EXPORT_COMPARE)
			t->what = t->stale ? SHF_EXPORT_WRITE : SHF_EXPORT_DONE;
		if (t->what != SHF_EXPORT_WRITE)
			continue;
		*again = true;
		rc = target_enter(x, t);
		if (rc == 0)
			rc = shf_sys_unlink(x->sys, t->dir, t->base, false);
		target_leave(x, t);
		if (rc < 0)
			return fail_in_file(x, rc, f, err);
		forget_digests(x, f);
	}
	return 0;
}

int shf_export_files(struct shf_export *x, struct sheaf_error *err)
{
	uint64_t total = 2 * x->plan.bytes;
	struct worker *workers = NULL;
	bool again = true;
	int n = 0, rc = 0;

	shf_step_read_once(x->step, true);
	/* All files are opened here, because the threads must not open files of the step. */
	for (uint32_t f = 0; f < x->step->layout.files_n && rc == 0; f++) {
		int fd = shf_step_fd(x->step, f, err);

		rc = fd < 0 ? fd : 0;
	}
	if (rc == 0)
		rc = workers_make(&workers, &n, x, err);
	while (rc == 0 && again) {
		rc = do_pass(x, workers, n, false, total, err);
		if (rc == 0)
			rc = settle_targets(x, &again, err);
	}
	if (rc == 0)
		rc = do_pass(x, workers, n, true, total, err);
	workers_free(workers, n);
	shf_step_read_once(x->step, false);
	return rc;
}

int shf_export_look(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	int rc;

	if (step->run->team.ranks != 1)
		return shf_fail(err, SHEAF_EINVAL, "%s: is open on %d ranks; open it in one "
		                "process alone to export or import it", step->path,
		                step->run->team.ranks);
	if (step->view && shf_view_access(step->view))
		return shf_fail(err, SHEAF_EINVAL, "%s: is spread over the memory of several "
		                "nodes; use sheaf_agent_flush first", step->path);
	rc = shf_step_wake(step, err);
	if (rc == 0 && step->cat_rc < 0) {
		*err = step->cat_err;
		rc = step->cat_rc;
	}
	if (rc == 0 && step->sound && step->sums_rc < 0) {
		*err = step->sums_err;
		rc = step->sums_rc;
	}
	return rc;
}

int shf_export_targets_make(struct shf_export *x, struct sheaf_error *err)
{
	const struct shf_layout *l = &x->plan.out;

	x->targets = shf_zalloc(l->files_n, sizeof(*x->targets));
	x->sums = shf_alloc((size_t)l->blocks_n, sizeof(*x->sums));
	x->crcs = x->plan.crc ? shf_zalloc(l->tensors_n, sizeof(*x->crcs)) : NULL;
	if (!x->targets || !x->sums || (x->plan.crc && !x->crcs))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for the checksums of %zu files",
		                x->path, l->files_n);
	for (uint32_t f = 0; f < l->files_n; f++) {
		struct shf_export_target *t = &x->targets[f];
		const char *name = x->plan.files[f].name, *slash = strrchr(name, '/');
		struct shf_stat st;
		int rc;

		t->fd = t->direct = -1;
		t->top = x->dirs[l->files[f].family];
		t->base = slash ? slash + 1 : name;
		/* A step has a descriptor of the folder of each family. */
		t->path = x->opts->is_step ? t->base : name;
		t->chunks_n = (x->plan.files[f].bytes + CHUNK - 1) / CHUNK;
		rc = target_enter(x, t);
		if (rc < 0)
			return fail_in_file(x, rc, f, err);
		if (shf_sys_stat(x->sys, t->dir, t->base, false, &st) >= 0 &&
		    st.type == SHF_T_FILE && st.bytes == x->plan.files[f].bytes)
			t->what = SHF_EXPORT_COMPARE;
		target_leave(x, t);
	}
	return 0;
}

void shf_export_targets_release(struct shf_export *x)
{
	shf_free(x->targets);
	shf_free(x->sums);
	shf_free(x->crcs);
}
