/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange consists of messages between pairs of ranks, and not of a collective call of MPI, so
 * that an error can name the rank that is late. Large pieces are split into several messages
 * because MPI counts bytes with an int.
 *
 * A rank that is late may itself wait in another group for the one that has stopped. So a rank that
 * has waited for half of its deadline reports to all others which rank it waits for, and reports
 * again when it goes on. Such a message has no bytes. Its tag is the number of that rank and 1, or
 * 0.
 *
 * A rank that has found another one lost, or cannot go on itself, sends all others the reason as a
 * message with bytes on the same communicator. They then stop waiting, too. */
#include "ranks_mpi.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"

/* LAST_WORD_MS: how long a rank that gives up waits until its last messages are done */
enum { MESSAGE_MAX = 1 << 30, LAST_WORD_MS = 200, SPLITS_MAX = 15 };

/* A message of tr_send, or a part of one, that may still be under way. Its bytes are a copy. */
struct sent {
	MPI_Request *request;
	int *peer;                      /* in the communicator */
	char **bytes;
	int n, room;
};

/* A sub-group uses the communicator of its group with a tag of its own. Each channel of a group has
 * a tag as well, above those of all exchanges. */
struct mpi_ranks {
	MPI_Comm comm, waiting;         /* waiting: for messages about who waits */
	int *waits_for;                 /* by rank of comm; -1: none was reported */
	struct tr_error *why;           /* [2]: why all must stop, if code is set; what is sent */
	int rank, n;
	int first, stride;              /* rank i has rank first + i * stride in comm */
	int tag;
	int tag_max;                    /* the largest tag that MPI has: MPI_TAG_UB */
	int splits;                     /* sub-groups that were made */
	int is_sub;                     /* 1: another group owns comm, waiting, waits_for and why */
	int is_crowded;                 /* this node has more ranks than cores for them */
	struct sent sent;               /* in the order in which they were sent */
};

struct transfer {                       /* messages that a rank waits for */
	MPI_Request *request;
	int *peer;
	int n;
	int receives;                   /* the first ones receive, the others send */
	MPI_Status status;              /* of the last one that was done */
};

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

/* Tells all ranks that this one waits for rank `peer`, or goes on (-1). */
static void tell(const struct mpi_ranks *m, int peer)
{
	MPI_Request q;
	int n, me;

	MPI_Comm_size(m->waiting, &n);
	MPI_Comm_rank(m->waiting, &me);
	for (int r = 0; r < n; r++)
		if (r != me && MPI_Isend(NULL, 0, MPI_BYTE, r, peer + 1, m->waiting, &q) ==
		    MPI_SUCCESS)
			MPI_Request_free(&q);
}

/* Receives notices of other ranks: which rank each one waits for, and why one gave up. */
static void listen(const struct mpi_ranks *m)
{
	MPI_Status s;
	int is_there, bytes;

	while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->waiting, &is_there, &s) == MPI_SUCCESS &&
	       is_there && MPI_Get_count(&s, MPI_BYTE, &bytes) == MPI_SUCCESS) {
		if (MPI_Recv(m->why, bytes, MPI_BYTE, s.MPI_SOURCE, s.MPI_TAG, m->waiting,
			     MPI_STATUS_IGNORE) != MPI_SUCCESS)
			return;
		if (!bytes)
			m->waits_for[s.MPI_SOURCE] = s.MPI_TAG - 1;
	}
}

/* Sends the reason to all others, and waits until it is on its way. A rank that has ended does not
 * receive it, so this wait is short. */
