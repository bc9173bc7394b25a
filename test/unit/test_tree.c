/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of lib/store share (run_files.c): names, lines, small texts, and folders that are
 * deleted. Each reader at its limits: the longest text, the largest number, and one more. */
#include <errno.h>
#include <stdlib.h>
#include "t.h"
#include "err.h"
#include "lock.h"
#include "simdisk.h"
#include "run_files.h"

#define ID "0123456789abcdef0123456789abcdef"
#define MOST "9223372036854775806"      /* SHF_STEP_MAX */

/* ---- names ---- */

TEST(a_name_is_of_a_step_in_one_spelling_only)
{
	static const struct {
		const char *name;
		int64_t step;           /* -1: none */
	} names[] = {
		{ "checkpoint-0", 0 }, { "checkpoint-9", 9 }, { "checkpoint-10", 10 },
		{ "checkpoint-" MOST, SHF_STEP_MAX }, { "checkpoint-9223372036854775807", -1 },
		{ "checkpoint-9223372036854775799", 9223372036854775799 },
		{ "checkpoint-9223372036854775810", -1 }, { "checkpoint-18446744073709551617", -1 },
		{ "checkpoint-", -1 }, { "checkpoint-00", -1 }, { "checkpoint-01", -1 },
		{ "checkpoint--1", -1 }, { "checkpoint-+1", -1 }, { "checkpoint-1 ", -1 },
		{ "checkpoint-1/", -1 }, { "checkpoint-1:", -1 }, { "checkpoint_1", -1 },
		{ "checkpoint", -1 }, { "xcheckpoint-1", -1 }, { "", -1 },
	};
	struct shf_store s = { .prefix = "checkpoint-" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		int64_t step = -1;
		char name[SHF_STEP_NAME];

		CHECK(shf_step_of_name(&s, names[i].name, &step) == (names[i].step >= 0));
		CHECK_INT(step, names[i].step);
		if (step < 0)
			continue;
		shf_name_of_step(&s, name, step);
		CHECK_STR(name, names[i].name);
	}
}

TEST(a_name_of_step_and_session_is_split_into_both)
{
	static const struct {
		const char *name;
		int64_t step;
	} names[] = {
		{ "0-" ID, 0 }, { "12-" ID, 12 }, { MOST "-" ID, SHF_STEP_MAX },
		{ "9223372036854775807-" ID, -1 }, { "012-" ID, -1 }, { "-" ID, -1 }, { ID, -1 },
		{ "12", -1 }, { "12-", -1 }, { "12-" ID "0", -1 }, { "12--" ID, -1 },
		{ "12-0123456789abcdef0123456789abcde", -1 },
		{ "12-0123456789abcdef0123456789abcdeg", -1 },
		{ "12-0123456789abcdef0123456789abcde`", -1 },
		{ "12-0123456789abcdef0123456789abcde/", -1 },
		{ "12-0123456789abcdef0123456789abcde:", -1 },
		{ "12-0123456789ABCDEF0123456789abcdef", -1 },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char copy[80], session[33] = "as it was";
		int64_t step = -1;

		CHECK(shf_step_split(names[i].name, &step, session) == (names[i].step >= 0));
		CHECK_INT(step, names[i].step);
		CHECK_STR(session, step >= 0 ? ID : "as it was");
		CHECK(!shf_copy_split(names[i].name, &step, session));
		snprintf(copy, sizeof(copy), "copy-%s", names[i].name);
		step = -1;
		memcpy(session, "as it was", 10);
		CHECK(shf_copy_split(copy, &step, session) == (names[i].step >= 0));
		CHECK_INT(step, names[i].step);
		CHECK_STR(session, step >= 0 ? ID : "as it was");
	}
}

static int next_random;

static int drawn(void *arg, void *buf, size_t n)
{
	(void)arg;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)buf)[i] = (uint8_t)(0x10 * i + (15 - i));
	return next_random;
}

TEST(an_identity_has_all_digits_that_were_drawn)
{
	const struct shf_host_ops ops = { .random = drawn };
	struct shf_sys sys = { .host = { &ops, NULL } };
	char out[40];

	memset(out, 'x', sizeof(out));
	next_random = 0;
	CHECK_INT(shf_id_draw(&sys, out, 32), 0);
	CHECK_STR(out, "0f1e2d3c4b5a69788796a5b4c3d2e1f0");
	CHECK_INT(shf_id_draw(&sys, out, 16), 0);
	CHECK_STR(out, "0f1e2d3c4b5a6978");
	CHECK_INT(shf_id_draw(&sys, out, 1), 0);
	CHECK_STR(out, "0");
	next_random = -EAGAIN;
	CHECK_INT(shf_id_draw(&sys, out, 32), -EAGAIN);
}

