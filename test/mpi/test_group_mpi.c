/* SPDX-License-Identifier: Apache-2.0 */
/* The group over real MPI: exit 0 good, 1 wrong, 77 not possible here.
 *
 *   mpirun -n 4 test_group_mpi ops
 *      every operation, and what the room group makes of them
 *   test_group_mpi deadline MPIRUN ARG...
 *      starts "MPIRUN ARG... -n 4 test_group_mpi stopped DIR", whose last rank stops itself, and
 *      judges what the others wrote down
 */
#include "sheaf-mpi.h"
#include "rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "err.h"
#include "group.h"

#define SEED UINT64_C(0x5eaf)
#define DEADLINE_MS 1000
#define SLACK_MS 2000           /* for a machine with more ranks than cores */
#define PATIENCE_MS 30000
#define STOPPED_RANKS 4

#define WANT(x)                                                               \
	do {                                                                  \
		if (!(x)) {                                                   \
			fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, t->rank, #x); \
			return 1;                                             \
		}                                                             \
	} while (0)

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
	return rng_mix(a * UINT64_C(0x9E3779B97F4A7C15) + b * UINT64_C(0xD1B54A32D192ED03) + c);
}

/* Bytes cheap enough for megabytes. */
static uint8_t byte_of(uint64_t key, size_t i)
{
	return (uint8_t)((key >> (8 * (i % 8))) + i / 8 * 31);
}

static void fill(uint8_t *bytes, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = byte_of(key, i);
}

