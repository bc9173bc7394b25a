/* SPDX-License-Identifier: Apache-2.0 */
#include "leafgrads.h"

#include <assert.h>
#include <stdlib.h>

#include "leafsum.h"
#include "sumtree.h"

struct node {                           /* leaves [from, to), added up */
	int from, to;
	float *grad;
};
struct tr_leafgrads {
	const struct tr_registry *reg;
	struct tr_backend *be;
	const struct tr_mesh *mesh;
	const struct tr_shares *shares;
	int leaves, from, to;
	/* In order of leaves: closed nodes, then leaves that are open. Each has a leaf at least, so
	 * there are never more buffers than leaves of this rank. */
	struct node *node;
	int closed, n;
	float **spare;                  /* buffers that no node has */
	int spare_n, buffers;
	int used;                       /* the most buffers that nodes have had at once */
	/* [2 * stages], and the gradient of the shared parameter in the other stage. */
	struct tr_piece *pieces;
	float *other;
	int64_t *cut;                   /* [dp + 1]: scratch of sum_area: the shares of ranks */
	int done;                       /* the sum was made: the next leaf begins a step */
};

static void ask_for_buffers(struct tr_leafgrads *g, struct tr_arenas *a)
{
	struct tr_span own;

	for (int i = 0; i < g->buffers; i++)
		tr_arena_ask(a, TR_GRADS, g->reg->gradients, &g->spare[i]);
	g->spare_n = g->buffers;
	if (g->reg->shared < 0)
		return;
	tr_shares_of(g->shares, &g->reg->param[g->reg->shared], &own);
	tr_arena_ask(a, TR_BUFFERS, own.to - own.from, &g->other);
}

int tr_leafgrads_new(struct tr_leafgrads **lg, const struct tr_registry *reg,
		     struct tr_arenas *a, const struct tr_mesh *mesh,
		     const struct tr_shares *shares, int leaves, int buffers,
		     struct tr_error *err)
{
	struct tr_leafgrads *g = calloc(1, sizeof(*g));

	if (!g)
		return tr_fail(err, TR_ENOMEM, "no memory for gradients");
	g->reg = reg;
	g->be = a->be;
	g->mesh = mesh;
	g->shares = shares;
	g->leaves = leaves;
	tr_leaves_of(&mesh->dp, leaves, &g->from, &g->to);
	g->node = calloc((size_t)(g->to - g->from), sizeof(*g->node));
	g->spare = calloc((size_t)(g->to - g->from), sizeof(*g->spare));
	g->pieces = calloc(2 * (size_t)mesh->pp.n, sizeof(*g->pieces));
	g->cut = calloc((size_t)mesh->dp.n + 1, sizeof(*g->cut));
	g->buffers = buffers ? buffers : g->to - g->from;
	if (!g->node || !g->spare || !g->pieces || !g->cut) {
		tr_leafgrads_free(g);
		return tr_fail(err, TR_ENOMEM, "no memory for gradients");
	}
	ask_for_buffers(g, a);
	*lg = g;
	return 0;
}

void tr_leafgrads_free(struct tr_leafgrads *lg)
{
	if (!lg)
		return;
	free(lg->pieces);
	free(lg->cut);
	free(lg->node);
	free(lg->spare);
	free(lg);
}

void tr_leafgrads_range(const struct tr_leafgrads *lg, int *from, int *to)
{
	*from = lg->from;
	*to = lg->to;
}

/* Adds the second of two nodes to the first one. */
typedef void merge_fn(struct tr_leafgrads *lg, const struct node *to, const struct node *from);

/* Returns the node of a leaf, which is opened if need be. */
static struct node *open_leaf(struct tr_leafgrads *lg, int leaf)
{
	for (int i = lg->closed; i < lg->n; i++)
		if (lg->node[i].from == leaf)
			return &lg->node[i];
	assert(lg->n < lg->to - lg->from);
	lg->node[lg->n++] = (struct node){ leaf, leaf + 1, NULL };
	lg->used = lg->n > lg->used ? lg->n : lg->used;
	return &lg->node[lg->n - 1];
}

static void take_back(struct tr_leafgrads *lg, float *grad)
{
	lg->spare[lg->spare_n++] = grad;
}

