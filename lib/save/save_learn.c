/* SPDX-License-Identifier: Apache-2.0 */
#include "save_learn.h"
#include <string.h>
#include "cpulist.h"
#include "mem.h"
#include "run_env.h"
#include "state.h"

int shf_save_learn_init(struct shf_save_copier *lz)
{
	struct shf_save_learn *l = &lz->learn;
	size_t n = lz->save->state->n;

	if (!lz->turns)
		return 0;
	l->noted = shf_zalloc(n, sizeof(*l->noted));
	l->asks = shf_zalloc(n, sizeof(*l->asks));
	if (lz->turns->order && (l->order = shf_alloc(n, sizeof(*l->order))))
		memcpy(l->order, lz->turns->order, n * sizeof(*l->order));
	return l->noted && l->asks && (l->order || !lz->turns->order) ? 0 : SHEAF_ENOMEM;
}

void shf_save_learn_asked(struct shf_save_copier *lz, size_t slice)
{
	struct shf_save_learn *l = &lz->learn;
	int64_t none = 0;

	if (!l->noted || atomic_load_explicit(&l->noted[slice], memory_order_relaxed) ||
	    atomic_exchange_explicit(&l->noted[slice], true, memory_order_relaxed))
		return;
	atomic_store_explicit(&l->asks[atomic_fetch_add(&l->asks_n, 1)], (unsigned)slice + 1,
	                      memory_order_relaxed);
	if (atomic_load_explicit(&l->first_ns, memory_order_relaxed) == 0)
		atomic_compare_exchange_strong(&l->first_ns, &none, shf_now(lz->save->run));
}

void shf_save_learn_waited(struct shf_save_copier *lz, int64_t ns)
{
	atomic_fetch_add_explicit(&lz->learn.waited_ns, ns, memory_order_relaxed);
}

/* Fills `order`: first the slices that callers asked for, in the order in which they asked, then
 * the others in the order in which this save copied. False: another thread has noted a slice and
 * not listed it yet, so the order is incomplete. */
static bool order_make(const struct shf_save_copier *lz, size_t n, uint32_t *order)
{
	const struct shf_save_learn *l = &lz->learn;
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		unsigned s = atomic_load_explicit(&l->asks[i], memory_order_relaxed);

		if (s)
			order[k++] = s - 1;
	}
	for (size_t i = 0; i < n && k < n; i++) {
		uint32_t s = l->order ? l->order[i] : (uint32_t)i;

		if (!atomic_load_explicit(&l->noted[s], memory_order_relaxed))
			order[k++] = s;
	}
	return k == n;
}

static void learn_order(struct shf_save_copier *lz)
{
	struct shf_save_order *turns = &lz->save->plan->turns;
	size_t n = lz->save->state->n;
	uint32_t *order = shf_alloc(n, sizeof(*order));

	if (order && order_make(lz, n, order)) {
		shf_free(turns->order);
		turns->order = order;
	} else {
		shf_free(order);
	}
}

/* Stores in the plan how the copy went. Does nothing if the copy did not follow a learned order,
 * because then callers had to wait no matter how many threads copied; nor if it is incomplete, or
 * no thread took part. */
static void learn_pace(const struct shf_save_copier *lz, int64_t first_ns)
{
	struct sheaf_save *save = lz->save;
	int64_t before = save->took.copy_from_ns - save->took.began;
	uint64_t copied = atomic_load(&save->took.copy_ns);

	if (!lz->learn.order || copied == 0 || lz->copied_by == 0)
		return;
	save->plan->turns.seen = (struct shf_copy_pace){ .threads = lz->copied_by,
		.copy_ns = (int64_t)copied - before,
		.lead_ns = first_ns - save->took.copy_from_ns,
		.waited_ns = atomic_load(&lz->learn.waited_ns) };
}

void shf_save_learn_end(struct shf_save_copier *lz)
{
	int64_t first_ns = atomic_load(&lz->learn.first_ns);

	if (!lz->learn.noted || lz->learn.over || first_ns == 0)
		return;
	lz->learn.over = true;
	learn_pace(lz, first_ns);
	learn_order(lz);
}

/* Returns the largest number of copy threads. A rank leaves the other ranks of its node their share
 * of the processors, and one of its own share to the caller's threads. The processors of
 * opts.staging.copy_cpus are all for the copy. */
static int threads_most(const struct sheaf_run *run)
{
	int cpus = shf_sys_cpus(run->sys), spare = cpus / run->place.node_ranks - 1;
	uint64_t bits[SHF_CPUS_WORDS];

	if (run->opts.copy_cpus && shf_cpulist(run->opts.copy_cpus, bits)) {
		cpus = 0;
		for (int i = 0; i < SHF_CPUS_WORDS; i++)
			cpus += __builtin_popcountll(bits[i]);
		spare = cpus;
	}
	return shf_copy_pace_threads_most(run->opts.copy_threads, cpus, spare);
}

int shf_save_learn_threads(const struct shf_save_copier *lz)
{
	return shf_copy_pace_threads(&lz->save->plan->turns.seen, threads_most(lz->save->run));
}

void shf_save_learn_free(struct shf_save_copier *lz)
{
	shf_free(lz->learn.noted);
	shf_free(lz->learn.asks);
	shf_free(lz->learn.order);
}
