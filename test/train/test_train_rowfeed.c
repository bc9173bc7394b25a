/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a token file that one rank reads, on ranks that are threads. */
#include "t.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dataprep.h"
#include "ranks_threads.h"
#include "rmtree.h"
#include "rowfeed.h"

enum { RANKS = 4, SEQ = 9, VOCAB = 257 };

/* Each rank opens the feed, waits until rank 0 has changed the file, and asks for rows. */
struct rank {
	pthread_t thread;
	struct tr_ranks g;
	const int *source;
	int from, to;
	int documents;
	int64_t vocab;
	void (*change)(void);
	void (*check)(struct rank *r, struct tr_rowfeed *f, const struct tr_rows *rows);
	int is_open;                    /* the file, on this rank */
	int64_t wrong;
	struct tr_error err;
	int rc;
};

static int64_t positions[60];           /* each has its number */

static void *feed(void *arg)
{
	struct rank *r = arg;
	struct tr_rowfeed_opts o = { .data = "feed/data", .ranks = &r->g, .source = r->source,
		.job_ranks = RANKS, .seqs_max = 5, .seq = SEQ, .vocab = r->vocab,
		.documents = r->documents };
	struct tr_rowfeed f;
	struct tr_rows rows;

	r->rc = tr_rowfeed_open(&f, &o, &r->err);
	r->is_open = f.file.fd >= 0;
	if (r->rc == 0 && r->g.rank == 0 && r->change)
		r->change();
	if (r->rc == 0)
		r->rc = tr_agree(&r->g, 0, &r->err);
	if (r->rc == 0)
		r->rc = tr_rowfeed_fill(&f, positions + r->from, r->to - r->from, 0, &rows,
					&r->err);
	if (r->rc == 0 && r->check)
		r->check(r, &f, &rows);
	tr_rowfeed_close(&f);
	return NULL;
}

static char text[500];

static void put_text(const char *path, const char *words)
{
	FILE *file = fopen(path, "wb");

	CHECK(file && fputs(words, file) >= 0);
	CHECK_INT(fclose(file), 0);
}

static void prepare(void)
{
	static const char *const in[] = { "feed/text" };
	const struct tr_prepare p = { .in = in, .n = 1, .out = "feed/data" };
	struct tr_prepared made;
	struct tr_error err;

	rmtree("feed");
	CHECK_INT(mkdir("feed", 0777), 0);
	for (int64_t i = 0; i < 60; i++)
		positions[i] = i;
	for (size_t i = 0; i + 1 < sizeof(text); i++)
		text[i] = (char)('a' + i * i % 23);
	put_text("feed/text", text);
	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
}

/* Runs `like` on all ranks. All results must be equal. */
static struct rank feed_on(struct rank like)
{
	struct tr_hub *hub = tr_hub_new(RANKS);
	struct rank rank[RANKS];

	for (int i = 0; i < RANKS; i++) {
		rank[i] = like;
		rank[i].err.rank = -1;
		tr_ranks_hub(&rank[i].g, hub, i, 20000);
		CHECK_INT(pthread_create(&rank[i].thread, NULL, feed, &rank[i]), 0);
	}
	for (int i = 0; i < RANKS; i++)
		pthread_join(rank[i].thread, NULL);
	tr_hub_free(hub);
	for (int i = 0; i < RANKS; i++) {
		int is_reader = like.source ? like.source[i] == i : i == 0;

		CHECK_INT(rank[i].rc, rank[0].rc);
		CHECK(rank[i].rc == 0 || strcmp(rank[i].err.msg, rank[0].err.msg) == 0);
		CHECK(rank[i].rc < 0 || rank[i].is_open == is_reader);
		CHECK_INT(rank[i].wrong, 0);
	}
	return rank[0];
}

static void succeeds(struct rank like)
{
	struct rank r = feed_on(like);

	CHECK_RC(r.rc, 0, &r.err);
}

static void check_rows(struct rank *r, struct tr_rowfeed *f, const struct tr_rows *rows)
{
	uint64_t count, sum;

	r->wrong += rows->seqs != 5 || rows->n != 5 * SEQ || f->samples != 56 || f->tokens != 500;
	for (int64_t s = 0; s < rows->seqs; s++)
		r->wrong += rows->sample[s] != 20 + s;
	for (int64_t i = 0; i < rows->n; i++) {
		r->wrong += rows->token[i] != text[20 * SEQ + i] || rows->weight[i] != 1;
		r->wrong += rows->target[i] != text[20 * SEQ + i + 1];
		r->wrong += rows->position[i] != i % SEQ || rows->begin[i / SEQ] != i / SEQ * SEQ;
	}
	r->rc = tr_agree(&r->g, tr_rowfeed_count(f, positions + 50, 6, &count, &r->err), &r->err);
	sum = count;
	if (r->rc == 0)
		r->rc = tr_allreduce(&r->g, &sum, 1, TR_SUM, &r->err);
	/* The last sample has 4 targets only. */
	r->wrong += sum != 5 * SEQ + 4 || (count != 0 && count != sum);
}

