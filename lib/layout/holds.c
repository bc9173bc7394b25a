/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the list of boxes that a rank holds (holds.h). This code runs once for every slice of a
 * rank, which may have very many. So slices are sorted as 64-bit words instead of structs, and the
 * box of a slice is borrowed and not copied where that is possible. */
#include "holds.h"
#include <string.h>
#include "err.h"
#include "schema.h"
#include "state.h"

void shf_holds_release(struct shf_holds *h)
{
	shf_free(h->a);
	shf_arena_release(&h->boxes);
	*h = (struct shf_holds){ 0 };
}

/* The argument of add_box(): the slice whose boxes are being listed, its number (slice_i), and the
 * number of its tensor. */
struct adding {
	struct shf_holds *holds;
	const struct shf_slice *slice;
	uint32_t tensor, slice_i;
};

/* Adds one box of a slice; called by shf_mem_boxes(). The slice's own box is borrowed, because the
 * slice outlives the holds. A box of a part of the slice exists only during the call, so it is
 * copied to the arena. */
static int add_box(void *arg, const struct shf_box *box)
{
	struct adding *a = arg;
	struct shf_holds *h = a->holds;
	struct shf_box *copy;

	if (h->n == h->cap) {
		struct shf_hold *more = shf_realloc(h->a, 2 * h->cap + 1, sizeof(*more));

		if (!more)
			return SHEAF_ENOMEM;
		h->a = more;
		h->cap = 2 * h->cap + 1;
	}
	if (box != &a->slice->mem.box) {
		copy = shf_arena_alloc(&h->boxes, 1, sizeof(*copy));
		if (!copy)
			return SHEAF_ENOMEM;
		*copy = *box;
		box = copy;
	}
	h->a[h->n++] = (struct shf_hold){ a->tensor, a->slice_i, box };
	h->bytes += shf_box_units(box) * a->slice->mem.unit;
	return 0;
}

#define AHEAD 8         /* how many slices or tensors ahead the prefetch runs */

/* Prefetches the part of a slice that will be read soon. In the order of tensors, slices lie
 * far apart in memory, and each is several cache lines long. */
static void slice_ahead(const struct shf_slice *s)
{
	const char *p = (const char *)s;

	for (size_t at = 0; at < offsetof(struct shf_slice, items); at += 64)
		__builtin_prefetch(p + at);
}

/* Sorts the words, each a tensor and a slice (shf_key), by tensor, and lists the boxes of the
 * slices in that order. The sort is stable, so the slices of one tensor keep their order. */
int shf_holds_make(struct shf_holds *h, uint64_t *words, size_t n,
                   const struct shf_slice *(*slice)(const void *arg, uint32_t i), const void *arg,
                   struct sheaf_error *err)
{
	/* Mostly each slice is one box, so n is a good first size. */
	h->a = shf_alloc(n, sizeof(*h->a));
	if (!h->a)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu boxes", n);
	h->cap = n;
	shf_keys_sort(words, words + n, n);
	for (size_t i = 0; i < n; i++) {
		const struct shf_slice *s = slice(arg, shf_key_item(words[i]));
		struct adding a = { h, s, shf_key_of(words[i]), shf_key_item(words[i]) };

		if (n - i > AHEAD)
			slice_ahead(slice(arg, shf_key_item(words[i + AHEAD])));
		if (!s->empty && shf_mem_boxes(&s->mem, add_box, &a) != 0)
			return shf_fail(err, SHEAF_ENOMEM, "no memory for the boxes of %s",
			                s->name);
	}
	return 0;
}

/* A binary search for the first hold of the tensor. */
size_t shf_holds_first(const struct shf_holds *h, uint32_t tensor)
{
	size_t lo = 0, hi = h->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (h->a[mid].tensor < tensor)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < h->n && h->a[lo].tensor == tensor ? lo : h->n;
}

/* ---- of a state ---- */

/* The search for the tensors of a state's slices. `known` caches the numbers of families by the
 * address of their name, which slices of one family share, so most lookups compare pointers. The
 * same name at another address is looked up again, with the same result. */
