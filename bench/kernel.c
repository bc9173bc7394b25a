/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-bench-kernel: the speed of one core on bytes in memory, beside memcpy of the same bytes.
 *
 * A group is a set of jobs on the same bytes. A round runs each job of a group once, so that a
 * disturbance affects all of them. The first two jobs are the same memcpy: their difference is the
 * noise. */
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "average.h"
#include "crc64.h"
#include "dtype.h"
#include "sheaf.h"

#define JOBS_MAX 24
#define FAR ((size_t)64 << 20)          /* size of source and of destination, larger than caches */
#define NEAR ((size_t)128 << 10)        /* fits the cache of a core */
#define CALL ((size_t)1 << 20)          /* bytes per call in a long run: a block */

struct work {
	const uint8_t *from;
	uint8_t *to;
	float *averages;                /* averages of `from`, as fp32 */
	size_t run, pitch;              /* bytes of a run, and between starts of runs in `from` */
	size_t runs;
	int times;                      /* passes over all runs */
};

struct job {
	char name[64];
	void (*go)(const struct job *j, const struct work *w);
	const struct shf_crc64_path *path;
	bool past_cache;
	int dst, src;                   /* dtypes */
	size_t piece;                   /* bytes that are averaged and then copied */
	double *seconds;                /* owned, one for each round */
};

struct group {
	char name[64];
	struct work work;
	double bytes;                   /* of each job in a round */
	struct job jobs[JOBS_MAX];
	int jobs_n;
};

static volatile uint64_t sink;          /* so that the compiler keeps the result */

static void go_memcpy(const struct job *j, const struct work *w)
{
	(void)j;
	for (size_t i = 0; i < w->runs; i++)
		memcpy(w->to + i * w->run, w->from + i * w->pitch, w->run);
}

static void go_copy(const struct job *j, const struct work *w)
{
	uint64_t crc = 0;

	for (size_t i = 0; i < w->runs; i++)
		crc = j->path->copy(crc, w->to + i * w->run, w->from + i * w->pitch, w->run,
		                    j->past_cache);
	sink = crc;
}

static void go_raw(const struct job *j, const struct work *w)
{
	uint64_t crc = 0;

	for (size_t i = 0; i < w->runs; i++)
		crc = j->path->raw(crc, w->from + i * w->pitch, w->run);
	sink = crc;
}

/* Handles rows of a matrix that is cut by columns: the checksum so far is advanced by the gap. */
static void go_rows(const struct job *j, const struct work *w)
{
	static struct shf_crc64_by by;
	struct shf_crc64_rows r = { .to = w->to, .from = w->from, .to_step = (ptrdiff_t)w->run,
		                    .from_step = (ptrdiff_t)w->pitch, .n = w->run, .rows = w->runs,
		                    .gap = &by, .past_cache = j->past_cache };

	shf_crc64_by_init(&by, w->pitch - w->run);
	sink = shf_crc64_rows(0, &r);
}

static void go_convert(const struct job *j, const struct work *w)
{
	size_t item = shf_dtype(j->src)->bits / 8;

	for (size_t i = 0; i < w->runs; i++)
		if (shf_convert(w->to + i * w->run, j->dst, w->from + i * w->pitch, j->src,
		                w->run / item) < 0)
			abort();
}

static void go_average(const struct job *j, const struct work *w)
{
	size_t n = w->run * w->runs;

	(void)j;
	shf_average(w->averages, w->from, SHEAF_F32, n / sizeof(float), 0.999);
}

typedef float four __attribute__((vector_size(16)));

/* The simplest loop that reads two streams and writes one; n: whole lines. */
static void triad(float *e, const float *w, size_t n)
{
	const four c = { 0.999f, 0.999f, 0.999f, 0.999f }, d = { 0.001f, 0.001f, 0.001f, 0.001f };
	const four *from = (const four *)(const void *)w;
	four *to = (four *)(void *)e;

	for (size_t i = 0; i < n / 4; i += 4) {
		to[i] = c * to[i] + d * from[i];
		to[i + 1] = c * to[i + 1] + d * from[i + 1];
		to[i + 2] = c * to[i + 2] + d * from[i + 2];
		to[i + 3] = c * to[i + 3] + d * from[i + 3];
	}
}

static void go_triad(const struct job *j, const struct work *w)
{
	(void)j;
	triad(w->averages, (const float *)(const void *)w->from,
	      w->run * w->runs / sizeof(float));
}


/* Averages and copies piece by piece, as a save does. */
static void go_fused(const struct job *j, const struct work *w)
{
	uint64_t crc = 0;

	for (size_t at = 0; at < w->run * w->runs; at += j->piece) {
		shf_average(w->averages + at / sizeof(float), w->from + at, SHEAF_F32,
		            j->piece / sizeof(float), 0.999);
		crc = shf_crc64_copy(crc, w->to + at, w->from + at, j->piece, j->past_cache);
	}
	sink = crc;
}

static struct job *job(struct group *g, const char *name, const char *what,
                       void (*go)(const struct job *j, const struct work *w))
{
	struct job *j = &g->jobs[g->jobs_n++];

	if (g->jobs_n > JOBS_MAX)
		abort();
	*j = (struct job){ .go = go };
	snprintf(j->name, sizeof(j->name), "%s%s", name, what);
	return j;
}

