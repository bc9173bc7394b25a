/* SPDX-License-Identifier: Apache-2.0 */
/* Images: memory that the ranks of a node share, in which saves and loads stage their bytes. */
#ifndef SHF_IMAGE_H
#define SHF_IMAGE_H
#include "run.h"

/* Makes this rank's part of image number `image` at least `bytes` bytes large, and maps the parts
 * of the other ranks of the node. No save or load but the caller's may be using the image. rc: 0,
 * or a failure of this rank before the call, which is then returned on all ranks. [collective] */
int shf_image_reserve(struct sheaf_run *run, int rc, int image, uint64_t bytes,
                      struct sheaf_error *err);
/* shf_image_sharing_new to shf_image_sharing_free do in parts what shf_image_reserve does, for a
 * caller that has other agreements to make anyway. shf_image_sharing_new allocates what the other
 * functions need, and opens the socket through which this rank will hand over its new memory,
 * before the ranks know whether any part must grow. *s is set also if it fails, for
 * shf_image_sharing_free. [local] */
struct shf_image_sharing;
int shf_image_sharing_new(struct shf_image_sharing **s, struct sheaf_run *run, int image,
                          uint64_t bytes, struct sheaf_error *err);
bool shf_image_sharing_grows(const struct shf_image_sharing *s); /* Returns whether this rank's part
                                                                  * must grow. [local] */
/* Allocates the parts that must grow. All ranks call it if any part must grow. rc: 0, or a failure
 * of this rank before the call, which is then returned on all ranks. The result may be a failure of
 * this rank alone; the ranks must agree on it before any calls shf_image_sharing_map. If that
 * agreement fails, each rank must release the image. [collective] */
int shf_image_sharing_allocate(struct shf_image_sharing *s, int rc, struct sheaf_error *err);
/* Maps the new memory of the other ranks of the node. Does nothing when it is called again after a
 * success. [local] */
int shf_image_sharing_map(struct shf_image_sharing *s, struct sheaf_error *err);
/* Closes the sockets and frees *s, not the image. NULL is fine. [local] */
void shf_image_sharing_free(struct shf_image_sharing *s);
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
