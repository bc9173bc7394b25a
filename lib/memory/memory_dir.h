/* SPDX-License-Identifier: Apache-2.0 */
/* A step that lies in memory, as a directory: a machine where "memory:" is the directory of the
 * step and everything else is that of the machine below. What reads steps reads this one. */
#ifndef SHF_MEMORY_DIR_H
#define SHF_MEMORY_DIR_H
#include "image_card.h"
#include "manifest.h"
#include "match.h"
#include "sys.h"

#define SHF_VIEW_DIR "memory:"
struct shf_view;
struct shf_part_held {          /* an image and its card, mapped; the view's from shf_view_add on.
	                         * A card of nothing has no image */
	struct shf_shm card, image;
	uint64_t whole;                 /* what the card was when it was looked at */
	bool condemned;                 /* shf_view_condemn gave it up */
};
/* NULL: out of memory. */
struct shf_view *shf_view_new(const struct shf_sys *in);
/* Another card of the step, and its image. The memory is the view's also where it fails. */
int shf_view_add(struct shf_view *v, const struct shf_part_held *part, struct sheaf_error *err);
/* What is no tensor file: each node that a step was saved by has all of that, and who has may tell
 * it to a node that has no part of the step. */
bool shf_view_knows(const struct shf_view *v);
/* Encodes what shf_view_knows asks about, to be sent to another node. */
void shf_view_tell(const struct shf_view *v, struct shf_buf *out);
/* Takes it over. ECORRUPT, ENOMEM. [local] */
int shf_view_learn(struct shf_view *v, const struct shf_buf *told, struct sheaf_error *err);
/* All are added. ECORRUPT: they are not of one step. whole: EFORMAT, if not every byte of every
 * file lies in one of them. */
int shf_view_finish(struct shf_view *v, bool whole, struct sheaf_error *err);

/* What is here of the tensor files, ascending; as long as possible. A non-zero result of item ends
 * it and is returned. */
int shf_view_each(const struct shf_view *v,
                  int (*item)(void *arg, uint32_t file, uint64_t lo, uint64_t hi), void *arg);
/* Bytes of a tensor file that are here; and those that another node had. ECORRUPT, ENOMEM. */
int shf_view_give(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                  struct shf_buf *out);
/* Takes bytes that another node had: they are copied. ENOMEM. */
int shf_view_take(struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                  const uint8_t *bytes);
int shf_view_taken(struct shf_view *v); /* all of them */
/* What is in no memory is read from the directory `name` of dir, where the step is too. Until the
 * view is freed no prune takes that directory away. */
int shf_view_on_disk(struct shf_view *v, int dir, const char *name, struct sheaf_error *err);
/* Whether the same step was opened on disk, too. */
bool shf_view_has_disk(const struct shf_view *v);
/* Some of it may be copies that another node than its own has kept. */
void shf_view_has_guests(struct shf_view *v);
/* Whether some of it may be replicas (shf_view_has_guests). */
bool shf_view_is_peers(const struct shf_view *v);
/* Bytes that were read from disk so far. */
uint64_t shf_view_disk_bytes(const struct shf_view *v);
/* Who can read what (n of them, as deal.h has them, by file): NULL: everybody everything. */
int shf_view_set_hads(struct shf_view *v, const struct shf_had *a, const uint32_t *files,
                      size_t n);
/* Which node has what; NULL: everything is on this node. */
const struct shf_hads *shf_view_hads(const struct shf_view *v);
/* The system that shows the step as SHF_VIEW_DIR. It lives as long as the view. */
const struct shf_sys *shf_view_sys(const struct shf_view *v);
/* Where byte `off` of tensor file f lies, and as much of *n bytes as lies there together; NULL:
 * nowhere here. */
const uint8_t *shf_view_at(const struct shf_view *v, uint32_t f, uint64_t off, uint64_t *n);
/* The manifest of the step, valid after shf_view_finish. */
const struct shf_manifest *shf_view_manifest(const struct shf_view *v);
void shf_view_text(const struct shf_view *v, const uint8_t **bytes, size_t *n); /* sheaf.json */
/* It is loaded: once more in all cards. Or it is found damaged: nobody finds it again. */
void shf_view_count_try(struct shf_view *v, uint64_t tries);    /* so many, with this one */
void shf_view_is_written(struct shf_view *v);   /* it is on disk: nothing is due */
void shf_view_condemn(struct shf_view *v);
size_t shf_view_parts(const struct shf_view *v);        /* cards of it that are here */
bool shf_view_is_still(const struct shf_view *v);       /* none is another step's meanwhile */
/* EAGAIN if the memory of the step was taken for another step since it was opened: its trainer goes
 * on, and sums that differ are no damage. Else, and if v is NULL (a step on disk), 0. */
int shf_view_moved(const struct shf_view *v, const char *path, struct sheaf_error *err);
/* Unmaps the memory and closes the step on disk. NULL is fine. [local] */
void shf_view_free(struct shf_view *v);
#endif
