/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: names of things in a run, small files, whole folders.
 * Functions without err return >= 0 or a negative errno. Everything goes by name under a
 * directory descriptor and follows no symlink. */
#ifndef SHF_TREE_H
#define SHF_TREE_H
#include <errno.h>
#include "store.h"

#define SHF_DAY_S 86400
#define SHF_GRACE_S 600
#define SHF_COPY_S (7 * SHF_DAY_S)      /* how long half a copy waits to be taken up */

/* The names in a directory, collected before anything is changed there. */
struct shf_names {
	struct shf_buf text;            /* NUL-ended, one after another */
};
int shf_names_read(const struct shf_sys *sys, int dir, struct shf_names *names);
const char *shf_names_next(const struct shf_names *names, const char *name); /* NULL: first, end */
void shf_names_release(struct shf_names *names);

/* Above every step there is a number, from which a search for the newest begins. */
#define SHF_STEP_MAX (INT64_MAX - 1)
/* "checkpoint-12" <-> 12; only the canonical spelling counts. */
bool shf_step_of_name(const char *name, int64_t *step);
void shf_name_of_step(char out[40], int64_t step);
/* "12-<32 hex>", as in stage, trash and aside. */
bool shf_step_split(const char *name, int64_t *step, char session[33]);
/* "copy-12-<32 hex>", a step being copied. */
bool shf_copy_split(const char *name, int64_t *step, char session[33]);
bool shf_id_is_valid(const char *s, size_t n);         /* n lower-case digits, then NUL */
int shf_id_draw(const struct shf_sys *sys, char *out, size_t n);       /* n digits and a NUL */

int shf_dir_open(const struct shf_sys *sys, int dir, const char *name);
int shf_dir_make(const struct shf_sys *sys, int dir, const char *name); /* may exist; opened */
/* fsync of a directory; a file system that has none is noted in s, once and for all. */
int shf_dir_sync(struct shf_store *s, int fd);
void shf_fd_close(const struct shf_sys *sys, int *fd);                  /* -1 is fine */
/* The same for a file that this process has locked. Its forked children lose the lock too. */
void shf_lock_close(const struct shf_sys *sys, int *fd);

/* A whole small regular file, appended to out. -EFBIG above max, -ELOOP and -EISDIR for what is
 * no file. */
int shf_text_read(const struct shf_sys *sys, int dir, const char *name, struct shf_buf *out,
                  size_t max);
/* Through .sheaf/tmp-<32 hex>, fsync and rename, so that it is old or new, and nobody else's even
 * where two jobs write; the caller syncs dir. first: never replacing (-EEXIST). */
int shf_text_write(struct shf_store *s, int dir, const char *name, const void *bytes, size_t n,
                   bool first);
/* The same through <from>/tmp-<32 hex>; from is on the file system of dir. */
int shf_text_put(const struct shf_sys *sys, int from, int dir, const char *name,
                 const void *bytes, size_t n, bool first);
/* A file, a link, or a folder with all in it, as far as possible; the first error. Gone is 0. */
int shf_tree_remove(const struct shf_sys *sys, int dir, const char *name);
/* Removes what dead jobs left and what was pruned, for s->clear_ms at most (and one unlink more),
 * because other ranks wait meanwhile. Each call removes at least one name, so that everything goes
 * in the end. */
struct shf_clear {
	struct shf_store *s;
	int64_t until;
	bool begun, late;               /* late: the time is up, and some is left */
};
void shf_clear_begin(struct shf_clear *c, struct shf_store *s);
bool shf_clear_tree(struct shf_clear *c, int dir, const char *name);    /* false: late */
/* Removes a stage whose writer is dead. If the time runs out the rest goes to the trash, where
 * nobody asks whether the writer is dead; the proof may be deleted already. */
void shf_clear_stage(struct shf_clear *c, const char *name, int64_t step, const char *session);
/* Is the folder `name` the directory of checkpoint-<step>? A rename cut in the middle may leave
 * both names on a file system that does not journal, and then neither may be emptied. */
