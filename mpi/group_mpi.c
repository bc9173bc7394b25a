/* SPDX-License-Identifier: Apache-2.0 */
/* A group over an MPI communicator: three operations that never outstay their deadline.
 *
 * Always true here:
 * M1  MPI sees only memory of this file, which is allocated when the group is made. An operation
 *     that gives up leaves its requests behind; they may move bytes long after the caller has
 *     freed his, so a group that failed is never freed.
 * M2  After a failure MPI is not called again with this communicator: with a dead peer even
 *     cancelling can wait.
 * M3  Bulk goes in pieces through a few slots each way. Step s sends to rank + s and receives
 *     from rank - s; both sides take the steps in order. So the earliest piece that is not done
 *     has a slot at both of its ends, and no choice of sizes can block all of them.
 * M4  Counts given to MPI are at most POOL_BYTES, whatever the sizes of the call.
 */
#include "sheaf-mpi.h"

#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOT_N 8                        /* pieces under way, each direction */
#define SLOT_BYTES ((size_t)1 << 18)
#define POOL_BYTES (SLOT_N * SLOT_BYTES)
#define RANK_BYTES 64                   /* least piece of an allgather */
#define TRIES_BEFORE_SLEEP 32
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 1000000

struct slot {
	MPI_Request request;
	bool busy;
	uint8_t *bytes;                 /* SLOT_BYTES of a pool */
	uint8_t *to;                    /* receiving: where the bytes go */
	int n;
};

struct mpi_group {
	MPI_Comm comm;
	int rank, ranks, tag_max;
	int tag;                        /* of the current operation */
	struct sheaf_error *err;        /* of the current operation: where it says why it failed */
	pid_t pid;                      /* a forked child must not touch the communicator */
	bool failed;
	size_t in_bytes;                /* size of in_pool */
	uint8_t *out_pool, *in_pool;    /* owned */
	struct slot out[SLOT_N], in[SLOT_N];
};

/* ---- waiting ---- */

struct pace {
	int64_t end_ns;
	long sleep_ns;
	int tries;
};

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void pace_reset(struct pace *p)
{
	p->sleep_ns = SLEEP_MIN_NS;
	p->tries = 0;
}

static struct pace pace_begin(int timeout_ms)
{
	struct pace p = { .end_ns = now_ns() };

	if (timeout_ms > 0)
		p.end_ns += (int64_t)timeout_ms * 1000000;
	pace_reset(&p);
	return p;
}

/* Nothing has moved: wait a little, longer each time. False: the deadline is over. */
static bool pace_wait(struct pace *p)
{
	int64_t left = p->end_ns - now_ns();
	struct timespec ts = { 0 };

	if (left <= 0)
		return false;
	if (p->tries++ < TRIES_BEFORE_SLEEP) {
		sched_yield();
		return true;
	}
	ts.tv_nsec = left < p->sleep_ns ? (long)left : p->sleep_ns;
	nanosleep(&ts, NULL);
	if (p->sleep_ns < SLEEP_MAX_NS)
		p->sleep_ns *= 2;
	if (p->sleep_ns > SLEEP_MAX_NS)
		p->sleep_ns = SLEEP_MAX_NS;
	return true;
}

/* Writes why the current operation failed. Returns -1. An operation whose time ran out writes
 * nothing, because the library says that itself. */
__attribute__((format(printf, 2, 3)))
static int op_fail(const struct mpi_group *m, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m->err->msg, sizeof(m->err->msg), fmt, ap);
	va_end(ap);
	return -1;
}

/* Checks the result of an MPI function. Returns 0, or -1 with the text that MPI has for it. */
static int mpi_check(const struct mpi_group *m, const char *function, int result)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int n = 0;

	if (result == MPI_SUCCESS)
		return 0;
	if (MPI_Error_string(result, text, &n) != MPI_SUCCESS)
		return op_fail(m, "%s returned %d", function, result);
	return op_fail(m, "%s: %s", function, text);
}

static int request_wait(const struct mpi_group *m, MPI_Request *request, const struct pace *limit)
{
	struct pace p = *limit;

	pace_reset(&p);
	for (;;) {
		int done = 0;

		if (mpi_check(m, "MPI_Test", MPI_Test(request, &done, MPI_STATUS_IGNORE)) != 0)
			return -1;
		if (done)
			return 0;
		if (!pace_wait(&p))
			return -1;
	}
}

/* Each operation has a tag of its own, so that a straggler of one never meets the next. Returns 0,
 * or -1 if the group has failed (M2). */
