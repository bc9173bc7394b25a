/* SPDX-License-Identifier: Apache-2.0 */
/* Frees what rank 0 keeps with a plan from one save to the next. */
#include "save_indexes.h"

void shf_stock_release(struct shf_stock *stock)
{
	for (size_t i = 0; i < stock->indexes_n; i++)
		shf_buf_release(&stock->indexes[i].text);
	shf_free(stock->indexes);
	shf_buf_release(&stock->table);
	*stock = (struct shf_stock){ .table = SHF_BUF_INIT };
}
