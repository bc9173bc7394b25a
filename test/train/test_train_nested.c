/* SPDX-License-Identifier: Apache-2.0 */
/* Nested values are sent to ranks that are threads: random trees from one or several ranks,
 * failures on either side, and ranks that cannot go on. */
#include "t.h"

#include <pthread.h>

#include "leafsum.h"
#include "nested.h"
#include "philox.h"
#include "ranks_threads.h"

enum { RANKS = 8, TREES = 10000, MEMORY = 1 << 16, MESSAGES_MAX = 3 };

struct worker {
	pthread_t thread;
	struct tr_ranks g, under;       /* g counts the exchanges of `under` */
	int exchanges;
	void (*work)(struct worker *w);
	/* Memory for arrays. */
	_Alignas(16) unsigned char memory[MEMORY];
	size_t used, refused_at;        /* refused_at: the call that fails; 0: none */
	size_t calls;
	int64_t wrong;                  /* what was not as it must be */
	struct tr_error err;
	int rc;
};

static int count_exchange(void *arg, const struct tr_piece *out, const struct tr_piece *in,
			  int timeout_ms, struct tr_error *err)
{
	struct worker *w = arg;

	w->exchanges++;
	return w->under.exchange(w->under.arg, out, in, timeout_ms, err);
}

static void abandon_under(void *arg, const struct tr_error *why)
{
	struct worker *w = arg;

	w->under.abandon(w->under.arg, why);
}

static void *take_memory(void *arg, const char *name, const struct tr_array *a, size_t bytes)
{
	struct worker *w = arg;
	size_t from = w->used;

	(void)name;
	if (bytes != tr_array_bytes(a) || !bytes)
		w->wrong++;
	w->used += (bytes + 15) / 16 * 16;
	return ++w->calls == w->refused_at || w->used > MEMORY ? NULL : w->memory + from;
}

static void *start_worker(void *arg)
{
	struct worker *w = arg;

	w->work(w);
	return NULL;
}

static struct worker *work_together(int n, void (*work)(struct worker *w), int refusing)
{
	struct worker *w = calloc((size_t)n, sizeof(*w));
	struct tr_hub *hub = tr_hub_new(n);

	for (int r = 0; r < n; r++) {
		tr_ranks_hub(&w[r].under, hub, r, 20000);
		w[r].g = w[r].under;
		w[r].g.exchange = count_exchange;
		w[r].g.abandon = abandon_under;
		w[r].g.arg = &w[r];
		w[r].work = work;
		w[r].refused_at = r == refusing;
		CHECK_INT(pthread_create(&w[r].thread, NULL, start_worker, &w[r]), 0);
	}
	for (int r = 0; r < n; r++)
		pthread_join(w[r].thread, NULL);
	tr_hub_free(hub);
	return w;
}

/* ---- random trees ---- */

struct draw {
	uint64_t tree, at;
	struct tr_nest node[200];
	int nodes;
	unsigned char items[MEMORY];
	size_t used;
	int arrays;                     /* that have items */
};

static uint32_t draw(struct draw *d, uint32_t below)
{
	uint32_t r[4];

	tr_random(5, TR_RANDOM_INIT, d->tree, d->at++, r);
	return r[0] % below;
}

static void draw_array(struct draw *d, struct tr_array *a)
{
	size_t bytes;

	*a = (struct tr_array){ .type = (enum tr_item_type)draw(d, TR_ITEM_F64 + 1),
				.dims = (int)draw(d, 4) };
	for (int i = 0; i < a->dims; i++)
		a->shape[i] = (int64_t)draw(d, 6);
	bytes = tr_array_bytes(a);
	if (!bytes)
		return;
	a->data = d->items + d->used;
	for (size_t i = 0; i < bytes; i++)
		d->items[d->used++] = (unsigned char)draw(d, 256);
	d->used = (d->used + 15) / 16 * 16;
	d->arrays++;
}

static void draw_nest(struct draw *d, struct tr_nest *x, int depth)
{
	static const char *const texts[] = { "", "a", "tokens of a text", "\xe2\x82\xac" };

	x->kind = (enum tr_nest_kind)draw(d, TR_NEST_FIELDS + 1);
	if (x->kind >= TR_NEST_LIST && (depth == 6 || d->nodes > 180))
		x->kind = TR_NEST_ABSENT;
	if (x->kind == TR_NEST_INTEGER)
		x->of.integer = -(int64_t)draw(d, 1u << 31) * ((int64_t)1 << draw(d, 32));
	if (x->kind == TR_NEST_REAL)
		x->of.real = (double)draw(d, 1000) / 7;
	if (x->kind == TR_NEST_TEXT)
		x->of.text = texts[draw(d, 4)];
	if (x->kind == TR_NEST_ARRAY)
		draw_array(d, &x->of.array);
	if (x->kind < TR_NEST_LIST)
		return;
	x->of.in.n = (int64_t)draw(d, 5);
	x->of.in.child = &d->node[d->nodes];
	d->nodes += (int)x->of.in.n;
	for (int64_t i = 0; i < x->of.in.n; i++) {
		if (x->kind == TR_NEST_FIELDS)
			x->of.in.child[i].name = texts[draw(d, 4)];
		draw_nest(d, &x->of.in.child[i], depth + 1);
	}
}

