/* SPDX-License-Identifier: Apache-2.0 */
#include "drill.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 512                        /* size of the matrices */
#define ROWS 16                         /* rows of a product, which is one unit */

/* Pieces that change together: all that Adam needs for one parameter. A piece is alone if other
 * ranks have the rest of its parameter, or it is not a parameter. */
struct part {
	int piece[4];                   /* fp32 weights, moments, bf16 weights */
	int n;
	bool is_adam;
};

struct drill {
	const struct wl_held *held;     /* borrowed */
	struct part *part;              /* owned; in order of the first piece */
	size_t part_n;
	float *grad;                    /* owned; item i of a box has gradient grad[i % grad_n] */
	size_t grad_n;
	float *matrix;                  /* owned: two of SIDE x SIDE, ROWS x SIDE for each thread */

	pthread_t *thread;              /* owned, workers - 1 of them */
	int workers, threads_n;         /* threads_n: threads that were started */
	pthread_mutex_t lock;
	pthread_cond_t go, done;
	int64_t units;                  /* guarded by lock, as all below */
	uint64_t turn;                  /* changes when there are new units to do */
	int next, busy;                 /* next: number of the next thread to start */
	bool over;
};

/* --- products --------------------------------------------------------------------------------- */

/* Computes ROWS x SIDE of C = A * B, four rows of B at a time. */
static void product(const float *restrict a, const float *restrict b, float *restrict c)
{
	for (int i = 0; i < ROWS; i++) {
		float *to = c + i * SIDE;

		memset(to, 0, SIDE * sizeof(*to));
		for (int k = 0; k < SIDE; k += 4) {
			const float *w = a + i * SIDE + k, *from = b + k * SIDE;

			for (int j = 0; j < SIDE; j++)
				to[j] += w[0] * from[j] + w[1] * from[SIDE + j] +
					 w[2] * from[2 * SIDE + j] + w[3] * from[3 * SIDE + j];
		}
	}
}

/* Computes every workers-th unit, beginning with number me. */
static void products(struct drill *d, int me, int64_t units)
{
	float *c = d->matrix + 2 * SIDE * SIDE + (size_t)me * ROWS * SIDE;

	for (int64_t u = me; u < units; u += d->workers)
		product(d->matrix + u % (SIDE / ROWS) * ROWS * SIDE, d->matrix + SIDE * SIDE, c);
}

