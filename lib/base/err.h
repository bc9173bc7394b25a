/* SPDX-License-Identifier: Apache-2.0 */
/* Errors are values with a sentence: what, where, why. Whoever first knows writes it. */
#ifndef SHF_ERR_H
#define SHF_ERR_H
#include <stdarg.h>
#include "sheaf.h"

/* Fill *err (may be NULL) and return code. rank becomes -1, sys 0. No newline, no full stop,
 * no "failed to". Control bytes in the sentence are replaced by '?'. */
int shf_fail(struct sheaf_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same with an errno (positive): its text is appended after ": ". The code is chosen by
 * shf_code_of. */
int shf_fail_sys(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* errno (positive) -> sheaf_code: ENOMEM -> ENOMEM, ENOENT and ENOTDIR -> ENOENT, everything
 * else -> EIO. */
int shf_code_of(int sys);
void shf_error_clear(struct sheaf_error *err);

/* Where a wrong answer could reach the disk: stops a debug build, SHEAF_EBUG in a release.
 * Use: if (!always(x)) return shf_fail(err, SHEAF_EBUG, ...); */
#ifdef NDEBUG
#define always(x) (!!(x))
#else
#include <assert.h>
#define always(x) (assert(x), 1)
#endif
/* sheaf_strerror, for the library itself. */
const char *shf_strerror(int code);
#endif
