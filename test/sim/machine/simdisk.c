/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk for tests: creating and freeing it, processes, counted calls and their faults,
 * the function that appends to the log, and changes made by tests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "simcore.h"
#include "simover.h"
#include "sys_tables.h"

#define HOUR_S 3600
#define SPACE_BYTES (UINT64_C(1) << 44)

static const char *const kind_names[SIMDISK_KINDS] = {
	"any", "open", "close", "mkdir", "rename", "unlink", "fsync", "resize", "pread", "pwrite",
	"stat", "fstat", "list", "readlink", "lock", "unlock", "free_bytes", "random", "owner",
	"queue_new", "submit", "task_new", "shm_new", "shm_offer", "shm_connect", "shm_serve",
	"shm_take", "keep",
};

static struct simdisk *disk_new(uint64_t seed, enum simdisk_model model)
{
	struct simdisk *d = sim_alloc(1, sizeof(*d));

	pthread_mutex_init(&d->lock, NULL);
	d->seed = seed;
	d->model = model;
	d->space = SPACE_BYTES;
	d->shm_max = SPACE_BYTES;
	d->locks = d->shm_connects = d->dir_twice = d->traces = true;
	d->dir_fsync = model != SIMDISK_NFS;
	d->wall_s = 1700000000;
	d->line_next = 1;
	d->task_steps = d->resident = -1;
	return d;
}

struct simdisk *simdisk_new(uint64_t seed, enum simdisk_model model)
{
	struct simdisk *d = disk_new(seed, model);

	simtree_init(&d->now);
	d->next_ino = SIM_ROOT + 1;
	d->now.inodes[SIM_ROOT]->mtime = d->wall_s;
	return d;
}

struct simdisk *sim_disk_like(const struct simdisk *from, struct simtree *tree)
{
	struct simdisk *d = disk_new(from->seed, from->model);

	d->now = *tree;
	d->now.dir_once = false;
	d->used = simtree_used(tree);
	d->next_ino = from->next_ino;
	d->space = from->space;
	d->shm_max = from->shm_max;
	d->locks = from->locks;
	d->dir_fsync = from->dir_fsync;
	d->shm_connects = from->shm_connects;
	d->one_kernel = from->one_kernel;
	d->dir_twice = from->dir_twice;
	d->read_only = from->read_only;
	d->traces = from->traces;
	d->fs_drawn = from->fs_drawn;
	d->mounts = from->mounts;
	d->task_steps = from->task_steps;
	d->resident = from->resident;
	d->boots = from->boots + 1;
	d->wall_s = from->wall_s + from->clock_ns / 1000000000 + HOUR_S;
	d->draws = sim_mix((uint64_t)d->boots);
	return d;
}

static void log_clear(struct simdisk *d)
{
	sim_cut_forget(d);
	for (size_t i = 0; i < d->log_n; i++)
		simrec_release(&d->log[i]);
	d->log_n = 0;
	simtree_release(&d->base);
}

/* Counts and reports what a process has not given back. A child need not close inherited
 * descriptors, and a process that forked need not free threads and memory. */
static int proc_tell_left(const struct simproc *p)
{
	const struct simdisk *d = p->disk;
	int fds = 0, lines = 0, rest = p->forks ? 0 : p->queues + p->tasks;

	for (size_t i = 0; i < p->fd_n && !p->forked; i++)
		fds += p->fds[i] != NULL;
	for (size_t i = 0; i < d->line_n; i++)
		lines += d->lines[i].owner == p->index && !d->lines[i].gone;
	if (fds + lines + rest)
		fprintf(stderr, "process %d (pid %llu) ends with %d descriptors, %d offers and "
		        "connections, %d queues, %d tasks\n", p->index,
		        (unsigned long long)p->pid, fds, lines, p->queues, p->tasks);
	for (size_t i = 0; i < p->fd_n && fds; i++)
		if (p->fds[i])
			fprintf(stderr, "  %d: %s\n", p->fd_first + (int)i,
			        sim_label(p, p->fd_first + (int)i));
	return fds + lines + rest;
}

