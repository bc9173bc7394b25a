/* SPDX-License-Identifier: Apache-2.0 */
/* One save, until a moment of CLOCK_MONOTONIC. 0: it survives power loss. EAGAIN: there was not the
 * time. All ranks call it, with the same step; the one with the least time decides for all. */
#include "save_by.h"

int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

int save_by(struct sheaf_run *run, struct sheaf_state *state, int64_t step, int64_t until,
            struct sheaf_error *err)
{
	struct sheaf_save *save = NULL;
	int rc = sheaf_save_begin(&save, run, step, state, NULL, err);
	int64_t left = until - now_ms();

	if (rc == 0)    /* 0 would just ask, less than 0 is opts.timeout_ms */
		rc = sheaf_save_commit(save, left > 0 ? (int)left : 1, err);
	sheaf_save_free(save);
	return rc;
}
