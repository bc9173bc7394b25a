/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange of the bytes of a round that go to other nodes. */
#ifndef SHF_SAVE_NET_H
#define SHF_SAVE_NET_H
#include "save.h"

/* Exchanges at most about bytes_max bytes of what is left (0: all). Returns EAGAIN if more is left;
 * else copies what has arrived into the image and writes the segments that waited for it.
 * [collective] */
int shf_save_net_finish(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
/* Ends the exchange and frees the streams, because everything was exchanged or the save has failed.
 * [local] */
void shf_save_net_drop(struct sheaf_save *save);

/* Computes the lengths of the streams of a round, and allocates them. ENOMEM. [local] */
int shf_save_net_prepare(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
