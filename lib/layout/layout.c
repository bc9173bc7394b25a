/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns tensors to files and offsets, numbers stripes and blocks, and finds tensors by name or
 * place. Every rank does this for itself from the same input; nothing here communicates. */
#include "layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "deal_home.h"
#include "dtype.h"
#include "err.h"
#include "natural.h"
#include "safetensors.h"
#include "state.h"

void shf_layout_release(struct shf_layout *l)
{
	shf_arena_release(&l->arena);
	*l = (struct shf_layout){ 0 };
}

/* "model" comes first, whatever the names of the others: its files lie in the step's own folder. */
int shf_family_order(const char *a, const char *b)
{
	bool model_a = strcmp(a, "model") == 0, model_b = strcmp(b, "model") == 0;

	return model_a != model_b ? (model_a ? -1 : 1) : strcmp(a, b);
}

/* Returns n / by, rounded up, without the overflow of n + by - 1. */
static uint64_t up(uint64_t n, uint64_t by)
{
	return n / by + (n % by != 0);
}

/* The members of a tensor by which by_place is sorted. Sorting the tensors themselves would move
 * large structs and miss the cache at each comparison. */
struct place_key {
	uint64_t off;
	uint32_t file, tensor;
	bool full;                      /* the tensor has bytes */
};

/* Orders tensors by file, then offset. Empty tensors come before the tensor that has their
 * offset. */
