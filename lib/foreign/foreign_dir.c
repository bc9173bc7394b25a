/* SPDX-License-Identifier: Apache-2.0 */
/* The directory has one file, "tensors", or more: one for each family, and one more where the
 * header would be longer than readers take. A header is made when the checkpoint is opened; the
 * payload is gathered when it is read (foreign_read.c), so nothing is ever copied as a whole.
 *
 * Descriptors are SHOWN + a number: 0 is the directory, then come its files. A descriptor has no
 * state. A read is made when it is submitted. Calls with any other descriptor go to the layer
 * below. */
#include "foreign_dir.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "decimal.h"
#include "dtype.h"
#include "err.h"
#include "foreign_read.h"
#include "json.h"
#include "sort.h"

#define SHOWN 0x28000000        /* above all real descriptors, and those of a memory view */
#define HEADER_MAX (UINT64_C(64) << 20) /* bytes after which a new file begins */

struct shf_foreign_view {       /* a file that is shown */
	const char *name, *family;
	struct shf_buf header;          /* owned */
	size_t first, n;                /* its tensors */
	uint64_t payload;               /* bytes */
};

/* ---- making it ---- */

static void put_entry(struct shf_buf *b, const struct shf_foreign_tensor *t)
{
	shf_buf_adds(b, b->len > 9 ? "," : "");
	shf_json_put(b, t->name, strlen(t->name));
	shf_buf_adds(b, ":{\"dtype\":\"");
	shf_buf_adds(b, shf_dtype(t->dtype)->name);
	shf_buf_adds(b, "\",\"shape\":[");
	for (int d = 0; d < t->ndim; d++) {
		shf_buf_adds(b, d ? "," : "");
		shf_decimal_add(b, (uint64_t)t->dims[d]);
	}
	shf_buf_adds(b, "],\"data_offsets\":[");
	shf_decimal_add(b, t->off);
	shf_buf_adds(b, ",");
	shf_decimal_add(b, t->off + t->bytes);
	shf_buf_adds(b, "]}");
}

/* Orders by family, "model" first, and leaves the tensors of a family in the order of their
 * pieces. */
static int by_family(const void *a, const void *b)
{
	const struct shf_foreign_tensor *x = a, *y = b;
	int c = !x->family || !y->family ? (x->family != NULL) - (y->family != NULL)
	                                 : strcmp(x->family, y->family);

	c = c ? c : (x->first > y->first) - (x->first < y->first);
	return c ? c : strcmp(x->name, y->name);
}

/* Whether two tensors that follow one another are of different families. */
static bool is_other_family(const struct shf_foreign_tensor *t)
{
	return t[0].family != t[1].family &&
	       (!t[0].family || !t[1].family || strcmp(t[0].family, t[1].family));
}

/* Fills a header with tensors of one family from number `first` on, until it is long enough. */
static int make_shown(struct shf_foreign *f, struct shf_foreign_view *v, size_t first,
                      struct sheaf_error *err)
{
	struct shf_foreign_tensor *t = (struct shf_foreign_tensor *)(void *)f->tensors.data;
	size_t n = f->tensors.len / sizeof(*t);

	v->first = first;
	v->family = first < n && t[first].family ? t[first].family : "model";
	shf_buf_extend(&v->header, 8);
	shf_buf_adds(&v->header, "{");
	for (; first + v->n < n && v->header.len < HEADER_MAX; v->n++) {
		if (v->n && is_other_family(&t[first + v->n - 1]))
			break;
		t[first + v->n].off = v->payload;
		if (!shf_add64(&v->payload, v->payload, t[first + v->n].bytes) ||
		    v->payload > INT64_MAX / 2)
			return shf_fail(err, SHEAF_EFORMAT, "%s: its tensors have more bytes than "
			                "63 bits can count", f->path);
		put_entry(&v->header, &t[first + v->n]);
	}
	shf_buf_adds(&v->header, "}");
	while (v->header.len % 8 && !v->header.oom)
		shf_buf_u8(&v->header, ' ');
	if (v->header.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
				f->path);
	shf_put64(v->header.data, v->header.len - 8);
	return 0;
}

