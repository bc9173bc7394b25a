/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the memory tier, and changes it after a load or a rewind. */
#include "memory_tier.h"
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "err.h"
#include "memory_jobs.h"
#include "opts.h"
#include "replica_send.h"
#include "run_env.h"

/* ---- opening and closing ---- */

/* Draws a random name for this job on rank 0, broadcasts it, and connects to the agents. They then
 * drop what earlier jobs left (T3), unless the run is opened to read only. [collective] */
int shf_memory_tier_open(struct sheaf_run *run, struct sheaf_error *err)
{
	struct shf_memory_tier *t = run->tier;
	struct sheaf_error why;
	uint8_t bits[16];
	int rc = 0;

	t->wanted = run->opts.agent;
	t->wait_ns = SHF_AGENT_RETRY_NS;
	if (!t->wanted)
		return 0;
	run->image.moves = shf_memory_tier_image_moves;
	if (run->team.rank == 0)
		rc = shf_sys_random(run->sys, bits, sizeof(bits));
	rc = rc < 0 ? shf_fail_sys(err, -rc, "reading random bytes") : shf_replicas_open(run, err);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, bits, sizeof(bits), err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < sizeof(bits); i++)
		snprintf(t->job + 2 * i, 3, "%02x", bits[i]);
	t->said = shf_agent_reconnect(run, &why) < 0;
	if (t->said)
		shf_log(run, 1, "%s: no checkpoint is kept in memory: %s, rank %d", run->store.path,
		        why.msg, run->team.rank);
	return run->opts.flags & SHEAF_RUN_READONLY ? 0 : shf_memory_jobs_drop_old(run, err);
}

void shf_memory_tier_close(struct sheaf_run *run, bool bye)
{
	const struct shf_sys *sys = run->sys;

	shf_replicas_close(run);
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (run->tier->cards[i].base)
			shf_sys_shm_free(sys, &run->tier->cards[i]);
	if (run->tier->wanted && run->tier->keep >= 0)
		shf_sys_keep_close(sys, run->tier->keep, bye);
	run->tier->keep = -1;
}

/* ---- after a load or a rewind ---- */

/* Clears the cards of the steps after `step`, and takes back the marks in `left` of all others. */
static void forget_later(struct shf_memory_tier *t, int64_t step)
{
	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		if (t->steps[i] > step)
			shf_memory_tier_card_clear(t, i);
		t->left[i] = 0;
	}
	if (t->newest >= 0 && t->steps[t->newest] < 0)
		t->newest = -1;
	t->beyond = -1;
}

void shf_memory_tier_fallback(struct sheaf_run *run, int64_t step)
{
	struct shf_memory_tier *t = run->tier;

	forget_later(t, step);
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] >= 0)
			shf_memory_tier_set_newest(t, i);
}

/* Steps in memory that are newer than the one loaded are not dropped at once: if this job dies
 * before its first save, a restart may load them. They are dropped when a save that began after
 * this load is in memory (see `left`). */
void shf_memory_tier_disk_loaded(struct sheaf_run *run, int64_t step)
{
	struct shf_memory_tier *t = run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] > step && !t->left[i])
			t->left[i] = run->lineage.loads;
	t->went_back = run->lineage.loads;
	t->beyond = t->from_step = -1;
	t->based = false;
}

void shf_memory_tier_step_loaded(struct sheaf_run *run, int64_t step, const char session[33],
                                 int64_t beyond)
{
	struct shf_memory_tier *t = run->tier;

	/* The job goes on from here, so this step and those before it are no longer left, whatever
	 * the job has loaded before. */
	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		if (t->steps[i] <= step)
			t->left[i] = 0;
	t->beyond = beyond;
	t->based = false;       /* so that the next save finds the base again */
	t->from_step = step;
	memcpy(t->from_session, session, sizeof(t->from_session));
}

/* If the step was loaded from memory, it stays, and so does the memory that earlier jobs left.
 * Otherwise all that other jobs left is dropped, because it belongs to the branch that was rewound.
 * [local] */
void shf_memory_tier_rewind(struct sheaf_run *run, int64_t step, bool loaded)
{
	struct shf_memory_tier *t = run->tier;

	if (!t->wanted)
		return;
	if (loaded)
		shf_memory_tier_fallback(run, step);
	else
		forget_later(t, step);
	t->based = t->alone = false;
	t->doubt = t->coming = 0;
	if (loaded)
		return;
	t->from_step = -1;
	shf_memory_jobs_drop_others(run);
}