bool shf_tree_is_step(struct shf_store *s, int dir, const char *name, int64_t step);
/* Has the directory that is open as fd lost its name under dir, to nobody or to another one? If the
 * disk does not say, it has not. follow: the name may be a link to it. */
bool shf_dir_has_gone(const struct shf_sys *sys, int dir, const char *name, bool follow, int fd);

/* shf_fail_sys where something of ours is in the way or gone: never ENOENT, which means that
 * there is no such run or step and that one may start afresh. */
int shf_fail_io(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Lines of our own small texts: the rest of a line that starts with head, moving *p behind it.
 * False when it is not there, too long, or no number. */
bool shf_line_get(const char **p, const char *end, const char *head, char *out, size_t max);
bool shf_line_number(const char **p, const char *end, const char *head, uint64_t *v);
/* The last line of such a text: "sum <CRC of all before it>". */
void shf_line_sum(struct shf_buf *text, size_t start);
bool shf_line_sum_is_right(const char *start, const char *p, const char *end);

/* Who wrote a lock or an alive file. */
void shf_owner_put(struct shf_buf *out, const struct shf_owner *owner, const char *session);
bool shf_owner_get(const uint8_t *bytes, size_t n, struct shf_owner *owner, char session[33]);
/* Takes the lock and the door. shf_lock_write or shf_lock_visit gives the door back. */
int shf_lock_take(struct shf_store *s, int wait_ms, struct sheaf_error *err);
/* What the lock file says now; *session "" when it names nobody. 0, also then, or -errno. */
int shf_lock_read(struct shf_store *s, struct shf_owner *owner, char session[33]);
int shf_lock_write(struct shf_store *s, struct sheaf_error *err);       /* s->prev before it */
/* Adds our text behind that of s->prev, to hold the lock without owning the run yet (D2). */
int shf_lock_visit(struct shf_store *s, struct sheaf_error *err);
/* Who holds the lock, by the last text of its file (D2); *session "" when that is torn or names
 * nobody. 0, also then, or -errno. */
int shf_lock_holder(struct shf_store *s, struct shf_owner *owner, char session[33]);
/* C7: the lock file still names our session, else ELOST. */
int shf_lock_check(struct shf_store *s, struct sheaf_error *err);
/* A lock that the file system does not have is no reason to stop: safety never rests on it. */
bool shf_lock_is_absent(int rc);

/* Whether who held the run's lock last, s->prev, is proven gone; asked by s->self, who has the lock
 * on fd, shared or not. */
bool shf_prev_is_gone(struct shf_store *s, int fd);
/* Whether alive-<node> files, or a bare stage, prove its writer dead: only if nobody holds the lock
 * and his process is proven dead, or he gave no sign for a day: other hosts and file systems
 * without locks make the living look dead. look: for those who change nothing. s->self is who asks,
 * s->prev and prev_gone tell of who held the run's lock last. */
bool shf_stage_is_dead(struct shf_store *s, int dir, const struct shf_names *names,
                       const char *session, bool look);
/* A copy that nobody took up. */
bool shf_copy_is_old(struct shf_store *s, int dir);
/* shf_store_own in two halves, between which the caller may look at what the last owner left. After
 * begin the lock and the door are held and s->prev is read. end writes the lock's text and makes
 * durable the names by which steps are reached. run: the id for a run that has none; NULL draws
 * one. */
int shf_own_begin(struct shf_store *s, const struct shf_sys *sys, const char *path, bool create,
                  int wait_ms, struct sheaf_error *err);
int shf_own_end(struct shf_store *s, const char *run, struct sheaf_error *err);
/* C0 without a stage: makes sure that T does not exist. Sets aside remains of T, or T if it is bad
 * or condemned, and removes the mark of its number. EEXIST. */
int shf_stage_room(struct shf_store *s, int64_t step, struct sheaf_error *err);

/* One committed, damaged or foreign directory `name` under dir, read into e (path and step are
 * the caller's); of a damaged one err says why. 0; 1: gone meanwhile; a code only when we
 * ourselves lack memory or descriptors. */
int shf_step_look(struct shf_store *s, int dir, const char *name, struct shf_entry *e,
                  struct sheaf_error *err);
/* shf_store_list, and of each step the note of that key, as far as it is a number (NULL: none). */
int shf_list_noted(struct shf_store *s, const char *note, struct shf_list *list,
                   struct sheaf_error *err);
/* best of the entries: the p->keep_best committed ones, not marked bad, with the smallest or
 * largest note; of equal ones the newer. ENOMEM. */
int shf_best_find(struct shf_list *list, const struct shf_prune *p, struct sheaf_error *err);
/* Gives steps whose parent is gone the ancestor that .sheaf/descent knows, where it does. text is
 * what it read, for write, which remembers what must be known when those that go have gone, and
 * leaves there what it wrote. A code when it is there and cannot be read. */
int shf_descent_read(struct shf_store *s, struct shf_list *list, struct shf_buf *text,
                     struct sheaf_error *err);
int shf_descent_write(struct shf_store *s, const struct shf_list *list,
                      struct shf_buf *before, struct sheaf_error *err);
/* 'k', 'b', 0: none, '?': nobody knows; then why (may be NULL) is what the disk said, or 0. */
char shf_mark_read(struct shf_store *s, int64_t step, int *why);
/* The same, and the session of the save that was marked; "": not known. */
char shf_mark_of(struct shf_store *s, int64_t step, char session[33], int *why);
int shf_mark_clear(struct shf_store *s, int64_t step);
/* The name of a step's mark in .sheaf/marks. */
void shf_mark_name(char out[24], int64_t step);
/* 0: none; -1: it cannot be read. */
int shf_tries_read(struct shf_store *s, int64_t step, const char *session);
int shf_tries_clear(struct shf_store *s, int64_t step);
/* Opens .sheaf/tries. A descriptor, or a negative errno. */
int shf_tries_open(struct shf_store *s);
/* Reads the count in a file of .sheaf/tries. A text that is no number counts as 0. A negative
 * errno: it cannot be read. */
int shf_tries_count(const struct shf_sys *sys, int dir, const char *name);
/* Removes a name. Returns 1 if it was there, 0 if not, or a negative errno. */
int shf_name_remove(struct shf_store *s, int dir, const char *name);
/* Is the step a checkpoint that is marked bad, or condemned by its tries? 1, 0, or a code if we
 * lack memory or descriptors. */
int shf_step_is_condemned(struct shf_store *s, int64_t step);
/* Moves the step to aside, durably, under its session, or a fresh one if that cannot be read. */
int shf_step_set_aside(struct shf_store *s, int64_t step, struct sheaf_error *err);
int shf_tries_clean(struct shf_store *s);       /* in recovery; -ENOMEM or 0 */
/* The numbers of all checkpoint-<n> in the run, descending. 0 or -errno. */
struct shf_steps {
	int64_t *all;                   /* owned */
	size_t n;
};
int shf_steps_read(struct shf_store *s, struct shf_steps *steps);
int shf_rewind_finish(struct shf_store *s, struct sheaf_error *err);
/* EINVAL while one that failed is not. */
int shf_rewind_is_over(const struct shf_store *s, struct sheaf_error *err);
/* Whether a folder of the trash may be deleted now. */
bool shf_grace_is_over(struct shf_store *s, int dir, int grace_s);
/* Deletes from the trash what is older than grace_s (< 0: all); both directories synced first. */
int shf_trash_empty(struct shf_store *s, int grace_s, struct shf_clear *c,
                    struct sheaf_error *err);
/* Moves checkpoint-<step> to <to>/<step>-<session>, or under a fresh name where that is taken.
 * The caller syncs. */
int shf_step_move(struct shf_store *s, int64_t step, int to, const char *session,
                  struct sheaf_error *err);
/* Does the negative errno say that this process lacks memory or descriptors, and nothing of the
 * directory? */
static inline bool shf_is_own_lack(int rc)
{
	return rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE;
}
#endif
