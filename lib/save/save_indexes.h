/* SPDX-License-Identifier: Apache-2.0 */
/* Data that is the same in every save of a plan, so rank 0 makes it in the first save and keeps it
 * with the plan: the index files, and the table sheaf.sums before the checksums are filled in. What
 * is larger than SHF_STOCK_MAX is not kept, but made anew in each save. */
#ifndef SHF_SAVE_INDEXES_H
#define SHF_SAVE_INDEXES_H
#include "mem.h"
#include "sums.h"

#define SHF_STOCK_MAX (UINT64_C(8) << 20)       /* the largest buffer that is kept, in bytes */
/* The index.json of one family. */
struct shf_index_stock {
	struct shf_buf text;            /* contents of the file; len 0: not made yet */
	uint64_t crc;                   /* of text */
};
struct shf_stock {              /* kept with a plan; zeroed: nothing is kept */
	struct shf_buf table;           /* sheaf.sums without checksums; len 0: not made yet */
	struct shf_sums_head head;      /* where the parts of table are */
	struct shf_index_stock *indexes;        /* owned; by family; NULL: none was made */
	size_t indexes_n;
};
/* Frees what is kept, and zeroes *stock. */
void shf_stock_release(struct shf_stock *stock);
#endif
