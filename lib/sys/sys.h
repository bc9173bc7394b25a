/* SPDX-License-Identifier: Apache-2.0 */
/* All that the library needs from the operating system, as a few small tables of functions. Only
 * this room makes system calls. Tests replace the tables by a disk that loses, tears and reorders
 * writes and fails.
 *
 * Each table comes with the first argument of its functions, so that one table can be replaced and
 * the others left as they are. The contract of a function is in the header of its table. */
#ifndef SHF_SYS_H
#define SHF_SYS_H
#include "sys_file.h"
#include "sys_host.h"
#include "sys_keep.h"
#include "sys_queue.h"
#include "sys_shm.h"
#include "sys_task.h"

struct shf_sys {
	struct { const struct shf_file_ops *ops; void *arg; } file;     /* reading; sys_file.h */
	struct { const struct shf_disk_ops *ops; void *arg; } disk;     /* changing; sys_file.h */
	struct { const struct shf_queue_ops *ops; void *arg; } queue;   /* sys_queue.h */
	struct { const struct shf_host_ops *ops; void *arg; } host;     /* sys_host.h */
	struct { const struct shf_task_ops *ops; void *arg; } task;     /* sys_task.h */
	struct { const struct shf_shm_ops *ops; void *arg; } shm;       /* sys_shm.h */
	struct { const struct shf_keep_ops *ops; void *arg; } keep;     /* sys_keep.h */
};

/* The real machine. It has no state of its own and is valid for ever. */
const struct shf_sys *shf_sys_real(void);

/* ---- one function for each member of the tables ---- */

static inline int shf_sys_open(const struct shf_sys *sys, int dir, const char *name, int flags,
			       unsigned mode)
{
	return sys->file.ops->open(sys->file.arg, dir, name, flags, mode);
}

static inline int shf_sys_close(const struct shf_sys *sys, int fd)
{
	return sys->file.ops->close(sys->file.arg, fd);
}

static inline int64_t shf_sys_pread(const struct shf_sys *sys, int fd, void *buf, size_t n,
				    uint64_t off)
{
	return sys->file.ops->pread(sys->file.arg, fd, buf, n, off);
}

/* once: by pread_once, if there is one. */
static inline int64_t shf_sys_read(const struct shf_sys *sys, int fd, void *buf, size_t n,
				   uint64_t off, bool once)
{
	return once && sys->file.ops->pread_once
	       ? sys->file.ops->pread_once(sys->file.arg, fd, buf, n, off)
	       : shf_sys_pread(sys, fd, buf, n, off);
}

static inline int shf_sys_stat(const struct shf_sys *sys, int dir, const char *name, bool follow,
			       struct shf_stat *st)
{
	return sys->file.ops->stat(sys->file.arg, dir, name, follow, st);
}

static inline int shf_sys_fstat(const struct shf_sys *sys, int fd, struct shf_stat *st)
{
	return sys->file.ops->fstat(sys->file.arg, fd, st);
}

static inline int shf_sys_list(const struct shf_sys *sys, int fd,
			       int (*item)(void *arg, const char *name), void *item_arg)
{
	return sys->file.ops->list(sys->file.arg, fd, item, item_arg);
}

static inline int shf_sys_readlink(const struct shf_sys *sys, int dir, const char *name, char *buf,
				   size_t n)
{
	return sys->file.ops->readlink(sys->file.arg, dir, name, buf, n);
}

static inline int shf_sys_lock(const struct shf_sys *sys, int fd, bool exclusive)
{
	return sys->file.ops->lock(sys->file.arg, fd, exclusive);
}

static inline int shf_sys_unlock(const struct shf_sys *sys, int fd)
{
	return sys->file.ops->unlock(sys->file.arg, fd);
}

static inline int64_t shf_sys_resident(const struct shf_sys *sys, int fd, uint64_t off, uint64_t n)
{
	return sys->file.ops->resident(sys->file.arg, fd, off, n);
}

static inline void shf_sys_forget(const struct shf_sys *sys, int fd, uint64_t off, uint64_t n)
{
	sys->file.ops->forget(sys->file.arg, fd, off, n);
}

static inline int shf_sys_mkdir(const struct shf_sys *sys, int dir, const char *name, unsigned mode)
{
	return sys->disk.ops->mkdir(sys->disk.arg, dir, name, mode);
}