/* Adds jobs that copy, and that copy and compute checksums, with runs that are pitch bytes
 * apart. */
static void sums(struct group *g, bool rows)
{
	const struct shf_crc64_path *path;
	const char *name;
	bool here;

	job(g, "memcpy", "", go_memcpy);
	job(g, "memcpy again", "", go_memcpy);
	if (rows) {
		job(g, "copy+sum", "", go_rows);
		job(g, "copy+sum, past caches", "", go_rows)->past_cache = true;
		return;
	}
	for (int i = 0; (path = shf_crc64_path(i, &name, &here)) != NULL; i++) {
		struct job *j;

		if (!here)
			continue;
		job(g, name, " copy+sum", go_copy)->path = path;
		j = job(g, name, " copy+sum, past caches", go_copy);
		j->path = path;
		j->past_cache = true;
		job(g, name, " sum alone", go_raw)->path = path;
	}
}

static void averages(struct group *g)
{
	static const size_t pieces[] = { 64 << 10, 128 << 10, 512 << 10, 2 << 20, FAR };
	const struct shf_crc64_path *path = NULL;
	const char *name;
	struct job *j;
	bool here;

	job(g, "memcpy", "", go_memcpy);
	job(g, "memcpy again", "", go_memcpy);
	for (int i = 0; shf_crc64_path(i, &name, &here); i++)
		path = here ? shf_crc64_path(i, &name, &here) : path;
	job(g, "copy+sum", "", go_copy)->path = path;
	j = job(g, "copy+sum", ", past caches", go_copy);
	j->path = path;
	j->past_cache = true;
	job(g, "average", " alone", go_average);
	job(g, "triad", " alone", go_triad);
	for (size_t i = 0; i < 2 * sizeof(pieces) / sizeof(pieces[0]); i++) {
		j = job(g, "", "", go_fused);
		j->piece = pieces[i / 2];
		j->past_cache = i % 2;
		snprintf(j->name, sizeof(j->name), "average, copy+sum by %zu KiB%s",
		         j->piece >> 10, i % 2 ? ", past" : "");
	}
}

