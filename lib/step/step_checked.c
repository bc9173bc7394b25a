/* SPDX-License-Identifier: Apache-2.0 */
#include "step_checked.h"
#include <string.h>
#include "err.h"
#include "step_blocks.h"
#include "step_files.h"

int shf_checked_init(struct shf_checked *c, struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	*c = (struct shf_checked){ .step = step, .blocks = shf_alloc(SHF_CHECKED_BYTES, 1) };
	return c->blocks ? 0 : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read it", step->path);
}

void shf_checked_release(struct shf_checked *c)
{
	shf_free(c->blocks);
	c->blocks = NULL;
}

/* Reads and checks the block of file f of the step that has byte `at`, and the following blocks
 * that have bytes before `end`, up to SHF_CHECKED_BYTES. */
static int fetch_blocks(struct shf_checked *c, uint32_t f, uint64_t at, uint64_t end,
                        struct sheaf_error *err)
{
	uint64_t size = c->step->layout.files[f].bytes, retries = 0;
	uint64_t lo = at / SHF_BLOCK * SHF_BLOCK;
	uint64_t hi = (end + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
	int rc;

	hi = hi - lo > SHF_CHECKED_BYTES ? lo + SHF_CHECKED_BYTES : hi;
	hi = hi > size ? size : hi;
	c->n = 0;
	rc = shf_step_file_read(c->step, f, c->blocks, hi - lo, lo, &retries, err);
	if (rc == 0)
		rc = shf_blocks_check(c->step, f, lo, c->blocks, hi - lo, NULL, err);
	if (rc == 0) {
		c->file = f;
		c->at = lo;
		c->n = hi - lo;
	}
	return rc;
}

int shf_checked_read(struct shf_checked *c, uint32_t f, uint64_t at, uint8_t *to, uint64_t n,
                     struct sheaf_error *err)
{
	while (n > 0) {
		uint64_t in = at - c->at, some;
		int rc = 0;

		if (f != c->file || at < c->at || in >= c->n) {
			rc = fetch_blocks(c, f, at, at + n, err);
			in = at - c->at;
		}
		if (rc < 0)
			return rc;
		if (!always(in < c->n))
			return shf_fail(err, SHEAF_EBUG, "%s: a tensor ends after its file",
			                c->step->path);
		some = c->n - in < n ? c->n - in : n;
		memcpy(to, c->blocks + in, (size_t)some);
		to += some;
		at += some;
		n -= some;
	}
	return 0;
}
