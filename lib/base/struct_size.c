/* SPDX-License-Identifier: Apache-2.0 */
/* A caller that was compiled with a newer header passes a longer struct, one with an older header a
 * shorter one. */
#include "struct_size.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "err.h"

#define STRUCT_BYTES_MAX 4096   /* a larger `size` was not set by the caller */

/* Reads the size with which a caller's struct begins. false: NULL, less than `least`, or not
 * set. */
static bool size_of(const void *s, size_t least, size_t *size)
{
	uint32_t n;

	if (!s)
		return false;
	memcpy(&n, s, sizeof(n));
	*size = n;
	return n >= least && n <= STRUCT_BYTES_MAX;
}

/* The size member stays as the caller set it. */
int shf_struct_out(void *to, const void *from, size_t bytes, size_t least, const char *name,
                   struct sheaf_error *err)
{
	size_t size = 0, skip = sizeof(uint32_t);

	if (!to)
		return shf_fail(err, SHEAF_EINVAL, "the struct sheaf_%s to fill is NULL", name);
	if (!size_of(to, least, &size))
		return shf_fail(err, SHEAF_EINVAL, "%s.size is %zu; set it to sizeof(struct "
		                "sheaf_%s)", name, size, name);
	memcpy((uint8_t *)to + skip, (const uint8_t *)from + skip,
	       (size < bytes ? size : bytes) - skip);
	if (size > bytes)
		memset((uint8_t *)to + bytes, 0, size - bytes);
	return 0;
}

int shf_struct_in(void *to, const void *from, size_t bytes, size_t least)
{
	uint32_t own = (uint32_t)bytes;
	size_t size;

	if (!size_of(from, least, &size))
		return SHEAF_EINVAL;
	/* Members that this version does not know must be 0. */
	for (size_t i = bytes; i < size; i++)
		if (((const uint8_t *)from)[i])
			return SHEAF_EINVAL;
	memset(to, 0, bytes);
	memcpy(to, from, size < bytes ? size : bytes);
	memcpy(to, &own, sizeof(own));
	return 0;
}

int shf_struct_take(void *to, const void *from, size_t bytes, size_t least, const char *arg,
                    const char *name, struct sheaf_error *err)
{
	size_t size = 0;

	if (!size_of(from, least, &size))
		return shf_fail(err, SHEAF_EINVAL, "%s.size is %u; set it to sizeof(struct "
		                "sheaf_%s)", arg, (unsigned)size, name);
	if (shf_struct_in(to, from, bytes, least) < 0)
		return shf_fail(err, SHEAF_EINVAL, "%s has a field set that this version of sheaf "
		                "does not know; set it to 0, or use a newer sheaf", arg);
	return 0;
}
