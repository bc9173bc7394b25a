/* SPDX-License-Identifier: Apache-2.0 */
/* A view: a step in memory, shown as a directory. A view is a system layer (struct shf_sys) in
 * which the path "memory:" is the directory of the step; all other calls go to the real system
 * layer. So all code that reads a step from disk can read this one. */
#ifndef SHF_MEMORY_DIR_H
#define SHF_MEMORY_DIR_H
#include "image_card.h"
#include "manifest.h"
#include "match.h"
#include "sys.h"

#define SHF_VIEW_DIR "memory:"
struct shf_view;
struct shf_view_part {          /* a card and its image, mapped */
	struct shf_shm card, image;     /* image.base NULL: the rank wrote no tensor bytes */
	uint64_t whole;                 /* head.whole of the card when it was added */
	bool condemned;                 /* shf_view_clear_cards has cleared the card */
};
/* Makes an empty view over the system layer `in`. NULL: out of memory. */
struct shf_view *shf_view_new(const struct shf_sys *in);

/* Returns whether the same step was opened on disk, too. */
bool shf_view_has_disk(const struct shf_view *v);
/* Notes that some parts may be replicas. */
void shf_view_set_replicas(struct shf_view *v);
/* Returns whether some parts may be replicas (shf_view_set_replicas). */
bool shf_view_has_replicas(const struct shf_view *v);
/* Returns how many bytes were read from disk so far. */
uint64_t shf_view_disk_bytes(const struct shf_view *v);
/* Returns which node can read which blocks; NULL: this node has everything. */
const struct shf_block_access_map *shf_view_access(const struct shf_view *v);
/* Returns the system layer that shows the step as SHF_VIEW_DIR. It lives as long as the view. */
const struct shf_sys *shf_view_sys(const struct shf_view *v);
/* Returns the address of byte `off` of tensor file f, or NULL if it is not in this node's memory.
 * Reduces *n to the number of bytes that lie there contiguously. */
const uint8_t *shf_view_at(const struct shf_view *v, uint32_t f, uint64_t off, uint64_t *n);
/* Returns the manifest of the step, after shf_view_finish. */
const struct shf_manifest *shf_view_manifest(const struct shf_view *v);
/* Returns the bytes of sheaf.json. */
void shf_view_manifest_bytes(const struct shf_view *v, const uint8_t **bytes, size_t *n);
/* Writes into all cards of the view how often the step was loaded. tries: the new number, this load
 * included; a larger number in a card stays. */
void shf_view_count_try(struct shf_view *v, uint64_t tries);
/* Notes in all cards of the view that the step is on disk and need not be flushed. */
void shf_view_set_written(struct shf_view *v);
/* Clears all cards of the view, because the step is damaged: no search finds it again. */
void shf_view_clear_cards(struct shf_view *v);
/* Returns the number of cards of the step that the view has. */
size_t shf_view_parts(const struct shf_view *v);
/* Returns whether all cards of the view are as they were when they were added. If not, the job that
 * owns the memory has reused it for another step. */
bool shf_view_is_unchanged(const struct shf_view *v);
/* Returns EAGAIN if the memory was reused for another step since the view was made: the trainer is
 * running, and checksums that differ are no damage. Else, and if v is NULL (a step on disk), 0. */
int shf_view_check_unchanged(const struct shf_view *v, const char *path, struct sheaf_error *err);
/* Unmaps the memory and closes the step on disk. NULL is fine. [local] */
void shf_view_free(struct shf_view *v);
#endif
