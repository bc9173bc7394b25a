/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange consists of messages between pairs of ranks, and not of a collective call of MPI, so
 * that an error can name the rank that is late. Large pieces are split into several messages
 * because MPI counts bytes with an int. */
#include "ranks_mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE_MAX = 1 << 30 };

/* A sub-group uses the communicator of its group with a tag of its own. */
struct mpi_ranks {
	MPI_Comm comm;
	int rank, n;
	int first, stride;              /* rank i has rank first + i * stride in comm */
	int tag;
	int splits;                     /* sub-groups that were made */
	int is_sub;                     /* comm belongs to the group that this is part of */
};

struct transfer {                       /* the messages of one exchange */
	MPI_Request *request;
	int *peer;
	int n;
};

static int64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static size_t messages(const struct tr_piece *p, int n)
{
	size_t count = 0;

	for (int r = 0; r < n; r++)
		count += p[r].bytes / MESSAGE_MAX + 1;
	return count;
}

/* Begins to send or receive the messages of one piece. Returns 0 if MPI refused one. */
static int post(const struct mpi_ranks *m, struct transfer *t, const struct tr_piece *p, int rank,
		int sends)
{
	int peer = m->first + rank * m->stride;

	for (size_t at = 0; at < p->bytes; at += MESSAGE_MAX) {
		size_t left = p->bytes - at;
		int bytes = left < MESSAGE_MAX ? (int)left : MESSAGE_MAX;
		char *from = (char *)p->at + at;
		MPI_Request *q = &t->request[t->n];
		int rc = sends ? MPI_Isend(from, bytes, MPI_BYTE, peer, m->tag, m->comm, q) :
			MPI_Irecv(from, bytes, MPI_BYTE, peer, m->tag, m->comm, q);

		if (rc != MPI_SUCCESS)
			return 0;
		t->peer[t->n++] = peer;
	}
	return 1;
}

/* Names the rank of a message that is not done. Returns 0 if the last ones were done just now. */
static int late(const struct transfer *t, int timeout_ms, struct tr_error *err)
{
	int done, peer = -1, rc;

	for (int i = 0; i < t->n && peer < 0; i++)
		if (MPI_Test(&t->request[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
			peer = t->peer[i];
	if (peer < 0)
		return 0;
	rc = tr_fail(err, TR_ELOST, "rank %d did not take part in an exchange within %d ms; see "
		     "the log of MPI, or raise timeout-ms", peer, timeout_ms);
	if (err)
		err->rank = peer;
	return rc;
}

/* Waits until all messages are done. Between two polls it yields the core to other ranks, and after
 * 50 ms it sleeps. */
static int wait_all(struct transfer *t, int timeout_ms, struct tr_error *err)
{
	int64_t start = clock_ns(), now = start;
	int done = 0;

	for (unsigned turn = 0;; turn++) {
		if (MPI_Testall(t->n, t->request, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
			return tr_fail(err, TR_ELOST, "MPI lost a rank; see its log");
		if (done)
			return 0;
		if (turn % 16 == 0)
			now = clock_ns();
		if (now - start > (int64_t)timeout_ms * 1000000)
			return late(t, timeout_ms, err);
		if (now - start > 50000000) {
			struct timespec ts = { .tv_nsec = 100000 };

			nanosleep(&ts, NULL);
		} else {
			sched_yield();
		}
	}
}

static int exchange_mpi(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			int timeout_ms, struct tr_error *err)
{
	struct mpi_ranks *m = arg;
	size_t most = messages(out, m->n) + messages(in, m->n);
	struct transfer t = { .request = malloc(most * sizeof(*t.request)),
			      .peer = malloc(most * sizeof(*t.peer)) };
	int posted = 1, rc;

	if (!t.request || !t.peer) {
		rc = tr_fail(err, TR_ENOMEM, "no memory for %zu messages", most);
		goto out;
	}
	for (int i = 1; i < m->n && posted; i++) {
		int r = (m->rank + m->n - i) % m->n;

		posted = post(m, &t, &in[r], r, 0);
	}
	for (int i = 1; i < m->n && posted; i++) {
		int r = (m->rank + i) % m->n;

		posted = post(m, &t, &out[r], r, 1);
	}
	if (in[m->rank].bytes)
		memcpy(in[m->rank].at, out[m->rank].at, in[m->rank].bytes);
	rc = posted ? wait_all(&t, timeout_ms, err) :
		tr_fail(err, TR_ELOST, "MPI refused a message; see its log");
out:
	free(t.request);
	free(t.peer);
	return rc;
}

static void free_mpi(void *arg)
{
	struct mpi_ranks *m = arg;

	if (!m->is_sub)
		MPI_Comm_free(&m->comm);
	free(m);
}

static void set_group(struct tr_ranks *g, struct mpi_ranks *m);

/* All ranks of the group split it in the same order, so they number the tags alike. There are tags
 * for 15 sub-groups of a group. */
static int split_mpi(void *arg, struct tr_ranks *sub, int first, int stride, int n,
		     struct tr_error *err)
{
	struct mpi_ranks *m = arg, *s = calloc(1, sizeof(*s));

	m->splits++;
	if (!s)
		return tr_fail(err, TR_ENOMEM, "no memory for a sub-group of %d ranks", n);
	*s = (struct mpi_ranks){ .comm = m->comm, .rank = (m->rank - first) / stride, .n = n,
				 .first = m->first + first * m->stride,
				 .stride = stride * m->stride, .tag = 16 * m->tag + m->splits,
				 .is_sub = 1 };
	set_group(sub, s);
	return 0;
}

static void set_group(struct tr_ranks *g, struct mpi_ranks *m)
{
	*g = (struct tr_ranks){ .rank = m->rank, .n = m->n, .exchange = exchange_mpi,
				.split = split_mpi, .free = free_mpi, .arg = m };
}

int tr_ranks_mpi(struct tr_ranks *g, MPI_Comm comm, int timeout_ms, struct tr_error *err)
{
	struct mpi_ranks *m = calloc(1, sizeof(*m));

	if (!m)
		return tr_fail(err, TR_ENOMEM, "no memory for the communicator");
	if (MPI_Comm_dup(comm, &m->comm) != MPI_SUCCESS) {
		free(m);
		return tr_fail(err, TR_ELOST, "MPI did not duplicate the communicator; "
			       "see its log");
	}
	MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
	MPI_Comm_rank(m->comm, &m->rank);
	MPI_Comm_size(m->comm, &m->n);
	m->stride = 1;
	m->tag = 1;
	set_group(g, m);
	g->all_rank = m->rank;
	g->timeout_ms = timeout_ms;
	return 0;
}
