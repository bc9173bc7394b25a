/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a step. Digests of tensors are combined over all ranks by one all-reduce (XOR)
 * in place, so each rank holds one digest for each tensor. Sums of headers and blocks go to rank 0,
 * which compares digests and block sums for every file (I4) and makes the table of sheaf.sums. */
#include "save_sums.h"
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "save.h"
#include "sums.h"

void shf_save_sums_put(const struct sheaf_save *save, struct shf_buf *b)
{
	uint64_t headers = 0;

	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		headers += save->copy.headers[f] != 0;
	shf_buf_u64(b, headers);
	for (size_t f = 0; f < save->plan->layout.files_n; f++)
		if (save->copy.headers[f]) {
			shf_buf_u32(b, (uint32_t)f);
			shf_buf_u64(b, save->copy.headers[f]);
		}
	shf_buf_u64(b, save->copy.blocks_n);
	for (size_t i = 0; i < save->copy.blocks_n; i++) {
		shf_buf_u64(b, save->copy.blocks[i].block);
		shf_buf_u64(b, save->copy.blocks[i].part);
	}
}

int shf_save_sums_take(struct shf_save_sums_in *in, const struct shf_layout *l, struct shf_cur *c)
{
	for (uint64_t n = shf_cur_u64(c); n > 0; n--) {
		uint32_t f = shf_cur_u32(c);

		if (!always(!c->bad && f < l->files_n))
			return SHEAF_EBUG;
		in->headers[f] ^= shf_cur_u64(c);
	}
	for (uint64_t n = shf_cur_u64(c); n > 0; n--) {
		uint64_t block = shf_cur_u64(c), part = shf_cur_u64(c);

		if (!always(!c->bad && block < l->blocks_n))
			return SHEAF_EBUG;
		in->blocks[block] ^= part;
	}
	return always(!c->bad) ? 0 : SHEAF_EBUG;
}

/* ---- the table, on rank 0 ---- */

/* An entry of the index by key in sheaf.sums: the key of a tensor (a hash of its name), and the
 * tensor's number in the table. */
struct slot {
	uint64_t key;
	uint32_t number;
};

/* Sorts by key, then by number. */
static int slot_order(const void *a, const void *b)
{
	const struct slot *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Computes the sum of a file that I4 compares, from the digests of its tensors and its header. The
 * tensors follow each other in the file without gaps, so each digest is appended by a shift. */
static uint64_t sum_by_tensors(const struct shf_layout *l, size_t f,
                               const struct shf_save_sums_in *in)
{
	const struct shf_lt_file *file = &l->files[f];
	uint64_t raw = in->headers[f];

	for (uint32_t i = 0; i < file->tensors_n; i++) {
		uint32_t n = l->by_place[file->first_tensor + i];

		raw = shf_crc64_shift(raw, l->tensors[n].bytes) ^ in->digests[n];
	}
	return raw;
}

/* Turns the raw block sums into standard CRCs, in place, and computes the sums of whole files from
 * them. ECORRUPT if a file's sum differs from that of its tensors (I4). */
static int sum_files(const struct sheaf_save *save, const struct shf_save_sums_in *in,
                     uint64_t *file_crc, struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	uint64_t *blocks = in->blocks;
	struct shf_crc64_by *by = shf_alloc(1, sizeof(*by));
	int rc = 0;

	if (by)
		shf_crc64_by_init(by, SHF_BLOCK);
	for (size_t f = 0; f < l->files_n && rc == 0; f++) {
		const struct shf_lt_file *file = &l->files[f];
		uint64_t raw = 0;

		for (uint64_t at = 0, b = file->first_block; at < file->bytes;
		     at += SHF_BLOCK, b++) {
			uint64_t n = file->bytes - at < SHF_BLOCK ? file->bytes - at : SHF_BLOCK;

			raw = (by && n == SHF_BLOCK ? shf_crc64_by(by, raw)
						    : shf_crc64_shift(raw, n)) ^
			      blocks[b];
			blocks[b] ^= shf_crc64_ones(n);
		}
		file_crc[f] = raw ^ shf_crc64_ones(file->bytes);
		if (raw != sum_by_tensors(l, f, in))
			rc = shf_fail(err, SHEAF_ECORRUPT,
			              "step %lld: %s: the checksums of the copied tensors and of "
			              "the file's blocks do not match: memory is faulty, or a "
			              "tensor was modified before sheaf_save_wait_copied returned",
			              (long long)save->id.step, file->name);
	}
	shf_free(by);
	return rc;
}

/* ---- the table without the checksums, the same in every save of the plan ---- */

/* Writes the records of all tensors, their names, and the index by key. The digests are written
 * later. */
static void put_tensors(const struct shf_layout *l, const struct shf_sums_head *h, uint8_t *table,
                        struct slot *slots)
{
	uint64_t name_off = 0;

	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[i]];

		slots[i] = (struct slot){ shf_sums_key(l->families[t->family].name, t->name),
		                          (uint32_t)i };
	}
	if (l->tensors_n)
		qsort(slots, l->tensors_n, sizeof(*slots), slot_order);
	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[l->by_place[i]];
		const char *family = l->families[t->family].name;
		size_t fam_n = strlen(family), name_n = strlen(t->name);
		struct shf_sums_tensor r = { .off = t->off, .bytes = t->bytes, .file = t->file,
			.name_bytes = (uint32_t)(fam_n + 1 + name_n), .name_off = name_off,
			.key = shf_sums_key(family, t->name), .dtype = (uint16_t)t->dtype,
			.ndim = (uint8_t)t->items.ndim, .slot = slots[i].number,
			.items = shf_shape_units(&t->items) };

		shf_sums_put_tensor(table + h->tensors_off + i * SHF_SUMS_TENSOR, &r);
		memcpy(table + h->names_off + name_off, family, fam_n + 1);
		memcpy(table + h->names_off + name_off + fam_n + 1, t->name, name_n + 1);
		name_off += fam_n + name_n + 2;
	}
}

