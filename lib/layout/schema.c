/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the descriptions of tensors of all ranks (schema.h).
 *
 * A description in a message, little-endian: u8 kind (0 tensor, 1 tie), u8 dtype, u8 ndim, u8 0,
 * u32 rank, u16 family bytes, u16 name bytes, u16 target bytes, u16 0, i64 for each dimension of
 * the shape, then the three strings, without a NUL. The target is the tensor that a tie names. */
#include "schema.h"
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "sort.h"
#include "natural.h"
#include "place.h"
#include "state.h"
#include "sums.h"

/* A description of a tensor, or of a tie between two names, by one rank. Strings are borrowed from
 * a state, or in an arena. */
struct desc {
	uint8_t kind, dtype, ndim;      /* kind: TENSOR or TIE */
	uint32_t rank;                  /* rank that sent the description; for messages */
	const char *family, *name, *to; /* to: name of the tensor that a tie is to */
	int64_t shape[SHEAF_DIMS_MAX];
};
enum { TENSOR, TIE };

/* `text` has room for a family of 32 bytes, a slash and a name of 1024. */
bool shf_ignored(const char *const *ignore, const char *family, const char *name)
{
	char text[1100];

	if (!ignore)
		return false;
	snprintf(text, sizeof(text), "%s/%s", family, name);
	for (size_t i = 0; ignore[i]; i++)
		if (fnmatch(ignore[i], text, 0) == 0)
			return true;
	return false;
}

/* Appends a description to a message. */
static void desc_put(struct shf_buf *b, const struct desc *d)
{
	size_t family = strlen(d->family), name = strlen(d->name), to = d->to ? strlen(d->to) : 0;

	shf_buf_u8(b, d->kind);
	shf_buf_u8(b, d->dtype);
	shf_buf_u8(b, d->ndim);
	shf_buf_u8(b, 0);
	shf_buf_u32(b, d->rank);
	shf_buf_u16(b, (uint16_t)family);
	shf_buf_u16(b, (uint16_t)name);
	shf_buf_u16(b, (uint16_t)to);
	shf_buf_u16(b, 0);
	for (int i = 0; i < d->ndim; i++)
		shf_buf_u64(b, (uint64_t)d->shape[i]);
	shf_buf_add(b, d->family, family);
	shf_buf_add(b, d->name, name);
	shf_buf_add(b, d->to ? d->to : "", to);
}

/* Reads a string of n bytes into the arena. If it equals `same`, that pointer is returned instead:
 * neighbours mostly have the same family, and one pointer for it makes comparisons cheap. Returns
 * NULL on lack of memory, or if the bytes end, which sets c->bad. */
static const char *text_of(struct shf_arena *arena, struct shf_cur *c, size_t n, const char *same)
{
	const uint8_t *p = shf_cur_bytes(c, n);

	if (!always(p))
		return NULL;
	if (same && strlen(same) == n && memcmp(same, p, n) == 0)
		return same;
	return shf_arena_strdup(arena, (const char *)p, n);
}

/* Decodes one description. last is the one read before it, or NULL. Returns 0, ENOMEM or EBUG:
 * the messages are written by our own code, so one that does not decode is a bug. */
static int desc_get(struct shf_cur *c, struct shf_arena *arena, const struct desc *last,
                    struct desc *d)
{
	size_t family, name, to;

	*d = (struct desc){ .kind = shf_cur_u8(c), .dtype = shf_cur_u8(c) };
	d->ndim = shf_cur_u8(c);
	shf_cur_u8(c);
	d->rank = shf_cur_u32(c);
	family = shf_cur_u16(c);
	name = shf_cur_u16(c);
	to = shf_cur_u16(c);
	shf_cur_u16(c);
	if (!always(!c->bad && d->ndim <= SHEAF_DIMS_MAX))
		return SHEAF_EBUG;
	for (int i = 0; i < d->ndim; i++)
		d->shape[i] = (int64_t)shf_cur_u64(c);
	d->family = text_of(arena, c, family, last ? last->family : NULL);
	d->name = text_of(arena, c, name, NULL);
	d->to = text_of(arena, c, to, "");
	if (!always(!c->bad))
		return SHEAF_EBUG;
	return d->family && d->name && d->to ? 0 : SHEAF_ENOMEM;
}

/* The order of tensors in the layout: by family, then by natural order of names. Kind and rank come
 * last, so that contradictory descriptions of one name are neighbours and the error message names
 * the lowest ranks. */
