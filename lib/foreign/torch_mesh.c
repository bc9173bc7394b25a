/* SPDX-License-Identifier: Apache-2.0 */
/* Source: torch/distributed/tensor/placement_types.py and _utils.py of torch 2.13. */
#include "torch_mesh.h"

size_t shf_torch_runs_n(const struct shf_torch_runs *r)
{
	return r->a.len / sizeof(struct shf_torch_run);
}

const struct shf_torch_run *shf_torch_runs_at(const struct shf_torch_runs *r, size_t i)
{
	return (const struct shf_torch_run *)(const void *)r->a.data + i;
}

int64_t shf_torch_runs_count(const struct shf_torch_runs *r)
{
	int64_t n = 0;

	for (size_t i = 0; i < shf_torch_runs_n(r); i++)
		n += shf_torch_runs_at(r, i)->count;
	return n;
}

/* Appends a run, or makes the last run longer if the new one continues it. */
static bool add_run(struct shf_torch_runs *r, int64_t start, int64_t count)
{
	struct shf_torch_run run = { start, count }, *last;

	if (count <= 0)
		return true;
	if (r->a.len) {
		last = (struct shf_torch_run *)(void *)r->a.data + shf_torch_runs_n(r) - 1;
		if (last->start + last->count == start) {
			last->count += count;
			return true;
		}
	}
	shf_buf_add(&r->a, &run, sizeof(run));
	return !r->a.oom;
}

/* Appends indices lo to hi - 1 of `from`, counted through all its runs. */
static bool add_positions(struct shf_torch_runs *r, const struct shf_torch_runs *from, int64_t lo,
                          int64_t hi)
{
	int64_t at = 0;
	bool good = true;

	for (size_t i = 0; i < shf_torch_runs_n(from) && good && at < hi; i++) {
		const struct shf_torch_run *run = shf_torch_runs_at(from, i);
		int64_t a = lo > at ? lo - at : 0;
		int64_t b = hi - at < run->count ? hi - at : run->count;

		good = add_run(r, run->start + a, b - a);
		at += run->count;
	}
	return good;
}

bool shf_torch_runs_whole(struct shf_torch_runs *r, int64_t n)
{
	shf_buf_reset(&r->a);
	return add_run(r, 0, n);
}

/* Returns where part i begins if [0, n) is cut into parts of equal size. */
static int64_t shard_start(int64_t n, int64_t parts, int64_t i)
{
	int64_t size = n / parts + (n % parts != 0);

	return size && i > n / size ? n : i * size < n ? i * size : n;
}

bool shf_torch_runs_strided(struct shf_torch_runs *r, int64_t factor, int64_t parts, int64_t i)
{
	struct shf_torch_runs was = *r;
	int64_t n = shf_torch_runs_count(r);
	bool good = factor <= SHF_TORCH_RUNS_MAX;

	*r = (struct shf_torch_runs){ SHF_BUF_INIT };
	for (int64_t k = 0; k < factor && good; k++) {
		int64_t lo = shard_start(n, factor, k), len = shard_start(n, factor, k + 1) - lo;

		if (lo == n)
			break;
		good = shf_torch_runs_n(r) < SHF_TORCH_RUNS_MAX &&
		       add_positions(r, &was, lo + shard_start(len, parts, i),
		                     lo + shard_start(len, parts, i + 1));
	}
	r->a.oom |= was.a.oom;
	shf_torch_runs_release(&was);
	return good;
}

bool shf_torch_runs_shard(struct shf_torch_runs *r, int64_t parts, int64_t i)
{
	return shf_torch_runs_strided(r, 1, parts, i);
}

void shf_torch_runs_release(struct shf_torch_runs *r)
{
	shf_buf_release(&r->a);
}
