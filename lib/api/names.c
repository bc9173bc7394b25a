/* SPDX-License-Identifier: Apache-2.0 */
/* The names of codes, item types and of this sheaf. */
#include "sheaf.h"

#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "export.h"
#include "version.h"

SHEAF_API const char *sheaf_strerror(int code)
{
	switch (code) {
	case SHEAF_OK:
		return "success";
	case SHEAF_EINVAL:
		return "invalid argument";
	case SHEAF_ENOMEM:
		return "out of memory";
	case SHEAF_EIO:
		return "input or output error";
	case SHEAF_ENOENT:
		return "no such run, step or file";
	case SHEAF_EEXIST:
		return "the step exists already";
	case SHEAF_EBUSY:
		return "in use by another job, or too many saves in flight";
	case SHEAF_EAGAIN:
		return "not yet";
	case SHEAF_ELAYOUT:
		return "slices leave a gap or do not match what is stored";
	case SHEAF_ECORRUPT:
		return "bytes do not match their checksum";
	case SHEAF_EFORMAT:
		return "not a checkpoint, or written by a newer sheaf";
	case SHEAF_EINDOUBT:
		return "published, but perhaps not durable";
	case SHEAF_EBUG:
		return "sheaf broke its own invariant";
	case SHEAF_ELOST:
		return "a rank or the lock was lost";
	case SHEAF_EDIVERGED:
		return "replicas that should be equal are not";
	case SHEAF_EFAILED:
		return "the save was given up";
	default:
		return "unknown code";
	}
}

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
	const struct shf_dtype *d = shf_dtype(dtype);

	return d ? d->name : NULL;
}

SHEAF_API int sheaf_dtype_bits(int dtype)
{
	const struct shf_dtype *d = shf_dtype(dtype);

	return d ? d->bits : 0;
}

SHEAF_API int sheaf_dtype_from_name(const char *name)
{
	return name ? shf_dtype_from(name, strlen(name)) : 0;
}