/* ---- lines ---- */

TEST(a_line_is_what_follows_its_head_and_fits)
{
	static const struct {
		const char *text;
		size_t n, max;
		const char *got;        /* NULL: no line */
	} lines[] = {
		{ "pid 12\nrest", 11, 3, "12" }, { "pid 12\nrest", 11, 2, NULL },
		{ "pid 12\n", 7, 40, "12" }, { "pid 12", 6, 40, NULL }, { "pid \n", 5, 1, "" },
		{ "pid ", 4, 40, NULL }, { "pid", 3, 40, NULL }, { "", 0, 40, NULL },
		{ "pid \n", 5, 0, NULL }, { "pix 12\n", 7, 40, NULL }, { "pid 1\0\n", 7, 40, NULL },
		{ "pid \0" "1\n", 7, 40, NULL }, { "pid 1\n\0", 7, 40, "1" },
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		const char *p = lines[i].text, *end = p + lines[i].n;
		char out[40] = "as it was";

		CHECK(shf_line_get(&p, end, "pid ", out, lines[i].max) == (lines[i].got != NULL));
		CHECK_STR(out, lines[i].got ? lines[i].got : "as it was");
		CHECK_INT(p - lines[i].text, lines[i].got ? 5 + (int)strlen(out) : 0);
	}
}

TEST(a_number_has_digits_only_and_64_bits)
{
	static const struct {
		const char *text;
		bool is;
		uint64_t v;
	} numbers[] = {
		{ "0", true, 0 }, { "007", true, 7 }, { "18446744073709551615", true, UINT64_MAX },
		{ "18446744073709551616", false, 0 }, { "18446744073709551620", false, 0 },
		{ "99999999999999999999", false, 0 }, { "00000000000000000000001", true, 1 },
		{ "000000000000000000000001", false, 0 }, { "", false, 0 }, { "1 ", false, 0 },
		{ "-1", false, 0 }, { "/", false, 0 }, { ":", false, 0 }, { "9", true, 9 },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		char text[64];
		const char *p = text;
		uint64_t v = 42;
		int n = snprintf(text, sizeof(text), "pid %s\nend", numbers[i].text);

		CHECK(shf_line_number(&p, text + n, "pid ", &v) == numbers[i].is);
		CHECK(v == (numbers[i].is ? numbers[i].v : 42));
	}
}

TEST(a_sum_is_of_all_lines_before_it)
{
	struct shf_buf b = SHF_BUF_INIT;
	const char *start, *end, *sum;

	shf_buf_adds(&b, "junk\n");
	shf_buf_adds(&b, "one\ntwo\n");
	shf_line_sum(&b, 5);
	start = (const char *)b.data + 5;
	end = (const char *)b.data + b.len;
	sum = end - strlen("sum 0123456789abcdef\n");
	CHECK(memcmp(sum, "sum ", 4) == 0);
	CHECK(shf_line_sum_is_right(start, sum, end));
	CHECK(!shf_line_sum_is_right(start - 1, sum, end));
	CHECK(!shf_line_sum_is_right(start + 1, sum, end));
	CHECK(!shf_line_sum_is_right(start, sum - 1, end));
	CHECK(!shf_line_sum_is_right(start, sum, end - 1));
	b.data[6] ^= 1;
	CHECK(!shf_line_sum_is_right(start, sum, end));
	shf_buf_release(&b);
}

/* ---- who writes ---- */

static const struct shf_owner who = { .host = "here", .boot = "boot-1", .pid_ns = 11, .pid = 22,
	.start = 33, .time_ns = 44, .dev = 55 };

static void same_owner(const struct shf_owner *got, const struct shf_owner *want)
{
	CHECK_STR(got->host, want->host);
	CHECK_STR(got->boot, want->boot);
	CHECK_INT(got->pid_ns, want->pid_ns);
	CHECK_INT(got->pid, want->pid);
	CHECK_INT(got->start, want->start);
	CHECK_INT(got->time_ns, want->time_ns);
	CHECK_INT(got->dev, want->dev);
}

