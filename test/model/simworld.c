/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence on the simulated machine. The library's entry points get the machine from
 * shf_sys_real. This program replaces that function by one that returns the simulated process for
 * which the thread acts. A job of several ranks makes each collective call on simulated ranks that
 * live as long as the call: the group of a rank is a hub, which passes operations to the simulated
 * one. */
#include "model_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "simdisk.h"
#include "simgroup.h"
#include "group.h"

const char *const world_runs[RUNS] = { "run0", "run1", "run2" };
const int world_nodes = NODES;

#define ROOM (UINT64_C(1) << 30) /* memory of an agent */

struct hub {                                 /* the group of a rank */
	struct sheaf_group *group;           /* the library's group; owned */
	const struct sheaf_group_ops *inner; /* during a collective call */
	bool dead;
};
struct rank {
	struct actor actor;
	struct hub hub;
	const struct shf_sys *sys;
};
struct job {
	bool open, zombie; /* zombie: rank 0 is dead, but its forked child has its memory */
	int ranks;
	const struct shf_sys *child; /* of rank 0; may be NULL */
	char dir[8];                 /* the name of its directory when the job opened it */
	struct rank rank[RANKS_MAX];
};
struct world {
	struct simdisk *disk;          /* owned */
	const struct shf_sys *outside; /* for calls outside of jobs */
	struct job jobs[JOBS];
	uint64_t seed, groups, pid;
	bool agents;
};

static _Thread_local const struct shf_sys *sys_now;
const struct shf_sys *__wrap_shf_sys_real(void);

const struct shf_sys *__wrap_shf_sys_real(void)
{
	return sys_now;
}

/* ---- a group that outlives its operations ---- */

static int hub_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			 struct sheaf_error *err)
{
	struct hub *h = arg;

	return h->dead || !h->inner
		   ? -1
		   : h->inner->allgather(h->inner->arg, mine, all, bytes, timeout_ms, err);
}

static int hub_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			 const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct hub *h = arg;

	return h->dead || !h->inner
		   ? -1
		   : h->inner->alltoallv(h->inner->arg, out, out_bytes, in, in_bytes, timeout_ms,
					 err);
}

static int hub_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			 struct sheaf_error *err)
{
	struct hub *h = arg;

	return h->dead || !h->inner ? -1 : h->inner->allreduce(h->inner->arg, x, n, op, timeout_ms,
							       err);
}

static void hub_open(struct hub *h, int rank, int ranks)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops),
				       .rank = rank,
				       .ranks = ranks,
				       .allgather = hub_allgather,
				       .alltoallv = hub_alltoallv,
				       .allreduce = hub_allreduce,
				       .arg = h };

	*h = (struct hub){ .dead = false };
	if (ranks > 1 && sheaf_group_new(&h->group, &ops, NULL) < 0)
		abort();
}

/* ---- processes ---- */

static const struct shf_sys *process_new(struct world *w, int node)
{
	return simdisk_process(w->disk, w->pid += 3, node);
}

struct world *world_new(uint64_t seed, bool agents, bool story)
{
	struct world *w = calloc(1, sizeof(*w));

	if (!w)
		abort();
	w->seed = seed;
	w->pid = 7000;
	w->agents = agents;
	w->disk = simdisk_new(seed, (enum simdisk_model)(seed % 3));
	simdisk_set_trace(w->disk, story);
	w->outside = process_new(w, 0);
	if (agents)
		simdisk_set_agents(w->disk, ROOM);
	return w;
}

/* Frees what a dead rank still has in this program's memory. */
static void bury(struct rank *r)
{
	sys_now = r->sys;
	actor_bury(&r->actor);
	sheaf_group_free(r->hub.group);
	r->hub.group = NULL;
}

static void job_end(struct world *w, struct job *j, bool killed)
{
	for (int r = 0; r < j->ranks; r++) {
		j->rank[r].hub.dead = true;
		if (killed)
			simdisk_kill(w->disk, j->rank[r].sys);
	}
	j->open = false;
	j->zombie = killed && j->child;
	for (int r = j->zombie ? 1 : 0; r < j->ranks; r++)
		bury(&j->rank[r]);
	for (int r = 0; r < j->ranks && !killed; r++)
		simdisk_kill(w->disk, j->rank[r].sys);
}

/* The child frees all that it inherited, as a program that cleans up, or it just exits. */
static void child_close(struct job *j)
{
	if (!j->zombie)
		return;
	simdisk_act_as(j->rank[0].sys, j->child);
	bury(&j->rank[0]);
	simdisk_act_as(j->rank[0].sys, NULL);
	j->zombie = false;
}

static void child_exit(struct world *w, struct job *j)
{
	simdisk_kill(w->disk, j->child);
	if (j->zombie)
		bury(&j->rank[0]);
	j->zombie = false;
	j->child = NULL;
}

