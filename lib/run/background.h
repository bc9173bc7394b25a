/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background, cut into short turns (calls of a function) that a thread makes one after
 * the other. If no thread can be created, the caller makes the turns itself, in
 * shf_background_finish. A turn must not use a group that the caller uses. */
#ifndef SHF_BACKGROUND_H
#define SHF_BACKGROUND_H
#include "sys.h"

struct shf_background {         /* zeroed: nothing was started */
	const struct shf_sys *sys;
	struct shf_task *task;          /* owned; NULL: no thread */
	bool (*turn)(void *work);       /* makes one turn; returns false if it was the last */
	void *work;                     /* borrowed */
	bool over;                      /* the last turn was made. The thread writes it, so others
	                                 * read it only after the thread has ended */
};
/* Starts the thread. Returns a negative errno if it cannot be created; then shf_background_finish
 * makes all turns. */
int shf_background_start(struct shf_background *b, const struct shf_sys *sys,
                         bool (*turn)(void *work), void *work);
/* Returns whether there is a thread that has not made its last turn. */
bool shf_background_runs(const struct shf_background *b);
/* Stops the thread after its current turn, and drops the remaining turns. Does nothing if nothing
 * was started. */
void shf_background_stop(struct shf_background *b);
/* Stops the thread after its current turn, and runs the remaining turns on the calling thread. */
void shf_background_finish(struct shf_background *b);
#endif
