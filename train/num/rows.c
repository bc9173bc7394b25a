/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

int64_t tr_rows_in(const struct tr_rows *rows, const struct tr_pieces *pieces)
{
	int64_t sum = 0;

	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t n = rows->begin[s + 1] - rows->begin[s];

		sum += tr_cut(n, pieces->n, pieces->to) - tr_cut(n, pieces->n, pieces->from);
	}
	return sum;
}
