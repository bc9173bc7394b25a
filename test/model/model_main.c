/* SPDX-License-Identifier: Apache-2.0 */
/* Plays sequences of all calls and events, and compares the results with the model of a run.
 *
 *   model [--seeds A..B] [--calls N] [--seconds S] [--jobs J] [--ranks R] [--bad N]
 *         [--matrix] [--json]
 *   model --seed N [--shrink]
 *
 * --calls: length of a sequence (60). --bad: ends after N failures (5). Each of J processes takes
 * every J-th seed. --seed prints the calls of one sequence, with --shrink those of the shortest
 * part of it that fails. Exit 0: the model and the library agree. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "actor.h"
#include "play.h"
#include "model_world.h"

enum { JOBS_AT_ONCE = 64, HANG_S = 60, REAL_TIMEOUT_MS = 6000 };

struct worker { /* shared with its process */
	struct play_counts counts;
	uint64_t seed, bad;
	struct sequence s; /* the sequence that it is playing */
	pid_t pid;
};
static struct {
	uint64_t first, last, seconds;
	int calls, jobs, ranks, bad;
	bool one, shrink, matrix, json;
} opt = { .first = 1, .last = UINT64_MAX, .calls = 60, .jobs = 1, .ranks = 3, .bad = 5 };

static struct play_opts opts_of(uint64_t seed)
{
	return (struct play_opts){
		.seed = seed, .calls = opt.calls, .ranks_max = opt.ranks, .faults = world_nodes > 1
	};
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Prints a sequence that fails, and its shortest part. apart: it kills its process. */
static void tell(struct sequence *s, uint64_t seed, bool apart, const char *why)
{
	char said[500];

	printf("seed %" PRIu64 ", after %d calls: %s\n", seed, s->n, why);
	if (!opt.shrink)
		return;
	snprintf(said, sizeof(said), "%s", why);
	play_shrink(s, apart ? play_apart : NULL, said);
	printf("shrunk to %d calls: %s\n", s->n, said);
	for (int i = 0; i < s->n && apart; i++)
		call_print(&s->calls[i], stdout);
	if (!apart)
		(void)play_again(s, stdout, said);
	fflush(stdout);
}

static void work(struct worker *w, uint64_t seed, double until)
{
	char why[500];

	for (; seed <= opt.last && seed >= opt.first; seed += (uint64_t)opt.jobs) {
		struct play_opts o = opts_of(seed);

		if ((opt.seconds && now() > until) || w->bad >= (uint64_t)opt.bad)
			break;
		w->seed = seed;
		alarm(HANG_S);
		if (!play_draw(&o, &w->s, &w->counts, NULL, why)) {
			alarm(10 * HANG_S);
			w->bad++;
			tell(&w->s, seed, false, why);
		}
		alarm(0);
	}
}

static void start(struct worker *w, uint64_t seed, double until)
{
	pid_t pid;

	fflush(stdout);
	w->seed = seed;
	pid = fork();
	if (pid == 0) {
		work(w, seed, until);
		fflush(stdout);
		_exit(0);
	}
	w->pid = pid;
}

/* A process has ended. If a sequence killed it, another process continues with the next one. */
static void took_end(struct worker *workers, pid_t pid, int status, double until)
{
	char why[100];

	for (int i = 0; i < opt.jobs; i++) {
		struct worker *w = &workers[i];

		if (w->pid != pid || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			continue;
		w->bad++;
		snprintf(why, sizeof(why), "its process ended by signal %d", WTERMSIG(status));
		if (WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM)
			tell(&w->s, w->seed, true, why);
		else
			printf("seed %" PRIu64 " hangs\n", w->seed);
		start(w, w->seed + (uint64_t)opt.jobs, until);
	}
}

static void print_matrix(const struct play_counts *c)
{
	printf("%-12s", "A, then B");
	for (int b = 0; b < CALL_KINDS; b++)
		printf(" %7.7s", call_names[b]);
	for (int a = 0; a < CALL_KINDS; a++) {
		printf("\n%-12s", call_names[a]);
		for (int b = 0; b < CALL_KINDS; b++)
			printf(" %7" PRIu64, c->pairs[a][b]);
	}
	putchar('\n');
}

static void print_counts(const struct play_counts *c, uint64_t bad, double seconds)
{
	int pairs = 0;

	for (int a = 0; a < CALL_KINDS; a++)
		for (int b = 0; b < CALL_KINDS; b++)
			pairs += c->pairs[a][b] > 0;
	if (opt.json)
		printf("{\"sequences\": %" PRIu64 ", \"calls\": %" PRIu64 ", \"refused\": %" PRIu64
		       ", \"looks\": %" PRIu64 ", \"loads\": %" PRIu64
		       ", \"pairs\": %d, \"bad\": %" PRIu64 ", \"seconds\": %.1f}\n",
		       c->sequences, c->calls, c->refused, c->looks, c->loads, pairs, bad, seconds);
	else
		printf("%" PRIu64 " sequences of %" PRIu64 " calls (%" PRIu64 " refused), %" PRIu64
		       " looks, %" PRIu64 " of them at all values, %d kinds of pairs; %" PRIu64
		       " disagree; %.0f s\n",
		       c->sequences, c->calls, c->refused, c->looks, c->loads, pairs, bad, seconds);
}

static int run_all(struct worker *workers)
{
	struct play_counts sum = { 0 };
	uint64_t bad = 0;
	double from = now(), until = from + (double)opt.seconds;
	pid_t pid;

	for (int i = 0; i < opt.jobs; i++)
		start(&workers[i], opt.first + (uint64_t)i, until);
	for (int status; (pid = wait(&status)) > 0;)
		took_end(workers, pid, status, until);
	for (int i = 0; i < opt.jobs; i++) {
		const uint64_t *add = (const uint64_t *)&workers[i].counts;
		uint64_t *to = (uint64_t *)&sum;

		for (size_t k = 0; k < sizeof(sum) / sizeof(*to); k++)
			to[k] += add[k];
		bad += workers[i].bad;
	}
	if (opt.matrix)
		print_matrix(&sum);
	print_counts(&sum, bad, now() - from);
	return bad != 0;
}

static int run_one(void)
{
	static struct sequence s;
	struct play_counts counts = { 0 };
	struct play_opts o = opts_of(opt.first);
	char why[500];
	bool good = play_draw(&o, &s, &counts, opt.shrink ? NULL : stdout, why);

	if (good)
		puts("the model agrees");
	else
		tell(&s, opt.first, false, why);
	return !good;
}

static bool take_seeds(const char *v)
{
	char *end;

	opt.first = opt.last = strtoull(v, &end, 10);
	if (end[0] == '.' && end[1] == '.')
		opt.last = strtoull(end + 2, &end, 10);
	return !*end;
}

static bool take(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(a, "--shrink") || !strcmp(a, "--matrix") || !strcmp(a, "--json")) {
			*(a[2] == 's' ? &opt.shrink : a[2] == 'm' ? &opt.matrix : &opt.json) = true;
			continue;
		}
		i++;
		if (!*v || ((!strcmp(a, "--seed") || !strcmp(a, "--seeds")) && !take_seeds(v)))
			return false;
		opt.one |= !strcmp(a, "--seed");
		if (!strcmp(a, "--calls"))
			opt.calls = atoi(v);
		else if (!strcmp(a, "--seconds"))
			opt.seconds = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--jobs"))
			opt.jobs = atoi(v);
		else if (!strcmp(a, "--ranks"))
			opt.ranks = atoi(v);
		else if (!strcmp(a, "--bad"))
			opt.bad = atoi(v);
		else if (strncmp(a, "--seed", 6))
			return false;
	}
	return opt.calls > 0 && opt.calls <= CALLS_MAX && opt.jobs > 0 &&
	       opt.jobs <= JOBS_AT_ONCE && opt.ranks > 0 && opt.ranks <= RANKS_MAX;
}

int main(int argc, char **argv)
{
	struct worker *workers = mmap(NULL, JOBS_AT_ONCE * sizeof(*workers), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	setlinebuf(stdout);
	if (!take(argc, argv) || workers == MAP_FAILED) {
		fputs(
		    "usage: model [--seeds A..B] [--calls N] [--seconds S] [--jobs J] [--ranks R] "
		    "[--bad N] [--matrix] [--json]\n       model --seed N [--shrink]\n",
		    stderr);
		return 2;
	}
	if (world_nodes == 1)
		actor_timeout_ms = REAL_TIMEOUT_MS;
	return opt.one ? run_one() : run_all(workers);
}
