/* SPDX-License-Identifier: Apache-2.0 */
/* Agents of the memory tier: runs, queries and stops an agent, and writes the steps that it keeps
 * to disk. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "entry.h"
#include "err.h"
#include "export.h"
#include "flush.h"
#include "agent_client.h"
#include "agent_server.h"
#include "memory_steps.h"
#include "run_open.h"
#include "run_ops.h"
#include "sheaf-agent.h"
#include "struct_size.h"

/* How long to wait for the agents of other nodes, in ms. FLUSH_WAIT_MS: a user has started the
 * flush on all nodes. DUE_WAIT_MS: each agent flushes when its job has died, and the last rank may
 * have waited for the others as long as the job's own deadline. */
#define FLUSH_WAIT_MS 60000
#define DUE_WAIT_MS 900000
#define AGENT_MIN (offsetof(struct sheaf_agent_opts, agent))
#define INFO_MIN (offsetof(struct sheaf_agent_info, users) + sizeof(int32_t))

/* Opens a run read-only, without a group. make: creates the run if it does not exist. */
static int open_run(struct sheaf_run **out, const char *dir, bool make, const char *folder,
                    struct sheaf_error *err)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
		.folder = folder };
	struct sheaf_run *r = NULL;
	int rc = dir ? shf_run_open(&r, dir, NULL, &opts, shf_sys_real(), err)
	             : shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL");

	if (make && (rc == SHEAF_ENOENT || (rc == 0 && !r->store.run[0]))) {
		if (rc == 0)
			shf_run_close(r);
		opts.flags = SHEAF_RUN_CREATE;
		rc = shf_run_open(&r, dir, NULL, &opts, shf_sys_real(), err);
	}
	if (rc == 0 && !r->store.run[0]) {
		shf_run_close(r);
		rc = shf_fail(err, SHEAF_ENOENT, "%s: not a run: nothing was saved there yet", dir);
	}
	if (rc == 0)
		*out = r;
	return rc;
}

/* The argument of the callbacks below. */
struct serving {
	const struct sheaf_agent_opts *opts;
	const char *socket, *where;
};

/* The callbacks of struct shf_agent_server, each forwarded to the caller's options. */
static int ready(void *arg)
{
	const struct serving *s = arg;

	return s->opts->ready && s->opts->ready(s->opts->arg, s->socket) ? -ECANCELED : 0;
}

static void died(void *arg, const char *job)
{
	const struct serving *s = arg;

	if (s->opts->died)
		s->opts->died(s->opts->arg, job);
}

/* A client's message is the number of a step that is on disk now. Any other text is ignored. */
static void told(void *arg, const char *text)
{
	const struct serving *s = arg;
	int64_t step = 0;

	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '9' || step > INT64_MAX / 10 - 1)
			return;
		step = 10 * step + (*p - '0');
	}
	if (s->opts->committed && *text)
		s->opts->committed(s->opts->arg, step);
}

static void at(void *arg, const char *dir)
{
	const struct serving *s = arg;

	if (s->opts->at)
		s->opts->at(s->opts->arg, dir);
}

static bool stop(void *arg)
{
	const struct serving *s = arg;

	return s->opts->stop && s->opts->stop(s->opts->arg);
}

/* Removes the socket's directory when the agent has ended. */
static void left(void *arg)
{
	const struct serving *s = arg;

	shf_keep_dir_leave(s->where);
}

/* Serves as the agent of the run with this identity until it is stopped. -ECANCELED means that the
 * caller's `ready` refused, which is no error. */
static int serve(const char *identity, const char *dir, const struct sheaf_agent_opts *o,
                 struct sheaf_error *err)
{
	char where[SHF_KEEP_NAME], path[SHF_KEEP_PATH];
	struct serving s = { o, path, where };
	struct shf_agent_server k = { .socket = path, .run = identity, .dir = dir,
		.bytes_max = o->memory_max, .arg = &s,
		.steps_max = o->steps_max, .about = o->about,
		.idle_ms = o->idle_s ? o->idle_s > INT32_MAX / 1000 ? INT32_MAX : o->idle_s * 1000
		                     : -1,
		.ready = ready, .died = died, .told = told, .at = at,
		.stop = stop, .left = left };
	int rc;

