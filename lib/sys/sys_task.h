/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background. A task calls step again and again until step returns false, always from
 * one thread of its own, which takes no signals and runs at low priority. Steps should be short,
 * because task_free waits for the current one. */
#ifndef SHF_SYS_TASK_H
#define SHF_SYS_TASK_H
#include <stdbool.h>

struct shf_task;                        /* opaque */

struct shf_task_ops {
	int (*cpus)(void *arg);         /* processors that this process may use; at least 1 */
	/* Starts a task. cpus: the processors that its thread may run on (cpulist.h; the string
	 * must outlive the task), or NULL for any. Returns 0; 1 if the task runs but could not be
	 * bound to them; or a negative errno. */
	int (*task_new)(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
	                const char *cpus);
	/* Returns true once step has returned false; everything it wrote is visible then. A
	 * machine without threads runs some steps in this call. */
	bool (*task_over)(void *arg, struct shf_task *task);
	/* Makes the task call step again, even if it was over. One thread at a time may call
	 * this. */
	void (*task_again)(void *arg, struct shf_task *task);
	/* Starts no further step and waits for the current one. */
	void (*task_free)(void *arg, struct shf_task *task);
};
#endif
