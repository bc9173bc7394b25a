/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files of a step by their names in the manifest (name_in_step.h). */
#include "name_in_step.h"
#include <stdio.h>
#include <string.h>

int shf_in_step_enter(const struct shf_sys *sys, int dir, const char *name, int flags,
                      const char **base)
{
	const char *slash = strrchr(name, '/');
	char folder[64];

	*base = slash ? slash + 1 : name;
	if (!slash)
		return dir;
	snprintf(folder, sizeof(folder), "%.*s", (int)(slash - name), name);
	return shf_sys_open(sys, dir, folder, SHF_O_DIR | flags, 0);
}

void shf_in_step_leave(const struct shf_sys *sys, int dir, int in)
{
	if (in >= 0 && in != dir)
		shf_sys_close(sys, in);
}

int shf_in_step_open(const struct shf_sys *sys, int dir, const char *name, int flags)
{
	const char *base;
	int in = shf_in_step_enter(sys, dir, name, flags & SHF_O_NOFOLLOW, &base), fd;

	if (in < 0)
		return in;
	fd = shf_sys_open(sys, in, base, flags, 0);
	shf_in_step_leave(sys, dir, in);
	return fd;
}
