/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where: every tensor of a step, its file and offset. Made from the ranks' slices when
 * saving (schema.c, then placement), read from headers when loading (catalog.c). The same on
 * every rank. Everything the planner needs, nothing it has to ask for.
 *
 * The room lib/layout owns struct shf_layout, the boxes that ranks hold of it (holds.h), and struct
 * shf_work, what each of them writes, reads and serves (match.h). It sees state, group, base, plan
 * and format, and neither a run nor a file: saves and loads are planned here alike.
 */
#ifndef SHF_LAYOUT_H
#define SHF_LAYOUT_H
#include "box.h"
#include "deal.h"
#include "mem.h"

/* A family and its spans of files and tensors, each of which is consecutive. */
struct shf_lt_family {
	const char *name, *dir;         /* dir: "." for model, else the name; "" foreign: "." */
	uint32_t first_file, files_n;
	uint32_t first_tensor, tensors_n;
	uint64_t bytes;
};
/* A tensor file. Its tensors are by_place[first_tensor] .. [first_tensor + tensors_n). Stripes
 * and blocks are numbered through all files of the step. */
struct shf_lt_file {
	const char *name;               /* relative to the step, with the family's folder */
	uint32_t family;
	uint32_t first_tensor, tensors_n;       /* in by_place */
	uint64_t header_bytes, bytes;
	uint64_t first_stripe, first_block;
};
struct shf_lt_tensor {          /* what planning looks at comes first */
	const char *name;
	uint32_t family, file;
	int32_t dtype;
	uint32_t unit;
	uint64_t off, bytes;            /* off: from the start of the file */
	struct shf_shape shape, items;  /* shape: in units */
	uint64_t digest;                /* loading, where sums exist */
	int32_t wide; /* foreign: dimensions, if more than we can hold; read as bytes alone */
	const int64_t *dims;            /* if wide: as in safetensors.h */
	bool loose;   /* foreign: off is no multiple of unit; not planned by stripes */
};
struct shf_lt_tied {
	uint32_t family;
	const char *name, *to;
};
struct shf_layout {
	struct shf_arena arena;         /* everything below lives here */
	struct shf_lt_family *families; size_t families_n;      /* model first, then by bytes */
	struct shf_lt_file *files; size_t files_n;              /* family by family */
	struct shf_lt_tensor *tensors;
	size_t tensors_n;               /* by family, natural order of names */
	uint32_t *by_place;             /* tensor numbers by file, then offset, then number */
	struct shf_lt_tied *tied; size_t tied_n;                /* by family, natural order */
	uint64_t stripes_n, blocks_n;
};
void shf_layout_release(struct shf_layout *l);

/* Families, files, stripes and blocks from tensors that are filled but for file and off; in the
 * order of `tensors`. ENOMEM, EINVAL. */
int shf_layout_place(struct shf_layout *l, uint64_t file_bytes_max, struct sheaf_error *err);
/* first_stripe, first_block, stripes_n, blocks_n and by_place from files and offsets. */
int shf_layout_number(struct shf_layout *l, struct sheaf_error *err);
/* The header of file f, padded. Appends. */
int shf_layout_header(const struct shf_layout *l, uint32_t file, struct shf_buf *out,
                      struct sheaf_error *err);
/* Number of a tensor, or -1. */
int64_t shf_layout_find(const struct shf_layout *l, const char *family, const char *name);
/* The same in family number `family`, from tensor `near` of it on: names that are near each other
 * in the order are found with few looks. */
int64_t shf_layout_find_near(const struct shf_layout *l, uint32_t family, uint32_t near,
                             const char *name);
int64_t shf_layout_family(const struct shf_layout *l, const char *family);
/* Where a tied name's bytes are: NULL if it is not tied. */
const char *shf_layout_tied_to(const struct shf_layout *l, const char *family, const char *name);
/* Which file a stripe is of. */
uint32_t shf_layout_stripe_file(const struct shf_layout *l, uint64_t stripe);
/* The stripe's description for the dealer; tensors and their global numbers in the arena. */
int shf_layout_stripe(const struct shf_layout *l, uint64_t stripe, struct shf_arena *arena,
                      struct shf_stripe *out, const uint32_t **numbers);
/* First position in by_place of file f whose tensor ends after byte `at`. */
uint32_t shf_layout_at(const struct shf_layout *l, uint32_t file, uint64_t at);
/* A hash of all of it: equal layouts, equal hash. */
uint64_t shf_layout_hash(const struct shf_layout *l);
/* model first, then by bytes. */
int shf_family_order(const char *a, const char *b);
/* The sentence for a gap. */
int shf_gap_fail(struct sheaf_error *err, const struct shf_layout *l, uint32_t tensor,
                 const struct shf_gap *gap);
#endif
