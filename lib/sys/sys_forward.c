/* SPDX-License-Identifier: Apache-2.0 */
#include "sys_forward.h"

static const struct shf_sys *under(void *arg)
{
	return ((struct shf_over *)arg)->in;
}

static int on_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	const struct shf_sys *in = under(arg);

	return in->ops->open(in->arg, dir, name, flags, mode);
}

static int on_close(void *arg, int fd)
{
	const struct shf_sys *in = under(arg);

	return in->ops->close(in->arg, fd);
}

static int on_mkdir(void *arg, int dir, const char *name, unsigned mode)
{
	const struct shf_sys *in = under(arg);

	return in->ops->mkdir(in->arg, dir, name, mode);
}

static int on_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
		     bool noreplace)
{
	const struct shf_sys *in = under(arg);

	return in->ops->rename(in->arg, from_dir, from, to_dir, to, noreplace);
}

static int on_unlink(void *arg, int dir, const char *name, bool is_dir)
{
	const struct shf_sys *in = under(arg);

	return in->ops->unlink(in->arg, dir, name, is_dir);
}

static int on_fsync(void *arg, int fd)
{
	const struct shf_sys *in = under(arg);

	return in->ops->fsync(in->arg, fd);
}

static int on_resize(void *arg, int fd, uint64_t bytes)
{
	const struct shf_sys *in = under(arg);

	return in->ops->resize(in->arg, fd, bytes);
}

static int64_t on_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	const struct shf_sys *in = under(arg);

	return in->ops->pread(in->arg, fd, buf, n, off);
}

static int64_t on_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off)
{
	const struct shf_sys *in = under(arg);

	return in->ops->pwrite(in->arg, fd, buf, n, off);
}

static int on_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st)
{
	const struct shf_sys *in = under(arg);

	return in->ops->stat(in->arg, dir, name, follow, st);
}

static int on_fstat(void *arg, int fd, struct shf_stat *st)
{
	const struct shf_sys *in = under(arg);

	return in->ops->fstat(in->arg, fd, st);
}

static int on_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->list(in->arg, fd, item, item_arg);
}

static int on_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	const struct shf_sys *in = under(arg);

	return in->ops->readlink(in->arg, dir, name, buf, n);
}

static int on_lock(void *arg, int fd, bool exclusive)
{
	const struct shf_sys *in = under(arg);

	return in->ops->lock(in->arg, fd, exclusive);
}

static int on_unlock(void *arg, int fd)
{
	const struct shf_sys *in = under(arg);

	return in->ops->unlock(in->arg, fd);
}

static int on_free_bytes(void *arg, int fd, uint64_t *bytes)
{
	const struct shf_sys *in = under(arg);

	return in->ops->free_bytes(in->arg, fd, bytes);
}

static int on_fs_id(void *arg, int fd, uint64_t *id)
{
	const struct shf_sys *in = under(arg);

	return in->ops->fs_id(in->arg, fd, id);
}

static int on_random(void *arg, void *buf, size_t n)
{
	const struct shf_sys *in = under(arg);

	return in->ops->random(in->arg, buf, n);
}

static int64_t on_mono_ns(void *arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->mono_ns(in->arg);
}

static int64_t on_wall_s(void *arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->wall_s(in->arg);
}

static void on_sleep_ms(void *arg, int ms)
{
	const struct shf_sys *in = under(arg);

	in->ops->sleep_ms(in->arg, ms);
}

static int on_owner(void *arg, struct shf_owner *self)
{
	const struct shf_sys *in = under(arg);

	return in->ops->owner(in->arg, self);
}

static bool on_owner_is_dead(void *arg, const struct shf_owner *owner)
{
	const struct shf_sys *in = under(arg);

	return in->ops->owner_is_dead(in->arg, owner);
}

static uint64_t on_pid(void *arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->pid(in->arg);
}

static int on_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	const struct shf_sys *in = under(arg);

	return in->ops->queue_new(in->arg, queue, threads);
}

static void on_queue_free(void *arg, struct shf_queue *queue)
{
	const struct shf_sys *in = under(arg);

	in->ops->queue_free(in->arg, queue);
}

static int on_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	const struct shf_sys *in = under(arg);

	return in->ops->submit(in->arg, queue, io);
}

static int on_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	const struct shf_sys *in = under(arg);

	return in->ops->complete(in->arg, queue, io, timeout_ms);
}

static void on_queue_pin(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes)
{
	const struct shf_sys *in = under(arg);

	in->ops->queue_pin(in->arg, queue, i, base, bytes);
}

static void on_queue_stat(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat)
{
	const struct shf_sys *in = under(arg);

	in->ops->queue_stat(in->arg, queue, stat);
}

static int64_t on_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	const struct shf_sys *in = under(arg);

	return in->ops->resident(in->arg, fd, off, n);
}

static void on_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	const struct shf_sys *in = under(arg);

	in->ops->forget(in->arg, fd, off, n);
}

static bool on_touched(void *arg, const void *at)
{
	const struct shf_sys *in = under(arg);

	return in->ops->touched(in->arg, at);
}

static void on_touch(void *arg, const void *at, uint64_t n, bool write)
{
	const struct shf_sys *in = under(arg);

	in->ops->touch(in->arg, at, n, write);
}

static int on_cpus(void *arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->cpus(in->arg);
}

