/* SPDX-License-Identifier: Apache-2.0 */
#include "ramdisk.h"
#include <errno.h>
#include <string.h>
#include "fuzz.h"
#include "mem.h"

#define LINKS_MAX 8
#define FD_FIRST 3

static struct ramdisk *disk_of(void *arg)
{
	return arg;
}

/* ---- the tree ---- */

static const char *text_keep(struct ramdisk *d, const char *s)
{
	size_t n = strlen(s) + 1;
	char *to = d->text + d->text_n;

	if (n > RAM_TEXT - d->text_n) {
		d->full = true;
		return NULL;
	}
	d->text_n += n;
	return memcpy(to, s, n);
}

static struct ram_node *child(struct ram_node *dir, const char *name, size_t n)
{
	for (struct ram_node *p = dir->first; p; p = p->next)
		if (strncmp(p->name, name, n) == 0 && p->name[n] == '\0')
			return p;
	return NULL;
}

void ram_drop(struct ram_node *node)
{
	struct ram_node **at = &node->parent->first;

	while (*at && *at != node)
		at = &(*at)->next;
	if (*at)                /* else it went before */
		*at = node->next; /* its memory stays until the disk goes: it may be open */
}

struct ram_node *ram_put(struct ramdisk *d, struct ram_node *dir, const char *name, int type,
                         uint8_t *bytes, size_t n)
{
	struct ram_node *p = NULL, *old;

	dir = dir ? dir : d->nodes;
	name = d->nodes_n < RAM_NODES ? text_keep(d, name) : NULL;
	if (!name) {
		d->full = true;
		shf_free(bytes);
		return NULL;
	}
	old = child(dir, name, strlen(name));
	if (old)
		ram_drop(old);
	p = &d->nodes[d->nodes_n++];
	*p = (struct ram_node){ .parent = dir, .next = dir->first, .name = name, .type = type,
	                        .bytes = bytes, .have = n, .size = n };
	dir->first = p;
	return p;
}

void ram_file(struct ramdisk *d, struct ram_node *dir, const char *name, const void *bytes,
              size_t n)
{
	struct shf_buf file = SHF_BUF_INIT;

	shf_buf_add(&file, bytes, n);
	MUST(!file.oom);
	ram_put(d, dir, name, SHF_T_FILE, file.data, file.len);
}

struct ram_node *ram_link(struct ramdisk *d, struct ram_node *dir, const char *name,
                          const char *target)
{
	const char *kept = text_keep(d, target);
	struct ram_node *p = kept ? ram_put(d, dir, name, SHF_T_LINK, NULL, 0) : NULL;

	if (p)
		p->target = kept;
	return p;
}

void ram_name(struct ramdisk *d, struct ram_node *node, const char *name)
{
	struct ram_node *old = child(node->parent, name, strlen(name));
	const char *kept = old ? NULL : text_keep(d, name);

	if (kept)
		node->name = kept;
}

/* Where a path leads, from `at`. links: how many may still be followed. */
static int walk(struct ramdisk *d, struct ram_node *at, const char *path, bool follow, int links,
                struct ram_node **out)
{
	if (*path == '/')
		at = d->nodes;
	for (size_t n; *path; path += n) {
		struct ram_node *next;
		bool last;

		n = strspn(path, "/");
		path += n;
		n = strcspn(path, "/");
		last = path[n] == '\0';
		if (n == 0 || (n == 1 && path[0] == '.'))
			continue;
		if (at->type != SHF_T_DIR)
			return -ENOTDIR;
		if (at->refuse)
			return -at->refuse;
		next = n == 2 && memcmp(path, "..", 2) == 0 ? at->parent : child(at, path, n);
		if (!next)
			return -ENOENT;
		if (next->type == SHF_T_LINK && (follow || !last)) {
			int rc = links ? walk(d, at, next->target, true, links - 1, &next) : -ELOOP;

			if (rc < 0)
				return rc;
		}
		at = next;
	}
	*out = at;
	return 0;
}

struct ram_node *ram_find(struct ramdisk *d, struct ram_node *dir, const char *path)
{
	struct ram_node *p;

	return walk(d, dir ? dir : d->nodes, path, false, LINKS_MAX, &p) < 0 ? NULL : p;
}

/* ---- files ---- */

static struct ram_node *fd_node(struct ramdisk *d, int fd)
{
	if (fd == SHF_CWD)
		return d->nodes;
	MUST(fd >= FD_FIRST && fd < RAM_FDS && d->fds[fd]);
	return d->fds[fd];
}