float *tr_leafgrads_of(struct tr_leafgrads *lg, int leaf)
{
	struct node *node;

	if (lg->done) {
		while (lg->n > 0)
			take_back(lg, lg->node[--lg->n].grad);
		lg->closed = 0;
		lg->done = 0;
	}
	node = open_leaf(lg, leaf);
	if (!node->grad && lg->spare_n) {
		node->grad = lg->spare[--lg->spare_n];
		lg->be->zero(lg->be, node->grad, lg->reg->gradients);
	}
	return node->grad;
}

int tr_leafgrads_used(const struct tr_leafgrads *lg)
{
	return lg->used;
}

/* Merges the last two closed nodes while they are the parts of a node. */
static void merge(struct tr_leafgrads *lg, merge_fn *add)
{
	while (lg->closed >= 2) {
		struct node *a = &lg->node[lg->closed - 2], *b = a + 1;

		if (!tr_tree_is_node(lg->leaves, a->from, b->to) ||
		    a->from + tr_tree_left(b->to - a->from) != a->to)
			return;
		add(lg, a, b);
		a->to = b->to;
		for (int i = lg->closed - 1; i + 1 < lg->n; i++)
			lg->node[i] = lg->node[i + 1];
		lg->closed--;
		lg->n--;
	}
}

static void close_leaves(struct tr_leafgrads *lg, int leaf, merge_fn *add)
{
	while (lg->closed < lg->n && lg->node[lg->closed].from <= leaf) {
		lg->closed++;
		merge(lg, add);
	}
}

static void add_grads(struct tr_leafgrads *lg, const struct node *to, const struct node *from)
{
	lg->be->add(lg->be, to->grad, from->grad, lg->reg->gradients);
	take_back(lg, from->grad);
}

void tr_leafgrads_close(struct tr_leafgrads *lg, int leaf)
{
	close_leaves(lg, leaf, add_grads);
}

static void add_nothing(struct tr_leafgrads *lg, const struct node *to, const struct node *from)
{
	(void)lg;
	(void)to;
	(void)from;
}

int tr_leafgrads_most(const struct tr_ranks *dp, int leaves, const struct tr_leafuse *use,
		      int64_t n)
{
	struct tr_leafgrads g = { .leaves = leaves };

	tr_leaves_of(dp, leaves, &g.from, &g.to);
	g.node = calloc((size_t)(g.to - g.from), sizeof(*g.node));
	if (!g.node)
		return -1;
	for (int64_t i = 0; i < n; i++) {
		for (int leaf = use[i].first; leaf <= use[i].last; leaf++)
			open_leaf(&g, leaf);
		close_leaves(&g, use[i].close, add_nothing);
	}
	free(g.node);
	return g.used;
}

/* Adds up pieces [low, low + n) of the gradients of the norms in place of the first of them, which
 * is returned. */
static float *sum_norms(struct tr_leafgrads *lg, float *grad, int low, int n)
{
	const struct tr_registry *reg = lg->reg;
	int64_t items = reg->weights - reg->norms;
	float *first = grad + reg->norms + (low - reg->tokens.from) * items;

	if (n > 1) {
		int left = tr_tree_left(n);

		sum_norms(lg, grad, low, left);
		lg->be->add(lg->be, first, sum_norms(lg, grad, low + left, n - left), items);
	}
	return first;
}

/* Adds up the gradients of the norms over the pieces of the tokens. With sequence parallelism the
 * ranks of tp have different pieces. */
static int reduce_norms(struct tr_leafgrads *lg, float *grad, struct tr_error *err)
{
	const struct tr_pieces *tokens = &lg->reg->tokens;
	int end[TR_TREE_NODES_MAX], low = tokens->from;
	int nodes = tr_tree_nodes(tokens->n, tokens->from, tokens->to, end);
	float *node[TR_TREE_NODES_MAX];

	for (int i = 0; i < nodes; low = end[i++])
		node[i] = sum_norms(lg, grad, low, end[i] - low);
	if (tokens->to - tokens->from == tokens->n)
		return 0;
	return tr_sum_leaves(&lg->mesh->tp, tokens->n, node, lg->reg->weights - lg->reg->norms,
			     lg->be->isa->row.add, err);
}

/* Returns whether this rank has a head that is tied to its embedding. */
static int is_tied(const struct tr_registry *reg)
{
	return reg->head >= 0 && reg->param[reg->head].tied_to >= 0;
}

/* Returns how far the gradient of a tied head is behind that of the embedding. */
static int64_t head_distance(const struct tr_registry *reg)
{
	return reg->param[reg->head].offset - reg->param[reg->embedding].offset;
}

/* Adds the gradient of the embedding and that of the head to each other. If the first and the last
 * stage of a pipeline have one each, they exchange them, and both get the sum. */
