/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a tree are its description, which has each node before its children, and then the
 * items of its arrays in the same order, each from a multiple of TR_NEST_ALIGN on. */
#include "nested.h"

#include <stdlib.h>
#include <string.h>

struct head {                           /* what each rank sends to all others first */
	struct tr_error verdict;
	uint64_t nodes, described, bytes; /* of its tree; described: bytes before the arrays */
};
/* Writes to `at`, or counts only if that is NULL. */
struct writer {
	unsigned char *at;
	size_t described, bytes;        /* so far; bytes: of arrays */
	size_t arrays_at;
	uint64_t nodes;
};
struct reader {
	const unsigned char *at;
	size_t used, described;
	const unsigned char *arrays;
	size_t arrays_used, arrays_bytes;
	struct tr_nest *free_node;      /* the nodes up to end_node are not used yet */
	const struct tr_nest *end_node;
	const struct tr_nest_memory *memory;
	struct tr_error *err;
};

static size_t aligned(size_t n)
{
	return (n + TR_NEST_ALIGN - 1) / TR_NEST_ALIGN * TR_NEST_ALIGN;
}

static size_t item_bytes(enum tr_item_type type)
{
	return type < TR_ITEM_U16 ? 1 : type < TR_ITEM_U32 ? 2 : type < TR_ITEM_U64 ? 4 : 8;
}

size_t tr_array_bytes(const struct tr_array *a)
{
	size_t bytes = item_bytes(a->type);

	for (int d = 0; d < a->dims; d++)
		bytes *= (size_t)a->shape[d];
	return bytes;
}

/* ---- a tree becomes bytes ---- */

static void put(struct writer *w, const void *bytes, size_t n)
{
	if (w->at && n)
		memcpy(w->at + w->described, bytes, n);
	w->described += n;
}

static void put_integer(struct writer *w, int64_t x)
{
	put(w, &x, sizeof(x));
}

/* A text is followed by a zero, so that a receiver can point to it. NULL has no bytes. */
static void put_text(struct writer *w, const char *text)
{
	size_t n = text ? strlen(text) + 1 : 0;

	put_integer(w, (int64_t)n);
	put(w, text, n);
}

static void put_array(struct writer *w, const struct tr_array *a)
{
	size_t n = tr_array_bytes(a);

	put_integer(w, (int64_t)a->type);
	put_integer(w, a->dims);
	for (int d = 0; d < a->dims; d++)
		put_integer(w, a->shape[d]);
	if (w->at && n)
		memcpy(w->at + w->arrays_at + w->bytes, a->data, n);
	w->bytes += aligned(n);
}

static int can_put(const struct tr_nest *x)
{
	int good = x->kind <= TR_NEST_FIELDS;

	if (x->kind == TR_NEST_ARRAY)
		good = x->of.array.dims >= 0 && x->of.array.dims <= TR_NEST_DIMS_MAX;
	if (x->kind == TR_NEST_TEXT)
		good = x->of.text != NULL;
	return good;
}

/* Returns 0 if the tree is deeper than TR_NEST_DEPTH_MAX, or a node is not valid. */
static int put_tree(struct writer *w, const struct tr_nest *x, int depth)
{
	int good = depth < TR_NEST_DEPTH_MAX && can_put(x);

	if (!good)
		return 0;
	w->nodes++;
	put_integer(w, (int64_t)x->kind);
	put_text(w, x->name);
	switch (x->kind) {
	case TR_NEST_INTEGER:
		put_integer(w, x->of.integer);
		break;
	case TR_NEST_REAL:
		put(w, &x->of.real, sizeof(x->of.real));
		break;
	case TR_NEST_TEXT:
		put_text(w, x->of.text);
		break;
	case TR_NEST_ARRAY:
		put_array(w, &x->of.array);
		break;
	case TR_NEST_LIST:
	case TR_NEST_FIELDS:
		put_integer(w, x->of.in.n);
		for (int64_t i = 0; good && i < x->of.in.n; i++)
			good = put_tree(w, &x->of.in.child[i], depth + 1);
		break;
	default:
		break;
	}
	return good;
}

/* Makes the bytes of the tree of this rank, and sets their number in *h. The caller frees
 * *bytes. */
static int make_bytes(const struct tr_nest *root, struct head *h, unsigned char **bytes,
		      struct tr_error *err)
{
	struct writer w = { .at = NULL };