/* Stops the program if a process did not give back what it took, so that every test checks this in
 * every branch. The memory that agents kept is freed already. */
static void check_left(const struct simdisk *d)
{
	int left = 0;
	bool forks = false;

	for (size_t i = 0; i < d->proc_n; i++) {
		left += proc_tell_left(d->procs[i]);
		forks |= d->procs[i]->forks;
	}
	/* A process that forked may have used the memory of its peers, too. */
	for (size_t i = 0; i < d->mem_n && !forks; i++)
		if (d->mems[i].refs) {
			fprintf(stderr, "%d users have %zu bytes of memory that process %d made\n",
			        d->mems[i].refs, d->mems[i].bytes, d->mems[i].owner);
			left++;
		}
	if (left)
		abort();
}

static void proc_release(struct simproc *p)
{
	for (size_t i = 0; i < p->fd_n; i++)
		if (p->fds[i] && !--p->fds[i]->refs)
			free(p->fds[i]);
	free(p->fds);
	for (size_t i = 0; i < SIM_STALE; i++)
		sim_stale_end(&p->stale[i]);
}

void simdisk_free(struct simdisk *d)
{
	if (!d)
		return;
	sim_agents_release(d);
	check_left(d);
	log_clear(d);
	simtree_release(&d->now);
	for (size_t i = 0; i < d->proc_n; i++) {
		proc_release(d->procs[i]);
		free(d->procs[i]);
	}
	free(d->procs);
	free(d->log);
	free(d->trace);
	free(d->call_at);
	free(d->mems);
	free(d->lines);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

void simdisk_abandon(struct simdisk *d)
{
	for (size_t i = 0; i < d->proc_n; i++)
		simdisk_kill(d, &d->procs[i]->sys);
	simdisk_free(d);
}

static struct simproc *proc_of(const struct shf_sys *sys)
{
	return sys->host.arg;
}

static struct sys_tables real;

static void bind_real(void)
{
	sim_files_bind(&real);
	sim_ipc_bind(&real);
	sim_agents_bind(&real);
}

const struct sys_tables *simover_real(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, bind_real);
	return &real;
}

struct sys_tables *simover(const struct shf_sys *sys)
{
	return &proc_of(sys)->ops;
}

const struct shf_sys *simdisk_process(struct simdisk *d, uint64_t pid, int node)
{
	struct simproc *p = sim_alloc(1, sizeof(*p));

	pthread_mutex_lock(&d->lock);
	*p = (struct simproc){ .sys = sys_tables_sys(&p->ops, p), .ops = *simover_real(),
	                       .disk = d, .index = (int)d->proc_n, .node = node, .pid = pid,
	                       .start = 1000 + d->starts++ };
	p->fd_first = (p->index + 1) * SIM_FD_MAX;
	d->procs = sim_grow(d->procs, &d->proc_cap, d->proc_n + 1, sizeof(struct simproc *));
	d->procs[d->proc_n++] = p;
	pthread_mutex_unlock(&d->lock);
	return &p->sys;
}

void sim_kill(struct simproc *p)
{
	if (p->dead)
		return;
	for (size_t i = 0; i < p->fd_n; i++) {
		if (p->fds[i])
			sim_open_put(p->disk, p->fds[i]);
		p->fds[i] = NULL;
	}
	sim_ipc_kill(p);
	p->dead = true;
}

void simdisk_kill(struct simdisk *d, const struct shf_sys *process)
{
	pthread_mutex_lock(&d->lock);
	sim_kill(proc_of(process));
	pthread_mutex_unlock(&d->lock);
}

const struct shf_sys *simdisk_fork(struct simdisk *d, const struct shf_sys *parent, uint64_t pid)
{
	struct simproc *p = proc_of(parent), *child;

	child = proc_of(simdisk_process(d, pid, p->node));
	pthread_mutex_lock(&d->lock);
	child->fd_first = p->fd_first;
	child->zero = p->zero;
	child->forked = p->forks = true;
	child->fd_n = child->fd_cap = p->fd_n;
	child->fds = sim_alloc(p->fd_n, sizeof(struct sim_open *));
	for (size_t i = 0; i < p->fd_n; i++) {
		child->fds[i] = p->fds[i];
		if (p->fds[i])
			p->fds[i]->refs++;
	}
	pthread_mutex_unlock(&d->lock);
	return &child->sys;
}

