/* SPDX-License-Identifier: Apache-2.0 */
/* A machine over another one (lib/sys/sys_forward.h) forwards every call that it does not
 * implement: the same call, with the same arguments in their places, and its result. A view of a
 * step in memory does so with everything that is not in it. */
#include "sys_forward.h"
#include "memory_dir.h"
#include "t.h"

/* What an argument at place i is: 10 + i where it is a number, marks[i] where it is an address. A
 * truth is written down as the number of its place. */
static union mark {
	struct shf_io io;
	struct shf_io *finished;
	struct shf_queue *queue;
} marks[8];
#define AT(i) ((uintptr_t)&marks[i])
#define ARGS_MAX 6

static struct {
	const char *op;
	void *arg;
	uintptr_t args[ARGS_MAX];
	int n, calls;
} heard;
static uint64_t answer;
static int below;                       /* its address is the argument of the machine below */

static void hear(const char *op, void *arg, const uintptr_t *args, size_t n)
{
	heard.op = op;
	heard.arg = arg;
	memcpy(heard.args, args, n * sizeof(*args));
	heard.calls++;
}

#define HEAR(name, ...)                                                                        \
	hear(#name, arg, (uintptr_t[]){ __VA_ARGS__ },                                         \
	     sizeof((uintptr_t[]){ __VA_ARGS__ }) / sizeof(uintptr_t))
#define VOID(name, params, ...)                                                                \
	static void in_##name params                                                           \
	{                                                                                      \
		HEAR(name, __VA_ARGS__);                                                       \
	}
#define FAKE(type, name, params, ...)                                                          \
	static type in_##name params                                                           \
	{                                                                                      \
		HEAR(name, __VA_ARGS__);                                                       \
		return (type)answer;                                                           \
	}

FAKE(int, open, (void *arg, int dir, const char *name, int flags, unsigned mode), (uintptr_t)dir,
	(uintptr_t)name, (uintptr_t)flags, (uintptr_t)mode)
FAKE(int, close, (void *arg, int fd), (uintptr_t)fd)
FAKE(int, mkdir, (void *arg, int dir, const char *name, unsigned mode), (uintptr_t)dir,
	(uintptr_t)name, (uintptr_t)mode)
FAKE(int, rename, (void *arg, int from_dir, const char *from, int to_dir, const char *to,
	bool noreplace), (uintptr_t)from_dir, (uintptr_t)from, (uintptr_t)to_dir, (uintptr_t)to,
	noreplace ? 10 + 5 : 0)
FAKE(int, unlink, (void *arg, int dir, const char *name, bool is_dir), (uintptr_t)dir,
	(uintptr_t)name, is_dir ? 10 + 3 : 0)
FAKE(int, fsync, (void *arg, int fd), (uintptr_t)fd)
FAKE(int, resize, (void *arg, int fd, uint64_t bytes), (uintptr_t)fd, (uintptr_t)bytes)
FAKE(int64_t, pread, (void *arg, int fd, void *buf, size_t n, uint64_t off), (uintptr_t)fd,
	(uintptr_t)buf, (uintptr_t)n, (uintptr_t)off)
FAKE(int64_t, pwrite, (void *arg, int fd, const void *buf, size_t n, uint64_t off), (uintptr_t)fd,
	(uintptr_t)buf, (uintptr_t)n, (uintptr_t)off)
FAKE(int, stat, (void *arg, int dir, const char *name, bool follow, struct shf_stat *st),
	(uintptr_t)dir, (uintptr_t)name, follow ? 10 + 3 : 0, (uintptr_t)st)
FAKE(int, fstat, (void *arg, int fd, struct shf_stat *st), (uintptr_t)fd, (uintptr_t)st)
FAKE(int, list, (void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg),
	(uintptr_t)fd, (uintptr_t)item, (uintptr_t)item_arg)
FAKE(int, readlink, (void *arg, int dir, const char *name, char *buf, size_t n), (uintptr_t)dir,
	(uintptr_t)name, (uintptr_t)buf, (uintptr_t)n)
