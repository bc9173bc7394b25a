/* SPDX-License-Identifier: Apache-2.0 */
/* Errors are values with a message: what failed, where, why, and what to do about it. The function
 * that first knows the reason writes it; its callers pass the code on. test/messages.txt lists all
 * messages, with a remedy or the reason why there is none. */
#ifndef SHF_ERR_H
#define SHF_ERR_H
#include <stdarg.h>
#include "sheaf.h"

/* Fills *err (may be NULL) and returns code. rank becomes -1, sys 0. fmt has no newline, no full
 * stop, no "failed to". Control bytes in the message are replaced by '?'. A path, or any other word
 * with a '/', loses its middle where it has more than 120 bytes, and a message that is still too
 * long loses its own. */
int shf_fail(struct sheaf_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Does what shf_fail does, for an errno (positive): its text is appended after ": ". Chooses the
 * code by shf_code_of and returns it. */
int shf_fail_sys(struct sheaf_error *err, int sys, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int shf_fail_sys_va(struct sheaf_error *err, int sys, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));
/* Writes such a message to `to`, which has room bytes, with the NUL. For texts that become part of
 * an error or a line of the log; control bytes stay. */
void shf_message(char *to, size_t room, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));
/* Returns the sheaf code of an errno (positive): ENOMEM for ENOMEM, ENOENT for ENOENT and ENOTDIR,
 * EIO for all others. */
int shf_code_of(int sys);
void shf_error_clear(struct sheaf_error *err);
/* Returns err, or own if the caller passed NULL, after clearing it. */
struct sheaf_error *shf_err_or(struct sheaf_error *err, struct sheaf_error *own);

/* For conditions whose failure could put wrong bytes on the disk. A false x stops a debug build; in
 * a release the value is false. Use: if (!always(x)) return shf_fail(err, SHEAF_EBUG, ...); */
#ifdef NDEBUG
#define always(x) (!!(x))
#else
#include <assert.h>
#define always(x) (assert(x), 1)
#endif
/* sheaf_strerror and sheaf_code_name, for the library itself. */
const char *shf_code_name(int code);
const char *shf_strerror(int code);
#endif
