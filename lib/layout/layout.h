/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a step: the file and offset of every tensor. A save makes it from the slices of all
 * ranks (schema.c, then shf_layout_place); a load reads it from the headers of the files
 * (catalog.c). It is the same on every rank, and planning needs no other data of the step.
 *
 * The room lib/layout owns struct shf_layout, the list of boxes that a rank holds of it (holds.h),
 * and struct shf_work, what each rank writes, reads and serves (match.h). It sees state, group,
 * base, plan and format, and neither a run nor a file, because it plans saves and loads alike.
 */
#ifndef SHF_LAYOUT_H
#define SHF_LAYOUT_H
#include "box.h"
#include "deal.h"
#include "mem.h"

/* A family. Its files and its tensors have consecutive numbers. */
struct shf_lt_family {
	const char *name, *dir;         /* dir: folder in the step; "." for model and for "", the
	                                 * family of a step without manifest */
	uint32_t first_file, files_n;
	uint32_t first_tensor, tensors_n;
	uint64_t bytes;                 /* bytes of all its tensors */
};
/* A tensor file. Its tensors are by_place[first_tensor] to by_place[first_tensor + tensors_n - 1].
 * Stripes and blocks are numbered through all files of the step. */
struct shf_lt_file {
	const char *name;               /* relative to the step, with the family's folder */
	uint32_t family;
	uint32_t first_tensor, tensors_n;       /* indices into by_place: the first, and how many */
	uint64_t header_bytes, bytes;   /* header_bytes: size of the header; bytes: size of the
	                                 * whole file */
	uint64_t first_stripe, first_block;
};
struct shf_lt_tensor {          /* members that planning reads come first */
	const char *name;
	uint32_t family, file;          /* numbers of its family and its file in the layout */
	int32_t dtype;
	uint32_t unit;                  /* bytes of a unit (box.h) */
	uint64_t off, bytes;            /* off: counted from the start of the file */
	struct shf_shape shape, items;  /* the same shape in units, and in items */
	uint64_t digest;                /* digest of the tensor's bytes; set on a load if the step
	                                 * has sums */
	/* The members below are 0 except in a foreign step (one that has no manifest). */
	int32_t wide;                   /* number of dimensions if above SHEAF_DIMS_MAX; such a
	                                 * tensor is read as bytes only */
	const int64_t *dims;            /* its dimensions, as in safetensors.h */
	bool loose;                     /* off is no multiple of unit: the tensor is read whole,
	                                 * and not by stripes */
};
struct shf_lt_tied {            /* a second name of a tensor */
	uint32_t family;
	const char *name, *to;          /* to: the tensor's own name, in the same family */
};
struct shf_layout {
	struct shf_arena arena;         /* everything below lives here */
	struct shf_lt_family *families; size_t families_n;      /* sorted by shf_family_order */
	struct shf_lt_file *files; size_t files_n;              /* sorted by family */
	struct shf_lt_tensor *tensors;
	size_t tensors_n;               /* sorted by family, then natural order of names */
	uint32_t *by_place;             /* tensor numbers sorted by file, then offset */
	struct shf_lt_tied *tied; size_t tied_n;        /* sorted by family, then natural order */
	uint64_t stripes_n, blocks_n;   /* numbers of stripes and blocks of all files */
};
void shf_layout_release(struct shf_layout *l);

/* Assigns every tensor to a file and an offset, and makes files, stripes and blocks. The tensors
 * must be filled except for file and off, and sorted; the families need their names and folders.
 * ENOMEM, EINVAL. [local] */
int shf_layout_place(struct shf_layout *l, uint64_t file_bytes_max, struct sheaf_error *err);
/* Computes by_place and each file's tensors in it, and numbers stripes and blocks, from the files'
 * sizes and the tensors' files and offsets. ENOMEM. [local] */
int shf_layout_number(struct shf_layout *l, struct sheaf_error *err);
/* Appends the safetensors header of a file to *out, padded. */
int shf_layout_header(const struct shf_layout *l, uint32_t file, struct shf_buf *out,
                      struct sheaf_error *err);
/* Returns the number of a tensor, or -1 if the layout does not have it. */
int64_t shf_layout_find(const struct shf_layout *l, const char *family, const char *name);
/* Does what shf_layout_find does, in family number `family`, for a caller who expects the tensor
 * near number `near`: the time of the search is the logarithm of the distance. */
int64_t shf_layout_find_near(const struct shf_layout *l, uint32_t family, uint32_t near,
                             const char *name);
/* Returns the number of a family, or -1 if the layout does not have it. */
int64_t shf_layout_family(const struct shf_layout *l, const char *family);
/* Returns the name of the tensor that `name` is tied to, or NULL if it is not tied. */
const char *shf_layout_tied_to(const struct shf_layout *l, const char *family, const char *name);
/* Returns the number of the file that contains a stripe. */
uint32_t shf_layout_stripe_file(const struct shf_layout *l, uint64_t stripe);
/* Describes a stripe for the dealer (deal.h). (*numbers)[i] is the number in the layout of tensor i
 * of the stripe. Both arrays are in the arena. ENOMEM. */
int shf_layout_stripe(const struct shf_layout *l, uint64_t stripe, struct shf_arena *arena,
                      struct shf_stripe *out, const uint32_t **numbers);
/* Returns the first position in by_place, among those of the file, whose tensor ends after byte
 * `at` of the file. */
uint32_t shf_layout_at(const struct shf_layout *l, uint32_t file, uint64_t at);
/* Returns a hash of every tensor's name, shape, type and place. Equal layouts have equal hashes. */
uint64_t shf_layout_hash(const struct shf_layout *l);
/* Compares two families as strcmp does, but "model" comes before all others. */
int shf_family_order(const char *a, const char *b);
/* Writes the error message for a gap, a box that no rank holds. Returns ELAYOUT. */
int shf_gap_fail(struct sheaf_error *err, const struct shf_layout *l, uint32_t tensor,
                 const struct shf_gap *gap);
#endif
