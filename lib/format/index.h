/* SPDX-License-Identifier: Apache-2.0 */
/* <family>.safetensors.index.json: {"metadata":{"total_size":n},"weight_map":{name:file}},
 * 2-space indent, natural order, LF at the end. */
#ifndef SHF_INDEX_H
#define SHF_INDEX_H
#include "mem.h"
#include "sheaf.h"

struct shf_index_entry {
	const char *name, *file;        /* in the arena */
};
struct shf_index {
	struct shf_index_entry *entries;        /* in the order of the file */
	size_t n;
	uint64_t total_size;            /* UINT64_MAX: absent */
};
/* Lenient about unknown members and metadata, strict about the map: strings only, no duplicate
 * names, files plain names of that directory (no slash, not . or ..). */
int shf_index_parse(struct shf_index *ix, struct shf_arena *arena, const uint8_t *bytes, size_t n,
                    const char *where, struct sheaf_error *err);
/* Appends to out. entries in natural order. */
int shf_index_write(struct shf_buf *out, const struct shf_index_entry *entries, size_t n,
                    uint64_t total_size);
#endif