static int desc_order(const void *a, const void *b)
{
	const struct desc *x = a, *y = b;
	int c = x->family == y->family ? 0 : shf_family_order(x->family, y->family);

	if (c == 0)
		c = shf_natural(x->name, y->name);
	if (c == 0)
		c = x->kind - y->kind;
	if (c == 0)
		c = x->rank < y->rank ? -1 : x->rank > y->rank;
	return c;
}

static bool same_name(const struct desc *a, const struct desc *b)
{
	return (a->family == b->family || strcmp(a->family, b->family) == 0) &&
	       strcmp(a->name, b->name) == 0;
}

/* Prints type and shape into text, for an error message. */
static char *print(const struct desc *d, char *text, size_t n)
{
	struct shf_shape s = { .ndim = d->ndim };
	char shape[200];

	memcpy(s.dim, d->shape, sizeof(s.dim));
	snprintf(text, n, "%s %s", shf_dtype(d->dtype)->name,
	         shf_shape_print(&s, shape, sizeof(shape)));
	return text;
}

/* Makes sorted descriptions unique, in place, and refuses contradictions. Descriptions of one
 * name are neighbours after the sort, so each is compared with the one kept last. If one
 * rank sent the whole list it ascends already, and shf_records_sort() returns at once. */
static int descs_unite(struct desc *d, size_t *n, struct sheaf_error *err)
{
	size_t kept = 0;
	char one[240], two[240];

	shf_records_sort(d, *n, sizeof(*d), desc_order);
	for (size_t i = 0; i < *n; i++) {
		struct desc *last = kept ? &d[kept - 1] : NULL;

		if (!last || !same_name(last, &d[i])) {
			d[kept++] = d[i];
			continue;
		}
		if (last->kind != d[i].kind)
			return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: stored by itself on rank %u, "
			                "but tied to %s on rank %u; set the same slice.tied_to on "
			                "all ranks", d[i].family, d[i].name,
			                last->rank, d[i].to, d[i].rank);
		if (last->kind == TIE && strcmp(last->to, d[i].to))
			return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: tied to %s on rank %u, but to "
			                "%s on rank %u; set the same slice.tied_to on all ranks",
			                d[i].family, d[i].name, last->to,
			                last->rank, d[i].to, d[i].rank);
		if (last->kind == TENSOR &&
		    (last->dtype != d[i].dtype || last->ndim != d[i].ndim ||
		     memcmp(last->shape, d[i].shape, sizeof(int64_t) * d[i].ndim)))
			return shf_fail(err, SHEAF_ELAYOUT,
			                "%s/%s: rank %u has %s, rank %u has %s; shape and dtype "
			                "must be the same on all ranks", d[i].family,
			                d[i].name, last->rank, print(last, one, sizeof(one)),
			                d[i].rank, print(&d[i], two, sizeof(two)));
	}
	*n = kept;
	return 0;
}

/* Checks that a stream was added for the number of ranks that the group has. EINVAL. */
static int check_stream(const struct shf_slice *s, int ranks, struct sheaf_error *err)
{
	if (!s->stream.stream || s->stream.ranks == ranks)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "stream %s: added for %d ranks, the group has %d; pass "
	                "that number to sheaf_state_rank_bytes",
	                s->stream.stream, s->stream.ranks, ranks);
}

/* Describes a slice: its tensor and, if the slice has a name other than the tensor's, a tie.
 * Returns the number of descriptions, 1 or 2. A tie has no shape, as its tensor has one. */
static int slice_describe(const struct shf_slice *s, int rank, struct desc out[2])
{
	out[0] = (struct desc){ TENSOR, (uint8_t)s->dtype, (uint8_t)s->items.ndim, (uint32_t)rank,
	                        s->family, s->stored, NULL, { 0 } };
	memcpy(out[0].shape, s->items.dim, sizeof(int64_t) * (size_t)s->items.ndim);
	if (strcmp(s->stored, s->name) == 0)
		return 1;
	out[1] = out[0];
	out[1].kind = TIE;
	out[1].ndim = 0;
	out[1].name = s->name;
	out[1].to = s->stored;
	return 2;
}

/* Writes the descriptions of this rank's slices, each into the buffer of its home rank, which is
 * chosen by the hash of the name. So one rank receives all descriptions of a name and can merge
 * them. */
static int describe_slices(const struct shf_team *team, const struct sheaf_state *state,
                           const char *const *ignore, struct shf_buf *out, struct sheaf_error *err)
{
	for (size_t i = 0; i < state->n; i++) {
		const struct shf_slice *s = &state->slices[i];
		struct desc d[2];

		if (shf_ignored(ignore, s->family, s->name))
			continue;
		if (check_stream(s, team->ranks, err) < 0)
			return SHEAF_EINVAL;
		for (int k = 0, n = slice_describe(s, team->rank, d); k < n; k++) {
			uint64_t key = shf_sums_key(d[k].family, d[k].name);

			desc_put(&out[key % (uint64_t)team->ranks], &d[k]);
		}
	}
	return 0;
}

