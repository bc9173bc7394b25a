/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a view (memory_dir.h) with cards, images, and what other nodes have sent. */
#ifndef SHF_MEMORY_DIR_FILL_H
#define SHF_MEMORY_DIR_FILL_H
#include "memory_dir.h"

/* Adds a card of the step, and its image. The view owns the mappings from then on, also if this
 * fails. ECORRUPT, ENOMEM. [local] */
int shf_view_add(struct shf_view *v, const struct shf_view_part *part, struct sheaf_error *err);
/* Returns whether the view has the small files of the step (all but tensor files). Each node that
 * took part in the save has them, and can send them to a node that has no part of the step. */
bool shf_view_has_small_files(const struct shf_view *v);
/* Encodes the small files, to be sent to another node. */
void shf_view_pack_small_files(const struct shf_view *v, struct shf_buf *out);
/* Adds the small files that another node has sent (shf_view_pack_small_files). ECORRUPT, ENOMEM.
 * [local] */
int shf_view_unpack_small_files(struct shf_view *v, const struct shf_buf *told,
                                struct sheaf_error *err);
/* Call it when all cards are added. Reads the manifest and lists the files. ECORRUPT if the cards
 * are not of one step. EFORMAT if the manifest is not here or, with `whole`, if bytes of a tensor
 * file are in none of the images. [local] */
int shf_view_finish(struct shf_view *v, bool whole, struct sheaf_error *err);
/* Makes the view show a manifest that names this parent; step -1: none. Call it after
 * shf_view_finish, while no other thread uses the view. The cards do not change. A manifest that
 * this version cannot write again byte for byte, because a later version made it, stays as it is.
 * ENOMEM. [local] */
int shf_view_set_parent(struct shf_view *v, int64_t step, const char *session,
                        struct sheaf_error *err);
/* Calls item for each range of a tensor file that is in this node's memory, in ascending order;
 * adjacent ranges are joined. If item returns a non-zero value, this stops and returns it. */
int shf_view_each_range(const struct shf_view *v,
                        int (*item)(void *arg, uint32_t file, uint64_t lo, uint64_t hi), void *arg);
/* Appends bytes [lo, hi) of a tensor file to *out. ECORRUPT if they are not here; ENOMEM. */
int shf_view_get_bytes(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                       struct shf_buf *out);
/* Adds bytes [lo, hi) of a tensor file that another node has sent; they are copied. ENOMEM. */
int shf_view_add_bytes(struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                       const uint8_t *bytes);
/* Call it after the last shf_view_add_bytes. ECORRUPT if ranges overlap. */
int shf_view_finish_bytes(struct shf_view *v);
/* Opens the same step on disk, the directory `name` in dir; bytes that are in no memory are read
 * from there. A lease keeps a prune from deleting it until the view is freed. */
int shf_view_open_disk(struct shf_view *v, int dir, const char *name, struct sheaf_error *err);
/* Sets which node can read which blocks: n entries as in deal.h, sorted by file; files[i] is the
 * file of a[i]. Both are copied. ECORRUPT, ENOMEM. */
int shf_view_set_access(struct shf_view *v, const struct shf_block_access *a, const uint32_t *files,
                        size_t n);
#endif
