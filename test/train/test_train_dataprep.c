/* SPDX-License-Identifier: Apache-2.0 */
/* Token files made by any number of threads, and by processes that are killed and continued. */
#include "t.h"

#include <errno.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataprep.h"
#include "preplog.h"
#include "rmtree.h"

enum { LINES = 900, CHUNK = 512, TEXT = 5000, FILE_MAX = 1 << 21 };

static const char *const in[] = { "prep/a.txt", "prep/b.jsonl", "prep/empty", "prep/c.jsonl" };

static void put_file(const char *path, const char *text, size_t n)
{
	FILE *f = fopen(path, "wb");

	CHECK(f && fwrite(text, 1, n, f) == n);
	CHECK_INT(fclose(f), 0);
}

/* Lines of very different lengths, some of them longer than several chunks, with a blank one now
 * and then. */
static void put_lines(const char *path, int prompts)
{
	FILE *f = fopen(path, "wb");

	CHECK(f != NULL);
	for (int i = 0; i < LINES; i++) {
		int n = i % 97 == 5 ? 2000 : i * i % 41;

		if (prompts && i % 3)
			fprintf(f, "{\"prompt\": \"p%0*d\", \"response\": \"r%d\"}\r\n", n, i, i);
		else
			fprintf(f, "{\"id\": 18446744073709551%d, "
				"\"text\": \"t%0*d\\u0000\\u20ac\"}\n", i, n, i);
		if (i % 50 == 7)
			fputs(" \n", f);
	}
	fputs("{\"text\": \"no newline\"}", f);
	CHECK_INT(fclose(f), 0);
}

static void prepare(void)
{
	static char text[TEXT];

	rmtree("prep");
	CHECK_INT(mkdir("prep", 0777), 0);
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)(i * 31 % 251);
	put_file(in[0], text, sizeof(text));
	put_lines(in[1], 0);
	put_file(in[2], "", 0);
	put_lines(in[3], 1);
}

static size_t read_file(const char *path, char *to)
{
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(to, 1, FILE_MAX, f) : 0;

	if (f)
		fclose(f);
	return n;
}

static struct tr_prepared make(const char *out, int jobs, int64_t chunk)
{
	const struct tr_prepare p = { .in = in, .n = 4, .out = out, .jobs = jobs, .chunk = chunk };
	struct tr_prepared made;
	struct tr_error err;

	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
	CHECK_INT(made.documents, 2 + 2 * (LINES + 1));
	return made;
}

static void check_same(const char *a, const char *b)
{
	static char x[FILE_MAX], y[FILE_MAX];
	size_t n = read_file(a, x);

	CHECK(n > 50000 && n < FILE_MAX);
	CHECK(read_file(b, y) == n && memcmp(x, y, n) == 0);
}

TEST(any_number_of_threads_and_any_size_of_chunks_give_the_same_file)
{
	static const int jobs[] = { 2, 8, 3, 1 }, chunks[] = { 512, 100, 7, 4096 };

	prepare();
	make("prep/one", 1, 0);
	for (int i = 0; i < 4; i++) {
		make("prep/more", jobs[i], chunks[i]);
		check_same("prep/one", "prep/more");
		CHECK_INT(access("prep/more.part", F_OK), -1);
		CHECK_INT(access("prep/more.part-log", F_OK), -1);
	}
	rmtree("prep");
}

/* A process is killed in the middle of its kill_at-th write to the log, or the disk becomes full
 * there. */
static int writes, kill_at, full_at;

T_REPLACES ssize_t write(int fd, const void *bytes, size_t n)
{
	int now = kill_at || full_at ? ++writes : 0, is_last = now && now == kill_at + full_at;
	ssize_t put;

	if (full_at && now > full_at) {
		errno = ENOSPC;
		return -1;
	}
	put = syscall(SYS_write, fd, bytes, is_last ? n * 2 / 3 : n);
	if (is_last && kill_at)
		raise(SIGKILL);
	return put;
}

/* Makes the file in a process of its own. Returns whether that was killed. */
static int make_until(const char *out, int at)
{
	const struct tr_prepare p = { .in = in, .n = 4, .out = out, .jobs = 2, .chunk = CHUNK };
	struct tr_prepared made;
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		kill_at = at;
		_exit(tr_prepare_bytes(&p, &made, NULL) == 0 ? 0 : 1);
	}
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status);
}