void simdisk_act_as(const struct shf_sys *view, const struct shf_sys *process)
{
	struct simproc *p = proc_of(view);

	pthread_mutex_lock(&p->disk->lock);
	p->acts = process && process != view ? proc_of(process) : NULL;
	pthread_mutex_unlock(&p->disk->lock);
}

void sim_stale_end(struct sim_stale *stale)
{
	for (size_t i = 0; i < stale->entry_n; i++)
		sim_name_put(stale->entries[i].name);
	free(stale->entries);
	*stale = (struct sim_stale){ .dir = 0 };
}

void simdisk_stale(struct simdisk *d, const struct shf_sys *process, const char *path, int64_t ms)
{
	struct simproc *p = proc_of(process);
	const struct sim_inode *dir = NULL;
	struct sim_stale *s = p->stale;
	struct sim_spot spot;

	pthread_mutex_lock(&d->lock);
	if (!sim_walk(&d->now, NULL, SIM_ROOT, path, true, 0, &spot))
		dir = simtree_inode(&d->now, spot.ino);
	while (s < p->stale + SIM_STALE && s->dir && s->dir != spot.ino)
		s++;
	if (!dir || dir->type != SHF_T_DIR || s == p->stale + SIM_STALE)
		abort();
	sim_stale_end(s);
	s->dir = spot.ino;
	s->until_ns = ms < 0 ? INT64_MAX : d->clock_ns + ms * 1000000;
	s->entry_n = dir->entry_n;
	s->entries = sim_alloc(dir->entry_n, sizeof(*s->entries));
	for (size_t i = 0; i < dir->entry_n; i++)
		s->entries[i] = (struct sim_entry){ sim_name_get(dir->entries[i].name),
		                                    dir->entries[i].ino };
	pthread_mutex_unlock(&d->lock);
}

void simdisk_fresh(struct simdisk *d, const struct shf_sys *process)
{
	struct simproc *p = proc_of(process);

	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < SIM_STALE; i++)
		sim_stale_end(&p->stale[i]);
	pthread_mutex_unlock(&d->lock);
}

size_t simdisk_open_n(const struct shf_sys *process)
{
	struct simproc *p = proc_of(process);
	size_t n = 0;

	pthread_mutex_lock(&p->disk->lock);
	for (size_t i = 0; i < p->fd_n; i++)
		n += p->fds[i] != NULL;
	pthread_mutex_unlock(&p->disk->lock);
	return n;
}

bool simdisk_is_dead(const struct shf_sys *process)
{
	struct simproc *p = proc_of(process);
	bool dead;

	pthread_mutex_lock(&p->disk->lock);
	dead = p->dead;
	pthread_mutex_unlock(&p->disk->lock);
	return dead;
}

void simdisk_set_turn(struct simdisk *d, void (*turn)(void *arg), void *arg)
{
	d->turn = turn;
	d->turn_arg = arg;
}

void simdisk_fault(struct simdisk *d, const struct simdisk_fault *fault)
{
	for (int i = 0; i < SIM_FAULTS; i++) {
		struct sim_fault *s = &d->faults[i];

		if (s->used)
			continue;
		s->f = *fault;
		s->process = fault->process ? proc_of(fault->process) : NULL;
		s->used = true;
		snprintf(s->name, sizeof(s->name), "%s", fault->name ? fault->name : "");
		return;
	}
	abort();
}

void simdisk_fail_at(struct simdisk *d, int nth, int error)
{
	simdisk_fault(d, &(struct simdisk_fault){ .nth = nth, .error = error });
}

int simdisk_fired(const struct simdisk *d)
{
	return d->fired;
}

void simdisk_faults_clear(struct simdisk *d)
{
	memset(d->faults, 0, sizeof(d->faults));
	d->fired = 0;
}

