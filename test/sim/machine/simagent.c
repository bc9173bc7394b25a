/* SPDX-License-Identifier: Apache-2.0 */
/* The agents of the simulated machine. A node has an agent for each run directory in which a
 * process has looked for one, as if the agent had been started with the job. Agents outlive the
 * processes. A handle of an agent is life << 12 | its index. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "simcore.h"

#define INDEX_BITS 12

static int agent_of(int keep)
{
	return keep & ((1 << INDEX_BITS) - 1);
}

static int keep_begin(struct sim_call *c, struct simproc *p, int keep, const char *what,
                      const char *name)
{
	struct simdisk *d = p->disk;
	int rc = sim_begin(c, p, SIMDISK_KEEP, -1, name, "%s", what);

	if (!rc && keep >= 0 && (unsigned)keep >> INDEX_BITS != d->agents[agent_of(keep)].life)
		rc = -EPIPE;
	return !rc && c->after ? -c->after : rc;
}

static struct sim_kept *kept_of(struct simdisk *d, int agent, const char *name)
{
	for (size_t i = 0; i < d->kept_n; i++)
		if (d->kept[i].base && d->kept[i].agent == agent &&
		    !strcmp(d->kept[i].name, name))
			return &d->kept[i];
	return NULL;
}

static void kept_drop(struct simdisk *d, struct sim_kept *k)
{
	sim_mem_put(d, sim_mem_of(d, k->base));
	k->base = NULL;
}

/* ---- finding an agent ---- */

static bool is_auto(const char *socket)
{
	return strncmp(socket, "auto/", 5) == 0;
}

static bool is_run(const struct sim_agent *a, int node, const char *run)
{
	return a->node == node && !strcmp(a->run, run);
}

/* A process that names no run gets the node's first agent, which belongs to the first run that was
 * named. A socket path of its own has one agent, of the first run that was named there. */
static bool answers(const struct sim_agent *a, int node, const char *socket, const char *run)
{
	if (a->node != node)
		return false;
	if (!run[0] || !a->run[0])
		return true;
	return is_auto(socket) ? !a->socket[0] && !strcmp(a->run, run)
	                       : !strcmp(a->socket, socket);
}

static int agent_find(struct simdisk *d, int node, const char *socket, const char *run)
{
	struct sim_agent *a;
	size_t i = 0;

	while (i < d->agent_n && !answers(&d->agents[i], node, socket, run))
		i++;
	if (i == 1 << INDEX_BITS)
		return -EMFILE;
	if (i == d->agent_n) {
		d->agents = sim_grow(d->agents, &d->agent_cap, i + 1, sizeof(*d->agents));
		d->agents[d->agent_n++] = (struct sim_agent){ .node = node };
	}
	a = &d->agents[i];
	if (!a->run[0] && run[0]) {
		snprintf(a->run, sizeof(a->run), "%s", run);
		snprintf(a->socket, sizeof(a->socket), "%s", is_auto(socket) ? "" : socket);
	}
	return run[0] && strcmp(a->run, run) ? -EXDEV : (int)i;
}

static int op_keep_open(void *arg, const char *socket, const char *run, const char *job,
                        int *keep, int *steps)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_call c;
	int rc = keep_begin(&c, p, -1, job, socket);

	if (!rc && !d->agents_bytes)
		rc = -ENOENT;
	if (!rc)
		rc = agent_find(d, p->node, socket, run);
	if (rc >= 0) {
		*keep = (int)(d->agents[rc].life << INDEX_BITS) | rc;
		if (steps)
			*steps = d->agent_steps[p->node];
		rc = 0;
	}
	return (int)sim_end(&c, rc);
}

/* ---- memory that agents keep ---- */

static struct simdisk_held held(const struct simdisk *d, int node)
{
	struct simdisk_held h = { 0 };

	for (size_t i = 0; i < d->kept_n; i++)
		if (d->kept[i].base && d->agents[d->kept[i].agent].node == node) {
			h.names++;
			h.bytes += d->kept[i].bytes;
		}
	return h;
}