static int op_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	struct ramdisk *d = disk_of(arg);
	struct ram_node *p;
	int rc = walk(d, fd_node(d, dir), name, !(flags & SHF_O_NOFOLLOW), LINKS_MAX, &p);

	(void)mode;
	if (rc < 0)
		return flags & SHF_O_CREATE && rc == -ENOENT ? -EROFS : rc;
	if (p->type == SHF_T_LINK)
		return -ELOOP;
	if (flags & SHF_O_DIR && p->type != SHF_T_DIR)
		return -ENOTDIR;
	if (flags & (SHF_O_WRITE | SHF_O_TRUNC))
		return -EROFS;
	if (flags & SHF_O_DIRECT)
		return -EINVAL;
	if (p->refuse)
		return -p->refuse;
	for (int fd = FD_FIRST; fd < RAM_FDS; fd++)
		if (!d->fds[fd]) {
			d->fds[fd] = p;
			d->open_n++;
			return fd;
		}
	return -EMFILE;
}

static int op_close(void *arg, int fd)
{
	struct ramdisk *d = disk_of(arg);

	(void)fd_node(d, fd);
	d->fds[fd] = NULL;
	d->open_n--;
	return 0;
}

static int64_t op_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	struct ram_node *p = fd_node(disk_of(arg), fd);
	size_t take, have;

	if (p->type != SHF_T_FILE)
		return p->type == SHF_T_DIR ? -EISDIR : -ESPIPE;
	if (n > INT64_MAX || off > (uint64_t)INT64_MAX - n)
		return -EINVAL;
	if (p->broken)
		return -p->broken;
	if (p->reads && --p->reads == 0)
		p->size /= 2;
	if (off >= p->size || !n)
		return 0;
	take = p->size - off < n ? (size_t)(p->size - off) : n;
	have = off < p->have ? p->have - (size_t)off : 0;
	have = have < take ? have : take;
	if (have)
		memcpy(buf, p->bytes + off, have);
	memset((uint8_t *)buf + have, 0, take - have);
	return (int64_t)take;
}

static void stat_of(const struct ramdisk *d, const struct ram_node *p, struct shf_stat *st)
{
	*st = (struct shf_stat){ .type = p->type, .bytes = p->type == SHF_T_FILE ? p->size : 0,
	                         .ino = (uint64_t)(p - d->nodes) + 1, .dev = 1,
	                         .mtime_ns = INT64_C(1700000000000000000) };
}

static int op_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st)
{
	struct ramdisk *d = disk_of(arg);
	struct ram_node *p;
	int rc = walk(d, fd_node(d, dir), name, follow, LINKS_MAX, &p);

	if (rc == 0)
		stat_of(d, p, st);
	return rc;
}

static int op_fstat(void *arg, int fd, struct shf_stat *st)
{
	stat_of(disk_of(arg), fd_node(disk_of(arg), fd), st);
	return 0;
}

static int op_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg)
{
	struct ram_node *dir = fd_node(disk_of(arg), fd);
	int rc = dir->broken ? -dir->broken : 0;

	for (struct ram_node *p = dir->first; p && !rc; p = p->next)
		rc = item(item_arg, p->name);
	return rc;
}

static int op_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	struct ramdisk *d = disk_of(arg);
	struct ram_node *p;
	int rc = walk(d, fd_node(d, dir), name, false, LINKS_MAX, &p);
	size_t len;

	if (rc < 0 || p->type != SHF_T_LINK)
		return rc < 0 ? rc : -EINVAL;
	len = strlen(p->target);
	if (len >= n)
		return -ERANGE;
	memcpy(buf, p->target, len + 1);
	return (int)len;
}

static int op_lock(void *arg, int fd, bool exclusive)
{
	(void)fd_node(disk_of(arg), fd);
	return exclusive ? -EROFS : 0;
}

static int op_unlock(void *arg, int fd)
{
	(void)arg;
	(void)fd;
	return 0;
}

/* ---- what would write ---- */

static int op_mkdir(void *arg, int dir, const char *name, unsigned mode)
{
	(void)arg, (void)dir, (void)name, (void)mode;
	return -EROFS;
}

static int op_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                     bool noreplace)
{
	(void)arg, (void)from_dir, (void)from, (void)to_dir, (void)to, (void)noreplace;
	return -EROFS;
}

