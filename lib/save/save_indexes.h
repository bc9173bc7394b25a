/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 writes down alike in every save of a plan, made by the first and kept, unless it is
 * much: the table of sums without the sums, and the indexes. */
#ifndef SHF_SAVE_INDEXES_H
#define SHF_SAVE_INDEXES_H
#include "mem.h"
#include "sums.h"

#define SHF_STOCK_MAX (UINT64_C(8) << 20)       /* bytes of one of them that is kept */
struct shf_index_stock {
	struct shf_buf text;            /* len 0: not made */
	uint64_t crc;
};
struct shf_stock {              /* zeros at first */
	struct shf_buf table;           /* len 0: not made */
	struct shf_sums_head head;      /* of table */
	struct shf_index_stock *indexes;        /* owned; by family; NULL: none is made */
	size_t indexes_n;
};
void shf_stock_release(struct shf_stock *stock);
#endif
