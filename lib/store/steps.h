/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of the steps in a run. */
#ifndef SHF_STEPS_H
#define SHF_STEPS_H
#include "store.h"

struct shf_steps {
	int64_t *all;                   /* owned; descending */
	size_t n;
};
/* Lists the numbers of all checkpoint-<n>, without looking into them. Returns 0 or -errno. The
 * caller frees steps->all. */
int shf_steps_read(struct shf_store *s, struct shf_steps *steps);
#endif
