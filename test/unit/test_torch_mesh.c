/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of a dimension, compared with the indices written out one by one. */
#include "torch_mesh.h"
#include "t.h"
#include "rng.h"

#define N_MAX 60

/* Cuts n indices as torch.chunk does: into parts of equal size, as few as that makes. Sets *n to
 * how many part i has, and moves them to the front. */
static void chunk(int *index, int *n, int parts, int i)
{
	int size = (*n + parts - 1) / parts, at = i * size, left = *n - at;

	left = left < 0 ? 0 : left < size ? left : size;
	for (int k = 0; k < left; k++)
		index[k] = index[at + k];
	*n = left;
}

/* Part i of each of `factor` parts, one after the other. */
static void strided(int *index, int *n, int factor, int parts, int i)
{
	int out[N_MAX], m = 0;

	for (int f = 0; f < factor; f++) {
		int own[N_MAX], k = *n;

		memcpy(own, index, sizeof(own));
		chunk(own, &k, factor, f);
		chunk(own, &k, parts, i);
		memcpy(out + m, own, (size_t)k * sizeof(*own));
		m += k;
	}
	memcpy(index, out, (size_t)m * sizeof(*out));
	*n = m;
}

static void same(const struct shf_torch_runs *r, const int *index, int n)
{
	int at = 0;

	CHECK_INT(shf_torch_runs_count(r), n);
	for (size_t i = 0; i < shf_torch_runs_n(r); i++) {
		const struct shf_torch_run *run = shf_torch_runs_at(r, i);

		CHECK(run->count > 0);
		for (int64_t k = 0; k < run->count; k++)
			CHECK_INT(run->start + k, index[at++]);
		CHECK(i == 0 || run[-1].start + run[-1].count != run->start);
	}
	CHECK_INT(at, n);
}

TEST(runs_are_the_indices_that_placements_leave)
{
	uint64_t seed = 0x5eaf;

	for (int round = 0; round < 20000; round++) {
		struct shf_torch_runs r = { SHF_BUF_INIT };
		int index[N_MAX], n = (int)(rng_next(&seed) % N_MAX);

		for (int i = 0; i < n; i++)
			index[i] = i;
		CHECK(shf_torch_runs_whole(&r, n));
		for (int cut = (int)(rng_next(&seed) % 4); cut > 0; cut--) {
			int parts = 1 + (int)(rng_next(&seed) % 5);
			int i = (int)(rng_next(&seed) % (uint64_t)parts);
			int factor = 1 + (int)(rng_next(&seed) % 4);

			if (rng_next(&seed) % 2) {
				CHECK(shf_torch_runs_shard(&r, parts, i));
				chunk(index, &n, parts, i);
			} else {
				CHECK(shf_torch_runs_strided(&r, factor, parts, i));
				strided(index, &n, factor, parts, i);
			}
			same(&r, index, n);
		}
		shf_torch_runs_release(&r);
	}
}

TEST(dimensions_of_any_size_take_little)
{
	const int64_t n = INT64_C(1) << 60;
	struct shf_torch_runs r = { SHF_BUF_INIT };

	CHECK(shf_torch_runs_whole(&r, n));
	CHECK(shf_torch_runs_shard(&r, 3, 2));
	CHECK_INT(shf_torch_runs_count(&r), n - 2 * (n / 3 + 1));
	CHECK(shf_torch_runs_whole(&r, 7));
	CHECK(shf_torch_runs_shard(&r, INT64_C(1) << 40, (INT64_C(1) << 40) - 1));
	CHECK_INT(shf_torch_runs_count(&r), 0);
	CHECK(shf_torch_runs_whole(&r, n));
	CHECK(shf_torch_runs_strided(&r, SHF_TORCH_RUNS_MAX, 2, 1));
	CHECK_INT(shf_torch_runs_n(&r), SHF_TORCH_RUNS_MAX);
	CHECK(!shf_torch_runs_strided(&r, SHF_TORCH_RUNS_MAX + 1, 2, 1));
	shf_torch_runs_release(&r);
}
