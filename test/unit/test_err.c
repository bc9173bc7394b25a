/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"
#include <errno.h>
#include "err.h"

TEST(the_sentence_the_code_and_nobody)
{
	struct sheaf_error err;

	memset(&err, 0x55, sizeof(err));
	CHECK_INT(shf_fail(&err, SHEAF_ECORRUPT, "%s: sum %d, want %d", "a/b", 1, 2),
		  SHEAF_ECORRUPT);
	CHECK_INT(err.code, SHEAF_ECORRUPT);
	CHECK_INT(err.sys, 0);
	CHECK_INT(err.rank, -1);
	CHECK_STR(err.msg, "a/b: sum 1, want 2");
	shf_error_clear(&err);
	CHECK(err.code == 0 && err.sys == 0 && err.rank == -1 && !err.msg[0]);
}

TEST(no_error_wanted_is_no_error_written)
{
	CHECK_INT(shf_fail(NULL, SHEAF_EINVAL, "x"), SHEAF_EINVAL);
	CHECK_INT(shf_fail_sys(NULL, ENOENT, "x"), SHEAF_ENOENT);
	shf_error_clear(NULL);
}

TEST(an_errno_chooses_the_code_and_adds_its_words)
{
	struct sheaf_error err;

	CHECK_INT(shf_fail_sys(&err, ENOSPC, "%s: write", "f"), SHEAF_EIO);
	CHECK_INT(err.sys, ENOSPC);
	CHECK_STR(err.msg, "f: write: No space left on device");
	CHECK_INT(shf_fail_sys(&err, 99999, "f"), SHEAF_EIO);
	CHECK_STR(err.msg, "f: error 99999");
	CHECK_INT(shf_code_of(ENOMEM), SHEAF_ENOMEM);
	CHECK_INT(shf_code_of(ENOENT), SHEAF_ENOENT);
	CHECK_INT(shf_code_of(ENOTDIR), SHEAF_ENOENT);
	CHECK_INT(shf_code_of(EACCES), SHEAF_EIO);
	CHECK_INT(shf_code_of(EIO), SHEAF_EIO);
}

TEST(errno_is_left_as_it_was)
{
	struct sheaf_error err;

	errno = EDOM;
	shf_fail_sys(&err, 99999, "%s", "x");
	CHECK_INT(errno, EDOM);
	/* No character of this locale, which printing answers with an errno of its own. */
	CHECK_INT(shf_fail(&err, SHEAF_EIO, "%ls", L"\xd800"), SHEAF_EIO);
	CHECK_INT(errno, EDOM);
	CHECK_STR(err.msg, "unprintable message");
}

TEST(an_error_may_quote_its_own_sentence)
{
	struct sheaf_error err;

	shf_fail(&err, SHEAF_EIO, "block 7");
	shf_fail(&err, err.code, "file 2: %s", err.msg);
	CHECK_STR(err.msg, "file 2: block 7");
}

TEST(control_bytes_become_question_marks)
{
	struct sheaf_error err;

	shf_fail(&err, SHEAF_EIO, "a\nb\tc\x1b[31md\x7f" "e");
	CHECK_STR(err.msg, "a?b?c?[31md?e");
	shf_fail(&err, SHEAF_EIO, "a\xc2\x9b" "31m");           /* a C1 control */
	CHECK_STR(err.msg, "a??31m");
}

TEST(good_utf8_stays_and_bad_becomes_question_marks)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{ "Schl\xc3\xbcssel", "Schl\xc3\xbcssel" },
		{ "\xe6\x9d\x9f \xf0\x9f\x8c\xbe", "\xe6\x9d\x9f \xf0\x9f\x8c\xbe" },
		{ "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf" },
		{ "\xc2\xa0", "\xc2\xa0" },
		{ "\xff", "?" },
		{ "\xc0\xaf", "??" },                   /* overlong */
		{ "\xe0\x80\xaf", "???" },
		{ "\xf0\x80\x80\xaf", "????" },
		{ "\xed\xa0\x80", "???" },              /* a surrogate */
		{ "\xf4\x90\x80\x80", "????" },         /* past the last */
		{ "\xe6\x9d", "??" },                   /* cut */
		{ "\xe6" "abc", "?abc" },
		{ "\x80", "?" },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		shf_fail(&err, SHEAF_EIO, "%s", cases[i].in);
		CHECK_STR(err.msg, cases[i].out);
	}
}

