/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers that the files of this room share: names of things in a run, small files, deletion of
 * folders. Functions without err return >= 0 or a negative errno. Names are relative to a directory
 * descriptor, and no symlink is followed. */
#ifndef SHF_RUN_FILES_H
#define SHF_RUN_FILES_H
#include <errno.h>
#include "mem.h"
#include "step_folder.h"
#include "store.h"
#include "valid.h"

#define SHF_DAY_S 86400                 /* a silent writer of this age counts as dead */
#define SHF_GRACE_S 600                 /* how long a pruned step stays in the trash */
#define SHF_COPY_S (7 * SHF_DAY_S)      /* how long an incomplete copy is kept */

/* The names in a directory, collected before anything is changed there: changing a directory
 * while reading it may hide or repeat entries. */
struct shf_names {
	struct shf_buf text;            /* the names one after another, each with its NUL */
};
int shf_names_read(const struct shf_sys *sys, int dir, struct shf_names *names);
/* Returns the name after `name`, or the first name if `name` is NULL. NULL: there are no more
 * names. */
const char *shf_names_next(const struct shf_names *names, const char *name);
void shf_names_release(struct shf_names *names);

/* Splits a name such as "12-<32 hex>", as in stage, trash and aside, into step and session. Returns
 * false for any other name. */
bool shf_step_split(const char *name, int64_t *step, char session[33]);
/* Splits a name such as "copy-12-<32 hex>", of the stage of a copy. Returns false for any other
 * name. */
bool shf_copy_split(const char *name, int64_t *step, char session[33]);
bool shf_id_is_valid(const char *s, size_t n);         /* exactly n hex digits, a to f in lower
                                                        * case */
int shf_id_draw(const struct shf_sys *sys, char *out, size_t n);       /* writes n random hex digits
                                                                        * and a NUL to out */

/* Opens a directory. Returns its descriptor. */
int shf_dir_open(const struct shf_sys *sys, int dir, const char *name);
/* Makes the directory unless it exists, and opens it. */
int shf_dir_make(const struct shf_sys *sys, int dir, const char *name);
/* Syncs a directory. Returns 1 if the file system cannot do that. */
int shf_dir_fsync(const struct shf_sys *sys, int fd);
/* Does what shf_dir_fsync does. If the file system cannot sync directories, s->no_dir_fsync is set
 * and the result is 0. */
int shf_dir_sync(struct shf_store *s, int fd);
/* Closes *fd unless it is -1, and sets it to -1. */
void shf_fd_close(const struct shf_sys *sys, int *fd);

/* Appends a small regular file to out. -EFBIG: longer than max; -ELOOP, -EISDIR: not a file. */
int shf_text_read(const struct shf_sys *sys, int dir, const char *name, struct shf_buf *out,
                  size_t max);
/* Writes .sheaf/tmp-<32 hex>, fsyncs it and renames it, so that the file has its old or its new
 * content, never a mixture, even if two jobs write it at once. The caller syncs dir. If `first` is
 * set, an existing file is not replaced (-EEXIST). */
int shf_text_write(struct shf_store *s, int dir, const char *name, const void *bytes, size_t n,
                   bool first);
/* Like shf_text_write, but the temporary file is <from>/tmp-<32 hex>. from must be on the file
 * system of dir. */
int shf_text_put(const struct shf_sys *sys, int from, int dir, const char *name,
                 const void *bytes, size_t n, bool first);
/* Removes a file, a link, or a folder with its content, as far as possible. Returns the first
 * error, or 0, also if the name does not exist. */
int shf_tree_remove(const struct shf_sys *sys, int dir, const char *name);
/* A deletion of several things that must end after s->clear_ms (plus one unlink), because other
 * ranks wait meanwhile. At least one name is removed, so that repeated calls remove everything in
 * the end. */
struct shf_clear {
	struct shf_store *s;
	int64_t until;                  /* by mono_ns; 0: no limit */
	bool begun, late;               /* begun: a name was removed; late: the time ran out before
	                                 * all was removed */
};
void shf_clear_begin(struct shf_clear *c, struct shf_store *s);
/* Removes a name under dir with its content. Returns false if the time ran out. */
bool shf_clear_tree(struct shf_clear *c, int dir, const char *name);
/* Removes a stage whose writer is dead. If the time runs out, what is left is moved to the trash.
 * From there it can be deleted without a proof that the writer is dead, because the files that were
 * the proof may be deleted already. */
void shf_clear_stage(struct shf_clear *c, const char *name, int64_t step, const char *session);
/* Returns whether the folder `name` is the same directory as that of the step. On a file system
 * without a journal, a power cut during the rename may leave both names, and then nothing in the
 * directory may be deleted. */
bool shf_tree_is_step(struct shf_store *s, int dir, const char *name, int64_t step);
/* Returns whether `name` under dir is missing, or is a directory other than the one open as fd;
 * false if the disk gives an error. follow: the name may be a link to it. */
bool shf_dir_has_gone(const struct shf_sys *sys, int dir, const char *name, bool follow, int fd);

/* Like shf_fail_sys, for a file of ours that is missing or broken. The code is never ENOENT,
 * because that means that there is no such run or step, and a job may start afresh then. */
int shf_fail_io(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Reads a line of our own small texts. If the line at *p starts with head, copies the rest of it to
 * out and moves *p past it. Returns false if the line does not start with head, is too long, or has
 * no end. */
bool shf_line_get(const char **p, const char *end, const char *head, char *out, size_t max);
/* Does what shf_line_get does, for a line whose rest is a decimal number; sets *v to that
 * number. */
bool shf_line_number(const char **p, const char *end, const char *head, uint64_t *v);
/* Appends the last line of one of our small texts: "sum <CRC of all from start>". */
void shf_line_sum(struct shf_buf *text, size_t start);
/* Returns whether the line at p is a sum line that is right for the text from start to p. */
bool shf_line_sum_is_right(const char *start, const char *p, const char *end);

/* Returns whether the negative errno says only that this process lacks memory or descriptors, and
 * nothing about the directory. */
static inline bool shf_is_own_lack(int rc)
{
	return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}
#endif