static void note_most(struct simdisk *d, int node)
{
	struct simdisk_held *most = &d->agent_most[node], now = held(d, node);

	most->names = now.names > most->names ? now.names : most->names;
	most->bytes = now.bytes > most->bytes ? now.bytes : most->bytes;
}

static int op_keep_put(void *arg, int keep, const char *name, const struct shf_shm *shm)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_call c;
	int rc = keep_begin(&c, p, keep, "put", name), agent = agent_of(keep);
	struct sim_mem *m = sim_mem_of(d, shm->base);
	struct sim_kept *k;
	uint64_t all = shm->bytes;
	size_t i = 0;

	for (size_t j = 0; j < d->kept_n; j++)
		all += d->kept[j].base && d->kept[j].agent == agent &&
		       strcmp(d->kept[j].name, name) ? d->kept[j].bytes : 0;
	if (!rc && (!m || shm->fd < 0))
		rc = -EINVAL;
	if (!rc && all > d->agents_bytes)
		rc = -ENOSPC;
	if (rc)
		return (int)sim_end(&c, rc);
	k = kept_of(d, agent, name);
	m->refs++;
	if (k)
		kept_drop(d, k);
	while (i < d->kept_n && d->kept[i].base)
		i++;
	if (i == d->kept_n) {
		d->kept = sim_grow(d->kept, &d->kept_cap, d->kept_n + 1, sizeof(*d->kept));
		d->kept_n++;
	}
	d->kept[i] = (struct sim_kept){ .base = shm->base, .bytes = shm->bytes,
	                                .agent = agent, .owner = p->index };
	snprintf(d->kept[i].name, sizeof(d->kept[i].name), "%s", name);
	note_most(d, p->node);
	return (int)sim_end(&c, 0);
}

/* Called when the process dies. Copies what it gave to agents, because this program may change a
 * dead process's memory when it frees it. */
void sim_agents_part(struct simdisk *d, int owner)
{
	for (size_t i = 0; i < d->kept_n; i++) {
		struct sim_kept *k = &d->kept[i];
		void *base;

		if (!k->base || k->owner != owner)
			continue;
		base = sim_mem_copy(d, sim_mem_of(d, k->base))->base;
		kept_drop(d, k);
		k->base = base;
	}
}

static int op_keep_get(void *arg, int keep, const char *name, struct shf_shm *shm)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = keep_begin(&c, p, keep, "get", name);
	struct sim_kept *k = kept_of(p->disk, agent_of(keep), name);

	if (!rc && !k)
		rc = -ENOENT;
	if (!rc) {
		sim_mem_of(p->disk, k->base)->refs++;
		*shm = (struct shf_shm){ k->base, k->bytes, 0 };
	}
	return (int)sim_end(&c, rc);
}

static int op_keep_drop(void *arg, int keep, const char *name)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = keep_begin(&c, p, keep, "drop", name);
	struct sim_kept *k = kept_of(p->disk, agent_of(keep), name);

	if (!rc && !k)
		rc = -ENOENT;
	if (!rc)
		kept_drop(p->disk, k);
	return (int)sim_end(&c, rc);
}

static int op_keep_list(void *arg, int keep, int (*item)(void *arg, const char *name),
                        void *item_arg)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_call c;
	int rc = keep_begin(&c, p, keep, "list", "");

	for (size_t i = 0; i < d->kept_n && !rc; i++)
		if (d->kept[i].base && d->kept[i].agent == agent_of(keep))
			rc = item(item_arg, d->kept[i].name);
	return (int)sim_end(&c, rc);
}

static int op_keep_tell(void *arg, int keep, const char *text)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = keep_begin(&c, p, keep, "tell", text);

	return (int)sim_end(&c, rc);
}

static int op_keep_at(void *arg, int keep, int dir)
{
	(void)arg;
	(void)keep;
	(void)dir;
	return 0;
}