	shf_agent_socket_name(where, o->agent, identity);
	rc = shf_keep_path(where, path);
	if (rc == 0)
		rc = shf_keep_dir(where);
	if (rc == 0)
		rc = shf_agent_server_run(&k);
	if (rc == -EBUSY)
		return shf_fail(err, SHEAF_EBUSY, "%s: another agent listens on this socket (sheaf "
		                "agent RUN --stop ends it)", path);
	if (rc == -EPERM)
		return shf_fail(err, SHEAF_EINVAL, "%s: other users can write to the socket's "
		                "directory; choose one that only you can write to", path);
	return rc < 0 && rc != -ECANCELED ? shf_fail_sys(err, -rc, "%s", path) : 0;
}

/* The run is opened only to find its identity, and closed again: the agent must not hold the run
 * while it serves. */
SHEAF_API int sheaf_agent_serve(const char *dir, const struct sheaf_agent_opts *opts,
                                struct sheaf_error *err)
{
	struct sheaf_agent_opts o = { .size = sizeof(o) };
	struct sheaf_error own;
	char identity[SHF_IDENTITY];
	struct sheaf_run *r = NULL;
	int rc = 0;

	err = shf_err_or(err, &own);
	if (opts && shf_struct_in(&o, opts, sizeof(o), AGENT_MIN) < 0)
		rc = shf_fail(err, SHEAF_EINVAL, "agent_opts.size is %u, or a field is set that "
		              "this version of sheaf does not know; set size to sizeof(struct "
		              "sheaf_agent_opts)", (unsigned)opts->size);
	if (rc == 0 && (o.idle_s < 0))
		rc = shf_fail(err, SHEAF_EINVAL, "agent_opts.idle_s is negative; it must be 0 "
		              "(never) or a number of seconds");
	if (rc == 0 && o.steps_max && o.steps_max < 2)
		rc = shf_fail(err, SHEAF_EINVAL, "agent_opts.steps_max is %d; it must be 0 or at "
		              "least 2, because one step is kept while the next is copied",
		              (int)o.steps_max);
	if (rc == 0)
		rc = open_run(&r, dir, true, o.folder, err);
	if (rc == 0)
		rc = shf_store_identity(&r->store, identity, err);
	if (r)
		shf_run_close(r);
	if (rc == 0)
		rc = serve(identity, dir, &o, err);
	return shf_ended(rc, err);
}

/* Connects to the agent of a run, or, if dir is NULL, to the one that listens on the socket
 * `agent`. */
static int reach_agent(const char *dir, const char *agent, int *keep, int *steps,
                       struct sheaf_error *err)
{
	struct sheaf_run *r = NULL;
	int rc;

	if (!dir && (!agent || strcmp(agent, "auto") == 0))
		return shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL; then 'agent' must be "
		                "the path of a socket");
	if (!dir) {
		rc = shf_sys_keep_open(shf_sys_real(), agent, "", "", keep, steps);
		if (rc == -ENOENT || rc == -ECONNREFUSED)
			return shf_fail(err, SHEAF_ENOENT, "%s: no agent answers; sheaf agent "
			                "--list shows those of this node", agent);
		return rc < 0 ? shf_fail_sys(err, -rc, "%s: connecting to the agent", agent) : 0;
	}
	rc = open_run(&r, dir, false, NULL, err);
	if (rc == 0) {
		rc = shf_agent_connect(&r->store, agent, keep, steps, err);
		shf_run_close(r);
	}
	return rc;
}

/* Reads what an agent says of itself over a connection. One that is older, and does not know where
 * its run is, leaves dir empty. */
