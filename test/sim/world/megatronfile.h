/* SPDX-License-Identifier: Apache-2.0 */
/* Makes directories in Megatron-Core's format torch_dist, with values of hands.h. Shares no code
 * with lib/foreign. */
#ifndef MEGATRONFILE_H
#define MEGATRONFILE_H
#include "torchfile.h"

struct megatron_tensor {        /* has three dimensions */
	const char *key;                /* its name in the checkpoint */
	const char *family, *name;      /* the tensor whose values it has */
	int dtype;
	int64_t shape[3], parts[3];     /* parts: number of parts along each dimension */
	bool flat;                      /* each box is stored as flat ranges */
};
enum megatron_flaw {            /* errors in the flat tensors */
	MEGATRON_SOUND, MEGATRON_GAP, MEGATRON_OVERLAP, MEGATRON_OTHER_SHAPE, MEGATRON_TWO_BOXES,
	MEGATRON_SHORT_ITEM, MEGATRON_STRIDE
};
/* Puts .metadata, __0_0.distcp, common.pt, whose iteration is 7, and metadata.json. */
void megatron_dist(struct simdisk *disk, const char *dir, const struct megatron_tensor *t, int n,
                   enum megatron_flaw flaw);
/* Puts a torch.save file with this pickle. */
void megatron_put(struct simdisk *disk, const char *dir, const char *name,
                  const struct torch_bytes *archive);
#endif
