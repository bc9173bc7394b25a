/* SPDX-License-Identifier: Apache-2.0 */
#include "tr_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* If bytes of the last character of a text in UTF-8 are missing, removes that character, because
 * JSON cannot have a part of one. */
static void remove_cut_character(char *text)
{
	size_t n = strlen(text), first = n;

	while (first > 0 && n - first < 3 && (text[first - 1] & 0xc0) == 0x80)
		first--;
	if (first > 0) {
		int lead = text[first - 1] & 0xf8;
		size_t bytes = lead == 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;

		if (n - (first - 1) < bytes)
			text[first - 1] = 0;
	}
}

int tr_fail(struct tr_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	err->rank = -1;
	va_start(ap, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	remove_cut_character(err->msg);
	return code;
}
