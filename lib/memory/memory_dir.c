/* SPDX-License-Identifier: Apache-2.0 */
/* A step in memory, shown as a directory through the same functions as a real one. So opening,
 * loading, verifying and copying need not know where a step lies.
 *
 * Descriptors are VIEW + a number: 0 is the directory of the step, then come its folders, then its
 * files. A descriptor has no state, so nothing has to be opened or closed. A read is a copy from
 * mapped memory, made when it is submitted. Bytes that no node has in memory are read from the same
 * step on disk, also in the submit. Calls with any other descriptor go to the system layer
 * below. */
#include "memory_dir_in.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "match.h"
#include "name_in_step.h"

#define VIEW 0x20000000         /* above all real descriptors */

/* ---- names and descriptors: 0 is the step, then folders, then files ---- */

/* Returns whether the descriptor is one of a view. */
static bool is_view_fd(int fd)
{
	return fd >= VIEW;
}

/* Returns the file that a descriptor stands for, or NULL. */
static const struct shf_view_file *view_file_of(const struct shf_view *v, int fd)
{
	size_t i = (size_t)(fd - VIEW);

	return is_view_fd(fd) && i > v->folders_n && i - v->folders_n - 1 < v->files_n
	       ? &v->files[i - v->folders_n - 1] : NULL;
}

/* Returns the name of the folder that a descriptor stands for, "" for the directory of the step, or
 * NULL. */
static const char *folder_of(const struct shf_view *v, int fd)
{
	size_t i = (size_t)(fd - VIEW);

	if (!is_view_fd(fd) || i > v->folders_n)
		return NULL;
	return i == 0 ? "" : v->folders[i - 1];
}

/* Returns the part of a file's name after the folder, or NULL if the file is not directly in it. */
static const char *inside(const char *name, const char *folder)
{
	size_t n = strlen(folder);

	if (n && (strncmp(name, folder, n) || name[n] != '/'))
		return NULL;
	name += n ? n + 1 : 0;
	return strchr(name, '/') ? NULL : name;
}

/* Finds a file or folder by its name in a folder. Returns a descriptor, -ENOENT or -ENOTDIR. */
static int look_up(const struct shf_view *v, int dir, const char *name)
{
	const char *folder = folder_of(v, dir), *base;

	if (!folder)
		return -ENOTDIR;
	for (size_t i = 0; i < v->folders_n && !folder[0]; i++)
		if (strcmp(v->folders[i], name) == 0)
			return VIEW + 1 + (int)i;
	for (size_t i = 0; i < v->files_n; i++) {
		base = inside(v->files[i].name, folder);
		if (base && strcmp(base, name) == 0)
			return VIEW + 1 + (int)(v->folders_n + i);
	}
	return -ENOENT;
}

/* ---- the operations on files ---- */

static struct shf_view *view_of(void *arg)
{
	return arg;
}

/* Returns the system layer below the view. */
static const struct shf_sys *below(void *arg)
{
	return view_of(arg)->in;
}

/* Refuses writing, and direct I/O as some file systems do: the data is in memory anyway. */
static int view_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	const struct shf_sys *in = below(arg);
	int fd;

	if (dir == SHF_CWD && strcmp(name, SHF_VIEW_DIR) == 0)
		return VIEW;
	if (!is_view_fd(dir))
		return shf_sys_open(in, dir, name, flags, mode);
	if (flags & (SHF_O_WRITE | SHF_O_CREATE | SHF_O_TRUNC | SHF_O_APPEND))
		return -EROFS;
	fd = look_up(view_of(arg), dir, name);
	if (fd < 0)
		return fd;
	if (flags & SHF_O_DIRECT)
		return -EINVAL;
	return flags & SHF_O_DIR && view_file_of(view_of(arg), fd) ? -ENOTDIR : fd;
}

static int view_close(void *arg, int fd)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(fd) ? 0 : shf_sys_close(in, fd);
}

/* Fills *st for a descriptor of the view. Its number serves as the inode. */
static int tell_stat(const struct shf_view *v, int fd, struct shf_stat *st)
{
	const struct shf_view_file *f = view_file_of(v, fd);

	*st = (struct shf_stat){ .type = f ? SHF_T_FILE : SHF_T_DIR, .bytes = f ? f->bytes : 0,
		.ino = (uint64_t)(fd - VIEW) };
	return f || folder_of(v, fd) ? 0 : -EBADF;
}

