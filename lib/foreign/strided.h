/* SPDX-License-Identifier: Apache-2.0 */
/* Reads items that lie with any strides in a file into memory where they have other strides. */
#ifndef SHF_STRIDED_H
#define SHF_STRIDED_H
#include <stdbool.h>
#include <stdint.h>
#include "sheaf.h"

#define SHF_WINDOW (UINT64_C(256) << 10)        /* bytes of a window */
#define SHF_AXES_MAX 24
struct shf_axis { uint64_t n, src, dst; };      /* items along it; bytes from one to the next in the
                                                 * file and in memory */
struct shf_strided {
	/* The axes in the order of memory, the one with the smallest steps last. The last element
	 * is spare. */
	struct shf_axis axis[SHF_AXES_MAX + 1];
	int axes;
	uint64_t item;                  /* bytes of an item */
	uint8_t *window;                /* SHF_WINDOW bytes of the caller's */
	/* Reads n bytes at `src` of the file. Returns 0 or a negative code. */
	int (*read)(void *arg, uint8_t *to, uint64_t n, uint64_t src, struct sheaf_error *err);
	void *arg;
	/* private */
	int inner;                      /* the first so many axes lie in a window */
	uint64_t window_bytes;
	bool direct;                    /* axis 0 is read into the caller's memory */
};
/* Reads the items along the axes. The first is at byte `src` of the file, and comes to `to`.
 * Changes the axes. */
int shf_strided_read(struct shf_strided *s, uint64_t src, uint8_t *to, struct sheaf_error *err);
#endif