static inline int shf_sys_rename(const struct shf_sys *sys, int from_dir, const char *from,
				 int to_dir, const char *to, bool noreplace)
{
	return sys->disk.ops->rename(sys->disk.arg, from_dir, from, to_dir, to, noreplace);
}

static inline int shf_sys_unlink(const struct shf_sys *sys, int dir, const char *name, bool is_dir)
{
	return sys->disk.ops->unlink(sys->disk.arg, dir, name, is_dir);
}

static inline int shf_sys_fsync(const struct shf_sys *sys, int fd)
{
	return sys->disk.ops->fsync(sys->disk.arg, fd);
}

static inline int shf_sys_resize(const struct shf_sys *sys, int fd, uint64_t bytes)
{
	return sys->disk.ops->resize(sys->disk.arg, fd, bytes);
}

static inline int64_t shf_sys_pwrite(const struct shf_sys *sys, int fd, const void *buf, size_t n,
				     uint64_t off)
{
	return sys->disk.ops->pwrite(sys->disk.arg, fd, buf, n, off);
}

static inline int shf_sys_free_bytes(const struct shf_sys *sys, int fd, uint64_t *bytes)
{
	return sys->disk.ops->free_bytes(sys->disk.arg, fd, bytes);
}

static inline int shf_sys_fs_id(const struct shf_sys *sys, int fd, uint64_t *id)
{
	return sys->disk.ops->fs_id(sys->disk.arg, fd, id);
}

static inline int shf_sys_queue_new(const struct shf_sys *sys, struct shf_queue **queue,
				    int threads)
{
	return sys->queue.ops->queue_new(sys->queue.arg, queue, threads);
}

static inline void shf_sys_queue_free(const struct shf_sys *sys, struct shf_queue *queue)
{
	sys->queue.ops->queue_free(sys->queue.arg, queue);
}

static inline int shf_sys_submit(const struct shf_sys *sys, struct shf_queue *queue,
				 struct shf_io *io)
{
	return sys->queue.ops->submit(sys->queue.arg, queue, io);
}

static inline int shf_sys_complete(const struct shf_sys *sys, struct shf_queue *queue,
				   struct shf_io **io, int timeout_ms)
{
	return sys->queue.ops->complete(sys->queue.arg, queue, io, timeout_ms);
}

static inline void shf_sys_queue_pin(const struct shf_sys *sys, struct shf_queue *queue, int i,
				     void *base, size_t bytes)
{
	sys->queue.ops->queue_pin(sys->queue.arg, queue, i, base, bytes);
}

static inline void shf_sys_queue_stat(const struct shf_sys *sys, struct shf_queue *queue,
				      struct shf_queue_stat *stat)
{
	sys->queue.ops->queue_stat(sys->queue.arg, queue, stat);
}

static inline int shf_sys_random(const struct shf_sys *sys, void *buf, size_t n)
{
	return sys->host.ops->random(sys->host.arg, buf, n);
}

static inline int64_t shf_sys_mono_ns(const struct shf_sys *sys)
{
	return sys->host.ops->mono_ns(sys->host.arg);
}

static inline int64_t shf_sys_wall_s(const struct shf_sys *sys)
{
	return sys->host.ops->wall_s(sys->host.arg);
}

static inline void shf_sys_sleep_ms(const struct shf_sys *sys, int ms)
{
	sys->host.ops->sleep_ms(sys->host.arg, ms);
}

static inline int shf_sys_owner(const struct shf_sys *sys, struct shf_owner *self)
{
	return sys->host.ops->owner(sys->host.arg, self);
}

static inline bool shf_sys_owner_is_dead(const struct shf_sys *sys, const struct shf_owner *owner)
{
	return sys->host.ops->owner_is_dead(sys->host.arg, owner);
}

static inline uint64_t shf_sys_pid(const struct shf_sys *sys)
{
	return sys->host.ops->pid(sys->host.arg);
}

static inline int shf_sys_cpus(const struct shf_sys *sys)
{
	return sys->task.ops->cpus(sys->task.arg);
}

static inline int shf_sys_task_new(const struct shf_sys *sys, struct shf_task **task,
				   bool (*step)(void *work), void *work, const char *cpus)
{
	return sys->task.ops->task_new(sys->task.arg, task, step, work, cpus);
}

static inline bool shf_sys_task_over(const struct shf_sys *sys, struct shf_task *task)
{
	return sys->task.ops->task_over(sys->task.arg, task);
}

