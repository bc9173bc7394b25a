/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk: what each rule of durability allows, and what it forbids. Most tests walk
 * every choice at a cut and collect the outcomes as a set of bits. */
#include "t.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "simdisk.h"

#define SEED 17
#define W (SHF_O_WRITE | SHF_O_CREATE)

static int file_new(const struct shf_sys *s, int dir, const char *name)
{
	int fd = s->ops->open(s->arg, dir, name, W | SHF_O_EXCL, 0666);

	CHECK(fd >= 0);
	return fd;
}

static void put(const struct shf_sys *s, int fd, const char *text, uint64_t off)
{
	CHECK_INT(s->ops->pwrite(s->arg, fd, text, strlen(text), off), (int)strlen(text));
}

static int dir_open(const struct shf_sys *s, const char *path)
{
	int fd = s->ops->open(s->arg, SHF_CWD, path, SHF_O_DIR, 0);

	CHECK(fd >= 0);
	return fd;
}

static size_t now(const struct simdisk *d)
{
	return simdisk_cut_n(d) - 1;
}

/* What a file holds: -1 absent, else 1 when it is exactly text, 0 when not. */
static int holds(struct simdisk *d, const char *path, const char *text)
{
	size_t n = 0;
	char *bytes = simdisk_get(d, path, &n);
	int is = bytes ? n == strlen(text) && !memcmp(bytes, text, n) : -1;

	free(bytes);
	return is;
}

/* Bits of the outcomes of all choices at the cut: 1 << look(disk). */
static unsigned outcomes(struct simdisk *d, size_t cut, unsigned tear,
                         int (*look)(struct simdisk *left))
{
	struct simdisk_sets s;
	unsigned seen = 0;

	for (simdisk_sets_begin(&s, simdisk_unsynced(d, cut), SEED); simdisk_sets_next(&s);)
		for (uint64_t seed = 0; seed < (tear ? 40 : 1); seed++) {
			struct simdisk_choice c = { s.kept, tear, seed };
			struct simdisk *left = simdisk_crash(d, cut, &c);

			seen |= 1u << look(left);
			simdisk_free(left);
		}
	simdisk_sets_end(&s);
	return seen;
}

/* 0 absent, 1 empty, 2 whole, 3 zeros of the whole length, 4 anything else */
static int look_f(struct simdisk *d)
{
	size_t n = 0;
	char *b = simdisk_get(d, "/f", &n);
	int is = !b ? 0 : !n ? 1 : n == 5 && !memcmp(b, "hello", 5) ? 2
	         : n == 5 && !memcmp(b, "\0\0\0\0\0", 5) ? 3 : 4;

	free(b);
	return is;
}

static unsigned write_and_cut(enum simdisk_model model, bool sync_file, bool sync_dir)
{
	struct simdisk *d = simdisk_new(SEED, model);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), fd = file_new(s, root, "f");
	unsigned seen;

	put(s, fd, "hello", 0);
	if (sync_file)
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(s->ops->close(s->arg, fd), 0);
	if (sync_dir)
		CHECK_INT(s->ops->fsync(s->arg, root), model == SIMDISK_NFS ? -EINVAL : 0);
	seen = outcomes(d, now(d), 0, look_f);
	simdisk_free(d);
	return seen;
}

TEST(strict_loses_name_size_and_data_apart_until_each_is_synced)
{
	CHECK_INT(write_and_cut(SIMDISK_STRICT, false, false), 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3);
	/* fsync of a file does not make its name durable */
	CHECK_INT(write_and_cut(SIMDISK_STRICT, true, false), 1 << 0 | 1 << 2);
	/* nor fsync of the directory its content */
	CHECK_INT(write_and_cut(SIMDISK_STRICT, false, true), 1 << 1 | 1 << 2 | 1 << 3);
	CHECK_INT(write_and_cut(SIMDISK_STRICT, true, true), 1 << 2);
}

TEST(ext4_keeps_the_name_of_a_synced_file_and_never_shows_stale_bytes)
{
	CHECK_INT(write_and_cut(SIMDISK_EXT4, false, false), 1 << 0 | 1 << 1 | 1 << 2);
	CHECK_INT(write_and_cut(SIMDISK_EXT4, true, false), 1 << 2);
	CHECK_INT(write_and_cut(SIMDISK_EXT4, false, true), 1 << 1 | 1 << 2);
}

TEST(nfs_keeps_names_at_once_and_data_only_when_synced)
{
	CHECK_INT(write_and_cut(SIMDISK_NFS, false, true), 1 << 1 | 1 << 2 | 1 << 3);
	CHECK_INT(write_and_cut(SIMDISK_NFS, true, false), 1 << 2);
}

