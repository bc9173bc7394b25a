/* SPDX-License-Identifier: Apache-2.0 */
/* Error sentences. Invariants: a msg is one line of well-formed UTF-8 that ends in a NUL, however
 * hostile the names in it, and errno is as the caller left it. */
#include "err.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MSG_MAX sizeof(((struct sheaf_error *)0)->msg)

/* Returns how many bytes the well-formed, printable UTF-8 character at s has; 0 if no such
 * character begins there. s ends in a NUL. A C1 control (U+0080 .. U+009F) is not printable:
 * terminals obey it like an escape. */
static size_t char_bytes(const unsigned char *s)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t n;

	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] != 0x7f;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	if (s[0] == 0xc2 || s[0] == 0xe0)
		low = 0xa0;     /* C1 controls; overlong forms */
	if (s[0] == 0xf0)
		low = 0x90;     /* overlong forms */
	if (s[0] == 0xed)
		high = 0x9f;    /* surrogates */
	if (s[0] == 0xf4)
		high = 0x8f;    /* past U+10FFFF */
	if (s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < n; i++)
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	return n;
}

/* Replaces every byte that belongs to no printable character by '?'. Names in a sentence may
 * come from a hostile file, and a terminal obeys control bytes. */
static void clean(char *msg)
{
	unsigned char *s = (unsigned char *)msg;

	while (*s) {
		size_t n = char_bytes(s);

		if (!n)
			*s = '?';
		s += n ? n : 1;
	}
}

/* Writes the text of an errno, untranslated, to text; never empty. */
static void errno_text(char text[static 80], int sys)
{
#ifdef __GLIBC__
	const char *s = strerrordesc_np(sys);

	if (s)
		snprintf(text, 80, "%s", s);
	else
		snprintf(text, 80, "error %d", sys);
#else
	if (strerror_r(sys, text, 80) || !text[0])
		snprintf(text, 80, "error %d", sys);
#endif
}

/* The sentence is formatted in full before it is shortened, so that its end can be kept. */
#define WHOLE_MAX 8192  /* bytes: room for two of the longest paths */

/* Returns the position where the character that contains byte `at` begins. */
static size_t char_begin(const char *s, size_t at)
{
	while (at && ((unsigned char)s[at] & 0xc0) == 0x80)
		at--;
	return at;
}

/* Cuts the middle out of a sentence that is too long: it begins with the place and ends with
 * the reason, and a person needs both. Cuts are made between characters. room counts the NUL,
 * and "..." takes three bytes. */
static void shorten(char *to, size_t room, const char *text)
{
	size_t n = strlen(text), head, tail;

	if (n < room) {
		memcpy(to, text, n + 1);
		return;
	}
	head = char_begin(text, (room - 4) / 2);
	tail = char_begin(text, n - (room - 4) / 2);
	if (n - tail > (room - 4) / 2) /* the tail begins with a character that does not fit: drop
	                                * it */
		while (((unsigned char)text[++tail] & 0xc0) == 0x80)
			;
	memcpy(to, text, head);
	memcpy(to + head, "...", 3);
	memcpy(to + head + 3, text + tail, n - tail + 1);
}

/* Fills *err. Room for the text of the errno is reserved before the sentence is shortened. */
static void error_fill(struct sheaf_error *err, int code, int sys, const char *fmt, va_list ap)
{
	/* Formatted in a buffer first: an argument may be the msg of this same error, which a
	 * caller extends. */
	char whole[WHOLE_MAX], msg[MSG_MAX], why[80];
	int saved = errno;
	size_t room = sizeof(msg);

	if (sys) {
		/* Reserved first, so that a long path cannot push out the reason. */
		errno_text(why, sys);
		room -= strlen(why) + 2;
	}
	if (vsnprintf(whole, sizeof(whole), fmt, ap) < 0)
		snprintf(whole, sizeof(whole), "unprintable message");
	shorten(msg, room, whole);
	if (sys) {
		strcat(msg, ": ");
		strcat(msg, why);
	}
	clean(msg);
	err->code = code;
	err->sys = sys;
	err->rank = -1;
	memcpy(err->msg, msg, strlen(msg) + 1);
	errno = saved;
}

int shf_fail(struct sheaf_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	error_fill(err, code, 0, fmt, ap);
	va_end(ap);
	return code;
}

int shf_fail_sys(struct sheaf_error *err, int sys, const char *fmt, ...)
{
	int code = shf_code_of(sys);
	va_list ap;

	if (!err)
		return code;
	va_start(ap, fmt);
	error_fill(err, code, sys, fmt, ap);
	va_end(ap);
	return code;
}

/* ENOTDIR counts as ENOENT, as a path below a plain file does not exist. */
int shf_code_of(int sys)
{
	switch (sys) {
	case ENOMEM:
		return SHEAF_ENOMEM;
	case ENOENT:
	case ENOTDIR:
		return SHEAF_ENOENT;
	default:
		return SHEAF_EIO;
	}
}

void shf_error_clear(struct sheaf_error *err)
{
	if (!err)
		return;
	err->code = 0;
	err->sys = 0;
	err->rank = -1;
	err->msg[0] = 0;
}

struct sheaf_error *shf_err_or(struct sheaf_error *err, struct sheaf_error *own)
{
	err = err ? err : own;
	shf_error_clear(err);
	return err;
}

/* Index -code: the name of the code without its prefix, and a phrase for it. */
static const struct { const char *name, *says; } codes[] = {
	[-SHEAF_OK] = { "OK", "success" },
	[-SHEAF_EINVAL] = { "EINVAL", "invalid argument" },
	[-SHEAF_ENOMEM] = { "ENOMEM", "out of memory" },
	[-SHEAF_EIO] = { "EIO", "input or output error" },
	[-SHEAF_ENOENT] = { "ENOENT", "no such run, step or file" },
	[-SHEAF_EEXIST] = { "EEXIST", "the step exists already" },
	[-SHEAF_EBUSY] = { "EBUSY", "in use by another process" },
	[-SHEAF_EAGAIN] = { "EAGAIN", "not yet" },
	[-SHEAF_ELAYOUT] = { "ELAYOUT", "slices leave a gap or do not match what is stored" },
	[-SHEAF_ECORRUPT] = { "ECORRUPT", "bytes do not match their checksum" },
	[-SHEAF_EFORMAT] = { "EFORMAT", "not a checkpoint, or written by a newer sheaf" },
	[-SHEAF_EINDOUBT] = { "EINDOUBT", "published, but perhaps not durable" },
	[-SHEAF_EBUG] = { "EBUG", "sheaf broke its own invariant" },
	[-SHEAF_ELOST] = { "ELOST", "a rank or the lock was lost" },
	[-SHEAF_EDIVERGED] = { "EDIVERGED", "replicas that should be equal are not" },
	[-SHEAF_EFAILED] = { "EFAILED", "the save was given up" },
	[-SHEAF_EEND] = { "EEND", "past the end of the list" },
};

static bool is_code(int code)
{
	return code <= 0 && code > -(int)(sizeof(codes) / sizeof(codes[0]));
}

const char *shf_code_name(int code)
{
	return is_code(code) ? codes[-code].name : NULL;
}

const char *shf_strerror(int code)
{
	return is_code(code) ? codes[-code].says : "unknown code";
}