static void *work(void *arg)
{
	struct drill *d = arg;
	uint64_t seen = 0;
	int me;

	pthread_mutex_lock(&d->lock);
	me = d->next++;
	while (!d->over) {
		int64_t units = d->units;

		if (d->turn == seen) {
			pthread_cond_wait(&d->go, &d->lock);
			continue;
		}
		seen = d->turn;
		pthread_mutex_unlock(&d->lock);
		products(d, me, units);
		pthread_mutex_lock(&d->lock);
		if (--d->busy == 0)
			pthread_cond_signal(&d->done);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

void drill_compute(struct drill *d, int64_t units)
{
	if (d->threads_n) {
		pthread_mutex_lock(&d->lock);
		d->units = units;
		d->busy = d->threads_n;
		d->turn++;
		pthread_cond_broadcast(&d->go);
		pthread_mutex_unlock(&d->lock);
	}
	products(d, 0, units);
	if (d->threads_n) {
		pthread_mutex_lock(&d->lock);
		while (d->busy)
			pthread_cond_wait(&d->done, &d->lock);
		pthread_mutex_unlock(&d->lock);
	}
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Gradients are multiples of 2^-16 below 1/2 in size: sums over up to 256 ranks need no rounding,
 * so they are the same on all ranks. */
int drill_reduce(struct drill *d, const struct bench_comm *c, int64_t step,
		 struct sheaf_error *err)
{
	uint32_t salt = (uint32_t)step * 0x85ebca6bu + (uint32_t)c->rank * 0xc2b2ae35u;
	int rc;

	for (size_t i = 0; i < d->grad_n; i++) {
		uint32_t x = ((uint32_t)i + salt) * 0x9e3779b1u;

		d->grad[i] = (float)((int32_t)(x >> 16) - 32768) * 0x1p-16f;
	}
	rc = bench_sum(c, d->grad, d->grad_n, err);
	for (size_t i = 0; rc == 0 && i < d->grad_n; i++)
		d->grad[i] /= (float)c->ranks;
	return rc;
}

/* --- Adam ------------------------------------------------------------------------------------- */

struct adam {                           /* of one step */
	float rate, first, second;      /* first, second: bias corrections of the moments */
};

static inline float adam_item(const struct adam *a, float w, float *m, float *v, float g)
{
	*m = 0.9f * *m + 0.1f * g;
	*v = 0.999f * *v + 0.001f * g * g;
	return w - a->rate * (*m * a->first / (sqrtf(*v * a->second) + 1e-8f) + 0.01f * w);
}

static void adam_f32(const struct adam *a, float *restrict w, float *restrict m,
		     float *restrict v, const float *restrict g, size_t n)
{
	for (size_t i = 0; i < n; i++)
		w[i] = adam_item(a, w[i], &m[i], &v[i], g[i]);
}

/* Rounds finite values to nearest even. */
static void weights_bf16(uint16_t *restrict out, const float *restrict w, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t x;

		memcpy(&x, &w[i], sizeof(x));
		out[i] = (uint16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
	}
}

static void adam_part(const struct drill *d, const struct part *p, const struct adam *a)
{
	const struct wl_piece *of[4] = { NULL };
	char *at[4] = { NULL };
	size_t items;

	for (int i = 0; i < p->n; i++) {
		of[i] = &d->held->p[p->piece[i]];
		at[i] = wl_piece_at(of[i], of[i]->from);
	}
	items = (size_t)of[0]->items;
	for (size_t i = 0; i < items;) {
		size_t g = ((size_t)of[0]->from + i) % d->grad_n;
		size_t n = items - i < d->grad_n - g ? items - i : d->grad_n - g;
		float *w = (float *)(void *)at[0] + i;

		adam_f32(a, w, (float *)(void *)at[1] + i, (float *)(void *)at[2] + i,
			 d->grad + g, n);
		if (p->n == 4)
			weights_bf16((uint16_t *)(void *)at[3] + i, w, n);
		i += n;
	}
}

/* Changes every byte, whatever it means. */
static void change_bytes(const struct wl_piece *p)
{
	unsigned char *at = (unsigned char *)wl_piece_at(p, p->from);
	size_t n = (size_t)wl_bytes(p->slice.dtype, p->items);

	for (size_t i = 0; i < n; i++)
		at[i]++;
}

void drill_update(struct drill *d, int64_t step, void (*gate)(void *arg, int piece), void *arg)
{
	double n = (double)(step < 1000000 ? step : 1000000) + 1;
	struct adam a = { .rate = 1e-3f, .first = (float)(1 / (1 - pow(0.9, n))),
			  .second = (float)(1 / (1 - pow(0.999, n))) };

	for (size_t i = 0; i < d->part_n; i++) {
		const struct part *p = &d->part[i];

		for (int k = 0; gate && k < p->n; k++)
			gate(arg, p->piece[k]);
		if (d->held->p[p->piece[0]].items == 0)
			continue;
		if (p->is_adam)
			adam_part(d, p, &a);
		else
			change_bytes(&d->held->p[p->piece[0]]);
	}
}

void drill_start(struct drill *d)
{
	for (size_t i = 0; i < d->part_n; i++) {
		for (int k = 1; d->part[i].is_adam && k < 3; k++) {
			const struct wl_piece *p = &d->held->p[d->part[i].piece[k]];

			if (p->items)
				memset(wl_piece_at(p, p->from), 0,
				       (size_t)wl_bytes(p->slice.dtype, p->items));
		}
	}
}

/* --- parts ------------------------------------------------------------------------------------ */

struct search {
	const struct wl_held *held;
	const struct wl_model *model;
	int *at;                        /* by tensor: its piece; -1: none, or it is in a part */
};

/* Returns the piece of family/name+kind that holds the same items as `like`, or -1. */
static int beside(const struct search *s, const char *family, const char *kind,
		  const struct wl_piece *like, int dtype)
{
	const char *name = s->model->t[like->tensor].name;
	char full[WL_NAME_MAX + 32];
	const struct wl_piece *p;
	size_t tensor;

	if (strlen(name) > WL_NAME_MAX)
		return -1;
	stpcpy(stpcpy(full, name), kind);
	tensor = wl_model_find(s->model, family, full);
	if (tensor == s->model->n || s->at[tensor] < 0)
		return -1;
	p = &s->held->p[s->at[tensor]];
	return p->slice.dtype == dtype && p->from == like->from && p->items == like->items
	       ? s->at[tensor] : -1;
}

/* Returns the part that begins with piece i, which is not in any part yet. */
static struct part part_of(const struct search *s, int i)
{
	const struct wl_piece *p = &s->held->p[i];
	bool master = strcmp(s->model->t[p->tensor].family, "master_weights") == 0;
	bool weight = strcmp(s->model->t[p->tensor].family, "model") == 0;
	struct part made = { .piece = { i, -1, -1, -1 }, .n = 1 };

	if ((!master && !weight) || p->slice.dtype != SHEAF_F32)
		return made;
	made.piece[1] = beside(s, "optimizer", "/moment1_0", p, SHEAF_F32);
	made.piece[2] = beside(s, "optimizer", "/moment2_0", p, SHEAF_F32);
	if (master)
		made.piece[3] = beside(s, "model", "", p, SHEAF_BF16);
	made.is_adam = made.piece[1] >= 0 && made.piece[2] >= 0 && (!master || made.piece[3] >= 0);
	if (made.is_adam)
		made.n = master ? 4 : 3;
	return made;
}

static int find_parts(struct drill *d, const struct wl_model *model, bool adam,
		      struct sheaf_error *err)
{
	struct search s = { .held = d->held, .model = model };

	d->part = calloc(d->held->n + 1, sizeof(*d->part));
	s.at = calloc(model->n + 1, sizeof(*s.at));
	if (!d->part || !s.at) {
		free(s.at);
		return wl_fail(err, SHEAF_ENOMEM, "no memory for an optimizer");
	}
	for (size_t i = 0; i < model->n; i++)
		s.at[i] = -1;
	for (size_t i = 0; i < d->held->n; i++)
		s.at[d->held->p[i].tensor] = (int)i;
	for (size_t i = 0; i < d->held->n; i++) {
		struct part p;

		if (s.at[d->held->p[i].tensor] < 0)
			continue;
		p = adam ? part_of(&s, (int)i) : (struct part){ .piece = { (int)i }, .n = 1 };
		for (int k = 0; k < p.n; k++)
			s.at[d->held->p[p.piece[k]].tensor] = -1;
		d->part[d->part_n++] = p;
	}
	free(s.at);
	return 0;
}

/* --- setup and release ------------------------------------------------------------------------ */

static int make_memory(struct drill *d, struct sheaf_error *err)
{
	size_t floats = 2 * SIDE * SIDE + (size_t)d->workers * ROWS * SIDE;

	d->grad = calloc(d->grad_n, sizeof(*d->grad));
	d->matrix = calloc(floats, sizeof(*d->matrix));
	d->thread = calloc((size_t)d->workers, sizeof(*d->thread));
	if (!d->grad || !d->matrix || !d->thread)
		return wl_fail(err, SHEAF_ENOMEM, "no memory to step with");
	wl_fill(d->matrix, SHEAF_F32, 1, 0, 2 * SIDE * SIDE);
	return 0;
}

int drill_new(struct drill **out, const struct wl_held *held, const struct wl_model *model,
	      const struct drill_opts *opts, struct sheaf_error *err)
{
	struct drill *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return wl_fail(err, SHEAF_ENOMEM, "no memory to step with");
	d->held = held;
	d->grad_n = opts->grad_items;
	d->workers = opts->threads;
	d->next = 1;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->go, NULL);
	pthread_cond_init(&d->done, NULL);
	rc = make_memory(d, err);
	if (rc == 0)
		rc = find_parts(d, model, opts->adam, err);
	while (rc == 0 && d->threads_n < d->workers - 1) {
		if (pthread_create(&d->thread[d->threads_n], NULL, work, d) != 0)
			rc = wl_fail(err, SHEAF_ENOMEM, "no thread %d of %d", d->threads_n + 2,
				     d->workers);
		else
			d->threads_n++;
	}
	if (rc < 0) {
		drill_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

void drill_free(struct drill *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->over = true;
	pthread_cond_broadcast(&d->go);
	pthread_mutex_unlock(&d->lock);
	for (int i = 0; i < d->threads_n; i++)
		pthread_join(d->thread[i], NULL);
	pthread_cond_destroy(&d->go);
	pthread_cond_destroy(&d->done);
	pthread_mutex_destroy(&d->lock);
	free(d->part);
	free(d->grad);
	free(d->matrix);
	free(d->thread);
	free(d);
}