/* Decodes all descriptions in the bytes into a new array, which the caller frees, also after a
 * failure. */
static int descs_read(const struct shf_buf *in, struct shf_arena *arena, struct desc **out,
                      size_t *n, struct sheaf_error *err)
{
	struct shf_cur c = { in->data, in->data + in->len, false };
	size_t cap = 0;
	int rc = 0;

	*out = NULL;
	*n = 0;
	while (c.p < c.end && rc == 0) {
		if (*n == cap) {
			struct desc *more;

			cap = cap ? 2 * cap : 64;
			more = shf_realloc(*out, cap, sizeof(*more));
			if (!more) {
				rc = SHEAF_ENOMEM;
				break;
			}
			*out = more;
		}
		rc = desc_get(&c, arena, *n ? &(*out)[*n - 1] : NULL, &(*out)[*n]);
		*n += rc == 0;
	}
	return rc < 0 ? shf_fail(err, rc, "descriptions of tensors from other ranks: %s",
	                         shf_strerror(rc)) : 0;
}

/* Fills the layout from unique descriptions in order. A family begins where the name of the family
 * differs from the one in the description before. Each array has room for n members, which is more
 * than needed. */
static int fill_tensors(struct shf_layout *l, struct desc *d, size_t n, struct sheaf_error *err)
{
	size_t t = 0, k = 0;

	l->tensors = shf_arena_alloc(&l->arena, n + 1, sizeof(*l->tensors));
	l->tied = shf_arena_alloc(&l->arena, n + 1, sizeof(*l->tied));
	l->families = shf_arena_alloc(&l->arena, n + 1, sizeof(*l->families));
	if (!l->tensors || !l->tied || !l->families)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", n);
	for (size_t i = 0; i < n; i++) {
		uint32_t fam = (uint32_t)l->families_n;
		uint64_t units;

		if (fam == 0 || strcmp(l->families[fam - 1].name, d[i].family)) {
			const char *dir = strcmp(d[i].family, "model") ? d[i].family : ".";

			l->families[l->families_n++] = (struct shf_lt_family){ .name = d[i].family,
			                                                       .dir = dir };
			fam++;
		}
		if (d[i].kind == TIE) {
			l->tied[k++] = (struct shf_lt_tied){ fam - 1, d[i].name, d[i].to };
			continue;
		}
		struct shf_lt_tensor *lt = &l->tensors[t++];

		*lt = (struct shf_lt_tensor){ .name = d[i].name, .family = fam - 1,
		                              .dtype = d[i].dtype };
		lt->items.ndim = d[i].ndim;
		memcpy(lt->items.dim, d[i].shape, sizeof(lt->items.dim));
		if (!always(shf_units_of(&lt->shape, &lt->unit, lt->dtype, &lt->items)))
			return shf_fail(err, SHEAF_EBUG, "%s/%s: shape", d[i].family, d[i].name);
		units = shf_shape_units(&lt->shape);
		lt->bytes = units * lt->unit;
	}
	l->tensors_n = t;
	l->tied_n = k;
	return 0;
}

/* Merges the descriptions that were sent to this home and sends the result to all ranks. Every rank
 * then sorts the same set, so all have the same layout.
 *
 * The last agreement is needed because every rank builds its layout by itself and may run out of
 * memory doing so. */
