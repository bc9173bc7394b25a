/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"
#include <inttypes.h>
#include "err.h"
#include "unpack.h"

int shf_region_read(const struct shf_region *r, void *to, uint64_t n, uint64_t off,
                    struct sheaf_error *err)
{
	int64_t got;

	if (off > r->bytes || n > r->bytes - off)
		return shf_fail(err, SHEAF_EFORMAT, "%s: ends at byte %" PRIu64 ", before the %"
		                PRIu64 " bytes at %" PRIu64, r->where, r->bytes, n, off);
	if (r->unpacker)
		return r->unpacker->read(r->unpacker, r, to, n, off, err);
	got = shf_sys_read(r->sys, r->fd, to, (size_t)n, r->off + off, r->once);
	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s: reading %" PRIu64 " bytes at %" PRIu64,
		                    r->where, n, off);
	return (uint64_t)got == n ? 0 : shf_fail(err, SHEAF_EFORMAT, "%s: ends at byte %" PRIu64
	                                         ": another program has shortened it", r->where,
	                                         off + (uint64_t)got);
}