TEST(a_cut_before_a_sync_does_not_profit_from_it)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), fd = file_new(s, root, "f");
	size_t before;

	put(s, fd, "hello", 0);
	before = now(d);
	CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(s->ops->fsync(s->arg, root), 0);
	CHECK_INT(outcomes(d, before, 0, look_f), 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3);
	CHECK_INT(simdisk_unsynced(d, before), 3);
	CHECK_INT(simdisk_unsynced(d, now(d)), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2);
	CHECK_INT(outcomes(d, 0, 0, look_f), 1 << 0);
	simdisk_free(d);
}

TEST(what_is_written_after_a_sync_is_unsynced_again)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), fd = file_new(s, root, "f");

	put(s, fd, "hello", 0);
	CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(s->ops->fsync(s->arg, root), 0);
	put(s, fd, "HE", 0);
	CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2 | 1 << 4);
	simdisk_free(d);
}

TEST(a_failed_fsync_loses_what_it_should_have_written_even_if_the_next_succeeds)
{
	for (int how = 0; how < 2; how++) {
		struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int root = dir_open(s, "/"), fd = file_new(s, root, "f");
		unsigned all = 1 << 1 | 1 << 2 | 1 << 3;

		put(s, fd, "hello", 0);
		if (how)        /* an earlier success stands */
			CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		                                          .kind = SIMDISK_FSYNC });
		CHECK_INT(s->ops->fsync(s->arg, root), -EIO);
		CHECK_INT(s->ops->fsync(s->arg, root), 0);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		                                          .kind = SIMDISK_FSYNC });
		CHECK_INT(s->ops->fsync(s->arg, fd), -EIO);
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		CHECK_INT(simdisk_fired(d), 2);
		CHECK_INT(outcomes(d, now(d), 0, look_f), how ? 1 | 1 << 2 : 1 | all);
		put(s, fd, "hello", 0); /* written again, it can be synced again */
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_f) & (1 << 3 | 1 << 4), 0);
		simdisk_free(d);
	}
}

TEST(a_node_syncs_only_the_data_it_wrote)
{
	for (int model = 0; model < 3; model++) {
		struct simdisk *d = simdisk_new(SEED, (enum simdisk_model)model);
		const struct shf_sys *a = simdisk_process(d, 1, 0);
		const struct shf_sys *b = simdisk_process(d, 2, 1);
		int root = dir_open(a, "/"), fa = file_new(a, root, "f");
		int fb = b->ops->open(b->arg, SHF_CWD, "/f", SHF_O_WRITE, 0);
		unsigned want = model == SIMDISK_EXT4 ? 1 << 2 : 1 << 2 | 1 << 3;

		CHECK_INT(a->ops->resize(a->arg, fa, 5), 0);
		CHECK_INT(a->ops->fsync(a->arg, fa), 0);
		put(a, fa, "hello", 0);
		CHECK_INT(b->ops->fsync(b->arg, fb), 0);
		a->ops->fsync(a->arg, root);
		CHECK_INT(outcomes(d, now(d), 0, look_f), want);
		CHECK_INT(a->ops->fsync(a->arg, fa), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2);
		simdisk_free(d);
	}
}

/* bit 0: old name is there, bit 1: new name is there */
static int look_names(struct simdisk *d)
{
	return simdisk_exists(d, "/a/old") | simdisk_exists(d, "/b/new") << 1;
}

static unsigned rename_and_cut(enum simdisk_model model, bool dir, bool sync_a, bool sync_b,
                               bool twice)
{
	struct simdisk *d = simdisk_new(SEED, model);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int a, b;
	unsigned seen;

	CHECK_INT(simdisk_put(d, dir ? "/a/old/x" : "/a/old", "hello", 5), 0);
	CHECK_INT(simdisk_put(d, "/b/other", "", 0), 0);
	simdisk_settle(d);
	simdisk_set_dir_twice(d, twice);
	a = dir_open(s, "/a");
	b = dir_open(s, "/b");
	CHECK_INT(s->ops->rename(s->arg, a, "old", b, "new", true), 0);
	if (sync_a)
		s->ops->fsync(s->arg, a);
	if (sync_b)
		s->ops->fsync(s->arg, b);
	seen = outcomes(d, now(d), 0, look_names);
	simdisk_free(d);
	return seen;
}

TEST(half_a_rename_may_persist_on_the_strict_model_alone)
{
	for (int dir = 0; dir < 2; dir++) {
		CHECK_INT(rename_and_cut(SIMDISK_STRICT, dir, false, false, true), 15);
		/* the removal is durable, the addition open: one or none */
		CHECK_INT(rename_and_cut(SIMDISK_STRICT, dir, true, false, true), 1 << 0 | 1 << 2);
		/* the addition is durable, the removal open: one or both */
		CHECK_INT(rename_and_cut(SIMDISK_STRICT, dir, false, true, true), 1 << 2 | 1 << 3);
		CHECK_INT(rename_and_cut(SIMDISK_STRICT, dir, true, true, true), 1 << 2);
		CHECK_INT(rename_and_cut(SIMDISK_EXT4, dir, false, false, true), 1 << 1 | 1 << 2);
		CHECK_INT(rename_and_cut(SIMDISK_EXT4, dir, true, false, true), 1 << 2);
		CHECK_INT(rename_and_cut(SIMDISK_EXT4, dir, false, true, true), 1 << 2);
		CHECK_INT(rename_and_cut(SIMDISK_NFS, dir, false, false, true), 1 << 2);
	}
	/* repaired: a directory has one name */
	CHECK_INT(rename_and_cut(SIMDISK_STRICT, true, false, false, false), 7);
}

