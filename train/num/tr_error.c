/* SPDX-License-Identifier: Apache-2.0 */
#include "tr_error.h"

#include <stdarg.h>
#include <stdio.h>

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
	return code;
}
