/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background, a thread for each task. */
#ifndef SHF_TASK_H
#define SHF_TASK_H
#include "sys_task.h"

extern const struct shf_task_ops shf_real_task;
#endif
