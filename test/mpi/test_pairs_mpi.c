/* SPDX-License-Identifier: Apache-2.0 */
/* Any layout saves, any layout loads, over real MPI and a real disk: exit 0 good, 1 wrong, 77 not
 * possible here.
 *
 *   mpirun -n 8 test_pairs_mpi
 *      every layout is the first ranks of the world, saves once, and loads what each one saved;
 *      some of them again with ranks on two and three nodes. The same bytes on disk, whoever
 *      saved. On one node payload goes through shared memory and not through MPI.
 */
#include "layouts.h"
#include "rmtree.h"
#include "sheaf-mpi.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "group.h"
#include "sheaf-stat.h"

#define SEED UINT64_C(0x5eaf)
enum { RANKS = 8, SLICES = 128, TIMEOUT_MS = 60000 };

static const int32_t two_nodes[RANKS] = { 1, 2, 1, 2, 2, 1, 1, 2 };
static const int32_t three_nodes[RANKS] = { 1, 1, 2, 2, 3, 3, 1, 2 };

struct world {
	int rank;
	char dir[64];                   /* temporary, of rank 0 */
};

/* One layout's ranks; the others only take part in agreements over the world. */
struct team {
	struct layout l;
	MPI_Comm comm;                  /* MPI_COMM_NULL: not one of them */
	struct sheaf_group *inner, *group;      /* group counts what it passes to inner */
	uint64_t sent;                  /* payload and plans given to MPI for other ranks */
};

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
}

/* The worst of all ranks. Waits asleep: there are more ranks than cores. */
static int worst(int mine)
{
	MPI_Request request;
	int all = 1, done = 0;

	MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
	while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
		nap();
	return all;
}

/* ---- a group that counts ---- */

static int count_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			   struct sheaf_error *err)
{
	struct team *t = arg;
	const struct sheaf_group_ops *ops = &t->inner->ops;

	t->sent += bytes * (size_t)(ops->ranks - 1);
	return ops->allgather(ops->arg, mine, all, bytes, timeout_ms, err);
}

static int count_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
                           const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct team *t = arg;
	const struct sheaf_group_ops *ops = &t->inner->ops;

	for (int r = 0; r < ops->ranks; r++)
		t->sent += r == ops->rank ? 0 : out_bytes[r];
	return ops->alltoallv(ops->arg, out, out_bytes, in, in_bytes, timeout_ms, err);
}

static int count_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	struct team *t = arg;
	const struct sheaf_group_ops *ops = &t->inner->ops;

	t->sent += n * sizeof(*x);
	return ops->allreduce(ops->arg, x, n, op, timeout_ms, err);
}

static int team_make(const struct world *w, const struct layout *l, const int32_t *nodes,
                     struct team *t)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .allgather = count_allgather,
		.alltoallv = count_alltoallv, .allreduce = count_allreduce, .arg = t };
	int rc = 0, in = w->rank < l->ranks;

	*t = (struct team){ .l = *l, .comm = MPI_COMM_NULL };
	MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, w->rank, &t->comm);
	if (in)
		rc = sheaf_group_mpi(&t->inner, t->comm, nodes ? nodes[w->rank] : 0, NULL);
	if (in && rc == 0) {
		ops.rank = t->inner->ops.rank;
		ops.ranks = t->inner->ops.ranks;
		ops.node = t->inner->ops.node;
		rc = sheaf_group_new(&t->group, &ops, NULL);
	}
	if (rc != 0)
		fprintf(stderr, "rank %d: %s: no group: %d\n", w->rank, l->name, rc);
	return rc != 0;
}

static void team_release(struct team *t)
{
	sheaf_group_free(t->group);
	sheaf_group_free(t->inner);
	if (t->comm != MPI_COMM_NULL)
		MPI_Comm_free(&t->comm);
}

/* ---- saving and loading ---- */

static struct sheaf_opts options(uint64_t flags)
{
	return (struct sheaf_opts){ .size = sizeof(struct sheaf_opts), .flags = flags,
		.timeout_ms = TIMEOUT_MS, .file_bytes_max = 60000 };
}

static struct sheaf_state *state_of(const struct sheaf_slice *slices, int n)
{
	struct sheaf_state *state = sheaf_state_new();

	for (int i = 0; i < n; i++)
		(void)sheaf_state_add(state, &slices[i], NULL);
	return state;
}

static int complain(const struct team *t, const char *what, int64_t step, int rc, const char *msg)
{
	if (rc != 0)
		fprintf(stderr, "rank %d: %s %s step %lld: %d: %s\n", t->inner->ops.rank,
		        t->l.name, what, (long long)step, rc, msg);
	return rc != 0;
}

/* Mappings of this process that other ranks of the node can have too. */
static int shared_mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[600];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:sheaf") != NULL;
	if (f)
		fclose(f);
	return f ? n : -1;
}

