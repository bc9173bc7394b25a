/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that this rank alone wants: reads many at a time, checks and copies what has come. */
#ifndef SHF_LOAD_STREAM_H
#define SHF_LOAD_STREAM_H
#include "load.h"

/* image_bytes: what it asks for of the image. [local] */
struct shf_flow;
int shf_flow_new(struct shf_flow **flow, struct shf_load *load, uint64_t room,
                   uint64_t *image_bytes, struct sheaf_error *err);
/* Will it wait for a disk? What is in memory, several threads take, and its faults. [local] */
bool shf_flow_waits(const struct shf_flow *flow);
/* rc: what came of this rank's work before it; so is what it returns. [collective] */
int shf_flow_run(struct shf_flow *flow, int rc, struct sheaf_error *err);
void shf_flow_free(struct shf_flow *flow);        /* waits for what is under way */
#endif
