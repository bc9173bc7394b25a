/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that change where nobody should change them: between nodes, in images between copy, sum,
 * write, read and scatter; and reads that fail. Nothing wrong is ever loaded without a word. */
#include "hands.h"
#include <errno.h>
#include <stdlib.h>
#include "simover.h"
#include "t.h"

/* One evil thing at a time, at the moment it counts down to 0. */
static struct {
	struct sheaf_group_ops group;   /* the simulator's own */
	long travel, op, write, read, here;     /* 0: never */
	bool cut;                       /* a read is short, and nothing else is wrong with it */
	long fails, seen;               /* so many reads fail after that of the header */
	bool no_second;                 /* what has failed is not submitted again */
	uint64_t where;
	int fired;
	struct { uint8_t *base; size_t bytes; } shm[16];
	int shm_n;
} evil;

static void flip(uint8_t *p, size_t n)
{
	if (n == 0)
		return;
	p[evil.where % n] ^= 0x10;
	evil.fired++;
}

/* Between two operations of the group: every image. */
static void between(void)
{
	if (evil.op == 0 || --evil.op > 0)
		return;
	for (int i = 0; i < evil.shm_n; i++)
		flip(evil.shm[i].base, evil.shm[i].bytes);
}

static int evil_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			  struct sheaf_error *err)
{
	between();
	return evil.group.allgather(arg, mine, all, bytes, timeout_ms, err);
}

static int evil_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			  struct sheaf_error *err)
{
	between();
	return evil.group.allreduce(arg, x, n, op, timeout_ms, err);
}

static int evil_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                          const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	size_t total = in_bytes[0] + in_bytes[1] + in_bytes[2] + in_bytes[3];
	int rc;

	between();
	rc = evil.group.alltoallv(arg, out, out_bytes, in, in_bytes, timeout_ms, err);
	if (rc == 0 && total > 20000 && evil.travel > 0 && --evil.travel == 0)
		flip(in, total);        /* plans are shorter: this is what travels */
	return rc;
}

static int evil_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	int rc = simover_real()->shm.shm_new(arg, shm, bytes, shared);

	if (rc == 0 && bytes > 8192 && evil.shm_n < 16) {
		evil.shm[evil.shm_n].base = shm->base;
		evil.shm[evil.shm_n++].bytes = bytes;
	}
	return rc;
}

static void evil_shm_free(void *arg, struct shf_shm *shm)
{
	for (int i = 0; i < evil.shm_n; i++)
		if (evil.shm[i].base == shm->base)
			evil.shm[i--] = evil.shm[--evil.shm_n];
	simover_real()->shm.shm_free(arg, shm);
}

static int evil_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	if (io->op == SHF_IO_READ && evil.no_second && evil.fired)
		return -ENOMEM;
	if (io->op == SHF_IO_WRITE && evil.write > 0 && --evil.write == 0)
		flip(io->buf, io->len);
	return simover_real()->queue.submit(arg, queue, io);
}

static int evil_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	int rc = simover_real()->queue.complete(arg, queue, io, timeout_ms);

	evil.fired += rc == 1 && evil.no_second && (*io)->result < 0;
	if (rc == 1 && (*io)->op == SHF_IO_READ && evil.read > 0 && --evil.read == 0) {
		if (!evil.cut)
			flip((*io)->buf, (*io)->len);
		evil.fired += evil.cut;
		(*io)->result -= evil.cut;
	}
	return rc;
}

/* What is read a little at a time, as out of the page cache; headers come with a whole block. */
static int64_t evil_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	int64_t got = simover_real()->file.pread(arg, fd, buf, n, off);

	if (got > 60000 && n <= 1 << 18 && evil.fails > 0 && ++evil.seen > 1) {
		evil.fails--;
		return -EIO;
	}
	if (got > 60000 && n <= 1 << 18 && evil.here > 0 && --evil.here == 0)
		flip(buf, (size_t)got);
	return got;
}

static void tamper(struct hand *h)
{
	struct sys_tables *calls = simover(&h->used);

	evil.group = h->group->ops;
	calls->shm.shm_new = evil_shm_new;
	calls->shm.shm_free = evil_shm_free;
	calls->queue.submit = evil_submit;
	calls->queue.complete = evil_complete;
	calls->file.pread = evil_pread;
	h->group->ops.allgather = evil_allgather;
	h->group->ops.allreduce = evil_allreduce;
	h->group->ops.alltoallv = evil_alltoallv;
}

/* Interleaved columns and flat edges: much travels, much is scattered in images. Variant: another
 * layout. 4 ranks. */
