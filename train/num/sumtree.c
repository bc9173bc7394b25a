/* SPDX-License-Identifier: Apache-2.0 */
#include "sumtree.h"

int tr_tree_left(int n)
{
	int left = 1;

	while (left * 2 < n)
		left *= 2;
	return left;
}

/* Returns where the largest node ends that begins at leaf `from` and does not extend beyond `to`.
 * It is the first such node on the way from the root of the tree to leaf `from`. */
static int node_end(int n, int from, int to)
{
	int low = 0;

	while (from > low || low + n > to) {
		int left = tr_tree_left(n);

		if (from >= low + left) {
			low += left;
			n -= left;
		} else {
			n = left;
		}
	}
	return low + n;
}

int tr_tree_is_node(int n, int from, int to)
{
	return from >= 0 && from < to && to <= n && node_end(n, from, to) == to;
}

int tr_tree_nodes(int n, int from, int to, int *end)
{
	int count = 0;

	while (from < to)
		from = end[count++] = node_end(n, from, to);
	return count;
}

int64_t tr_cut(int64_t n, int64_t pieces, int64_t i)
{
	return n / pieces * i + n % pieces * i / pieces;
}