static int op_begin(struct mpi_group *m, struct sheaf_error *err)
{
	m->err = err;
	if (m->failed)
		return op_fail(m, "an earlier operation of the group has failed");
	m->tag = m->tag < m->tag_max ? m->tag + 1 : 0;
	return 0;
}

static int op_end(struct mpi_group *m, int rc)
{
	if (rc != 0)
		m->failed = true;
	m->err = NULL;
	return rc;
}

/* ---- allgather, allreduce ---- */

static int gather_piece(struct mpi_group *m, const uint8_t *mine, uint8_t *all, size_t bytes,
			size_t n, const struct pace *limit)
{
	MPI_Request request;

	memcpy(m->out_pool, mine, n);
	if (mpi_check(m, "MPI_Iallgather",
	              MPI_Iallgather(m->out_pool, (int)n, MPI_BYTE, m->in_pool, (int)n, MPI_BYTE,
	                             m->comm, &request)) != 0 ||
	    request_wait(m, &request, limit) != 0)
		return -1;
	for (int r = 0; r < m->ranks; r++)
		memcpy(all + (size_t)r * bytes, m->in_pool + (size_t)r * n, n);
	return 0;
}

static int mpi_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			 struct sheaf_error *err)
{
	struct mpi_group *m = arg;
	struct pace limit = pace_begin(timeout_ms);
	size_t piece = m->in_bytes / (size_t)m->ranks;
	int rc = 0;

	if (op_begin(m, err) != 0)
		return -1;
	if (piece > POOL_BYTES)
		piece = POOL_BYTES;
	for (size_t off = 0; off < bytes && rc == 0; off += piece)
		rc = gather_piece(m, (const uint8_t *)mine + off, (uint8_t *)all + off, bytes,
				  bytes - off < piece ? bytes - off : piece, &limit);
	return op_end(m, rc);
}

static int reduce_piece(struct mpi_group *m, uint64_t *x, size_t n, MPI_Op op,
			const struct pace *limit)
{
	MPI_Request request;

	memcpy(m->in_pool, x, n * sizeof(*x));
	if (mpi_check(m, "MPI_Iallreduce",
	              MPI_Iallreduce(MPI_IN_PLACE, m->in_pool, (int)n, MPI_UINT64_T, op, m->comm,
	                             &request)) != 0 ||
	    request_wait(m, &request, limit) != 0)
		return -1;
	memcpy(x, m->in_pool, n * sizeof(*x));
	return 0;
}

static int mpi_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			 struct sheaf_error *err)
{
	struct mpi_group *m = arg;
	struct pace limit = pace_begin(timeout_ms);
	const size_t piece = POOL_BYTES / sizeof(*x);
	MPI_Op how;
	int rc = 0;

	if (op_begin(m, err) != 0)
		return -1;
	switch (op) {
	case SHEAF_SUM:
		how = MPI_SUM;
		break;
	case SHEAF_MAX:
		how = MPI_MAX;
		break;
	case SHEAF_XOR:
		how = MPI_BXOR;
		break;
	default:
		return op_end(m, op_fail(m, "unknown reduction %d", op));
	}
	for (size_t off = 0; off < n && rc == 0; off += piece)
		rc = reduce_piece(m, x + off, n - off < piece ? n - off : piece, how, &limit);
	return op_end(m, rc);
}

/* ---- alltoallv ---- */

/* Where one direction stands: in the message of `peer`, `off` bytes on. */
struct cursor {
	const size_t *bytes;            /* borrowed; one a rank */
	size_t total, base, off;        /* base: where the peer's message begins */
	int ranks, peer, peers_left;
	int dir;                        /* +1 sending, -1 receiving (M3) */
};

static struct cursor cursor_begin(const struct mpi_group *m, const size_t *bytes, int dir)
{
	struct cursor c = {
		.bytes = bytes, .ranks = m->ranks, .peer = m->rank, .peers_left = m->ranks,
		.dir = dir
	};

	for (int r = 0; r < m->ranks; r++) {
		if (r == m->rank)
			c.base = c.total;
		c.total += bytes[r];
	}
	return c;
}

static void cursor_next_peer(struct cursor *c)
{
	c->peers_left--;
	c->off = 0;
	if (c->dir > 0) {
		c->base += c->bytes[c->peer];
		if (++c->peer == c->ranks) {
			c->peer = 0;
			c->base = 0;
		}
	} else {
		if (c->peer-- == 0) {
			c->peer = c->ranks - 1;
			c->base = c->total;
		}
		c->base -= c->bytes[c->peer];
	}
}

/* Stand at a byte that is not dealt with. False: there is none. */
static bool cursor_settle(struct cursor *c)
{
	while (c->peers_left > 0 && c->off == c->bytes[c->peer])
		cursor_next_peer(c);
	return c->peers_left > 0;
}