TEST(a_long_name_is_cut_and_the_reason_is_not)
{
	struct sheaf_error err;
	char name[5001];
	const char *why = ": No space left on device";

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	shf_fail_sys(&err, ENOSPC, "%s", name);
	CHECK(strlen(err.msg) < sizeof(err.msg) && strlen(err.msg) > sizeof(err.msg) - 4);
	CHECK_STR(err.msg + strlen(err.msg) - strlen(why), why);
	/* Nor is a reason that is a part of the message. */
	shf_fail(&err, SHEAF_ENOENT, "run %s gpt: no step 7", name);
	CHECK(strlen(err.msg) < sizeof(err.msg) && strlen(err.msg) > sizeof(err.msg) - 4);
	CHECK(strncmp(err.msg, "run nnn", 7) == 0 && strstr(err.msg, "n...n"));
	CHECK_STR(err.msg + strlen(err.msg) - 14, "gpt: no step 7");
}

/* Fills path with 'a'..'z' again and again, a '/' at its beginning; n bytes. */
static void path_fill(char *path, size_t n)
{
	for (size_t i = 0; i < n; i++)
		path[i] = (char)('a' + i % 26);
	path[0] = '/';
	path[n] = '\0';
}

/* 120 bytes of a path are shown, also where it stands twice, and all that is said beside it. */
TEST(a_long_path_loses_its_middle_and_the_rest_of_the_message_nothing)
{
	struct sheaf_error err;
	char path[4097], want[600];

	for (size_t n = 118; n < sizeof(path); n += n < 124 ? 1 : 993) {
		path_fill(path, n);
		if (n <= 120)
			snprintf(want, sizeof(want), "no step in %s or %s (give RUN)", path, path);
		else
			snprintf(want, sizeof(want),
				 "no step in %.58s...%s or %.58s...%s (give RUN)", path,
				 path + n - 58, path, path + n - 58);
		shf_fail(&err, SHEAF_ENOENT, "no step in %s or %s (give RUN)", path, path);
		CHECK_STR(err.msg, want);
	}
	/* What is put together of several arguments is one path. */
	path_fill(path, 4000);
	snprintf(want, sizeof(want), "%.58s...%s/checkpoint-7/sheaf.json: open: %s", path,
		 path + 4000 - 58 + (int)strlen("/checkpoint-7/sheaf.json:"),
		 "No space left on device");
	shf_fail_sys(&err, ENOSPC, "%s/checkpoint-7/%s: open", path, "sheaf.json");
	CHECK_STR(err.msg, want);
}

TEST(a_long_path_is_cut_between_characters_and_a_long_name_without_a_slash_is_not)
{
	struct sheaf_error err;
	char name[200];

	for (size_t off = 0; off < 3; off++) {
		memset(name, 'n', sizeof(name) - 1);
		name[sizeof(name) - 1] = '\0';
		for (size_t i = 1 + off; i + 4 < sizeof(name); i += 3)
			memcpy(name + i, "\xe6\x9d\x9f", 3);
		name[0] = '/';
		shf_fail(&err, SHEAF_EIO, "%s", name);
		CHECK(strlen(err.msg) <= 120 && strlen(err.msg) > 114);
		CHECK(strstr(err.msg, "\x9f...\xe6") && !strchr(err.msg, '?'));
		name[0] = 'n';
		shf_fail(&err, SHEAF_EIO, "%s", name);
		CHECK_STR(err.msg, name);
	}
}

/* One that just fits stays whole; of one byte more the middle is cut out. */
TEST(a_sentence_is_cut_where_it_would_not_fit_and_not_before)
{
	struct sheaf_error err;
	char text[sizeof(err.msg) + 8], want[2 * sizeof(err.msg) + 16];
	const size_t most = sizeof(err.msg) - 1, half = (sizeof(err.msg) - 4) / 2;

	for (size_t n = most - 2; n <= most + 2; n++) {
		for (size_t i = 0; i < n; i++)
			text[i] = (char)('a' + i % 26);
		text[n] = '\0';
		memcpy(want, text, n + 1);
		if (n > most)
			snprintf(want, sizeof(want), "%.*s...%s", (int)half, text, text + n - half);
		shf_fail(&err, SHEAF_EIO, "%s", text);
		CHECK_STR(err.msg, want);
	}
}