static void held(struct hand *h)
{
	static const char *const names[] = { "a", "b", "c" };

	for (int k = 0; k < 3; k++) {
		struct sheaf_slice *s = hand_add(h, "model", names[k], SHEAF_F32, 2, 97, 211);

		hand_cut(s, h->play->variant ? 0 : 1, (h->rank + k) % 4, 4);
	}
	hand_add(h, "optimizer", "whole/moment1_0", SHEAF_F32, 1, 4099);
}

static const int32_t apart[4] = { 1, 2, 1, 2 };

/* A save with something evil in it: refused, or what loads is right, or the load is refused. */
static void save_with(struct play *p, const char *what, long n, int *refused, int *found)
{
	struct simdisk *disk = disk_new();
	int rc;

	p->disk = disk;
	p->tamper = tamper;
	rc = hands_save(p);
	p->tamper = NULL;
	if (evil.fired && rc < 0) {
		*refused += 1;
		if (rc != SHEAF_ECORRUPT)
			print_error("%s %ld: refused with %d %s\n", what, n, rc, p->err.msg);
		CHECK_INT(rc, SHEAF_ECORRUPT);
	} else {
		CHECK_RC(rc, 0, &p->err);
		rc = hands_load(p);
		*found += rc == SHEAF_ECORRUPT;
		if (rc != 0 && rc != SHEAF_ECORRUPT)
			print_error("%s %ld: %d %s\n", what, n, rc, p->err.msg);
		CHECK(rc == 0 || rc == SHEAF_ECORRUPT);
		if (rc == 0 && p->wrong)
			print_error("%s %ld: loaded %s\n", what, n, p->why);
		CHECK(rc != 0 || p->wrong == 0);
	}
	simdisk_free(disk);
	evil.shm_n = 0;
}

/* A load with something evil in it: right, or refused naming the tensor. */
static void load_with(struct play *p, const char *what, long n, int *found)
{
	int rc;

	p->tamper = tamper;
	rc = hands_load(p);
	*found += rc == SHEAF_ECORRUPT;
	if (rc != 0 && rc != SHEAF_ECORRUPT)
		print_error("%s %ld: %d %s\n", what, n, rc, p->err.msg);
	CHECK(rc == 0 || rc == SHEAF_ECORRUPT);
	if (rc == 0 && p->wrong)
		print_error("%s %ld where %llu: loaded %s\n", what, n,
			    (unsigned long long)evil.where, p->why);
	CHECK(rc != 0 || p->wrong == 0);
	/* A block is named by its first tensor, and that may be the header. */
	if (rc < 0 && !strstr(p->err.msg, "model/") && !strstr(p->err.msg, "optimizer/") &&
	    !strstr(p->err.msg, "(header)"))
		print_error("no tensor in: %s\n", p->err.msg);
	CHECK(rc == 0 || strstr(p->err.msg, "model/") || strstr(p->err.msg, "optimizer/") ||
	      strstr(p->err.msg, "(header)"));
	evil.shm_n = 0;
}

TEST(a_byte_that_changes_between_nodes_while_saving_is_found)
{
	int refused = 0, found = 0, fired = 1;

	for (long n = 1; fired; n++) {
		struct play p = hands_play(NULL, 4, held);

		p.nodes = apart;
		evil.travel = n;
		evil.where = (uint64_t)n * 7919;
		evil.fired = 0;
		save_with(&p, "travel", n, &refused, &found);
		fired = evil.fired;
		evil.travel = 0;
	}
	CHECK(refused + found > 0);
	CHECK_INT(found, 0);    /* the save is where it is noticed */
}

TEST(a_byte_of_an_image_that_changes_while_saving_is_found)
{
	int refused = 0, found = 0, fired = 1;

	for (long n = 1; fired; n++) {
		struct play p = hands_play(NULL, 4, held);

		p.nodes = n % 2 ? apart : NULL;
		evil.op = n;
		evil.where = (uint64_t)n * 7919;
		evil.fired = 0;
		save_with(&p, "op", n, &refused, &found);
		fired = evil.op == 0;   /* there was such an operation */
		evil.op = 0;
	}
	/* A page is summed where it comes from: at the latest the load sees that it changed. */
	CHECK(refused + found > 3);
}

TEST(a_byte_that_changes_on_its_way_to_the_disk_is_found_by_the_load)
{
	int refused = 0, found = 0, fired = 1;
	long n;

	for (n = 1; fired; n++) {
		struct play p = hands_play(NULL, 4, held);

		evil.write = n;
		evil.where = 4096 * 3 + (uint64_t)n * 31;
		evil.fired = 0;
		save_with(&p, "write", n, &refused, &found);
		fired = evil.fired;
		evil.write = 0;
	}
	CHECK(n > 2);
	CHECK_INT(refused, 0);
	CHECK_INT(found, n - 2);
}