static int view_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st)
{
	const struct shf_sys *in = below(arg);
	int fd;

	if (!is_view_fd(dir))
		return shf_sys_stat(in, dir, name, follow, st);
	fd = look_up(view_of(arg), dir, name);
	return fd < 0 ? fd : tell_stat(view_of(arg), fd, st);
}

static int view_fstat(void *arg, int fd, struct shf_stat *st)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(fd) ? tell_stat(view_of(arg), fd, st) : shf_sys_fstat(in, fd, st);
}

/* Lists folders first, then the files directly in this folder. */
static int view_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg)
{
	const struct shf_sys *in = below(arg);
	const struct shf_view *v = view_of(arg);
	const char *folder = folder_of(v, fd), *base;
	int rc = 0;

	if (!is_view_fd(fd))
		return shf_sys_list(in, fd, item, item_arg);
	if (!folder)
		return -ENOTDIR;
	for (size_t i = 0; i < v->folders_n && !folder[0] && rc == 0; i++)
		rc = item(item_arg, v->folders[i]);
	for (size_t i = 0; i < v->files_n && rc == 0; i++)
		if ((base = inside(v->files[i].name, folder)))
			rc = item(item_arg, base);
	return rc;
}

static int view_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(dir) ? -EINVAL : shf_sys_readlink(in, dir, name, buf, n);
}

/* Mapped memory cannot be deleted by another process, so a lock on the view is always granted. */
static int view_lock(void *arg, int fd, bool exclusive)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(fd) ? 0 : shf_sys_lock(in, fd, exclusive);
}

static int view_unlock(void *arg, int fd)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(fd) ? 0 : shf_sys_unlock(in, fd);
}

/* All bytes count as cached, so that a load copies them with its threads instead of a queue. */
static int64_t view_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	const struct shf_sys *in = below(arg);

	return is_view_fd(fd) ? (int64_t)n : shf_sys_resident(in, fd, off, n);
}

static void view_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	const struct shf_sys *in = below(arg);

	if (!is_view_fd(fd))
		shf_sys_forget(in, fd, off, n);
}

/* Returns the stretch that contains byte `off` of the file, or NULL. A binary search: the stretches
 * of a file are sorted and do not overlap. */
static const struct shf_view_range *stretch_at(const struct shf_view *v,
                                               const struct shf_view_file *f,
                                        uint64_t off)
{
	size_t lo = f->first, hi = f->end;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (v->stretches[mid].lo <= off)
			lo = mid;
		else
			hi = mid;
	}
	return lo < hi && v->stretches[lo].lo <= off && off < v->stretches[lo].hi
	       ? &v->stretches[lo] : NULL;
}

const uint8_t *shf_view_at(const struct shf_view *v, uint32_t f, uint64_t off, uint64_t *n)
{
	const struct shf_view_range *s = f < v->files_n ? stretch_at(v, &v->files[f], off) : NULL;

	if (!s)
		return NULL;
	*n = *n < s->hi - off ? *n : s->hi - off;
	return s->at + (off - s->lo);
}

/* Reads bytes of a tensor file from disk that no node has in memory: at most n, and only up to the
 * next stretch. Only one thread at a time may call this. Returns the number of bytes, or a negative
 * errno. */
static int64_t from_disk(struct shf_view *v, const struct shf_view_file *f, uint8_t *to, size_t n,
                         uint64_t off)
{
	const struct shf_sys *in = v->in;
	size_t file = (size_t)(f - v->files);
	int64_t got;

	if (v->disk < 0)
		return -EIO;
	for (size_t i = f->first; i < f->end; i++)
		if (v->stretches[i].lo > off) {
			uint64_t gap = v->stretches[i].lo - off;

			n = gap < n ? (size_t)gap : n;
			break;
		}
	if (v->disk_files[file] < 0)
		v->disk_files[file] = shf_in_step_open(in, v->disk, f->name, SHF_O_NOFOLLOW);
	/* ENOENT would mean that the step does not exist. */
	if (v->disk_files[file] < 0)
		return v->disk_files[file] == -ENOENT ? -EIO : v->disk_files[file];
	got = shf_sys_pread(in, v->disk_files[file], to, n, off);
	v->disk_bytes += got > 0 ? (uint64_t)got : 0;
	return got;
}

/* Reads from a file of the view: small files are in the card, tensor files in stretches with gaps
 * that are read from disk. */