static int on_task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                       const char *cpus)
{
	const struct shf_sys *in = under(arg);

	return in->ops->task_new(in->arg, task, step, work, cpus);
}

static bool on_task_over(void *arg, struct shf_task *task)
{
	const struct shf_sys *in = under(arg);

	return in->ops->task_over(in->arg, task);
}

static void on_task_again(void *arg, struct shf_task *task)
{
	const struct shf_sys *in = under(arg);

	in->ops->task_again(in->arg, task);
}

static void on_task_free(void *arg, struct shf_task *task)
{
	const struct shf_sys *in = under(arg);

	in->ops->task_free(in->arg, task);
}

static int on_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	const struct shf_sys *in = under(arg);

	return in->ops->shm_new(in->arg, shm, bytes, shared);
}

static void on_shm_free(void *arg, struct shf_shm *shm)
{
	const struct shf_sys *in = under(arg);

	in->ops->shm_free(in->arg, shm);
}

static int on_rooms(void *arg, struct shf_room rooms[SHF_ROOMS])
{
	const struct shf_sys *in = under(arg);

	return in->ops->rooms(in->arg, rooms);
}

static int on_shm_offer(void *arg, uint8_t token[16], int *handle)
{
	const struct shf_sys *in = under(arg);

	return in->ops->shm_offer(in->arg, token, handle);
}

static int on_shm_connect(void *arg, const uint8_t token[16], int *handle)
{
	const struct shf_sys *in = under(arg);

	return in->ops->shm_connect(in->arg, token, handle);
}

static int on_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms)
{
	const struct shf_sys *in = under(arg);

	return in->ops->shm_serve(in->arg, offer, shm, n, timeout_ms);
}

static int on_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms)
{
	const struct shf_sys *in = under(arg);

	return in->ops->shm_take(in->arg, connection, shm, timeout_ms);
}

static void on_shm_drop(void *arg, int handle)
{
	const struct shf_sys *in = under(arg);

	in->ops->shm_drop(in->arg, handle);
}

static int on_keep_open(void *arg, const char *socket, const char *run, const char *job,
                        int *keep, int *steps)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_open(in->arg, socket, run, job, keep, steps);
}

static int on_keep_put(void *arg, int keep, const char *name, const struct shf_shm *shm)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_put(in->arg, keep, name, shm);
}

static int on_keep_get(void *arg, int keep, const char *name, struct shf_shm *shm)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_get(in->arg, keep, name, shm);
}

static int on_keep_drop(void *arg, int keep, const char *name)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_drop(in->arg, keep, name);
}

static int on_keep_tell(void *arg, int keep, const char *text)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_tell(in->arg, keep, text);
}

static int on_keep_at(void *arg, int keep, int dir)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_at(in->arg, keep, dir);
}

static int on_keep_list(void *arg, int keep, int (*item)(void *arg, const char *name),
			void *item_arg)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_list(in->arg, keep, item, item_arg);
}

static int on_keep_lives(void *arg, int keep)
{
	const struct shf_sys *in = under(arg);

	return in->ops->keep_lives(in->arg, keep);
}

static void on_keep_close(void *arg, int keep, bool bye)
{
	const struct shf_sys *in = under(arg);

	in->ops->keep_close(in->arg, keep, bye);
}

static const struct shf_sys_ops passing = {
	.open = on_open,
	.close = on_close,
	.mkdir = on_mkdir,
	.rename = on_rename,
	.unlink = on_unlink,
	.fsync = on_fsync,
	.resize = on_resize,
	.pread = on_pread,
	.pwrite = on_pwrite,
	.stat = on_stat,
	.fstat = on_fstat,
	.list = on_list,
	.readlink = on_readlink,
	.lock = on_lock,
	.unlock = on_unlock,
	.free_bytes = on_free_bytes,
	.fs_id = on_fs_id,
	.random = on_random,
	.mono_ns = on_mono_ns,
	.wall_s = on_wall_s,
	.sleep_ms = on_sleep_ms,
	.owner = on_owner,
	.owner_is_dead = on_owner_is_dead,
	.pid = on_pid,
	.queue_new = on_queue_new,
	.queue_free = on_queue_free,
	.submit = on_submit,
	.complete = on_complete,
	.queue_pin = on_queue_pin,
	.queue_stat = on_queue_stat,
	.resident = on_resident,
	.touched = on_touched,
	.touch = on_touch,
	.forget = on_forget,
	.task_new = on_task_new,
	.task_over = on_task_over,
	.task_again = on_task_again,
	.task_free = on_task_free,
	.cpus = on_cpus,
	.shm_new = on_shm_new,
	.shm_free = on_shm_free,
	.rooms = on_rooms,
	.shm_offer = on_shm_offer,
	.shm_connect = on_shm_connect,
	.shm_serve = on_shm_serve,
	.shm_take = on_shm_take,
	.shm_drop = on_shm_drop,
	.keep_open = on_keep_open,
	.keep_put = on_keep_put,
	.keep_get = on_keep_get,
	.keep_drop = on_keep_drop,
	.keep_tell = on_keep_tell,
	.keep_at = on_keep_at,
	.keep_list = on_keep_list,
	.keep_lives = on_keep_lives,
	.keep_close = on_keep_close,
};

void shf_over_init(struct shf_over *over, const struct shf_sys *in)
{
	over->in = in;
	over->ops = passing;
	over->sys = (struct shf_sys){ &over->ops, over };
}
