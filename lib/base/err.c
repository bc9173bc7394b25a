/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages. Invariants: a msg is one line of well-formed UTF-8 that ends in a NUL, however
 * hostile the names in it, and errno is as the caller left it. */
#include "err.h"

#include <errno.h>
#include <locale.h>
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

/* Replaces every byte that belongs to no printable character by '?'. Names in a message may
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
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 32)
	const char *s = strerrordesc_np(sys);

	if (s)
		snprintf(text, 80, "%s", s);
	else
		snprintf(text, 80, "error %d", sys);
#elif defined(__GLIBC__)
	/* The locale "C" is constant data of the C library: nothing is allocated. */
	snprintf(text, 80, "%s", strerror_l(sys, newlocale(LC_ALL_MASK, "C", (locale_t)0)));
#else
	if (strerror_r(sys, text, 80) || !text[0])
		snprintf(text, 80, "error %d", sys);
#endif
}

/* A message is formatted in full before it is shortened, so that its end can be kept. */
#define WHOLE_MAX 9216  /* bytes: two of the longest paths and 1 KiB of text */

/* Returns the position where the character that contains byte `at` begins. */
static size_t char_begin(const char *s, size_t at)
{
	while (at && ((unsigned char)s[at] & 0xc0) == 0x80)
		at--;
	return at;
}

/* Writes n bytes of text to `to`, at most room of them, and returns how many. A text that is too
 * long loses its middle: a message begins with the place and ends with the reason, a path ends with
 * the name of the file, and a person needs both ends. Cuts are made between characters. `to` may
 * point to the text itself, or to memory before it. */
static size_t shorten(char *to, size_t room, const char *text, size_t n)
{
	size_t half = (room - 3) / 2, head, tail;

	if (n <= room) {
		memmove(to, text, n);
		return n;
	}
	head = char_begin(text, half);
	tail = char_begin(text, n - half);
	if (n - tail > half)    /* the tail begins with a character that does not fit: drop it */
		while (((unsigned char)text[++tail] & 0xc0) == 0x80)
			;
	memmove(to, text, head);
	memcpy(to + head, "...", 3);
	memmove(to + head + 3, text + tail, n - tail);
	return head + 3 + n - tail;
}

#define PATH_SHOWN 120  /* bytes of a path that a message shows */

/* Cuts the middle out of each word of text that has a '/' and more than PATH_SHOWN bytes. The text
 * after a long path says what to do about the error, and must not be lost for the path. */
static void shorten_paths(char *text)
{
	char *to = text;

	for (const char *s = text; *s;) {
		size_t n = strcspn(s, " ");

		to += shorten(to, n > PATH_SHOWN && memchr(s, '/', n) ? PATH_SHOWN : n + 3, s, n);
		s += n;
		for (; *s == ' '; s++)
			*to++ = ' ';
	}
	*to = '\0';
}

void shf_message(char *to, size_t room, const char *fmt, va_list ap)
{
	char whole[WHOLE_MAX];

	if (vsnprintf(whole, sizeof(whole), fmt, ap) < 0)
		snprintf(whole, sizeof(whole), "unprintable message");
	shorten_paths(whole);
	to[shorten(to, room - 1, whole, strlen(whole))] = '\0';
}

/* Fills *err. Room for the text of the errno is reserved before the message is shortened. */
static void error_fill(struct sheaf_error *err, int code, int sys, const char *fmt, va_list ap)
{
	/* Formatted in a buffer first: an argument may be the msg of this same error, which a
	 * caller extends. */
	char msg[MSG_MAX], why[80];
	int saved = errno;
	size_t room = sizeof(msg);

	if (sys) {
		/* Reserved first, so that a long path cannot push out the reason. */
		errno_text(why, sys);
		room -= strlen(why) + 2;
	}
	shf_message(msg, room, fmt, ap);
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

int shf_fail_sys_va(struct sheaf_error *err, int sys, const char *fmt, va_list ap)
{
	int code = shf_code_of(sys);

	if (err)
		error_fill(err, code, sys, fmt, ap);
	return code;
}

int shf_fail_sys(struct sheaf_error *err, int sys, const char *fmt, ...)
{
	va_list ap;
	int code;

	va_start(ap, fmt);
	code = shf_fail_sys_va(err, sys, fmt, ap);
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
	[-SHEAF_EFAILED] = { "EFAILED", "the save was aborted" },
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
