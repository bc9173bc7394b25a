/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory is left, by the small files of the kernel; here they say what a test likes. */
#include "memory_left.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "host.h"
#include "t.h"

#define MEMINFO "MemTotal:       9437184 kB\nMemFree:         131072 kB\n" \
		"MemAvailable:   8388608 kB\nSwapFree:              0 kB\n"      /* 8 GiB */
#define UNLIMITED_V1 "9223372036854771712\n"    /* how the first version says so */

struct file {
	const char *path, *text;
};
static const struct file *files;

/* "a//b/" is "a/b". */
static const char *plain(const char *path, char to[700])
{
	size_t n = 0;

	for (; *path; path++)
		if (*path != '/' || (path[1] && path[1] != '/'))
			to[n++] = *path;
	to[n] = '\0';
	return to;
}

bool __wrap_shf_real_text(const char *path, char *buf, size_t n);
bool __wrap_shf_real_text(const char *path, char *buf, size_t n)
{
	char want[700];

	plain(path, want);
	for (const struct file *f = files; f->path; f++)
		if (strcmp(f->path, want) == 0)
			return snprintf(buf, n, "%s", f->text) > 0;
	return false;
}

/* A directory is there if a file of it is; its number follows from its name. */
int __wrap_stat64(const char *path, struct stat *st);
int __wrap_stat64(const char *path, struct stat *st)
{
	char want[700];
	size_t n = strlen(plain(path, want));

	*st = (struct stat){ .st_ino = 1 };
	for (const char *p = want; *p; p++)
		st->st_ino = st->st_ino * 31 + (unsigned char)*p;
	for (const struct file *f = files; f->path; f++)
		if (strncmp(f->path, want, n) == 0 && f->path[n] == '/')
			return 0;
	return -1;
}

/* The rooms in MiB, in order, as "8192 1024". */
static const char *rooms_of(const struct file *all)
{
	static char text[SHF_MEMORY_LIMITS * 24];
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS];
	uint64_t least = UINT64_MAX;
	size_t at = 0;
	int n;

	files = all;
	n = shf_real_memory_limits(NULL, rooms);
	text[0] = '\0';
	for (int i = 0; i < n; i++) {
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%llu", i ? " " : "",
		                       (unsigned long long)(rooms[i].left >> 20));
		least = rooms[i].left < least ? rooms[i].left : least;
		for (int k = 0; k < i; k++)
			CHECK(rooms[k].of != rooms[i].of);
	}
	CHECK(shf_real_memory_left() == least);
	return text;
}
#define ROOMS(want, ...) CHECK_STR(rooms_of((const struct file[]){ __VA_ARGS__, { 0 } }), want)

TEST(what_the_machine_has_available_is_left)
{
	ROOMS("8192", { "/proc/meminfo", MEMINFO });
	ROOMS("2", { "/proc/meminfo", "MemAvailable: 2048 kB\n" });
	ROOMS("", { "/proc/meminfo", "MemTotal: 2048 kB\n" });
	ROOMS("", { "/proc/meminfo", "NotMemAvailable: 2048 kB\n" });
	ROOMS("", { "/proc/version", "Linux\n" });
}

#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"

/* Each group has what it may have without what it has, and the page cache goes first. */
TEST(the_limits_of_a_group_and_of_all_above_it_hold)
{
	ROOMS("8192 50 900",
	      { "/proc/meminfo", MEMINFO }, { "/proc/self/cgroup", "0::/job/task\n" },
	      { V2 "/job/task/memory.max", "104857600\n" },
	      { V2 "/job/task/memory.current", "52428800\n" },
	      { V2 "/job/memory.max", "1048576000\n" }, { V2 "/job/memory.current", "209715200\n" },
	      { V2 "/job/memory.stat", "an_inactive_file 9\ninactive_file 104857600\n" });
	ROOMS("8192 50 900",
	      { "/proc/meminfo", MEMINFO },
	      { "/proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/job/task\n0::/\n" },
	      { V1 "/job/task/memory.limit_in_bytes", "104857600\n" },
	      { V1 "/job/task/memory.usage_in_bytes", "52428800\n" },
	      { V1 "/job/memory.limit_in_bytes", "1048576000\n" },
	      { V1 "/job/memory.usage_in_bytes", "209715200\n" },
	      { V1 "/job/memory.stat", "inactive_file 7\ntotal_inactive_file 104857600\n" });
}

