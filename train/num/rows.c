/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <stddef.h>

int64_t tr_rows_in(const struct tr_rows *rows, const struct tr_pieces *pieces)
{
	int64_t sum = 0;

	for (int64_t s = 0; s < rows->seqs; s++) {
		int64_t n = rows->begin[s + 1] - rows->begin[s];

		sum += tr_cut(n, pieces->n, pieces->to) - tr_cut(n, pieces->n, pieces->from);
	}
	return sum;
}

/* Returns the number of the part that begins at a row, or of the end of the last one. */
static int64_t find_part(const struct tr_rows *rows, int64_t row)
{
	int64_t low = 0, high = rows->parts;

	while (low < high) {
		int64_t middle = low + (high - low) / 2;

		if (rows->part[middle] < row)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void tr_rows_slice(const struct tr_rows *all, int64_t from, int64_t to, int64_t *begin,
		   int64_t *part, struct tr_rows *rows)
{
	int64_t at = all->begin[from], first = all->part ? find_part(all, at) : 0;

	*rows = (struct tr_rows){ .n = all->begin[to] - at, .seqs = to - from, .begin = begin,
		.token = all->token + at, .target = all->target + at, .weight = all->weight + at,
		.position = all->position + at,
		.sample = all->sample ? all->sample + from : NULL };
	for (int64_t s = from; s <= to; s++)
		begin[s - from] = all->begin[s] - at;
	if (!all->part)
		return;
	rows->part = part;
	rows->parts = find_part(all, all->begin[to]) - first;
	for (int64_t p = 0; p <= rows->parts; p++)
		part[p] = all->part[first + p] - at;
}