static int is_filled(const uint8_t *bytes, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != byte_of(key, i))
			return 0;
	return 1;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int64_t mono_ns(void *arg)
{
	(void)arg;
	return now_ms() * 1000000;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

/* Nothing, a byte, both sides of a piece (256 KiB) and of a pool (2 MiB). */
static size_t size_of(uint64_t key)
{
	static const size_t sizes[] = {
		0, 0, 0, 1, 100, 4096, 65537, 262143, 262144, 262145, 2097152, 2097153, 3000001
	};

	return sizes[mix(key, 7, 7) % (sizeof(sizes) / sizeof(sizes[0]))];
}

/* ---- operations ---- */

static int try_alltoallv(struct shf_team *t, uint64_t key)
{
	size_t ranks = (size_t)t->ranks, me = (size_t)t->rank, out_n = 0, in_n = 0;
	size_t *out_bytes = calloc(ranks, sizeof(*out_bytes));
	size_t *in_bytes = calloc(ranks, sizeof(*in_bytes));
	uint8_t *out, *in;
	struct sheaf_error err;

	WANT(out_bytes && in_bytes);
	for (size_t r = 0; r < ranks; r++) {
		out_n += out_bytes[r] = size_of(mix(key, me, r));
		in_n += in_bytes[r] = size_of(mix(key, r, me));
	}
	out = calloc(out_n + 1, 1);
	in = calloc(in_n + 1, 1);
	WANT(out && in);
	in[in_n] = 0x5a;
	for (size_t r = 0, off = 0; r < ranks; off += out_bytes[r++])
		fill(out + off, out_bytes[r], mix(key, me, r));
	WANT(shf_alltoallv(t, out, out_bytes, in, in_bytes, &err) == 0);
	for (size_t r = 0, off = 0; r < ranks; off += in_bytes[r++])
		WANT(is_filled(in + off, in_bytes[r], mix(key, r, me)));
	WANT(in[in_n] == 0x5a);
	free(out);
	free(in);
	free(out_bytes);
	free(in_bytes);
	return 0;
}

static int try_allgather(struct shf_team *t, uint64_t key)
{
	size_t n = size_of(key);
	uint8_t *mine = malloc(n + 1), *all = malloc(n * (size_t)t->ranks + 1);
	struct sheaf_error err;

	WANT(mine && all);
	fill(mine, n, mix(key, (uint64_t)t->rank, 1));
	WANT(shf_allgather(t, mine, all, n, &err) == 0);
	for (int r = 0; r < t->ranks; r++)
		WANT(is_filled(all + (size_t)r * n, n, mix(key, (uint64_t)r, 1)));
	free(mine);
	free(all);
	return 0;
}

static int try_allreduce(struct shf_team *t, uint64_t key)
{
	size_t n = size_of(key) / 5;
	uint64_t *x = malloc(n * sizeof(*x) + 1);
	struct sheaf_error err;

	WANT(x);
	for (int op = SHEAF_SUM; op <= SHEAF_XOR; op++) {
		for (size_t i = 0; i < n; i++)
			x[i] = mix(key, i, (uint64_t)t->rank);
		WANT(shf_allreduce(t, x, n, op, &err) == 0);
		for (size_t i = 0; i < n; i++) {
			uint64_t want = 0;

			for (int r = 0; r < t->ranks; r++) {
				uint64_t v = mix(key, i, (uint64_t)r);

				want = op == SHEAF_SUM ? want + v : op == SHEAF_XOR ? want ^ v :
				       v > want ? v : want;
			}
			WANT(x[i] == want);
		}
	}
	free(x);
	return 0;
}

static int try_exchange(struct shf_team *t, uint64_t key)
{
	size_t ranks = (size_t)t->ranks, me = (size_t)t->rank, off = 0;
	struct shf_buf *out = calloc(ranks, sizeof(*out)), in = SHF_BUF_INIT;
	size_t *in_bytes = calloc(ranks, sizeof(*in_bytes));
	struct sheaf_error err;

	WANT(out && in_bytes);
	for (size_t r = 0; r < ranks; r++) {
		size_t n = size_of(mix(key, me, r));
		uint8_t *p = shf_buf_extend(&out[r], n);

		WANT(p || n == 0);
		fill(p, n, mix(key, me, r));
	}
	WANT(shf_exchange(t, 0, out, &in, in_bytes, &err) == 0);
	for (size_t r = 0; r < ranks; off += in_bytes[r++]) {
		WANT(in_bytes[r] == size_of(mix(key, r, me)));
		WANT(is_filled(in.data + off, in_bytes[r], mix(key, r, me)));
	}
	for (size_t r = 0; r < ranks; r++)
		shf_buf_release(&out[r]);
	shf_buf_release(&in);
	free(out);
	free(in_bytes);
	return 0;
}

static int try_agree(struct shf_team *t, uint64_t key)
{
	int bad = (int)(key % (uint64_t)t->ranks);
	struct sheaf_error err;
	char text[40] = "", want[40];

	snprintf(want, sizeof(want), "rank %d: a bad day", bad);
	WANT(shf_agree(t, 0, &err) == 0);
	WANT(shf_agree(t, t->rank == bad ? shf_fail(&err, SHEAF_EIO, "%s", want) : 0, &err) ==
	     SHEAF_EIO);
	WANT(err.code == SHEAF_EIO && err.rank == bad && strcmp(err.msg, want) == 0);
	if (t->rank == 0)
		memcpy(text, want, sizeof(text));
	WANT(shf_bcast(t, 0, text, sizeof(text), &err) == 0);
	WANT(strcmp(text, want) == 0);
	return 0;
}

/* A table that is wrong on one rank is wrong on all, and no rank is left waiting. */
static int try_new(struct shf_team *t)
{
	struct sheaf_group *g = NULL;

	WANT(sheaf_group_mpi(&g, MPI_COMM_NULL, 0, NULL) == SHEAF_EINVAL);
	WANT(sheaf_group_mpi(&g, MPI_COMM_WORLD, t->rank == 1 ? -1 : 0, NULL) ==
	     (t->ranks > 1 ? SHEAF_EINVAL : 0));
	WANT(t->ranks == 1 || g == NULL);
	sheaf_group_free(g);
	return 0;
}

static int run_ops(void)
{
	struct sheaf_group *g = NULL;
	struct shf_team team = { .timeout_ms = PATIENCE_MS }, *t = &team;
	MPI_Comm comm;
	int bad = 0;

	MPI_Comm_rank(MPI_COMM_WORLD, &team.rank);
	/* Ranks in another order than the world's; the caller's communicator is freed at once. */
	MPI_Comm_split(MPI_COMM_WORLD, 0, -team.rank, &comm);
	WANT(sheaf_group_mpi(&g, comm, 3, NULL) == 0);
	MPI_Comm_free(&comm);
	team = (struct shf_team){ g, g->ops.rank, g->ops.ranks, PATIENCE_MS, mono_ns,
	                          NULL };
	WANT(g->ops.node == 3);
	bad |= try_new(t);
	for (uint64_t round = 0; round < 12 && !bad; round++) {
		bad |= try_alltoallv(t, SEED + round);
		bad |= try_allgather(t, SEED + round);
		bad |= try_allreduce(t, SEED + round);
		bad |= try_exchange(t, SEED + round);
		bad |= try_agree(t, SEED + round);
	}
	sheaf_group_free(g);
	return bad;
}

/* ---- a rank that stops ---- */

static int touch(const char *dir, const char *name, int rank, long value)
{
	char path[300], text[32];
	int fd, n;

	snprintf(path, sizeof(path), "%s/%s-%d", dir, name, rank);
	n = snprintf(text, sizeof(text), "%ld\n", value);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		return -1;
	if (write(fd, text, (size_t)n) != n)
		n = -1;
	return close(fd) != 0 || n < 0 ? -1 : 0;
}

static long value_of(const char *dir, const char *name, int rank)
{
	char path[300];
	long value = -1;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s-%d", dir, name, rank);
	f = fopen(path, "r");
	if (!f)
		return -1;
	if (fscanf(f, "%ld", &value) != 1)
		value = -1;
	fclose(f);
	return value;
}

/* Every kind of operation must give up in time. Each needs a group that is not lost yet. */
static int wait_for_the_stopped(struct shf_team *t, struct sheaf_group *const *groups,
				const char *dir)
{
	static uint8_t out[4 << 20], in[4 << 20];
	size_t bytes[STOPPED_RANKS] = { 0 };
	struct sheaf_error err;
	uint64_t x[2] = { 0 };

	bytes[t->ranks - 1] = sizeof(out);
	for (int kind = 0; kind < 3; kind++) {
		int64_t begin = now_ms(), took;
		int rc;

		t->group = groups[kind];
		if (kind == 0)
			rc = shf_allreduce(t, x, 2, SHEAF_XOR, &err);
		else if (kind == 1)
			rc = shf_alltoallv(t, out, bytes, in, bytes, &err);
		else
			rc = shf_allgather(t, out, in, sizeof(in) / STOPPED_RANKS, &err);
		took = now_ms() - begin;
		WANT(rc == SHEAF_ELOST);
		WANT(took >= DEADLINE_MS - 1 && took < DEADLINE_MS + SLACK_MS);
		WANT(strstr(err.msg, "did not finish within 1000 ms") != NULL);
		WANT(strstr(err.msg, "cannot tell which") != NULL && err.rank == -1);
		begin = now_ms();
		WANT(t->group->ops.allreduce(t->group->ops.arg, x, 1, SHEAF_MAX, 5000, &err) != 0 &&
		     strstr(err.msg, "an earlier operation"));
		WANT(now_ms() - begin < 500);
		sheaf_group_free(groups[kind]);
	}
	WANT(touch(dir, "good", t->rank, 1) == 0);
	return 0;
}

/* The last rank stops; the others leave by _exit, the first of them after killing it. */
static int run_stopped(const char *dir)
{
	struct sheaf_group *groups[3] = { NULL };
	struct shf_team team = { .timeout_ms = DEADLINE_MS }, *t = &team;
	struct sheaf_error err;
	uint64_t pid[STOPPED_RANKS], mine = (uint64_t)getpid();
	int64_t end;

	for (int i = 0; i < 3; i++)
		WANT(sheaf_group_mpi(&groups[i], MPI_COMM_WORLD, 0, NULL) == 0);
	team = (struct shf_team){ groups[0], groups[0]->ops.rank, groups[0]->ops.ranks,
				  PATIENCE_MS, mono_ns, NULL };
	WANT(t->ranks == STOPPED_RANKS);
	WANT(touch(dir, "pid", t->rank, (long)mine) == 0);
	WANT(shf_allgather(t, &mine, pid, sizeof(mine), &err) == 0);
	if (t->rank == t->ranks - 1) {
		raise(SIGSTOP);
		_exit(0);
	}
	team.timeout_ms = DEADLINE_MS;
	if (wait_for_the_stopped(t, groups, dir) != 0)
		_exit(1);
	/* A rank that leaves may take the job with it: not before all have written. */
	for (end = now_ms() + 5000; now_ms() < end; nap()) {
		int good = 0;

		for (int r = 0; r < t->ranks - 1; r++)
			good += value_of(dir, "good", r) == 1;
		if (good == t->ranks - 1)
			break;
	}
	if (t->rank == 0)
		kill((pid_t)pid[t->ranks - 1], SIGKILL);
	_exit(0);
}

static void remove_dir(const char *dir)
{
	static const char *const names[] = { "pid", "good" };
	char path[300];

	for (int i = 0; i < 2 * STOPPED_RANKS; i++) {
		snprintf(path, sizeof(path), "%s/%s-%d", dir, names[i % 2], i / 2);
		unlink(path);
	}
	rmdir(dir);
}

static int wait_child(pid_t pid, int64_t patience_ms)
{
	for (int64_t end = now_ms() + patience_ms; now_ms() < end; nap())
		if (waitpid(pid, NULL, WNOHANG) != 0)
			return 0;
	return -1;
}

/* What mpirun returns says little when ranks leave by _exit or are killed: the files count. */
static int run_deadline(char *self, int mpirun_n, char **mpirun)
{
	char dir[] = "/tmp/sheaf-group-mpi-XXXXXX", ranks[] = "4", n[] = "-n", mode[] = "stopped";
	char recovery[] = "--enable-recovery";
	char *argv[32];
	int bad = 0, argc = 0, late;
	pid_t pid;

	if (mpirun_n < 1 || mpirun_n > 20 || !mkdtemp(dir))
		return 77;
	for (; argc < mpirun_n; argc++)
		argv[argc] = mpirun[argc];
	argv[argc++] = recovery;
	argv[argc++] = n;
	argv[argc++] = ranks;
	argv[argc++] = self;
	argv[argc++] = mode;
	argv[argc++] = dir;
	argv[argc] = NULL;
	pid = fork();
	if (pid == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	late = pid < 0 || wait_child(pid, PATIENCE_MS) != 0;
	for (int r = 0; r < STOPPED_RANKS; r++) {
		long rank_pid = value_of(dir, "pid", r);

		if (r < STOPPED_RANKS - 1 && value_of(dir, "good", r) != 1) {
			fprintf(stderr, "rank %d did not leave its operations in time\n", r);
			bad = 1;
		}
		if (late && rank_pid > 1)
			kill((pid_t)rank_pid, SIGKILL);
	}
	if (late) {
		fprintf(stderr, "the job did not end within %d ms\n", PATIENCE_MS);
		bad = 1;
		if (pid > 0) {
			kill(pid, SIGKILL);
			wait_child(pid, PATIENCE_MS);
		}
	}
	remove_dir(dir);
	return bad;
}

int main(int argc, char **argv)
{
	int level, bad, worst = 1;

	if (argc > 2 && strcmp(argv[1], "deadline") == 0)
		return run_deadline(argv[0], argc - 2, argv + 2);
	if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
		return 77;
	if (argc > 2 && strcmp(argv[1], "stopped") == 0)
		return run_stopped(argv[2]);
	bad = run_ops();
	if (bad)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Allreduce(&bad, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	MPI_Finalize();
	return worst;
}
