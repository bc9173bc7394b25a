/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank holds of a layout, and what it tells the homes of its stripes, against the plainest
 * way to say both. States have no memory, so that tensors can be as large as they are. */
#include "rng.h"
#include "t.h"
#include <stdlib.h>
#include "deal_home.h"
#include "schema.h"
#include "state.h"
#include "match.h"

#define SEED UINT64_C(0x5eaf0a11)
enum { TENSORS_MAX = 60, RANKS_MAX = 300, ROUNDS = 200 };

/* Some tensors of several stripes, some that fill pages, and some small ones, which lie behind the
 * others in their files. */
static struct sheaf_slice random_tensor(uint64_t *s, int i, char name[32])
{
	static const char *const families[] = { "model", "optimizer", "master_weights" };
	struct sheaf_slice t = { .size = sizeof(t), .name = name,
		.family = families[rng_below(s, 3)],
		.dtype = SHEAF_F32, .ndim = 2 };

	snprintf(name, 32, "layers.%d.%c", i / 3, 'a' + i % 3);
	t.shape[0] = 1 + rng_below(s, rng_below(s, 3) ? 20000 : 7);
	t.shape[1] = rng_below(s, 3) ? 1024 : 1 + rng_below(s, 5);
	t.count[0] = t.shape[0];
	t.count[1] = t.shape[1];
	return t;
}

/* Piece of it, by rows, by columns, or a window of its rows. */
static void random_cut(uint64_t *s, struct sheaf_slice *t)
{
	int d = (int)rng_below(s, 2);
	int64_t n = t->shape[0] * t->shape[1];

	t->start[d] = rng_below(s, t->shape[d]);
	t->count[d] = rng_below(s, t->shape[d] - t->start[d] + 1);
	if (rng_below(s, 4) == 0) {
		t->start[d] = 0;
		t->count[d] = t->shape[d];
		t->flags = SHEAF_SLICE_FLAT;
		t->flat_start = rng_below(s, n);
		t->flat_count = 1 + rng_below(s, n - t->flat_start);
	}
}

struct world {
	struct sheaf_state *whole, *mine;
	struct shf_layout layout;
	struct shf_holds holds;
	uint32_t ranks;
};

static void world_make(uint64_t *s, struct world *w)
{
	int n = 1 + (int)rng_below(s, TENSORS_MAX), order[TENSORS_MAX];
	struct sheaf_slice t[TENSORS_MAX];
	char names[TENSORS_MAX][32];
	struct sheaf_error err = { 0 };

	*w = (struct world){ .whole = shf_state_new(), .mine = shf_state_new() };
	w->ranks = 1 + (uint32_t)rng_below(s, RANKS_MAX);
	for (int i = 0; i < n; i++) {
		int at = rng_below(s, 4) ? i : (int)rng_below(s, i + 1); /* mostly in order */

		t[i] = random_tensor(s, i, names[i]);
		CHECK(shf_state_add(w->whole, &t[i], NULL) >= 0);
		order[i] = order[at];
		order[at] = i;
	}
	for (int i = 0; i < n; i++) {
		for (int64_t k = rng_below(s, 3); k > 0; k--) { /* none, one, or two of it */
			struct sheaf_slice cut = t[order[i]];

			random_cut(s, &cut);
			CHECK(shf_state_add(w->mine, &cut, NULL) >= 0);
		}
	}
	CHECK_RC(shf_schema_preview(&w->whole, 1, NULL, &w->layout, &err), 0, &err);
	CHECK_RC(shf_layout_place(&w->layout, UINT64_C(100) << 20, &err), 0, &err);
	CHECK_RC(shf_holds_state(&w->holds, &w->layout, w->mine, NULL, &err), 0, &err);
}

static void world_free(struct world *w)
{
	shf_holds_release(&w->holds);
	shf_layout_release(&w->layout);
	shf_state_put(w->whole);
	shf_state_put(w->mine);
}

struct sum {
	uint64_t units, boxes;
};

static int add_up(void *arg, const struct shf_box *box)
{
	struct sum *sum = arg;

	sum->units += shf_box_units(box);
	sum->boxes++;
	return 0;
}

/* Every slice once, with all its boxes, by tensor. */
static void check_holds(const struct world *w)
{
	uint64_t bytes = 0;
	size_t boxes = 0;

	for (size_t i = 0; i < w->mine->n; i++) {
		const struct shf_slice *s = &w->mine->slices[i];
		int64_t t = shf_layout_find(&w->layout, s->family, s->stored);
		struct sum want = { 0 }, got = { 0 };

		CHECK(t >= 0);
		if (!s->empty)
			CHECK_INT(shf_mem_boxes(&s->mem, add_up, &want), 0);
		for (size_t k = 0; k < w->holds.n; k++)
			if (w->holds.a[k].slice == i) {
				CHECK_INT(w->holds.a[k].tensor, t);
				CHECK(shf_box_contains(&s->mem.box, w->holds.a[k].box));
				add_up(&got, w->holds.a[k].box);
			}
		CHECK(got.units == want.units && got.boxes == want.boxes);
		bytes += want.units * s->mem.unit;
		boxes += want.boxes;
	}
	CHECK_INT(w->holds.n, boxes);
	CHECK_INT(w->holds.bytes, bytes);
	for (size_t k = 1; k < w->holds.n; k++)
		CHECK(w->holds.a[k - 1].tensor < w->holds.a[k].tensor ||
		      (w->holds.a[k - 1].tensor == w->holds.a[k].tensor &&
		       w->holds.a[k - 1].slice <= w->holds.a[k].slice));
}