/* ---- names and descriptors ---- */

static struct shf_foreign *foreign_of(void *arg)
{
	return arg;
}

static const struct shf_sys *real_of(void *arg)
{
	return foreign_of(arg)->in;
}

static bool is_shown_fd(int fd)
{
	return fd >= SHOWN;
}

/* Returns the file of a descriptor, or NULL. */
static const struct shf_foreign_view *shown_of(const struct shf_foreign *f, int fd)
{
	size_t i = (size_t)(fd - SHOWN);

	return is_shown_fd(fd) && i > 0 && i <= f->views_n ? &f->views[i - 1] : NULL;
}

/* Finds a file by its name in the directory dir. Returns a descriptor or a negative errno. */
static int find_shown(const struct shf_foreign *f, int dir, const char *name)
{
	if (dir != SHOWN)
		return -ENOTDIR;
	for (size_t i = 0; i < f->views_n; i++)
		if (strcmp(f->views[i].name, name) == 0)
			return SHOWN + 1 + (int)i;
	return -ENOENT;
}

/* ---- the operations on files ---- */

static int foreign_open(void *arg, int dir, const char *name, int flags, unsigned mode)
{
	int fd;

	if (dir == SHF_CWD && strcmp(name, SHF_FOREIGN_DIR) == 0)
		return SHOWN;
	if (!is_shown_fd(dir))
		return shf_sys_open(real_of(arg), dir, name, flags, mode);
	if (flags & (SHF_O_WRITE | SHF_O_CREATE | SHF_O_TRUNC | SHF_O_APPEND))
		return -EROFS;
	fd = find_shown(foreign_of(arg), dir, name);
	if (fd >= 0 && flags & SHF_O_DIRECT)
		return -EINVAL;
	return fd >= 0 && flags & SHF_O_DIR ? -ENOTDIR : fd;
}

static int foreign_close(void *arg, int fd)
{
	return is_shown_fd(fd) ? 0 : shf_sys_close(real_of(arg), fd);
}

static int stat_shown(const struct shf_foreign *f, int fd, struct shf_stat *st)
{
	const struct shf_foreign_view *v = shown_of(f, fd);

	*st = (struct shf_stat){ .type = v ? SHF_T_FILE : SHF_T_DIR,
		.bytes = v ? v->header.len + v->payload : 0, .ino = (uint64_t)(fd - SHOWN) };
	return v || fd == SHOWN ? 0 : -EBADF;
}

static int foreign_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st)
{
	int fd;

	if (!is_shown_fd(dir))
		return shf_sys_stat(real_of(arg), dir, name, follow, st);
	fd = find_shown(foreign_of(arg), dir, name);
	return fd < 0 ? fd : stat_shown(foreign_of(arg), fd, st);
}

static int foreign_fstat(void *arg, int fd, struct shf_stat *st)
{
	return is_shown_fd(fd) ? stat_shown(foreign_of(arg), fd, st)
	                       : shf_sys_fstat(real_of(arg), fd, st);
}

static int foreign_list(void *arg, int fd, int (*item)(void *arg, const char *name),
                        void *item_arg)
{
	const struct shf_foreign *f = foreign_of(arg);
	int rc = 0;

	if (!is_shown_fd(fd))
		return shf_sys_list(real_of(arg), fd, item, item_arg);
	for (size_t i = 0; i < f->views_n && rc == 0; i++)
		rc = item(item_arg, f->views[i].name);
	return rc;
}

static int foreign_readlink(void *arg, int dir, const char *name, char *buf, size_t n)
{
	return is_shown_fd(dir) ? -EINVAL : shf_sys_readlink(real_of(arg), dir, name, buf, n);
}

