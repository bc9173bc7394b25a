/* SPDX-License-Identifier: Apache-2.0 */
/* Brings back, or deletes, a step that was set aside. A person does this between jobs, so the
 * functions open the run themselves and hold its lock meanwhile. No job can then continue from
 * steps that change. */
#include "run_aside.h"
#include <string.h>
#include "aside_restore.h"
#include "err.h"
#include "store.h"

/* Opens the run as its owner, calls `act` for the step, and closes the run. */
static int with_owner(const char *dir, const char *aside, const struct shf_opts *opts,
                      const struct shf_sys *sys,
                      int (*act)(struct shf_store *, const char *, struct sheaf_error *),
                      struct sheaf_error *err)
{
	static const char folder[] = ".sheaf/aside/";
	struct shf_opts o = { 0 };
	struct shf_store s;
	int rc = shf_opts_take(&o, opts, err);

	if (rc == 0 && (!dir || !dir[0] || !aside || !aside[0]))
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'dir' or 'path' is NULL or empty; pass "
		              "the path of a step that was set aside");
	if (rc == 0)
		rc = shf_store_own(&s, sys, dir, false, shf_opts_wait_ms(&o, SHF_LOCK_WAIT_MS),
		                   err);
	if (rc == 0) {
		if (strncmp(aside, folder, sizeof(folder) - 1) == 0)
			aside += sizeof(folder) - 1;
		rc = act(&s, aside, err);
		shf_store_close(&s);
	}
	shf_opts_release(&o);
	return rc;
}

int shf_run_restore(const char *dir, const char *aside, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_error *err)
{
	return with_owner(dir, aside, opts, sys, shf_aside_restore, err);
}

int shf_run_discard(const char *dir, const char *aside, const struct shf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_error *err)
{
	return with_owner(dir, aside, opts, sys, shf_aside_delete, err);
}
