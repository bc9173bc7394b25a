/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for the formats that place tensors among other bytes of a file. */
#ifndef SHF_EXPORT_PLACE_H
#define SHF_EXPORT_PLACE_H
#include "export_format.h"

/* Counts the tensors and bytes of each family, whose tensors follow one another. Until then none of
 * them can be found by name. */
void shf_export_count(struct shf_layout *l);
/* Counts the tensors of each family of the plan, and lists all tensors, in the arena of the plan,
 * family by family: those of a family in the order in which they lie in the step, so that it is
 * read from its beginning to its end. NULL: no memory. */
uint32_t *shf_export_by_source(struct shf_export_plan *plan, const struct sheaf_checkpoint *step,
                               struct sheaf_error *err);
/* Divides the tensors, listed in `order`, among files of at most so many bytes, and of one tensor
 * if it alone has more. A family has files of its own, at least one. more: bytes that a tensor
 * takes in a file beside its own. Returns how many files there are. */
size_t shf_export_divide(struct shf_export_plan *plan, const uint32_t *order, uint64_t most,
                         uint64_t more);
/* Makes room for files without names, and tables for CRC-32 if they have zip records. */
int shf_export_files_make(struct shf_export_plan *plan, size_t files_n, bool zip,
                          struct sheaf_error *err);
/* Ends a file, whose tensors have their offsets. name: in the arena, or static; NULL: there was no
 * memory for it. */
int shf_export_file_end(struct shf_export_plan *plan, uint32_t f, const char *name, uint64_t bytes,
                        struct sheaf_error *err);
/* Ends an index. Returns its name, or "" after setting *rc if there was no memory for it (NULL) or
 * for its bytes. */
const char *shf_export_index_end(const char *name, const struct shf_buf *out, int *rc,
                                 struct sheaf_error *err);
/* Ends the file of a format that makes one, and numbers the tensors by their places. */
int shf_export_only_file_end(struct shf_export_plan *plan, uint64_t bytes, struct sheaf_error *err);
#endif