static int64_t view_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	const struct shf_sys *in = below(arg);
	struct shf_view *v = view_of(arg);
	const struct shf_view_file *f = view_file_of(v, fd);
	uint8_t *to = buf;

	if (!is_view_fd(fd))
		return shf_sys_pread(in, fd, buf, n, off);
	if (!f)
		return -EISDIR;
	if (off >= f->bytes)
		return 0;
	n = n < f->bytes - off ? n : (size_t)(f->bytes - off);
	if (f->whole) {
		memcpy(to, f->whole + off, n);
		return (int64_t)n;
	}
	for (size_t done = 0, some; done < n; done += some) {
		const struct shf_view_range *s = stretch_at(v, f, off + done);

		if (!s) {
			int64_t got = from_disk(v, f, to + done, n - done, off + done);

			if (got <= 0)
				return got ? got : -EIO;
			some = (size_t)got;
			continue;
		}
		some = (size_t)(s->hi - (off + done));
		some = some < n - done ? some : n - done;
		memcpy(to + done, s->at + (off + done - s->lo), some);
	}
	return (int64_t)n;
}

/* ---- the queue ---- */

/* A queue of the view. It has a list of finished requests on the view, which were executed in the
 * submit, and the queue of the system layer below for all other requests. */
struct shf_queue {
	struct shf_queue *in;           /* owned; of the system layer below */
	pthread_mutex_t lock;
	struct shf_io *done;            /* guarded by lock; a stack of finished requests on the
	                                 * view */
};

static int view_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	const struct shf_sys *in = below(arg);
	struct shf_queue *q = shf_zalloc(1, sizeof(*q));
	int rc = q ? shf_sys_queue_new(in, &q->in, threads) : -ENOMEM;

	if (rc < 0) {
		shf_free(q);
		return rc;
	}
	pthread_mutex_init(&q->lock, NULL);
	*queue = q;
	return 0;
}

static void view_queue_free(void *arg, struct shf_queue *q)
{
	const struct shf_sys *in = below(arg);

	if (!q)
		return;
	shf_sys_queue_free(in, q->in);
	pthread_mutex_destroy(&q->lock);
	shf_free(q);
}

/* Executes a request on the view at once, and keeps it for view_complete(). */
static int view_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	const struct shf_sys *in = below(arg);

	if (!is_view_fd(io->fd))
		return shf_sys_submit(in, q->in, io);
	io->result = io->op == SHF_IO_READ ? view_pread(arg, io->fd, io->buf, io->len, io->off)
	                                   : -EROFS;
	pthread_mutex_lock(&q->lock);
	io->next = q->done;
	q->done = io;
	pthread_mutex_unlock(&q->lock);
	return 0;
}

/* Returns a finished request on the view, if any; otherwise waits for the queue of the system layer
 * below. */
static int view_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	const struct shf_sys *in = below(arg);

	pthread_mutex_lock(&q->lock);
	*io = q->done;
	if (*io) {
		q->done = (*io)->next;
		(*io)->next = NULL;
	}
	pthread_mutex_unlock(&q->lock);
	return *io ? 1 : shf_sys_complete(in, q->in, io, timeout_ms);
}

static void view_queue_pin(void *arg, struct shf_queue *q, int i, void *base, size_t bytes)
{
	const struct shf_sys *in = below(arg);

	shf_sys_queue_pin(in, q->in, i, base, bytes);
}

static void view_queue_stat(void *arg, struct shf_queue *q, struct shf_queue_stat *stat)
{
	const struct shf_sys *in = below(arg);

	shf_sys_queue_stat(in, q->in, stat);
}

static const struct shf_file_ops view_file = {
	.open = view_open,
	.close = view_close,
	.pread = view_pread,
	.stat = view_stat,
	.fstat = view_fstat,
	.list = view_list,
	.readlink = view_readlink,
	.lock = view_lock,
	.unlock = view_unlock,
	.resident = view_resident,
	.forget = view_forget,
};

static const struct shf_queue_ops view_queue = {
	.queue_new = view_queue_new,
	.queue_free = view_queue_free,
	.submit = view_submit,
	.complete = view_complete,
	.queue_pin = view_queue_pin,
	.queue_stat = view_queue_stat,
};

/* ---- making it ---- */

