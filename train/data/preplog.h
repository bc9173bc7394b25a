/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a token file that is being written: which chunks of the inputs were counted and
 * written. A later process continues from it.
 *
 * What a chunk has written may still be in the page cache only. So the log counts only until the
 * machine restarts; its first line has the id of the boot. */
#ifndef PREPLOG_H
#define PREPLOG_H
#include <stdint.h>

#include "tr_error.h"

struct tr_chunk {                       /* of the inputs */
	int in;                         /* number of the input */
	int64_t from, to;               /* bytes of it */
	int first, last;                /* it begins the file, or ends it */
	int counted, written;
	int64_t tokens, documents;      /* of this chunk, once it is counted */
	int masked;                     /* it has a prompt */
};
struct tr_preplog {
	char *path;                     /* owned */
	int fd;
};

/* Opens the log, and sets in `chunk` what it says of the n chunks. If it was written for other
 * inputs or before the machine restarted, it is emptied.
 * work  a hash of the inputs
 * EINVAL: another process has it open, or it is another file; then log->fd is -1. */
int tr_preplog_open(struct tr_preplog *log, const char *path, uint64_t work,
		    struct tr_chunk *chunk, int64_t n, struct tr_error *err);
/* Adds that a chunk is counted, or written if it was counted before. [any thread], one at a time */
int tr_preplog_add(struct tr_preplog *log, int64_t i, const struct tr_chunk *c,
		   struct tr_error *err);
/* Forgets everything. */
int tr_preplog_clear(struct tr_preplog *log, uint64_t work, struct tr_error *err);
/* Returns whether the log is open and has not even its first line, so that there is nothing to
 * continue. */
int tr_preplog_is_empty(const struct tr_preplog *log);
/* remove  1: deletes the log */
void tr_preplog_close(struct tr_preplog *log, int remove);
#endif