static size_t cursor_piece(const struct cursor *c)
{
	size_t left = c->bytes[c->peer] - c->off;

	return left < SLOT_BYTES ? left : SLOT_BYTES;
}

struct transfer {
	struct cursor out, in;
	const uint8_t *from;
	uint8_t *to;
	int busy;                       /* slots */
};

static int slot_send(struct mpi_group *m, struct transfer *t, struct slot *s)
{
	struct cursor *c = &t->out;

	s->n = (int)cursor_piece(c);
	memcpy(s->bytes, t->from + c->base + c->off, (size_t)s->n);
	c->off += (size_t)s->n;
	s->busy = true;
	t->busy++;
	return mpi_check(m, "MPI_Isend", MPI_Isend(s->bytes, s->n, MPI_BYTE, c->peer, m->tag,
	                                           m->comm, &s->request));
}

static int slot_receive(struct mpi_group *m, struct transfer *t, struct slot *s)
{
	struct cursor *c = &t->in;

	s->n = (int)cursor_piece(c);
	s->to = t->to + c->base + c->off;
	c->off += (size_t)s->n;
	s->busy = true;
	t->busy++;
	return mpi_check(m, "MPI_Irecv", MPI_Irecv(s->bytes, s->n, MPI_BYTE, c->peer, m->tag,
	                                           m->comm, &s->request));
}

/* 1: done, 0: not yet, -1: failed. A message shorter than agreed is a failure too. */
static int slot_test(const struct mpi_group *m, struct transfer *t, struct slot *s,
                     bool receiving)
{
	MPI_Status status;
	int done = 0, n = 0;

	if (mpi_check(m, "MPI_Test", MPI_Test(&s->request, &done, &status)) != 0)
		return -1;
	if (!done)
		return 0;
	s->busy = false;
	t->busy--;
	if (!receiving)
		return 1;
	if (mpi_check(m, "MPI_Get_count", MPI_Get_count(&status, MPI_BYTE, &n)) != 0)
		return -1;
	if (n != s->n)
		return op_fail(m, "rank %d sent a message of %d bytes in place of %d",
		               status.MPI_SOURCE, n, s->n);
	memcpy(s->to, s->bytes, (size_t)n);
	return 1;
}

/* One look at all slots. 1: something moved, 0: nothing did, -1: failed. */
static int transfer_turn(struct mpi_group *m, struct transfer *t)
{
	int moved = 0, rc;

	for (int i = 0; i < 2 * SLOT_N; i++) {
		bool receiving = i < SLOT_N;
		struct slot *s = receiving ? &m->in[i] : &m->out[i - SLOT_N];

		if (s->busy) {
			rc = slot_test(m, t, s, receiving);
			if (rc < 0)
				return -1;
			moved |= rc;
		}
		if (s->busy || !cursor_settle(receiving ? &t->in : &t->out))
			continue;
		if ((receiving ? slot_receive(m, t, s) : slot_send(m, t, s)) != 0)
			return -1;
		moved = 1;
	}
	return moved;
}

static int transfer_run(struct mpi_group *m, struct transfer *t, struct pace *p)
{
	while (t->busy > 0 || cursor_settle(&t->out) || cursor_settle(&t->in)) {
		int moved = transfer_turn(m, t);

		if (moved < 0 || now_ns() >= p->end_ns)
			return -1;
		if (moved)
			pace_reset(p);
		else if (!pace_wait(p))
			return -1;
	}
	return 0;
}

static int mpi_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			 const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct mpi_group *m = arg;
	struct pace limit = pace_begin(timeout_ms);
	struct transfer t = { .from = out, .to = in };
	size_t own = out_bytes[m->rank];

	if (op_begin(m, err) != 0)
		return -1;
	if (own != in_bytes[m->rank])
		return op_end(m, op_fail(m, "this rank sends itself %zu bytes and expects %zu", own,
		                         in_bytes[m->rank]));
	t.out = cursor_begin(m, out_bytes, 1);
	t.in = cursor_begin(m, in_bytes, -1);
	if (own > 0)
		memcpy(t.to + t.in.base, t.from + t.out.base, own);
	cursor_next_peer(&t.out);
	cursor_next_peer(&t.in);
	return op_end(m, transfer_run(m, &t, &limit));
}

/* ---- lifecycle ---- */