TEST(an_owners_text_says_all_of_him_and_is_read_as_written)
{
	static const char whole[] = "sheaf-owner 1\nhost here\nboot boot-1\npid_ns 11\npid 22\n"
		"start 33\ntime_ns 44\ndev 55\nsession " ID "\nsum ";
	static const char brief[] = "sheaf-owner 1\nhost here\nboot boot-1\npid_ns 11\npid 22\n"
		"start 33\nsession " ID "\nsum ";

	for (int known = 0; known < 2; known++) {
		struct shf_owner owner = who, got = { .pid = 1 };
		struct shf_buf b = SHF_BUF_INIT;
		char session[33] = "";

		owner.time_ns = known ? owner.time_ns : 0;
		owner.dev = known ? owner.dev : 0;
		shf_owner_put(&b, &owner, ID);
		CHECK_INT(b.len, strlen(known ? whole : brief) + 17);
		CHECK(memcmp(b.data, known ? whole : brief, b.len - 17) == 0);
		CHECK(shf_owner_get(b.data, b.len, &got, session));
		same_owner(&got, &owner);
		CHECK_STR(session, ID);
		/* No line may be left out, and no byte be another. */
		for (size_t i = 0; i < b.len; i++) {
			b.data[i] ^= 4;
			CHECK(!shf_owner_get(b.data, b.len, &got, session));
			b.data[i] ^= 4;
			CHECK(!shf_owner_get(b.data, i, &got, session));
		}
		same_owner(&got, &owner);
		shf_buf_release(&b);
	}
}

TEST(a_text_without_one_of_its_lines_names_nobody)
{
	static const char *const lines[] = { "sheaf-owner 1\n", "host here\n", "boot boot-1\n",
		"pid_ns 11\n", "pid 22\n", "start 33\n", "time_ns 44\n", "dev 55\n",
		"session " ID "\n" };

	for (size_t without = 0; without <= 9; without++) {
		struct shf_owner got = { .pid = 1 };
		struct shf_buf b = SHF_BUF_INIT;
		char session[33] = "";

		for (size_t i = 0; i < 9; i++)
			if (i != without)
				shf_buf_adds(&b, lines[i]);
		shf_line_sum(&b, 0);
		CHECK(shf_owner_get(b.data, b.len, &got, session) ==
		      (without == 6 || without == 7 || without == 9));
		CHECK_INT(got.pid, session[0] ? 22 : 1);
		shf_buf_release(&b);
	}
}

/* ---- small texts ---- */

static struct simdisk *disk;
static const struct shf_sys *sys;
static int root;

static void begin(void)
{
	disk = simdisk_new(5, SIMDISK_STRICT);
	sys = simdisk_process(disk, 1, 0);
	root = shf_sys_open(sys, SHF_CWD, ".", SHF_O_DIR, 0);
	CHECK(root >= 0);
}

static void end(void)
{
	shf_fd_close(sys, &root);
	CHECK_INT(root, -1);
	CHECK_INT(simdisk_open_n(sys), 0);
	simdisk_free(disk);
}

TEST(a_text_is_read_up_to_its_bound_and_behind_what_is_there)
{
	struct shf_buf b = SHF_BUF_INIT;

	begin();
	CHECK_INT(simdisk_put(disk, "/five", "12345", 5), 0);
	CHECK_INT(simdisk_put(disk, "/none", "", 0), 0);
	CHECK_INT(simdisk_put(disk, "/dir/x", "", 0), 0);
	CHECK_INT(simdisk_symlink(disk, "five", "/link"), 0);
	shf_buf_adds(&b, "ab");
	CHECK_INT(shf_text_read(sys, root, "five", &b, 4), -EFBIG);
	CHECK_INT(shf_text_read(sys, root, "dir", &b, 100), -EISDIR);
	CHECK_INT(shf_text_read(sys, root, "link", &b, 100), -ELOOP);
	CHECK_INT(shf_text_read(sys, root, "gone", &b, 100), -ENOENT);
	CHECK_INT(shf_text_read(sys, root, "none", &b, 0), 0);
	CHECK_INT(b.len, 2);
	CHECK_INT(shf_text_read(sys, root, "five", &b, 5), 0);
	CHECK_INT(b.len, 7);
	CHECK(memcmp(b.data, "ab12345", 7) == 0);
	simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = EIO,
	                                             .kind = SIMDISK_PREAD });
	CHECK_INT(shf_text_read(sys, root, "five", &b, 5), -EIO);
	CHECK_INT(b.len, 7);
	simdisk_faults_clear(disk);
	shf_buf_release(&b);
	end();
}

/* How many names lie in the root. */
static int count_one(void *arg, const char *name)
{
	(void)name;
	++*(int *)arg;
	return 0;
}

static int names_n(void)
{
	int n = 0;

	CHECK_INT(shf_sys_list(sys, root, count_one, &n), 0);
	return n;
}