static inline void shf_sys_task_again(const struct shf_sys *sys, struct shf_task *task)
{
	sys->task.ops->task_again(sys->task.arg, task);
}

static inline void shf_sys_task_free(const struct shf_sys *sys, struct shf_task *task)
{
	sys->task.ops->task_free(sys->task.arg, task);
}

static inline int shf_sys_memory_limits(const struct shf_sys *sys,
                                        struct shf_memory_limit rooms[SHF_MEMORY_LIMITS])
{
	return sys->shm.ops->rooms(sys->shm.arg, rooms);
}

static inline bool shf_sys_touched(const struct shf_sys *sys, const void *at)
{
	return sys->shm.ops->touched(sys->shm.arg, at);
}

static inline void shf_sys_touch(const struct shf_sys *sys, const void *at, uint64_t n, bool write)
{
	sys->shm.ops->touch(sys->shm.arg, at, n, write);
}

static inline int shf_sys_shm_new(const struct shf_sys *sys, struct shf_shm *shm, size_t bytes,
				  bool shared)
{
	return sys->shm.ops->shm_new(sys->shm.arg, shm, bytes, shared);
}

static inline void shf_sys_shm_free(const struct shf_sys *sys, struct shf_shm *shm)
{
	sys->shm.ops->shm_free(sys->shm.arg, shm);
}

static inline int shf_sys_shm_offer(const struct shf_sys *sys, uint8_t token[16], int *handle)
{
	return sys->shm.ops->shm_offer(sys->shm.arg, token, handle);
}

static inline int shf_sys_shm_connect(const struct shf_sys *sys, const uint8_t token[16],
				      int *handle)
{
	return sys->shm.ops->shm_connect(sys->shm.arg, token, handle);
}

static inline int shf_sys_shm_serve(const struct shf_sys *sys, int offer, const struct shf_shm *shm,
				    int n, int timeout_ms)
{
	return sys->shm.ops->shm_serve(sys->shm.arg, offer, shm, n, timeout_ms);
}

static inline int shf_sys_shm_take(const struct shf_sys *sys, int connection, struct shf_shm *shm,
				   int timeout_ms)
{
	return sys->shm.ops->shm_take(sys->shm.arg, connection, shm, timeout_ms);
}

static inline void shf_sys_shm_drop(const struct shf_sys *sys, int handle)
{
	sys->shm.ops->shm_drop(sys->shm.arg, handle);
}

static inline int shf_sys_keep_open(const struct shf_sys *sys, const char *socket, const char *run,
				    const char *job, int *keep, int *steps)
{
	return sys->keep.ops->keep_open(sys->keep.arg, socket, run, job, keep, steps);
}

static inline int shf_sys_keep_put(const struct shf_sys *sys, int keep, const char *name,
				   const struct shf_shm *shm)
{
	return sys->keep.ops->keep_put(sys->keep.arg, keep, name, shm);
}

static inline int shf_sys_keep_get(const struct shf_sys *sys, int keep, const char *name,
				   struct shf_shm *shm)
{
	return sys->keep.ops->keep_get(sys->keep.arg, keep, name, shm);
}

static inline int shf_sys_keep_drop(const struct shf_sys *sys, int keep, const char *name)
{
	return sys->keep.ops->keep_drop(sys->keep.arg, keep, name);
}

static inline int shf_sys_keep_message(const struct shf_sys *sys, int keep, const char *text)
{
	return sys->keep.ops->keep_message(sys->keep.arg, keep, text);
}

static inline int shf_sys_keep_at(const struct shf_sys *sys, int keep, int dir)
{
	return sys->keep.ops->keep_at(sys->keep.arg, keep, dir);
}

static inline int shf_sys_keep_list(const struct shf_sys *sys, int keep,
				    int (*item)(void *arg, const char *name), void *item_arg)
{
	return sys->keep.ops->keep_list(sys->keep.arg, keep, item, item_arg);
}

static inline int shf_sys_keep_lives(const struct shf_sys *sys, int keep)
{
	return sys->keep.ops->keep_lives(sys->keep.arg, keep);
}

static inline void shf_sys_keep_close(const struct shf_sys *sys, int keep, bool bye)
{
	sys->keep.ops->keep_close(sys->keep.arg, keep, bye);
}
#endif
