/* SPDX-License-Identifier: Apache-2.0 */
/* Images: memory that the ranks of a node share, in which saves and loads stage their bytes. */
#ifndef SHF_IMAGE_H
#define SHF_IMAGE_H
#include "run.h"

/* Gives image number `image` at least `bytes` bytes on this rank, and maps those of all ranks of
 * the node. The caller has the image. [collective] */
int shf_image_need(struct sheaf_run *run, int rc, int image, uint64_t bytes,
                   struct sheaf_error *err);
/* Frees all images of the run. [local] */
void shf_images_release(struct sheaf_run *run);
/* Frees this rank's memory of that image, and its mappings of the others'. Ranks that have this
 * rank's memory mapped keep it until they free theirs. [local] */
void shf_image_release(struct sheaf_run *run, int image);
/* Bytes of this rank's images of saves. [local] */
uint64_t shf_images_bytes(const struct sheaf_run *run);
/* A rank's share of the image: own, a node peer's, or NULL: bytes must travel. */
uint8_t *shf_image_of(const struct sheaf_run *run, int image, uint32_t rank);
#endif
