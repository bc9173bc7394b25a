/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for error codes, names of item types, and the version. */
#include "sheaf.h"

#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export.h"
#include "version.h"

SHEAF_API const char *sheaf_strerror(int code)
{
	return shf_strerror(code);
}

SHEAF_API const char *sheaf_code_name(int code)
{
	return shf_code_name(code);
}

/* Parses SHEAF_VERSION_TEXT, "major.minor.patch", into major * 10000 + minor * 100 + patch. */
SHEAF_API int sheaf_version(void)
{
	const char *text = SHEAF_VERSION_TEXT;
	int version = 0;

	for (int part = 0; part < 3; part++) {
		char *end;

		version = version * 100 + (int)strtol(text, &end, 10);
		text = *end == '.' ? end + 1 : end;
	}
	return version;
}

SHEAF_API const char *sheaf_dtype_name(int dtype)
{
	const struct shf_dtype *d = shf_dtype_of_slice(dtype);

	return d ? d->name : NULL;
}

SHEAF_API int sheaf_dtype_bits(int dtype)
{
	const struct shf_dtype *d = shf_dtype_of_slice(dtype);

	return d ? d->bits : 0;
}

SHEAF_API int sheaf_dtype_from_name(const char *name)
{
	if (name && strcmp(name, "C128") == 0)
		return SHEAF_C128;
	return name ? shf_dtype_from(name, strlen(name)) : 0;
}