	if (!put_tree(&w, root, 0))
		return tr_fail(err, TR_EBUG, "a nested value is deeper than %d, or has a node "
			       "that is not valid; report this", TR_NEST_DEPTH_MAX);
	h->nodes = w.nodes;
	h->described = aligned(w.described);
	h->bytes = h->described + w.bytes;
	*bytes = calloc(1, (size_t)h->bytes);
	if (!*bytes)
		return tr_fail(err, TR_ENOMEM, "no memory for %zu bytes of a nested value",
			       (size_t)h->bytes);
	w = (struct writer){ .at = *bytes, .arrays_at = (size_t)h->described };
	put_tree(&w, root, 0);
	return 0;
}

/* ---- bytes become a tree ---- */

static int broken(struct reader *r)
{
	return tr_fail(r->err, TR_EBUG, "a nested value was received that is damaged; report this");
}

static int get(struct reader *r, void *to, size_t n)
{
	if (n > r->described - r->used)
		return broken(r);
	memcpy(to, r->at + r->used, n);
	r->used += n;
	return 0;
}

static int get_integer(struct reader *r, int64_t *x)
{
	return get(r, x, sizeof(*x));
}

static int get_text(struct reader *r, const char **text)
{
	int64_t n = 0;
	int rc = get_integer(r, &n);

	*text = NULL;
	if (rc < 0 || n == 0)
		return rc;
	if (n < 0 || (uint64_t)n > r->described - r->used || r->at[r->used + (size_t)n - 1])
		return broken(r);
	*text = (const char *)r->at + r->used;
	r->used += (size_t)n;
	return 0;
}

static int get_array(struct reader *r, const char *name, struct tr_array *a)
{
	int64_t type = 0, dims = 0;
	size_t bytes;
	int rc = get_integer(r, &type);

	if (rc == 0)
		rc = get_integer(r, &dims);
	if (rc < 0)
		return rc;
	if (type < 0 || type > TR_ITEM_F64 || dims < 0 || dims > TR_NEST_DIMS_MAX)
		return broken(r);
	*a = (struct tr_array){ .type = (enum tr_item_type)type, .dims = (int)dims };
	for (int d = 0; rc == 0 && d < a->dims; d++)
		rc = get_integer(r, &a->shape[d]);
	if (rc < 0)
		return rc;
	bytes = tr_array_bytes(a);
	if (bytes > r->arrays_bytes - r->arrays_used)
		return broken(r);
	a->data = bytes ? r->memory->alloc(r->memory->arg, name, a, bytes) : NULL;
	if (bytes && !a->data)
		return tr_fail(r->err, TR_ENOMEM, "no memory for %zu bytes of %s", bytes,
			       name ? name : "an array");
	if (bytes)
		memcpy(a->data, r->arrays + r->arrays_used, bytes);
	r->arrays_used += aligned(bytes);
	return 0;
}

static int get_tree(struct reader *r, struct tr_nest *x);

static int get_children(struct reader *r, struct tr_nest *x)
{
	int64_t n = 0;
	int rc = get_integer(r, &n);

	if (rc == 0 && (n < 0 || n > r->end_node - r->free_node))
		rc = broken(r);
	if (rc < 0)
		return rc;
	x->of.in.n = n;
	x->of.in.child = r->free_node;
	r->free_node += n;
	for (int64_t i = 0; rc == 0 && i < n; i++)
		rc = get_tree(r, &x->of.in.child[i]);
	return rc;
}

static int get_tree(struct reader *r, struct tr_nest *x)
{
	int64_t kind = 0;
	int rc = get_integer(r, &kind);

	if (rc == 0)
		rc = get_text(r, &x->name);
	if (rc < 0)
		return rc;
	x->kind = (enum tr_nest_kind)kind;
	switch (x->kind) {
	case TR_NEST_ABSENT:
		return 0;
	case TR_NEST_INTEGER:
		return get_integer(r, &x->of.integer);
	case TR_NEST_REAL:
		return get(r, &x->of.real, sizeof(x->of.real));
	case TR_NEST_TEXT:
		return get_text(r, &x->of.text);
	case TR_NEST_ARRAY:
		return get_array(r, x->name, &x->of.array);
	case TR_NEST_LIST:
	case TR_NEST_FIELDS:
		return get_children(r, x);
	default:
		return broken(r);
	}
}

/* ---- the broadcast ---- */

/* The nodes of a received tree follow its bytes. */
static void *tree_memory(const struct head *h)
{
	return calloc(1, aligned((size_t)h->bytes) + (size_t)h->nodes * sizeof(struct tr_nest));
}

