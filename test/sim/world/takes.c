/* SPDX-License-Identifier: Apache-2.0 */
#include "sheaf-load.h"
#include "takes.h"
#include <pthread.h>
#include <stdlib.h>
#include "load_slices.h"
#include "state.h"

enum { THREADS_MAX = 8 };

struct taker {
	struct sheaf_load *load;
	const struct takes *how;
	const int *order;
	size_t n;                       /* length of the order */
	int first, step;                /* takes order[first], order[first + step], ... */
	int rc;
	struct sheaf_error err;
};

static void *take(void *arg)
{
	struct taker *t = arg;

	for (size_t k = (size_t)t->first; k < t->n && t->rc == 0; k += (size_t)t->step) {
		int i = t->order[k];

		if (shf_load_slices_fills(t->load, i, &t->err) == 1)
			t->rc = shf_load_slices_take(t->load, i, (size_t)i < t->how->n
			                             ? t->how->data[i] : NULL, &t->err);
	}
	return NULL;
}

/* Returns the slices in a random order. */
static int *order_of(size_t n, uint64_t seed)
{
	int *order = malloc((n + 1) * sizeof(*order));

	if (!order)
		abort();
	for (size_t i = 0; i < n; i++) {
		size_t k = (size_t)((seed = seed * 6364136223846793005u + 1) >> 33) % (i + 1);

		order[i] = order[k];
		order[k] = (int)i;
	}
	return order;
}

/* Takes all slices. Returns the first error of a thread, or 0. */
static int take_all(struct sheaf_load *load, const struct takes *how, size_t n,
                    struct sheaf_error *err)
{
	struct taker all[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	int *order = order_of(n, how->seed), rc = 0;
	int step = how->threads > 1 ? how->threads : 1;

	for (int i = 0; i < step; i++)
		all[i] = (struct taker){ load, how, order, n, i, step, 0, { 0 } };
	for (int i = 1; i < step; i++)
		if (pthread_create(&threads[i], NULL, take, &all[i]))
			abort();
	(void)take(&all[0]);
	for (int i = 1; i < step; i++)
		(void)pthread_join(threads[i], NULL);
	for (int i = 0; i < step && rc == 0; i++) {
		rc = all[i].rc;
		if (rc < 0)
			*err = all[i].err;
	}
	free(order);
	return rc;
}

int takes_load(struct sheaf_checkpoint *step, struct sheaf_state *state, uint64_t flags,
               const struct takes *how, struct sheaf_report *begun, struct sheaf_report *ended,
               struct sheaf_error *err)
{
	struct sheaf_load *load = NULL;
	struct sheaf_error last = { 0 };
	int rc = shf_load_slices_begin(&load, step, state, flags, begun, err), end;

	if (rc < 0)
		return rc;
	rc = take_all(load, how, state->n, err);
	/* The other ranks wait in this call. */
	end = shf_load_slices_end(load, 0, ended, &last);
	if (rc == 0)
		*err = last;
	shf_load_slices_free(load);
	return rc < 0 ? rc : end;
}
