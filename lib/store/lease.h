/* SPDX-License-Identifier: Apache-2.0 */
/* A lease: a shared lock on the sheaf.json of a step that is open. Pruning leaves the step alone as
 * long as somebody has it. */
#ifndef SHF_LEASE_H
#define SHF_LEASE_H
#include <stdbool.h>
#include "sys.h"

struct shf_leased {             /* the step */
	int dir;                        /* its directory, open */
	int at;                         /* where that has its name, */
	const char *name;               /* which is this; NULL: it is not on disk */
	bool follow;                    /* names may be links */
};
/* Takes the lease. *lease is the descriptor that has it, or -1: sheaf.json cannot be opened. Where
 * the file system has no locks there is only the grace of a prune. -ENOENT: it came too late,
 * because a prune has locked the step, or because the directory has lost its name by now. */
int shf_lease_take(const struct shf_sys *sys, const struct shf_leased *step, int *lease);
#endif
