/* SPDX-License-Identifier: Apache-2.0 */
/* One read of a load, from when it is submitted until its bytes are there. A disk that answers
 * with an error is asked again a few times; a file that ends too early is not. */
#include "load_read.h"
#include <inttypes.h>
#include "err.h"
#include "load.h"
#include "run_env.h"
#include "run_io.h"
#include "step_files.h"

#define TRIES 4

static void read_done(struct shf_io_owner *owner, struct shf_io *io)
{
	(void)owner; /* the request keeps its result */
	(void)io;
}

static int submit(struct shf_load *ld, struct shf_read *r, struct sheaf_error *err)
{
	int rc = shf_io_submit(ld->step->run, &r->io, &r->req);

	return rc < 0 ? shf_submit_fail(err, rc, "submitting a read") : 0;
}

int shf_read_start(struct shf_load *ld, struct shf_read *r, uint32_t file, uint64_t lo, uint64_t n,
                   uint8_t *to, struct sheaf_error *err)
{
	int fd = shf_step_fd(ld->step, file, err);

	if (fd < 0)
		return fd;
	r->io.done = read_done;
	r->file = file;
	r->want = n;
	r->req = (struct shf_io){ .op = SHF_IO_READ, .fd = fd, .buf = to, .len = (size_t)n,
		.off = lo, .direct = r->through ? shf_step_direct(ld->step, file) : 0 };
	return submit(ld, r, err);
}

static int check(const struct shf_load *ld, uint32_t file, uint64_t lo, uint64_t n, int64_t got,
                 struct sheaf_error *err)
{
	const char *name = ld->step->layout.files[file].name;

	if (got < 0)
		return shf_fail_sys(err, (int)-got, "%s/%s: reading %" PRIu64 " bytes at %" PRIu64,
		                    ld->step->path, name, n, lo);
	if ((uint64_t)got != n)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64,
		                ld->step->path, name, lo + (uint64_t)got);
	return 0;
}

int shf_read_finish(struct shf_load *ld, struct shf_read *r, struct sheaf_error *err)
{
	int64_t from = shf_now(ld->step->run);
	int rc = 0;

	(void)shf_io_drain(ld->step->run, &r->io, -1);
	for (int tries = 1; r->req.result < 0 && tries < TRIES && rc == 0; tries++) {
		ld->retries++;
		rc = submit(ld, r, err);
		(void)shf_io_drain(ld->step->run, &r->io, -1);
	}
	ld->read_ns += shf_now(ld->step->run) - from;
	if (rc == 0)
		rc = check(ld, r->file, r->req.off, r->want, r->req.result, err);
	if (rc == 0)
		ld->disk_bytes += r->want;
	return rc;
}

int shf_read_here(struct shf_load *ld, uint32_t file, uint64_t lo, uint64_t n, uint8_t *to,
                  struct sheaf_error *err)
{
	const struct shf_sys *sys = ld->step->run->sys;
	int fd = shf_step_fd(ld->step, file, err), rc;
	int64_t from = shf_now(ld->step->run), got;

	if (fd < 0)
		return fd;
	got = sys->ops->pread(sys->arg, fd, to, (size_t)n, lo);
	for (int tries = 1; got < 0 && tries < TRIES; tries++) {
		ld->retries++;
		got = sys->ops->pread(sys->arg, fd, to, (size_t)n, lo);
	}
	ld->read_ns += shf_now(ld->step->run) - from;
	rc = check(ld, file, lo, n, got, err);
	if (rc == 0)
		ld->disk_bytes += n;
	return rc;
}