/* which of three files made in turn are there */
static int look_three(struct simdisk *d)
{
	return simdisk_exists(d, "/d/1") | simdisk_exists(d, "/d/2") << 1 |
	       simdisk_exists(d, "/e/3") << 2;
}

TEST(ext4_keeps_the_entries_of_a_directory_in_order)
{
	for (int model = 0; model < 2; model++) {
		struct simdisk *d = simdisk_new(SEED, (enum simdisk_model)model);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int dir, other, fd;

		CHECK_INT(simdisk_put(d, "/d/x", "", 0), 0);
		CHECK_INT(simdisk_put(d, "/e/x", "", 0), 0);
		simdisk_settle(d);
		dir = dir_open(s, "/d");
		other = dir_open(s, "/e");
		file_new(s, dir, "1");
		fd = file_new(s, dir, "2");
		file_new(s, other, "3");
		/* each subset; or never 2 without 1 */
		CHECK_INT(outcomes(d, now(d), 0, look_three),
		          model == SIMDISK_STRICT ? 0xff : 0xff & ~(1 << 2 | 1 << 6));
		/* fsync of the second file: on EXT4 its name, and the one before it */
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_three),
		          model == SIMDISK_STRICT ? 0xff : 1 << 3 | 1 << 7);
		simdisk_free(d);
	}
}

/* 0 gone, 1 there */
static int look_there(struct simdisk *d)
{
	return simdisk_exists(d, "/d/f");
}

TEST(an_unsynced_unlink_may_come_back_and_a_lost_parent_hides_its_children)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), dir, fd;

	CHECK_INT(s->ops->mkdir(s->arg, root, "d", 0777), 0);
	dir = s->ops->open(s->arg, root, "d", SHF_O_DIR, 0);
	fd = file_new(s, dir, "f");
	CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(s->ops->fsync(s->arg, dir), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 3);       /* d itself is not durable */
	CHECK_INT(s->ops->fsync(s->arg, root), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 2);
	CHECK_INT(s->ops->unlink(s->arg, dir, "f", false), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 3);
	CHECK_INT(s->ops->fsync(s->arg, dir), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 1);
	simdisk_free(d);
}

/* 0 old whole, 1 new whole, 2 a mix by whole units of 512, 3 another mix */
static int look_torn(struct simdisk *d)
{
	size_t n = 0, new_n = 0;
	bool clean = true;
	uint8_t *b = simdisk_get(d, "/f", &n);

	CHECK(b && n == 8192);
	for (size_t i = 0; i < n; i++) {
		new_n += b[i] == 2;
		clean = clean && b[i] == b[i / 512 * 512];
	}
	free(b);
	return !new_n ? 0 : new_n == n ? 1 : clean ? 2 : 3;
}

TEST(a_kept_write_is_torn_at_units_and_only_when_asked)
{
	static uint8_t bytes[8192];

	for (int model = 0; model < 2; model++) {
		struct simdisk *d = simdisk_new(SEED, (enum simdisk_model)model);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int fd;

		memset(bytes, 1, sizeof(bytes));
		CHECK_INT(simdisk_put(d, "/f", bytes, sizeof(bytes)), 0);
		simdisk_settle(d);
		fd = s->ops->open(s->arg, SHF_CWD, "f", SHF_O_WRITE, 0);
		memset(bytes, 2, sizeof(bytes));
		CHECK_INT(s->ops->pwrite(s->arg, fd, bytes, 8192, 0), 8192);
		CHECK_INT(simdisk_unsynced(d, now(d)), 1);
		CHECK_INT(outcomes(d, now(d), 0, look_torn), 3);
		CHECK_INT(outcomes(d, now(d), 512, look_torn), 7);
		CHECK_INT(outcomes(d, now(d), 4096, look_torn), 7);
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		CHECK_INT(outcomes(d, now(d), 512, look_torn), 2);
		simdisk_free(d);
	}
}

/* 0: a prefix of the bytes; 1: not */
static int look_prefix(struct simdisk *d)
{
	size_t n = 0;
	uint8_t *b = simdisk_get(d, "/f", &n);
	int bad = 0;

	for (size_t i = 0; b && i < n; i++)
		bad |= b[i] != 2;
	free(b);
	return bad;
}

