/* SPDX-License-Identifier: Apache-2.0 */
#include "sumtree.h"

int tr_tree_left(int n)
{
	int left = 1;

	while (left * 2 < n)
		left *= 2;
	return left;
}

int tr_tree_is_node(int n, int from, int to)
{
	int low = 0;

	while (from >= low && to <= low + n) {
		int left;

		if (from == low && to == low + n)
			return from < to;
		if (n < 2)
			return 0;
		left = tr_tree_left(n);
		if (from >= low + left) {
			low += left;
			n -= left;
		} else {
			n = left;
		}
	}
	return 0;
}

int tr_tree_nodes(int n, int from, int to, int *end)
{
	int count = 0;

	while (from < to) {
		int e = to;

		while (!tr_tree_is_node(n, from, e))
			e--;
		end[count++] = e;
		from = e;
	}
	return count;
}

int64_t tr_cut(int64_t n, int64_t pieces, int64_t i)
{
	return n / pieces * i + n % pieces * i / pieces;
}