TEST(a_process_that_is_killed_again_and_again_is_continued_and_the_file_is_the_same)
{
	int killed = 0;

	prepare();
	make("prep/one", 1, 0);
	while (make_until("prep/more", 41 + killed % 3)) {
		CHECK_INT(access("prep/more", F_OK), -1);
		killed++;
		CHECK(killed < 50);
	}
	CHECK(killed > 5);
	check_same("prep/one", "prep/more");
	rmtree("prep");
}

static void kill_while_it_writes(const char *out)
{
	char part[100];

	snprintf(part, sizeof(part), "%s.part", out);
	do
		CHECK(make_until(out, 60));
	while (access(part, F_OK) < 0);
	CHECK(make_until(out, 60));
}

TEST(what_a_killed_process_has_written_is_not_written_again)
{
	static const char other[TEXT] = "another text of the same length";
	struct tr_prepared made;
	int64_t kept;

	prepare();
	make("prep/one", 1, 0);
	kill_while_it_writes("prep/more");
	made = make("prep/more", 2, CHUNK);
	kept = made.kept;
	CHECK(kept >= 58 && kept < made.chunks);
	check_same("prep/one", "prep/more");
	/* Without the file its log is worth nothing, and neither is the log of other inputs. */
	kill_while_it_writes("prep/more");
	CHECK_INT(unlink("prep/more.part"), 0);
	CHECK_INT(make("prep/more", 2, CHUNK).kept, 0);
	check_same("prep/one", "prep/more");
	kill_while_it_writes("prep/more");
	put_file(in[0], other, sizeof(other));
	CHECK_INT(make("prep/more", 2, CHUNK).kept, 0);
	make("prep/one", 1, 0);
	check_same("prep/one", "prep/more");
	rmtree("prep");
}

static void make_fails(const char *const *from, int n, const char *to, int code, const char *words)
{
	const struct tr_prepare p = { .in = from, .n = n, .out = to, .jobs = 4, .chunk = 64 };
	struct tr_prepared made;
	struct tr_error err;

	CHECK_INT(tr_prepare_bytes(&p, &made, &err), code);
	if (!strstr(err.msg, words))
		print_error("%s\n", err.msg);
	CHECK(strstr(err.msg, words) != NULL);
}

static void make_fails_without(const char *const *from, int n, const char *to, const char *words)
{
	const struct tr_prepare p = { .in = from, .n = n, .out = to, .jobs = 4, .chunk = 64 };
	struct tr_prepared made;
	struct tr_error err;

	CHECK(tr_prepare_bytes(&p, &made, &err) < 0);
	CHECK(strstr(err.msg, words) == NULL);
}

/* If not even the log could be begun, nothing is left. Otherwise the same command goes on from what
 * is there. */
TEST(on_a_full_disk_nothing_is_left_but_what_the_same_command_continues)
{
	prepare();
	make("prep/one", 1, 0);
	for (int at = 1; at < 200; at = at < 3 ? at + 1 : at * 5 / 2) {
		writes = 0;
		full_at = at;
		make_fails(in, 4, "prep/more", TR_EIO, "prep/more.part-log: No space left on "
			   "device; run the same command again to continue");
		full_at = 0;
		CHECK_INT(access("prep/more", F_OK), -1);
		CHECK_INT(access("prep/more.part-log", F_OK), at == 1 ? -1 : 0);
		CHECK(at > 1 || access("prep/more.part", F_OK) < 0);
		make("prep/more", 2, 64);
		check_same("prep/one", "prep/more");
		CHECK_INT(access("prep/more.part-log", F_OK), -1);
		CHECK_INT(unlink("prep/more"), 0);
	}
	rmtree("prep");
}