static int op_keep_lives(void *arg, int keep)
{
	struct simdisk *d = sim_proc(arg)->disk;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = (unsigned)keep >> INDEX_BITS == d->agents[agent_of(keep)].life ? 0 : -EPIPE;
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* Stops the program if a handle was not opened: the real call would close another descriptor. */
static void op_keep_close(void *arg, int keep, bool bye)
{
	struct simdisk *d = sim_proc(arg)->disk;

	(void)bye;
	pthread_mutex_lock(&d->lock);
	if (keep >= 0 && (size_t)agent_of(keep) >= d->agent_n)
		abort();
	pthread_mutex_unlock(&d->lock);
}

/* ---- for tests ---- */

void simdisk_set_agents(struct simdisk *d, uint64_t bytes_max)
{
	d->agents_bytes = bytes_max;
}

void simdisk_set_agent_steps(struct simdisk *d, int node, int steps)
{
	d->agent_steps[node] = steps;
}

static void agent_kill(struct simdisk *d, size_t agent)
{
	d->agents[agent].life++;
	for (size_t i = 0; i < d->kept_n; i++)
		if (d->kept[i].base && d->kept[i].agent == (int)agent)
			kept_drop(d, &d->kept[i]);
}

void simdisk_kill_agent(struct simdisk *d, int node)
{
	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->agent_n; i++)
		if (d->agents[i].node == node)
			agent_kill(d, i);
	pthread_mutex_unlock(&d->lock);
}

void simdisk_kill_agent_of(struct simdisk *d, int node, const char *run)
{
	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->agent_n; i++)
		if (is_run(&d->agents[i], node, run))
			agent_kill(d, i);
	pthread_mutex_unlock(&d->lock);
}

size_t simdisk_agents(const struct simdisk *d, int node)
{
	size_t n = 0;

	for (size_t i = 0; i < d->agent_n; i++)
		n += d->agents[i].node == node;
	return n;
}

size_t simdisk_kept(const struct simdisk *d, int node)
{
	return held(d, node).names;
}

struct simdisk_held simdisk_held_most(struct simdisk *d, int node)
{
	struct simdisk_held most = d->agent_most[node];

	d->agent_most[node] = held(d, node);
	return most;
}

size_t simdisk_kept_by(const struct simdisk *d, int node, const char *run)
{
	size_t n = 0;

	for (size_t i = 0; i < d->kept_n; i++)
		n += d->kept[i].base && is_run(&d->agents[d->kept[i].agent], node, run);
	return n;
}

void sim_agents_release(struct simdisk *d)
{
	for (size_t i = 0; i < d->kept_n; i++)
		if (d->kept[i].base)
			kept_drop(d, &d->kept[i]);
	free(d->kept);
	free(d->agents);
}

void sim_agents_bind(struct sys_tables *ops)
{
	ops->keep.keep_open = op_keep_open;
	ops->keep.keep_put = op_keep_put;
	ops->keep.keep_get = op_keep_get;
	ops->keep.keep_drop = op_keep_drop;
	ops->keep.keep_message = op_keep_tell;
	ops->keep.keep_at = op_keep_at;
	ops->keep.keep_list = op_keep_list;
	ops->keep.keep_lives = op_keep_lives;
	ops->keep.keep_close = op_keep_close;
}

/* The first 32 characters of a name are a job's. */
static bool is_first_of_job(const struct simdisk *d, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (d->kept[i].base && d->kept[i].agent == d->kept[at].agent &&
		    !strncmp(d->kept[i].name, d->kept[at].name, 32))
			return false;
	return true;
}

size_t simdisk_kept_jobs(const struct simdisk *d)
{
	size_t most = 0;

	for (size_t a = 0; a < d->agent_n; a++) {
		size_t n = 0;

		for (size_t i = 0; i < d->kept_n; i++)
			n += d->kept[i].base && d->kept[i].agent == (int)a && is_first_of_job(d, i);
		most = n > most ? n : most;
	}
	return most;
}