void world_free(struct world *w)
{
	for (int i = 0; i < JOBS; i++) {
		if (w->jobs[i].open)
			job_end(w, &w->jobs[i], true);
		if (w->jobs[i].child)
			child_exit(w, &w->jobs[i]);
	}
	simdisk_free(w->disk);
	free(w);
}

/* ---- calls of jobs ---- */

struct acting {
	struct world *w;
	struct job *j;
	const struct call *c;
	const char *dir, *to;
	struct reply replies[RANKS_MAX];
};

static int act(void *arg, int rank, struct sheaf_group *group)
{
	struct acting *a = arg;
	struct rank *r = &a->j->rank[rank];

	sys_now = r->sys;
	r->hub.inner = group ? &group->ops : NULL;
	actor_do(&r->actor, a->c, a->dir, a->to, &a->replies[rank]);
	r->hub.inner = NULL;
	sys_now = a->w->outside;
	return a->replies[rank].rc;
}

static void job_do(struct world *w, struct job *j, const struct call *c, struct reply *r)
{
	struct acting a = { .w = w, .j = j, .c = c, .dir = j->dir };
	struct simgroup_stat stat;
	struct simgroup_opts opts = {
		.seed = w->seed ^ ++w->groups << 20, .ranks = j->ranks, .stat = &stat, .quiet = true
	};
	int results[RANKS_MAX];

	sys_now = w->outside;
	if (j->ranks > 1 && call_is_collective(c->kind)) {
		if (simgroup_run(&opts, act, &a, results) < 0) {
			*r = (struct reply){ .rc = SHEAF_EBUG };
			snprintf(r->msg, sizeof(r->msg), "%.400s", stat.why);
			return;
		}
	} else {
		for (int i = 0; i < j->ranks; i++)
			(void)act(&a, i, NULL);
	}
	reply_join(c, a.replies, j->ranks, r);
}

static void do_open(struct world *w, const struct call *c, struct reply *r)
{
	struct job *j = &w->jobs[c->job];

	*j = (struct job){ .ranks = c->n, .open = true };
	snprintf(j->dir, sizeof(j->dir), "%s", world_runs[c->run]);
	for (int i = 0; i < c->n; i++) {
		struct rank *k = &j->rank[i];

		k->sys = process_new(w, c->nodes == 3 ? i % 2 : c->nodes - 1);
		sys_now = k->sys;
		hub_open(&k->hub, i, c->n);
		actor_init(&k->actor, c, i, k->hub.group);
	}
	job_do(w, j, c, r);
	if (r->rc < 0)
		job_end(w, j, false);
}

static void do_close(struct world *w, const struct call *c, struct reply *r)
{
	struct job *j = &w->jobs[c->job];
	size_t left = 0;

	job_do(w, j, c, r);
	for (int i = 0; i < j->ranks; i++)
		left += simdisk_open_n(j->rank[i].sys);
	if (left) {
		snprintf(r->msg, sizeof(r->msg), "%zu descriptors are left open", left);
		r->rc = SHEAF_EBUG;
	}
	job_end(w, j, false);
}

/* ---- calls outside of jobs ---- */

static int copy_names(void *arg, const char *name)
{
	char(*names)[64] = arg;
	int i = 0;

	while (names[i][0])
		i++;
	if (i < 254)
		snprintf(names[i], 64, "%s", name);
	return 0;
}

/* Runs cp -a, in a process without runs. */
static int copy_tree(const struct shf_sys *sys, int from, int to)
{
	char(*names)[64] = calloc(256, sizeof(*names));
	static uint8_t bytes[1 << 20];
	int rc;

	if (!names)
		abort();
	rc = shf_sys_list(sys, from, copy_names, names);
	for (int i = 0; rc >= 0 && names[i][0]; i++) {
		struct shf_stat st;
		int a, b = -1;

		rc = shf_sys_stat(sys, from, names[i], false, &st);
		a = rc < 0 ? rc
			   : shf_sys_open(sys, from, names[i], st.type == SHF_T_DIR ? SHF_O_DIR : 0,
				     0);
		if (a < 0) {
			rc = a;
			break;
		}
		if (st.type == SHF_T_DIR) {
			rc = shf_sys_mkdir(sys, to, names[i], 0777);
			b = rc < 0 ? rc : shf_sys_open(sys, to, names[i], SHF_O_DIR, 0);
			rc = b < 0 ? b : copy_tree(sys, a, b);
		} else {
			int64_t n = shf_sys_pread(sys, a, bytes, sizeof(bytes), 0);

			b = shf_sys_open(sys, to, names[i], SHF_O_WRITE | SHF_O_CREATE, 0666);
			rc = b < 0 ? b : n < 0 ? (int)n : 0;
			if (rc >= 0 && n > 0)
				rc = (int)shf_sys_pwrite(sys, b, bytes, (size_t)n, 0);
			rc = rc < 0 ? rc : shf_sys_fsync(sys, b);
		}
		if (b >= 0)
			shf_sys_close(sys, b);
		shf_sys_close(sys, a);
	}
	free(names);
	return rc;
}