/* Is rank r a home of a stripe that the box has bytes in? A home without stripes may be told, if
 * there are not very many of them. */
static bool is_home(const struct world *w, uint32_t r, const struct shf_hold *h)
{
	const struct shf_lt_tensor *t = &w->layout.tensors[h->tensor];
	const struct shf_lt_file *f = &w->layout.files[t->file];
	uint64_t lo, hi;

	shf_box_span(&t->shape, h->box, &lo, &hi);
	lo = f->first_stripe + (t->off + lo * t->unit) / SHF_STRIPE;
	hi = f->first_stripe + (t->off + hi * t->unit - 1) / SHF_STRIPE;
	for (uint64_t s = lo; s <= hi; s++)
		if (shf_home_of(&w->layout, w->ranks, f, s) == r)
			return true;
	return w->ranks <= w->layout.stripes_n &&
	       shf_home_of(&w->layout, w->ranks, f, lo) < r &&
	       shf_home_of(&w->layout, w->ranks, f, hi) > r;
}

/* Each home is told each of its boxes once, in the order of holds. */
static size_t check_tells(const struct world *w)
{
	struct shf_match m = { .layout = &w->layout, .holds = &w->holds };
	size_t to[RANKS_MAX] = { 0 }, told = 0;
	struct shf_home_messages tells = { .to = to };
	struct shf_cur c;

	CHECK_INT(shf_holds_pack(&m, w->ranks, &tells), 0);
	c = (struct shf_cur){ tells.bytes.data, tells.bytes.data, false };
	for (uint32_t r = 0; r < w->ranks; r++) {
		c.end = c.p + to[r];
		for (size_t k = 0; k < w->holds.n; k++) {
			struct shf_box box;
			uint32_t tensor;

			if (!is_home(w, r, &w->holds.a[k]))
				continue;
			tensor = shf_cur_u32(&c);
			shf_wire_box_get(&c, &w->layout, tensor, &box);
			CHECK(!c.bad);
			CHECK_INT(tensor, w->holds.a[k].tensor);
			CHECK(shf_box_equal(&box, w->holds.a[k].box));
			told++;
		}
		CHECK(c.p == c.end);
	}
	CHECK_INT((size_t)(c.p - tells.bytes.data), tells.bytes.len);
	shf_buf_release(&tells.bytes);
	return told;
}

/* Do tensors lie in another order than that of their numbers, among what is held? */
static bool is_mixed(const struct world *w)
{
	uint64_t last = 0;

	for (size_t k = 0; k < w->holds.n; k++) {
		const struct shf_lt_tensor *t = &w->layout.tensors[w->holds.a[k].tensor];
		uint64_t lo, hi, at;

		shf_box_span(&t->shape, w->holds.a[k].box, &lo, &hi);
		at = w->layout.files[t->file].first_stripe + (t->off + lo * t->unit) / SHF_STRIPE;
		if (at < last)
			return true;
		last = at;
	}
	return false;
}

/* From wherever the search begins. */
static void check_near(const struct world *w, uint64_t *s, uint32_t t)
{
	const struct shf_layout *l = &w->layout;
	const struct shf_lt_family *fam = &l->families[l->tensors[t].family];
	uint32_t near = fam->first_tensor + (uint32_t)rng_below(s, fam->tensors_n + 1);
	char none[64];

	CHECK_INT(shf_layout_find_near(l, l->tensors[t].family, near, l->tensors[t].name), t);
	snprintf(none, sizeof(none), "%s.none", l->tensors[t].name);
	CHECK_INT(shf_layout_find_near(l, l->tensors[t].family, near, none), -1);
	/* before all, behind all */
	snprintf(none, sizeof(none), "%c", rng_below(s, 2) ? '0' : 'z');
	CHECK_INT(shf_layout_find_near(l, l->tensors[t].family, near, none), -1);
}

TEST(a_tensor_is_found_from_wherever_the_search_begins)
{
	uint64_t s = SEED + 1;
	size_t looks = 0;

	for (int round = 0; round < ROUNDS / 4; round++) {
		struct world w;

		world_make(&s, &w);
		for (uint32_t t = 0; t < w.layout.tensors_n; t++)
			for (int k = 0; k < 20; k++, looks++)
				check_near(&w, &s, t);
		world_free(&w);
	}
	print_message("# %zu looks; seed %llx\n", looks, (unsigned long long)(SEED + 1));
	CHECK(looks > 5000);
}

TEST(every_home_is_told_of_every_box_that_meets_its_stripes)
{
	uint64_t s = SEED;
	size_t held = 0, told = 0, mixed = 0;

	for (int round = 0; round < ROUNDS; round++) {
		struct world w;

		world_make(&s, &w);
		check_holds(&w);
		told += check_tells(&w);
		held += w.holds.n;
		mixed += is_mixed(&w);
		world_free(&w);
	}
	print_message("# %d states: %zu boxes, told %zu times; in %zu the small lie behind the "
	              "large; seed %llx\n", ROUNDS, held, told, mixed,
	              (unsigned long long)SEED);
	CHECK(mixed > ROUNDS / 4 && mixed < ROUNDS && told > held);
}