/* On one node plans travel, which are small, and no payload. Between nodes it must: so this
 * count can be wrong. */
static int check_ways(const struct team *t, bool apart, const struct sheaf_stat *stat,
                      uint64_t sent)
{
	uint64_t mine[3] = { stat->held, stat->sent, sent }, all[3];
	int maps = shared_mappings(), least = 0, bad = 0;

	MPI_Allreduce(mine, all, 3, MPI_UINT64_T, MPI_SUM, t->comm);
	MPI_Allreduce(&maps, &least, 1, MPI_INT, MPI_MIN, t->comm);
	if (least < 0)
		return 0;
	if (!apart)
		bad = all[1] != 0 || all[2] > all[0] / 4 || least < 2;
	else
		bad = all[1] == 0 || all[2] < all[1] || least > 0;
	if (bad && t->inner->ops.rank == 0)
		fprintf(stderr, "tp2 on %s holds %llu bytes, gave %llu to MPI, %llu of them "
		        "payload; %d shared mappings\n", apart ? "two nodes" : "one node",
		        (unsigned long long)all[0], (unsigned long long)all[2],
		        (unsigned long long)all[1], least);
	return bad;
}

static int save_step(struct team *t, const char *dir, int64_t step, const int32_t *nodes)
{
	struct sheaf_stat stat = { .size = sizeof(stat) };
	struct sheaf_opts opts = options(SHEAF_RUN_CREATE);
	struct sheaf_error err = { .msg = "" };
	struct sheaf_slice slices[SLICES];
	struct sheaf_save *save = NULL;
	struct sheaf_run *run = NULL;
	int n, rc, bad;
	struct lay_memory *m = lay_hold(&t->l, t->inner->ops.rank, slices, SLICES, &n, true, SEED);
	struct sheaf_state *state = state_of(slices, n);
	uint64_t before;

	rc = sheaf_run_open(&run, dir, t->group, &opts, &err);
	before = t->sent;
	if (rc == 0)
		rc = sheaf_save_begin(&save, run, step, state, NULL, &err);
	if (rc == 0)
		rc = sheaf_save_commit(save, -1, &err);
	bad = complain(t, "saves", step, rc, err.msg);
	if (!bad && strcmp(t->l.name, "tp2") == 0 && sheaf_save_get_stat(save, &stat, NULL) == 0)
		bad = check_ways(t, nodes && nodes[0] != nodes[1], &stat, t->sent - before);
	sheaf_save_free(save);
	sheaf_run_close(run);
	sheaf_state_free(state);
	lay_free(m);
	return bad;
}

static int load_step(struct team *t, struct sheaf_run *run, int64_t step)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_slice slices[SLICES];
	struct sheaf_checkpoint *open = NULL;
	int n, rc, bad;
	struct lay_memory *m = lay_hold(&t->l, t->inner->ops.rank, slices, SLICES, &n, false, SEED);
	struct sheaf_state *state = state_of(slices, n);

	rc = sheaf_checkpoint_open(&open, run, step, &err);
	if (rc == 0)
		rc = sheaf_checkpoint_load(open, state, SHEAF_LOAD_STRICT, &report, &err);
	bad = complain(t, "loads", step, rc, err.msg);
	if (!bad && lay_wrong(m, err.msg, sizeof(err.msg)))
		bad = complain(t, "loads", step, 1, err.msg);
	if (!bad && (report.unverified || report.missing || report.unexpected))
		bad = complain(t, "loads", step, 1, "something missing, unexpected or unverified");
	sheaf_checkpoint_close(open);
	sheaf_state_free(state);
	lay_free(m);
	return bad;
}

static int load_all(struct team *t, const char *dir, const bool *saved)
{
	struct sheaf_opts opts = options(SHEAF_RUN_READONLY);
	struct sheaf_error err = { .msg = "" };
	struct sheaf_run *run = NULL;
	int rc = sheaf_run_open(&run, dir, t->group, &opts, &err);
	int bad = complain(t, "opens", 0, rc, err.msg);

	/* A wrong value is one rank's; the others go on, so that all make the same calls. */
	for (int a = 0; a < layouts_n && run; a++)
		if (saved[a])
			bad |= load_step(t, run, a + 1);
	sheaf_run_close(run);
	return bad;
}

static int with_team(const struct world *w, int a, const char *dir, const int32_t *nodes,
                     const bool *saved)
{
	struct layout l = layouts[a];
	struct team t;
	int bad;

	l.small = true;
	bad = team_make(w, &l, nodes, &t);
	if (worst(bad))
		return 1;
	if (t.group)
		bad = saved ? load_all(&t, dir, saved) : save_step(&t, dir, a + 1, nodes);
	bad = worst(bad);
	if (!bad)
		team_release(&t);
	return bad;
}