static int read_tree(const struct head *h, void *memory, struct tr_nest_tree *tree,
		     const struct tr_nest_memory *m, struct tr_error *err)
{
	unsigned char *bytes = memory;
	/* calloc aligns the memory for any type, and so does a multiple of TR_NEST_ALIGN. */
	struct tr_nest *nodes = (void *)(bytes + aligned((size_t)h->bytes));
	struct reader r = { .at = bytes, .described = (size_t)h->described,
			    .arrays = bytes + h->described,
			    .arrays_bytes = (size_t)(h->bytes - h->described),
			    .free_node = nodes + 1, .end_node = nodes + h->nodes, .memory = m,
			    .err = err };

	*tree = (struct tr_nest_tree){ .root = nodes, .memory = memory };
	return get_tree(&r, nodes);
}

static int source_of(const int *source, int rank)
{
	return source ? source[rank] : 0;
}

/* Sends the bytes of this rank to the ranks whose source it is, or receives those of its source. */
static int exchange_bytes(const struct tr_ranks *g, const int *source, const struct head *all,
			  void *bytes, struct tr_piece *p, struct tr_error *err)
{
	int from = source_of(source, g->rank);

	memset(p, 0, 2 * (size_t)g->n * sizeof(*p));
	for (int r = 0; r < g->n; r++) {
		int sends = source_of(source, r) == g->rank && r != g->rank;

		if (sends)
			p[r] = (struct tr_piece){ bytes, (size_t)all[g->rank].bytes };
	}
	if (from != g->rank)
		p[g->n + from] = (struct tr_piece){ bytes, (size_t)all[from].bytes };
	return tr_exchange(g, p, p + g->n, err);
}

/* Tells all ranks how large the trees are. Returns the same code on all of them. */
static int exchange_heads(const struct tr_ranks *g, struct head *mine, struct head *all, int code,
			  const struct tr_error *why, struct tr_error *err)
{
	int rc;

	mine->verdict = (struct tr_error){ .rank = -1 };
	if (code)
		mine->verdict = *why;
	mine->verdict.code = code;
	if (mine->verdict.rank < 0)
		mine->verdict.rank = g->all_rank;
	rc = tr_allgather(g, mine, all, sizeof(*mine), err);
	for (int r = 0; rc == 0 && r < g->n; r++) {
		if (!all[r].verdict.code)
			continue;
		if (err)
			*err = all[r].verdict;
		return all[r].verdict.code;
	}
	return rc;
}

static int broadcast(const struct tr_ranks *g, const int *source, struct head *all,
		     unsigned char *bytes, struct tr_nest_tree *tree,
		     const struct tr_nest_memory *m, struct tr_error *err)
{
	int from = source_of(source, g->rank), sends = from == g->rank, rc;
	void *memory = sends ? bytes : tree_memory(&all[from]);
	struct tr_piece *p = calloc(2 * (size_t)g->n, sizeof(*p));

	if (!p || !memory) {
		/* The others are in the exchange already. */
		tr_fail(err, TR_ENOMEM, "no memory for %zu bytes of a nested value",
			(size_t)all[from].bytes);
		rc = tr_ranks_abandon(g, err);
	} else {
		rc = exchange_bytes(g, source, all, memory, p, err);
		if (rc == 0 && !sends)
			rc = read_tree(&all[from], memory, tree, m, err);
		rc = tr_agree(g, rc, err);
	}
	free(p);
	if (rc < 0 && !sends) {
		free(memory);
		*tree = (struct tr_nest_tree){ .root = NULL };
	}
	return rc;
}

int tr_nest_broadcast(const struct tr_ranks *g, const int *source, int code,
		      struct tr_nest_tree *tree, const struct tr_nest_memory *m,
		      struct tr_error *err)
{
	struct head mine = { .nodes = 0 }, *all;
	struct tr_error own = { .rank = -1 };
	unsigned char *bytes = NULL;
	int rc;

	if (code && err)
		own = *err;
	if (g->n == 1)
		return tr_agree(g, code, err);
	all = calloc((size_t)g->n, sizeof(*all));
	if (!all) {
		tr_fail(err, TR_ENOMEM, "no memory for what %d ranks have to say", g->n);
		return tr_ranks_abandon(g, err);
	}
	if (code == 0 && source_of(source, g->rank) == g->rank)
		code = make_bytes(tree->root, &mine, &bytes, &own);
	rc = code == TR_ELOST ? code : exchange_heads(g, &mine, all, code, &own, err);
	if (rc == 0)
		rc = broadcast(g, source, all, bytes, tree, m, err);
	free(all);
	free(bytes);
	return rc;
}

void tr_nest_release(struct tr_nest_tree *tree)
{
	free(tree->memory);
	*tree = (struct tr_nest_tree){ .root = NULL };
}
