/* SPDX-License-Identifier: Apache-2.0 */
/* A step may be pruned after it was found and before its lease is taken. A prune takes an exclusive
 * lock on sheaf.json and renames the directory while it holds the lock. So if the shared lock is
 * refused, the step is about to go. If it is granted, the step stays, provided that the directory
 * still has its name then. */
#include "lease.h"
#include <errno.h>
#include "run_files.h"

int shf_lease_take(const struct shf_sys *sys, const struct shf_leased *step, int *lease)
{
	int rc = 0;

	*lease = shf_sys_open(sys, step->dir, "sheaf.json", step->follow ? 0 : SHF_O_NOFOLLOW, 0);
	if (*lease >= 0)
		rc = shf_sys_lock(sys, *lease, false);
	else
		*lease = -1;
	/* If the lock fails for a reason other than a prune, that is no error: the grace of a prune
	 * still protects the reader. */
	if (!step->name)
		return 0;
	if (rc == -EAGAIN ||
	    shf_dir_has_gone(sys, step->at, step->name, step->follow, step->dir))
		return -ENOENT;
	return 0;
}