/* ---- the same bytes ---- */

static int same_file(const char *a, const char *b)
{
	FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
	char x[4096], y[4096];
	int same = f && g;

	for (size_t n = 1; same && n > 0;) {
		n = fread(x, 1, sizeof(x), f);
		same = fread(y, 1, sizeof(y), g) == n && memcmp(x, y, n) == 0;
	}
	if (f)
		fclose(f);
	if (g)
		fclose(g);
	return same;
}

/* Files of b that are a's too, with the same bytes, and the folders in it likewise; -1: one is not.
 * A manifest says when and by whom, so it differs. */
static int same_files(const char *a, const char *b)
{
	DIR *d = opendir(b);
	int n = d ? 0 : -1;

	for (struct dirent *e; n >= 0 && (e = readdir(d));) {
		char in_a[300], in_b[300];
		struct stat st;

		if (e->d_name[0] == '.' || strcmp(e->d_name, "sheaf.json") == 0)
			continue;
		if (snprintf(in_a, sizeof(in_a), "%s/%s", a, e->d_name) >= (int)sizeof(in_a) ||
		    snprintf(in_b, sizeof(in_b), "%s/%s", b, e->d_name) >= (int)sizeof(in_b) ||
		    stat(in_b, &st) != 0) {
			n = -1;
		} else if (S_ISDIR(st.st_mode)) {
			int inner = same_files(in_a, in_b);

			n = inner < 0 ? -1 : n + inner;
		} else if (!same_file(in_a, in_b)) {
			fprintf(stderr, "%s and %s differ\n", in_a, in_b);
			n = -1;
		} else {
			n++;
		}
	}
	if (d)
		closedir(d);
	return n;
}

/* Every saved step of the run against the first layout's in the first run. */
static int same_steps(const char *first, const char *dir, const bool *saved)
{
	char a[200], b[200];
	int want;

	snprintf(a, sizeof(a), "%s/checkpoint-1", first);
	want = same_files(a, a);
	if (want < 10)
		fprintf(stderr, "%s: %d files are too few to show anything\n", a, want);
	for (int i = 0; i < layouts_n && want >= 10; i++) {
		snprintf(b, sizeof(b), "%s/checkpoint-%d", dir, i + 1);
		if (saved[i] && same_files(a, b) != want) {
			fprintf(stderr, "%s saved other bytes than %s\n", layouts[i].name,
			        layouts[0].name);
			return 1;
		}
	}
	return want < 10;
}

/* ---- the whole ---- */

static bool chosen(const char *name)
{
	static const char *const some[] = {
		"tp2", "tp4", "zero1x3", "dp2tp2pp2", "tp2sh2=ep4", "cut2x3", "hsdp2x2"
	};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		if (strcmp(name, some[i]) == 0)
			return true;
	return false;
}

static int pairs(const struct world *w, const char *run, bool all, const int32_t *save_nodes,
                 const int32_t *load_nodes)
{
	bool saved[64] = { false };
	char first[100], dir[100];
	int bad = 0;

	snprintf(first, sizeof(first), "%s/one", w->dir);
	snprintf(dir, sizeof(dir), "%s/%s", w->dir, run);
	for (int a = 0; a < layouts_n && !bad; a++) {
		saved[a] = all || chosen(layouts[a].name);
		if (saved[a])
			bad = with_team(w, a, dir, save_nodes, NULL);
	}
	bad = bad ? bad : worst(w->rank == 0 && same_steps(first, dir, saved));
	for (int b = 0; b < layouts_n && !bad; b++)
		if (saved[b])
			bad = with_team(w, b, dir, load_nodes, saved);
	return bad;
}

int main(int argc, char **argv)
{
	struct world w = { .dir = "/tmp/sheaf-pairs-XXXXXX" };
	int level, ranks, bad;

	if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
		return 77;
	MPI_Comm_rank(MPI_COMM_WORLD, &w.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	bad = worst(ranks != RANKS || layouts_n > 64 || (w.rank == 0 && !mkdtemp(w.dir)));
	MPI_Bcast(w.dir, sizeof(w.dir), MPI_CHAR, 0, MPI_COMM_WORLD);
	if (bad && w.rank == 0)
		fprintf(stderr, "wants %d ranks and a temporary directory\n", RANKS);
	bad = bad ? bad : pairs(&w, "one", true, NULL, NULL);
	bad = bad ? bad : pairs(&w, "two", false, two_nodes, three_nodes);
	bad = bad ? bad : pairs(&w, "three", false, three_nodes, NULL);
	if (w.rank == 0)
		rmtree(w.dir);
	/* After a failure a group may be lost, and MPI_Finalize would wait for it. */
	if (worst(bad))
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
