/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the segments that only this rank wants: keeps many reads in flight, and checks and copies
 * what has arrived. */
#ifndef SHF_LOAD_STREAM_H
#define SHF_LOAD_STREAM_H
#include "load.h"

/* Divides this rank's segments into those to read and those in memory, and allocates. room: bytes
 * that the buffers may have. *image_bytes: size of the image that they need, from its start.
 * ENOMEM. [local] */
struct shf_load_stream;
int shf_load_stream_new(struct shf_load_stream **flow, struct shf_load *load, uint64_t room,
                          uint64_t *image_bytes, struct sheaf_error *err);
/* Returns whether this rank will wait for a disk, be it in its own reads or in rounds. If not,
 * worker threads copy everything from memory and take its page faults, and a prefault thread does
 * not help. [local] */
bool shf_load_stream_waits(const struct shf_load_stream *flow);
/* Reads, checks and copies all segments that only this rank wants. rc: 0, or a failure of this rank
 * before the call. The result may differ between ranks: the next operation of the caller must agree
 * on it. ECORRUPT, EIO, ENOMEM. [collective] */
int shf_load_stream_run(struct shf_load_stream *flow, int rc, struct sheaf_error *err);
void shf_load_stream_free(struct shf_load_stream *flow); /* waits for reads in flight. NULL is
                                                          * allowed */
#endif