struct shf_view *shf_view_new(const struct shf_sys *in)
{
	struct shf_view *v = shf_zalloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->in = in;
	v->sys = *in;
	v->sys.file.ops = &view_file;
	v->sys.queue.ops = &view_queue;
	v->sys.file.arg = v->sys.queue.arg = v;
	v->disk = v->lease = -1;
	return v;
}

void shf_view_set_replicas(struct shf_view *v)
{
	v->guests = true;
}

bool shf_view_has_replicas(const struct shf_view *v)
{
	return v->guests;
}

bool shf_view_has_disk(const struct shf_view *v)
{
	return v->disk >= 0;
}

uint64_t shf_view_disk_bytes(const struct shf_view *v)
{
	return v->disk_bytes;
}

const struct shf_block_access_map *shf_view_access(const struct shf_view *v)
{
	return v->hads.first ? &v->hads : NULL;
}

const struct shf_sys *shf_view_sys(const struct shf_view *v)
{
	return &v->sys;
}

const struct shf_manifest *shf_view_manifest(const struct shf_view *v)
{
	return &v->manifest;
}

void shf_view_manifest_bytes(const struct shf_view *v, const uint8_t **bytes, size_t *n)
{
	*bytes = v->smalls[0].bytes;
	*n = (size_t)v->smalls[0].n;
}

void shf_view_count_try(struct shf_view *v, uint64_t tries)
{
	for (size_t i = 0; i < v->parts_n; i++) {
		_Atomic uint64_t *had = &shf_card_head(&v->parts[i].card)->tries;

		if (atomic_load(had) < tries)   /* two nodes with one agent count it once */
			atomic_store(had, tries);
	}
}

void shf_view_set_written(struct shf_view *v)
{
	for (size_t i = 0; i < v->parts_n; i++)
		atomic_store(&shf_card_head(&v->parts[i].card)->due, 0);
}

size_t shf_view_parts(const struct shf_view *v)
{
	return v->parts_n;
}

/* Returns whether the card is as it was when it was added. */
static bool is_still(const struct shf_view_part *p)
{
	return atomic_load(&shf_card_head(&p->card)->whole) == p->whole;
}

bool shf_view_is_unchanged(const struct shf_view *v)
{
	for (size_t i = 0; i < v->parts_n; i++)
		if (!is_still(&v->parts[i]))
			return false;
	return true;
}

int shf_view_check_unchanged(const struct shf_view *v, const char *path, struct sheaf_error *err)
{
	size_t i = 0;

	/* A card that this view has cleared itself (condemned) was not reused. */
	while (v && i < v->parts_n && (v->parts[i].condemned || is_still(&v->parts[i])))
		i++;
	if (!v || i == v->parts_n)
		return 0;
	return shf_fail(err, SHEAF_EAGAIN, "%s: this checkpoint in memory was overwritten by a "
	                "newer save while it was being read; open the latest again", path);
}

void shf_view_clear_cards(struct shf_view *v)
{
	for (size_t i = 0; i < v->parts_n; i++) {
		/* The exchange leaves a card alone that is another step's by now. */
		uint64_t was = v->parts[i].whole;

		/* 0: another rank of the node has cleared the card already. */
		v->parts[i].condemned |=
		    atomic_compare_exchange_strong(&shf_card_head(&v->parts[i].card)->whole, &was,
		                                   0) || was == 0;
	}
}

void shf_view_free(struct shf_view *v)
{
	const struct shf_sys *in;

	if (!v)
		return;
	in = v->in;
	for (size_t i = 0; v->disk_files && i < v->manifest.files_n; i++)
		if (v->disk_files[i] >= 0)
			shf_sys_close(in, v->disk_files[i]);
	/* A lock is shared with forked children. The parent releases it for them, and a child must
	 * not release the lock of the parent. */
	if (v->lease >= 0 && shf_sys_pid(in) == v->pid)
		(void)shf_sys_unlock(in, v->lease);
	if (v->lease >= 0)
		shf_sys_close(in, v->lease);
	if (v->disk >= 0)
		shf_sys_close(in, v->disk);
	for (size_t i = 0; i < v->parts_n; i++) {
		shf_sys_shm_free(in, &v->parts[i].card);
		if (v->parts[i].image.base)
			shf_sys_shm_free(in, &v->parts[i].image);
	}
	shf_free(v->parts);
	shf_free(v->stretches);
	shf_arena_release(&v->arena);
	shf_free(v);
}
