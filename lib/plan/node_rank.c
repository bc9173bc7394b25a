/* SPDX-License-Identifier: Apache-2.0 */
#include "node_rank.h"

int64_t shf_node_rank(const int32_t *nodes, uint32_t ranks, int32_t node, uint64_t turn)
{
	uint64_t n = 0, pick;

	for (uint32_t r = 0; r < ranks; r++)
		n += nodes[r] == node;
	pick = n ? turn % n : 0;
	for (uint32_t r = 0; r < ranks; r++)
		if (nodes[r] == node && pick-- == 0)
			return r;
	return -1;
}
