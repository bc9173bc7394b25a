/* SPDX-License-Identifier: Apache-2.0 */
/* The first line of the log is "sheaf-train data WORK BOOT SUM". WORK is a hash of the inputs, and
 * BOOT the id of the boot. Each other line is "count CHUNK TOKENS DOCUMENTS MASKED SUM" or "write
 * CHUNK SUM". SUM is the CRC-64 of what is before it in the line. A kill may cut the last line
 * short. Nothing after a line whose sum is wrong is read. */
#include "preplog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "itemhash.h"

#define BEGIN "sheaf-train data "       /* of the first line */
enum { LINE_MAX_BYTES = 160 };

static int failed(const struct tr_preplog *log, struct tr_error *err)
{
	int passes = errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == EFBIG;

	return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s%s", log->path,
		       strerror(errno), passes ? "; run the same command again to continue" : "");
}

/* Reads the id of the boot, or leaves it empty if there is none. */
static void read_boot(char *id, size_t n)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	id[0] = 0;
	if (f && fgets(id, (int)n, f))
		id[strcspn(id, "\n")] = 0;
	if (f)
		fclose(f);
}

static int put_line(struct tr_preplog *log, const char *text, struct tr_error *err)
{
	char line[LINE_MAX_BYTES + 20];
	int n = snprintf(line, sizeof(line), "%s %016" PRIx64 "\n", text, tr_crc64(text));
	ssize_t put;

	do
		put = write(log->fd, line, (size_t)n);
	while (put < 0 && errno == EINTR);
	if (put >= 0 && put < n)
		errno = ENOSPC;
	return put == n ? 0 : failed(log, err);
}

/* Takes the sum off a line. Returns 0 if it is not that of the line. */
static int take_sum(char *line)
{
	char *space = strrchr(line, ' '), want[20];

	if (!space || line[strlen(line) - 1] != '\n')
		return 0;
	*space = 0;
	snprintf(want, sizeof(want), "%016" PRIx64 "\n", tr_crc64(line));
	return strcmp(space + 1, want) == 0;
}

/* Returns whether the file is a log: it begins as one, or its first line was cut short. */
static int is_log(const struct tr_preplog *log)
{
	char begin[sizeof(BEGIN) - 1];
	ssize_t n = pread(log->fd, begin, sizeof(begin), 0);

	return n >= 0 && memcmp(begin, BEGIN, (size_t)n) == 0;
}

static void work_line(char *line, uint64_t work)
{
	char boot[64];

	read_boot(boot, sizeof(boot));
	snprintf(line, LINE_MAX_BYTES, BEGIN "%016" PRIx64 " %s", work, boot);
}

/* Returns whether the line could be read. */
static int read_line(const char *line, struct tr_chunk *chunk, int64_t n)
{
	int64_t i, tokens, documents;
	int masked;

	if (sscanf(line, "count %" SCNd64 " %" SCNd64 " %" SCNd64 " %d", &i, &tokens, &documents,
		   &masked) == 4 && i >= 0 && i < n) {
		chunk[i].counted = 1;
		chunk[i].tokens = tokens;
		chunk[i].documents = documents;
		chunk[i].masked = masked;
		return 1;
	}
	if (sscanf(line, "write %" SCNd64, &i) == 1 && i >= 0 && i < n && chunk[i].counted) {
		chunk[i].written = 1;
		return 1;
	}
	return 0;
}

/* Returns the bytes of the log that could be read: 0 if it is of other work. */
static int64_t read_lines(const struct tr_preplog *log, uint64_t work, struct tr_chunk *chunk,
			  int64_t n)
{
	char line[LINE_MAX_BYTES + 20], first[LINE_MAX_BYTES];
	FILE *f = fopen(log->path, "re");
	int64_t good = 0;

	work_line(first, work);
	while (f && fgets(line, sizeof(line), f)) {
		size_t bytes = strlen(line);

		if (!take_sum(line) ||
		    !(good ? read_line(line, chunk, n) : strcmp(line, first) == 0))
			break;
		good += (int64_t)bytes;
	}
	if (f)
		fclose(f);
	return good;
}

int tr_preplog_clear(struct tr_preplog *log, uint64_t work, struct tr_error *err)
{
	char line[LINE_MAX_BYTES];
	int rc;

	if (ftruncate(log->fd, 0) < 0)
		return failed(log, err);
	work_line(line, work);
	rc = put_line(log, line, err);
	if (rc < 0 && ftruncate(log->fd, 0) < 0)
		return failed(log, err);
	return rc;
}

int tr_preplog_is_empty(const struct tr_preplog *log)
{
	struct stat st;

	return log->fd >= 0 && fstat(log->fd, &st) == 0 && st.st_size == 0;
}

/* Opens the log and locks it. The process that had it locked may delete it in between; then there
 * is another one to open. */
static int open_locked(struct tr_preplog *log, struct tr_error *err)
{
	struct stat opened, named;

	for (;;) {
		log->fd = open(log->path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC,
			       0666);
		if (log->fd < 0)
			return failed(log, err);
		if (flock(log->fd, LOCK_EX | LOCK_NB) < 0) {
			close(log->fd);
			log->fd = -1;
			return tr_fail(err, TR_EINVAL, "%s: another process makes this token file; "
				       "wait for it, or write to another file", log->path);
		}
		if (fstat(log->fd, &opened) == 0 && lstat(log->path, &named) == 0 &&
		    opened.st_dev == named.st_dev && opened.st_ino == named.st_ino)
			return 0;
		close(log->fd);
	}
}

int tr_preplog_open(struct tr_preplog *log, const char *path, uint64_t work,
		    struct tr_chunk *chunk, int64_t n, struct tr_error *err)
{
	int64_t good;
	int rc;

	*log = (struct tr_preplog){ .path = strdup(path), .fd = -1 };
	if (!log->path)
		return tr_fail(err, TR_ENOMEM, "no memory for the name of a log");
	rc = open_locked(log, err);
	if (rc < 0)
		return rc;
	if (!is_log(log)) {
		close(log->fd);
		log->fd = -1;
		return tr_fail(err, TR_EINVAL, "%s: it is in the way, and is not a log of "
			       "sheaf-train data; move it, or write to another file", path);
	}
	good = read_lines(log, work, chunk, n);
	if (!good)
		return tr_preplog_clear(log, work, err);
	return ftruncate(log->fd, good) < 0 ? failed(log, err) : 0;
}

int tr_preplog_add(struct tr_preplog *log, int64_t i, const struct tr_chunk *c,
		   struct tr_error *err)
{
	char line[LINE_MAX_BYTES];

	if (c->written)
		snprintf(line, sizeof(line), "write %" PRId64, i);
	else
		snprintf(line, sizeof(line), "count %" PRId64 " %" PRId64 " %" PRId64 " %d", i,
			 c->tokens, c->documents, c->masked);
	return put_line(log, line, err);
}

void tr_preplog_close(struct tr_preplog *log, int remove)
{
	if (log->fd >= 0 && remove)
		unlink(log->path);
	if (log->fd >= 0)
		close(log->fd);
	free(log->path);
	log->fd = -1;
	log->path = NULL;
}