TEST(ext4_never_shows_zeros_in_a_torn_extension_and_strict_does)
{
	static uint8_t bytes[10000];

	for (int model = 0; model < 2; model++) {
		struct simdisk *d = simdisk_new(SEED, (enum simdisk_model)model);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int fd = file_new(s, SHF_CWD, "f");

		memset(bytes, 2, sizeof(bytes));
		CHECK_INT(s->ops->pwrite(s->arg, fd, bytes, 10000, 0), 10000);
		CHECK_INT(outcomes(d, now(d), 4096, look_prefix),
		          model == SIMDISK_EXT4 ? 1 : 3);
		simdisk_free(d);
	}
}

static int look_size(struct simdisk *d)
{
	size_t n = 0;
	char *b = simdisk_get(d, "/f", &n);

	free(b);
	return n == 10 ? 0 : n == 4 ? 1 : 2;
}

TEST(a_truncation_waits_for_fsync_and_shrinking_zeroes_what_it_cuts)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	char buf[10];
	int fd;

	CHECK_INT(simdisk_put(d, "/f", "0123456789", 10), 0);
	simdisk_settle(d);
	fd = s->ops->open(s->arg, SHF_CWD, "f", SHF_O_WRITE, 0);
	CHECK_INT(s->ops->resize(s->arg, fd, 4), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 3);
	CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 2);
	CHECK_INT(s->ops->resize(s->arg, fd, 10), 0);
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 10, 0), 10);
	CHECK(!memcmp(buf, "0123\0\0\0\0\0\0", 10));
	fd = s->ops->open(s->arg, SHF_CWD, "f", SHF_O_WRITE | SHF_O_TRUNC, 0);
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 10, 0), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 1 << 0 | 1 << 1 | 1 << 2);
	simdisk_free(d);
}

TEST(a_crashed_disk_is_durable_rebooted_and_can_crash_again)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left, *again;
	const struct shf_sys *s = simdisk_process(d, 7, 0), *t;
	struct shf_owner before, after;
	uint64_t all = UINT64_MAX;
	int fd = file_new(s, SHF_CWD, "f");

	put(s, fd, "hello", 0);
	CHECK_INT(s->ops->owner(s->arg, &before), 0);
	left = simdisk_crash(d, now(d), &(struct simdisk_choice){ .kept = &all });
	CHECK_INT(simdisk_hash(left, "/"), simdisk_hash(d, "/"));
	CHECK_INT(simdisk_unsynced(left, 0), 0);
	CHECK_INT(simdisk_cut_n(left), 1);
	t = simdisk_process(left, 7, 0);
	CHECK_INT(t->ops->owner(t->arg, &after), 0);
	CHECK(strcmp(before.boot, after.boot) != 0);
	CHECK(t->ops->wall_s(t->arg) >= s->ops->wall_s(s->arg) + 3000);
	CHECK(!t->ops->owner_is_dead(t->arg, &before)); /* another boot proves nothing */
	fd = t->ops->open(t->arg, SHF_CWD, "f", SHF_O_WRITE, 0);
	put(t, fd, "HELLO", 0);
	again = simdisk_crash(left, now(left), NULL);
	CHECK_INT(holds(again, "/f", "hello"), 1);
	simdisk_free(again);
	again = simdisk_crash(left, now(left), &(struct simdisk_choice){ .kept = &all });
	CHECK_INT(holds(again, "/f", "HELLO"), 1);
	CHECK_INT(holds(left, "/f", "HELLO"), 1);
	CHECK_INT(holds(d, "/f", "hello"), 1);          /* the first knows nothing of it */
	simdisk_free(again);
	simdisk_free(left);
	simdisk_free(d);
}

TEST(the_same_seed_and_calls_give_the_same_disk)
{
	uint64_t hash[2];
	int differ = 0;

	for (int i = 0; i < 2; i++) {
		struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		uint8_t chance[5000];
		uint64_t all = UINT64_MAX;
		int fd = file_new(s, SHF_CWD, "f");

		hash[i] = 0;
		CHECK_INT(s->ops->random(s->arg, chance, sizeof(chance)), 0);
		CHECK_INT(s->ops->pwrite(s->arg, fd, chance, sizeof(chance), 3), 5000);
		for (uint64_t seed = 0; seed < 8; seed++) {
			struct simdisk_choice c = { &all, 512, seed };
			struct simdisk *left = simdisk_crash(d, now(d), &c);

			differ += simdisk_hash(left, "/") != simdisk_hash(d, "/");
			hash[i] = hash[i] * 3 + simdisk_hash(left, "/");
			simdisk_free(left);
		}
		simdisk_free(d);
	}
	CHECK(hash[0] == hash[1]);
	CHECK(differ > 8);
}