static int op_unlink(void *arg, int dir, const char *name, bool is_dir)
{
	(void)arg, (void)dir, (void)name, (void)is_dir;
	return -EROFS;
}

static int op_fsync(void *arg, int fd)
{
	(void)arg, (void)fd;
	return -EROFS;
}

static int op_resize(void *arg, int fd, uint64_t bytes)
{
	(void)arg, (void)fd, (void)bytes;
	return -EROFS;
}

static int64_t op_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off)
{
	(void)arg, (void)fd, (void)buf, (void)n, (void)off;
	return -EROFS;
}

static int op_free_bytes(void *arg, int fd, uint64_t *bytes)
{
	(void)arg, (void)fd;
	*bytes = 0;
	return 0;
}

static int op_fs_id(void *arg, int fd, uint64_t *id)
{
	(void)arg, (void)fd;
	*id = 1;
	return 0;
}

/* ---- time, chance, who we are ---- */

static int op_random(void *arg, void *buf, size_t n)
{
	struct ramdisk *d = disk_of(arg);

	for (size_t i = 0; i < n; i++)
		((uint8_t *)buf)[i] = (uint8_t)(++d->draws * UINT64_C(0x9E3779B97F4A7C15) >> 56);
	return 0;
}

static int64_t op_mono_ns(void *arg)
{
	return disk_of(arg)->clock += 1000;
}

static int64_t op_wall_s(void *arg)
{
	(void)arg;
	return 1700000000;
}

static void op_sleep_ms(void *arg, int ms)
{
	disk_of(arg)->clock += (int64_t)ms * 1000000;
}

static int op_owner(void *arg, struct shf_owner *self)
{
	(void)arg;
	*self = (struct shf_owner){ .host = "node", .boot = "boot", .pid = 1, .start = 1 };
	return 0;
}

static bool op_owner_is_dead(void *arg, const struct shf_owner *owner)
{
	(void)arg;
	return owner->pid != 1;
}

static uint64_t op_pid(void *arg)
{
	(void)arg;
	return 1;
}

/* ---- the queue: what was submitted happens when it is asked for, the newest first ---- */

struct shf_queue {
	struct ramdisk *disk;
	struct shf_io *pending;
};

static int op_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	(void)threads;
	*queue = shf_zalloc(1, sizeof(**queue));
	if (!*queue)
		return -ENOMEM;
	(*queue)->disk = disk_of(arg);
	return 0;
}

static void op_queue_free(void *arg, struct shf_queue *queue)
{
	(void)arg;
	MUST(!queue || !queue->pending);
	shf_free(queue);
}

static int op_submit(void *arg, struct shf_queue *queue, struct shf_io *io)
{
	(void)arg;
	io->next = queue->pending;
	queue->pending = io;
	return 0;
}

static int op_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms)
{
	struct shf_io *p = queue->pending;

	(void)timeout_ms;
	if (!p)
		return 0;
	queue->pending = p->next;
	p->result = p->op == SHF_IO_READ ? op_pread(arg, p->fd, p->buf, p->len, p->off) : -EROFS;
	p->done_ns = op_mono_ns(arg);
	*io = p;
	return 1;
}

static void op_queue_pin(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes)
{
	(void)arg, (void)queue, (void)i, (void)base, (void)bytes;
}

static void op_queue_stat(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat)
{
	(void)arg, (void)queue;
	*stat = (struct shf_queue_stat){ 0 };
}

static void op_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	(void)arg;
	(void)fd;
	(void)off;
	(void)n;
}

static int64_t op_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	(void)fd, (void)off;
	return disk_of(arg)->resident ? (int64_t)n : 0;
}

static bool op_touched(void *arg, const void *at)
{
	(void)at;
	return disk_of(arg)->resident;
}

static void op_touch(void *arg, const void *at, uint64_t n, bool write)
{
	(void)arg, (void)at, (void)n, (void)write;
}

/* ---- memory ---- */

static int op_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared)
{
	uint8_t *base;

	(void)arg, (void)shared;
	base = bytes > SIZE_MAX / 2 ? NULL : shf_zalloc(bytes + SHF_ALIGN + sizeof(void *), 1);
	if (!base)
		return -ENOMEM;
	shm->base = base + sizeof(void *) + SHF_ALIGN - 1;
	shm->base = (uint8_t *)shm->base - (uintptr_t)shm->base % SHF_ALIGN;
	memcpy((uint8_t *)shm->base - sizeof(void *), &base, sizeof(void *));
	shm->bytes = bytes;
	shm->fd = -1;
	return 0;
}

