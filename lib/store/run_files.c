/* SPDX-License-Identifier: Apache-2.0 */
/* Names, small files and whole folders of a run. No function follows a symlink, and no directory is
 * changed while it is being read. */
#include "run_files.h"
#include "crc64.h"
#include "err.h"
#include "valid.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 8     /* levels of folders that a deletion descends; the library makes two */

/* Names are stored one after another with their NULs, since a folder of thousands of names would
 * otherwise cost an allocation each. */
static int names_append(void *arg, const char *name)
{
	struct shf_buf *text = arg;

	shf_buf_add(text, name, strlen(name) + 1);
	return text->oom ? -ENOMEM : 0;
}

int shf_names_read(const struct shf_sys *sys, int dir, struct shf_names *names)
{
	int rc;

	names->text = (struct shf_buf)SHF_BUF_INIT;
	rc = shf_sys_list(sys, dir, names_append, &names->text);
	if (rc < 0)
		shf_names_release(names);
	return rc < 0 ? rc : 0;
}

const char *shf_names_next(const struct shf_names *names, const char *name)
{
	const char *start = (const char *)names->text.data;

	if (names->text.len == 0)
		return NULL;
	name = name ? name + strlen(name) + 1 : start;
	return name < start + names->text.len ? name : NULL;
}

void shf_names_release(struct shf_names *names)
{
	shf_buf_release(&names->text);
}

bool shf_id_is_valid(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
			return false;
	return s[n] == '\0';
}

bool shf_step_split(const char *name, int64_t *step, char session[33])
{
	const char *dash = strchr(name, '-');

	if (!dash || !shf_id_is_valid(dash + 1, 32) || !shf_step_number_get(name, dash, step))
		return false;
	memcpy(session, dash + 1, 33);
	return true;
}

bool shf_copy_split(const char *name, int64_t *step, char session[33])
{
	return strncmp(name, "copy-", 5) == 0 && shf_step_split(name + 5, step, session);
}

/* Identities come from the kernel's random numbers, never from time or pid, because two jobs on
 * different hosts must not draw the same one. */
int shf_id_draw(const struct shf_sys *sys, char *out, size_t n)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t bytes[16];
	int rc;

	if (!always(n <= 2 * sizeof(bytes)))
		return -EINVAL;
	rc = shf_sys_random(sys, bytes, sizeof(bytes));
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++)
		out[i] = digits[(i & 1 ? bytes[i / 2] : bytes[i / 2] >> 4) & 15];
	out[n] = '\0';
	return 0;
}

int shf_fail_io(struct sheaf_error *err, int sys, const char *fmt, ...)
{
	va_list args;
	int rc;

	va_start(args, fmt);
	rc = shf_fail_sys_va(err, sys, fmt, args);
	va_end(args);
	if (rc != SHEAF_ENOENT)
		return rc;
	if (err)
		err->code = SHEAF_EIO;
	return SHEAF_EIO;
}

bool shf_line_get(const char **p, const char *end, const char *head, char *out, size_t max)
{
	size_t n = strlen(head), len;
	const char *lf;

	if ((size_t)(end - *p) < n || memcmp(*p, head, n) != 0)
		return false;
	lf = memchr(*p + n, '\n', (size_t)(end - *p) - n);
	if (!lf)
		return false;
	len = (size_t)(lf - *p) - n;
	/* A NUL in the line would hide the rest of it from callers. */
	if (len >= max || memchr(*p + n, '\0', len))
		return false;
	memcpy(out, *p + n, len);
	out[len] = '\0';
	*p = lf + 1;
	return true;
}

bool shf_line_number(const char **p, const char *end, const char *head, uint64_t *v)
{
	char text[24];
	uint64_t x = 0;

	if (!shf_line_get(p, end, head, text, sizeof(text)) || text[0] == '\0')
		return false;
	for (const char *c = text; *c; c++) {
		if (*c < '0' || *c > '9' || x > (UINT64_MAX - (uint64_t)(*c - '0')) / 10)
			return false;
		x = x * 10 + (uint64_t)(*c - '0');
	}
	*v = x;
	return true;
}

void shf_line_sum(struct shf_buf *text, size_t start)
{
	if (!text->oom)
		shf_buf_addf(text, "sum %016llx\n", (unsigned long long)
		             shf_crc64(text->data + start, text->len - start));
}

bool shf_line_sum_is_right(const char *start, const char *p, const char *end)
{
	char want[24], sum[24];

	snprintf(want, sizeof(want), "%016llx", (unsigned long long)
	         shf_crc64(start, (size_t)(p - start)));
	return shf_line_get(&p, end, "sum ", sum, sizeof(sum)) && strcmp(want, sum) == 0;
}