FAKE(int, lock, (void *arg, int fd, bool exclusive), (uintptr_t)fd, exclusive ? 10 + 2 : 0)
FAKE(int, unlock, (void *arg, int fd), (uintptr_t)fd)
FAKE(int, free_bytes, (void *arg, int fd, uint64_t *bytes), (uintptr_t)fd, (uintptr_t)bytes)
FAKE(int, fs_id, (void *arg, int fd, uint64_t *id), (uintptr_t)fd, (uintptr_t)id)
FAKE(int, random, (void *arg, void *buf, size_t n), (uintptr_t)buf, (uintptr_t)n)
FAKE(int64_t, mono_ns, (void *arg), 0)
FAKE(int64_t, wall_s, (void *arg), 0)
VOID(sleep_ms, (void *arg, int ms), (uintptr_t)ms)
FAKE(int, owner, (void *arg, struct shf_owner *self), (uintptr_t)self)
FAKE(bool, owner_is_dead, (void *arg, const struct shf_owner *owner), (uintptr_t)owner)
FAKE(uint64_t, pid, (void *arg), 0)
FAKE(int, cpus, (void *arg), 0)
static int in_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	HEAR(queue_new, (uintptr_t)queue, (uintptr_t)threads);
	*queue = (void *)AT(1);
	return (int)answer;
}
VOID(queue_free, (void *arg, struct shf_queue *queue), (uintptr_t)queue)
FAKE(int, submit, (void *arg, struct shf_queue *queue, struct shf_io *io), (uintptr_t)queue,
	(uintptr_t)io)
FAKE(int, complete, (void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms),
	(uintptr_t)queue, (uintptr_t)io, (uintptr_t)timeout_ms)
VOID(queue_pin, (void *arg, struct shf_queue *queue, int i, void *base, size_t bytes),
	(uintptr_t)queue, (uintptr_t)i, (uintptr_t)base, (uintptr_t)bytes)
VOID(queue_stat, (void *arg, struct shf_queue *queue, struct shf_queue_stat *stat),
	(uintptr_t)queue, (uintptr_t)stat)
FAKE(int64_t, resident, (void *arg, int fd, uint64_t off, uint64_t n), (uintptr_t)fd,
	(uintptr_t)off, (uintptr_t)n)
VOID(forget, (void *arg, int fd, uint64_t off, uint64_t n), (uintptr_t)fd, (uintptr_t)off,
	(uintptr_t)n)
FAKE(bool, touched, (void *arg, const void *at), (uintptr_t)at)
VOID(touch, (void *arg, const void *at, uint64_t n, bool write), (uintptr_t)at, (uintptr_t)n,
	write ? 10 + 3 : 0)
FAKE(int, task_new, (void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
	const char *cpus), (uintptr_t)task, (uintptr_t)step, (uintptr_t)work, (uintptr_t)cpus)
FAKE(bool, task_over, (void *arg, struct shf_task *task), (uintptr_t)task)
VOID(task_again, (void *arg, struct shf_task *task), (uintptr_t)task)
VOID(task_free, (void *arg, struct shf_task *task), (uintptr_t)task)
FAKE(int, shm_new, (void *arg, struct shf_shm *shm, size_t bytes, bool shared), (uintptr_t)shm,
	(uintptr_t)bytes, shared ? 10 + 3 : 0)
VOID(shm_free, (void *arg, struct shf_shm *shm), (uintptr_t)shm)
FAKE(int, rooms, (void *arg, struct shf_room rooms[SHF_ROOMS]), (uintptr_t)rooms)
FAKE(int, shm_offer, (void *arg, uint8_t token[16], int *handle), (uintptr_t)token,
	(uintptr_t)handle)
FAKE(int, shm_connect, (void *arg, const uint8_t token[16], int *handle), (uintptr_t)token,
	(uintptr_t)handle)
FAKE(int, shm_serve, (void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms),
	(uintptr_t)offer, (uintptr_t)shm, (uintptr_t)n, (uintptr_t)timeout_ms)
FAKE(int, shm_take, (void *arg, int connection, struct shf_shm *shm, int timeout_ms),
	(uintptr_t)connection, (uintptr_t)shm, (uintptr_t)timeout_ms)
VOID(shm_drop, (void *arg, int handle), (uintptr_t)handle)
FAKE(int, keep_open, (void *arg, const char *socket, const char *run, const char *job, int *keep,
	int *steps), (uintptr_t)socket, (uintptr_t)run, (uintptr_t)job, (uintptr_t)keep,
	(uintptr_t)steps)
FAKE(int, keep_put, (void *arg, int keep, const char *name, const struct shf_shm *shm),
	(uintptr_t)keep, (uintptr_t)name, (uintptr_t)shm)