struct finding {
	const struct shf_layout *layout;
	struct {
		const char *text;       /* borrowed from slices of the family */
		int64_t number;         /* in the layout; -1: not in it */
	} known[SHF_FAMILIES_KNOWN];
	size_t known_n;
	uint32_t *next;                 /* owned; next[f]: tensor after the last one found in f */
};

/* Returns the number of a family in the layout, or -1. */
static int64_t find_family(struct finding *f, const char *family)
{
	int64_t number;

	for (size_t i = 0; i < f->known_n; i++)
		if (f->known[i].text == family)
			return f->known[i].number;
	number = shf_layout_family(f->layout, family);
	if (f->known_n < SHF_FAMILIES_KNOWN) {
		f->known[f->known_n].text = family;
		f->known[f->known_n++].number = number;
	}
	return number;
}

/* Prefetches tensors that are likely to be sought soon: the record first, and for nearer ones
 * the name, whose address must be in the cache by then. */
static void prefetch_tensors(const struct shf_layout *l, const struct shf_lt_family *fam, int64_t t)
{
	int64_t end = (int64_t)fam->first_tensor + fam->tensors_n;

	if (t + AHEAD >= end)
		return;
	__builtin_prefetch(&l->tensors[t + AHEAD]);
	__builtin_prefetch(l->tensors[t + AHEAD / 2].name);
	__builtin_prefetch(l->tensors[t + AHEAD / 2].name + 64);
}

/* Returns the number of a slice's tensor, or -1. Slices are mostly added in the order of their
 * tensors, so the first guess is the tensor after the last one found in the family. If it is
 * another, the search starts from there. */
static int64_t find_next(struct finding *f, const struct shf_slice *s)
{
	const struct shf_layout *l = f->layout;
	const struct shf_lt_family *fam;
	int64_t family = find_family(f, s->family), t;

	if (family < 0)
		return -1;
	fam = &l->families[family];
	t = f->next[family];
	prefetch_tensors(l, fam, t);
	if (t >= fam->first_tensor + (int64_t)fam->tensors_n ||
	    strcmp(l->tensors[t].name, s->stored) != 0)
		t = shf_layout_find_near(l, (uint32_t)family, (uint32_t)t, s->stored);
	if (t >= 0)
		f->next[family] = (uint32_t)t + 1;
	return t;
}

/* Collects (tensor, slice) words for all slices that are not ignored. The layout was merged
 * from the slices of all ranks, so a tensor that is not in it is a bug. */
static int find_all(struct finding *f, const struct sheaf_state *state, const char *const *ignore,
                    uint64_t *words, size_t *n, struct sheaf_error *err)
{
	for (size_t i = 0; i < state->n; i++) {
		const struct shf_slice *s = &state->slices[i];
		int64_t t;

		if (shf_ignored(ignore, s->family, s->name))
			continue;
		t = find_next(f, s);
		if (!always(t >= 0))
			return shf_fail(err, SHEAF_EBUG, "%s/%s: not in the schema of all ranks",
			                s->family, s->stored);
		words[(*n)++] = shf_key((uint32_t)t, (uint32_t)i);
	}
	return 0;
}

static const struct shf_slice *slice_of(const void *arg, uint32_t i)
{
	return &((const struct sheaf_state *)arg)->slices[i];
}

int shf_holds_state(struct shf_holds *h, const struct shf_layout *l,
                    const struct sheaf_state *state, const char *const *ignore,
                    struct sheaf_error *err)
{
	struct finding f = { .layout = l,
	                     .next = shf_alloc(l->families_n, sizeof(*f.next)) };
	uint64_t *words = shf_alloc(state->n, 2 * sizeof(*words));
	size_t n = 0;
	int rc = 0;

	if (!f.next || !words)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", state->n);
	for (size_t i = 0; rc == 0 && i < l->families_n; i++)
		f.next[i] = l->families[i].first_tensor;
	if (rc == 0)
		rc = find_all(&f, state, ignore, words, &n, err);
	if (rc == 0)
		rc = shf_holds_make(h, words, n, slice_of, state, err);
	shf_free(f.next);
	shf_free(words);
	return rc;
}