static void do_cp(struct world *w, const struct call *c, struct reply *r)
{
	const struct shf_sys *sys = process_new(w, 0);
	int from = shf_sys_open(sys, SHF_CWD, world_runs[c->run], SHF_O_DIR, 0), to = -1, rc;

	rc = from < 0 ? from : shf_sys_mkdir(sys, SHF_CWD, world_runs[c->to], 0777);
	if (rc >= 0)
		rc = to = shf_sys_open(sys, SHF_CWD, world_runs[c->to], SHF_O_DIR, 0);
	if (rc >= 0)
		rc = copy_tree(sys, from, to);
	r->rc = rc < 0 ? SHEAF_EIO : 0;
	simdisk_kill(w->disk, sys);
}

static void do_rename(struct world *w, const struct call *c, struct reply *r)
{
	const struct shf_sys *sys = process_new(w, 0);

	r->rc = shf_sys_rename(sys, SHF_CWD, world_runs[c->run], SHF_CWD, world_runs[c->to],
			       true) < 0
		    ? SHEAF_EIO
		    : 0;
	simdisk_kill(w->disk, sys);
}

/* Makes a call in a process that lives as long as the call. */
static void do_alone(struct world *w, const struct call *c, struct reply *r)
{
	const struct shf_sys *sys = process_new(w, c->kind == C_FLUSH ? c->n : 0);

	sys_now = sys;
	actor_do(NULL, c, world_runs[c->run], world_runs[c->to], r);
	if (simdisk_open_n(sys)) {
		snprintf(r->msg, sizeof(r->msg), "%zu descriptors are left open",
			 simdisk_open_n(sys));
		r->rc = SHEAF_EBUG;
	}
	simdisk_kill(w->disk, sys);
}

static void do_fault(struct world *w, const struct call *c)
{
	struct simdisk_fault f = { .nth = c->n, .error = c->to };

	simdisk_fault(w->disk, &f);
}

void world_do(struct world *w, const struct call *c, struct reply *r)
{
	*r = (struct reply){ .id = -1, .step = -1 };
	switch (c->kind) {
	case C_OPEN:
		do_open(w, c, r);
		break;
	case C_CLOSE:
		do_close(w, c, r);
		break;
	case C_KILL:
		job_end(w, &w->jobs[c->job], true);
		break;
	case C_FORK:
		w->jobs[c->job].child =
		    simdisk_fork(w->disk, w->jobs[c->job].rank[0].sys, w->pid += 3);
		break;
	case C_CHILD_CLOSE:
		child_close(&w->jobs[c->job]);
		break;
	case C_CHILD_EXIT:
		child_exit(w, &w->jobs[c->job]);
		break;
	case C_RUN_REWIND:
	case C_RUN_MARK:
	case C_RUN_PRUNE:
	case C_COPY:
	case C_FLUSH:
	case C_SALVAGE:
		do_alone(w, c, r);
		break;
	case C_CP:
		do_cp(w, c, r);
		break;
	case C_RENAME:
		do_rename(w, c, r);
		break;
	case C_AGENT_KILL:
		simdisk_kill_agent(w->disk, c->n);
		break;
	case C_AGENT_LIMIT:
		simdisk_set_agents(w->disk, c->n ? (uint64_t)c->n << 10 : ROOM);
		break;
	case C_CLOCK:
		if (c->n >= 0) /* otherwise only the wall clock goes back */
			simdisk_advance(w->disk, (int64_t)c->n * 3600);
		else
			simdisk_fault(w->disk,
				      &(struct simdisk_fault){ .nth = 1,
							       .how = SIMDISK_JUMP,
							       .jump_s = (int64_t)c->n * 3600 });
		break;
	case C_FAULT:
		do_fault(w, c);
		break;
	default:
		job_do(w, &w->jobs[c->job], c, r);
		break;
	}
}

/* ---- looks ---- */

void world_look(struct world *w, int run, int node, bool agent, bool load, struct reply *r)
{
	const struct shf_sys *sys = process_new(w, node);

	sys_now = sys;
	actor_look(world_runs[run], agent, load, r);
	if (simdisk_open_n(sys)) {
		r->rc = SHEAF_EBUG;
		snprintf(r->msg, sizeof(r->msg), "a look leaves %zu descriptors open",
			 simdisk_open_n(sys));
	}
	simdisk_kill(w->disk, sys);
}

/* Agents may have memory of the job that is alive or died last, and of the one before it. */
const char *world_spare(struct world *w, const bool open[JOBS], char why[400])
{
	size_t jobs = simdisk_kept_jobs(w->disk);

	(void)open;
	why[0] = '\0';
	if (jobs > 2)
		snprintf(why, 400, "an agent has memory of %zu jobs", jobs);
	return why;
}

bool world_fired(const struct world *w)
{
	return simdisk_fired(w->disk) > 0;
}

void world_calm(struct world *w)
{
	simdisk_faults_clear(w->disk);
}

void world_tell(struct world *w, FILE *out)
{
	simdisk_print(w->disk, out);
}
