/* SPDX-License-Identifier: Apache-2.0 */
/* Everything in the simulated machine except files: clocks, random numbers, identity, queues and
 * shared memory. A queue has no threads: requests are performed when a process completes them, in a
 * random order, so that a write and the fsync that should cover it may change places. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "simcore.h"
#include "simover.h"

static int op_random(void *arg, void *buf, size_t n)
{
	struct simproc *p = sim_proc(arg);
	uint8_t *b = buf;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_RANDOM, -1, "", "%zu", n);

	/* By process, so that ranks that run in another order draw the same numbers. */
	for (size_t i = 0; !rc && i < n; i++)
		b[i] = (uint8_t)sim_mix(p->disk->seed ^ sim_mix(p->pid) ^
		                        sim_mix((uint64_t)p->disk->boots << 32 ^ p->start) ^
		                        ++p->draws << 20);
	return (int)sim_end(&c, rc);
}

static int64_t op_mono_ns(void *arg)
{
	struct simdisk *d = ((struct simproc *)arg)->disk;
	int64_t ns;

	pthread_mutex_lock(&d->lock);
	ns = d->clock_ns += 1000;
	pthread_mutex_unlock(&d->lock);
	return ns;
}

static int64_t op_wall_s(void *arg)
{
	struct simdisk *d = ((struct simproc *)arg)->disk;
	int64_t s;

	pthread_mutex_lock(&d->lock);
	s = sim_wall(d);
	pthread_mutex_unlock(&d->lock);
	return s;
}

static void op_sleep_ms(void *arg, int ms)
{
	struct simdisk *d = ((struct simproc *)arg)->disk;

	pthread_mutex_lock(&d->lock);
	d->clock_ns += ms > 0 ? (int64_t)ms * 1000000 : 0;
	pthread_mutex_unlock(&d->lock);
	if (d->turn)
		d->turn(d->turn_arg);
	else
		sched_yield();
}

#define SIM_TIME_NS UINT64_C(4026531834)        /* the same for all processes */

static uint64_t pid_ns_of(int node)
{
	return UINT64_C(4026531836) + (uint64_t)node;
}

static void boot_of(const struct simdisk *d, int node, char boot[37])
{
	uint64_t machine = d->one_kernel ? 0 : (uint64_t)node;
	uint64_t a = sim_mix(d->seed ^ sim_mix(machine << 20 | (uint64_t)d->boots));
	uint64_t b = sim_mix(a);

	snprintf(boot, 37, "%08x-%04x-4%03x-8%03x-%012llx", (unsigned)(a >> 32),
	         (unsigned)(a >> 16) & 0xffff, (unsigned)a & 0xfff, (unsigned)(b >> 52),
	         (unsigned long long)(b & 0xffffffffffff));
}

static int op_owner(void *arg, struct shf_owner *self)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_OWNER, -1, "", "%s", "");

	if (!rc) {
		memset(self, 0, sizeof(*self));
		snprintf(self->host, sizeof(self->host), "node%d", p->node);
		boot_of(p->disk, p->node, self->boot);
		self->pid_ns = pid_ns_of(p->node);
		self->pid = p->pid;
		self->start = p->start;
		self->time_ns = SIM_TIME_NS;
	}
	return (int)sim_end(&c, rc);
}

static bool op_owner_is_dead(void *arg, const struct shf_owner *owner)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	char boot[37];
	bool dead;

	pthread_mutex_lock(&d->lock);
	boot_of(d, p->node, boot);
	dead = !strncmp(boot, owner->boot, sizeof(boot)) && owner->pid_ns == pid_ns_of(p->node);
	for (size_t i = 0; dead && i < d->proc_n; i++) {
		const struct simproc *q = d->procs[i];

		if (!q->dead && q->node == p->node && q->pid == owner->pid &&
		    (q->start == owner->start || owner->time_ns != SIM_TIME_NS))
			dead = false;
	}
	pthread_mutex_unlock(&d->lock);
	return dead;
}

static uint64_t op_pid(void *arg)
{
	struct simproc *p = sim_proc(arg);
	uint64_t pid;

	pthread_mutex_lock(&p->disk->lock);
	pid = p->pid;
	pthread_mutex_unlock(&p->disk->lock);
	return pid;
}

