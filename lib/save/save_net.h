/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a round that go to other nodes. */
#ifndef SHF_SAVE_NET_H
#define SHF_SAVE_NET_H
#include "save.h"

/* Exchanges at most bytes_max of what must still travel (0: all). Returns EAGAIN if there is more;
 * else puts what has arrived into the image and writes the segments that waited for it.
 * [collective] */
int shf_net_finish(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
void shf_net_release(struct shf_net *net);
/* Frees the streams: all has travelled, or the save has failed. [local] */
void shf_net_drop(struct sheaf_save *save);

/* Makes the empty streams of a round. ENOMEM. [local] */
int shf_net_prepare(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
