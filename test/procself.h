/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has open, and which threads it has. */
#ifndef PROCSELF_H
#define PROCSELF_H
#include <dirent.h>

/* Entries of a folder of /proc/self. Of "fd" the looking itself adds the same number each time. */
static inline int procself_count(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n - 2; /* . and .. */
}

static inline int procself_fds(void)
{
	return procself_count("/proc/self/fd");
}

static inline int procself_threads(void)
{
	return procself_count("/proc/self/task");
}
#endif
