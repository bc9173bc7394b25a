/* SPDX-License-Identifier: Apache-2.0 */
/* An error: its code, the rank where it happened, and a message of one line. */
#ifndef TR_ERROR_H
#define TR_ERROR_H

/* The codes and their numbers are those of sheaf.h (run/bind.c asserts it). */
enum tr_code {
	TR_EINVAL = -1, TR_ENOMEM = -2, TR_EIO = -3, TR_ENOENT = -4, TR_EAGAIN = -7,
	TR_ELAYOUT = -8, TR_ECORRUPT = -9, TR_EFORMAT = -10, TR_EBUG = -12, TR_ELOST = -13,
	TR_EDIVERGED = -14, TR_EFAILED = -15,
	/* The trainer's own. */
	TR_ENAN = -100,                 /* the loss is not a number */
	TR_ENOSPC = -101                /* a checkpoint has no room on the disk */
};
struct tr_error {
	int code;
	int rank;                       /* -1: unknown */
	char msg[500];
};
/* Writes a message, and returns the code. A message that is too long ends with a whole character of
 * UTF-8. */
int tr_fail(struct tr_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#endif
