/* SPDX-License-Identifier: Apache-2.0 */
/* A step that lies in memory, as a directory: a machine where "memory:" is the directory of the
 * step and everything else is that of the machine below. What reads steps reads this one. */
#ifndef SHF_VIEW_H
#define SHF_VIEW_H
#include "card.h"
#include "manifest.h"
#include "over.h"

#define SHF_VIEW_DIR "memory:"
struct shf_view;
struct shf_part_held {          /* an image and its card, mapped; the view's from shf_view_add on */
	struct shf_shm card, image;
	uint64_t whole;                 /* what the card was when it was looked at */
};
/* NULL: out of memory. */
struct shf_view *shf_view_new(const struct shf_sys *in);
/* Another card of the step, and its image. The memory is the view's also where it fails. */
int shf_view_add(struct shf_view *v, const struct shf_part_held *part, struct sheaf_error *err);
/* All are added: does every byte of every file lie in one of them? ECORRUPT: no; EFORMAT: of this
 * step, but some are on other nodes. */
int shf_view_finish(struct shf_view *v, struct sheaf_error *err);
const struct shf_sys *shf_view_sys(const struct shf_view *v);
/* Where byte `off` of tensor file f lies, and as much of *n bytes as lies there together; NULL:
 * nowhere. */
const uint8_t *shf_view_at(const struct shf_view *v, uint32_t f, uint64_t off, uint64_t *n);
const struct shf_manifest *shf_view_manifest(const struct shf_view *v);
void shf_view_text(const struct shf_view *v, const uint8_t **bytes, size_t *n); /* sheaf.json */
/* It is loaded: once more in all cards. Or it is found damaged: nobody finds it again. */
void shf_view_count_try(struct shf_view *v);
void shf_view_is_written(struct shf_view *v);   /* it is on disk: nothing is due */
void shf_view_condemn(struct shf_view *v);
void shf_view_free(struct shf_view *v);
#endif