/* Returns whether this call matches the fault and is the nth to do so. */
static bool fault_meets(struct sim_fault *s, const struct sim_call *c, const char *name)
{
	if (!s->used || (s->f.kind != SIMDISK_ANY && s->f.kind != c->kind))
		return false;
	if (s->process && s->process != c->p)
		return false;
	if (s->name[0] && !strstr(name, s->name))
		return false;
	s->f.nth--;
	return !s->f.nth || (s->f.always && s->f.nth < 0);
}

static int fault_take(struct sim_call *c, const char *name)
{
	struct simdisk *d = c->p->disk;
	int rc = 0;

	for (int i = 0; i < SIM_FAULTS; i++) {
		const struct simdisk_fault *f = &d->faults[i].f;

		if (!fault_meets(&d->faults[i], c, name))
			continue;
		d->fired++;
		if (f->how == SIMDISK_AFTER)
			c->after = f->error;
		else if (f->how == SIMDISK_PART && c->kind == SIMDISK_PWRITE)
			c->part = f->error;
		else if (f->how == SIMDISK_PART && c->kind == SIMDISK_PREAD)
			c->part = 1;
		else if (f->how == SIMDISK_JUMP)
			d->wall_s += f->jump_s;
		else if (f->how == SIMDISK_ZERO)
			c->zero = true;
		else if (f->how != SIMDISK_KILL)
			rc = -f->error;
		else
			sim_kill(c->p);
	}
	return c->p->dead ? -ESHUTDOWN : rc;
}

void simdisk_skip_fsync(struct simdisk *d, long nth)
{
	pthread_mutex_lock(&d->lock);
	d->skip_at = nth;
	d->fsyncs = 0;
	if (nth)
		d->skipped[0] = '\0';
	pthread_mutex_unlock(&d->lock);
}

long simdisk_fsyncs(const struct simdisk *d)
{
	return d->fsyncs;
}

const char *simdisk_skipped(const struct simdisk *d)
{
	return d->skipped;
}

bool sim_skips_fsync(struct simproc *p, int fd)
{
	struct simdisk *d = p->disk;

	if (++d->fsyncs != d->skip_at)
		return false;
	snprintf(d->skipped, sizeof(d->skipped), "%s", sim_label(p, fd));
	return true;
}

int sim_begin(struct sim_call *c, struct simproc *p, enum simdisk_kind kind, int fd,
              const char *name, const char *fmt, ...)
{
	struct simdisk *d = p->disk;
	const char *label;
	va_list ap;
	int n;

	if (d->turn)
		d->turn(d->turn_arg);
	pthread_mutex_lock(&d->lock);
	c->p = p;
	c->kind = kind;
	c->after = c->part = 0;
	c->zero = false;
	c->counted = !p->dead;
	c->text[0] = '\0';
	if (p->dead)
		return -ESHUTDOWN;
	label = fd == -1 ? "" : sim_label(p, fd);
	if (d->traces) {
		n = snprintf(c->text, sizeof(c->text), "%llu %s(%.80s, ",
		             (unsigned long long)p->pid, kind_names[kind], label);
		va_start(ap, fmt);
		vsnprintf(c->text + n, sizeof(c->text) - (size_t)n, fmt, ap);
		va_end(ap);
	}
	d->clock_ns += 1000 + d->takes_ms[kind] * INT64_C(1000000);
	return fault_take(c, name ? name : label);
}

