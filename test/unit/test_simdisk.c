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
	int fd = shf_sys_open(s, dir, name, W | SHF_O_EXCL, 0666);

	CHECK(fd >= 0);
	return fd;
}

static void put(const struct shf_sys *s, int fd, const char *text, uint64_t off)
{
	CHECK_INT(shf_sys_pwrite(s, fd, text, strlen(text), off), (int)strlen(text));
}

static int dir_open(const struct shf_sys *s, const char *path)
{
	int fd = shf_sys_open(s, SHF_CWD, path, SHF_O_DIR, 0);

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
			simdisk_abandon(left);
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
		CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_close(s, fd), 0);
	if (sync_dir)
		CHECK_INT(shf_sys_fsync(s, root), model == SIMDISK_NFS ? -EINVAL : 0);
	seen = outcomes(d, now(d), 0, look_f);
	simdisk_abandon(d);
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
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_fsync(s, root), 0);
	CHECK_INT(outcomes(d, before, 0, look_f), 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3);
	CHECK_INT(simdisk_unsynced(d, before), 3);
	CHECK_INT(simdisk_unsynced(d, now(d)), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2);
	CHECK_INT(outcomes(d, 0, 0, look_f), 1 << 0);
	simdisk_abandon(d);
}

TEST(what_is_written_after_a_sync_is_unsynced_again)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), fd = file_new(s, root, "f");

	put(s, fd, "hello", 0);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_fsync(s, root), 0);
	put(s, fd, "HE", 0);
	CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2 | 1 << 4);
	simdisk_abandon(d);
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
			CHECK_INT(shf_sys_fsync(s, fd), 0);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		                                          .kind = SIMDISK_FSYNC });
		CHECK_INT(shf_sys_fsync(s, root), -EIO);
		CHECK_INT(shf_sys_fsync(s, root), 0);
		simdisk_fault(d, &(struct simdisk_fault){ .nth = 1, .error = EIO,
		                                          .kind = SIMDISK_FSYNC });
		CHECK_INT(shf_sys_fsync(s, fd), -EIO);
		CHECK_INT(shf_sys_fsync(s, fd), 0);
		CHECK_INT(simdisk_fired(d), 2);
		CHECK_INT(outcomes(d, now(d), 0, look_f), how ? 1 | 1 << 2 : 1 | all);
		put(s, fd, "hello", 0); /* written again, it can be synced again */
		CHECK_INT(shf_sys_fsync(s, fd), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_f) & (1 << 3 | 1 << 4), 0);
		simdisk_abandon(d);
	}
}

TEST(a_node_syncs_only_the_data_it_wrote)
{
	for (int model = 0; model < 3; model++) {
		struct simdisk *d = simdisk_new(SEED, (enum simdisk_model)model);
		const struct shf_sys *a = simdisk_process(d, 1, 0);
		const struct shf_sys *b = simdisk_process(d, 2, 1);
		int root = dir_open(a, "/"), fa = file_new(a, root, "f");
		int fb = shf_sys_open(b, SHF_CWD, "/f", SHF_O_WRITE, 0);
		unsigned want = model == SIMDISK_EXT4 ? 1 << 2 : 1 << 2 | 1 << 3;

		CHECK_INT(shf_sys_resize(a, fa, 5), 0);
		CHECK_INT(shf_sys_fsync(a, fa), 0);
		put(a, fa, "hello", 0);
		CHECK_INT(shf_sys_fsync(b, fb), 0);
		shf_sys_fsync(a, root);
		CHECK_INT(outcomes(d, now(d), 0, look_f), want);
		CHECK_INT(shf_sys_fsync(a, fa), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_f), 1 << 2);
		simdisk_abandon(d);
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
	CHECK_INT(shf_sys_rename(s, a, "old", b, "new", true), 0);
	if (sync_a)
		shf_sys_fsync(s, a);
	if (sync_b)
		shf_sys_fsync(s, b);
	seen = outcomes(d, now(d), 0, look_names);
	simdisk_abandon(d);
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

TEST(fsync_of_a_file_settles_neither_half_of_its_rename)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int fd;

	CHECK_INT(simdisk_put(d, "/a/old", "hello", 5), 0);
	CHECK_INT(simdisk_put(d, "/b/other", "", 0), 0);
	simdisk_settle(d);
	fd = shf_sys_open(s, SHF_CWD, "a/old", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "a/old", SHF_CWD, "b/new", true), 0);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_names), 15);
	simdisk_abandon(d);
}

/* bit 0: the first name, bit 1: the later one, both of one file */
static int look_renamed(struct simdisk *d)
{
	return (holds(d, "/f", "hello") == 1) | (holds(d, "/g", "hello") == 1) << 1;
}