TEST(a_line_that_is_no_document_is_named_with_what_is_wrong)
{
	static const char *const bad[][2] = {
		{ "{\"text\": \"a\"", "it is not JSON" },
		{ "[\"a\"]", "it is not an object" },
		{ "\"a\"", "it is not" },
		{ "{\"text\": 1}", "text is not a string" },
		{ "{\"prompt\": \"a\", \"response\": null}", "response is not a string" },
		{ "{\"prompt\": \"a\"}", "it must have text, or prompt and response" },
		{ "{\"response\": \"a\"}", "it must have text, or prompt and response" },
		{ "{\"text\": \"a\", \"prompt\": \"b\", \"response\": \"c\"}", "it must have" },
		{ "{}", "it must have text" },
		{ "{\"text\": \"a\", \"text\": \"b\"}", "duplicate" },
		{ "{\"text\": \"a\", \"id\": 1e400}", "it cannot be read: real number overflow" },
		{ "{\"text\": \"a\", \"\\u0000\": 1}", "it cannot be read: NUL byte" },
		{ "{\"text\": \"\xff\"}", "unable to decode byte 0xff" },
	};
	static const char *const lines[] = { "prep/bad.jsonl" };
	char words[120];

	prepare();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		FILE *f = fopen(lines[0], "wb");

		for (int line = 1; line <= 60; line++)
			fprintf(f, "%s\n", line % 20 ? "{\"text\": \"abc\"}" : bad[i][0]);
		CHECK_INT(fclose(f), 0);
		snprintf(words, sizeof(words), "prep/bad.jsonl: line 20: ");
		make_fails(lines, 1, "prep/more", TR_EINVAL, words);
		make_fails(lines, 1, "prep/more", TR_EINVAL, bad[i][1]);
		CHECK_INT(access("prep/more", F_OK), -1);
		CHECK_INT(access("prep/more.part-log", F_OK), -1);
	}
	rmtree("prep");
}

