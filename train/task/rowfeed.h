/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of samples, on all ranks that take them through a model together. Some of these ranks
 * read the token file. The others do not open it: they receive rows by a nested broadcast. */
#ifndef ROWFEED_H
#define ROWFEED_H
#include "ranks.h"
#include "rowread.h"

struct tr_rowfeed_opts {
	const char *data;               /* a token file; borrowed, as the next two */
	const struct tr_ranks *ranks;   /* the ranks that need the same rows */
	/* [ranks->n]: the rank from which each rank receives; one that reads has its own number.
	 * NULL: rank 0 reads for all. */
	const int *source;
	int job_ranks;                  /* of the job; messages name the rank if it is not 1 */
	int64_t seqs_max, seq, vocab;
	uint64_t seed;
	int shuffle;
	int documents;                  /* 1: attention stays inside documents */
};
struct tr_rowfeed {
	struct tr_rowfeed_opts o;
	struct tr_tokenfile file;       /* is open on ranks that read only */
	struct tr_batch batch;
	int64_t tokens, samples;        /* of the file */
	uint64_t hash;                  /* tr_tokenfile_hash */
};

/* Opens the token file on the ranks that read, and sends the others what it contains. The feed
 * needs tr_rowfeed_close also after an error, which all ranks have alike. [collective] */
int tr_rowfeed_open(struct tr_rowfeed *f, const struct tr_rowfeed_opts *o, struct tr_error *err);
void tr_rowfeed_close(struct tr_rowfeed *f);
/* Returns whether this rank reads the file. */
int tr_rowfeed_reads(const struct tr_rowfeed *f);
/* Reads all samples, to find what is wrong with them before anything is computed, and sets *targets
 * to the number of targets that are not masked. Both only on ranks that read; the others return 0.
 * A large file takes as long as it takes to read it. [local] */
int tr_rowfeed_check(struct tr_rowfeed *f, uint64_t *targets, struct tr_error *err);
/* Sets `rows` to n positions of the run. They have no gradient buffers, and are valid until the
 * next call.
 * code  0, or the error code of this rank if it cannot use the rows; then the call fails on all
 *       ranks. [collective] */
int tr_rowfeed_fill(struct tr_rowfeed *f, const int64_t *position, int64_t n, int code,
		    struct tr_rows *rows, struct tr_error *err);
/* Counts the targets of n positions that are not masked. *count is 0 on all ranks but one,
 * so that a sum over ranks counts them once. [local] */
int tr_rowfeed_count(struct tr_rowfeed *f, const int64_t *position, int64_t n, uint64_t *count,
		     struct tr_error *err);
#endif
