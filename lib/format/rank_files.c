/* SPDX-License-Identifier: Apache-2.0 */
/* Files with the opaque bytes of ranks: their names, and struct <-> bytes. */
#include "rank_files.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "decimal.h"
#include "err.h"
#include "safetensors.h"

static const char prefix[] = "rank-bytes.";
#define ENTRY 192                       /* more than a tensor takes in the header */
#define PADDING 8192                    /* more than the rest of the header takes */

bool shf_rank_file_is(const char *name)
{
	return strncmp(name, prefix, sizeof(prefix) - 1) == 0;
}

void shf_rank_file_name(char name[SHF_RANK_FILE_NAME], const char *stream, uint32_t first)
{
	snprintf(name, SHF_RANK_FILE_NAME, "%s%s.%" PRIu32, prefix, stream, first);
}

/* A stream may have dots in its name, and a number has none, so the number is what follows the last
 * dot. The comparison with the name that is made of it refuses other spellings of the number. */
bool shf_rank_file_of(const char *name, const char *stream, uint32_t *first)
{
	const char *dot = strrchr(name, '.');
	char again[SHF_RANK_FILE_NAME];
	uint64_t number = 0;

	if (!dot || strlen(name) >= sizeof(again))
		return false;
	for (const char *c = dot + 1; *c; c++) {
		if (!shf_is_digit(*c) || number > UINT32_MAX)
			return false;
		number = 10 * number + (uint64_t)(*c - '0');
	}
	if (number > UINT32_MAX)
		return false;
	shf_rank_file_name(again, stream, (uint32_t)number);
	*first = (uint32_t)number;
	return strcmp(name, again) == 0;
}

size_t shf_rank_file_takes(const struct shf_rank_part *parts, size_t n)
{
	uint64_t bytes = PADDING;
	size_t i = 0;

	while (i < n && (i == 0 || bytes + parts[i].n + ENTRY <= SHF_RANK_FILE_BYTES))
		bytes += parts[i++].n + ENTRY;
	return i;
}

int shf_rank_file_make(struct shf_buf *out, uint64_t *crc, const char *stream,
                       const struct shf_rank_part *parts, size_t n, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_st_tensor *t = shf_arena_alloc(&arena, n, sizeof(*t));
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; t && i < n; i++) {
		char name[SHF_RANK_FILE_NAME];

		snprintf(name, sizeof(name), "%s/%" PRIu32, stream, parts[i].rank);
		t[i] = (struct shf_st_tensor){ .name = shf_arena_strdup(&arena, name, strlen(name)),
			.dtype = SHEAF_U8, .ndim = 1, .shape = { (int64_t)parts[i].n },
			.off = at, .bytes = parts[i].n };
		at += parts[i].n;
		if (!t[i].name)
			rc = SHEAF_ENOMEM;
	}
	if (!t || rc < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "stream %s: no memory", stream);
	if (rc == 0)
		rc = shf_st_write(out, t, n, err);
	if (rc == 0)
		*crc = shf_crc64(out->data, out->len);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		shf_buf_add(out, parts[i].bytes, (size_t)parts[i].n);
		*crc = shf_crc64_shift(*crc, parts[i].n) ^ parts[i].crc;
	}
	if (rc == 0 && out->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "stream %s: no memory", stream);
	shf_arena_release(&arena);
	return rc;
}

int shf_rank_file_find(struct shf_rank_part *part, const char *stream, uint32_t rank,
                       const uint8_t *file, size_t n, const char *where, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_st st = { 0 };
	char name[SHF_RANK_FILE_NAME];
	uint64_t head = 0;
	int rc = shf_st_header_bytes(&head, file, n, where, err);

	if (rc == 0)
		rc = shf_st_parse(&st, &arena, file, (size_t)head, n, where, err);
	if (rc == 0) {
		snprintf(name, sizeof(name), "%s/%" PRIu32, stream, rank);
		rc = SHEAF_ENOENT;
	}
	for (size_t i = 0; i < st.n && rc == SHEAF_ENOENT; i++)
		if (strcmp(st.tensors[i].name, name) == 0) {
			*part = (struct shf_rank_part){ .rank = rank,
				.bytes = file + head + st.tensors[i].off,
				.n = st.tensors[i].bytes };
			rc = 0;
		}
	if (rc == SHEAF_ENOENT)
		shf_fail(err, rc, "%s: has no bytes of rank %" PRIu32, where, rank);
	shf_arena_release(&arena);
	return rc;
}