/* The same, all of it wanted by one. */
static void alone(struct hand *h)
{
	static const char *const names[] = { "a", "b", "c" };

	if (h->rank != 0)
		return;
	for (int k = 0; k < 3; k++)
		hand_add(h, "model", names[k], SHEAF_F32, 2, 97, 211);
	hand_add(h, "optimizer", "whole/moment1_0", SHEAF_F32, 1, 4099);
}

static struct simdisk *saved(void)
{
	struct simdisk *disk = disk_new();
	struct play p = hands_play(disk, 4, held);

	SAVED(p);
	return disk;
}

TEST(a_byte_that_changes_between_nodes_while_loading_is_found)
{
	struct simdisk *disk = saved();
	int found = 0, fired = 1;
	long n;

	for (n = 1; fired; n++)
		for (int variant = 0; variant < 2; variant++) {
			struct play p = hands_play(disk, 4, held);

			p.nodes = apart;
			p.variant = variant;
			evil.travel = n;
			evil.where = (uint64_t)n * 7919;
			evil.fired = 0;
			load_with(&p, "travel", n, &found);
			fired = evil.fired || variant == 0;
			evil.travel = 0;
		}
	CHECK(found >= 2);
	simdisk_free(disk);
}

TEST(a_byte_of_an_image_that_changes_before_it_is_scattered_is_found)
{
	struct simdisk *disk = saved();
	int found = 0, fired = 1;

	for (long n = 1; fired; n++) {
		struct play p = hands_play(disk, 4, held);

		p.nodes = n % 2 ? apart : NULL;
		p.variant = n % 4 > 1;
		evil.op = n;
		evil.where = (uint64_t)(n * 7919 + 8192) % 200000;
		evil.fired = 0;
		load_with(&p, "op", n, &found);
		fired = evil.op == 0;
		evil.op = 0;
	}
	CHECK(found > 0);
	simdisk_free(disk);
}

TEST(a_byte_that_changes_as_it_is_read_is_found)
{
	struct simdisk *disk = saved();
	int found = 0, fired = 1;
	long n;

	for (n = 1; fired; n++) {
		struct play p = hands_play(disk, 4, held);

		evil.read = n;
		evil.where = (uint64_t)n * 7919 + 4096;
		evil.fired = 0;
		load_with(&p, "read", n, &found);
		fired = evil.fired;
		evil.read = 0;
	}
	CHECK(n > 2);
	CHECK_INT(found, n - 2);
	simdisk_free(disk);
}

TEST(a_byte_that_changes_as_it_is_copied_from_the_page_cache_is_found)
{
	int found = 0, flips = 0;

	/* What is in the page cache is drawn: by the seed of the disk. */
	for (long n = 1; n < 8; n++) {
		struct simdisk *disk = saved();
		struct play p = hands_play(disk, 4, alone);

		evil.here = 1 + n % 2;
		evil.where = (uint64_t)n * 7919 + 4096;
		evil.fired = 0;
		load_with(&p, "here", n, &found);
		flips += evil.fired;
		evil.here = 0;
		simdisk_free(disk);
	}
	CHECK(flips > 0);
	CHECK_INT(found, flips);
}

/* ---- reads that fail ---- */

TEST(any_read_that_keeps_failing_fails_the_load_with_file_and_offset)
{
	struct simdisk *disk = saved();
	int fired = 1;

	for (int nth = 1; fired; nth++) {
		struct play p = hands_play(disk, 4, held);
		int rc;

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		              .kind = SIMDISK_PREAD, .name = "-00001-of-", .always = true });
		rc = hands_load(&p);
		fired = simdisk_fired(disk);
		simdisk_faults_clear(disk);
		if (fired && (rc != SHEAF_EIO || !strstr(p.err.msg, "-00001-of-")))
			print_error("%d: %d %s\n", nth, rc, p.err.msg);
		CHECK_INT(rc, fired ? SHEAF_EIO : 0);
		CHECK(!fired || (strstr(p.err.msg, ".safetensors: reading ") && p.err.sys == EIO));
		CHECK(!fired || strstr(p.err.msg, " bytes at "));
	}
	simdisk_free(disk);
}

TEST(a_read_that_stops_short_fails_the_load)
{
	struct simdisk *disk = saved();
	int fired = 1;
	long n;

	evil.cut = true;
	for (n = 1; fired; n++) {
		struct play p = hands_play(disk, 4, held);

		p.variant = (int)(n % 2);
		p.tamper = tamper;
		evil.read = n;
		evil.fired = 0;
		CHECK_RC(hands_load(&p), evil.fired ? SHEAF_ECORRUPT : 0, &p.err);
		CHECK(!evil.fired || strstr(p.err.msg, ": ends at byte "));
		fired = evil.fired;
		evil.shm_n = 0;
	}
	evil.read = 0;
	evil.cut = false;
	CHECK(n > 3);
	simdisk_free(disk);
}

