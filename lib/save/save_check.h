/* SPDX-License-Identifier: Apache-2.0 */
/* SHEAF_CHECK: finds memory of a slice that was changed before the gate of the slice had opened. */
#ifndef SHF_SAVE_CHECK_H
#define SHF_SAVE_CHECK_H
#include "save_pieces.h"

/* Sums the memory of all slices, before anything is copied. ENOMEM. */
int  shf_check_begin(struct shf_lazy *lz, struct sheaf_error *err);
/* The same for one slice that is about to be put, with its memory at base. */
int  shf_check_put(struct shf_lazy *lz, size_t slice, uint8_t *base, struct sheaf_error *err);
/* Compares the memory of a copied slice with those sums and with the copy. The first caller does
 * it, and no gate of the slice opens before it is done. EDIVERGED, EAGAIN. */
int  shf_check_slice(struct shf_lazy *lz, size_t slice, int timeout_ms, struct sheaf_error *err);
#endif