static int foreign_lock(void *arg, int fd, bool exclusive)
{
	return is_shown_fd(fd) ? 0 : shf_sys_lock(real_of(arg), fd, exclusive);
}

static int foreign_unlock(void *arg, int fd)
{
	return is_shown_fd(fd) ? 0 : shf_sys_unlock(real_of(arg), fd);
}

/* All bytes count as cached, so that a load reads them with several threads instead of a queue. */
static int64_t foreign_resident(void *arg, int fd, uint64_t off, uint64_t n)
{
	return is_shown_fd(fd) ? (int64_t)n : shf_sys_resident(real_of(arg), fd, off, n);
}

static void foreign_forget(void *arg, int fd, uint64_t off, uint64_t n)
{
	if (!is_shown_fd(fd))
		shf_sys_forget(real_of(arg), fd, off, n);
}

/* Returns the index in the whole list of the tensor that has byte `off` of a file's payload: the
 * last one that begins at or before it, never an empty one with a tensor after it. */
static size_t tensor_index(const struct shf_foreign *f, const struct shf_foreign_view *v,
                           uint64_t off)
{
	size_t n, lo = v->first, hi = v->first + v->n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (t[mid].off <= off)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Keeps the reason why a read failed, which replaces that of an earlier failure. Returns the errno
 * for it. */
static int keep_failure(struct shf_foreign *f, int rc, const struct sheaf_error *e)
{
	if (e->sys && rc == SHEAF_EIO)
		return -e->sys;
	pthread_mutex_lock(&f->lock);
	f->failed = *e;
	f->failed.code = rc;
	pthread_mutex_unlock(&f->lock);
	return rc == SHEAF_ENOMEM ? -ENOMEM : -EBADMSG;
}

static int64_t foreign_pread(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	struct shf_foreign *f = foreign_of(arg);
	const struct shf_foreign_view *v = shown_of(f, fd);
	const struct shf_foreign_tensor *t;
	struct sheaf_error e = { 0 };
	uint8_t *to = buf;
	uint64_t bytes, at;
	size_t done = 0, tensors_n;

	if (!is_shown_fd(fd))
		return shf_sys_pread(real_of(arg), fd, buf, n, off);
	if (!v)
		return -EISDIR;
	bytes = v->header.len + v->payload;
	if (off >= bytes)
		return 0;
	n = n < bytes - off ? n : (size_t)(bytes - off);
	if (off < v->header.len) {
		done = n < v->header.len - off ? n : (size_t)(v->header.len - off);
		memcpy(to, v->header.data + off, done);
	}
	t = shf_foreign_tensors(f, &tensors_n);
	for (size_t i = done < n ? tensor_index(f, v, off + done - v->header.len) : 0; done < n;
	     i++) {
		size_t some;
		int rc;

		at = off + done - v->header.len - t[i].off;
		some = n - done < t[i].bytes - at ? n - done : (size_t)(t[i].bytes - at);
		rc = some ? shf_foreign_gather(f, &t[i], to + done, some, at, &e) : 0;
		if (rc < 0)
			return keep_failure(f, rc, &e);
		done += some;
	}
	return (int64_t)n;
}

/* ---- the queue ---- */

/* Finished requests on files that are shown, and the queue below for all others. */
struct shf_queue {
	struct shf_queue *in;           /* owned; of the layer below */
	pthread_mutex_t lock;
	struct shf_io *done;            /* guarded by lock */
};

static int foreign_queue_new(void *arg, struct shf_queue **queue, int threads)
{
	struct shf_queue *q = shf_zalloc(1, sizeof(*q));
	int rc = q ? shf_sys_queue_new(real_of(arg), &q->in, threads) : -ENOMEM;

	if (rc < 0) {
		shf_free(q);
		return rc;
	}
	pthread_mutex_init(&q->lock, NULL);
	*queue = q;
	return 0;
}

static void foreign_queue_free(void *arg, struct shf_queue *q)
{
	if (!q)
		return;
	shf_sys_queue_free(real_of(arg), q->in);
	pthread_mutex_destroy(&q->lock);
	shf_free(q);
}

static int foreign_submit(void *arg, struct shf_queue *q, struct shf_io *io)
{
	if (!is_shown_fd(io->fd))
		return shf_sys_submit(real_of(arg), q->in, io);
	io->result = io->op == SHF_IO_READ ? foreign_pread(arg, io->fd, io->buf, io->len, io->off)
	                                   : -EROFS;
	pthread_mutex_lock(&q->lock);
	io->next = q->done;
	q->done = io;
	pthread_mutex_unlock(&q->lock);
	return 0;
}

static int foreign_complete(void *arg, struct shf_queue *q, struct shf_io **io, int timeout_ms)
{
	pthread_mutex_lock(&q->lock);
	*io = q->done;
	if (*io) {
		q->done = (*io)->next;
		(*io)->next = NULL;
	}
	pthread_mutex_unlock(&q->lock);
	return *io ? 1 : shf_sys_complete(real_of(arg), q->in, io, timeout_ms);
}

static void foreign_queue_pin(void *arg, struct shf_queue *q, int i, void *base, size_t bytes)
{
	shf_sys_queue_pin(real_of(arg), q->in, i, base, bytes);
}

static void foreign_queue_stat(void *arg, struct shf_queue *q, struct shf_queue_stat *stat)
{
	shf_sys_queue_stat(real_of(arg), q->in, stat);
}

static const struct shf_file_ops shown_file = {
	.open = foreign_open,
	.close = foreign_close,
	.pread = foreign_pread,
	.stat = foreign_stat,
	.fstat = foreign_fstat,
	.list = foreign_list,
	.readlink = foreign_readlink,
	.lock = foreign_lock,
	.unlock = foreign_unlock,
	.resident = foreign_resident,
	.forget = foreign_forget,
};

static const struct shf_queue_ops shown_queue = {
	.queue_new = foreign_queue_new,
	.queue_free = foreign_queue_free,
	.submit = foreign_submit,
	.complete = foreign_complete,
	.queue_pin = foreign_queue_pin,
	.queue_stat = foreign_queue_stat,
};

int shf_foreign_dir_make(struct shf_foreign *f, struct sheaf_error *err)
{
	size_t n = f->tensors.len / sizeof(struct shf_foreign_tensor), done = 0;
	/* An entry has at least 50 bytes, so a header takes many tensors, unless names are long. */
	size_t most = 2;

	if (n)
		shf_records_sort(f->tensors.data, n, sizeof(struct shf_foreign_tensor), by_family);
	for (size_t i = 0, bytes = 0; i < n; i++) {
		size_t of;
		const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &of);

		most += i && is_other_family(&t[i - 1]);
		bytes += 6 * strlen(t[i].name) + 22 * (size_t)t[i].ndim + 100;
		most += bytes > HEADER_MAX;
		bytes = bytes > HEADER_MAX ? 0 : bytes;
	}
	f->views = shf_arena_alloc(&f->arena, most, sizeof(*f->views));
	if (!f->views)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
				f->path);
	do {
		struct shf_foreign_view *v = &f->views[f->views_n++];
		char name[32];
		int rc;

		snprintf(name, sizeof(name), f->views_n > 1 ? "tensors-%zu" : "tensors",
		         f->views_n);
		v->name = shf_arena_strdup(&f->arena, name, strlen(name));
		rc = v->name ? make_shown(f, v, done, err)
		             : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                        f->path);
		if (rc < 0)
			return rc;
		done += v->n;
	} while (done < n && always(f->views_n < most));
	f->sys = *f->in;
	f->sys.file.ops = &shown_file;
	f->sys.queue.ops = &shown_queue;
	f->sys.file.arg = f->sys.queue.arg = f;
	return 0;
}

