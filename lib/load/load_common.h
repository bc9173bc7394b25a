/* SPDX-License-Identifier: Apache-2.0 */
/* What several files of a load need: the pass over bytes that were read, the image, the report. */
#ifndef SHF_LOAD_COMMON_H
#define SHF_LOAD_COMMON_H
#include "load.h"

/* Begins the pass over bytes [lo, lo + n) of a segment, of which this rank may want some. ENOMEM.
 * */
int shf_load_begin(struct shf_load *load, const struct shf_seg *seg, uint64_t lo, uint64_t n,
                   struct sheaf_error *err);
/* Passes over the next n bytes: copies, sums and checks them. */
int shf_load_look(struct shf_load *load, const uint8_t *p, uint64_t n, struct sheaf_error *err);
/* This rank's share of the image that the load has. */
uint8_t *shf_load_image(const struct shf_load *load);
/* Calls the caller's progress function, if there is one. */
void shf_load_progress(const struct shf_load *load);
/* Name of the family of a tensor. */
const char *shf_load_family(const struct shf_load *load, const struct shf_lt_tensor *t);
/* Threads that a rank may compute with: as many as there are processors for it. */
int shf_load_threads(const struct sheaf_run *run);
/* Number of the family's tensor that has the slice's bytes: under `name`, under what that is tied
 * to, or under the slice's own name; -1. */
int64_t shf_find_stored(const struct shf_layout *l, const char *family, const char *name,
                        const struct shf_slice *s);
/* slice as the stored tensor t wants it: units and types. ELAYOUT. convert: types may differ. */
int shf_slice_adapt(struct shf_slice *out, const struct shf_slice *in,
                    const struct shf_lt_tensor *t, const char *family, bool convert,
                    struct sheaf_error *err);
/* Calls the caller's item function, if there is one. */
void shf_report_item(const struct sheaf_report *report, char what, const char *family,
                     const char *name, const char *msg);
/* Reports each of `passed` as 'P', if report has an item callback. */
void shf_sought_tell(const struct shf_buf *passed, const struct sheaf_report *report);
#endif