/* Writes the head and the records of all files. */
static void put_files(const struct shf_layout *l, const struct shf_sums_head *h, uint8_t *table)
{
	uint64_t first = 0;

	shf_sums_put_head(table, h);
	for (size_t f = 0; f < l->files_n; f++) {
		const struct shf_lt_file *file = &l->files[f];
		struct shf_sums_file r = { file->bytes, file->first_block, first, file->tensors_n,
		                           (uint32_t)file->header_bytes };

		shf_sums_put_file(table + h->files_off + f * SHF_SUMS_FILE, &r);
		first += file->tensors_n;
	}
}

/* Makes the table without checksums. *h: its layout. ENOMEM. */
static int table_new(const struct shf_layout *l, struct shf_sums_head *h, struct shf_buf *out)
{
	struct slot *slots = shf_alloc(l->tensors_n, sizeof(*slots));
	uint8_t *table = NULL;

	*h = (struct shf_sums_head){ .files_n = l->files_n, .tensors_n = l->tensors_n,
	                             .blocks_n = l->blocks_n };
	for (size_t i = 0; i < l->tensors_n; i++)
		h->names_bytes += strlen(l->families[l->tensors[i].family].name) +
		                  strlen(l->tensors[i].name) + 2;
	if (slots && always(shf_sums_layout(h))) /* cannot overflow: its parts are in memory
	                                          * already */
		table = shf_buf_extend(out, (size_t)h->bytes);
	if (table) {
		put_tensors(l, h, table, slots);
		put_files(l, h, table);
	}
	shf_free(slots);
	return table ? 0 : SHEAF_ENOMEM;
}

/* Appends the table without checksums to out, from the plan's stock if that has it; else makes it,
 * and keeps a copy in the stock unless it is too large. ENOMEM. */
static int table_of_plan(struct shf_plan *plan, struct shf_sums_head *h, struct shf_buf *out)
{
	struct shf_record_cache *stock = &plan->stock;
	int rc;

	if (stock->table.len) {
		*h = stock->head;
		shf_buf_add(out, stock->table.data, stock->table.len);
		return out->oom ? SHEAF_ENOMEM : 0;
	}
	rc = table_new(&plan->layout, h, out);
	if (rc == 0 && h->bytes <= SHF_RECORD_CACHE_MAX) {
		shf_buf_add(&stock->table, out->data, out->len);
		stock->head = *h;
		if (stock->table.oom) /* no memory: the next save makes it again */
			shf_buf_release(&stock->table);
	}
	return rc;
}

/* ---- the checksums ---- */

/* Writes digests and block sums into the table, and last the CRC of each page of the table, which
 * covers these. */
static void put_sums(const struct shf_layout *l, const struct shf_sums_head *h, uint8_t *table,
                     const struct shf_save_sums_in *in)
{
	uint64_t at = 0, p = h->pages_off;

	for (size_t i = 0; i < l->tensors_n; i++)
		shf_put64(table + h->tensors_off + i * SHF_SUMS_TENSOR + SHF_SUMS_DIGEST,
		          in->digests[l->by_place[i]]);
	for (uint64_t b = 0; b < l->blocks_n; b++)
		shf_put64(table + h->blocks_off + 8 * b, in->blocks[b]);
	for (; at < h->pages_off; at += SHF_SUMS_PAGE, p += 8) {
		uint64_t n = shf_sums_page_bytes(h, at / SHF_SUMS_PAGE);

		shf_put64(table + p, shf_crc64(table + at, (size_t)n));
	}
}

int shf_save_sums_make(const struct sheaf_save *save, const struct shf_save_sums_in *in,
                       struct shf_arena *arena, struct shf_save_sums_out *out,
                               struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	struct shf_sums_head h;
	int rc;

	out->file_crc = shf_arena_alloc(arena, l->files_n + 1, sizeof(*out->file_crc));
	if (!out->file_crc || table_of_plan(save->plan, &h, &out->table) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the sums of %zu tensors",
		                l->tensors_n);
	rc = sum_files(save, in, out->file_crc, err);
	put_sums(l, &h, out->table.data, in);
	out->crc = shf_sums_crc(&h, out->table.data, out->table.data + h.pages_off);
	return rc;
}

int shf_save_sums_new(struct shf_save_sums_in *in, const struct sheaf_save *save,
                      struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;

	in->headers = shf_zalloc(l->files_n, sizeof(*in->headers));
	in->blocks = shf_zalloc(l->blocks_n, sizeof(*in->blocks));
	in->digests = save->copy.held;
	return in->headers && in->blocks ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for sums");
}

void shf_save_sums_free(struct shf_save_sums_in *in)
{
	shf_free(in->headers);
	shf_free(in->blocks);
}
