/* SPDX-License-Identifier: Apache-2.0 */
/* If the step has sums, whole blocks are read and checked. In a foreign step only the bytes needed
 * are read. */
#include "export_fill.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "step_files.h"

#define ITEMS_MAX (UINT64_C(1) << 20)   /* bytes converted at once */

int shf_export_reader_init(struct shf_export_reader *r, struct sheaf_checkpoint *step,
                           const struct shf_export_plan *plan, struct sheaf_error *err)
{
	bool checks = step->sound && !(step->run->opts.flags & SHEAF_RUN_UNVERIFIED);

	*r = (struct shf_export_reader){ .step = step, .plan = plan };
	r->items = shf_alloc(ITEMS_MAX, 1);
	if (!r->items)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", step->path);
	return checks ? shf_checked_init(&r->checked, step, err) : 0;
}

void shf_export_reader_release(struct shf_export_reader *r)
{
	shf_free(r->items);
	shf_checked_release(&r->checked);
	r->items = NULL;
}

/* Reads n bytes at `at` of file f of the step. */
static int read_bytes(struct shf_export_reader *r, uint32_t f, uint64_t at, uint8_t *to, uint64_t n,
                      struct sheaf_error *err)
{
	uint64_t retries = 0;

	if (r->checked.blocks)
		return shf_checked_read(&r->checked, f, at, to, n, err);
	return n ? shf_step_file_read(r->step, f, to, n, at, &retries, err) : 0;
}

/* Writes n bytes at `at` of tensor i of the plan to `to`. */
static int fill_tensor(struct shf_export_reader *r, uint32_t i, uint64_t at, uint8_t *to,
                       uint64_t n, struct sheaf_error *err)
{
	const struct shf_lt_tensor *x = &r->plan->out.tensors[i];
	const struct shf_lt_tensor *t = &r->step->layout.tensors[r->plan->from[i]];
	uint64_t have, want;

	if (x->dtype == t->dtype)
		return read_bytes(r, t->file, t->off + at, to, n, err);
	have = shf_dtype(t->dtype)->bits / 8;
	want = shf_dtype(x->dtype)->bits / 8;
	for (uint64_t item = at / want, end = item + n / want; item < end;) {
		uint64_t some = end - item < ITEMS_MAX / have ? end - item : ITEMS_MAX / have;
		int rc = read_bytes(r, t->file, t->off + item * have, r->items, some * have, err);

		if (rc < 0)
			return rc;
		if (!always(shf_convert(to, x->dtype, r->items, t->dtype, (size_t)some) == 0))
			return shf_fail(err, SHEAF_EBUG, "%s: its type cannot be converted",
			                x->name);
		to += some * want;
		item += some;
	}
	return 0;
}

/* Bytes between tensors are those of the header; plan->before says how many come before. */
int shf_export_fill(struct shf_export_reader *r, uint32_t f, uint64_t at, uint8_t *to, uint64_t n,
                    struct sheaf_error *err)
{
	const struct shf_layout *l = &r->plan->out;
	const struct shf_export_file *file = &r->plan->files[f];
	uint32_t end = l->files[f].first_tensor + l->files[f].tensors_n;
	uint64_t tensors = file->bytes - file->header.len;
	int rc = 0;

	for (uint32_t k = n ? shf_layout_at(l, f, at) : 0; n && rc == 0;) {
		const struct shf_lt_tensor *x = k < end ? &l->tensors[l->by_place[k]] : NULL;
		uint64_t next = x ? x->off : file->bytes, some;

		if (at < next) {
			some = next - at < n ? next - at : n;
			memcpy(to, file->header.data + (at - (x ? r->plan->before[k] : tensors)),
			       (size_t)some);
		} else {
			some = x->off + x->bytes - at < n ? x->off + x->bytes - at : n;
			rc = fill_tensor(r, l->by_place[k++], at - x->off, to, some, err);
		}
		to += some;
		at += some;
		n -= some;
	}
	return rc;
}
