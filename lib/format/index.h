/* SPDX-License-Identifier: Apache-2.0 */
/* <family>.safetensors.index.json, which says in which file each tensor of a family is:
 * {"metadata":{"total_size":n},"weight_map":{name:file}}, 2-space indent, natural order of names,
 * LF at the end. */
#ifndef SHF_INDEX_H
#define SHF_INDEX_H
#include "mem.h"
#include "sheaf.h"

struct shf_index_entry {
	const char *name, *file;        /* in the arena */
};
struct shf_index {
	struct shf_index_entry *entries;        /* in the order in which the index lists them */
	size_t n;
	uint64_t total_size;            /* UINT64_MAX: the index does not say */
	bool leaves;                    /* of an index that was refused: because a file in it is
	                                 * not a plain name, so it could lead out of the
	                                 * directory */
};
/* Parses the n bytes of an index; `where` names it in sentences. Unknown members and metadata are
 * accepted as they are. weight_map is checked: all values are strings, no name occurs twice, and
 * files are plain names in the directory of the index (no slash, not . or ..). Returns 0,
 * SHEAF_ENOMEM or SHEAF_EFORMAT. */
int shf_index_parse(struct shf_index *ix, struct shf_arena *arena, const uint8_t *bytes, size_t n,
                    const char *where, struct sheaf_error *err);
/* Appends an index to out. entries must be in natural order of names. Returns 0 or SHEAF_ENOMEM. */
int shf_index_write(struct shf_buf *out, const struct shf_index_entry *entries, size_t n,
                    uint64_t total_size);
/* Tensors that an index has wrong: how many, and the name of one, escaped. */
struct shf_index_wrong { size_t n; const char *name; };
/* Appends "<where>: <how an index differs from the headers>". moved: tensors that are in a file
 * other than the one it says; unlisted: tensors that it does not list. One of both has some. */
void shf_index_describe(struct shf_buf *out, const char *where, struct shf_index_wrong moved,
                        struct shf_index_wrong unlisted);
#endif