static void abandon_mpi(void *arg, const struct tr_error *why)
{
	struct mpi_ranks *m = arg;
	const struct timespec nap = { .tv_nsec = 1000000 };
	int n, me, done = 0, sent = 0;
	MPI_Request *q;

	listen(m);
	if (m->why[0].code)
		return;         /* another rank has sent one */
	m->why[0] = m->why[1] = *why;
	MPI_Comm_size(m->waiting, &n);
	MPI_Comm_rank(m->waiting, &me);
	q = malloc((size_t)n * sizeof(*q));
	for (int r = 0; q && r < n; r++)
		if (r != me && MPI_Isend(&m->why[1], (int)sizeof(*why), MPI_BYTE, r, 0, m->waiting,
					 &q[sent]) == MPI_SUCCESS)
			sent++;
	for (int ms = 0; q && !done && ms < LAST_WORD_MS; ms++) {
		if (MPI_Testall(sent, q, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
			break;
		if (!done)
			nanosleep(&nap, NULL);
	}
	free(q);
}

/* Returns whether another rank has sent a reason to stop. */
static int is_abandoned(const struct mpi_ranks *m, struct tr_error *err)
{
	listen(m);
	if (m->why[0].code && err)
		*err = m->why[0];
	return m->why[0].code != 0;
}

/* Tests message i. Sets *done to whether it is done, which it stays. */
static int test_one(struct transfer *t, int i, int *done)
{
	*done = t->request[i] == MPI_REQUEST_NULL;
	return *done ? MPI_SUCCESS : MPI_Test(&t->request[i], done, &t->status);
}

/* Sets *done to whether all messages are done. */
static int test_all(struct transfer *t, int *done)
{
	int rc = MPI_SUCCESS;

	*done = 1;
	for (int i = 0; i < t->n && rc == MPI_SUCCESS && *done; i++)
		rc = test_one(t, i, done);
	return rc;
}

/* Cancels the receives that are not done, because the caller may free their memory after a failure.
 * A receive whose message has begun to arrive cannot be cancelled. Such ones get LAST_WORD_MS to
 * complete. */
static void cancel_receives(struct transfer *t)
{
	const struct timespec nap = { .tv_nsec = 1000000 };
	int done = 0;

	for (int i = 0; i < t->receives; i++)
		if (t->request[i] != MPI_REQUEST_NULL)
			MPI_Cancel(&t->request[i]);
	t->n = t->receives;
	for (int ms = 0; ms < LAST_WORD_MS; ms++) {
		if (test_all(t, &done) != MPI_SUCCESS || done)
			return;
		nanosleep(&nap, NULL);
	}
}

/* Returns the rank for which the messages that are not done wait, or -1 if all were done just now.
 * It is one that does not wait itself, if there is one. */
static int find_late(const struct mpi_ranks *m, struct transfer *t)
{
	int me = m->first + m->rank * m->stride, done, late = -1, first, n;

	for (int i = 0; i < t->n; i++) {
		if (test_one(t, i, &done) == MPI_SUCCESS && done)
			continue;
		if (late < 0 || (m->waits_for[late] >= 0 && m->waits_for[t->peer[i]] < 0))
			late = t->peer[i];
	}
	MPI_Comm_size(m->comm, &n);
	first = late;
	for (int i = 0; late >= 0 && i < n && m->waits_for[late] >= 0; i++)
		late = m->waits_for[late];
	return late == me ? first : late;
}

static int lost(struct mpi_ranks *m, int peer, int timeout_ms, struct tr_error *err)
{
	struct tr_error why;

	tr_fail(&why, TR_ELOST, "rank %d did not take part in an exchange within %d ms; see "
		"the log of MPI, or raise timeout-ms", peer, timeout_ms);
	why.rank = peer;
	abandon_mpi(m, &why);
	if (err)
		*err = why;
	return TR_ELOST;
}

/* Waits until all messages are done. ELOST: MPI reports an error, another rank has sent a reason to
 * stop, or the deadline has passed; the messages that are not done then go on. Between two polls
 * this call yields the core to other ranks, and after 50 ms it sleeps. On a node that has fewer
 * cores than ranks it sleeps after 50 us, because a rank that polls takes a core from one that
 * computes. */
static int wait_done(struct mpi_ranks *m, struct transfer *t, int timeout_ms,
		    struct tr_error *err)
{
	int64_t start = tr_clock_ns(), now = start, deadline = (int64_t)timeout_ms * 1000000;
	const int64_t poll_ns = m->is_crowded ? 50000 : 50000000;
	int done = 0, late = -1;

	for (unsigned turn = 0;; turn++) {
		if (test_all(t, &done) != MPI_SUCCESS)
			return tr_fail(err, TR_ELOST, "MPI lost a rank; see its log");
		if (done)
			break;
		if (turn % 16 == 0) {
			now = tr_clock_ns();
			if (is_abandoned(m, err))
				return TR_ELOST;
		}
		if (late < 0 && now - start > deadline / 2) {
			late = find_late(m, t);
			if (late >= 0)
				tell(m, late);
		}
		if (now - start > deadline) {
			int last = find_late(m, t);

			if (last >= 0)
				return lost(m, last, timeout_ms, err);
			break;
		}
		if (now - start > poll_ns) {
			struct timespec ts = { .tv_nsec = m->is_crowded ? 20000 : 100000 };

			nanosleep(&ts, NULL);
		} else {
			sched_yield();
		}
	}
	if (late >= 0)
		tell(m, -1);
	return 0;
}

/* Waits until all messages are done. After a failure the receives are cancelled. */
static int wait_all(struct mpi_ranks *m, struct transfer *t, int timeout_ms,
		    struct tr_error *err)
{
	int rc = wait_done(m, t, timeout_ms, err);

	if (rc < 0)
		cancel_receives(t);
	return rc;
}

/* Gives up, and reports to all others that this rank has no memory. */
static int no_memory(struct mpi_ranks *m, size_t count, struct tr_error *err)
{
	struct tr_error why;

	why.rank = m->first + m->rank * m->stride;
	tr_fail(&why, TR_ELOST, "no memory for %zu messages on rank %d", count, why.rank);
	abandon_mpi(m, &why);
	if (err)
		*err = why;
	return TR_ELOST;
}

/* Makes room for the messages of an exchange. NULL: no memory. */
static struct transfer *new_transfer(size_t most)
{
	struct transfer *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->request = malloc((most + 1) * sizeof(*t->request));
	t->peer = malloc((most + 1) * sizeof(*t->peer));
	if (t->request && t->peer)
		return t;
	free(t->request);
	free(t->peer);
	free(t);
	return NULL;
}

static void free_transfer(struct transfer *t)
{
	free(t->request);
	free(t->peer);
	free(t);
}

static int begin_mpi(void *arg, const struct tr_piece *out, const struct tr_piece *in,
		     void **flow, struct tr_error *err)
{
	struct mpi_ranks *m = arg;
	size_t most = messages(out, m->n) + messages(in, m->n);
	struct transfer *t;
	int posted = 1;

	if (is_abandoned(m, err))
		return TR_ELOST;
	t = new_transfer(most);
	if (!t)
		return no_memory(m, most, err);
	for (int i = 1; i < m->n && posted; i++) {
		int r = (m->rank + m->n - i) % m->n;

		posted = post(m, t, &in[r], r, 0);
	}
	t->receives = t->n;
	for (int i = 1; i < m->n && posted; i++) {
		int r = (m->rank + i) % m->n;

		posted = post(m, t, &out[r], r, 1);
	}
	if (in[m->rank].bytes)
		memcpy(in[m->rank].at, out[m->rank].at, in[m->rank].bytes);
	if (!posted) {
		cancel_receives(t);
		free_transfer(t);
		return tr_fail(err, TR_ELOST, "MPI refused a message; see its log");
	}
	*flow = t;
	return 0;
}

static int progress_mpi(void *arg, void *flow, int timeout_ms, int *done, struct tr_error *err)
{
	struct transfer *t = flow;
	int rc = 0;

	*done = timeout_ms != 0;
	if (timeout_ms)
		rc = wait_all(arg, t, timeout_ms, err);
	else if (test_all(t, done) != MPI_SUCCESS)
		rc = tr_fail(err, TR_ELOST, "MPI lost a rank; see its log");
	if (rc < 0 || *done)
		free_transfer(t);
	return rc;
}

static int exchange_mpi(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			int timeout_ms, struct tr_error *err)
{
	void *flow;
	int done, rc = begin_mpi(arg, out, in, &flow, err);

	return rc < 0 ? rc : progress_mpi(arg, flow, timeout_ms, &done, err);
}

/* ---- messages ---- */

static int channel_tag(const struct mpi_ranks *m, int channel)
{
	return TR_CHANNELS * m->tag + channel;
}

/* Fails if MPI does not have the tags of a group. The result is the same on all ranks. */
static int check_tags(int64_t tag, int tag_max, struct tr_error *err)
{
	int64_t last = TR_CHANNELS * (tag + 1) - 1;

	if (last <= tag_max)
		return 0;
	return tr_fail(err, TR_EINVAL, "tags of this MPI end at %d (MPI_TAG_UB), and a group "
		       "of ranks needs them up to %" PRId64 "; use Open MPI or MPICH", tag_max,
		       last);
}

/* Releases the copies of the messages that are not under way any more. */
static void reap(struct sent *s)
{
	int left = 0;

	for (int i = 0; i < s->n; i++) {
		int done = s->request[i] == MPI_REQUEST_NULL;

		if (!done && MPI_Test(&s->request[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
			done = 0;
		if (done) {
			free(s->bytes[i]);
			continue;
		}
		s->request[left] = s->request[i];
		s->peer[left] = s->peer[i];
		s->bytes[left++] = s->bytes[i];
	}
	s->n = left;
}

/* Makes room for one more message. Returns 0 if there is no memory. */
static int grow(struct sent *s)
{
	int room = 2 * s->room + 8;
	void *request, *peer, *bytes;

	if (s->n < s->room)
		return 1;
	request = realloc(s->request, (size_t)room * sizeof(*s->request));
	s->request = request ? request : s->request;
	peer = realloc(s->peer, (size_t)room * sizeof(*s->peer));
	s->peer = peer ? peer : s->peer;
	bytes = realloc(s->bytes, (size_t)room * sizeof(*s->bytes));
	s->bytes = bytes ? bytes : s->bytes;
	s->room = request && peer && bytes ? room : s->room;
	return s->n < s->room;
}

static int send_mpi(void *arg, int to, int channel, const void *at, size_t bytes,
		    struct tr_error *err)
{
	struct mpi_ranks *m = arg;
	struct sent *s = &m->sent;
	size_t from = 0, n;

	/* A part of less than MESSAGE_MAX bytes ends the message. Behind a part of exactly so many
	 * comes another one, perhaps without bytes. */
	reap(s);
	do {
		char *copy;

		n = bytes - from < MESSAGE_MAX ? bytes - from : MESSAGE_MAX;
		copy = grow(s) ? malloc(n + 1) : NULL;
		if (!copy)
			return tr_fail(err, TR_ENOMEM, "no memory for a message of %zu bytes", n);
		if (n)
			memcpy(copy, (const char *)at + from, n);
		s->bytes[s->n] = copy;
		s->peer[s->n] = m->first + to * m->stride;
		if (MPI_Isend(copy, (int)n, MPI_BYTE, s->peer[s->n], channel_tag(m, channel),
			      m->comm, &s->request[s->n]) != MPI_SUCCESS) {
			free(copy);
			return tr_fail(err, TR_ELOST, "MPI refused a message; see its log");
		}
		s->n++;
		from += n;
	} while (n == MESSAGE_MAX);
	return 0;
}

static int receive_mpi(void *arg, int from, int channel, const struct tr_piece *in, size_t *got,
		       int timeout_ms, struct tr_error *err)
{
	struct mpi_ranks *m = arg;
	int peer = m->first + from * m->stride, count;
	size_t at = 0;

	do {
		MPI_Request request;
		int rc;
		struct transfer t = { .request = &request, .peer = &peer, .n = 1,
				      .receives = 1 };
		size_t left = in->bytes - at, n = left < MESSAGE_MAX ? left : MESSAGE_MAX;

		if (MPI_Irecv((char *)in->at + at, (int)n, MPI_BYTE, peer,
			      channel_tag(m, channel), m->comm, &request) != MPI_SUCCESS)
			return tr_fail(err, TR_ELOST, "MPI refused a message; see its log");
		rc = wait_all(m, &t, timeout_ms, err);
		if (rc < 0)
			return rc;
		MPI_Get_count(&t.status, MPI_BYTE, &count);
		at += (size_t)count;
	} while (count == MESSAGE_MAX);
	*got = at;
	return 0;
}

static int sent_mpi(void *arg, int most, int timeout_ms, struct tr_error *err)
{
	struct mpi_ranks *m = arg;
	struct transfer t = { .request = m->sent.request, .peer = m->sent.peer,
			      .n = m->sent.n - most };
	int rc = t.n > 0 ? wait_all(m, &t, timeout_ms, err) : 0;

	reap(&m->sent);
	return rc;
}

/* Messages that nobody has received are left to MPI, with their bytes: this follows a failure. */
static void free_sent(struct sent *s)
{
	reap(s);
	for (int i = 0; i < s->n; i++)
		MPI_Request_free(&s->request[i]);
	free(s->request);
	free(s->peer);
	free(s->bytes);
}

static void free_mpi(void *arg)
{
	struct mpi_ranks *m = arg;

	free_sent(&m->sent);
	if (!m->is_sub) {
		listen(m);
		MPI_Comm_free(&m->comm);
		MPI_Comm_free(&m->waiting);
		free(m->waits_for);
		free(m->why);
	}
	free(m);
}

static void set_group(struct tr_ranks *g, struct mpi_ranks *m);

/* All ranks of the group split it in the same order, so they number the tags alike. There are tags
 * for SPLITS_MAX sub-groups of a group. */
static int split_mpi(void *arg, struct tr_ranks *sub, int first, int stride, int n,
		     struct tr_error *err)
{
	struct mpi_ranks *m = arg, *s;
	int rc = check_tags(16 * (int64_t)m->tag + SPLITS_MAX, m->tag_max, err);

	if (rc == 0 && m->splits == SPLITS_MAX)
		rc = tr_fail(err, TR_EBUG, "a group has more than %d sub-groups", SPLITS_MAX);
	if (rc < 0)
		return rc;
	m->splits++;
	s = calloc(1, sizeof(*s));
	if (!s)
		return tr_fail(err, TR_ENOMEM, "no memory for a sub-group of %d ranks", n);
	*s = (struct mpi_ranks){ .comm = m->comm, .waiting = m->waiting,
				 .waits_for = m->waits_for, .why = m->why, .n = n,
				 .rank = (m->rank - first) / stride,
				 .first = m->first + first * m->stride,
				 .stride = stride * m->stride, .tag = 16 * m->tag + m->splits,
				 .tag_max = m->tag_max, .is_sub = 1,
				 .is_crowded = m->is_crowded };
	set_group(sub, s);
	return 0;
}

static void set_group(struct tr_ranks *g, struct mpi_ranks *m)
{
	*g = (struct tr_ranks){ .rank = m->rank, .n = m->n, .exchange = exchange_mpi,
				.begin = begin_mpi, .progress = progress_mpi,
				.send = send_mpi, .receive = receive_mpi, .sent = sent_mpi,
				.split = split_mpi, .abandon = abandon_mpi, .free = free_mpi,
				.arg = m };
}

/* Returns whether the ranks of this node together may run on fewer cores than there are ranks. If
 * that is unknown, they may not. */
static int is_node_crowded(MPI_Comm comm)
{
	MPI_Comm node;
	cpu_set_t mine, all;
	int ranks, rc;

	if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
		return 0;
	CPU_ZERO(&mine);
	if (sched_getaffinity(0, sizeof(mine), &mine) < 0)
		memset(&mine, 0xff, sizeof(mine));      /* more cores than a cpu_set_t has */
	rc = MPI_Allreduce(&mine, &all, (int)sizeof(mine), MPI_BYTE, MPI_BOR, node);
	MPI_Comm_size(node, &ranks);
	MPI_Comm_free(&node);
	return rc == MPI_SUCCESS && CPU_COUNT(&all) < ranks;
}

/* Sets m->tag_max, which is 32767 or more. Only MPI_COMM_WORLD has this attribute. */
static int find_tags(struct mpi_ranks *m, struct tr_error *err)
{
	int *most, is_set;

	if (MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &is_set) != MPI_SUCCESS ||
	    !is_set)
		return tr_fail(err, TR_ELOST, "MPI does not say which tags it has; see its log");
	m->tag_max = *most;
	if (m->n > m->tag_max)          /* tell() uses the number of a rank plus 1 as a tag */
		return tr_fail(err, TR_EINVAL, "tags of this MPI end at %d (MPI_TAG_UB), which is "
			       "too few for %d ranks; use Open MPI or MPICH", m->tag_max, m->n);
	return check_tags(m->tag, m->tag_max, err);
}

int tr_ranks_mpi(struct tr_ranks *g, MPI_Comm comm, int timeout_ms, struct tr_error *err)
{
	struct mpi_ranks *m;
	int level, rc;

	if (MPI_Query_thread(&level) != MPI_SUCCESS || level < MPI_THREAD_FUNNELED)
		return tr_fail(err, TR_EINVAL, "this MPI does not allow threads beside the one "
			       "that calls it (MPI_THREAD_FUNNELED), and saves have some; use one "
			       "that was built with threads");
	m = calloc(1, sizeof(*m));
	if (!m)
		return tr_fail(err, TR_ENOMEM, "no memory for the communicator");
	MPI_Comm_rank(comm, &m->rank);
	MPI_Comm_size(comm, &m->n);
	m->waits_for = malloc((size_t)m->n * sizeof(*m->waits_for));
	m->why = calloc(2, sizeof(*m->why));
	if (!m->waits_for || !m->why) {
		free(m->waits_for);
		free(m->why);
		free(m);
		return tr_fail(err, TR_ENOMEM, "no memory for the communicator");
	}
	for (int r = 0; r < m->n; r++)
		m->waits_for[r] = -1;
	if (MPI_Comm_dup(comm, &m->comm) != MPI_SUCCESS ||
	    MPI_Comm_dup(comm, &m->waiting) != MPI_SUCCESS) {
		free(m->waits_for);
		free(m->why);
		free(m);
		return tr_fail(err, TR_ELOST, "MPI did not duplicate the communicator; "
			       "see its log");
	}
	MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(m->waiting, MPI_ERRORS_RETURN);
	m->is_crowded = is_node_crowded(m->comm);
	m->stride = 1;
	m->tag = 1;
	rc = find_tags(m, err);
	if (rc < 0) {
		free_mpi(m);
		return rc;
	}
	set_group(g, m);
	g->all_rank = m->rank;
	g->timeout_ms = timeout_ms;
	return 0;
}