/* Draws the tree of that number that rank `from` sends. Its root is a list or has fields. */
static struct tr_nest *draw_tree(struct draw *d, int number, int from)
{
	*d = (struct draw){ .tree = (uint64_t)number * RANKS + (uint64_t)from, .nodes = 1 };
	draw_nest(d, &d->node[0], 0);
	return &d->node[0];
}

static int same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

static int same_array(const struct worker *w, const struct tr_array *a, const struct tr_array *b)
{
	size_t n = tr_array_bytes(a);
	const unsigned char *at = b->data;

	if (a->type != b->type || a->dims != b->dims ||
	    memcmp(a->shape, b->shape, sizeof(a->shape)) != 0)
		return 0;
	/* The receiver's memory has it, and nothing else. */
	return !n ? !at : at >= w->memory && at < w->memory + MEMORY && memcmp(a->data, at, n) == 0;
}

static int same(const struct worker *w, const struct tr_nest *a, const struct tr_nest *b)
{
	int good = a->kind == b->kind && same_text(a->name, b->name);

	if (!good)
		return 0;
	switch (a->kind) {
	case TR_NEST_INTEGER:
		return a->of.integer == b->of.integer;
	case TR_NEST_REAL:
		return memcmp(&a->of.real, &b->of.real, sizeof(double)) == 0;
	case TR_NEST_TEXT:
		return same_text(a->of.text, b->of.text);
	case TR_NEST_ARRAY:
		return same_array(w, &a->of.array, &b->of.array);
	case TR_NEST_LIST:
	case TR_NEST_FIELDS:
		good = a->of.in.n == b->of.in.n;
		for (int64_t i = 0; good && i < a->of.in.n; i++)
			good = same(w, &a->of.in.child[i], &b->of.in.child[i]);
		return good;
	default:
		return 1;
	}
}

/* In each third tree ranks 0 to 4 receive it from rank 2, and ranks 5 to 7 from rank 7. In the
 * others all receive it from one rank. */
static void find_sources(int number, int *source)
{
	for (int r = 0; r < RANKS; r++)
		source[r] = number % 3 ? number % RANKS : r < 5 ? 2 : 7;
}

static void send_trees(struct worker *w)
{
	struct tr_nest_memory m = { take_memory, w };
	struct draw *d = malloc(sizeof(*d));
	int source[RANKS];

	for (int i = 0; w->rc == 0 && i < TREES / T_FEWER; i++) {
		struct tr_nest_tree tree = { .root = NULL };
		struct tr_nest *want;
		int from, sends;

		find_sources(i, source);
		from = source[w->g.rank];
		sends = from == w->g.rank;
		want = draw_tree(d, i, from);
		if (sends)
			tree.root = want;
		w->exchanges = 0;
		w->used = w->calls = 0;
		w->rc = tr_nest_broadcast(&w->g, i % (3 * RANKS) == RANKS ? NULL : source, 0,
					  &tree, &m, &w->err);
		w->wrong += w->exchanges > MESSAGES_MAX;
		if (w->rc == 0 && !sends) {
			w->wrong += !same(w, want, tree.root) || w->calls != (size_t)d->arrays;
			tr_nest_release(&tree);
		}
	}
	free(d);
}

TEST(trees_of_any_shape_arrive_in_the_memory_that_each_receiver_gives)
{
	struct worker *w = work_together(RANKS, send_trees, -1);

	for (int r = 0; r < RANKS; r++) {
		CHECK_RC(w[r].rc, 0, &w[r].err);
		CHECK_INT(w[r].wrong, 0);
	}
	free(w);
}

/* ---- failures ---- */

static void send_one(struct worker *w)
{
	int64_t numbers[3] = { 1, 2, 3 };
	struct tr_nest root = { .kind = TR_NEST_ARRAY,
		.of.array = { .type = TR_ITEM_I64, .dims = 1, .shape = { 3 }, .data = numbers } };
	struct tr_nest_tree tree = { .root = w->g.rank ? NULL : &root };
	struct tr_nest_memory m = { take_memory, w };

	w->rc = tr_nest_broadcast(&w->g, NULL, 0, &tree, &m, &w->err);
	if (w->g.rank && w->rc == 0)
		tr_nest_release(&tree);
}

TEST(a_receiver_without_memory_for_an_array_is_an_error_on_all_ranks)
{
	struct worker *w = work_together(4, send_one, 2);

	for (int r = 0; r < 4; r++) {
		CHECK_INT(w[r].rc, TR_ENOMEM);
		CHECK_INT(w[r].err.rank, 2);
		CHECK(strstr(w[r].err.msg, "no memory for 24 bytes") != NULL);
	}
	free(w);
}

