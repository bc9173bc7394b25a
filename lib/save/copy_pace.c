/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_pace.h"

#define BEHIND 2000     /* a total wait of at most 1 / BEHIND of the lead counts as no wait */

int shf_copy_pace_threads_most(int limit, int cpus, int spare)
{
	int room = limit > 0 ? cpus : spare;
	int most = limit > 0 ? limit : SHF_COPY_THREADS;

	most = most < room ? most : room;
	return most > 1 ? most : 1;
}

/* Returns whether this many threads would have copied everything in less than three quarters of the
 * time until a caller first asked. */
static int is_far_ahead(const struct shf_copy_pace *last, int threads)
{
	double takes = (double)last->copy_ns * last->threads / threads;

	return takes < 0.75 * (double)last->lead_ns;
}

int shf_copy_pace_threads(const struct shf_copy_pace *last, int most)
{
	int n = last->threads > 0 ? last->threads : 1;

	if (last->waited_ns > last->lead_ns / BEHIND)
		n++;
	else if (n > 1 && is_far_ahead(last, n - 1))
		n--;
	return n < most ? n : most;
}