TEST(a_later_name_may_persist_where_the_first_was_lost)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left;
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	uint64_t second_alone = 2;
	int fd = file_new(s, SHF_CWD, "f");

	put(s, fd, "hello", 0);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "f", SHF_CWD, "g", true), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_renamed), 15);
	/* The items: f added, g added, f removed. */
	left = simdisk_crash(d, now(d), &(struct simdisk_choice){ .kept = &second_alone });
	CHECK_INT(look_renamed(left), 2);
	simdisk_abandon(left);
	simdisk_abandon(d);
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
		CHECK_INT(shf_sys_fsync(s, fd), 0);
		CHECK_INT(outcomes(d, now(d), 0, look_three),
		          model == SIMDISK_STRICT ? 0xff : 1 << 3 | 1 << 7);
		simdisk_abandon(d);
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

	CHECK_INT(shf_sys_mkdir(s, root, "d", 0777), 0);
	dir = shf_sys_open(s, root, "d", SHF_O_DIR, 0);
	fd = file_new(s, dir, "f");
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_fsync(s, dir), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 3);       /* d itself is not durable */
	CHECK_INT(shf_sys_fsync(s, root), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 2);
	CHECK_INT(shf_sys_unlink(s, dir, "f", false), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 3);
	CHECK_INT(shf_sys_fsync(s, dir), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_there), 1);
	simdisk_abandon(d);
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
		fd = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);
		memset(bytes, 2, sizeof(bytes));
		CHECK_INT(shf_sys_pwrite(s, fd, bytes, 8192, 0), 8192);
		CHECK_INT(simdisk_unsynced(d, now(d)), 1);
		CHECK_INT(outcomes(d, now(d), 0, look_torn), 3);
		CHECK_INT(outcomes(d, now(d), 512, look_torn), 7);
		CHECK_INT(outcomes(d, now(d), 4096, look_torn), 7);
		CHECK_INT(shf_sys_fsync(s, fd), 0);
		CHECK_INT(outcomes(d, now(d), 512, look_torn), 2);
		simdisk_abandon(d);
	}
}

TEST(what_is_durable_is_not_torn_by_what_is_not)
{
	static uint8_t bytes[8192];
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT);
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int fd, other;

	memset(bytes, 1, sizeof(bytes));
	CHECK_INT(simdisk_put(d, "/f", bytes, sizeof(bytes)), 0);
	simdisk_settle(d);
	other = file_new(s, SHF_CWD, "other");
	put(s, other, "unsynced", 0);
	fd = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);
	memset(bytes, 2, sizeof(bytes));
	CHECK_INT(shf_sys_pwrite(s, fd, bytes, 8192, 0), 8192);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(outcomes(d, now(d), 512, look_torn), 2);
	simdisk_abandon(d);
}

TEST(what_a_cut_hides_takes_no_space_and_never_returns)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left;
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int root = dir_open(s, "/"), fd = file_new(s, root, "f"), lost;
	uint64_t data_alone = 1, before = 0, after = 0;

	CHECK_INT(shf_sys_fsync(s, root), 0);
	CHECK_INT(shf_sys_free_bytes(s, fd, &before), 0);
	put(s, fd, "hello", 0);
	lost = file_new(s, root, "lost");
	CHECK_INT(shf_sys_resize(s, lost, 100000), 0);
	CHECK_INT(shf_sys_fsync(s, lost), 0);
	/* The data of f is kept, its size is not; lost has no name. */
	left = simdisk_crash(d, now(d), &(struct simdisk_choice){ .kept = &data_alone });
	s = simdisk_process(left, 1, 0);
	fd = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_free_bytes(s, fd, &after), 0);
	CHECK_INT(after, before);
	CHECK_INT(shf_sys_resize(s, fd, 5), 0);
	CHECK_INT(look_f(left), 3);
	simdisk_abandon(left);
	simdisk_abandon(d);
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
		CHECK_INT(shf_sys_pwrite(s, fd, bytes, 10000, 0), 10000);
		CHECK_INT(outcomes(d, now(d), 4096, look_prefix),
		          model == SIMDISK_EXT4 ? 1 : 3);
		simdisk_abandon(d);
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
	fd = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE, 0);
	CHECK_INT(shf_sys_resize(s, fd, 4), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 3);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 2);
	CHECK_INT(shf_sys_resize(s, fd, 10), 0);
	CHECK_INT(shf_sys_pread(s, fd, buf, 10, 0), 10);
	CHECK(!memcmp(buf, "0123\0\0\0\0\0\0", 10));
	fd = shf_sys_open(s, SHF_CWD, "f", SHF_O_WRITE | SHF_O_TRUNC, 0);
	CHECK_INT(shf_sys_pread(s, fd, buf, 10, 0), 0);
	CHECK_INT(outcomes(d, now(d), 0, look_size), 1 << 0 | 1 << 1 | 1 << 2);
	simdisk_abandon(d);
}