static void fail_to_read(struct worker *w)
{
	struct tr_nest_tree tree = { .root = NULL };
	struct tr_nest_memory m = { take_memory, w };

	if (w->g.rank == 0)
		w->rc = tr_fail(&w->err, TR_EIO, "the file of rank 0");
	w->rc = tr_nest_broadcast(&w->g, NULL, w->rc, &tree, &m, &w->err);
}

TEST(a_rank_that_has_nothing_to_send_tells_all_why)
{
	struct worker *w = work_together(4, fail_to_read, -1);

	for (int r = 0; r < 4; r++) {
		CHECK_INT(w[r].rc, TR_EIO);
		CHECK_INT(w[r].err.rank, 0);
		CHECK_STR(w[r].err.msg, "the file of rank 0");
		CHECK_INT(w[r].exchanges, 1);
	}
	free(w);
}

static void send_a_deep_tree(struct worker *w)
{
	static struct tr_nest chain[TR_NEST_DEPTH_MAX + 1];
	struct tr_nest_tree tree = { .root = chain };
	struct tr_nest_memory m = { take_memory, w };

	for (int i = 0; w->g.rank == 0 && i <= TR_NEST_DEPTH_MAX; i++)
		chain[i] = (struct tr_nest){ .kind = TR_NEST_LIST,
			.of.in = { i < TR_NEST_DEPTH_MAX, &chain[i] + 1 } };
	w->rc = tr_nest_broadcast(&w->g, NULL, 0, &tree, &m, &w->err);
}

TEST(a_tree_without_end_is_refused)
{
	struct worker *w = work_together(2, send_a_deep_tree, -1);

	CHECK_INT(w[0].rc, TR_EBUG);
	CHECK_INT(w[1].rc, TR_EBUG);
	free(w);
}

/* ---- memory that is out ---- */

#if !T_SANITIZED
void *__libc_calloc(size_t n, size_t size);
/* Of this thread: how many allocations from now on work, before one fails. */
static _Thread_local int allocations_left = -1;

T_REPLACES void *calloc(size_t n, size_t size)
{
	if (allocations_left >= 0 && allocations_left-- == 0)
		return NULL;
	return __libc_calloc(n, size);
}

static int fail_at;

static void add(float *y, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] += x[i];
}

static void allocate_too_much(struct worker *w)
{
	struct tr_nest root = { .kind = TR_NEST_INTEGER, .of.integer = 7 };
	struct tr_nest_tree tree = { .root = w->g.rank ? NULL : &root };
	struct tr_nest_memory m = { take_memory, w };
	float sum[5] = { 0 }, *node[1] = { sum }, received[4];
	uint64_t x = 1;

	allocations_left = w->g.rank == 2 ? fail_at : -1;
	w->rc = tr_allreduce(&w->g, &x, 1, TR_SUM, &w->err);
	if (w->rc == 0)
		w->rc = tr_agree(&w->g, 0, &w->err);
	if (w->rc == 0)
		w->rc = tr_nest_broadcast(&w->g, NULL, 0, &tree, &m, &w->err);
	if (w->rc == 0)
		w->rc = tr_sum_leaves(&w->g, 3, node, received, 5, add, &w->err);
	allocations_left = -1;
	if (w->g.rank && w->rc == 0)
		tr_nest_release(&tree);
}

/* Without a word from that rank, the others would wait for it until the deadline. */
TEST(a_rank_without_memory_in_any_operation_ends_all_with_its_number)
{
	int failed = 1, failures = 0;

	for (fail_at = 0; failed; fail_at++) {
		struct worker *w = work_together(3, allocate_too_much, -1);

		failed = w[0].rc != 0;
		failures += failed;
		for (int r = 0; r < 3; r++) {
			CHECK_INT(w[r].rc, w[0].rc);
			CHECK(!failed || (w[r].err.rank == 2 &&
					  strstr(w[r].err.msg, "no memory ")));
		}
		free(w);
	}
	CHECK(failures > 9);
}
#endif

static void give_up(struct worker *w)
{
	struct tr_nest_tree tree = { .root = NULL };
	struct tr_nest_memory m = { take_memory, w };
	uint64_t x = 1;

	if (w->g.rank == 1) {
		tr_fail(&w->err, TR_ENOMEM, "no memory for a plan");
		w->rc = tr_ranks_abandon(&w->g, &w->err);
	} else {
		w->rc = w->g.rank ? tr_nest_broadcast(&w->g, NULL, 0, &tree, &m, &w->err) :
			tr_allreduce(&w->g, &x, 1, TR_SUM, &w->err);
	}
}

TEST(ranks_that_wait_for_one_that_cannot_go_on_end_at_once_with_its_reason)
{
	struct worker *w = work_together(3, give_up, -1);

	for (int r = 0; r < 3; r++) {
		CHECK_INT(w[r].rc, TR_ELOST);
		CHECK_INT(w[r].err.rank, 1);
		CHECK_STR(w[r].err.msg, "no memory for a plan");
	}
	free(w);
}