TEST(every_call_can_be_made_to_fail_and_is_told)
{
	for (int nth = 1;; nth++) {
		struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int64_t rc = 0;
		int fd, fired;

		simdisk_fail_at(d, nth, ENOMEM);
		fd = s->ops->open(s->arg, SHF_CWD, "f", W, 0);
		rc = fd < 0 ? fd : s->ops->pwrite(s->arg, fd, "x", 1, 0);
		rc = rc < 0 ? rc : s->ops->fsync(s->arg, fd);
		rc = rc < 0 ? rc : s->ops->close(s->arg, fd);
		rc = rc < 0 ? rc : s->ops->rename(s->arg, SHF_CWD, "f", SHF_CWD, "g", true);
		fired = simdisk_fired(d);
		CHECK_INT(fired, nth <= 5);
		CHECK_INT(rc, fired ? -ENOMEM : 0);
		CHECK_INT(simdisk_calls(d), fired ? nth : 5);
		simdisk_free(d);
		if (!fired)
			break;
	}
}

TEST(a_fault_can_choose_its_call_and_how_it_lies)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0), *other = simdisk_process(d, 2, 0);
	int fd = file_new(s, SHF_CWD, "a.tmp"), g = file_new(other, SHF_CWD, "b");
	struct shf_stat st;

	simdisk_fault(d, &(struct simdisk_fault){ .nth = 2, .error = ENOENT, .how = SIMDISK_AFTER,
	                                          .kind = SIMDISK_RENAME, .process = s });
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO, .how = SIMDISK_PART,
	                                          .kind = SIMDISK_PWRITE, .name = ".tmp" });
	CHECK_INT(other->ops->rename(other->arg, SHF_CWD, "b", SHF_CWD, "c", false), 0);
	put(other, g, "0123456789", 0);
	CHECK_INT(s->ops->pwrite(s->arg, fd, "0123456789", 10, 0), -EIO);
	CHECK_INT(holds(d, "/a.tmp", "01234"), 1);
	put(s, fd, "0123456789", 0);
	CHECK_INT(s->ops->rename(s->arg, SHF_CWD, "a.tmp", SHF_CWD, "a", true), 0);
	CHECK_INT(s->ops->rename(s->arg, SHF_CWD, "a", SHF_CWD, "z", true), -ENOENT);
	CHECK(simdisk_exists(d, "/z") && !simdisk_exists(d, "/a"));
	CHECK_INT(simdisk_fired(d), 2);
	simdisk_faults_clear(d);
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 2, .error = EIO, .always = true,
	                                          .kind = SIMDISK_FSTAT });
	CHECK_INT(s->ops->fstat(s->arg, fd, &st), 0);
	CHECK_INT(s->ops->fstat(s->arg, fd, &st), -EIO);
	CHECK_INT(s->ops->fstat(s->arg, fd, &st), -EIO);
	CHECK(strstr(simdisk_call_text(d, 4), "pwrite(a.tmp, 10 at 0) = -5"));
	simdisk_free(d);
}

TEST(a_killed_process_loses_descriptors_and_locks_but_not_its_writes)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 0);
	struct shf_owner owner, later;
	int fa = file_new(a, SHF_CWD, "lock");
	int fb = b->ops->open(b->arg, SHF_CWD, "lock", SHF_O_WRITE, 0);

	CHECK_INT(a->ops->owner(a->arg, &owner), 0);
	put(a, fa, "mine", 0);
	CHECK_INT(a->ops->lock(a->arg, fa, true), 0);
	CHECK_INT(b->ops->lock(b->arg, fb, false), -EAGAIN);
	CHECK_INT(b->ops->pread(b->arg, fa, &owner, 0, 0), -EBADF);     /* not its descriptor */
	CHECK(!b->ops->owner_is_dead(b->arg, &owner));
	simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .how = SIMDISK_KILL, .process = a });
	CHECK_INT(a->ops->close(a->arg, fa), -ESHUTDOWN);
	CHECK_INT(a->ops->mkdir(a->arg, SHF_CWD, "d", 0777), -ESHUTDOWN);
	CHECK_INT(simdisk_open_n(a), 0);
	CHECK_INT(b->ops->lock(b->arg, fb, true), 0);
	CHECK_INT(holds(d, "/lock", "mine"), 1);
	CHECK(b->ops->owner_is_dead(b->arg, &owner));
	a = simdisk_process(d, 1, 0);   /* the pid is used again */
	CHECK_INT(a->ops->owner(a->arg, &later), 0);
	CHECK(b->ops->owner_is_dead(b->arg, &owner) && !b->ops->owner_is_dead(b->arg, &later));
	b = simdisk_process(d, 3, 1);
	CHECK(!b->ops->owner_is_dead(b->arg, &owner));  /* seen from another node */
	simdisk_free(d);
}

