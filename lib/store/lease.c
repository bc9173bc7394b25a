/* SPDX-License-Identifier: Apache-2.0 */
/* A step may be pruned after it was found and before its lease is taken. A prune locks sheaf.json,
 * asks for more than a shared lock, and renames the directory while it has the lock. So a lock that
 * is refused says that the step is about to go, and a lock that is granted says that it will stay,
 * if the directory still has its name then. */
#include "lease.h"
#include "lease.h"
#include "tree.h"
#include <errno.h>

int shf_lease_take(const struct shf_sys *sys, const struct shf_leased *step, int *lease)
{
	int rc = 0;

	*lease = shf_sys_open(sys, step->dir, "sheaf.json", step->follow ? 0 : SHF_O_NOFOLLOW, 0);
	if (*lease >= 0)
		rc = shf_sys_lock(sys, *lease, false);
	else
		*lease = -1;
	if (!step->name)
		return 0;
	if (rc == -EAGAIN ||
	    shf_dir_has_gone(sys, step->at, step->name, step->follow, step->dir))
		return -ENOENT;
	return 0;
}
