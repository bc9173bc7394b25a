/* SPDX-License-Identifier: Apache-2.0 */
/* The lists are made for a number of micro-batches that the stages divide. Those that do not exist
 * are left out of the list of each stage, which keeps the others in order. */
#include "pipeorder.h"

static int64_t rounded(const struct tr_pipe *p)
{
	return (p->micros + p->stages - 1) / p->stages * p->stages;
}

int64_t tr_work_count(const struct tr_pipe *p)
{
	return p->micros * p->chunks * (p->order == TR_ORDER_FORWARD ? 1 : 2);
}

/* Returns the forward or backward pass number k of a stage. The stages take as many micro-batches
 * as there are stages through one part, then through the next one. */
static struct tr_work pass(const struct tr_pipe *p, int64_t k, int backward)
{
	int64_t turn = k / ((int64_t)p->stages * p->chunks);
	int part = (int)(k / p->stages % p->chunks);

	return (struct tr_work){ .backward = backward, .part = backward ? p->chunks - 1 - part :
				 part, .micro = turn * p->stages + k % p->stages };
}

/* Returns how many forward passes come before the first backward pass, less the one that comes
 * directly before it. */
static int64_t passes_ahead(const struct tr_pipe *p, int64_t all)
{
	int64_t behind = p->stages - 1 - p->stage, ahead = behind;

	if (p->order == TR_ORDER_AFAB || p->order == TR_ORDER_FORWARD)
		return all;
	if (p->order == TR_ORDER_INTERLEAVED)
		ahead = 2 * behind + (int64_t)(p->chunks - 1) * p->stages;
	return ahead < all ? ahead : all;
}

static void append(const struct tr_pipe *p, struct tr_work **list, int64_t k, int backward)
{
	struct tr_work w = pass(p, k, backward);

	if (w.micro < p->micros)
		*(*list)++ = w;
}

void tr_work_list(const struct tr_pipe *p, struct tr_work *list)
{
	int64_t all = rounded(p) * p->chunks, ahead = passes_ahead(p, all);

	for (int64_t k = 0; k < ahead; k++)
		append(p, &list, k, 0);
	for (int64_t k = 0; k < all && p->order != TR_ORDER_FORWARD; k++) {
		if (k + ahead < all)
			append(p, &list, k + ahead, 0);
		append(p, &list, k, 1);
	}
}

int tr_work_slots(const struct tr_work *list, int64_t n, int part)
{
	int now = 0, most = 1;

	for (int64_t i = 0; i < n; i++) {
		if (list[i].part != part)
			continue;
		now += list[i].backward ? -1 : 1;
		most = now > most ? now : most;
	}
	return most;
}