void shf_foreign_dir_release(struct shf_foreign *f)
{
	for (size_t i = 0; i < f->views_n; i++)
		shf_buf_release(&f->views[i].header);
}

const struct shf_sys *shf_foreign_sys(const struct shf_foreign *f)
{
	return &f->sys;
}

const char *shf_foreign_shown(const struct shf_foreign *f, size_t i)
{
	return i < f->views_n ? f->views[i].name : NULL;
}

const char *shf_foreign_shown_family(const struct shf_foreign *f, size_t i)
{
	return f->views[i].family;
}

void shf_foreign_where(struct shf_foreign *f, const char *file, uint64_t off, const char **name,
                       uint64_t *at)
{
	const struct shf_foreign_view *v = shown_of(f, find_shown(f, SHOWN, file));
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	const struct shf_foreign_tensor *t;
	size_t n;

	if (!v || !v->n || off < v->header.len)
		return;
	t = shf_foreign_tensors(f, &n) + tensor_index(f, v, off - v->header.len);
	*at = UINT64_MAX;
	if (!t->n)
		return;
	*name = shf_foreign_file(f, p[t->first].file)->shown;
	pthread_mutex_lock(&f->lock);
	p += t->first;
	if (t->n == 1 && !p->item_bytes && !p->text && !p->packed && !t->flip_every &&
	    shf_foreign_is_row_major(t, p->stride))
		*at = p->at;
	pthread_mutex_unlock(&f->lock);
}