FAKE(int, keep_get, (void *arg, int keep, const char *name, struct shf_shm *shm), (uintptr_t)keep,
	(uintptr_t)name, (uintptr_t)shm)
FAKE(int, keep_drop, (void *arg, int keep, const char *name), (uintptr_t)keep, (uintptr_t)name)
FAKE(int, keep_tell, (void *arg, int keep, const char *text), (uintptr_t)keep, (uintptr_t)text)
FAKE(int, keep_at, (void *arg, int keep, int dir), (uintptr_t)keep, (uintptr_t)dir)
FAKE(int, keep_list, (void *arg, int keep, int (*item)(void *arg, const char *name),
	void *item_arg), (uintptr_t)keep, (uintptr_t)item, (uintptr_t)item_arg)
FAKE(int, keep_lives, (void *arg, int keep), (uintptr_t)keep)
VOID(keep_close, (void *arg, int keep, bool bye), (uintptr_t)keep, bye ? 10 + 2 : 0)

static const struct shf_sys_ops fakes = {
	.open = in_open,
	.close = in_close,
	.mkdir = in_mkdir,
	.rename = in_rename,
	.unlink = in_unlink,
	.fsync = in_fsync,
	.resize = in_resize,
	.pread = in_pread,
	.pwrite = in_pwrite,
	.stat = in_stat,
	.fstat = in_fstat,
	.list = in_list,
	.readlink = in_readlink,
	.lock = in_lock,
	.unlock = in_unlock,
	.free_bytes = in_free_bytes,
	.fs_id = in_fs_id,
	.random = in_random,
	.mono_ns = in_mono_ns,
	.wall_s = in_wall_s,
	.sleep_ms = in_sleep_ms,
	.owner = in_owner,
	.owner_is_dead = in_owner_is_dead,
	.pid = in_pid,
	.cpus = in_cpus,
	.queue_new = in_queue_new,
	.queue_free = in_queue_free,
	.submit = in_submit,
	.complete = in_complete,
	.queue_pin = in_queue_pin,
	.queue_stat = in_queue_stat,
	.resident = in_resident,
	.forget = in_forget,
	.touched = in_touched,
	.touch = in_touch,
	.task_new = in_task_new,
	.task_over = in_task_over,
	.task_again = in_task_again,
	.task_free = in_task_free,
	.shm_new = in_shm_new,
	.shm_free = in_shm_free,
	.rooms = in_rooms,
	.shm_offer = in_shm_offer,
	.shm_connect = in_shm_connect,
	.shm_serve = in_shm_serve,
	.shm_take = in_shm_take,
	.shm_drop = in_shm_drop,
	.keep_open = in_keep_open,
	.keep_put = in_keep_put,
	.keep_get = in_keep_get,
	.keep_drop = in_keep_drop,
	.keep_tell = in_keep_tell,
	.keep_at = in_keep_at,
	.keep_list = in_keep_list,
	.keep_lives = in_keep_lives,
	.keep_close = in_keep_close,
};
static const struct shf_sys fake = { &fakes, &below };

/* The call before this one was that operation's, the only one, with n arguments. */
static void passed(const char *op, int n)
{
	CHECK_INT(heard.calls, 1);
	CHECK_STR(heard.op, op);
	CHECK(heard.arg == &below);
	for (int i = 0; i < n; i++)
		CHECK(heard.args[i] == 11 + (uintptr_t)i || heard.args[i] == AT(i + 1));
	heard.calls = 0;
}

#define PASSES(n, op, call)                                                                    \
	do {                                                                                   \
		call;                                                                          \
		passed(op, n);                                                                 \
	} while (0)
#define GIVES(type, n, op, call)                                                               \
	do {                                                                                   \
		CHECK((call) == (type)answer);                                                 \
		passed(op, n);                                                                 \
	} while (0)