static int ask_info(int keep, int steps, struct sheaf_agent_info *out)
{
	struct shf_keep_msg m;
	int rc = shf_keep_ask(keep, SHF_KEEP_STATUS, &m);

	if (rc < 0)
		return rc;
	out->users = m.users;
	out->pid = m.pid;
	out->bytes = m.bytes;
	out->names = m.names;
	out->steps_max = steps;
	m.name[sizeof(m.name) - 1] = '\0';
	snprintf(out->about, sizeof(out->about), "%s", m.name);
	rc = shf_keep_ask(keep, SHF_KEEP_WHERE, &m);
	m.name[sizeof(m.name) - 1] = '\0';
	if (rc == 0)
		snprintf(out->dir, sizeof(out->dir), "%s", m.name);
	return rc == -ENOSYS ? 0 : rc;
}

SHEAF_API int sheaf_agent_get_info(const char *dir, const char *agent,
                                   struct sheaf_agent_info *info, struct sheaf_error *err)
{
	struct sheaf_agent_info out = { .size = sizeof(out) };
	struct sheaf_error own;
	int steps = 0, keep = -1, rc;

	err = shf_err_or(err, &own);
	rc = info ? reach_agent(dir, agent, &keep, &steps, err)
	          : shf_fail(err, SHEAF_EINVAL, "argument 'info' is NULL");
	if (rc == 0) {
		rc = ask_info(keep, steps, &out);
		shf_sys_keep_close(shf_sys_real(), keep, true);
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "%s: asking the agent", dir ? dir : agent);
	}
	if (rc == 0)
		rc = shf_struct_out(info, &out, sizeof(out), INFO_MIN, "agent_info", err);
	return shf_ended(rc, err);
}

SHEAF_API int sheaf_agent_stop(const char *dir, const char *agent, struct sheaf_error *err)
{
	struct sheaf_error own;
	struct shf_keep_msg m;
	int keep = -1, rc;

	err = shf_err_or(err, &own);
	rc = reach_agent(dir, agent, &keep, NULL, err);
	if (rc == 0) {
		rc = shf_keep_ask(keep, SHF_KEEP_STOP, &m);
		shf_sys_keep_close(shf_sys_real(), keep, true);
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "%s: asking the agent", dir ? dir : agent);
	}
	return shf_ended(rc, err);
}

/* The argument of found_folder. */
struct finding_agents {
	int (*item)(void *arg, const char *socket, const struct sheaf_agent_info *info);
	void *arg;
	int told;                       /* what item returned */
};

/* Asks the agent whose socket is in this folder of /tmp, if it is such a folder and one answers. A
 * folder that another user made under our name is no danger: a connection is only kept to a process
 * of this user. */
static int found_folder(void *arg, const char *name)
{
	struct finding_agents *f = arg;
	struct sheaf_agent_info info = { .size = sizeof(info) };
	char socket[SHF_KEEP_PATH];
	int keep = -1, steps = 0, rc;

	if (!shf_keep_is_folder(name))
		return 0;
	rc = snprintf(socket, sizeof(socket), "/tmp/%s/agent.sock", name);
	if (rc < 0 || rc >= SHF_KEEP_PATH ||
	    shf_sys_keep_open(shf_sys_real(), socket, "", "", &keep, &steps) < 0)
		return 0;
	rc = ask_info(keep, steps, &info);
	shf_sys_keep_close(shf_sys_real(), keep, true);
	if (rc == 0)
		f->told = f->item(f->arg, socket, &info);
	return f->told;
}

SHEAF_API int sheaf_agent_find(int (*item)(void *arg, const char *socket,
                                           const struct sheaf_agent_info *info), void *arg,
                               struct sheaf_error *err)
{
	struct finding_agents f = { .item = item, .arg = arg };
	const struct shf_sys *sys = shf_sys_real();
	struct sheaf_error own;
	int tmp, rc;