int shf_dir_open(const struct shf_sys *sys, int dir, const char *name)
{
	return shf_sys_open(sys, dir, name, SHF_O_DIR | SHF_O_NOFOLLOW, 0);
}

int shf_dir_make(const struct shf_sys *sys, int dir, const char *name)
{
	int rc = shf_sys_mkdir(sys, dir, name, 0777);

	if (rc < 0 && rc != -EEXIST)
		return rc;
	return shf_dir_open(sys, dir, name);
}

int shf_dir_fsync(const struct shf_sys *sys, int fd)
{
	int rc = shf_sys_fsync(sys, fd);

	return rc == -EINVAL || rc == -ENOTSUP ? 1 : rc < 0 ? rc : 0;
}

/* The flag is recorded in the manifest, so that a reader knows that the step's names were never
 * made durable by a sync. */
int shf_dir_sync(struct shf_store *s, int fd)
{
	int rc = shf_dir_fsync(s->sys, fd);

	s->no_dir_fsync |= rc == 1;
	return rc < 0 ? rc : 0;
}

void shf_fd_close(const struct shf_sys *sys, int *fd)
{
	if (*fd >= 0)
		shf_sys_close(sys, *fd);
	*fd = -1;
}

/* The size is read first and checked against max, so that no file, whatever its contents, makes us
 * allocate too much. A file that shrinks meanwhile is returned as far as it was read. */
int shf_text_read(const struct shf_sys *sys, int dir, const char *name, struct shf_buf *out,
                  size_t max)
{
	struct shf_stat st;
	uint8_t *to;
	int64_t got;
	int fd, rc;

	fd = shf_sys_open(sys, dir, name, SHF_O_NOFOLLOW, 0);
	if (fd < 0)
		return fd;
	rc = shf_sys_fstat(sys, fd, &st);
	if (rc < 0)
		goto out;
	rc = st.type == SHF_T_DIR ? -EISDIR : st.type != SHF_T_FILE ? -ELOOP : 0;
	if (rc == 0 && st.bytes > max)
		rc = -EFBIG;
	if (rc < 0 || st.bytes == 0)
		goto out;
	to = shf_buf_extend(out, (size_t)st.bytes);
	if (!to) {
		rc = -ENOMEM;
		goto out;
	}
	got = shf_sys_pread(sys, fd, to, (size_t)st.bytes, 0);
	if (got < 0) {
		rc = (int)got;
		out->len -= (size_t)st.bytes;
		goto out;
	}
	out->len -= (size_t)st.bytes - (size_t)got;     /* the file may have become shorter since
	                                                 * fstat */
out:
	shf_sys_close(sys, fd);
	return rc < 0 ? rc : 0;
}

/* The file gets its final name only after its bytes are durable, so no crash leaves half a text
 * under that name. The temporary name is random, so two jobs that write at once do not share it;
 * recovery removes one that a crash left. */
