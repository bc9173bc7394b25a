/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: makes a group from the caller's table of operations, and frees it. */
#include "export.h"
#include "group.h"
#include "mem.h"
#include "sheaf.h"
#include "struct_size.h"
#include "sys.h"

/* Checks a caller's table: its node and ranks, and that the required operations are set. */
static bool ops_are_sound(const struct sheaf_group_ops *ops)
{
	if (ops->node < 0)
		return false;
	if (ops->ranks < 1 || ops->rank < 0 || ops->rank >= ops->ranks)
		return false;
	return ops->allgather && ops->alltoallv && ops->allreduce;
}

SHEAF_API int sheaf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops)
{
	const struct shf_sys *sys = shf_sys_real();
	struct sheaf_group_ops own;

	if (!group || shf_struct_in(&own, ops, sizeof(own), sizeof(own)) < 0 ||
	    !ops_are_sound(&own))
		return SHEAF_EINVAL;
	return shf_group_new(group, &own, shf_sys_pid(sys));
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
