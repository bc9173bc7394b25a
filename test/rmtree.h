/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test goes, with all that is in it. */
#ifndef RMTREE_H
#define RMTREE_H
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static inline int rmtree_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static inline void rmtree(const char *folder)
{
	(void)nftw(folder, rmtree_one, 16, FTW_DEPTH | FTW_PHYS);
}
#endif
