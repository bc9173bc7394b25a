/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is left: of the machine, and of the control groups of this process. A process
 * that allocates a memfd beyond that rarely gets an error; the kernel kills a process instead. So
 * the library looks before it allocates. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "memory_left.h"
#include "host.h"

/* The file names of one version of control groups. */
struct spelling {
	const char *root, *max, *now, *cache; /* mount point; names of the files with the limit and
	                                       * with the usage; key, in memory.stat, of the page
	                                       * cache that was not used lately */
};
static const struct spelling v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                    "memory.usage_in_bytes", "total_inactive_file " };
static const struct spelling v2 = { "/sys/fs/cgroup", "memory.max", "memory.current",
                                    "inactive_file " };

/* Reads a number from a small file of the kernel: at its beginning, or after key at the start of a
 * line. False if the file or the key is missing, or if there is a word instead, such as "max". */
static bool number_of(const char *dir, const char *path, const char *file, const char *key,
                      uint64_t *n)
{
	char name[640], buf[8192], *p = buf, *end;

	if ((size_t)snprintf(name, sizeof(name), "%s%s/%s", dir, path, file) >= sizeof(name))
		return false;
	if (!shf_real_text(name, buf, sizeof(buf)))
		return false;
	if (key) {
		/* Only at the start of a line: a longer key may end with this one. */
		while ((p = strstr(p, key)) && p > buf && p[-1] != '\n')
			p++;
		if (!p)
			return false;
		p += strlen(key);
	}
	*n = strtoull(p, &end, 10);
	return end != p;
}

/* The limits found so far. */
struct found {
	struct shf_memory_limit *rooms;
	int n;
};

/* Adds a limit. If there are more than SHF_MEMORY_LIMITS, the widest one is dropped: it is the
 * least likely to be reached. */
static void add_room(struct found *f, uint64_t of, uint64_t left)
{
	int widest = 0;

	for (int i = 0; i < f->n; i++)  /* the paths "/" and "" name one group */
		if (f->rooms[i].of == of)
			return;
	if (f->n < SHF_MEMORY_LIMITS) {
		f->rooms[f->n++] = (struct shf_memory_limit){ of, left };
		return;
	}
	for (int i = 1; i < f->n; i++)
		if (f->rooms[i].left > f->rooms[widest].left)
			widest = i;
	if (left < f->rooms[widest].left)
		f->rooms[widest] = (struct shf_memory_limit){ of, left };
}

/* Adds the limit of one group, if it has one. Its page cache that was not used lately counts as
 * free, since the kernel drops it before it kills. The inode identifies the group: in another
 * namespace it has another path. */
static void add_group(struct found *f, const struct spelling *s, const char *path)
{
	uint64_t max, now, cache = 0;
	struct stat st;
	char dir[640];

	/* The word "max", which is no number, means no limit. Version 1 of control groups writes
	 * INT64_MAX, rounded down to whole pages, instead. */
	if (!number_of(s->root, path, s->max, NULL, &max) || max > UINT64_MAX / 4 ||
	    !number_of(s->root, path, s->now, NULL, &now))
		return;
	number_of(s->root, path, "memory.stat", s->cache, &cache);
	if ((size_t)snprintf(dir, sizeof(dir), "%s%s", s->root, path) >= sizeof(dir) ||
	    stat(dir, &st))
		return;
	add_room(f, (uint64_t)st.st_ino << 8 ^ (uint64_t)st.st_dev,
	         now > max + cache ? 0 : max + cache - now);
}

/* Adds a group and all groups above it, because the limit of each of them applies. */
static void add_groups(struct found *f, const struct spelling *s, char *path)
{
	for (;;) {
		char *slash = strrchr(path, '/');

		add_group(f, s, path);
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Limits come from the machine (number 0), and from both versions of control groups, which may be
 * mounted side by side. */
int shf_real_memory_limits(void *arg, struct shf_memory_limit rooms[SHF_MEMORY_LIMITS])
{
	char groups[4096], *line, *save = NULL;
	struct found f = { rooms, 0 };
	uint64_t kib;

	(void)arg;
	if (number_of("/proc", "", "meminfo", "MemAvailable:", &kib))
		add_room(&f, 0, kib * 1024);
	if (!shf_real_text("/proc/self/cgroup", groups, sizeof(groups)))
		return f.n;
	for (line = strtok_r(groups, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = '\0';
		kind++;
		if (!*kind)
			add_groups(&f, &v2, path);
		else if (strstr(kind, "memory"))
			add_groups(&f, &v1, path);
	}
	return f.n;
}

uint64_t shf_real_memory_left(void)
{
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS];
	uint64_t least = UINT64_MAX;

	for (int i = shf_real_memory_limits(NULL, rooms); i-- > 0;)
		least = rooms[i].left < least ? rooms[i].left : least;
	return least;
}