struct shf_queue {
	struct simproc *p;
	struct shf_io *pending;         /* newest first */
	size_t n;
	bool hesitated;
	struct shf_queue_stat stat;
	struct { const uint8_t *base; size_t bytes; } pins[SHF_PINS];
};

static int op_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_QUEUE_NEW, -1, "", "%d", threads);

	if (!rc && threads < 1)
		rc = -EINVAL;
	if (!rc && c.after)
		rc = -c.after;
	if (!rc) {
		*queue = sim_alloc(1, sizeof(**queue));
		(*queue)->p = p;
		p->queues++;
	}
	return (int)sim_end(&c, rc);
}

static int op_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	struct simproc *p = sim_proc(arg);
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_SUBMIT, io->fd, NULL, "%s",
	                   io->op == SHF_IO_READ    ? "read"
	                   : io->op == SHF_IO_WRITE ? "write"
	                   : io->op == SHF_IO_FSYNC ? "fsync"
	                                            : "resize");

	if (!rc && !shf_io_moves(io->op) && io->op != SHF_IO_FSYNC && io->op != SHF_IO_RESIZE)
		rc = -EINVAL;
	/* A request that was refused does not enter the queue. A request cannot be refused and
	 * done. */
	if (!rc && io->direct < 0)
		rc = -EBADF;
	if (!rc && c.after)
		rc = -c.after;
	if (!rc) {
		io->left = io->op == SHF_IO_FSYNC && sim_skips_fsync(p, io->fd);
		io->next = q->pending;
		q->pending = io;
		q->n++;
	}
	return (int)sim_end(&c, rc);
}

/* Takes a random pending request, or NULL. */
static struct shf_io *take(struct shf_queue *q)
{
	struct simdisk *d = q->p->disk;
	struct shf_io **at = &q->pending, *io;

	pthread_mutex_lock(&d->lock);
	if (q->n)
		for (uint64_t i = sim_draw(d) % q->n; i > 0; i--)
			at = &(*at)->next;
	io = *at;
	if (io) {
		*at = io->next;
		io->next = NULL;
		q->n--;
	}
	pthread_mutex_unlock(&d->lock);
	return io;
}

static void perform(struct simproc *p, struct shf_io *io)
{
	const struct sys_tables *ops = simover_real();

	if (io->op == SHF_IO_READ)
		io->result = ops->file.pread(p, io->fd, io->buf, io->len, io->off);
	else if (io->op == SHF_IO_WRITE)
		io->result = ops->disk.pwrite(p, io->fd, io->buf, io->len, io->off);
	else if (io->op == SHF_IO_RESIZE)
		io->result = ops->disk.resize(p, io->fd, io->len);
	else
		io->result = io->left ? 0 : sim_fsync(p, io->fd, true);
	io->done_ns = ops->host.mono_ns(p);
}

/* All requests use fd here. Direct ones are counted as if they had not. */
static void account(struct shf_queue *q, const struct shf_io *io)
{
	if (!shf_io_moves(io->op) || io->result <= 0)
		return;
	*(io->direct ? &q->stat.direct_bytes : &q->stat.buffered_bytes) += (uint64_t)io->result;
}

static bool hesitates(struct shf_queue *q)
{
	struct simdisk *d = q->p->disk;

	pthread_mutex_lock(&d->lock);
	q->hesitated = !q->hesitated && sim_draw(d) % 3 == 0;
	pthread_mutex_unlock(&d->lock);
	return q->hesitated;
}

static int op_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	(void)arg;
	if (!q->n)
		return 0;
	/* A call that does not wait sometimes gets nothing, but never twice in a row. */
	if (!timeout_ms && hesitates(q))
		return -EAGAIN;
	*io = take(q);
	perform(q->p, *io);
	account(q, *io);
	return 1;
}

/* Stops the program if pinned memory that a request still uses is replaced: the real queue would
 * write elsewhere. */
static void op_queue_pin(void *arg, struct shf_queue *q, int i, void *base, size_t bytes)
{
	(void)arg;
	for (const struct shf_io *io = q->pending; io; io = io->next) {
		size_t in = (size_t)((uintptr_t)io->buf - (uintptr_t)q->pins[i].base);

		if (shf_io_moves(io->op) && in < q->pins[i].bytes)
			abort();
	}
	q->pins[i].base = base;
	q->pins[i].bytes = base ? bytes : 0;
}

static void op_queue_stat(void *arg, struct shf_queue *q, struct shf_queue_stat *stat)
{
	(void)arg;
	*stat = q->stat;
}

