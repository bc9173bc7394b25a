/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of a load (load_read.h). A read that fails or ends too early gets a message with the file
 * and the offset. */
#include "load_read.h"
#include "err.h"
#include "load.h"
#include "run_env.h"
#include "step_files.h"

int shf_load_read_set(struct shf_load *ld, struct shf_read *r, uint32_t file, uint64_t lo,
                      uint64_t n, bool past, struct sheaf_error *err)
{
	int fd = shf_step_fd(ld->step, file, err);

	if (fd < 0)
		return fd;
	r->file = file;
	r->req = (struct shf_io){ .fd = fd, .buf = r->buf, .len = (size_t)n, .off = lo,
		.direct = past ? shf_step_direct(ld->step, file) : 0 };
	return 0;
}

int shf_load_read_check(struct shf_load *ld, const struct shf_read *r, int64_t got,
                        struct sheaf_error *err)
{
	int rc;

	if (r->rc < 0)
		return shf_submit_fail(err, r->rc, "submitting a read");
	rc = shf_step_file_got(ld->step, r->file, r->req.off, r->req.len, got, err);
	if (rc == 0)
		ld->disk_bytes += r->req.len;
	return rc;
}

int shf_load_read_now(struct shf_load *ld, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                      struct sheaf_error *err)
{
	int64_t from = shf_now(ld->step->run);
	int rc = shf_step_file_read(ld->step, file, to, n, lo, &ld->retries, err);

	ld->read_ns += shf_now(ld->step->run) - from;
	if (rc == 0)
		ld->disk_bytes += n;
	return rc;
}