TEST(locks_are_by_description_and_can_be_made_to_lie)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int a = file_new(s, SHF_CWD, "f"), b = s->ops->open(s->arg, SHF_CWD, "f", 0, 0);
	int c = s->ops->open(s->arg, SHF_CWD, "f", SHF_O_WRITE, 0);

	CHECK_INT(s->ops->lock(s->arg, a, true), 0);
	CHECK_INT(s->ops->lock(s->arg, b, false), -EAGAIN);
	CHECK_INT(s->ops->lock(s->arg, b, true), -EBADF);
	CHECK_INT(s->ops->lock(s->arg, a, false), 0);
	CHECK_INT(s->ops->lock(s->arg, b, false), 0);
	CHECK_INT(s->ops->lock(s->arg, c, true), -EAGAIN);
	CHECK_INT(s->ops->close(s->arg, a), 0);
	CHECK_INT(s->ops->close(s->arg, b), 0);
	CHECK_INT(s->ops->lock(s->arg, c, true), 0);
	a = s->ops->open(s->arg, SHF_CWD, "f", SHF_O_WRITE, 0);
	simdisk_set_locks(d, false);
	CHECK_INT(s->ops->lock(s->arg, a, true), 0);
	simdisk_free(d);
}

TEST(a_full_disk_says_so_and_forgets_what_was_removed)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	static uint8_t bytes[3 * 4096];
	int root = dir_open(s, "/"), fd = file_new(s, root, "f"), g;
	uint64_t left = 0;

	simdisk_set_space(d, 2 * 4096);
	CHECK_INT(s->ops->resize(s->arg, fd, 3 * 4096), -ENOSPC);
	CHECK_INT(s->ops->pwrite(s->arg, fd, bytes, sizeof(bytes), 0), -ENOSPC);
	CHECK_INT(s->ops->resize(s->arg, fd, 4096), 0);
	CHECK_INT(s->ops->free_bytes(s->arg, fd, &left), 0);
	CHECK_INT(left, 4096);
	g = file_new(s, root, "g");
	CHECK_INT(s->ops->resize(s->arg, g, 2 * 4096), -ENOSPC);
	CHECK_INT(s->ops->unlink(s->arg, root, "f", false), 0);
	CHECK_INT(s->ops->resize(s->arg, g, 2 * 4096), -ENOSPC);        /* still open */
	CHECK_INT(s->ops->close(s->arg, fd), 0);
	CHECK_INT(s->ops->resize(s->arg, g, 2 * 4096), 0);
	simdisk_set_read_only(d, true);
	CHECK_INT(s->ops->resize(s->arg, g, 0), -EROFS);
	CHECK_INT(s->ops->mkdir(s->arg, root, "d", 0777), -EROFS);
	CHECK_INT(s->ops->unlink(s->arg, root, "g", false), -EROFS);
	CHECK_INT(s->ops->open(s->arg, root, "g", SHF_O_WRITE, 0), -EROFS);
	simdisk_free(d);
}

TEST(paths_links_and_refusals_are_those_of_the_kernel)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	struct shf_stat st;
	char buf[16];
	int a;

	CHECK_INT(simdisk_put(d, "/a/b/f", "x", 1), 0);
	CHECK_INT(simdisk_symlink(d, "a/b", "/link"), 0);
	CHECK_INT(simdisk_symlink(d, "/loop", "/loop"), 0);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "link/f", true, &st), 0);
	CHECK_INT(st.bytes, 1);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "/a/b/../b//f", true, &st), 0);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "a/f/x", true, &st), -ENOENT);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "a/b/f/x", true, &st), -ENOTDIR);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "loop", true, &st), -ELOOP);
	CHECK_INT(s->ops->stat(s->arg, SHF_CWD, "loop", false, &st), 0);
	CHECK_INT(s->ops->open(s->arg, SHF_CWD, "link", SHF_O_NOFOLLOW | SHF_O_DIR, 0), -ELOOP);
	CHECK_INT(s->ops->readlink(s->arg, SHF_CWD, "link", buf, 16), 3);
	CHECK_STR(buf, "a/b");
	a = dir_open(s, "a");
	CHECK_INT(s->ops->open(s->arg, a, "b/f", 0, 0), -EINVAL);       /* one component */
	CHECK_INT(s->ops->unlink(s->arg, a, "b", true), -ENOTEMPTY);
	CHECK_INT(s->ops->unlink(s->arg, a, "b", false), -EISDIR);
	CHECK_INT(s->ops->mkdir(s->arg, a, "e", 0777), 0);
	CHECK_INT(s->ops->rename(s->arg, a, "b", a, "e", true), -EEXIST);
	CHECK_INT(s->ops->rename(s->arg, SHF_CWD, "a", SHF_CWD, "a/b/z", false), -EINVAL);
	CHECK_INT(s->ops->rename(s->arg, a, "e", a, "b", false), -ENOTEMPTY);
	CHECK_INT(s->ops->rename(s->arg, a, "b", a, "e", false), 0);
	CHECK_INT(s->ops->open(s->arg, a, "e", SHF_O_WRITE, 0), -EISDIR);
	CHECK_INT(simdisk_remove(d, "/a"), 0);
	CHECK_INT(s->ops->mkdir(s->arg, a, "late", 0777), -ENOENT);     /* open but gone */
	simdisk_free(d);
}