int64_t sim_end(struct sim_call *c, int64_t rc)
{
	struct simdisk *d = c->p->disk;
	char line[256];
	int n;

	if (c->after && rc >= 0)
		rc = -c->after;
	d->calls += c->counted && !d->traces;
	if (c->counted && d->traces) {
		n = snprintf(line, sizeof(line), "%s) = %lld", c->text, (long long)rc);
		d->trace = sim_grow(d->trace, &d->trace_cap, d->trace_n + (size_t)n + 1, 1);
		memcpy(d->trace + d->trace_n, line, (size_t)n + 1);
		d->call_at = sim_grow(d->call_at, &d->call_cap, d->calls + 1, sizeof(size_t));
		d->call_at[d->calls++] = d->trace_n;
		d->trace_n += (size_t)n + 1;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

void sim_record(struct simdisk *d, struct simrec *r)
{
	if (!d->base.n)
		simtree_copy(&d->base, &d->now);
	r->mtime = sim_wall(d);
	r->call = d->calls + 1;
	simtree_apply(&d->now, r, r->parts, NULL);
	d->log = sim_grow(d->log, &d->log_cap, d->log_n + 1, sizeof(*d->log));
	d->log[d->log_n++] = *r;
}

uint64_t sim_draw(struct simdisk *d)
{
	return sim_mix(d->seed ^ sim_mix(d->draws++));
}

int64_t sim_wall(struct simdisk *d)
{
	return d->wall_s + d->clock_ns / 1000000000;
}

size_t simdisk_calls(const struct simdisk *d)
{
	return d->calls;
}

const char *simdisk_call_text(const struct simdisk *d, size_t i)
{
	return d->traces && i < d->calls ? d->trace + d->call_at[i] : "";
}

static void print_tree(const struct simdisk *d, uint32_t ino, int depth, FILE *out)
{
	const struct sim_inode *dir = simtree_inode(&d->now, ino);

	for (size_t i = 0; i < dir->entry_n && depth < 32; i++) {
		const struct sim_inode *f = simtree_inode(&d->now, dir->entries[i].ino);

		fprintf(out, "%*s%s", depth * 2, "", dir->entries[i].name->text);
		if (f->type == SHF_T_DIR)
			fprintf(out, "/ (%u)\n", dir->entries[i].ino);
		else if (f->type == SHF_T_LINK)
			fprintf(out, " -> %s\n", f->target->text);
		else
			fprintf(out, " (%u) %llu bytes\n", dir->entries[i].ino,
			        (unsigned long long)f->size);
		if (f->type == SHF_T_DIR)
			print_tree(d, dir->entries[i].ino, depth + 1, out);
	}
}

void simdisk_print(struct simdisk *d, FILE *out)
{
	pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->calls; i++)
		fprintf(out, "%4zu  %s\n", i, simdisk_call_text(d, i));
	print_tree(d, SIM_ROOT, 1, out);
	pthread_mutex_unlock(&d->lock);
}

void simdisk_set_space(struct simdisk *d, uint64_t bytes)
{
	d->space = bytes;
}

uint64_t simdisk_used(const struct simdisk *d)
{
	return d->used;
}

void simdisk_set_read_only(struct simdisk *d, bool read_only)
{
	d->read_only = read_only;
}

void simdisk_set_locks(struct simdisk *d, bool work)
{
	d->locks = work;
}

void simdisk_set_one_kernel(struct simdisk *d, bool one)
{
	d->one_kernel = one;
}

void simdisk_set_task_steps(struct simdisk *d, long steps)
{
	d->task_steps = steps;
}

void simdisk_set_resident(struct simdisk *d, int resident)
{
	d->resident = resident;
}

void simdisk_set_dir_fsync(struct simdisk *d, bool works)
{
	d->dir_fsync = works;
}

void simdisk_set_shm(struct simdisk *d, bool connects, uint64_t bytes_max)
{
	d->shm_connects = connects;
	d->shm_max = bytes_max;
}

void simdisk_set_trace(struct simdisk *d, bool trace)
{
	d->traces = trace;
}

void simdisk_remount(struct simdisk *d)
{
	d->mounts++;
}

void simdisk_set_fs_drawn(struct simdisk *d, bool drawn)
{
	d->fs_drawn = drawn;
}

void simdisk_set_dir_twice(struct simdisk *d, bool twice)
{
	sim_cut_forget(d);
	d->dir_twice = twice;
}

int64_t simdisk_clock_ms(const struct simdisk *d)
{
	return d->clock_ns / 1000000;
}

void simdisk_set_takes(struct simdisk *d, enum simdisk_kind kind, int ms)
{
	d->takes_ms[kind] = ms;
}

void simdisk_advance(struct simdisk *d, int64_t seconds)
{
	d->clock_ns += seconds * 1000000000;
}

void simdisk_settle(struct simdisk *d)
{
	pthread_mutex_lock(&d->lock);
	log_clear(d);
	pthread_mutex_unlock(&d->lock);
}

/* Makes the directories above path. */
static int parents_make(struct simdisk *d, const char *path)
{
	struct sim_spot spot;
	char part[1024];
	uint32_t ino;
	int rc = 0;

	for (size_t n = 1; !rc && path[n]; n++) {
		if (path[n] != '/' || n >= sizeof(part))
			continue;
		snprintf(part, sizeof(part), "%.*s", (int)n, path);
		rc = sim_walk(&d->now, NULL, SIM_ROOT, part, true, 0, &spot);
		if (!rc && !spot.ino)
			rc = sim_create(d, &spot, SHF_T_DIR, NULL, 0, &ino);
	}
	return rc;
}

int simdisk_put(struct simdisk *d, const char *path, const void *bytes, size_t n)
{
	struct sim_spot spot;
	int64_t rc;

	pthread_mutex_lock(&d->lock);
	rc = parents_make(d, path);
	if (!rc)
		rc = sim_walk(&d->now, NULL, SIM_ROOT, path, true, 0, &spot);
	if (!rc && !spot.ino)
		rc = sim_create(d, &spot, SHF_T_FILE, NULL, 0, &spot.ino);
	if (!rc && simtree_inode(&d->now, spot.ino)->type != SHF_T_FILE)
		rc = -EISDIR;
	if (!rc)
		rc = sim_resize(d, spot.ino, 0, 0);
	if (!rc)
		rc = sim_write(d, spot.ino, bytes, n, 0, 0);
	pthread_mutex_unlock(&d->lock);
	return rc < 0 ? (int)rc : 0;
}

int simdisk_symlink(struct simdisk *d, const char *target, const char *path)
{
	struct sim_spot spot;
	uint32_t ino;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = parents_make(d, path);
	if (!rc)
		rc = sim_walk(&d->now, NULL, SIM_ROOT, path, false, 0, &spot);
	if (!rc)
		rc = spot.ino ? -EEXIST : sim_create(d, &spot, SHF_T_LINK, target, 0, &ino);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int remove_tree(struct simdisk *d, const struct sim_spot *spot)
{
	const struct sim_inode *f = simtree_inode(&d->now, spot->ino);
	bool is_dir = f->type == SHF_T_DIR;
	int rc = 0;

	while (!rc && is_dir && f->entry_n) {
		struct sim_spot child = { .dir = spot->ino, .ino = f->entries[0].ino };

		snprintf(child.name, sizeof(child.name), "%s", f->entries[0].name->text);
		rc = remove_tree(d, &child);
	}
	return rc ? rc : sim_unlink_at(d, spot, is_dir, 0);
}

int simdisk_remove(struct simdisk *d, const char *path)
{
	struct sim_spot spot;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = sim_walk(&d->now, NULL, SIM_ROOT, path, false, 0, &spot);
	if (!rc)
		rc = spot.ino ? remove_tree(d, &spot) : -ENOENT;
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int copy_tree(struct simdisk *d, uint32_t from, const struct sim_spot *to)
{
	const struct sim_inode *f = simtree_inode(&d->now, from);
	uint8_t piece[SIM_PAGE];
	uint32_t made;
	int64_t rc = sim_create(d, to, f->type, f->type == SHF_T_LINK ? f->target->text : NULL, 0,
	                        &made);

	for (uint64_t off = 0; rc >= 0 && f->type == SHF_T_FILE && off < f->size; off += SIM_PAGE)
		rc = sim_write(d, made, piece, simtree_read(f, piece, SIM_PAGE, off), off, 0);
	for (size_t i = 0; rc >= 0 && f->type == SHF_T_DIR && i < f->entry_n; i++) {
		struct sim_spot child = { .dir = made };

		snprintf(child.name, sizeof(child.name), "%s", f->entries[i].name->text);
		rc = copy_tree(d, f->entries[i].ino, &child);
	}
	if (rc >= 0)
		simtree_inode(&d->now, made)->mtime = f->mtime;
	return rc < 0 ? (int)rc : 0;
}

int simdisk_copy(struct simdisk *d, const char *from, const char *to)
{
	struct sim_spot a, b;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = sim_walk(&d->now, NULL, SIM_ROOT, from, false, 0, &a);
	if (!rc)
		rc = sim_walk(&d->now, NULL, SIM_ROOT, to, false, 0, &b);
	if (!rc)
		rc = !a.ino ? -ENOENT : b.ino ? -EEXIST : copy_tree(d, a.ino, &b);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

int simdisk_flip(struct simdisk *d, const char *path, uint64_t bit)
{
	const struct sim_inode *f;
	struct sim_spot spot;
	uint8_t byte;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = sim_walk(&d->now, NULL, SIM_ROOT, path, true, 0, &spot);
	f = rc ? NULL : simtree_inode(&d->now, spot.ino);
	if (!rc && (!f || f->type != SHF_T_FILE))
		rc = f ? -EISDIR : -ENOENT;
	if (!rc && simtree_read(f, &byte, 1, bit / 8) != 1)
		rc = -ERANGE;
	if (!rc) {
		struct simrec r = { .kind = REC_WRITE, .ino = spot.ino, .off = bit / 8, .len = 1,
		                    .size = f->size, .parts = PART_DATA };
		int64_t mtime = f->mtime;

		byte = (uint8_t)(byte ^ (1u << (bit % 8)));
		simtree_pages(&d->now, &r, &byte);
		sim_record(d, &r);
		simtree_inode(&d->now, spot.ino)->mtime = mtime;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

bool simdisk_exists(struct simdisk *d, const char *path)
{
	struct sim_spot spot;
	bool is;

	pthread_mutex_lock(&d->lock);
	is = !sim_walk(&d->now, NULL, SIM_ROOT, path, false, 0, &spot) && spot.ino;
	pthread_mutex_unlock(&d->lock);
	return is;
}

void *simdisk_get(struct simdisk *d, const char *path, size_t *n)
{
	const struct sim_inode *f;
	struct sim_spot spot;
	void *bytes = NULL;

	pthread_mutex_lock(&d->lock);
	if (!sim_walk(&d->now, NULL, SIM_ROOT, path, true, 0, &spot)) {
		f = simtree_inode(&d->now, spot.ino);
		if (f && f->type == SHF_T_FILE) {
			*n = (size_t)f->size;
			bytes = sim_alloc(*n, 1);
			simtree_read(f, bytes, *n, 0);
		}
	}
	pthread_mutex_unlock(&d->lock);
	return bytes;
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * UINT64_C(0x100000001b3);
	return sim_mix(h ^ n);
}

static uint64_t hash_inode(const struct simtree *t, uint32_t ino, int depth)
{
	const struct sim_inode *f = simtree_inode(t, ino);
	uint64_t h = sim_mix((uint64_t)f->type);
	uint8_t piece[SIM_PAGE];

	if (f->type == SHF_T_LINK)
		return hash_bytes(h, f->target->text, strlen(f->target->text));
	if (f->type == SHF_T_FILE) {
		for (uint64_t off = 0; off < f->size; off += SIM_PAGE)
			h = hash_bytes(h, piece, simtree_read(f, piece, SIM_PAGE, off));
		return sim_mix(h ^ f->size);
	}
	/* A sum, because the order of names does not matter. */
	for (size_t i = 0; i < f->entry_n && depth < 32; i++) {
		const char *name = f->entries[i].name->text;

		h += sim_mix(hash_bytes(7, name, strlen(name)) ^
		             hash_inode(t, f->entries[i].ino, depth + 1));
	}
	return h;
}

uint64_t simdisk_hash(struct simdisk *d, const char *path)
{
	struct sim_spot spot;
	uint64_t h = 0;

	pthread_mutex_lock(&d->lock);
	if (!sim_walk(&d->now, NULL, SIM_ROOT, path, true, 0, &spot) && spot.ino)
		h = hash_inode(&d->now, spot.ino, 0) | 1;
	pthread_mutex_unlock(&d->lock);
	return h;
}
