/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: makes a group from the caller's table of operations, and frees it. */
#include "entry.h"
#include "err.h"
#include "export.h"
#include "group.h"
#include "mem.h"
#include "sheaf.h"
#include "struct_size.h"
#include "sys.h"

/* Checks a caller's table: its node and ranks, and that the required operations are set. */
static int check_ops(const struct sheaf_group_ops *ops, struct sheaf_error *err)
{
	if (ops->ranks < 1 || ops->rank < 0 || ops->rank >= ops->ranks)
		return shf_fail(err, SHEAF_EINVAL, "group: rank is %d, and ranks is %d; rank must "
		                "be at least 0 and less than ranks", (int)ops->rank,
		                (int)ops->ranks);
	if (ops->node < 0)
		return shf_fail(err, SHEAF_EINVAL, "group: node is %d; it must be 0 or a positive "
		                "number",
		                (int)ops->node);
	if (!ops->allgather || !ops->alltoallv || !ops->allreduce)
		return shf_fail(err, SHEAF_EINVAL, "group: the callback %s is NULL",
		                !ops->allgather ? "allgather" :
		                !ops->alltoallv ? "alltoallv" : "allreduce");
	return 0;
}

SHEAF_API int sheaf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops,
                              struct sheaf_error *err)
{
	const struct shf_sys *sys = shf_sys_real();
	struct sheaf_group_ops table;
	struct sheaf_error own;
	int rc;

	err = shf_err_or(err, &own);
	rc = group ? shf_struct_take(&table, ops, sizeof(table), sizeof(table), "group_ops",
	                             "group_ops", err)
	           : shf_fail(err, SHEAF_EINVAL, "argument 'group' is NULL");
	if (rc == 0)
		rc = check_ops(&table, err);
	if (rc == 0)
		rc = shf_group_new(group, &table, shf_sys_pid(sys));
	return shf_ended(rc, err);
}

/* Runs and steps that still use the group hold references to it, so it is freed when the last of
 * them is closed. */
SHEAF_API void sheaf_group_free(struct sheaf_group *group)
{
	const struct shf_sys *sys = shf_sys_real();

	if (!group || group->dropped)
		return;
	group->dropped = true;
	if (group->pid != shf_sys_pid(sys))
		group->ops.free = NULL; /* in a forked child, only memory is freed; the caller's
		                         * free is not called */
	shf_group_put(group);
}
