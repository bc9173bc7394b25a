/* SPDX-License-Identifier: Apache-2.0 */
/* A lease: a shared lock on the sheaf.json of a step that is open. A prune leaves the step alone as
 * long as some process holds a lease on it. */
#ifndef SHF_LEASE_H
#define SHF_LEASE_H
#include <stdbool.h>
#include "sys.h"

struct shf_leased {             /* a step that is open */
	int dir;                        /* descriptor of the step's directory */
	int at;                         /* descriptor of the directory that contains the step's
	                                 * directory */
	const char *name;               /* name of the step's directory in `at`; NULL: the step is
	                                 * not on disk */
	bool follow;                    /* the names may be symlinks */
};
/* Takes the lease. *lease becomes the descriptor that holds the lock, or -1 if sheaf.json cannot be
 * opened. On a file system without locks there is only the grace of a prune. -ENOENT: the lease
 * came too late, because a prune has locked the step, or the step's directory no longer has its
 * name. */
int shf_lease_take(const struct shf_sys *sys, const struct shf_leased *step, int *lease);
#endif
