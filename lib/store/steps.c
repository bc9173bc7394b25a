/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the numbers of the steps in a run's directory. */
#include "steps.h"
#include "run_files.h"
#include <errno.h>
#include <stdlib.h>

static int descending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x < y) - (x > y);
}

int shf_steps_read(struct shf_store *s, struct shf_steps *steps)
{
	struct shf_names names;
	size_t n = 0;
	int64_t step;
	int rc;

	steps->all = NULL;
	steps->n = 0;
	rc = shf_names_read(s->sys, s->dir, &names);
	if (rc < 0)
		return rc;
	for (const char *p = NULL; (p = shf_names_next(&names, p)) != NULL; )
		n++;
	/* Room for all names: few of them are no steps. */
	steps->all = shf_alloc(n, sizeof(*steps->all));
	if (!steps->all)
		rc = -ENOMEM;
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		if (shf_step_of_name(s, p, &step))
			steps->all[steps->n++] = step;
	shf_names_release(&names);
	if (steps->n)
		qsort(steps->all, steps->n, sizeof(*steps->all), descending);
	return rc;
}