static void op_shm_free(void *arg, struct shf_shm *shm)
{
	void *base;

	(void)arg;
	if (!shm->base)
		return;
	memcpy(&base, (uint8_t *)shm->base - sizeof(void *), sizeof(void *));
	shf_free(base);
	*shm = (struct shf_shm){ .fd = -1 };
}

static int op_rooms(void *arg, struct shf_memory_limit rooms[SHF_MEMORY_LIMITS])
{
	(void)arg, (void)rooms;
	return 0;
}

/* One rank has nobody to share with. */
static int op_shm_offer(void *arg, uint8_t token[16], int *handle)
{
	(void)arg;
	memset(token, 0, 16);
	*handle = -1;
	return -ENOTSUP;
}

static int op_shm_connect(void *arg, const uint8_t token[16], int *handle)
{
	(void)arg, (void)token;
	*handle = -1;
	return -ECONNREFUSED;
}

static int op_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms)
{
	(void)arg, (void)offer, (void)shm, (void)n, (void)timeout_ms;
	return -ENOTSUP;
}

static int op_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms)
{
	(void)arg, (void)connection, (void)shm, (void)timeout_ms;
	return -ENOTSUP;
}

static void op_shm_drop(void *arg, int handle)
{
	(void)arg, (void)handle;
}

static int op_keep_open(void *arg, const char *socket, const char *run, const char *job,
                        int *keep, int *steps)
{
	(void)arg, (void)socket, (void)run, (void)job, (void)steps;
	*keep = -1;
	return -ENOENT;
}

static int op_cpus(void *arg)
{
	(void)arg;
	return 1;
}

static const struct shf_file_ops file_ops = {
	.open = op_open, .close = op_close, .pread = op_pread, .stat = op_stat, .fstat = op_fstat,
	.list = op_list, .readlink = op_readlink, .lock = op_lock, .unlock = op_unlock,
	.resident = op_resident, .forget = op_forget,
};
static const struct shf_disk_ops disk_ops = {
	.mkdir = op_mkdir, .rename = op_rename, .unlink = op_unlink, .fsync = op_fsync,
	.resize = op_resize, .pwrite = op_pwrite, .free_bytes = op_free_bytes, .fs_id = op_fs_id,
};
static const struct shf_queue_ops queue_ops = {
	.queue_new = op_queue_new, .queue_free = op_queue_free, .submit = op_submit,
	.complete = op_complete, .queue_pin = op_queue_pin, .queue_stat = op_queue_stat,
};
static const struct shf_host_ops host_ops = {
	.random = op_random, .mono_ns = op_mono_ns, .wall_s = op_wall_s, .sleep_ms = op_sleep_ms,
	.owner = op_owner, .owner_is_dead = op_owner_is_dead, .pid = op_pid,
};
static const struct shf_task_ops task_ops = { .cpus = op_cpus };
static const struct shf_shm_ops shm_ops = {
	.rooms = op_rooms, .touched = op_touched, .touch = op_touch, .shm_new = op_shm_new,
	.shm_free = op_shm_free, .shm_offer = op_shm_offer, .shm_connect = op_shm_connect,
	.shm_serve = op_shm_serve, .shm_take = op_shm_take, .shm_drop = op_shm_drop,
};
static const struct shf_keep_ops keep_ops = {
	.keep_open = op_keep_open, /* and so nobody calls the others */
};

void ramdisk_init(struct ramdisk *d)
{
	d->sys = (struct shf_sys){ { &file_ops, d }, { &disk_ops, d }, { &queue_ops, d },
		{ &host_ops, d }, { &task_ops, d }, { &shm_ops, d }, { &keep_ops, d } };
	d->nodes[0] = (struct ram_node){ .parent = d->nodes, .name = "", .type = SHF_T_DIR };
	d->nodes_n = 1;
	d->text_n = d->open_n = 0;
	memset(d->fds, 0, sizeof(d->fds));
	d->resident = d->full = false;
	d->clock = 0;
	d->draws = 0;
}

void ramdisk_release(struct ramdisk *d)
{
	for (size_t i = 1; i < d->nodes_n; i++)
		shf_free(d->nodes[i].bytes);
	d->nodes_n = 0;
}