/* Returns how many bytes this process has read, or 0 if the system does not tell. */
static long long bytes_read(void)
{
	FILE *f = fopen("/proc/self/io", "re");
	long long n = 0;

	if (f && fscanf(f, "rchar: %lld", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

/* The line that is too long goes on for 256 MiB, as a hole of the file. */
TEST(a_line_that_is_too_long_is_named_and_not_read_to_its_end)
{
	static const char *const lines[] = { "prep/long.jsonl" };
	struct tr_prepare p = { .in = lines, .n = 1, .out = "prep/o", .jobs = 2, .chunk = 64,
				.line_max = 1 << 17 };
	struct tr_prepared made;
	struct tr_error err;
	long long before;
	FILE *f;

	prepare();
	for (int longer = 0; longer < 2; longer++) {
		f = fopen(lines[0], "wb");
		CHECK(f && fputs("{\"text\": \"a\"}\n\n", f) >= 0);
		CHECK(fprintf(f, "{\"text\": \"%0*d\"}\n", (1 << 17) - 13 + longer, 1) ==
		      (1 << 17) + longer);
		CHECK_INT(fclose(f), 0);
		if (longer)
			CHECK_INT(truncate(lines[0], 1 << 28), 0);
		p.chunk = longer ? 1 << 27 : 64;
		p.jobs = longer ? 1 : 2;
		before = bytes_read();
		CHECK_INT(tr_prepare_bytes(&p, &made, &err), longer ? TR_EINVAL : 0);
		CHECK(!longer || bytes_read() - before < 1 << 22);
	}
	CHECK(strstr(err.msg, "prep/long.jsonl: line 3 has more than 131072 bytes") != NULL);
	CHECK_INT(access("prep/o.part-log", F_OK), -1);
	rmtree("prep");
}

TEST(inputs_that_cannot_be_used_are_refused)
{
	static const char *const folder[] = { "prep/a.txt", "prep" };

	prepare();
	make_fails(folder, 2, "prep/more", TR_EINVAL, "prep: not a file");
	make_fails(folder, 1, "prep/a.txt", TR_EINVAL, "prep/a.txt: it is an input, too");
	/* Another call would not help with that. */
	make_fails(in, 4, "prep/a.txt/more", TR_EFAILED, "prep/a.txt/more: ");
	make_fails_without(in, 4, "prep/a.txt/more", "run the same command again");
	make_fails(in, 2, "prep/none/more", TR_ENOENT, "prep/none/more.part-log");
	rmtree("prep");
}

TEST(a_line_of_many_chunks_is_read_no_more_than_a_few_times)
{
	enum { LONG = 1 << 20 };
	static const char *const lines[] = { "prep/long.jsonl" };
	const struct tr_prepare p = { .in = lines, .n = 1, .out = "prep/o", .jobs = 2,
				      .chunk = LONG / 256 };
	struct tr_prepared made;
	struct tr_error err;
	long long before;
	FILE *f;

	prepare();
	f = fopen(lines[0], "wb");
	CHECK(f && fprintf(f, "{\"text\": \"%0*d\"}\n", LONG, 1) > LONG && fclose(f) == 0);
	before = bytes_read();
	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
	CHECK(made.tokens == LONG + 1 && made.documents == 1 && made.chunks > 256);
	CHECK(bytes_read() - before < 16LL * LONG);
	rmtree("prep");
}

/* Another process deletes the log just before it is locked. */
static const char *deleted;

T_REPLACES int flock(int fd, int how)
{
	if (deleted)
		CHECK_INT(unlink(deleted), 0);
	deleted = NULL;
	return (int)syscall(SYS_flock, fd, how);
}

TEST(a_log_that_is_deleted_before_it_is_locked_is_opened_again)
{
	struct tr_preplog log;
	struct tr_chunk chunk = { .in = 0 };
	struct tr_error err;

	prepare();
	deleted = "prep/log";
	CHECK_RC(tr_preplog_open(&log, "prep/log", 1, &chunk, 1, &err), 0, &err);
	CHECK(!deleted && access("prep/log", F_OK) == 0);
	tr_preplog_close(&log, 1);
	rmtree("prep");
}

/* A file with a text of its own still has it. */
static void check_kept(const char *path)
{
	char text[20] = "";
	FILE *f = fopen(path, "rb");

	CHECK(f && fgets(text, sizeof(text), f) && fclose(f) == 0);
	CHECK_STR(text, "kept");
}

TEST(an_input_is_not_overwritten_whatever_its_name_is)
{
	static const char *const own[][2] = { { "prep/a.txt", "prep/o.part" },
					      { "prep/a.txt", "prep/o.part-log" },
					      { "prep/o", "prep/a.txt" } };

	prepare();
	for (int i = 0; i < 3; i++) {
		const char *name = own[i][i < 2];

		put_file(name, "kept", 4);
		make_fails(own[i], 2, "prep/o", TR_EINVAL, "it is an input, too");
		check_kept(name);
		CHECK_INT(unlink(name), 0);
	}
	put_file("prep/kept", "kept", 4);
	for (int i = 0; i < 2; i++) {
		static const char *const kept[] = { "prep/kept" };

		CHECK_INT(symlink("kept", own[i][1]), 0);
		make_fails(kept, 1, "prep/o", TR_EINVAL, "it is an input, too");
		check_kept("prep/kept");
		CHECK_INT(unlink(own[i][1]), 0);
	}
	rmtree("prep");
}

TEST(files_of_others_are_not_overwritten)
{
	static const char *const names[] = { "prep/o.part", "prep/o.part-log" };

	prepare();
	for (int i = 0; i < 2; i++) {
		put_file(names[i], "kept", 4);
		make_fails(in, 4, "prep/o", TR_EINVAL, "it is in the way");
		check_kept(names[i]);
		CHECK_INT(unlink(names[i]), 0);
	}
	put_file("prep/kept", "kept", 4);
	CHECK_INT(symlink("kept", names[0]), 0);
	make_fails(in, 4, "prep/o", TR_EINVAL, "it is in the way");
	/* Not even beside a log, as when it takes the place of the file while that is made. */
	put_file(names[1], "", 0);
	make_fails(in, 4, "prep/o", TR_EINVAL, "it is in the way");
	CHECK_INT(unlink(names[0]), 0);
	CHECK_INT(unlink(names[1]), 0);
	CHECK_INT(mkfifo("prep/o", 0666), 0);
	make_fails(in, 4, "prep/o", TR_EINVAL, "prep/o: it exists and is not a file; write to");
	CHECK_INT(unlink("prep/o"), 0);
	CHECK_INT(mkdir("prep/o", 0777), 0);
	make_fails(in, 4, "prep/o", TR_EINVAL, "prep/o: it exists and is not a file; write to");
	CHECK_INT(rmdir("prep/o"), 0);
	CHECK_INT(symlink("kept", names[1]), 0);
	make_fails(in, 4, "prep/o", TR_EIO, "prep/o.part-log");
	check_kept("prep/kept");
	rmtree("prep");
}