static int count_names(void *arg, const char *name)
{
	const struct shf_sys *s = ((void **)arg)[0];
	int *n = ((void **)arg)[1];

	++*n;
	return s->ops->unlink(s->arg, SHF_CWD, name, false);    /* calls from within are fine */
}

TEST(list_may_change_what_it_lists)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), n = 0;
	void *arg[] = { (void *)(uintptr_t)s, &n };
	char name[2] = "a";

	for (; name[0] < 'k'; name[0]++)
		s->ops->close(s->arg, file_new(s, root, name));
	CHECK_INT(s->ops->list(s->arg, root, count_names, arg), 0);
	CHECK_INT(n, 10);
	CHECK_INT(s->ops->list(s->arg, root, count_names, arg), 0);
	CHECK_INT(n, 10);
	CHECK_INT(simdisk_open_n(s), 1);
	simdisk_free(d);
}

TEST(a_queue_performs_in_any_order_at_complete)
{
	bool write_first = false, sync_first = false, later = false;

	for (uint64_t seed = 0; seed < 40; seed++) {
		struct simdisk *d = simdisk_new(seed, SIMDISK_STRICT);
		const struct shf_sys *s = simdisk_process(d, 1, 0);
		int fd = file_new(s, SHF_CWD, "f"), rc, n = 0;
		struct shf_io io[2] = { { .op = SHF_IO_WRITE, .fd = fd, .buf = "hello", .len = 5 },
		                        { .op = SHF_IO_FSYNC, .fd = fd } };
		struct shf_io *done;
		struct shf_queue *q = NULL;

		CHECK_INT(s->ops->queue_new(s->arg, &q, 2), 0);
		CHECK_INT(s->ops->complete(s->arg, q, &done, -1), 0);
		CHECK_INT(s->ops->submit(s->arg, q, &io[0]), 0);
		CHECK_INT(s->ops->submit(s->arg, q, &io[1]), 0);
		CHECK_INT(holds(d, "/f", ""), 1);       /* nothing has happened */
		while ((rc = s->ops->complete(s->arg, q, &done, 0)) != 0) {
			later |= rc == -EAGAIN;
			n += rc == 1;
			if (rc == 1 && n == 1)
				*(done == io ? &write_first : &sync_first) = true;
		}
		CHECK_INT(n, 2);
		CHECK_INT(io[0].result, 5);
		CHECK_INT(io[1].result, 0);
		CHECK_INT(s->ops->submit(s->arg, q, &io[0]), 0);
		io[0].off = 5;
		s->ops->queue_free(s->arg, q);
		CHECK_INT(holds(d, "/f", "hellohello"), 1);
		simdisk_free(d);
	}
	CHECK(write_first && sync_first && later);
}

TEST(memory_is_shared_within_a_node_only)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *a = simdisk_process(d, 1, 0), *b = simdisk_process(d, 2, 0);
	const struct shf_sys *far = simdisk_process(d, 3, 1);
	struct shf_shm m, got;
	uint8_t token[16];
	int offer, h, h2;

	CHECK_INT(a->ops->shm_new(a->arg, &m, 5000, true), 0);
	CHECK_INT((uintptr_t)m.base % 4096, 0);
	CHECK_INT(((char *)m.base)[4999], 0);
	CHECK_INT(a->ops->shm_offer(a->arg, &m, token, &offer), 0);
	CHECK_INT(far->ops->shm_connect(far->arg, token, &h), -ECONNREFUSED);
	simdisk_set_shm(d, false, 10000);
	CHECK_INT(b->ops->shm_connect(b->arg, token, &h), -ECONNREFUSED);
	simdisk_set_shm(d, true, 10000);
	CHECK_INT(b->ops->shm_connect(b->arg, token, &h), 0);
	CHECK_INT(b->ops->shm_take(b->arg, h, &got, 5), -ETIMEDOUT);
	CHECK_INT(a->ops->shm_serve(a->arg, offer, &m, 1, 5), 0);
	CHECK_INT(a->ops->shm_serve(a->arg, offer, &m, 1, 5), -ETIMEDOUT);
	CHECK_INT(b->ops->shm_connect(b->arg, token, &h2), 0);
	a->ops->shm_drop(a->arg, offer);
	CHECK_INT(b->ops->shm_take(b->arg, h2, &got, 5), -ECONNRESET);
	a->ops->shm_free(a->arg, &m);
	CHECK_INT(b->ops->shm_take(b->arg, h, &got, 5), 0);
	CHECK_INT(got.bytes, 5000);
	memset(got.base, 1, got.bytes);
	CHECK_INT(b->ops->shm_new(b->arg, &m, 5001, false), -ENOSPC);
	simdisk_kill(d, b);
	b->ops->shm_free(b->arg, &got); /* memory only, so allowed */
	b->ops->shm_drop(b->arg, h);
	CHECK(!got.base);
	simdisk_free(d);
}

