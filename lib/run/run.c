/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a run without a directory, counts its references, and frees it with the last one.
 * run_open.c opens a run by its directory. */
#include "run.h"
#include <string.h>
#include "err.h"
#include "image.h"
#include "nodes.h"
#include "opts.h"
#include "run_env.h"
#include "thread.h"

void shf_run_get(struct sheaf_run *run)
{
	run->life.refs++;
}

/* A forked child has copies of the run's memory and descriptors, but neither its threads nor its
 * images, and a lock may be held by a thread that the child does not have. So a child frees plain
 * memory and closes descriptors, and leaves the rest alone. To end a thread in the child would mean
 * to wait for ever. */
void shf_run_put(struct sheaf_run *run)
{
	if (!run || --run->life.refs > 0)
		return;
	/* life.end stops the threads first: they use the queue and images that are freed next. */
	if (shf_run_is_ours(run)) {
		if (run->life.end)
			run->life.end(run);
		if (run->io.queue)
			shf_sys_queue_free(run->sys, run->io.queue);
		shf_images_release(run);
		if (!run->life.foreign)
			shf_store_close(&run->store);
		pthread_cond_destroy(&run->io.turn);
		pthread_mutex_destroy(&run->io.lock);
	} else {
		for (int i = 0; i <= SHF_IMAGE_OF_LOAD; i++)
			shf_free(run->image.all[i].peers);
		shf_store_leave(&run->store);
		if (run->team.group)
			run->team.group->ops.free = NULL; /* the group is the parent's */
	}
	shf_free(run->retain.behind);
	shf_free(run->retain.pruning);
	shf_free(run->tier);
	shf_free(run->saves.stalls);
	shf_free(run->saves.commit_path);
	shf_free(run->saves.committer);
	shf_turns_release(run, shf_run_is_ours(run));
	shf_run_put(run->lineage.memory_of);
	shf_nodes_release(&run->place);
	shf_opts_release(&run->opts);
	if (run->team.group)
		shf_group_put(run->team.group);
	if (run->life.sys_free)
		run->life.sys_free(run->life.sys_arg);
	shf_free(run);
}

/* Returns a team over the group; without a group it is one rank. */
static struct shf_team team_of(struct sheaf_group *group, int timeout_ms, const struct shf_sys *sys)
{
	return (struct shf_team){ group, group ? group->ops.rank : 0, group ? group->ops.ranks : 1,
	                          timeout_ms ? timeout_ms : SHF_TIMEOUT_MS, sys->host.ops->mono_ns,
	                          sys->host.arg };
}

/* Allocates a run and copies the options, without communicating. *out is set even if this fails
 * after the allocation: the caller enters the collective call with it, so that the other ranks get
 * the failure and do not wait. */
static int run_new(struct sheaf_run **out, struct sheaf_group *group,
                   const struct shf_opts *opts, const struct shf_sys *sys,
                   struct sheaf_error *err)
{
	struct sheaf_run *run = shf_zalloc(1, sizeof(*run));
	int rc = run ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a run");

	if (rc < 0)
		return rc;
	run->life.refs = 1;
	run->sys = sys;
	run->life.pid = shf_sys_pid(sys);
	run->lineage = (struct shf_lineage){ .loaded = -1, .verified.step = -1, .parent = -1,
		                             .doubtful = -1 };
	run->store.dir = run->store.dot = run->store.stage = run->store.lock = -1;
	run->store.door = -1;
	for (int i = 0; i <= SHF_IMAGE_OF_LOAD; i++)
		run->image.all[i].own.fd = -1;
	pthread_mutex_init(&run->io.lock, NULL);
	(void)shf_cond_init(&run->io.turn);
	shf_turns_init(run);
	run->life.foreign = true;
	rc = shf_sys_random(sys, &run->life.id, sizeof(run->life.id));
	rc = rc < 0 ? shf_fail_sys(err, -rc, "reading random bytes")
		    : shf_opts_take(&run->opts, opts, err);
	if (group)
		shf_group_get(group);
	else if (rc == 0 && shf_group_one(&group) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a group");
	run->team = team_of(group, run->opts.timeout_ms, sys);
	*out = run;
	return rc;
}

/* Enters the collective call with rc, the result of run_new(). A rank that could not allocate a run
 * enters it, too; otherwise the other ranks would wait for it until their timeout. */
static int enter_open_call(struct sheaf_run *run, struct sheaf_group *group,
                           const struct shf_sys *sys,
                           enum shf_call_kind call, int rc, struct sheaf_error *err)
{
	struct shf_team bare = team_of(group, 0, sys);
	struct shf_call m = { .kind = call };

	if (!run || !run->team.group)
		return group ? shf_call_enter(&bare, &m, rc, err) : rc;
	rc = shf_call_enter(&run->team, &m, rc, err);
	run->life.made = m.number;
	return rc;
}

/* Copies the nodes that another run of the same group has found. */
static int nodes_copy(struct shf_nodes *to, const struct shf_nodes *from, int ranks,
                      struct sheaf_error *err)
{
	int32_t *nodes = shf_alloc((size_t)ranks, sizeof(*nodes));

	if (!nodes)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", ranks);
	memcpy(nodes, from->nodes, (size_t)ranks * sizeof(*nodes));
	*to = *from;
	to->nodes = nodes;
	return 0;
}

/* The call is entered even if this rank could not make its run (enter_open_call). From then on,
 * either all ranks fail or no rank does. [collective] */
int shf_run_open_bare(struct sheaf_run **out, struct sheaf_group *group,
                      const struct shf_opts *opts, const struct shf_sys *sys,
                      const struct shf_nodes *place, enum shf_call_kind call,
                      struct sheaf_error *err)
{
	struct sheaf_run *run = NULL;
	int rc = run_new(&run, group, opts, sys, err);

	if (rc == 0) {
		rc = shf_sys_queue_new(sys, &run->io.queue, run->opts.io_threads);
		if (rc < 0)
			rc =
			    shf_fail_sys(err, -rc, "starting %d I/O threads", run->opts.io_threads);
	}
	if (rc == 0 && place)
		rc = nodes_copy(&run->place, place, run->team.ranks, err);
	rc = enter_open_call(run, group, sys, call, rc, err);
	if (rc == 0 && !place)
		rc = shf_nodes_find(&run->team, sys, &run->place, err);
	if (rc == 0)
		*out = run;
	else
		shf_run_put(run);
	return rc;
}

/* The new queue is made before the old one is freed, so that a failure changes nothing. */
int shf_run_set_sys(struct sheaf_run *run, const struct shf_sys *sys, void (*sys_free)(void *arg),
                    void *arg, struct sheaf_error *err)
{
	struct shf_queue *queue;
	int rc = shf_sys_queue_new(sys, &queue, run->opts.io_threads);

	if (rc < 0)
		return shf_fail_sys(err, -rc, "starting %d I/O threads", run->opts.io_threads);
	shf_sys_queue_free(run->sys, run->io.queue);
	run->io.queue = queue;
	run->sys = sys;
	run->life.sys_free = sys_free;
	run->life.sys_arg = arg;
	return 0;
}