static int by_place_order(const void *a, const void *b)
{
	const struct place_key *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	if (x->full != y->full)
		return x->full ? 1 : -1; /* an empty tensor has the offset of the next one */
	return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Sorts the tensors by place and numbers stripes and blocks through all files. Every file begins a
 * new stripe and a new block, so neither ever crosses a file. Writer and reader get the same
 * numbers, since both depend only on sizes and offsets. */
int shf_layout_number(struct shf_layout *l, struct sheaf_error *err)
{
	struct place_key *keys = shf_alloc(l->tensors_n, sizeof(*keys));

	l->by_place = shf_arena_alloc(&l->arena, l->tensors_n + 1, sizeof(*l->by_place));
	if (!keys || !l->by_place) {
		shf_free(keys);
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", l->tensors_n);
	}
	for (size_t i = 0; i < l->tensors_n; i++)
		keys[i] = (struct place_key){ l->tensors[i].off, l->tensors[i].file, (uint32_t)i,
		                              l->tensors[i].bytes > 0 };
	qsort(keys, l->tensors_n, sizeof(*keys), by_place_order);
	for (size_t i = 0; i < l->tensors_n; i++)
		l->by_place[i] = keys[i].tensor;
	shf_free(keys);
	size_t at = 0;

	l->stripes_n = l->blocks_n = 0;
	for (size_t f = 0; f < l->files_n; f++) {
		struct shf_lt_file *file = &l->files[f];

		file->first_tensor = (uint32_t)at;
		while (at < l->tensors_n && l->tensors[l->by_place[at]].file == f)
			at++;
		file->tensors_n = (uint32_t)at - file->first_tensor;
		file->first_stripe = l->stripes_n;
		file->first_block = l->blocks_n;
		l->stripes_n += up(file->bytes, SHF_STRIPE);
		l->blocks_n += up(file->bytes, SHF_BLOCK);
	}
	return 0;
}

/* Returns a tensor as shf_st_write() takes it. `payload` is subtracted from its offset. */
static struct shf_st_tensor st_of(const struct shf_lt_tensor *t, uint64_t payload)
{
	struct shf_st_tensor st = { .name = t->name, .dtype = t->dtype, .ndim = t->items.ndim,
		.off = t->off - payload, .bytes = t->bytes };

	memcpy(st.shape, t->items.dim, sizeof(st.shape));
	return st;
}

/* Writes the header for tensors order[0] to order[n - 1]. payload is subtracted from each offset:
 * 0 while offsets count from the start of the data, the header's size once they count from the
 * start of the file. */
static int header_of(const struct shf_layout *l, const uint32_t *order, size_t n, uint64_t payload,
                     struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_st_tensor *st = shf_alloc(n, sizeof(*st));

	if (!st)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a header of %zu tensors", n);
	for (size_t i = 0; i < n; i++)
		st[i] = st_of(&l->tensors[order[i]], payload);
	int rc = shf_st_write(out, st, n, err);
	shf_free(st);
	return rc;
}

int shf_layout_header(const struct shf_layout *l, uint32_t file, struct shf_buf *out,
                      struct sheaf_error *err)
{
	const struct shf_lt_file *f = &l->files[file];

	return header_of(l, l->by_place + f->first_tensor, f->tensors_n, f->header_bytes, out, err);
}

/* Names file i of n as Hugging Face does, from 1 with five digits, or as many as n needs
 * (doc/format.md, section 1). The limits in the format keep the text within the buffer. */
static const char *file_name(struct shf_arena *arena, const struct shf_lt_family *fam, size_t i,
                             size_t n)
{
	char text[160];
	int wide = 5;

	for (size_t m = n / 100000; m > 0; m /= 10)
		wide++;
	snprintf(text, sizeof(text), "%.32s%s%.32s-%0*zu-of-%0*zu.safetensors",
	         strcmp(fam->dir, ".") ? fam->dir : "", strcmp(fam->dir, ".") ? "/" : "", fam->name,
	         wide > 20 ? 20 : wide, i + 1, wide > 20 ? 20 : wide, n);
	return shf_arena_strdup(arena, text, strlen(text));
}

/* Sets the first tensor, the number of tensors and the bytes of each family. EBUG if the tensors
 * are not sorted by family, as then the tensors of a family are not consecutive. */
static int split_families(struct shf_layout *l, struct sheaf_error *err)
{
	size_t n = 0;

	for (size_t i = 0; i < l->tensors_n; i++)
		n += i == 0 || l->tensors[i].family != l->tensors[i - 1].family;
	if (!always(n == l->families_n))
		return shf_fail(err, SHEAF_EBUG, "%zu families in order, %zu known", n,
				l->families_n);
	for (size_t i = 0; i < l->tensors_n; i++) {
		struct shf_lt_family *fam = &l->families[l->tensors[i].family];

		if (fam->tensors_n++ == 0)
			fam->first_tensor = (uint32_t)i;
		fam->bytes += l->tensors[i].bytes;
	}
	return 0;
}

struct placed {                 /* placement of one family's tensors, in a temporary arena */
	struct shf_place_in *in;
	struct shf_place_out *out;
	struct shf_place_file *files;
	size_t files_n;
};

/* Fills in the files of one family: names, sizes, and the tensors' offsets from the start of the
 * file. The header lies before the data, and its length depends on all offsets in it, so each
 * header is written here only to learn its size. */
static int finish_family(struct shf_layout *l, uint32_t fam_i, const struct placed *p,
                         uint32_t *const *order, struct sheaf_error *err)
{
	struct shf_lt_family *fam = &l->families[fam_i];
	struct shf_buf header = SHF_BUF_INIT;
	int rc = 0;

	for (size_t f = 0; f < p->files_n && rc == 0; f++) {
		struct shf_lt_file *file = &l->files[fam->first_file + f];

		shf_buf_reset(&header);
		rc = header_of(l, order[f], p->files[f].tensors_n, 0, &header, err);
		file->header_bytes = header.len;
		file->bytes = header.len + p->files[f].payload_bytes;
		file->family = fam_i;
		file->name = file_name(&l->arena, fam, f, p->files_n);
		if (rc == 0 && !file->name)
			rc = shf_fail(err, SHEAF_ENOMEM, "no memory for file names");
		for (size_t i = 0; i < p->files[f].tensors_n; i++)
			l->tensors[order[f][i]].off += header.len;
	}
	shf_buf_release(&header);
	return rc;
}

/* Places the tensors of one family. The bound on the size of a tensor's header entry does not
 * depend on the offset, so it can be computed before there is one. */
static int place_family(struct shf_layout *l, struct shf_arena *tmp, uint32_t fam_i,
                        uint64_t file_bytes_max, struct placed *p, struct sheaf_error *err)
{
	struct shf_lt_family *fam = &l->families[fam_i];
	size_t n = fam->tensors_n;

	p->in = shf_arena_alloc(tmp, n, sizeof(*p->in));
	p->out = shf_arena_alloc(tmp, n, sizeof(*p->out));
	if (!p->in || !p->out)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to place %zu tensors", n);
	for (size_t i = 0; i < n; i++) {
		struct shf_lt_tensor *t = &l->tensors[fam->first_tensor + i];
		struct shf_st_tensor st = st_of(t, t->off);

		p->in[i] = (struct shf_place_in){ t->bytes, shf_st_entry_bound(&st),
		                                  shf_dtype(t->dtype)->align };
	}
	if (shf_place(tmp, p->in, n, file_bytes_max, p->out, &p->files, &p->files_n) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to place %zu tensors", n);
	return 0;
}

/* Stores file and offset in the tensors and returns, for each file, its tensors in the order of
 * placement. Offsets still count from the start of the data section. */
static uint32_t **order_family(struct shf_layout *l, struct shf_arena *tmp, uint32_t fam_i,
                               const struct placed *p)
{
	struct shf_lt_family *fam = &l->families[fam_i];
	uint32_t **order = shf_arena_alloc(tmp, p->files_n, sizeof(*order));

	for (size_t f = 0; order && f < p->files_n; f++) {
		order[f] = shf_arena_alloc(tmp, p->files[f].tensors_n, sizeof(uint32_t));
		if (!order[f])
			return NULL;
	}
	for (size_t i = 0; order && i < fam->tensors_n; i++) {
		struct shf_lt_tensor *t = &l->tensors[fam->first_tensor + i];

		t->file = fam->first_file + p->out[i].file;
		t->off = p->out[i].off;
		order[p->out[i].file][p->out[i].order] = fam->first_tensor + (uint32_t)i;
	}
	return order;
}

/* The first loop places all families. Only then is the number of files known and the array of files
 * can be allocated; the second loop fills it. Temporary memory lives in an arena of its own and is
 * freed here, as the layout may be kept for the whole job. */
int shf_layout_place(struct shf_layout *l, uint64_t file_bytes_max, struct sheaf_error *err)
{
	struct shf_arena tmp = { 0 };
	struct placed *p = shf_zalloc(l->families_n, sizeof(*p));
	int rc = p ? split_families(l, err) : shf_fail(err, SHEAF_ENOMEM, "no memory");

	for (uint32_t i = 0; i < l->families_n && rc == 0; i++) {
		l->families[i].first_file = (uint32_t)l->files_n;
		rc = place_family(l, &tmp, i, file_bytes_max, &p[i], err);
		l->families[i].files_n = (uint32_t)p[i].files_n;
		l->files_n += p[i].files_n;
	}
	if (rc == 0) {
		l->files = shf_arena_alloc(&l->arena, l->files_n, sizeof(*l->files));
		if (!l->files)
			rc = shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", l->files_n);
	}
	for (uint32_t i = 0; i < l->families_n && rc == 0; i++) {
		uint32_t **order = order_family(l, &tmp, i, &p[i]);

		rc = order ? finish_family(l, i, &p[i], order, err)
		           : shf_fail(err, SHEAF_ENOMEM, "no memory to place tensors");
	}
	if (rc == 0)
		rc = shf_layout_number(l, err);
	shf_arena_release(&tmp);
	shf_free(p);
	return rc;
}

int64_t shf_layout_family(const struct shf_layout *l, const char *family)
{
	for (size_t i = 0; i < l->families_n; i++)
		if (strcmp(l->families[i].name, family) == 0)
			return (int64_t)i;
	return -1;
}

/* Searches tensors [lo, hi), which are of one family, by halves. Returns the number of the tensor,
 * or -1 if there is no such tensor. */
static int64_t find_between(const struct shf_layout *l, size_t lo, size_t hi, const char *name)
{
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = shf_natural(l->tensors[mid].name, name);

		if (c == 0)
			return (int64_t)mid;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

int64_t shf_layout_find(const struct shf_layout *l, const char *family, const char *name)
{
	int64_t fam = shf_layout_family(l, family);

	if (fam < 0)
		return -1;
	size_t lo = l->families[fam].first_tensor;
	return find_between(l, lo, lo + l->families[fam].tensors_n, name);
}

/* A galloping search: it costs the logarithm of the distance and not of the number of tensors.
 * In a loop over names in order almost every lookup is one comparison. */
int64_t shf_layout_find_near(const struct shf_layout *l, uint32_t family, uint32_t near,
                             const char *name)
{
	const struct shf_lt_family *fam = &l->families[family];
	size_t lo = fam->first_tensor, hi = lo + fam->tensors_n, at = near, far = 1;
	int c;

	if (at < lo || at >= hi)
		return find_between(l, lo, hi, name);
	c = shf_natural(l->tensors[at].name, name);
	if (c == 0)
		return (int64_t)at;
	/* Doubles the distance until the name is passed. The tensor then lies between this probe
	 * and the one before. */
	while (c < 0 ? at + far < hi : at - lo >= far) {
		size_t look = c < 0 ? at + far : at - far;
		int d = shf_natural(l->tensors[look].name, name);

		if (d == 0)
			return (int64_t)look;
		if ((c < 0) != (d < 0))
			return c < 0 ? find_between(l, at + far / 2, look, name)
			             : find_between(l, look, at - far / 2, name);
		far *= 2;
	}
	return c < 0 ? find_between(l, at + far / 2, hi, name)
	             : find_between(l, lo, at - far / 2, name);
}

const char *shf_layout_tied_to(const struct shf_layout *l, const char *family, const char *name)
{
	for (size_t i = 0; i < l->tied_n; i++)
		if (strcmp(l->tied[i].name, name) == 0 &&
		    strcmp(l->families[l->tied[i].family].name, family) == 0)
			return l->tied[i].to;
	return NULL;
}

/* A binary search for the last file that begins at or before the stripe. A file has at least a
 * header, so each has a stripe and first_stripe strictly ascends. */
uint32_t shf_layout_stripe_file(const struct shf_layout *l, uint64_t stripe)
{
	size_t lo = 0, hi = l->files_n;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (l->files[mid].first_stripe <= stripe)
			lo = mid;
		else
			hi = mid;
	}
	return (uint32_t)lo;
}

/* Ends of tensors ascend with their offsets, as tensors do not overlap, so a binary search by
 * the end is valid. */
uint32_t shf_layout_at(const struct shf_layout *l, uint32_t file, uint64_t at)
{
	uint32_t lo = l->files[file].first_tensor, hi = lo + l->files[file].tensors_n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[mid]];

		if (t->off + t->bytes <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Describes a stripe for the dealer, which knows no layout: the tensors that have bytes in it,
 * renumbered from 0. Empty tensors need no planning. Loose tensors, whose offset is no multiple
 * of their unit, cannot be cut at pages; other code reads them whole. */
int shf_layout_stripe(const struct shf_layout *l, uint64_t stripe, struct shf_arena *arena,
                      struct shf_stripe *out, const uint32_t **numbers)
{
	uint32_t f = shf_layout_stripe_file(l, stripe);
	const struct shf_lt_file *file = &l->files[f];
	uint64_t index = stripe - file->first_stripe;
	uint64_t lo = index * SHF_STRIPE;
	uint64_t hi = file->bytes - lo > SHF_STRIPE ? lo + SHF_STRIPE : file->bytes;
	uint32_t first = shf_layout_at(l, f, lo), end = file->first_tensor + file->tensors_n;
	size_t n = 0, max = 0;

	for (uint32_t i = first; i < end && l->tensors[l->by_place[i]].off < hi; i++)
		max++;
	struct shf_deal_tensor *t = shf_arena_alloc(arena, max + 1, sizeof(*t));
	uint32_t *num = shf_arena_alloc(arena, max + 1, sizeof(*num));

	if (!t || !num)
		return SHEAF_ENOMEM;
	for (uint32_t i = first; i < first + max; i++) {
		const struct shf_lt_tensor *lt = &l->tensors[l->by_place[i]];

		if (lt->bytes == 0 || lt->loose)
			continue;
		num[n] = l->by_place[i];
		t[n] = (struct shf_deal_tensor){ (uint32_t)n, lt->unit, lt->off, lt->shape };
		n++;
	}
	*out = (struct shf_stripe){ .file = f, .index = index, .lo = lo, .hi = hi,
		.payload = file->header_bytes, .tensors = t, .tensors_n = n };
	*numbers = num;
	return 0;
}

/* Sizes are left out because dtype and shape determine them. The NUL after a name separates it
 * from what follows. */
uint64_t shf_layout_hash(const struct shf_layout *l)
{
	uint64_t crc = shf_crc64(NULL, 0);

	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];
		uint8_t tail[24];

		crc = shf_crc64_more(crc, t->name, strlen(t->name) + 1);
		crc = shf_crc64_more(crc, t->items.dim, sizeof(int64_t) * (size_t)t->items.ndim);
		shf_put32(tail, t->family);
		shf_put32(tail + 4, t->file);
		shf_put32(tail + 8, (uint32_t)t->dtype);
		shf_put32(tail + 12, (uint32_t)t->items.ndim);
		shf_put64(tail + 16, t->off);
		crc = shf_crc64_more(crc, tail, sizeof(tail));
	}
	for (size_t i = 0; i < l->families_n; i++)
		crc = shf_crc64_more(crc, l->families[i].name, strlen(l->families[i].name) + 1);
	return crc;
}

int shf_gap_fail(struct sheaf_error *err, const struct shf_layout *l, uint32_t tensor,
                 const struct shf_gap *gap)
{
	const struct shf_lt_tensor *t = &l->tensors[tensor];
	char box[160], shape[120], ranks[128] = "";

	if (gap->before >= 0 && gap->after >= 0)
		snprintf(ranks, sizeof(ranks), " (rank %" PRId64 " holds the part before, rank "
		         "%" PRId64 " the part after)", gap->before, gap->after);
	else if (gap->before >= 0 || gap->after >= 0)
		snprintf(ranks, sizeof(ranks), " (rank %" PRId64 " holds the part %s)",
		         gap->before >= 0 ? gap->before : gap->after,
		         gap->before >= 0 ? "before" : "after");
	return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: no rank has added a slice for %s of %s%s",
	                l->families[t->family].name, t->name,
	                shf_box_print(&gap->box, box, sizeof(box)),
	                shf_shape_print(&t->shape, shape, sizeof(shape)), ranks);
}
