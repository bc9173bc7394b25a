/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a step. Digests of tensors are combined over all ranks by one all-reduce (XOR)
 * in place, so each rank holds one digest for each tensor. Sums of headers and blocks go to rank 0,
 * which compares digests and block sums for every file (I4) and makes the table of sheaf.sums. */
#include "save_sums.h"
#include "err.h"
#include "save.h"

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

int shf_save_sums_take(struct shf_layout_sums *in, const struct shf_layout *l, struct shf_cur *c)
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
	rc = shf_layout_table(&plan->layout, h, out);
	if (rc == 0 && h->bytes <= SHF_RECORD_CACHE_MAX) {
		shf_buf_add(&stock->table, out->data, out->len);
		stock->head = *h;
		if (stock->table.oom) /* no memory: the next save makes it again */
			shf_buf_release(&stock->table);
	}
	return rc;
}

int shf_save_sums_make(const struct sheaf_save *save, const struct shf_layout_sums *in,
                       struct shf_arena *arena, struct shf_save_sums_out *out,
                               struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	struct shf_sums_head h;
	uint32_t bad;
	int rc;

	out->file_crc = shf_arena_alloc(arena, l->files_n + 1, sizeof(*out->file_crc));
	if (!out->file_crc || table_of_plan(save->plan, &h, &out->table) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the sums of %zu tensors",
		                l->tensors_n);
	rc = shf_layout_sums_end(l, in, out->file_crc, &bad);
	if (rc < 0)
		return shf_fail(err, rc, "step %lld: %s: the checksums of the copied tensors and "
		                "of the file's blocks do not match: memory is faulty, or a tensor "
		                "was modified before sheaf_save_wait_copied returned",
		                (long long)save->id.step, l->files[bad].name);
	out->crc = shf_layout_table_end(l, &h, out->table.data, in);
	return 0;
}

int shf_save_sums_new(struct shf_layout_sums *in, const struct sheaf_save *save,
                      struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;

	in->headers = shf_zalloc(l->files_n, sizeof(*in->headers));
	in->blocks = shf_zalloc(l->blocks_n, sizeof(*in->blocks));
	in->digests = save->copy.held;
	return in->headers && in->blocks ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for sums");
}

void shf_save_sums_free(struct shf_layout_sums *in)
{
	shf_free(in->headers);
	shf_free(in->blocks);
}