static int home_descs_share(struct shf_team *team, const struct shf_buf *in, struct shf_layout *l,
                            struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_buf mine = SHF_BUF_INIT, all = SHF_BUF_INIT;
	struct desc *d = NULL;
	size_t n = 0;
	int rc = descs_read(in, &arena, &d, &n, err);

	if (rc == 0)
		rc = descs_unite(d, &n, err);
	for (size_t i = 0; i < n && rc == 0; i++)
		desc_put(&mine, &d[i]);
	if (rc == 0 && mine.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu descriptions", n);
	rc = shf_allgatherv(team, rc, &mine, &all, NULL, err);
	shf_free(d);
	shf_arena_release(&arena);
	d = NULL;
	if (rc == 0) {
		rc = descs_read(&all, &l->arena, &d, &n, err);
		if (rc == 0) {
			shf_records_sort(d, n, sizeof(*d), desc_order);
			rc = fill_tensors(l, d, n, err);
		}
		rc = shf_agree(team, rc, err);
	}
	shf_free(d);
	shf_buf_release(&mine);
	shf_buf_release(&all);
	return rc;
}

/* A rank with rc < 0 still takes part in the exchange, which returns the error on all ranks. */
int shf_schema_merge(struct shf_team *team, const struct sheaf_state *state,
                     const char *const *ignore, int rc, struct shf_layout *l,
                     struct sheaf_error *err)
{
	struct shf_buf *out = shf_zalloc((size_t)team->ranks, sizeof(*out)), in = SHF_BUF_INIT;
	size_t *in_bytes = shf_zalloc((size_t)team->ranks, sizeof(*in_bytes));

	if (rc == 0 && (!out || !in_bytes))
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", team->ranks);
	if (rc == 0)
		rc = describe_slices(team, state, ignore, out, err);
	rc = shf_exchange(team, rc, out, &in, in_bytes, err);
	if (rc == 0)
		rc = home_descs_share(team, &in, l, err);
	shf_bufs_free(out, team->ranks);
	shf_free(in_bytes);
	shf_buf_release(&in);
	return rc;
}

/* ---- a schema without a group: one table has the descriptions of all ranks ---- */

/* A hash table of the distinct descriptions, with open addressing. It has twice as many slots as
 * descriptions, so it is at most half full and every probe ends. */
struct table {
	struct desc *all;               /* owned; in the order in which they were added */
	size_t n, cap;                  /* cap: a power of 2 */
	uint32_t *slots;                /* owned; 2 * cap: 1 + index into all; 0: free */
};

/* Returns the hash of a description. */
static uint64_t desc_key(const struct desc *d)
{
	return shf_sums_key(d->family, d->name) * UINT64_C(0x9E3779B97F4A7C15) + d->kind;
}

/* Returns whether two descriptions are equal except for the rank. Contradictory descriptions of one
 * name are both kept in the table, and descs_unite() reports them. */
static bool same_desc(const struct desc *a, const struct desc *b)
{
	return a->kind == b->kind && a->dtype == b->dtype && a->ndim == b->ndim &&
	       same_name(a, b) && (a->kind == TENSOR || strcmp(a->to, b->to) == 0) &&
	       memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim) == 0;
}

/* Doubles the table. Slots are filled again from the array, whose order does not change. If
 * either allocation fails the old table is still valid. */
static bool desc_table_grow(struct table *t)
{
	size_t cap = t->cap ? 2 * t->cap : 256, mask = 2 * cap - 1;
	uint32_t *slots = cap < UINT32_MAX / 4 ? shf_zalloc(2 * cap, sizeof(*slots)) : NULL;
	struct desc *all = slots ? shf_realloc(t->all, cap, sizeof(*all)) : NULL;

	if (!all) {
		shf_free(slots);
		return false;
	}
	for (size_t i = 0; i < t->n; i++) {
		size_t at = (size_t)(desc_key(&all[i]) >> 20) & mask;

		while (slots[at])
			at = (at + 1) & mask;
		slots[at] = (uint32_t)i + 1;
	}
	shf_free(t->slots);
	t->slots = slots;
	t->all = all;
	t->cap = cap;
	return true;
}

/* Adds a description unless the table has an equal one. 0 or ENOMEM. */
static int table_add(struct table *t, const struct desc *d)
{
	if (t->n == t->cap && !desc_table_grow(t))
		return SHEAF_ENOMEM;
	size_t mask = 2 * t->cap - 1, at = (size_t)(desc_key(d) >> 20) & mask;

	for (; t->slots[at]; at = (at + 1) & mask)
		if (same_desc(&t->all[t->slots[at] - 1], d))
			return 0;
	t->all[t->n++] = *d;
	t->slots[at] = (uint32_t)t->n;
	return 0;
}

int shf_schema_preview(struct sheaf_state *const *states, int ranks, const char *const *ignore,
                       struct shf_layout *l, struct sheaf_error *err)
{
	struct table t = { 0 };
	int rc = 0;

	for (int r = 0; r < ranks; r++)
		for (size_t i = 0; i < states[r]->n && rc == 0; i++) {
			const struct shf_slice *s = &states[r]->slices[i];
			struct desc d[2];
			int n = slice_describe(s, r, d);

			if (shf_ignored(ignore, s->family, s->name))
				continue;
			rc = check_stream(s, ranks, err);
			for (int k = 0; k < n && rc == 0; k++)
				if (table_add(&t, &d[k]) < 0)
					rc = shf_fail(err, SHEAF_ENOMEM,
					              "no memory for %zu descriptions", t.n);
		}
	if (rc == 0 && t.n)
		rc = descs_unite(t.all, &t.n, err);
	if (rc == 0)
		rc = fill_tensors(l, t.all, t.n, err);
	shf_free(t.all);
	shf_free(t.slots);
	return rc;
}
