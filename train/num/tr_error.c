/* SPDX-License-Identifier: Apache-2.0 */
#include "tr_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Removes a character of UTF-8 at the end of a text of which some bytes were cut off: JSON could
 * not hold it. */
static void end_with_a_character(char *text)
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
	end_with_a_character(err->msg);
	return code;
}
