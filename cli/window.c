/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a tensor in bounded memory, one window of its row-major items at a time. A window is a flat
 * range of the dense box, so it costs the same whatever the shape. */
#include "cli.h"
#include "sheaf-inspect.h"

#include <string.h>

#define BLOCK (INT64_C(1) << 20)

void cli_box_init(struct cli_box *b, const struct sheaf_tensor *t)
{
	*b = (struct cli_box){ .t = *t, .items = 1, .whole = true, .ndim = t->ndim,
		.wide = t->ndim > SHEAF_DIMS_MAX };
	if (b->wide) {
		b->t.ndim = 1;
		b->t.shape[0] = b->count[0] = b->items =
			(int64_t)(t->bytes * 8 / (uint64_t)sheaf_dtype_bits(t->dtype));
	}
	for (int d = 0; d < t->ndim && !b->wide; d++) {
		b->count[d] = t->shape[d];
		b->items *= t->shape[d];
	}
}

uint64_t cli_box_bytes(const struct cli_box *b, int64_t items)
{
	uint64_t bits = (uint64_t)sheaf_dtype_bits(b->t.dtype);

	return bits < 8 ? (uint64_t)items * bits / 8 : (uint64_t)items * (bits / 8);
}

int64_t cli_box_window(const struct cli_box *b, int64_t from, int64_t bytes)
{
	int64_t bits = sheaf_dtype_bits(b->t.dtype), items = bytes / bits * 8;
	int64_t at, room;

	/* If a window ends with a block, the next one begins with a block: no block is read and
	 * checked twice, and all data before a damaged block has been output. */
	if (b->whole && bits >= 8 && b->t.offset != UINT64_MAX) {
		at = (int64_t)((b->t.offset + cli_box_bytes(b, from)) % (uint64_t)BLOCK);
		room = (bytes - at) / (bits / 8);
		if (room > 0)
			items = room;
	}
	return items < b->items - from ? items : b->items - from;
}

int cli_box_read(struct sheaf_checkpoint *step, const struct cli_box *b, int64_t from, int64_t n,
		 void *dst, struct sheaf_error *err)
{
	struct sheaf_slice s = {
		.size = sizeof(s), .flags = SHEAF_SLICE_FLAT, .family = b->t.family,
		        .name = b->t.name,
		.dtype = b->t.dtype, .ndim = b->t.ndim, .flat_start = from, .flat_count = n,
		.data = dst,
	};

	memcpy(s.shape, b->t.shape, sizeof(s.shape));
	memcpy(s.start, b->start, sizeof(s.start));
	memcpy(s.count, b->count, sizeof(s.count));
	if (b->wide) {
		s.dtype = SHEAF_U8;
		s.shape[0] = s.count[0] = (int64_t)b->t.bytes;
		s.flat_start = (int64_t)cli_box_bytes(b, from);
		s.flat_count = (int64_t)cli_box_bytes(b, n);
	}
	return sheaf_checkpoint_read(step, &s, err);
}
