/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_record.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "index.h"

/* ---- index files and the lists of the manifest ---- */

/* Returns the part of the path after the last slash. */
static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int shf_layout_index(const struct shf_layout *l, const struct shf_lt_family *fam,
                     struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_index_entry *e = shf_alloc(fam->tensors_n, sizeof(*e));
	int rc;

	if (!e)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s", fam->name);
	for (uint32_t i = 0; i < fam->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[fam->first_tensor + i];

		e[i] = (struct shf_index_entry){ t->name, base_name(l->files[t->file].name) };
	}
	rc = shf_index_write(out, e, fam->tensors_n, fam->bytes);
	shf_free(e);
	if (rc < 0 || out->oom)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s", fam->name);
	return 0;
}

char *shf_layout_index_name(const struct shf_lt_family *fam, struct shf_arena *arena)
{
	bool top = strcmp(fam->dir, ".") == 0;
	char name[128];

	snprintf(name, sizeof(name), "%s%s%s.safetensors.index.json", top ? "" : fam->dir,
	         top ? "" : "/", fam->name);
	return shf_arena_strdup(arena, name, strlen(name));
}

int shf_layout_lists(const struct shf_layout *l, const uint64_t *file_crc, struct shf_arena *arena,
                     struct shf_manifest *m, struct sheaf_error *err)
{
	m->families = shf_arena_alloc(arena, l->families_n + 1, sizeof(*m->families));
	m->files = shf_arena_alloc(arena, l->files_n + 1, sizeof(*m->files));
	m->tied = shf_arena_alloc(arena, l->tied_n + 1, sizeof(*m->tied));
	if (!m->families || !m->files || !m->tied)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	for (size_t i = 0; i < l->families_n; i++) {
		const struct shf_lt_family *f = &l->families[i];

		m->families[i] = (struct shf_mf_family){ f->name, f->dir, f->files_n, f->tensors_n,
		                                         f->bytes };
	}
	for (size_t i = 0; i < l->files_n; i++)
		m->files[i] = (struct shf_mf_file){ l->files[i].name, l->files[i].bytes,
		                                    file_crc ? file_crc[i] : 0 };
	for (size_t i = 0; i < l->tied_n; i++)
		m->tied[i] = (struct shf_mf_tied){ l->families[l->tied[i].family].name,
		                                   l->tied[i].name, l->tied[i].to };
	m->families_n = l->families_n;
	m->files_n = l->files_n;
	m->tied_n = l->tied_n;
	return 0;
}

/* ---- the table of checksums ---- */

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

int shf_layout_table(const struct shf_layout *l, struct shf_sums_head *h, struct shf_buf *out)
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

/* Computes the sum of a file from the digests of its tensors and its header. The tensors follow one
 * another in it without gaps, so each digest is appended by a shift. */
static uint64_t sum_by_tensors(const struct shf_layout *l, size_t f,
                               const struct shf_layout_sums *in)
{
	const struct shf_lt_file *file = &l->files[f];
	uint64_t raw = in->headers[f];

	for (uint32_t i = 0; i < file->tensors_n; i++) {
		uint32_t n = l->by_place[file->first_tensor + i];

		raw = shf_crc64_shift(raw, l->tensors[n].bytes) ^ in->digests[n];
	}
	return raw;
}

int shf_layout_sums_end(const struct shf_layout *l, const struct shf_layout_sums *in,
                        uint64_t *file_crc, uint32_t *bad)
{
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
		if (raw != sum_by_tensors(l, f, in)) {
			*bad = (uint32_t)f;
			rc = SHEAF_ECORRUPT;
		}
	}
	shf_free(by);
	return rc;
}

/* The CRC of each page of the table comes last, because it covers digests and block sums. */
uint64_t shf_layout_table_end(const struct shf_layout *l, const struct shf_sums_head *h,
                              uint8_t *table, const struct shf_layout_sums *in)
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
	return shf_sums_crc(h, table, table + h->pages_off);
}