TEST(a_group_without_a_limit_is_no_room)
{
	ROOMS("10", { "/proc/self/cgroup", "0::/job/task\n" },
	      { V2 "/job/task/memory.max", "max\n" }, { V2 "/job/task/memory.current", "1\n" },
	      { V2 "/job/memory.max", "20971520\n" }, { V2 "/job/memory.current", "10485760\n" });
	ROOMS("10", { "/proc/self/cgroup", "4:memory:/job\n" },
	      { V1 "/memory.limit_in_bytes", UNLIMITED_V1 },
	      { V1 "/memory.usage_in_bytes", "10485760\n" },
	      { V1 "/job/memory.limit_in_bytes", "20971520\n" },
	      { V1 "/job/memory.usage_in_bytes", "10485760\n" });
	/* Half of one is none. */
	ROOMS("", { "/proc/self/cgroup", "0::/job\n" }, { V2 "/job/memory.max", "20971520\n" });
}

TEST(a_group_that_has_more_than_it_may_has_no_room)
{
	ROOMS("0", { "/proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "20971520\n" },
	      { V2 "/memory.current", "30971520\n" });
	ROOMS("0", { "/proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "20971520\n" },
	      { V2 "/memory.current", "30971520\n" }, { V2 "/memory.stat", "inactive_file 5\n" });
	ROOMS("1", { "/proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "20971520\n" },
	      { V2 "/memory.current", "30971520\n" },
	      { V2 "/memory.stat", "inactive_file 11048576\n" });
}

/* Both versions may be mounted, and lines that are none are passed over. */
TEST(groups_of_both_versions_count_and_other_words_do_not)
{
	ROOMS("1 2", { "/proc/self/cgroup", "nothing\n7:half\n3:pids:/a\n4:memory:/a\n0::/b\n" },
	      { V1 "/a/memory.limit_in_bytes", "2097152\n" },
	      { V1 "/a/memory.usage_in_bytes", "1048576\n" },
	      { V2 "/b/memory.max", "3145728\n" }, { V2 "/b/memory.current", "1048576\n" });
}

/* The narrowest are kept, whatever their order. */
TEST(of_more_limits_than_there_is_room_for_the_widest_are_left_out)
{
	enum { GROUPS = SHF_MEMORY_LIMITS + 3 };
	struct file all[2 * GROUPS + 2] = { { "/proc/self/cgroup", NULL } };
	static char names[2 * GROUPS][120], texts[2 * GROUPS][24], groups[120] = "0::";
	const char *order = "";
	struct shf_memory_limit rooms[SHF_MEMORY_LIMITS];
	char path[100] = "";
	int seen = 0;

	for (int i = 0; i < GROUPS; i++) {
		int mib = (i * 5) % GROUPS + 1; /* each number once */

		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/g%d", i);
		snprintf(names[2 * i], 120, V2 "%s/memory.max", path);
		snprintf(texts[2 * i], 24, "%d\n", (mib + 1) << 20);
		snprintf(names[2 * i + 1], 120, V2 "%s/memory.current", path);
		snprintf(texts[2 * i + 1], 24, "1048576\n");
		all[1 + 2 * i] = (struct file){ names[2 * i], texts[2 * i] };
		all[2 + 2 * i] = (struct file){ names[2 * i + 1], texts[2 * i + 1] };
	}
	strcat(strcat(groups, path), "\n");
	all[0].text = groups;
	order = rooms_of(all);
	CHECK_INT(shf_real_memory_limits(NULL, rooms), SHF_MEMORY_LIMITS);
	for (int i = 0; i < SHF_MEMORY_LIMITS; i++) {
		CHECK(rooms[i].left >> 20 <= SHF_MEMORY_LIMITS);
		seen |= 1 << (rooms[i].left >> 20);
	}
	if (seen != (1 << (SHF_MEMORY_LIMITS + 1)) - 2)
		print_error("%s\n", order);
	CHECK_INT(seen, (1 << (SHF_MEMORY_LIMITS + 1)) - 2);
}

TEST(a_path_of_any_length_is_no_harm)
{
	static char groups[1400] = "0::/job";

	memset(groups + strlen(groups), 'x', 1200);
	strcat(groups, "/job\n");
	ROOMS("1", { "/proc/self/cgroup", groups }, { V2 "/memory.max", "2097152\n" },
	      { V2 "/memory.current", "1048576\n" });
}

TEST(where_nothing_is_known_nothing_is_too_much)
{
	static const struct file none[1];

	files = none;
	CHECK(shf_real_memory_left() == UINT64_MAX);
}