TEST(a_huge_sparse_file_costs_what_is_written)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left;
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int fd = file_new(s, SHF_CWD, "f");
	uint64_t size = UINT64_C(6) << 30;
	struct shf_stat st;
	char buf[5];

	CHECK_INT(s->ops->resize(s->arg, fd, size), 0);
	put(s, fd, "hello", size - 5);
	put(s, fd, "world", size / 2 - 2);
	CHECK_INT(s->ops->fsync(s->arg, fd), 0);
	CHECK_INT(s->ops->fsync(s->arg, dir_open(s, "/")), 0);
	left = simdisk_crash(d, now(d), NULL);
	s = simdisk_process(left, 1, 0);
	fd = s->ops->open(s->arg, SHF_CWD, "f", 0, 0);
	CHECK_INT(s->ops->fstat(s->arg, fd, &st), 0);
	CHECK(st.bytes == size);
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 5, size - 5), 5);
	CHECK(!memcmp(buf, "hello", 5));
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 5, size / 2 - 2), 5);
	CHECK(!memcmp(buf, "world", 5));
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 5, 12345), 5);
	CHECK(!memcmp(buf, "\0\0\0\0\0", 5));
	CHECK_INT(s->ops->pread(s->arg, fd, buf, 5, size - 2), 2);
	simdisk_free(left);
	simdisk_free(d);
}

TEST(sets_are_all_up_to_twelve_and_small_large_and_drawn_beyond)
{
	struct simdisk_sets s;
	uint64_t n;

	for (n = 0; n <= 12; n++) {
		for (simdisk_sets_begin(&s, n, SEED); simdisk_sets_next(&s);)
			CHECK_INT(s.kept[0], s.count - 1);
		CHECK_INT(s.count, UINT64_C(1) << n);
		simdisk_sets_end(&s);
	}
	for (n = 13; n < 80; n += 66) {
		uint64_t by_size[81] = { 0 };

		simdisk_sets_begin(&s, n, SEED);
		s.seeded = 0;
		while (simdisk_sets_next(&s)) {
			unsigned k = 0;

			for (size_t i = 0; i < n; i++)
				k += s.kept[i / 64] >> (i % 64) & 1;
			by_size[k]++;
		}
		CHECK_INT(by_size[0], 1);
		CHECK_INT(by_size[n], 1);
		CHECK_INT(by_size[1], n);
		CHECK_INT(by_size[n - 2], n * (n - 1) / 2);
		CHECK_INT(by_size[3], n * (n - 1) * (n - 2) / 6);
		CHECK_INT(by_size[n - 3], by_size[3]);
		CHECK_INT(by_size[5], 0);
		CHECK_INT(s.count, 2 * (1 + n + by_size[2] + by_size[3]));
		simdisk_sets_end(&s);
	}
	simdisk_sets_begin(&s, 13, SEED);
	s.small_max = 1;
	s.seeded = 50;
	while (simdisk_sets_next(&s))
		;
	CHECK_INT(s.count, 2 + 26 + 50);
	simdisk_sets_end(&s);
}

TEST(an_item_says_what_it_is)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int fd = file_new(s, SHF_CWD, "f");
	char all[512] = "", one[128];

	put(s, fd, "hello", 0);
	CHECK_INT(s->ops->rename(s->arg, SHF_CWD, "f", SHF_CWD, "g", false), 0);
	for (size_t i = 0; i < simdisk_unsynced(d, now(d)); i++) {
		simdisk_item_text(d, now(d), i, one, sizeof(one));
		strcat(strcat(all, one), ";");
	}
	CHECK_STR(all, "entry + //f;data f 5 at 0;size f 5;entry + //g;entry - //f;");
	CHECK_INT(simdisk_cut_call(d, now(d)), 3);
	simdisk_free(d);
}

/* A picture of a run of a hundred files and a megabyte. */
TEST(a_crash_of_a_small_run_is_built_fast)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	static uint8_t bytes[10000];
	int root = dir_open(s, "/"), rounds = 200;
	clock_t t;
	double ms;

	for (int i = 0; i < 100; i++) {
		char name[8];
		int fd;

		snprintf(name, sizeof(name), "f%d", i);
		fd = file_new(s, root, name);
		memset(bytes, i + 1, sizeof(bytes));
		CHECK_INT(s->ops->pwrite(s->arg, fd, bytes, sizeof(bytes), 0), 10000);
		CHECK_INT(s->ops->fsync(s->arg, fd), 0);
		CHECK_INT(s->ops->close(s->arg, fd), 0);
	}
	t = clock();
	for (int i = 0; i < rounds; i++)
		simdisk_free(simdisk_crash(d, now(d), NULL));
	ms = (double)(clock() - t) * 1000 / CLOCKS_PER_SEC / rounds;
	print_message("%.3f ms a crash\n", ms);
	CHECK(ms < 20); /* loose, for sanitizers and slow machines; measured: see the message */
	simdisk_free(d);
}
