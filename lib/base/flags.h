/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of sheaf.h by the calls that take them. */
#ifndef SHF_FLAGS_H
#define SHF_FLAGS_H
#include <stdint.h>
#include "sheaf.h"

#define SHF_SLICE_FLAGS                                                                            \
	(SHEAF_SLICE_FLAT | SHEAF_SLICE_OPTIONAL | SHEAF_SLICE_IN_PLACE | SHEAF_SLICE_STRIDED |    \
	 SHEAF_SLICE_SAVE_ONLY | SHEAF_SLICE_COPY)
#define SHF_RUN_FLAGS                                                                              \
	(SHEAF_RUN_CREATE | SHEAF_RUN_READONLY | SHEAF_RUN_REPLICAS | SHEAF_RUN_BUFFERED |         \
	 SHEAF_RUN_UNVERIFIED | SHEAF_RUN_METRICS)
#define SHF_SAVE_FLAGS                                                                             \
	(SHEAF_SAVE_LAZY | SHEAF_SAVE_NO_DISK | SHEAF_SAVE_MAY_DROP | SHEAF_SAVE_CHECK |           \
	 SHEAF_SAVE_LATER)
#define SHF_LOAD_FLAGS                                                                             \
	(SHEAF_LOAD_STRICT | SHEAF_LOAD_CONVERT | SHEAF_LOAD_DRY | SHEAF_LOAD_DERIVE |             \
	 SHEAF_LOAD_ZERO | SHEAF_LOAD_LENIENT)

/* The name of one of these flags, as "SHEAF_RUN_CREATE"; "" if sheaf.h has none of them. */
const char *shf_flag_name(uint64_t flags);
/* EINVAL if `flags` has a bit that is not in `known`. The message names the flag and the calls that
 * take it, if it is one of sheaf.h. what: where the flags stand, as "opts.flags". */
int shf_flags_check(uint64_t flags, uint64_t known, const char *what, struct sheaf_error *err);
#endif