TEST(rows_reach_all_ranks_from_those_that_read)
{
	static const int one_other[] = { 2, 2, 2, 2 }, two[] = { 0, 0, 3, 3 };
	struct rank like = { .from = 20, .to = 25, .vocab = VOCAB, .check = check_rows };

	prepare();
	succeeds(like);
	like.source = one_other;
	succeeds(like);
	like.source = two;
	succeeds(like);
	rmtree("feed");
}

/* Samples 0 and 1 of documents of 5, 1, 1, 9 and more tokens: 9 + 9 inputs. */
static void check_documents(struct rank *r, struct tr_rowfeed *f, const struct tr_rows *rows)
{
	static const int64_t begin[] = { 0, 5, 6, 7, 9, 16, 18 };
	static const int32_t position[] = { 0, 1, 2, 3, 4, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1 };
	static const float weight[] = { 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1 };
	uint64_t count;

	r->wrong += rows->parts != 6 || memcmp(rows->part, begin, sizeof(begin)) != 0;
	r->wrong += rows->n != 18 || memcmp(rows->position, position, sizeof(position)) != 0;
	r->wrong += rows->begin[1] != 9 || memcmp(rows->weight, weight, sizeof(weight)) != 0;
	r->rc = tr_rowfeed_count(f, positions, 2, &count, &r->err);
	r->wrong += count != (r->g.rank == 0 ? 14 : 0);
}

TEST(rows_have_parts_where_documents_begin)
{
	static const char *const in[] = { "feed/5", "feed/1", "feed/1", "feed/9", "feed/text" };
	struct rank like = { .to = 2, .vocab = VOCAB, .documents = 1, .check = check_documents };
	const struct tr_prepare p = { .in = in, .n = 5, .out = "feed/data" };
	struct tr_prepared made;
	struct tr_error err;

	prepare();
	put_text("feed/5", "abcd");
	put_text("feed/1", "");
	put_text("feed/9", "abcdefgh");
	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
	succeeds(like);
	rmtree("feed");
}

static void check_short(struct rank *r, struct tr_rowfeed *f, const struct tr_rows *rows)
{
	(void)f;
	r->wrong += rows->seqs != 2 || rows->n != SEQ + 4 || rows->begin[2] != SEQ + 4;
	r->wrong += rows->target[rows->n - 1] != TR_BYTE_END;
}

TEST(the_last_sample_is_as_short_on_the_ranks_that_receive_it)
{
	struct rank like = { .from = 54, .to = 56, .vocab = VOCAB, .check = check_short };

	prepare();
	succeeds(like);
	rmtree("feed");
}

/* Whether the disk gives EIO. */
static _Atomic int broken;

T_REPLACES ssize_t pread(int fd, void *to, size_t n, off_t at)
{
	errno = EIO;
	return broken ? -1 : syscall(SYS_pread64, fd, to, n, at);
}

static void break_disk(void)
{
	broken = 1;
}

static void truncate_file(void)
{
	CHECK_INT(truncate("feed/data", 700), 0);
}

static void fails(struct rank like, int code, const char *words)
{
	struct rank r = feed_on(like);

	CHECK_INT(r.rc, code);
	if (!strstr(r.err.msg, words))
		print_error("%s\n", r.err.msg);
	CHECK(strstr(r.err.msg, words) != NULL);
}

TEST(a_rank_that_cannot_read_fails_on_all_ranks_with_its_number)
{
	static const int of_two[] = { 2, 2, 2, 2 };
	struct rank like = { .source = of_two, .from = 50, .to = 55, .vocab = VOCAB,
			     .change = truncate_file };

	prepare();
	fails(like, TR_EFORMAT, "rank 2: feed/data: it ends at byte");
	prepare();
	like.change = break_disk;
	fails(like, TR_EIO, "rank 2: feed/data: Input/output error");
	broken = 0;
	like.change = NULL;
	like.vocab = 'f';
	fails(like, TR_EINVAL, "rank 2: feed/data: token ");
	CHECK_INT(unlink("feed/data"), 0);
	fails(like, TR_ENOENT, "rank 2: feed/data: No such file");
	rmtree("feed");
}
