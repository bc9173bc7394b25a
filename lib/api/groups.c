/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: makes a group from the caller's table of operations, and frees it. */
#include <string.h>
#include "export.h"
#include "group.h"
#include "mem.h"
#include "sheaf.h"
#include "sys.h"

#define OPS_SIZE_MAX 4096       /* a larger `size` was not set by the caller */

/* Whether all members that this version does not know are 0. Otherwise the caller asks for
 * something that this version cannot do. */
static bool tail_is_zero(const struct sheaf_group_ops *ops)
{
	const unsigned char *bytes = (const unsigned char *)ops;

	for (size_t i = sizeof(*ops); i < ops->size; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

/* Checks a caller's table: its size, flags and ranks, and that the required operations are set. */
static bool ops_are_sound(const struct sheaf_group_ops *ops)
{
	if (!ops || ops->size < sizeof(*ops) || ops->size > OPS_SIZE_MAX || !tail_is_zero(ops))
		return false;
	if (ops->flags != 0 || ops->reserved != 0 || ops->node < 0)
		return false;
	if (ops->ranks < 1 || ops->rank < 0 || ops->rank >= ops->ranks)
		return false;
	return ops->allgather && ops->alltoallv && ops->allreduce;
}

SHEAF_API int sheaf_group_new(struct sheaf_group **group, const struct sheaf_group_ops *ops)
{
	const struct shf_sys *sys = shf_sys_real();
	struct sheaf_group_ops own;

	if (!group || !ops_are_sound(ops))
		return SHEAF_EINVAL;
	memcpy(&own, ops, sizeof(own));
	own.size = sizeof(own);
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
