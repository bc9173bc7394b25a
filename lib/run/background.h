/* SPDX-License-Identifier: Apache-2.0 */
/* Work that goes on in the background: short turns, taken by a thread of its own. If no thread can
 * be had, or the caller will not wait for the thread, the caller takes the turns instead, so the
 * work gets done either way. Turns never use a group that the caller uses. */
#ifndef SHF_BACKGROUND_H
#define SHF_BACKGROUND_H
#include "sys.h"

struct shf_background {         /* zeroed: nothing was started */
	const struct shf_sys *sys;
	struct shf_task *task;          /* owned; NULL: no thread does it */
	bool (*turn)(void *work);       /* returns false when no turn is left */
	void *work;
	bool over;                      /* no turn is left; the thread's until it is stopped */
};
/* Starts a thread. Negative errno: there is none, and shf_background_finish does it all. */
int shf_background_start(struct shf_background *b, const struct shf_sys *sys,
                         bool (*turn)(void *work), void *work);
/* Whether the thread still has something to do. */
bool shf_background_runs(const struct shf_background *b);
/* No further turn begins; the one under way is waited for. Nothing to do if nothing was started. */
void shf_background_stop(struct shf_background *b);
/* The same, and then the turns that are left, on this thread. */
void shf_background_finish(struct shf_background *b);
#endif
