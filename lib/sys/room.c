/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is left: of the machine, and of the control groups we live in. Allocating a
 * memfd beyond that ends in the kernel killing a process, hardly ever in an error. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "real.h"

/* How one version of control groups spells it. */
struct spelling {
	const char *root, *max, *now, *cache;
};
static const struct spelling v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                    "memory.usage_in_bytes", "total_inactive_file " };
static const struct spelling v2 = { "/sys/fs/cgroup", "memory.max", "memory.current",
                                    "inactive_file " };

static bool number_of(const char *dir, const char *path, const char *file, const char *key,
                      uint64_t *n)
{
	char name[640], buf[8192], *p = buf, *end;

	if ((size_t)snprintf(name, sizeof(name), "%s%s/%s", dir, path, file) >= sizeof(name))
		return false;
	if (!shf_real_text(name, buf, sizeof(buf)))
		return false;
	if (key) {
		/* At the start of a line, so that no longer key ends like it. */
		while ((p = strstr(p, key)) && p > buf && p[-1] != '\n')
			p++;
		if (!p)
			return false;
		p += strlen(key);
	}
	*n = strtoull(p, &end, 10);
	return end != p;
}

static uint64_t group_left(const struct spelling *s, const char *path)
{
	uint64_t max, now, cache = 0;

	/* "max" is no number: no limit. */
	if (!number_of(s->root, path, s->max, NULL, &max) ||
	    !number_of(s->root, path, s->now, NULL, &now))
		return UINT64_MAX;
	number_of(s->root, path, "memory.stat", s->cache, &cache);
	if (max > UINT64_MAX / 2)
		return UINT64_MAX;
	return now > max + cache ? 0 : max + cache - now;
}

/* The least of a group and all above it. */
static uint64_t groups_left(const struct spelling *s, char *path)
{
	uint64_t least = UINT64_MAX;

	for (;;) {
		uint64_t left = group_left(s, path);
		char *slash = strrchr(path, '/');

		least = left < least ? left : least;
		if (!slash)
			return least;
		*slash = '\0';
	}
}

uint64_t shf_real_memory_left(void)
{
	char groups[4096], *line, *save = NULL;
	uint64_t least = UINT64_MAX, kib;

	if (number_of("/proc", "", "meminfo", "MemAvailable:", &kib))
		least = kib * 1024;
	if (!shf_real_text("/proc/self/cgroup", groups, sizeof(groups)))
		return least;
	for (line = strtok_r(groups, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
		const struct spelling *s = NULL;
		uint64_t left;

		if (!path)
			continue;
		*path++ = '\0';
		kind++;
		if (!*kind)
			s = &v2;
		else if (strstr(kind, "memory"))
			s = &v1;
		left = s ? groups_left(s, path) : UINT64_MAX;
		least = left < least ? left : least;
	}
	return least;
}