	err = shf_err_or(err, &own);
	if (!item)
		return shf_ended(shf_fail(err, SHEAF_EINVAL, "callback 'item' is NULL"), err);
	tmp = shf_sys_open(sys, SHF_CWD, "/tmp", SHF_O_DIR, 0);
	if (tmp < 0)
		return shf_ended(shf_fail_sys(err, -tmp, "/tmp"), err);
	rc = shf_sys_list(sys, tmp, found_folder, &f);
	shf_fd_close(sys, &tmp);
	if (rc < 0 && f.told == 0)
		return shf_ended(shf_fail_sys(err, -rc, "/tmp"), err);
	return f.told;
}

/* The argument of list_memory_step. */
struct telling {
	int (*item)(void *arg, const struct sheaf_memory *m);
	void *arg;
	struct shf_store *store;
	struct shf_memory_step latest;  /* the first that could be written; ranks 0: none yet */
	struct sheaf_error *err;
	int rc;
};

/* Callback of shf_memory_steps_list: reports a step to the caller. A non-zero result ends the
 * list. */
static int list_memory_step(void *arg, const struct shf_memory_step *r)
{
	struct telling *t = arg;
	struct sheaf_memory m = { .size = sizeof(m), .step = r->step,
		.session = r->session, .bytes = r->bytes, .ranks = r->ranks, .here = r->here,
		.tries = (int32_t)r->tries };
	struct shf_newest disk;

	t->rc = shf_memory_step_state(t->store, r, &disk, t->err);
	m.lost = t->rc == SHF_MEMORY_LOST;
	/* A card may still say "due" although its step is on disk, because the job died after the
	 * rename and before it updated the card. So the disk is asked as well. */
	m.due = r->due && t->rc == SHF_MEMORY_UNWRITTEN &&
	        !shf_memory_step_is_passed(t->store, r, &t->latest);
	if (t->rc == SHF_MEMORY_UNWRITTEN && !t->latest.ranks)
		t->latest = *r;
	if (t->rc >= 0)
		t->rc = t->item(t->arg, &m);
	return t->rc;
}

SHEAF_API int sheaf_agent_list(const char *dir, const char *agent,
                               int (*item)(void *arg, const struct sheaf_memory *m), void *arg,
                               struct sheaf_error *err)
{
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY };
	struct telling t = { .item = item, .arg = arg };
	const struct shf_sys *sys = shf_sys_real();
	struct sheaf_run *r = NULL;
	struct sheaf_error own;
	int keep = -1, rc;

	t.err = err = shf_err_or(err, &own);
	rc = item && dir ? shf_run_open(&r, dir, NULL, &opts, sys, err)
	                 : shf_fail(err, SHEAF_EINVAL, "argument 'dir' or callback 'item' is NULL");
	if (rc == 0)
		rc = shf_agent_connect(&r->store, agent, &keep, NULL, err);
	if (rc == 0) {
		t.store = &r->store;
		rc = shf_memory_steps_list(sys, keep, r->store.run, list_memory_step, &t);
		/* The result of the callback takes precedence: it may be the caller's wish to
		 * stop. */
		if (rc < 0 && t.rc == 0)
			rc = shf_fail_sys(err, -rc, "%s: asking the agent", dir);
		else
			rc = t.rc;
	}
	shf_sys_keep_close(sys, keep, true);
	if (r)
		shf_run_close(r);
	return shf_ended(rc, err);
}

/* *step is set on failure, too, to -1 or to a step that was written before the failure. */
SHEAF_API int sheaf_agent_flush(const char *dir, const char *agent, int due, int64_t *step,
                                struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_reporting heard;
	struct sheaf_error own;
	int64_t which = -1;
	int rc;

	err = shf_err_or(err, &own);
	rc = shf_report_begin(&heard, report, err);
	if (rc == 0 && !dir)
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL");
	if (rc == 0) {
		rc = shf_flush_newest(dir, agent, due != 0, due ? DUE_WAIT_MS : FLUSH_WAIT_MS,
		                      shf_sys_real(), &which, &heard.own, err);
		shf_report_end(&heard, report);
	}
	if (step)
		*step = which;
	return shf_ended(rc, err);
}