TEST(a_text_is_put_whole_or_not_at_all_and_leaves_nothing_else)
{
	static const enum simdisk_kind kinds[] = { SIMDISK_RANDOM, SIMDISK_OPEN, SIMDISK_PWRITE,
		SIMDISK_FSYNC, SIMDISK_CLOSE, SIMDISK_RENAME };

	begin();
	CHECK_INT(shf_text_put(sys, root, root, "text", "old", 3, true), 0);
	CHECK_INT(shf_text_put(sys, root, root, "text", "new", 3, true), -EEXIST);
	CHECK_INT(names_n(), 1);
	for (size_t i = 0; i < 6; i++) {
		size_t n;
		char *is;

		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .error = ENOSPC,
		                                             .kind = kinds[i] });
		CHECK_INT(shf_text_put(sys, root, root, "text", "newer", 5, false), -ENOSPC);
		CHECK_INT(simdisk_fired(disk), 1);
		simdisk_faults_clear(disk);
		CHECK_INT(names_n(), 1);
		CHECK_INT(simdisk_open_n(sys), 1);
		is = simdisk_get(disk, "/text", &n);
		CHECK(n == 3 && memcmp(is, "old", 3) == 0);
		free(is);
	}
	CHECK_INT(shf_text_put(sys, root, root, "text", "newer", 5, false), 0);
	CHECK_INT(names_n(), 1);
	end();
}

/* ---- folders that go ---- */

static void nested(int depth)
{
	char path[200] = "";

	for (int i = 0; i < depth; i++)
		strcat(path, i ? "/d" : "/top");
	strcat(path, "/file");
	CHECK_INT(simdisk_put(disk, path, "x", 1), 0);
}

TEST(a_folder_goes_with_all_in_it_down_to_a_depth)
{
	begin();
	CHECK_INT(shf_tree_remove(sys, root, "top"), 0);        /* it is gone already */
	nested(8);
	CHECK_INT(simdisk_symlink(disk, "/keep", "/top/link"), 0);
	CHECK_INT(simdisk_put(disk, "/keep/x", "x", 1), 0);
	CHECK_INT(shf_tree_remove(sys, root, "top"), 0);
	CHECK(!simdisk_exists(disk, "/top") && simdisk_exists(disk, "/keep/x"));
	nested(9);
	CHECK_INT(simdisk_put(disk, "/top/d/other", "x", 1), 0);
	CHECK_INT(shf_tree_remove(sys, root, "top"), -ELOOP);
	CHECK(simdisk_exists(disk, "/top/d") && !simdisk_exists(disk, "/top/d/other"));
	end();
}

/* The first error is told, and what can go has gone all the same. */
TEST(of_a_folder_that_cannot_go_the_rest_goes)
{
	static const struct {
		enum simdisk_kind kind;
		const char *name;
		int error;
		bool rest;              /* goes */
	} cases[] = {
		{ SIMDISK_UNLINK, "b", EACCES, true }, { SIMDISK_STAT, "b", EACCES, true },
		{ SIMDISK_UNLINK, "top", EBUSY, true }, { SIMDISK_STAT, "top", EACCES, false },
		{ SIMDISK_OPEN, "top", EACCES, false }, { SIMDISK_LIST, "top", EIO, false },
		{ SIMDISK_OPEN, "dir", EMFILE, true }, { SIMDISK_LIST, "dir", EIO, true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		begin();
		CHECK_INT(simdisk_put(disk, "/top/a", "x", 1), 0);
		CHECK_INT(simdisk_put(disk, "/top/b", "x", 1), 0);
		CHECK_INT(simdisk_put(disk, "/top/c", "x", 1), 0);
		CHECK_INT(simdisk_put(disk, "/top/dir/d", "x", 1), 0);
		simdisk_fault(disk, &(struct simdisk_fault){ .nth = 1, .always = true,
			.error = cases[i].error, .kind = cases[i].kind, .name = cases[i].name });
		CHECK_INT(shf_tree_remove(sys, root, "top"), -cases[i].error);
		simdisk_faults_clear(disk);
		CHECK(simdisk_exists(disk, "/top"));
		CHECK(simdisk_exists(disk, "/top/a") == !cases[i].rest);
		CHECK(simdisk_exists(disk, "/top/c") == !cases[i].rest);
		CHECK_INT(shf_tree_remove(sys, root, "top"), 0);
		CHECK(!simdisk_exists(disk, "/top"));
		end();
	}
}

TEST(a_folder_is_a_step_if_it_is_the_same_one)
{
	struct shf_store s;
	struct sheaf_error err;

	begin();
	CHECK_INT(simdisk_put(disk, "/run/checkpoint-5/x", "x", 1), 0);
	CHECK_INT(simdisk_put(disk, "/run/checkpoint-6/x", "x", 1), 0);
	CHECK_RC(shf_store_open(&s, sys, "/run", &err), 0, &err);
	CHECK(shf_tree_is_step(&s, s.dir, "checkpoint-5", 5));
	CHECK(!shf_tree_is_step(&s, s.dir, "checkpoint-6", 5));
	CHECK(!shf_tree_is_step(&s, s.dir, "checkpoint-5", 7));
	CHECK(!shf_tree_is_step(&s, s.dir, "gone", 5));
	shf_store_close(&s);
	end();
}
