/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long it takes to open a step of many tensors and to read one. The tensors have only
 * a few bytes, because only their number matters. */
#include "opens.h"
#include <ftw.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "sheaf.h"
#include "sheaf-inspect.h"

#define ITEMS 4
struct opens {
	const char *dir;
	int64_t tensors, per_file, rounds;
	bool json;
	double save_ms, all_ms, *ms;
	struct sheaf_error err;
};

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Makes tensor i, which contains four bytes of its number. */
static struct sheaf_slice tensor(int64_t i, char name[96], uint8_t *data)
{
	snprintf(name, 96, "model.layers.%d.mlp.experts.%d.%s_proj.weight", (int)(i / 768),
	         (int)(i / 3 % 256), i % 3 == 0 ? "gate" : i % 3 == 1 ? "up" : "down");
	return (struct sheaf_slice){ .size = sizeof(struct sheaf_slice), .name = name,
		.dtype = SHEAF_U8, .ndim = 1, .shape = { ITEMS }, .count = { ITEMS },
		.data = data };
}

static void value(int64_t i, uint8_t out[ITEMS])
{
	for (int k = 0; k < ITEMS; k++)
		out[k] = (uint8_t)(i >> 8 * k);
}

static int save(struct opens *o)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
		.file_bytes_max = (uint64_t)(o->per_file * ITEMS) };
	uint8_t *data = malloc((size_t)o->tensors * ITEMS);
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_run *run = NULL;
	struct sheaf_save *s = NULL;
	double from = now_ms();
	char name[96];
	int rc = data && state ? 0 : SHEAF_ENOMEM;

	for (int64_t i = 0; i < o->tensors && rc == 0; i++) {
		struct sheaf_slice t = tensor(i, name, data + i * ITEMS);

		value(i, data + i * ITEMS);
		rc = sheaf_state_add(state, &t, NULL);
		rc = rc > 0 ? 0 : rc;
	}
	if (rc == 0)
		rc = sheaf_run_open(&run, o->dir, NULL, &opts, &o->err);
	if (rc == 0)
		rc = sheaf_save_begin(&s, run, 1, state, NULL, &o->err);
	if (rc == 0)
		rc = sheaf_save_commit(s, -1, &o->err);
	sheaf_save_free(s);
	sheaf_run_close(run);
	sheaf_state_free(state);
	free(data);
	o->save_ms = now_ms() - from;
	return rc;
}

/* Opens, reads tensor i, and closes. */
static int one(struct opens *o, int64_t i, double *ms)
{
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	uint8_t got[ITEMS] = { 0 }, want[ITEMS];
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	char name[96];
	struct sheaf_slice t = tensor(i, name, got);
	double from = now_ms();
	int rc = sheaf_run_open(&run, o->dir, NULL, &opts, &o->err);

	if (rc == 0)
		rc = sheaf_checkpoint_open(&step, run, 1, &o->err);
	if (rc == 0)
		rc = sheaf_checkpoint_read(step, &t, &o->err);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
	*ms = now_ms() - from;
	value(i, want);
	if (rc == 0 && memcmp(got, want, ITEMS) != 0) {
		snprintf(o->err.msg, sizeof(o->err.msg), "%s: other bytes than were saved", name);
		rc = SHEAF_ECORRUPT;
	}
	return rc;
}

/* Opens, and lists all tensors. */
static int all(struct opens *o)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	double from = now_ms();
	int rc = sheaf_run_open(&run, o->dir, NULL, &opts, &o->err);

	if (rc == 0)
		rc = sheaf_checkpoint_open(&step, run, 1, &o->err);
	if (rc == 0)
		rc = sheaf_checkpoint_tensor(step, (size_t)o->tensors - 1, &t, NULL);
	sheaf_checkpoint_close(step);
	sheaf_run_close(run);
	o->all_ms = now_ms() - from;
	return rc;
}

static void print(const struct opens *o)
{
	const double *ms = o->ms;
	double median = ms[o->rounds / 2];

	if (o->json)
		printf("{\"what\":\"open, read one tensor, close\",\"tensors\":%" PRId64
		       ",\"files\":%" PRId64 ",\"rounds\":%" PRId64 ",\"best_ms\":%.3f,"
		       "\"median_ms\":%.3f,\"worst_ms\":%.3f,\"list_ms\":%.1f,"
		       "\"save_ms\":%.1f}\n"
		       "{\"claim\":\"open a checkpoint and read one tensor: ms, median\","
		       "\"value\":%.3f,\"bound\":50,\"at_least\":false}\n",
		       o->tensors, (o->tensors + o->per_file - 1) / o->per_file, o->rounds, ms[0],
		       median, ms[o->rounds - 1], o->all_ms, o->save_ms, median);
	else
		printf("  open a step of %" PRId64 " tensors, read one, close: %.2f ms best, %.2f "
		       "median, %.2f worst, of 50\n  open, list all of them: %.0f ms; save: %.0f "
		       "ms\n", o->tensors, ms[0], median, ms[o->rounds - 1], o->all_ms,
		       o->save_ms);
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

int bench_opens(bool quick, bool json)
{
	char dir[] = "opens-XXXXXX", run[32];
	struct opens o = { .dir = run, .tensors = quick ? 2000 : 544000,
		.per_file = quick ? 50 : 340, .rounds = quick ? 3 : 15, .json = json };
	int rc;

	if (!mkdtemp(dir)) {
		perror("opens");
		return SHEAF_EIO;
	}
	snprintf(run, sizeof(run), "%s/run", dir);
	o.ms = calloc((size_t)o.rounds, sizeof(*o.ms));
	rc = o.ms ? save(&o) : SHEAF_ENOMEM;
	for (int64_t r = 0; r < o.rounds && rc == 0; r++)
		rc = one(&o, r * 7919 * 31 % o.tensors, &o.ms[r]);
	if (rc == 0)
		rc = all(&o);
	if (rc == 0) {
		qsort(o.ms, (size_t)o.rounds, sizeof(*o.ms), compare);
		print(&o);
	} else {
		fprintf(stderr, "%s: %s: %s\n", run, sheaf_strerror(rc), o.err.msg);
	}
	free(o.ms);
	(void)nftw(dir, drop, 16, FTW_DEPTH | FTW_PHYS);
	return rc;
}
