/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in a file: for what a job needs once in a step, such as the moments of an optimizer. The
 * kernel writes pages of it to the disk when it needs their memory. */
#ifndef OFFLOAD_H
#define OFFLOAD_H
#include <stddef.h>

#include "tr_error.h"

struct tr_offload {
	void *memory;                   /* zero at first; NULL: none */
	size_t bytes;
};
/* Makes a file in a directory, and maps it. It has no name, so it is gone when the process has
 * ended. */
int tr_offload_open(struct tr_offload *f, const char *dir, size_t bytes, struct tr_error *err);
/* Takes the pages out of this process until they are used again. */
void tr_offload_evict(const struct tr_offload *f);
void tr_offload_close(struct tr_offload *f);
#endif