static void files_pass(const struct shf_sys *s)
{
	GIVES(int, 4, "open", s->ops->open(s->arg, 10 + 1, (void *)AT(2), 10 + 3, 10 + 4));
	GIVES(int, 1, "close", s->ops->close(s->arg, 10 + 1));
	GIVES(int, 3, "mkdir", s->ops->mkdir(s->arg, 10 + 1, (void *)AT(2), 10 + 3));
	GIVES(int, 5, "rename", s->ops->rename(s->arg, 10 + 1, (void *)AT(2), 10 + 3, (void *)AT(4),
		true));
	GIVES(int, 3, "unlink", s->ops->unlink(s->arg, 10 + 1, (void *)AT(2), true));
	GIVES(int, 1, "fsync", s->ops->fsync(s->arg, 10 + 1));
	GIVES(int, 2, "resize", s->ops->resize(s->arg, 10 + 1, 10 + 2));
	GIVES(int64_t, 4, "pread", s->ops->pread(s->arg, 10 + 1, (void *)AT(2), 10 + 3, 10 + 4));
	GIVES(int64_t, 4, "pwrite", s->ops->pwrite(s->arg, 10 + 1, (void *)AT(2), 10 + 3, 10 + 4));
	GIVES(int, 4, "stat", s->ops->stat(s->arg, 10 + 1, (void *)AT(2), true, (void *)AT(4)));
	GIVES(int, 2, "fstat", s->ops->fstat(s->arg, 10 + 1, (void *)AT(2)));
	GIVES(int, 3, "list", s->ops->list(s->arg, 10 + 1, (int (*)(void *, const char *))AT(2),
		(void *)AT(3)));
	GIVES(int, 4, "readlink", s->ops->readlink(s->arg, 10 + 1, (void *)AT(2), (void *)AT(3),
		10 + 4));
	GIVES(int, 2, "lock", s->ops->lock(s->arg, 10 + 1, true));
	GIVES(int, 1, "unlock", s->ops->unlock(s->arg, 10 + 1));
	GIVES(int, 2, "free_bytes", s->ops->free_bytes(s->arg, 10 + 1, (void *)AT(2)));
	GIVES(int, 2, "fs_id", s->ops->fs_id(s->arg, 10 + 1, (void *)AT(2)));
}

static void self_passes(const struct shf_sys *s)
{
	GIVES(int, 2, "random", s->ops->random(s->arg, (void *)AT(1), 10 + 2));
	GIVES(int64_t, 0, "mono_ns", s->ops->mono_ns(s->arg));
	GIVES(int64_t, 0, "wall_s", s->ops->wall_s(s->arg));
	PASSES(1, "sleep_ms", s->ops->sleep_ms(s->arg, 10 + 1));
	GIVES(int, 1, "owner", s->ops->owner(s->arg, (void *)AT(1)));
	GIVES(bool, 1, "owner_is_dead", s->ops->owner_is_dead(s->arg, (void *)AT(1)));
	GIVES(uint64_t, 0, "pid", s->ops->pid(s->arg));
	GIVES(int, 0, "cpus", s->ops->cpus(s->arg));
}

static void queue_passes(const struct shf_sys *s, struct shf_queue *q)
{
	GIVES(int, 2, "submit", s->ops->submit(s->arg, q, (void *)AT(2)));
	GIVES(int, 3, "complete", s->ops->complete(s->arg, q, (void *)AT(2), 10 + 3));
	PASSES(4, "queue_pin", s->ops->queue_pin(s->arg, q, 10 + 2, (void *)AT(3), 10 + 4));
	PASSES(2, "queue_stat", s->ops->queue_stat(s->arg, q, (void *)AT(2)));
	PASSES(1, "queue_free", s->ops->queue_free(s->arg, q));
}

static void tasks_pass(const struct shf_sys *s)
{
	GIVES(int64_t, 3, "resident", s->ops->resident(s->arg, 10 + 1, 10 + 2, 10 + 3));
	PASSES(3, "forget", s->ops->forget(s->arg, 10 + 1, 10 + 2, 10 + 3));
	GIVES(bool, 1, "touched", s->ops->touched(s->arg, (void *)AT(1)));
	PASSES(3, "touch", s->ops->touch(s->arg, (void *)AT(1), 10 + 2, true));
	GIVES(int, 4, "task_new", s->ops->task_new(s->arg, (void *)AT(1), (bool (*)(void *))AT(2),
		(void *)AT(3), (void *)AT(4)));
	GIVES(bool, 1, "task_over", s->ops->task_over(s->arg, (void *)AT(1)));
	PASSES(1, "task_again", s->ops->task_again(s->arg, (void *)AT(1)));
	PASSES(1, "task_free", s->ops->task_free(s->arg, (void *)AT(1)));
}

