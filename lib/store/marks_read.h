/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and removing marks. */
#ifndef SHF_MARKS_READ_H
#define SHF_MARKS_READ_H
#include "store.h"

/* Returns 'k', 'b', 0: none, or '?': unknown. why (unless NULL) becomes the errno that the disk
 * gave for '?', or 0. */
char shf_mark_read(struct shf_store *s, int64_t step, int *why);
/* Like shf_mark_read, and reads the session of the save that was marked; "": unknown. */
char shf_mark_of(struct shf_store *s, int64_t step, char session[33], int *why);
/* Removes the mark of a step, durably. 0, also if there is none, or -errno. */
int shf_mark_clear(struct shf_store *s, int64_t step);
/* Writes the name of a step's file in .sheaf/marks. */
void shf_mark_name(char out[24], int64_t step);
#endif
