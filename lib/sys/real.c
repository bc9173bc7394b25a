/* SPDX-License-Identifier: Apache-2.0 */
/* The real machine. It keeps no state, so one constant serves every run. */
#include "host.h"
#include "agent_client.h"
#include "posix.h"
#include "queue.h"
#include "shm.h"
#include "sys.h"
#include "task.h"

static const struct shf_sys real = {
	.file = { &shf_real_file, NULL }, .disk = { &shf_real_disk, NULL },
	.queue = { &shf_real_queue, NULL }, .host = { &shf_real_host, NULL },
	.task = { &shf_real_task, NULL }, .shm = { &shf_real_shm, NULL },
	.keep = { &shf_real_keep, NULL },
};

const struct shf_sys *shf_sys_real(void)
{
	return &real;
}
