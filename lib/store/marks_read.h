/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and removing marks. */
#ifndef SHF_MARKS_READ_H
#define SHF_MARKS_READ_H
#include "store.h"

/* Returns the mark: 'k' (keep), 'b' (bad), 0 (not marked), or '?' (cannot be read). If *why is not
 * 0 after '?', it is the negative errno of the attempt to read the mark; otherwise the text is no
 * mark. why may be NULL. */
char shf_mark_read(struct shf_store *s, int64_t step, int *why);
/* Like shf_mark_read, and sets session to that of the save that was marked; "": the session is
 * unknown. */
char shf_mark_of(struct shf_store *s, int64_t step, char session[33], int *why);
/* Calls `is` for each save of a step of at least that number that is marked bad, until it returns
 * true. Returns 1 if it did, 0 if not, or -errno if the marks, or one that was to be read, cannot
 * be read (-EBADMSG: its text is no mark). A mark that names no session is left out. */
int shf_marks_some_bad(struct shf_store *s, int64_t least,
                       bool (*is)(void *arg, int64_t step, const char *session), void *arg);
/* Removes the mark of a step, durably. Returns 0, also if the step has no mark, or -errno. */
int shf_mark_clear(struct shf_store *s, int64_t step);
/* Sets out to the name that a step's file has in .sheaf/marks. */
void shf_mark_name(char out[24], int64_t step);
/* Like shf_mark_read, for a save that was set aside. When it was, its mark was copied to
 * .sheaf/marks/<step>-<session>, because the mark of its number goes with the next save of that
 * number. The copy stays when the save is deleted: agents may still have the save in memory. */
char shf_mark_of_aside(struct shf_store *s, int64_t step, const char *session, int *why);
/* Sets out to the name of that copy. */
void shf_mark_aside_name(char out[64], int64_t step, const char *session);
#endif
