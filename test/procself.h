/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has open, and which threads it has. */
#ifndef PROCSELF_H
#define PROCSELF_H
#include <dirent.h>
#include <stdio.h>
#include <string.h>

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

/* Does the kernel run this one for io_uring, as many as it finds good? */
static inline int procself_is_kernels(const char *thread)
{
	char path[300], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread);
	f = fopen(path, "r");
	if (f && !fgets(name, sizeof(name), f))
		name[0] = 0;
	if (f)
		fclose(f);
	return strncmp(name, "iou-", 4) == 0;
}

/* Those that this process started. */
static inline int procself_threads(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d)))
		n += e->d_name[0] != '.' && !procself_is_kernels(e->d_name);
	if (d)
		closedir(d);
	return n;
}
#endif