TEST(a_crashed_disk_is_durable_rebooted_and_can_crash_again)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left, *again;
	const struct shf_sys *s = simdisk_process(d, 7, 0), *t;
	struct shf_owner before, after;
	uint64_t all = UINT64_MAX;
	int fd = file_new(s, SHF_CWD, "f");

	put(s, fd, "hello", 0);
	CHECK_INT(shf_sys_owner(s, &before), 0);
	left = simdisk_crash(d, now(d), &(struct simdisk_choice){ .kept = &all });
	CHECK_INT(simdisk_hash(left, "/"), simdisk_hash(d, "/"));
	CHECK_INT(simdisk_unsynced(left, 0), 0);
	CHECK_INT(simdisk_cut_n(left), 1);
	t = simdisk_process(left, 7, 0);
	CHECK_INT(shf_sys_owner(t, &after), 0);
	CHECK(strcmp(before.boot, after.boot) != 0);
	CHECK(shf_sys_wall_s(t) >= shf_sys_wall_s(s) + 3000);
	CHECK(!shf_sys_owner_is_dead(t, &before)); /* another boot proves nothing */
	fd = shf_sys_open(t, SHF_CWD, "f", SHF_O_WRITE, 0);
	put(t, fd, "HELLO", 0);
	again = simdisk_crash(left, now(left), NULL);
	CHECK_INT(holds(again, "/f", "hello"), 1);
	simdisk_abandon(again);
	again = simdisk_crash(left, now(left), &(struct simdisk_choice){ .kept = &all });
	CHECK_INT(holds(again, "/f", "HELLO"), 1);
	CHECK_INT(holds(left, "/f", "HELLO"), 1);
	CHECK_INT(holds(d, "/f", "hello"), 1);          /* the first knows nothing of it */
	simdisk_abandon(again);
	simdisk_abandon(left);
	simdisk_abandon(d);
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
		CHECK_INT(shf_sys_random(s, chance, sizeof(chance)), 0);
		CHECK_INT(shf_sys_pwrite(s, fd, chance, sizeof(chance), 3), 5000);
		for (uint64_t seed = 0; seed < 8; seed++) {
			struct simdisk_choice c = { &all, 512, seed };
			struct simdisk *left = simdisk_crash(d, now(d), &c);

			differ += simdisk_hash(left, "/") != simdisk_hash(d, "/");
			hash[i] = hash[i] * 3 + simdisk_hash(left, "/");
			simdisk_abandon(left);
		}
		simdisk_abandon(d);
	}
	CHECK(hash[0] == hash[1]);
	CHECK(differ > 8);
}

TEST(a_huge_sparse_file_costs_what_is_written)
{
	struct simdisk *d = simdisk_new(SEED, SIMDISK_STRICT), *left;
	const struct shf_sys *s = simdisk_process(d, 1, 0);
	int fd = file_new(s, SHF_CWD, "f");
	uint64_t size = UINT64_C(6) << 30;
	struct shf_stat st;
	char buf[5];

	CHECK_INT(shf_sys_resize(s, fd, size), 0);
	put(s, fd, "hello", size - 5);
	put(s, fd, "world", size / 2 - 2);
	CHECK_INT(shf_sys_fsync(s, fd), 0);
	CHECK_INT(shf_sys_fsync(s, dir_open(s, "/")), 0);
	left = simdisk_crash(d, now(d), NULL);
	s = simdisk_process(left, 1, 0);
	fd = shf_sys_open(s, SHF_CWD, "f", 0, 0);
	CHECK_INT(shf_sys_fstat(s, fd, &st), 0);
	CHECK(st.bytes == size);
	CHECK_INT(shf_sys_pread(s, fd, buf, 5, size - 5), 5);
	CHECK(!memcmp(buf, "hello", 5));
	CHECK_INT(shf_sys_pread(s, fd, buf, 5, size / 2 - 2), 5);
	CHECK(!memcmp(buf, "world", 5));
	CHECK_INT(shf_sys_pread(s, fd, buf, 5, 12345), 5);
	CHECK(!memcmp(buf, "\0\0\0\0\0", 5));
	CHECK_INT(shf_sys_pread(s, fd, buf, 5, size - 2), 2);
	simdisk_abandon(left);
	simdisk_abandon(d);
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
				k += (unsigned)(s.kept[i / 64] >> (i % 64) & 1);
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
	CHECK_INT(shf_sys_rename(s, SHF_CWD, "f", SHF_CWD, "g", false), 0);
	for (size_t i = 0; i < simdisk_unsynced(d, now(d)); i++) {
		simdisk_item_text(d, now(d), i, one, sizeof(one));
		strcat(strcat(all, one), ";");
	}
	CHECK_STR(all, "entry + //f;data f 5 at 0;size f 5;entry + //g;entry - //f;");
	CHECK_INT(simdisk_cut_call(d, now(d)), 3);
	simdisk_abandon(d);
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
		char name[16];
		int fd;

		snprintf(name, sizeof(name), "f%d", i);
		fd = file_new(s, root, name);
		memset(bytes, i + 1, sizeof(bytes));
		CHECK_INT(shf_sys_pwrite(s, fd, bytes, sizeof(bytes), 0), 10000);
		CHECK_INT(shf_sys_fsync(s, fd), 0);
		CHECK_INT(shf_sys_close(s, fd), 0);
	}
	t = clock();
	for (int i = 0; i < rounds; i++)
		simdisk_abandon(simdisk_crash(d, now(d), NULL));
	ms = (double)(clock() - t) * 1000 / CLOCKS_PER_SEC / rounds;
	print_message("%.3f ms a crash\n", ms);
	CHECK(ms < 20); /* loose, for sanitizers and slow machines; measured: see the message */
	simdisk_abandon(d);
}
