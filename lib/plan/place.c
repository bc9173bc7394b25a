/* SPDX-License-Identifier: Apache-2.0 */
/* Placement in two passes: the first finds where files end, the second lays each file out. Sizes
 * and alignments alone decide, never how the ranks hold the tensors, so that equal states give
 * equal bytes. */
#include "place.h"

#define CLASSES 5

/* Returns the class of a tensor; lower classes come first in a file. Class 0 has whole pages:
 * from the page-aligned start of the data each of them begins on a page, so a page seldom has
 * two owners. The others follow by falling alignment, so that each begins aligned without
 * padding: sizes of a class are multiples of its alignment. */
static int class_of(const struct shf_place_in *t)
{
	if (t->bytes > 0 && t->bytes % SHF_PAGE == 0)
		return 0;
	return t->align >= 8 ? 1 : t->align >= 4 ? 2 : t->align >= 2 ? 3 : 4;
}

/* Returns the end of the file that begins with tensor i: at least one tensor, and as many more
 * as fit the limits of payload and header. The tests subtract, because a sum might overflow;
 * the first one of each pair covers a single tensor that is itself beyond the limit. */
static size_t file_end(const struct shf_place_in *in, size_t n, size_t i, uint64_t bytes_max)
{
	uint64_t payload = in[i].bytes, header = in[i].header_bytes;

	for (i++; i < n; i++) {
		if (payload > bytes_max || in[i].bytes > bytes_max - payload)
			break;
		if (header > SHF_HEADER_MAX || in[i].header_bytes > SHF_HEADER_MAX - header)
			break;
		payload += in[i].bytes;
		header += in[i].header_bytes;
	}
	return i;
}

/* Gives every tensor of one file its offset, class by class. Five passes over the tensors keep
 * natural order inside each class without a sort. */
static struct shf_place_file lay_out(const struct shf_place_in *in, struct shf_place_out *out,
                                     size_t from, size_t to, uint32_t file)
{
	struct shf_place_file f = { 0 };

	for (int class = 0; class < CLASSES; class++) {
		for (size_t i = from; i < to; i++) {
			if (class_of(&in[i]) != class)
				continue;
			out[i] = (struct shf_place_out){ file, f.tensors_n, f.payload_bytes };
			f.tensors_n++;
			f.payload_bytes += in[i].bytes;
		}
	}
	return f;
}

int shf_place(struct shf_arena *arena, const struct shf_place_in *in, size_t n,
              uint64_t file_bytes_max, struct shf_place_out *out, struct shf_place_file **files,
              size_t *files_n)
{
	struct shf_place_file *f;
	size_t count = 0;

	for (size_t i = 0; i < n; i = file_end(in, n, i, file_bytes_max))
		count++;
	f = shf_arena_alloc(arena, count, sizeof(*f));
	if (!f)
		return SHEAF_ENOMEM;
	count = 0;
	for (size_t i = 0, end; i < n; i = end) {
		end = file_end(in, n, i, file_bytes_max);
		f[count] = lay_out(in, out, i, end, (uint32_t)count);
		count++;
	}
	*files = f;
	*files_n = count;
	return 0;
}