static void mpi_group_free(void *arg)
{
	struct mpi_group *m = arg;
	int over = 0;

	if (m->failed)
		return; /* M1 */
	if (m->comm != MPI_COMM_NULL && m->pid == getpid() && MPI_Finalized(&over) == MPI_SUCCESS &&
	    !over)
		MPI_Comm_free(&m->comm);
	free(m->out_pool);
	free(m->in_pool);
	free(m);
}

static struct mpi_group *mpi_group_new(MPI_Comm comm)
{
	struct mpi_group *m = calloc(1, sizeof(*m));
	int *tag_max = NULL, found = 0;

	if (!m)
		return NULL;
	m->comm = MPI_COMM_NULL;        /* until all is well, it is not ours to free */
	m->pid = getpid();
	MPI_Comm_rank(comm, &m->rank);
	MPI_Comm_size(comm, &m->ranks);
	MPI_Comm_get_attr(comm, MPI_TAG_UB, &tag_max, &found);
	m->tag_max = found ? *tag_max : 32767;
	m->in_bytes = (size_t)m->ranks * RANK_BYTES;
	if (m->in_bytes < POOL_BYTES)
		m->in_bytes = POOL_BYTES;
	m->out_pool = malloc(POOL_BYTES);
	m->in_pool = malloc(m->in_bytes);
	if (!m->out_pool || !m->in_pool) {
		mpi_group_free(m);
		return NULL;
	}
	for (size_t i = 0; i < SLOT_N; i++) {
		m->out[i].bytes = m->out_pool + i * SLOT_BYTES;
		m->in[i].bytes = m->in_pool + i * SLOT_BYTES;
	}
	return m;
}

/* Fills *err and returns code. */
static int group_fail(struct sheaf_error *err, int code, const char *msg)
{
	*err = (struct sheaf_error){ .code = code, .rank = -1 };
	strncpy(err->msg, msg, sizeof(err->msg) - 1);
	return code;
}

static int group_make(struct sheaf_group **group, MPI_Comm comm, int32_t node,
                      struct mpi_group **made, struct sheaf_error *err)
{
	struct sheaf_group_ops ops = {
		.size = sizeof(ops),
		.node = node,
		.allgather = mpi_allgather,
		.alltoallv = mpi_alltoallv,
		.allreduce = mpi_allreduce,
		.free = mpi_group_free,
	};
	struct mpi_group *m = mpi_group_new(comm);
	int rc;

	if (!m)
		return group_fail(err, SHEAF_ENOMEM, "no memory for the group");
	ops.rank = m->rank;
	ops.ranks = m->ranks;
	ops.arg = m;
	rc = sheaf_group_new(group, &ops, err);
	if (rc != 0)
		mpi_group_free(m);
	else
		*made = m;
	return rc;
}

static bool comm_is_usable(MPI_Comm comm)
{
	int up = 0, over = 0, inter = 0;

	if (MPI_Initialized(&up) != MPI_SUCCESS || !up)
		return false;
	if (MPI_Finalized(&over) != MPI_SUCCESS || over || comm == MPI_COMM_NULL)
		return false;
	return MPI_Comm_test_inter(comm, &inter) == MPI_SUCCESS && !inter;
}

__attribute__((visibility("default")))
int sheaf_group_mpi(struct sheaf_group **group, MPI_Comm comm, int32_t node,
                    struct sheaf_error *err)
{
	struct sheaf_group *g = NULL;
	struct mpi_group *m = NULL;
	struct sheaf_error own = { 0 };
	MPI_Comm dup = MPI_COMM_NULL;
	int rc, worst = 0;

	err = err ? err : &own;
	*err = (struct sheaf_error){ .rank = -1 };
	if (!comm_is_usable(comm))
		return group_fail(err, SHEAF_EINVAL, "the communicator cannot be used: MPI is not "
		                  "initialised or is finalised, or this is MPI_COMM_NULL or an "
		                  "intercommunicator");
	if (MPI_Comm_dup(comm, &dup) != MPI_SUCCESS)
		return group_fail(err, SHEAF_EIO, "MPI_Comm_dup failed");
	MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN);
	rc = group ? group_make(&g, dup, node, &m, err)
	           : group_fail(err, SHEAF_EINVAL, "argument 'group' is NULL");
	/* Codes are negative: the least is one that some rank has, and all return it. */
	if (MPI_Allreduce(&rc, &worst, 1, MPI_INT, MPI_MIN, dup) != MPI_SUCCESS)
		worst = SHEAF_EIO;
	if (worst != 0) {
		sheaf_group_free(g);
		MPI_Comm_free(&dup);
		return rc == worst ? worst
		     : group_fail(err, worst, "another rank of the communicator could not make "
		                  "its group");
	}
	m->comm = dup;
	*group = g;
	return 0;
}