static int add_tied(struct tr_leafgrads *lg, float *grad, struct tr_error *err)
{
	const struct tr_registry *reg = lg->reg;
	const struct tr_ranks *pp = &lg->mesh->pp;
	int peer = pp->rank ? 0 : pp->n - 1, rc;
	struct tr_piece *out = lg->pieces, *in = out + pp->n;
	struct tr_span own = { 0, 0 };

	if (is_tied(reg)) {
		tr_shares_of(lg->shares, &reg->param[reg->embedding], &own);
		lg->be->add(lg->be, grad + own.from, grad + own.from + head_distance(reg),
			    own.to - own.from);
	}
	if (pp->n == 1)
		return 0;
	if (reg->shared >= 0) {
		size_t bytes;

		tr_shares_of(lg->shares, &reg->param[reg->shared], &own);
		bytes = (size_t)(own.to - own.from) * sizeof(*grad);
		out[peer] = (struct tr_piece){ grad + own.from, bytes };
		in[peer] = (struct tr_piece){ lg->other, bytes };
	}
	rc = tr_exchange(pp, out, in, err);
	if (rc == 0 && reg->shared >= 0)
		lg->be->add(lg->be, grad + own.from, lg->other, own.to - own.from);
	return rc;
}

/* Adds up the nodes over the leaves of all ranks, for those items of an area in [low, high) that
 * each rank has. The gradients are `distance` items behind the weights. */
static int sum_area(struct tr_leafgrads *lg, float *const *node, int area, int64_t low,
		    int64_t high, int64_t distance, struct tr_error *err)
{
	const int64_t *cut = lg->shares->cut[area];

	for (int r = 0; r <= lg->mesh->dp.n; r++)
		lg->cut[r] = (cut[r] < low ? low : cut[r] > high ? high : cut[r]) + distance;
	return tr_sum_leaves_share(&lg->mesh->dp, lg->leaves, node, lg->cut, lg->be->isa->row.add,
				   err);
}

/* Adds up the nodes over the leaves of all ranks: each rank gets the sums of its share of all
 * parameters but the norms. */
static int sum_shares(struct tr_leafgrads *lg, float *const *node, struct tr_error *err)
{
	const struct tr_registry *reg = lg->reg;
	int64_t both = lg->shares->cut[0][lg->mesh->dp.n];
	int rc = both ? sum_area(lg, node, 0, 0, both, 0, err) : 0;

	if (rc == 0)
		rc = sum_area(lg, node, 1, both, reg->norms, 0, err);
	if (rc == 0 && is_tied(reg)) {
		const struct tr_param *p = &reg->param[reg->embedding];

		rc = sum_area(lg, node, 1, p->offset, p->offset + p->items, head_distance(reg),
			      err);
	}
	return rc;
}

/* Adds up the nodes over the leaves of all ranks. With shares each rank gets the sums of its own
 * items, and those of all norms, which are few. */
static int sum_nodes(struct tr_leafgrads *lg, float *const *node, struct tr_error *err)
{
	const struct tr_registry *reg = lg->reg;
	int64_t from = lg->shares ? reg->norms : 0;
	int64_t to = lg->shares && is_tied(reg) ? reg->param[reg->head].offset : reg->gradients;
	int rc = lg->shares ? sum_shares(lg, node, err) : 0;
	float *part[TR_TREE_NODES_MAX];

	if (rc < 0)
		return rc;
	for (int i = 0; i < lg->n; i++)
		part[i] = node[i] + from;
	return tr_sum_leaves(&lg->mesh->dp, lg->leaves, part, to - from, lg->be->isa->row.add,
			     err);
}

int tr_leafgrads_reduce(struct tr_leafgrads *lg, float **grad, struct tr_error *err)
{
	float *node[TR_TREE_NODES_MAX];
	int rc;

	if (lg->closed != lg->n || lg->n == 0 || lg->node[lg->n - 1].to != lg->to ||
	    lg->node[0].from != lg->from)
		return tr_fail(err, TR_EBUG, "the gradients of a step are not complete");
	for (int i = 0; i < lg->n; i++)
		node[i] = lg->node[i].grad;
	rc = sum_nodes(lg, node, err);
	if (rc == 0)
		rc = reduce_norms(lg, node[0], err);
	if (rc == 0)
		rc = add_tied(lg, node[0], err);
	if (rc < 0)
		return rc;
	lg->done = 1;
	*grad = node[0];
	return 0;
}
