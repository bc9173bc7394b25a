/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of the parts of requests. Carriers cut pieces from parts in such a list (io_parts.h). */
#include "io_parts.h"

void shf_parts_push(struct shf_parts *l, struct shf_part *part)
{
	part->next = NULL;
	if (l->tail)
		l->tail->next = part;
	else
		l->head = part;
	l->tail = part;
}

struct shf_part *shf_parts_pop(struct shf_parts *l)
{
	struct shf_part *part = l->head;

	if (!part)
		return NULL;
	l->head = part->next;
	if (!l->head)
		l->tail = NULL;
	part->next = NULL;
	return part;
}

bool shf_parts_remove(struct shf_parts *l, struct shf_part *part)
{
	struct shf_part *before = NULL, *p = l->head;

	for (; p && p != part; p = p->next)
		before = p;
	if (!p)
		return false;
	if (before)
		before->next = part->next;
	else
		l->head = part->next;
	if (l->tail == part)
		l->tail = before;
	part->next = NULL;
	return true;
}

/* A part leaves the list when its last piece is cut (Q1). */
void shf_parts_cut(struct shf_parts *l, struct shf_part *part, size_t max, struct shf_piece *piece)
{
	uint64_t n = part->end - part->at < max ? part->end - part->at : max;

	*piece = (struct shf_piece){ .part = part, .direct = part->direct,
	                             .at = part->at, .len = (size_t)n };
	if (shf_io_moves(part->io->op))
		piece->buf = (uint8_t *)part->io->buf + (part->at - part->io->off);
	part->at += n;
	part->out++;
	if (part->at == part->end)
		(void)shf_parts_remove(l, part);
}
