/* SPDX-License-Identifier: Apache-2.0 */
/* What of a round goes to other nodes. */
#ifndef SHF_SAVE_NET_H
#define SHF_SAVE_NET_H
#include "save.h"

/* The rest of what must travel, then the segments that waited for it. [collective] */
int shf_net_finish(struct sheaf_save *save, uint64_t bytes_max, struct sheaf_error *err);
void shf_net_release(struct shf_net *net);
/* Nothing of it travels any more: it has, or the save has failed. [local] */
void shf_net_drop(struct sheaf_save *save);

/* Streams of a round, empty. ENOMEM. [local] */
int shf_net_prepare(struct sheaf_save *save, uint32_t round, struct sheaf_error *err);
#endif