/* ---- background tasks: there are no threads, so a task's steps are done when a process asks
 * ---- */

struct shf_task {
	struct simproc *p;
	bool (*step)(void *work);
	void *work;
	bool over;
};

static int op_cpus(void *arg)
{
	(void)arg;
	return 4;
}

static int op_task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                       const char *cpus)
{
	struct sim_call c;
	int rc = sim_begin(&c, sim_proc(arg), SIMDISK_TASK_NEW, -1, "", "%s", "");

	if (!rc && c.after)
		rc = -c.after;
	if (!rc) {
		*task = sim_alloc(1, sizeof(**task));
		**task = (struct shf_task){ c.p, step, work, false };
		c.p->tasks++;
		rc = cpus && strcmp(cpus, "63") == 0; /* this machine does not have it */
	}
	return (int)sim_end(&c, rc);
}

static bool op_task_over(void *arg, struct shf_task *task)
{
	struct simdisk *d = task->p->disk;
	long n;

	(void)arg;
	pthread_mutex_lock(&d->lock);
	n = d->task_steps >= 0 ? d->task_steps : (long)(sim_draw(d) % 24);
	pthread_mutex_unlock(&d->lock);
	for (; n > 0 && !task->over; n--)
		task->over = !task->step(task->work);
	return task->over;
}

static void op_task_again(void *arg, struct shf_task *task)
{
	(void)arg;
	task->over = false;
}

static void op_task_free(void *arg, struct shf_task *task)
{
	(void)arg;
	if (task)
		task->p->tasks--;
	free(task);
}

/* The test decides what is in the page cache. */
static int64_t op_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	struct simdisk *d = ((struct simproc *)arg)->disk;
	int64_t some;

	(void)fd;
	(void)off;
	pthread_mutex_lock(&d->lock);
	some = (d->resident >= 0 ? d->resident : (int)(sim_draw(d) % 2)) ? (int64_t)n : 0;
	pthread_mutex_unlock(&d->lock);
	return some;
}

/* Called only for large states. */
static bool op_touched(void *arg, const void *at)
{
	(void)arg;
	(void)at;
	return true;
}

static void op_touch(void *arg, const void *at, uint64_t n, bool write)
{
	(void)arg;
	(void)at;
	(void)n;
	(void)write;
}

static void op_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	(void)arg;
	(void)fd;
	(void)off;
	(void)n;
}

static void op_queue_free(void *arg, struct shf_queue *q)
{
	struct shf_io *io;

	(void)arg;
	if (!q)
		return;
	while ((io = take(q)))
		perform(q->p, io);
	q->p->queues--;
	free(q);
}

struct sim_mem *sim_mem_of(struct simdisk *d, const void *base)
{
	for (size_t i = 0; i < d->mem_n; i++)
		if (d->mems[i].refs && d->mems[i].base == base)
			return &d->mems[i];
	return NULL;
}

void sim_mem_put(struct simdisk *d, struct sim_mem *m)
{
	if (!--m->refs) {
		d->shm_used -= m->bytes;
		free(m->base);
	}
}

/* Returns the memory used on a node, or by one of its processes. */
static uint64_t memory_used(const struct simdisk *d, int node, int owner)
{
	uint64_t used = 0;

	for (size_t i = 0; i < d->mem_n; i++)
		if (d->mems[i].refs && d->mems[i].node == node &&
		    (owner < 0 || d->mems[i].owner == owner))
			used += d->mems[i].bytes;
	return used;
}

static int op_rooms(void *arg, struct shf_memory_limit rooms[SHF_MEMORY_LIMITS])
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	uint64_t used;
	int n;

	pthread_mutex_lock(&d->lock);
	n = d->memory[p->node] > 0;
	used = memory_used(d, p->node, -1);
	if (n)
		rooms[0] = (struct shf_memory_limit){ 1, d->memory[p->node] > used
		                                 ? d->memory[p->node] - used : 0 };
	pthread_mutex_unlock(&d->lock);
	return n;
}

/* Takes memory. If it is too much for the node, the process may be killed. */
static int memory_take(struct simproc *p, size_t bytes)
{
	uint64_t all = p->disk->memory[p->node];

	if (!all || memory_used(p->disk, p->node, -1) + bytes <= all)
		return 0;
	if (memory_used(p->disk, p->node, p->index) + bytes > all)
		return -ENOMEM;
	sim_kill(p);
	return -ESHUTDOWN;
}

