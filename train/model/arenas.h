/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a job on one rank: an arena for each kind. An object asks for its memory when it is
 * created, and passes the pointer to set. The arenas are allocated when all sizes are known. A plan
 * asks for the same memory, and never allocates it. */
#ifndef ARENAS_H
#define ARENAS_H
#include "backend.h"

enum tr_memory {
	TR_PARAMS,                      /* weights */
	TR_GRADS,                       /* of leaves, and of nodes of leaves that are added up */
	TR_OPTIMIZER,                   /* moments, fp32 masters of the weights, their average */
	TR_ACTIVATIONS,                 /* and their gradients */
	TR_BUFFERS,                     /* tables, sums over pieces, rows of the data, workspaces */
	TR_MEMORY_KINDS
};
const char *tr_memory_name(enum tr_memory kind);

struct tr_arena_part;
struct tr_arenas {
	struct tr_backend *be;          /* borrowed; a plan needs none */
	enum tr_type type;              /* of weights and activations */
	int64_t items[TR_MEMORY_KINDS];         /* floats that were asked for */
	float *memory[TR_MEMORY_KINDS];         /* owned, or lent; NULL before the allocation */
	unsigned char lent[TR_MEMORY_KINDS];
	struct tr_arena_part *part;     /* owned */
	int parts, room;
	int failed;                     /* 1: the list of parts is not complete */
};
/* Asks for zeroed floats, aligned to 64 bytes. tr_arenas_allocate sets *at, so that pointer must
 * not move before. The caller has zeroed *a and set a->be. */
void tr_arena_ask(struct tr_arenas *a, enum tr_memory kind, int64_t items, float **at);
/* Does the same for weights or activations, which are items of the type. */
void tr_arena_ask_items(struct tr_arenas *a, enum tr_memory kind, int64_t items, void **at);
/* Returns how many bytes an arena needs for so many floats. */
int64_t tr_arena_bytes(int64_t items);
/* Returns the size of an arena in bytes. */
int64_t tr_arenas_bytes(const struct tr_arenas *a, enum tr_memory kind);
/* Gives an arena its memory, which is zero, begins at a multiple of 64 bytes, and has
 * tr_arenas_bytes. It remains the caller's. Call it before tr_arenas_allocate. */
void tr_arena_lend(struct tr_arenas *a, enum tr_memory kind, void *memory);
/* Allocates the arenas, and sets the pointers. Nothing may be asked for afterwards. */
int tr_arenas_allocate(struct tr_arenas *a, struct tr_error *err);
void tr_arenas_release(struct tr_arenas *a);
#endif