static void memory_passes(const struct shf_sys *s)
{
	GIVES(int, 3, "shm_new", s->ops->shm_new(s->arg, (void *)AT(1), 10 + 2, true));
	PASSES(1, "shm_free", s->ops->shm_free(s->arg, (void *)AT(1)));
	GIVES(int, 1, "rooms", s->ops->rooms(s->arg, (void *)AT(1)));
	GIVES(int, 2, "shm_offer", s->ops->shm_offer(s->arg, (void *)AT(1), (void *)AT(2)));
	GIVES(int, 2, "shm_connect", s->ops->shm_connect(s->arg, (void *)AT(1), (void *)AT(2)));
	GIVES(int, 4, "shm_serve", s->ops->shm_serve(s->arg, 10 + 1, (void *)AT(2), 10 + 3,
		10 + 4));
	GIVES(int, 3, "shm_take", s->ops->shm_take(s->arg, 10 + 1, (void *)AT(2), 10 + 3));
	PASSES(1, "shm_drop", s->ops->shm_drop(s->arg, 10 + 1));
	GIVES(int, 5, "keep_open", s->ops->keep_open(s->arg, (void *)AT(1), (void *)AT(2),
		(void *)AT(3), (void *)AT(4), (void *)AT(5)));
	GIVES(int, 3, "keep_put", s->ops->keep_put(s->arg, 10 + 1, (void *)AT(2), (void *)AT(3)));
	GIVES(int, 3, "keep_get", s->ops->keep_get(s->arg, 10 + 1, (void *)AT(2), (void *)AT(3)));
	GIVES(int, 2, "keep_drop", s->ops->keep_drop(s->arg, 10 + 1, (void *)AT(2)));
	GIVES(int, 2, "keep_tell", s->ops->keep_tell(s->arg, 10 + 1, (void *)AT(2)));
	GIVES(int, 2, "keep_at", s->ops->keep_at(s->arg, 10 + 1, 10 + 2));
	GIVES(int, 3, "keep_list", s->ops->keep_list(s->arg, 10 + 1, (int (*)(void *,
		const char *))AT(2), (void *)AT(3)));
	GIVES(int, 1, "keep_lives", s->ops->keep_lives(s->arg, 10 + 1));
	PASSES(2, "keep_close", s->ops->keep_close(s->arg, 10 + 1, true));
}

/* A truth is told from its opposite, and any other answer from none. */
static void all_passes(const struct shf_sys *s, struct shf_queue *(*queue)(const struct shf_sys *s))
{
	for (answer = 0; answer <= 5; answer += 5) {
		heard.calls = 0;
		files_pass(s);
		self_passes(s);
		queue_passes(s, queue(s));
		tasks_pass(s);
		memory_passes(s);
	}
}

static struct shf_queue *same_queue(const struct shf_sys *s)
{
	struct shf_queue *q = (void *)AT(1);

	GIVES(int, 2, "queue_new", s->ops->queue_new(s->arg, (void *)AT(1), 10 + 2));
	return q;
}

/* A view has a queue of its own over the one below, which is the one that is handed on. */
static struct shf_queue *own_queue(const struct shf_sys *s)
{
	struct shf_queue *q = NULL;

	CHECK_INT(s->ops->queue_new(s->arg, &q, 12), 0);
	CHECK_STR(heard.op, "queue_new");
	CHECK_INT(heard.args[1], 12);
	CHECK(q && q != (void *)AT(1));
	heard.calls = 0;
	return q;
}

TEST(a_machine_over_another_hands_on_what_it_does_not_do)
{
	struct shf_over over;

	shf_over_init(&over, &fake);
	all_passes(&over.sys, same_queue);
}

TEST(a_view_hands_on_what_is_not_its_own)
{
	struct shf_view *v = shf_view_new(&fake);

	CHECK(v);
	all_passes(shf_view_sys(v), own_queue);
	shf_view_free(v);
	CHECK_INT(heard.calls, 0);
}

TEST(a_view_has_no_queue_where_there_is_none_below)
{
	struct shf_view *v = shf_view_new(&fake);
	const struct shf_sys *s = shf_view_sys(v);
	struct shf_queue *q = (void *)AT(1);

	answer = (uint64_t)-11;
	CHECK_INT(s->ops->queue_new(s->arg, &q, 12), -11);
	CHECK(q == (void *)AT(1));
	s->ops->queue_free(s->arg, NULL);
	CHECK_STR(heard.op, "queue_new");
	shf_view_free(v);
}
