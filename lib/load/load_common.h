/* SPDX-License-Identifier: Apache-2.0 */
/* What several files of a load need: the pass over bytes that were read, the image, the report. */
#ifndef SHF_LOAD_COMMON_H
#define SHF_LOAD_COMMON_H
#include "load.h"

/* Begins a pass over bytes [lo, lo + n) of a segment: lists the boxes in them that this rank wants.
 * ENOMEM. [local] */
int shf_load_pass_begin(struct shf_load *load, const struct shf_seg *seg, uint64_t lo, uint64_t n,
                        struct sheaf_error *err);
/* Makes the pass over the next n bytes of the segment, which are at p: copies the boxes that are
 * wanted, sums the bytes and checks their blocks. ECORRUPT. [local] */
int shf_load_pass_feed(struct shf_load *load, const uint8_t *p, uint64_t n,
                       struct sheaf_error *err);
/* Returns this rank's part of the load's image. */
uint8_t *shf_load_image(const struct shf_load *load);
/* Calls opts.progress, if there is one, with the bytes read so far. EFAILED: it ends the load. */
int shf_load_progress(const struct shf_load *load, struct sheaf_error *err);
/* Returns the name of the family of a tensor. */
const char *shf_load_family(const struct shf_load *load, const struct shf_lt_tensor *t);
/* Returns how many threads this rank may compute with: the processors that it may use divided by
 * the ranks of its node, and opts.io_threads at most. 0: there are more ranks than processors. */
int shf_load_threads(const struct sheaf_run *run);
/* Returns the number of the family's tensor that has the bytes of the slice, or -1 if no tensor has
 * them. Looks for `name`, for the name that the step ties `name` to, and for the slice's own
 * name. */
int64_t shf_load_find_stored(const struct shf_layout *l, const char *family, const char *name,
                             const struct shf_slice *s);
/* Sets *out to the slice with type and units of the stored tensor t. ELAYOUT if the shapes differ,
 * or if the types differ and `convert` is not set or no conversion exists. EFORMAT if t has too
 * many dimensions. [local] */
int shf_load_slice_adapt(struct shf_slice *out, const struct shf_slice *in,
                         const struct shf_lt_tensor *t, const char *family, bool convert,
                         struct sheaf_error *err);
/* Calls the caller's callback report->item, if there is one. what: the letter for what happened to
 * the tensor. */
void shf_load_report_item(const struct sheaf_report *report, int32_t kind, const char *family,
                          const char *name, const char *msg);
/* Reports each step that the search for the latest step passed over, with the reason, as item
 * SHEAF_REPORT_PASSED_OVER. passed: as in struct sheaf_checkpoint. */
void shf_load_report_passed(const struct shf_buf *passed, const struct sheaf_report *report);
#endif