static size_t mem_slot(struct simdisk *d)
{
	size_t i = 0;

	while (i < d->mem_n && d->mems[i].refs)
		i++;
	if (i == d->mem_n) {
		d->mems = sim_grow(d->mems, &d->mem_cap, d->mem_n + 1, sizeof(*d->mems));
		d->mem_n++;
	}
	return i;
}

struct sim_mem *sim_mem_copy(struct simdisk *d, const struct sim_mem *of)
{
	size_t n = of->bytes / SIM_PAGE * SIM_PAGE + SIM_PAGE, i;
	struct sim_mem m = *of;

	m.refs = 1;
	if (posix_memalign(&m.base, SIM_PAGE, n))
		abort();
	memcpy(m.base, of->base, n);
	i = mem_slot(d);
	d->mems[i] = m;
	d->shm_used += m.bytes;
	return &d->mems[i];
}

static int op_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	size_t i = 0, n = bytes / SIM_PAGE * SIM_PAGE + SIM_PAGE;
	struct sim_call c;
	void *base = NULL;
	int rc = sim_begin(&c, p, SIMDISK_SHM_NEW, -1, "", "%zu%s", bytes,
	                   shared ? ", shared" : "");

	if (!rc && (n < bytes || bytes > d->shm_max - d->shm_used))
		rc = -ENOSPC;
	if (!rc && c.after)
		rc = -c.after;
	if (!rc)
		rc = memory_take(p, bytes);
	if (!rc && posix_memalign(&base, SIM_PAGE, n))
		rc = -ENOMEM;
	if (!rc) {
		memset(base, 0, n);
		i = mem_slot(d);
		d->mems[i] = (struct sim_mem){ .base = base, .bytes = bytes, .refs = 1,
		                               .node = p->node, .owner = p->index };
		d->shm_used += bytes;
		*shm = (struct shf_shm){ base, bytes, shared ? (int)i : -1 };
	}
	return (int)sim_end(&c, rc);
}

static void op_shm_free(void *arg, struct shf_shm *shm)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_mem *m;

	if (!shm->base)
		return;
	pthread_mutex_lock(&d->lock);
	m = sim_mem_of(d, shm->base);
	if (!m)
		abort();        /* freed twice */
	sim_mem_put(d, m);
	pthread_mutex_unlock(&d->lock);
	*shm = (struct shf_shm){ NULL, 0, -1 };
}

static struct sim_line *line_of(struct simdisk *d, int id)
{
	for (size_t i = 0; i < d->line_n; i++)
		if (d->lines[i].id == id && id > 0)
			return &d->lines[i];
	return NULL;
}

static int line_new(struct simproc *p, struct sim_line line)
{
	struct simdisk *d = p->disk;

	line.id = d->line_next++;
	line.owner = p->index;
	line.node = p->node;
	d->lines = sim_grow(d->lines, &d->line_cap, d->line_n + 1, sizeof(*d->lines));
	d->lines[d->line_n++] = line;
	return line.id;
}

static int op_shm_offer(void *arg, uint8_t token[16], int *handle)
{
	struct simproc *p = sim_proc(arg);
	struct sim_line line = { 0 };
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_SHM_OFFER, -1, "", "%s", "");

	if (!rc && c.after)
		rc = -c.after;
	if (!rc) {
		for (int i = 0; i < 16; i++)
			line.token[i] = (uint8_t)sim_draw(p->disk);
		memcpy(token, line.token, 16);
		*handle = line_new(p, line);
	}
	return (int)sim_end(&c, rc);
}

static int op_shm_connect(void *arg, const uint8_t token[16], int *handle)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	const struct sim_line *offer = NULL;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_SHM_CONNECT, -1, "", "%s", "");

	for (size_t i = 0; i < d->line_n; i++)
		if (!d->lines[i].peer && !d->lines[i].gone && d->lines[i].node == p->node &&
		    !memcmp(d->lines[i].token, token, 16))
			offer = &d->lines[i];
	if (!rc && (!offer || !d->shm_connects))
		rc = -ECONNREFUSED;
	if (!rc && c.after)
		rc = -c.after;
	if (!rc)
		*handle = line_new(p, (struct sim_line){ .peer = offer->id });
	return (int)sim_end(&c, rc);
}

