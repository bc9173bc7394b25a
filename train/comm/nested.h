/* SPDX-License-Identifier: Apache-2.0 */
/* The broadcast of nested values: trees of lists and of named fields, whose leaves are arrays,
 * numbers, texts or absent. A group may have several ranks that send, each to some of the others.
 * However many arrays a tree has, a rank takes part in three exchanges: what all have to say, the
 * tree as one piece of bytes, and whether all have received it. */
#ifndef NESTED_H
#define NESTED_H
#include "ranks.h"

enum tr_nest_kind {
	TR_NEST_ABSENT, TR_NEST_INTEGER, TR_NEST_REAL, TR_NEST_TEXT, TR_NEST_ARRAY, TR_NEST_LIST,
	TR_NEST_FIELDS
};
enum tr_item_type {
	TR_ITEM_BOOL, TR_ITEM_U8, TR_ITEM_I8, TR_ITEM_F8_E4M3, TR_ITEM_F8_E5M2, TR_ITEM_U16,
	TR_ITEM_I16, TR_ITEM_F16, TR_ITEM_BF16, TR_ITEM_U32, TR_ITEM_I32, TR_ITEM_F32, TR_ITEM_U64,
	TR_ITEM_I64, TR_ITEM_F64
};
enum { TR_NEST_DIMS_MAX = 8, TR_NEST_DEPTH_MAX = 200, TR_NEST_ALIGN = 64 };

struct tr_array {
	enum tr_item_type type;
	int dims;
	int64_t shape[TR_NEST_DIMS_MAX];
	void *data;                     /* row-major; may be NULL if there is no item */
};
struct tr_nest {
	enum tr_nest_kind kind;
	const char *name;               /* of a field; NULL: it is not one */
	union {
		int64_t integer;
		double real;
		const char *text;
		struct tr_array array;
		struct {
			int64_t n;
			struct tr_nest *child;  /* [n] */
		} in;                   /* of a list, or fields */
	} of;
};
/* A tree that was received. The texts and names point into its memory. */
struct tr_nest_tree {
	struct tr_nest *root;
	void *memory;                   /* owned */
};
/* Where a receiver wants the items of an array, such as on a device or in memory that it has. name
 * is that of the field, or NULL; alloc may choose by it. alloc returns NULL if there is no memory,
 * and is not called for an array without items. */
struct tr_nest_memory {
	void *(*alloc)(void *arg, const char *name, const struct tr_array *a, size_t bytes);
	void *arg;
};

/* Returns the bytes of an array. */
size_t tr_array_bytes(const struct tr_array *a);
/* A rank r whose source[r] is r sends its tree to all ranks whose source it is.
 * source  [g->n]; NULL: rank 0 sends to all
 * code    0, or why this rank cannot take part; *err is its message
 * tree    on a rank that sends, its tree. On the others it is overwritten with the tree of the
 *         source, whose arrays are in the memory of m. A tree that was received there before must
 *         have been released.
 * Returns the same code on all ranks, as tr_agree does. If it is not 0, nothing was received, but m
 * may have been asked for memory. [collective] */
int tr_nest_broadcast(const struct tr_ranks *g, const int *source, int code,
		      struct tr_nest_tree *tree, const struct tr_nest_memory *m,
		      struct tr_error *err);
/* Releases a tree that was received, except the memory of its arrays. */
void tr_nest_release(struct tr_nest_tree *tree);
#endif
