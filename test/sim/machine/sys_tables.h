/* SPDX-License-Identifier: Apache-2.0 */
/* All tables of a machine in one place, so that a test can replace single calls of them. */
#ifndef SYS_TABLES_H
#define SYS_TABLES_H
#include "sys.h"

struct sys_tables {
	struct shf_file_ops file;
	struct shf_disk_ops disk;
	struct shf_queue_ops queue;
	struct shf_host_ops host;
	struct shf_task_ops task;
	struct shf_shm_ops shm;
	struct shf_keep_ops keep;
};

static inline struct sys_tables sys_tables_of(const struct shf_sys *sys)
{
	return (struct sys_tables){ *sys->file.ops, *sys->disk.ops, *sys->queue.ops, *sys->host.ops,
		*sys->task.ops, *sys->shm.ops, *sys->keep.ops };
}

/* Returns the same machine with these tables. */
static inline struct shf_sys sys_tables_over(const struct sys_tables *t, struct shf_sys sys)
{
	sys.file.ops = &t->file;
	sys.disk.ops = &t->disk;
	sys.queue.ops = &t->queue;
	sys.host.ops = &t->host;
	sys.task.ops = &t->task;
	sys.shm.ops = &t->shm;
	sys.keep.ops = &t->keep;
	return sys;
}

/* Returns a machine whose calls all get this argument. */
static inline struct shf_sys sys_tables_sys(const struct sys_tables *t, void *arg)
{
	return (struct shf_sys){ { &t->file, arg }, { &t->disk, arg }, { &t->queue, arg },
		{ &t->host, arg }, { &t->task, arg }, { &t->shm, arg }, { &t->keep, arg } };
}
#endif