int shf_text_put(const struct shf_sys *sys, int from, int dir, const char *name,
                 const void *bytes, size_t n, bool first)
{
	char tmp[48] = "tmp-";
	int64_t put;
	int fd, rc, closed;

	rc = shf_id_draw(sys, tmp + 4, 32);
	if (rc < 0)
		return rc;
	fd = shf_sys_open(sys, from, tmp,
			  SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	if (fd < 0)
		return fd;
	put = shf_sys_pwrite(sys, fd, bytes, n, 0);
	rc = put < 0 ? (int)put : shf_sys_fsync(sys, fd);
	closed = shf_sys_close(sys, fd);
	if (rc >= 0)
		rc = closed;
	if (rc >= 0)
		rc = shf_sys_rename(sys, from, tmp, dir, name, first);
	if (rc < 0)
		shf_sys_unlink(sys, from, tmp, false);
	return rc < 0 ? rc : 0;
}

int shf_text_write(struct shf_store *s, int dir, const char *name, const void *bytes, size_t n,
                   bool first)
{
	return shf_text_put(s->sys, s->dot, dir, name, bytes, n, first);
}

/* One deletion, with its time limit. */
struct removing {
	const struct shf_sys *sys;
	int64_t until;                  /* by mono_ns; 0: no limit */
	bool begun;                     /* a name was removed; before that the time limit does not
	                                 * apply */
};

/* Removes one name, or returns -EAGAIN if the time is up. The first name is removed in any case, so
 * that repeated calls with little time make progress. */
static int remove_name(struct removing *r, int dir, const char *name, bool is_dir)
{
	const struct shf_sys *sys = r->sys;

	if (r->until && r->begun && shf_sys_mono_ns(sys) >= r->until)
		return -EAGAIN;
	r->begun = true;
	return shf_sys_unlink(sys, dir, name, is_dir);
}

/* Removes a file, or a folder depth first. It goes on after an error, to free as much space as
 * possible, and returns the first error. Only the end of the time stops it (-EAGAIN). */
static int remove_at(struct removing *r, int dir, const char *name, int depth)
{
	const struct shf_sys *sys = r->sys;
	struct shf_names names;
	struct shf_stat st;
	int fd, rc, first = 0;

	rc = shf_sys_stat(sys, dir, name, false, &st);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	if (st.type != SHF_T_DIR)
		return remove_name(r, dir, name, false);
	if (depth == DEPTH_MAX)
		return -ELOOP;
	fd = shf_dir_open(sys, dir, name);
	if (fd < 0)
		return fd;
	rc = shf_names_read(sys, fd, &names);
	if (rc == 0) {
		for (const char *p = NULL; rc != -EAGAIN && (p = shf_names_next(&names, p)); ) {
			rc = remove_at(r, fd, p, depth + 1);
			if (rc < 0 && (first == 0 || rc == -EAGAIN))
				first = rc;
		}
		shf_names_release(&names);
	} else {
		first = rc;
	}
	shf_sys_close(sys, fd);
	if (first == -EAGAIN)
		return first;
	/* After errors below, the folder is not empty and this fails, too; the first error is
	 * returned. */
	rc = remove_name(r, dir, name, true);
	return first < 0 ? first : rc < 0 ? rc : 0;
}

int shf_tree_remove(const struct shf_sys *sys, int dir, const char *name)
{
	struct removing r = { .sys = sys };
	int rc = remove_at(&r, dir, name, 0);

	return rc < 0 ? rc : 0;
}

void shf_clear_begin(struct shf_clear *c, struct shf_store *s)
{
	*c = (struct shf_clear){ .s = s };
	if (s->clear_ms)
		c->until = shf_sys_mono_ns(s->sys) + shf_ms_ns(s->clear_ms);
}

/* c->begun is kept over all calls: only the very first name is removed even if the time is up. */
bool shf_clear_tree(struct shf_clear *c, int dir, const char *name)
{
	struct removing r = { .sys = c->s->sys, .until = c->until, .begun = c->begun };
	int rc = c->late ? -EAGAIN : remove_at(&r, dir, name, 0);

	c->begun = r.begun;
	c->late = rc == -EAGAIN;
	return !c->late;
}

/* If the time runs out, the rest is renamed into the trash, after its sheaf.json is removed: a
 * folder in the trash that has no sheaf.json may be deleted without any grace. */
void shf_clear_stage(struct shf_clear *c, const char *name, int64_t step, const char *session)
{
	const struct shf_sys *sys = c->s->sys;
	char to[64];
	int trash, dir;

	if (shf_clear_tree(c, c->s->stage, name))
		return;
	dir = shf_dir_open(sys, c->s->stage, name);
	trash = shf_dir_make(sys, c->s->dot, "trash");
	if (dir >= 0 && trash >= 0) {
		snprintf(to, sizeof(to), "%lld-%s", (long long)step, session);
		shf_sys_unlink(sys, dir, "sheaf.json", false);
		shf_sys_rename(sys, c->s->stage, name, trash, to, true);
	}
	shf_fd_close(sys, &dir);
	shf_fd_close(sys, &trash);
}

bool shf_tree_is_step(struct shf_store *s, int dir, const char *name, int64_t step)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat a, b;
	char t[SHF_STEP_NAME];

	shf_name_of_step(s, t, step);
	return shf_sys_stat(sys, s->dir, t, false, &a) >= 0 &&
	       shf_sys_stat(sys, dir, name, false, &b) >= 0 &&
	       a.ino == b.ino && a.dev == b.dev;
}

/* Compares the inode that has the name with the inode that is open as fd. */
bool shf_dir_has_gone(const struct shf_sys *sys, int dir, const char *name, bool follow, int fd)
{
	struct shf_stat a, b;
	int rc = shf_sys_stat(sys, dir, name, follow, &a);

	return rc == -ENOENT || (rc >= 0 && shf_sys_fstat(sys, fd, &b) >= 0 &&
				 (a.ino != b.ino || a.dev != b.dev));
}