uint64_t shf_foreign_digest(const struct shf_foreign *f)
{
	const struct shf_foreign_piece *p = (const void *)f->pieces.data;
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n);
	uint64_t sum = 0;

	for (size_t i = 0; i < f->views_n; i++) {
		const struct shf_foreign_view *v = &f->views[i];

		sum = shf_crc64_raw(sum, v->family, strlen(v->family) + 1);
		sum = shf_crc64_raw(sum, v->header.data, v->header.len);
	}
	for (uint32_t i = 0; f->dir >= 0 && i < shf_foreign_files(f); i++) {
		const char *name = shf_foreign_file(f, i)->name;

		sum = shf_crc64_raw(sum, name, strlen(name) + 1);
	}
	if (f->format && f->format->digest)
		sum = shf_crc64_raw(sum, &(uint64_t){ f->format->digest(f) }, sizeof(sum));
	for (size_t i = 0; i < n; i++) {
		size_t row = (size_t)t[i].ndim * sizeof(int64_t);
		uint64_t of[3] = { t[i].n, t[i].flip_every, t[i].flip_at };

		sum = shf_crc64_raw(sum, of, sizeof(of));
		for (size_t k = t[i].first; k < t[i].first + t[i].n; k++) {
			uint64_t x[4] = { p[k].file, p[k].at, p[k].item_bytes,
				p[k].text ? p[k].text->at : 0 };

			sum = shf_crc64_raw(sum, x, sizeof(x));
			if (p[k].packed) {
				x[0] = p[k].packed->at;
				x[1] = p[k].packed->bytes;
				x[2] = p[k].packed->decoded;
				x[3] = p[k].packed->codec;
				sum = shf_crc64_raw(sum, x, sizeof(x));
			}
			if (p[k].start)
				sum = shf_crc64_raw(sum, p[k].start, row);
			if (p[k].count)
				sum = shf_crc64_raw(sum, p[k].count, row);
			if (p[k].stride)
				sum = shf_crc64_raw(sum, p[k].stride, row);
		}
	}
	return sum;
}

int shf_foreign_failure(struct shf_foreign *f, struct sheaf_error *err)
{
	int rc;

	pthread_mutex_lock(&f->lock);
	rc = f->failed.code;
	if (rc)
		*err = f->failed;
	pthread_mutex_unlock(&f->lock);
	return rc;
}