/* A character begins and ends with what it may, from both sides of each limit. */
TEST(the_limits_of_characters_are_those_of_utf8)
{
	static const struct { const char *in, *out; } cases[] = {
		{ "\x1f", "?" }, { " ", " " }, { "~", "~" }, { "\x7f", "?" }, { "\xc1\xbf", "??" },
		{ "\xc2\x9f", "??" }, { "\xc2\xbf", "\xc2\xbf" }, { "\xc2\xc0", "??" },
		{ "\xc3\x80", "\xc3\x80" }, { "\xc3\x7f", "??" }, { "\xdf\xbf", "\xdf\xbf" },
		{ "\xe0\x9f\xbf", "???" }, { "\xe0\xa0\x80", "\xe0\xa0\x80" },
		{ "\xe1\x80\x80", "\xe1\x80\x80" }, { "\xe1\x80\x7f", "???" },
		{ "\xe1\x80\xc0", "???" }, { "\xec\xbf\xbf", "\xec\xbf\xbf" },
		{ "\xed\x9f\xbf", "\xed\x9f\xbf" }, { "\xee\x80\x80", "\xee\x80\x80" },
		{ "\xef\xbf\xbf", "\xef\xbf\xbf" }, { "\xf0\x8f\xbf\xbf", "????" },
		{ "\xf0\x90\x80\x80", "\xf0\x90\x80\x80" }, { "\xf1\x80\x80\x7f", "????" },
		{ "\xf1\x80\x80\x80", "\xf1\x80\x80\x80" }, { "\xf1\x80\x80\xc0", "????" },
		{ "\xf3\xbf\xbf\xbf", "\xf3\xbf\xbf\xbf" }, { "\xf5\x80\x80\x80", "????" },
	};
	struct sheaf_error err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		shf_fail(&err, SHEAF_EIO, "%s", cases[i].in);
		CHECK_STR(err.msg, cases[i].out);
	}
}

TEST(a_long_name_is_cut_between_characters)
{
	struct sheaf_error err;
	char name[2000];

	/* A character of three bytes at each place of both cuts. */
	for (size_t n = sizeof(name) - 4; n < sizeof(name); n++)
		for (size_t off = 0; off < 3; off++) {
			memset(name, 'n', n);
			name[n] = 0;
			for (size_t i = off; i + 3 < n; i += 3)
				memcpy(name + i, "\xe6\x9d\x9f", 3);
			shf_fail(&err, SHEAF_EIO, "%s", name);
			CHECK(strlen(err.msg) < sizeof(err.msg));
			CHECK(strlen(err.msg) + 8 > sizeof(err.msg));
			CHECK(strstr(err.msg, "\x9f...\xe6") && !strchr(err.msg, '?'));
		}
}

TEST(each_code_has_words_of_its_own)
{
	CHECK_STR(sheaf_strerror(SHEAF_OK), "success");
	CHECK_STR(sheaf_code_name(SHEAF_EDIVERGED), "EDIVERGED");
	CHECK(!sheaf_code_name(1) && !sheaf_code_name(SHEAF_EEND - 1));
	for (int a = 0; a >= SHEAF_EEND; a--) {
		CHECK(sheaf_strerror(a) && sheaf_strerror(a)[0]);
		for (int b = 0; b > a; b--)
			CHECK(strcmp(sheaf_strerror(a), sheaf_strerror(b)) &&
			      strcmp(sheaf_code_name(a), sheaf_code_name(b)));
	}
	CHECK_STR(sheaf_strerror(1), "unknown code");
	CHECK_STR(sheaf_strerror(SHEAF_EEND - 1), "unknown code");
}

TEST(the_version_is_a_number)
{
	int major, minor, patch;

	CHECK_INT(sscanf(VERSION, "%d.%d.%d", &major, &minor, &patch), 3);
	CHECK_INT(sheaf_version(), 10000 * major + 100 * minor + patch);
	CHECK_INT(SHEAF_VERSION, sheaf_version());
	CHECK_STR(SHEAF_VERSION_STRING, VERSION);
}

TEST(always_is_true_of_what_is_true)
{
	CHECK(always(1 + 1 == 2));
}
