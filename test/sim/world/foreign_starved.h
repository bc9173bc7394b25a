/* SPDX-License-Identifier: Apache-2.0 */
/* Lets each allocation fail while a foreign checkpoint is opened and read. Include once, after t.h.
 * The test must be one of `starved` in test/sim/meson.build. */
#ifndef FOREIGN_STARVED_H
#define FOREIGN_STARVED_H
#include "dtype.h"
#include "foreign.h"
#include "foreign_dir.h"
#include "foreign_read.h"
#include "simdisk.h"
#include "starve.h"

/* Opens it, and reads the first bytes of each tensor, while allocation nth fails (0: none).
 * *digest: a hash of the list of tensors. */
static inline int foreign_starved(struct simdisk *disk, const char *path, long nth,
                                  uint64_t *digest)
{
	const struct shf_sys *sys = simdisk_process(disk, 77, 0);
	struct shf_foreign *f = NULL;
	struct sheaf_error err;
	uint8_t some[256];
	size_t n = 0;
	int rc;

	starved = false;
	starve_left = nth;
	rc = shf_foreign_open(&f, sys, path, &err);
	for (size_t i = 0; rc == 0; i++) {
		const struct shf_foreign_tensor *t = shf_foreign_tensors(f, &n) + i;
		uint64_t bytes = i < n ? shf_dtype(t->dtype)->bits / 8 : 0;

		if (i == n)
			break;
		for (int d = 0; d < t->ndim; d++)
			bytes *= (uint64_t)t->dims[d];
		rc = shf_foreign_gather(f, t, some, bytes < sizeof(some) ? bytes : sizeof(some), 0,
		                        &err);
	}
	starve_left = 0;
	*digest = rc < 0 ? 0 : shf_foreign_digest(f);
	shf_foreign_free(f);
	CHECK_INT(simdisk_open_n(sys), 0);
	return rc;
}

/* Lets each stride-th allocation fail. spare: how many of these failures may have no effect. */
static inline void foreign_survives(struct simdisk *disk, const char *path, int stride, int spare)
{
	uint64_t want, digest;
	long nth = t_from(stride), tried = 0, failed = 0;

	CHECK_INT(foreign_starved(disk, path, 0, &want), 0);
	do {
		int rc = foreign_starved(disk, path, nth += stride, &digest);

		if (rc < 0 ? rc != SHEAF_ENOMEM || !starved : digest != want)
			fail_msg("allocation %ld: %d", nth, rc);
		tried++;
		failed += rc < 0;
	} while (starved);
	CHECK(tried > 5 && failed >= tried - 1 - spare);
}
#endif