/* A served connection keeps the memory alive until it is taken or dropped, as a descriptor in
 * flight does. */
static int op_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_mem *m;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_SHM_SERVE, -1, "", "%d", n);

	m = sim_mem_of(d, shm->base);
	if (!rc && (!line_of(d, offer) || !m))
		rc = -EBADF;
	if (!rc && shm->fd < 0)
		rc = -EINVAL;
	for (size_t i = 0; !rc && n > 0 && i < d->line_n; i++) {
		struct sim_line *line = &d->lines[i];

		if (line->peer != offer || line->served || line->gone)
			continue;
		line->served = true;
		line->base = shm->base;
		line->bytes = shm->bytes;
		m->refs++;
		n--;
	}
	if (!rc && n > 0) {
		d->clock_ns += (int64_t)timeout_ms * 1000000;
		rc = -ETIMEDOUT;
	}
	return (int)sim_end(&c, rc);
}

static int op_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms)
{
	struct simproc *p = sim_proc(arg);
	struct simdisk *d = p->disk;
	struct sim_line *line, *offer;
	struct sim_call c;
	int rc = sim_begin(&c, p, SIMDISK_SHM_TAKE, -1, "", "%s", "");

	line = line_of(d, connection);
	if (!rc && (!line || !line->peer))
		rc = -EBADF;
	if (!rc && c.after)
		rc = -c.after;
	if (!rc && !line->base) {
		offer = line_of(d, line->peer);
		rc = line->served || !offer || offer->gone ? -ECONNRESET : -ETIMEDOUT;
		if (rc == -ETIMEDOUT)
			d->clock_ns += (int64_t)timeout_ms * 1000000;
	}
	if (!rc) {
		*shm = (struct shf_shm){ line->base, line->bytes, 0 };
		line->base = NULL;
	}
	return (int)sim_end(&c, rc);
}

static void line_drop(struct simdisk *d, struct sim_line *line)
{
	struct sim_mem *m = line->peer && line->base ? sim_mem_of(d, line->base) : NULL;

	if (m)
		sim_mem_put(d, m);
	line->base = NULL;
	line->gone = true;
}

static void op_shm_drop(void *arg, int handle)
{
	struct simproc *p = sim_proc(arg);
	struct sim_line *line;

	pthread_mutex_lock(&p->disk->lock);
	line = line_of(p->disk, handle);
	if (line)
		line_drop(p->disk, line);
	pthread_mutex_unlock(&p->disk->lock);
}

void simdisk_set_memory(struct simdisk *d, int node, uint64_t bytes)
{
	d->memory[node] = bytes;
}

void sim_ipc_kill(struct simproc *p)
{
	sim_agents_part(p->disk, p->index);
	for (size_t i = 0; i < p->disk->line_n; i++)
		if (p->disk->lines[i].owner == p->index)
			line_drop(p->disk, &p->disk->lines[i]);
}

void sim_ipc_bind(struct sys_tables *ops)
{
	ops->host.random = op_random;
	ops->host.mono_ns = op_mono_ns;
	ops->host.wall_s = op_wall_s;
	ops->host.sleep_ms = op_sleep_ms;
	ops->host.owner = op_owner;
	ops->host.owner_is_dead = op_owner_is_dead;
	ops->host.pid = op_pid;
	ops->queue.queue_new = op_queue_new;
	ops->queue.queue_free = op_queue_free;
	ops->queue.submit = op_submit;
	ops->queue.complete = op_complete;
	ops->task.cpus = op_cpus;
	ops->task.task_new = op_task_new;
	ops->task.task_over = op_task_over;
	ops->task.task_again = op_task_again;
	ops->task.task_free = op_task_free;
	ops->queue.queue_pin = op_queue_pin;
	ops->queue.queue_stat = op_queue_stat;
	ops->file.resident = op_resident;
	ops->shm.touched = op_touched;
	ops->shm.touch = op_touch;
	ops->file.forget = op_forget;
	ops->shm.shm_new = op_shm_new;
	ops->shm.shm_free = op_shm_free;
	ops->shm.rooms = op_rooms;
	ops->shm.shm_offer = op_shm_offer;
	ops->shm.shm_connect = op_shm_connect;
	ops->shm.shm_serve = op_shm_serve;
	ops->shm.shm_take = op_shm_take;
	ops->shm.shm_drop = op_shm_drop;
}