static void conversions(struct group *g)
{
	static const int pairs[][2] = {
		{ SHEAF_F32, SHEAF_BF16 }, { SHEAF_BF16, SHEAF_F32 }, { SHEAF_F32, SHEAF_F16 },
		{ SHEAF_F16, SHEAF_F32 }, { SHEAF_BF16, SHEAF_F16 }, { SHEAF_F16, SHEAF_BF16 },
		{ SHEAF_F32, SHEAF_F8_E4M3 }, { SHEAF_F8_E4M3, SHEAF_F32 },
		{ SHEAF_F8_E5M2, SHEAF_F32 }, { SHEAF_BF16, SHEAF_F8_E4M3 },
		{ SHEAF_F8_E4M3, SHEAF_BF16 },
	};

	job(g, "memcpy of the source", "", go_memcpy);
	job(g, "memcpy again", "", go_memcpy);
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct job *j = job(g, shf_dtype(pairs[i][1])->name, " to ", go_convert);
		size_t len = strlen(j->name);

		snprintf(j->name + len, sizeof(j->name) - len, "%s",
		         shf_dtype(pairs[i][0])->name);
		j->dst = pairs[i][0];
		j->src = pairs[i][1];
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(struct group *g, int rounds)
{
	for (int j = 0; j < g->jobs_n; j++)
		if (!(g->jobs[j].seconds = calloc((size_t)rounds, sizeof(double))))
			abort();
	for (int r = -1; r < rounds; r++)       /* the first round is not counted */
		for (int j = 0; j < g->jobs_n; j++) {
			double start = now();

			for (int i = 0; i < g->work.times; i++)
				g->jobs[j].go(&g->jobs[j], &g->work);
			if (r >= 0)
				g->jobs[j].seconds[r] = now() - start;
		}
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* In GB/s: the best, the median; spread: interquartile range over the median */
struct stats {
	double best, median, spread;
};

static struct stats stats(const struct group *g, double *seconds, int rounds)
{
	struct stats s;

	qsort(seconds, (size_t)rounds, sizeof(double), by_value);
	s.best = g->bytes / seconds[0] / 1e9;
	s.median = g->bytes / seconds[rounds / 2] / 1e9;
	s.spread = (seconds[rounds * 3 / 4] - seconds[rounds / 4]) / seconds[rounds / 2];
	return s;
}

static void print(struct group *g, int rounds, json_t *all)
{
	struct stats first = { 0 };
	json_t *jobs = json_array();

	if (!all) {
		printf("\n%s\n", g->name);
		printf("  %-36s %9s %9s %7s %12s %14s\n", "", "best GB/s", "median", "spread",
		       "/memcpy best", "/memcpy median");
	}
	for (int i = 0; i < g->jobs_n; i++) {
		struct job *j = &g->jobs[i];
		struct stats s = stats(g, j->seconds, rounds);

		if (i == 0)
			first = s;
		if (all)
			json_array_append_new(
			    jobs, json_pack("{s:s,s:f,s:f,s:f,s:f,s:f}", "name", j->name,
			                    "best_gb_s", s.best, "median_gb_s", s.median, "spread",
			                    s.spread, "ratio_best", s.best / first.best,
			                    "ratio_median", s.median / first.median));
		else
			printf("  %-36s %9.2f %9.2f %6.1f%% %12.2f %14.2f\n", j->name, s.best,
			       s.median, 100 * s.spread, s.best / first.best,
			       s.median / first.median);
		free(j->seconds);
	}
	if (all)
		json_array_append_new(all, json_pack("{s:s,s:i,s:f,s:o}", "group", g->name,
		                                     "rounds", rounds, "bytes", g->bytes, "jobs",
		                                     jobs));
	else
		json_decref(jobs);
}

static void *buffer(size_t n, unsigned seed)
{
	uint8_t *p = aligned_alloc(1 << 21, n);

	if (!p)
		abort();
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13 ^ seed);
	return p;
}

/* Makes values like weights: without denormals, which are slow. */
static float *floats(size_t n, unsigned seed)
{
	float *p = (float *)(void *)buffer(n * sizeof(*p), seed);

	for (size_t i = 0; i < n; i++)
		p[i] = (float)(i * 2654435761u >> 13 ^ seed) * 0x1p-32f + 0.01f;
	return p;
}

static struct group *group(struct group *g, struct work work, size_t bytes)
{
	work.runs = bytes / work.pitch;
	work.times = (int)(((bytes < FAR / 8 ? FAR / 16 : FAR / 2) + bytes - 1) / bytes);
	g->work = work;
	g->bytes = (double)work.run * (double)work.runs * work.times;
	return g;
}

static int groups(struct group *g, const uint8_t *from, uint8_t *to, const float *weights,
                  float *averages_of)
{
	static const size_t rows[] = { 256, 512, 1024, 4096 };
	struct group *first = g;
	struct work w = { .from = from, .to = to, .averages = averages_of };

	for (int i = 0; i < 4; i++, g++) {
		w.run = w.pitch = i % 2 ? 256 : i / 2 ? NEAR : CALL;
		group(g, w, i / 2 ? NEAR : FAR);
		snprintf(g->name, sizeof(g->name), "runs of %zu bytes, %s", w.run,
		         i / 2 ? "in cache" : "beyond caches");
		sums(g, false);
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++, g++) {
		w.run = rows[i];
		w.pitch = 4 * rows[i];
		group(g, w, FAR);
		snprintf(g->name, sizeof(g->name), "rows of %zu of %zu bytes", w.run, w.pitch);
		sums(g, true);
	}
	for (int i = 0; i < 2; i++, g++) {
		w.run = w.pitch = i ? 4096 : CALL;
		group(g, w, i ? 4096 : FAR / 4);
		snprintf(g->name, sizeof(g->name), "conversions, %s",
		         i ? "in cache" : "beyond caches");
		conversions(g);
	}
	w.run = w.pitch = CALL;
	w.from = (const uint8_t *)weights;
	group(g, w, FAR);
	g->work.times = 1;
	g->bytes = (double)FAR;
	snprintf(g->name, sizeof(g->name), "averages of fp32, beyond caches");
	averages(g++);
	return (int)(g - first);
}

static const char usage[] =
    "usage: sheaf-bench-kernel [--rounds N] [--only WORD] [--json]\n"
    "Copies, sums, averages and conversions on one core beside memcpy of the same bytes, in N\n"
    "rounds (15) that run each once. --only: the groups whose name has WORD in it.\n";

int main(int argc, char **argv)
{
	static const struct option options[] = { { "rounds", required_argument, NULL, 'r' },
		                                 { "only", required_argument, NULL, 'o' },
		                                 { "json", no_argument, NULL, 'j' },
		                                 { "help", no_argument, NULL, 'h' },
		                                 { NULL, 0, NULL, 0 } };
	static struct group g[16];
	const char *only = "";
	float *weights, *averages_of;
	uint8_t *from, *to;
	json_t *all = NULL;
	int rounds = 15, groups_n;

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 'r')
			rounds = atoi(optarg);
		else if (c == 'o')
			only = optarg;
		else if (c == 'j')
			all = json_array();
		else
			return fputs(usage, c == 'h' ? stdout : stderr), c == 'h' ? 0 : 2;
	}
	if (rounds < 1 || optind < argc)
		return fputs(usage, stderr), 2;
	from = buffer(FAR, 1);
	to = buffer(FAR, 2);
	weights = floats(FAR / sizeof(float), 3);
	averages_of = floats(FAR / sizeof(float), 4);
	groups_n = groups(g, from, to, weights, averages_of);
	for (int i = 0; i < groups_n; i++) {
		if (!strstr(g[i].name, only))
			continue;
		measure(&g[i], rounds);
		print(&g[i], rounds, all);
	}
	if (all) {
		json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
		putchar('\n');
		json_decref(all);
	}
	free(from);
	free(to);
	free(weights);
	free(averages_of);
	return fflush(stdout) || ferror(stdout);
}