TEST(a_read_that_fails_twice_is_tried_again_and_counted)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 4, held);
	int reads = 0;

	LOADED(p);
	CHECK_INT(p.report.retries, 0);
	for (int nth = 1;; nth++) {
		uint64_t retries;

		for (int k = 0; k < 2; k++)
			simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth + k, .error = EIO,
			              .kind = SIMDISK_PREAD, .name = "-00001-of-" });
		LOADED(p);
		retries = p.report.retries;
		reads += retries == 2;
		if (simdisk_fired(disk) < 2) {
			simdisk_faults_clear(disk);
			break;
		}
		simdisk_faults_clear(disk);
		CHECK(retries <= 2);
	}
	CHECK(reads > 0);
	simdisk_free(disk);
}

TEST(a_read_of_the_page_cache_that_fails_is_tried_again_too)
{
	int fired = 0;

	for (long n = 0; n < 2; n++) {
		struct simdisk *disk = saved();
		struct play p = hands_play(disk, 4, alone);
		long fails = n % 2 ? 1000 : 3;

		simdisk_set_resident(disk, 1);
		p.tamper = tamper;
		evil.fails = fails;
		evil.seen = 0;
		CHECK_RC(hands_load(&p), n % 2 && evil.fails < fails ? SHEAF_EIO : 0, &p.err);
		fired += evil.fails < fails;
		if (p.rc == 0) {
			CHECK_INT(p.wrong, 0);
			CHECK_INT(p.report.retries, fails - evil.fails);
		} else {
			CHECK_INT(fails - evil.fails, 4); /* and not a fifth time */
			CHECK(strstr(p.err.msg, ".safetensors: reading ") && p.err.sys == EIO);
		}
		evil.fails = 0;
		evil.shm_n = 0;
		simdisk_free(disk);
	}
	CHECK_INT(fired, 2);
}

TEST(a_read_that_cannot_be_submitted_again_fails_the_load)
{
	struct simdisk *disk = saved();
	struct play p = hands_play(disk, 4, held);

	p.tamper = tamper;
	evil.no_second = true;
	evil.fired = 0;
	for (int nth = 1; evil.fired == 0; nth++) {
		CHECK(nth < 20);
		simdisk_faults_clear(disk);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth, .error = EIO,
		              .kind = SIMDISK_PREAD, .name = "-00001-of-" });
		CHECK_RC(hands_load(&p), evil.fired ? SHEAF_ENOMEM : 0, &p.err);
		evil.shm_n = 0;
	}
	CHECK(strstr(p.err.msg, "submitting a read") != NULL);
	evil.no_second = false;
	simdisk_free(disk);
}

TEST(a_file_that_does_not_open_is_named_by_whoever_reads_it)
{
	struct simdisk *disk = disk_new();
	struct play all = hands_play(disk, 4, held);
	int fired = 1, n = 0;

	all.opts.file_bytes_max = 1;    /* a file of each tensor */
	SAVED(all);
	for (int nth = 2; fired || nth % 2; nth++) {
		struct play p = hands_play(disk, 4, held);

		p.nodes = nth % 2 ? apart : NULL;
		p.variant = 1;
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = nth / 2, .error = EACCES,
		              .kind = SIMDISK_OPEN, .name = "-of-0000", .always = true });
		(void)hands_load(&p);
		fired = simdisk_fired(disk);
		n += p.rc < 0;
		CHECK_RC(p.rc, fired && p.rc ? SHEAF_EIO : 0, &p.err);
		CHECK(p.rc == 0 || (p.err.sys == EACCES && strstr(p.err.msg, "-of-0000")));
		CHECK_INT(p.wrong, 0);
		simdisk_faults_clear(disk);
	}
	CHECK(n > 4);
	simdisk_free(disk);
}

TEST(any_number_of_threads_gives_the_same)
{
	uint64_t hash = 0;

	for (int threads = 1; threads <= 32; threads *= 2) {
		struct simdisk *disk = disk_new();
		struct play p = hands_play(disk, 4, held);

		p.opts.io_threads = threads;
		SAVED(p);
		hash = hash ? hash : hands_hash(disk, "run/checkpoint-7");
		CHECK(hash == hands_hash(disk, "run/checkpoint-7"));
		p.variant = 1;
		LOADED(p);
		simdisk_free(disk);
	}
}
