/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background (background.h). shf_sys_task_free() waits for the turn under way, so after
 * a stop the caller may read without a lock what the turns wrote. */
#include "background.h"

/* Makes one turn and notes whether it was the last. Returns false if so. */
static bool take_background_turn(void *arg)
{
	struct shf_background *b = arg;

	b->over = !b->turn(b->work);
	return !b->over;
}

int shf_background_start(struct shf_background *b, const struct shf_sys *sys,
                         bool (*turn)(void *work), void *work)
{
	int rc;

	*b = (struct shf_background){ .sys = sys, .turn = turn, .work = work };
	rc = shf_sys_task_new(sys, &b->task, take_background_turn, b, NULL);
	if (rc < 0)
		b->task = NULL;
	return rc;
}

bool shf_background_runs(const struct shf_background *b)
{
	return b->task && !shf_sys_task_over(b->sys, b->task);
}

/* Waits for the turn under way and ends the thread, if there is one. */
static void end_thread(struct shf_background *b)
{
	if (b->task)
		shf_sys_task_free(b->sys, b->task);
	b->task = NULL;
}

void shf_background_stop(struct shf_background *b)
{
	end_thread(b);
	b->turn = NULL;         /* what a turn works on may be freed now */
}

void shf_background_finish(struct shf_background *b)
{
	end_thread(b);
	while (b->turn && !b->over)
		(void)take_background_turn(b);
	b->turn = NULL;
}
