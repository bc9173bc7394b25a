/* SPDX-License-Identifier: Apache-2.0 */
/* Images: memory that the ranks of a node share, in which saves and loads stage their bytes. */
#ifndef SHF_IMAGE_H
#define SHF_IMAGE_H
#include "run.h"

/* Makes this rank's part of image number `image` at least `bytes` bytes large, and maps the parts
 * of the other ranks of the node. No save or load may be using the image but the caller's. rc: 0,
 * or a failure of this rank before the call, which is then returned on all ranks. [collective] */
int shf_image_need(struct sheaf_run *run, int rc, int image, uint64_t bytes,
                   struct sheaf_error *err);
/* The same in parts, for who has other agreements to make anyway. Memory for all of it, before the
 * ranks know whether the image of any of them must grow; *s: to be freed also if it fails. [local]
 */
struct shf_sharing;
int shf_sharing_new(struct shf_sharing **s, struct sheaf_run *run, int image, uint64_t bytes,
                    struct sheaf_error *err);
bool shf_sharing_grows(const struct shf_sharing *s);    /* this rank's. [local] */
/* If any grows, all meet, and make what is to grow. rc: what came of this rank's work before it. So
 * is what it returns, which ranks agree on before any of them takes. Where a rank fails all release
 * the image. [collective] */
int shf_sharing_meet(struct shf_sharing *s, int rc, struct sheaf_error *err);
/* Maps what the others of the node have made; only once. [local] */
int shf_sharing_take(struct shf_sharing *s, struct sheaf_error *err);
void shf_sharing_free(struct shf_sharing *s);
/* Frees all images of the run. [local] */
void shf_images_release(struct sheaf_run *run);
/* Frees this rank's part of the image, and its mappings of the other ranks' parts. Ranks that have
 * mapped this rank's part keep it until they free their mappings. [local] */
void shf_image_release(struct sheaf_run *run, int image);
/* Returns the size of this rank's parts of all images of saves. [local] */
uint64_t shf_images_bytes(const struct sheaf_run *run);
/* Returns the part of a rank in the image: this rank's memory, or a mapping of that of a rank of
 * the same node. NULL: the rank is on another node, and bytes must be sent to it. [local] */
uint8_t *shf_image_of(const struct sheaf_run *run, int image, uint32_t rank);
#endif
