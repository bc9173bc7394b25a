/* SPDX-License-Identifier: Apache-2.0 */
#include "toy_model.h"
#include <math.h>
#include <mpi.h>
#include <string.h>

#define RANKS_MAX 64

static int first_item(int rank, int ranks)
{
	return ITEMS * rank / ranks;
}

static float from_bf16(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint16_t to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float gradient(const struct model *m, int layer, int item)
{
	return from_bf16(m->layers[layer].weight[item]) -
	       (float)((layer * 31 + item * 7) % 101) / 101;
}

void model_init(struct model *m, int rank, int ranks)
{
	if (ranks > RANKS_MAX)
		MPI_Abort(MPI_COMM_WORLD, 1);
	m->rank = rank;
	m->ranks = ranks;
	m->first = first_item(rank, ranks);
	m->count = first_item(rank + 1, ranks) - m->first;
	m->rng = (uint64_t)rank + 1;
}

double model_forward_backward(struct model *m)
{
	double mine = 0, loss;

	m->before_change(m->arg, -1);
	m->rng = m->rng * 6364136223846793005u + 1442695040888963407u;
	for (int i = 0; i < LAYERS; i++)
		for (int k = m->first; k < m->first + m->count; k++)
			mine += pow(gradient(m, i, k), 2) / (LAYERS * ITEMS);
	MPI_Allreduce(&mine, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return loss;
}

void model_optimizer_step(struct model *m)
{
	int counts[RANKS_MAX], firsts[RANKS_MAX];
	uint16_t mine[ITEMS];

	for (int r = 0; r < m->ranks; r++) {
		firsts[r] = first_item(r, m->ranks);
		counts[r] = first_item(r + 1, m->ranks) - firsts[r];
	}
	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &m->layers[i];

		m->before_change(m->arg, i);
		for (int k = 0; k < m->count; k++) {
			float g = gradient(m, i, m->first + k);

			l->moment1[k] = 0.9f * l->moment1[k] + 0.1f * g;
			l->moment2[k] = 0.99f * l->moment2[k] + 0.01f * g * g;
			l->master[k] -= 0.01f * l->moment1[k] / (sqrtf(l->moment2[k]) + 1e-6f);
			mine[k] = to_bf16(l->master[k]);
		}
		MPI_Allgatherv(mine, m->count, MPI_UINT16_T, l->weight, counts, firsts,
		               MPI_UINT16_T, MPI_COMM_WORLD);
	}
}
