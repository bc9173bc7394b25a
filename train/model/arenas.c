/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of an arena follow each other, each with a gap after it, which AddressSanitizer guards. */
#include "arenas.h"

#include <inttypes.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define hide(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define show(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define hide(at, bytes) ((void)(at), (void)(bytes))
#define show(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { ALIGN = 16, GAP = 16 };          /* floats */
#define ITEMS_MAX ((int64_t)1 << 60)    /* more than any memory: counting stops there */

struct tr_arena_part {
	enum tr_memory kind;
	int64_t offset, items;
	float **floats;                 /* one of these is not NULL */
	void **at;
};

const char *tr_memory_name(enum tr_memory kind)
{
	static const char *const name[TR_MEMORY_KINDS] = { "params", "grads", "optimizer",
							   "activations", "buffers" };

	return name[kind];
}

static int64_t rounded(int64_t items)
{
	return (items + ALIGN - 1) / ALIGN * ALIGN + GAP;
}

int64_t tr_arena_bytes(int64_t items)
{
	return rounded(items) * (int64_t)sizeof(float);
}

int64_t tr_arenas_bytes(const struct tr_arenas *a, enum tr_memory kind)
{
	return a->items[kind] * (int64_t)sizeof(float);
}

/* Makes room for a part in the list. */
static int make_room(struct tr_arenas *a)
{
	int room = a->room ? 2 * a->room : 64;
	struct tr_arena_part *more;

	if (a->parts < a->room)
		return 1;
	more = realloc(a->part, (size_t)room * sizeof(*more));
	if (!more)
		return 0;
	a->part = more;
	a->room = room;
	return 1;
}

static void ask(struct tr_arenas *a, enum tr_memory kind, int64_t items, float **floats, void **at)
{
	a->failed |= !make_room(a);
	if (a->failed)
		return;
	a->part[a->parts++] = (struct tr_arena_part){ kind, a->items[kind], items, floats, at };
	a->items[kind] = items < ITEMS_MAX - 2 * GAP - a->items[kind] ?
		a->items[kind] + rounded(items) : ITEMS_MAX;
}

void tr_arena_ask(struct tr_arenas *a, enum tr_memory kind, int64_t items, float **at)
{
	ask(a, kind, items, at, NULL);
}

void tr_arena_ask_items(struct tr_arenas *a, enum tr_memory kind, int64_t items, void **at)
{
	ask(a, kind, a->type == TR_BF16 ? items / 2 + items % 2 : items, NULL, at);
}

/* Sets the pointer of a part. */
static void place(const struct tr_arenas *a, const struct tr_arena_part *p)
{
	float *at = a->memory[p->kind] + p->offset;

	if (p->at)
		*p->at = at;
	else
		*p->floats = at;
	hide(at + p->items, (size_t)(rounded(p->items) - p->items) * sizeof(float));
}

void tr_arena_lend(struct tr_arenas *a, enum tr_memory kind, void *memory)
{
	a->memory[kind] = memory;
	a->lent[kind] = 1;
}

int tr_arenas_allocate(struct tr_arenas *a, struct tr_error *err)
{
	if (a->failed)
		return tr_fail(err, TR_ENOMEM, "no memory to plan the memory of the training");
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++) {
		if (!a->lent[kind])
			a->memory[kind] = a->be->alloc(a->be, (size_t)a->items[kind]);
		if (!a->memory[kind])
			return tr_fail(err, TR_ENOMEM, "no memory for %" PRId64 " bytes of %s; use "
				       "more ranks, or see sheaf-train plan and the options that "
				       "need less memory", tr_arenas_bytes(a, (enum tr_memory)kind),
				       tr_memory_name((enum tr_memory)kind));
	}
	for (int i = 0; i < a->parts; i++)
		place(a, &a->part[i]);
	return 0;
}

void tr_arenas_release(struct tr_arenas *a)
{
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++) {
		if (!a->memory[kind])
			continue;
		show(a->memory[kind], (size_t)tr_arenas_bytes(a, (enum tr_memory)kind));
		if (!a->lent[kind])
			a->be->release(a->be, a->memory[kind]);
	}
	free(a->part);
	*a = (struct tr_arenas){ .be = a->be, .type = a->type };
}
