/* SPDX-License-Identifier: Apache-2.0 */
/* Lives of runs, as many as there is time for; see life.h.
 *
 *   sim-long [--seeds A..B] [--seconds S] [--jobs J] [--json]
 *   sim-long --seed N [--flaw F]
 *
 * Without --seeds they begin at 1. --seconds ends them, whatever is left. Each of J processes takes
 * every J-th. --seed tells the story of one, and with a failure every call of the disk. --flaw
 * leaves out the F-th fsync of each job, which must then be found. Exit 0: all is well. */
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "life.h"
#include "starve.h"

enum { JOBS_MAX = 64, HANG_S = 120, BAD_MAX = 10 };

struct worker {                 /* shared with the process that does it */
	struct life_counts counts;
	uint64_t seed;                  /* the one it is at */
	uint64_t bad, wrong, lost, leaks;
};
static struct {
	uint64_t first, last, seconds;
	int jobs;
	long flaw;
	bool one, json;
} opt = { .first = 1, .last = UINT64_MAX, .jobs = 1 };

/* ---- memory of the whole program, counted ---- */

static atomic_long blocks;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void __wrap_free(void *p);

void *__wrap_malloc(size_t n)
{
	blocks++;
	return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	blocks++;
	return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	blocks += p == NULL;
	return __real_realloc(p, n);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
	blocks++;
	return __real_posix_memalign(p, align, n);
}

void __wrap_free(void *p)
{
	blocks -= p != NULL;
	__real_free(p);
}

static void starving_begin(long nth)
{
	starved = false;
	starve_left = nth;
}

static bool starving_end(void)
{
	starve_left = 0;
	return starved;
}

/* ---- lives ---- */

static const struct life_starve starving = { starving_begin, starving_end };

static int lowest_fd(void)
{
	int fd = dup(0);

	if (fd >= 0)
		close(fd);
	return fd;
}

static int threads_n(void)
{
	char text[512] = "";
	const char *p;
	int fd = open("/proc/self/stat", O_RDONLY), k = 17;
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	p = n > 0 ? strrchr(text, ')') : NULL;
	while (p && k-- >= 0 && (p = strchr(p + 1, ' ')) != NULL)
		;
	return p ? atoi(p) : -1;
}

/* One life, and what it left behind. */
static bool live(uint64_t seed, struct worker *w, FILE *story)
{
	int fd = lowest_fd(), threads = threads_n();
	long before = blocks;
	char why[600];

	w->seed = seed;
	alarm(HANG_S);
	life_run(seed, &starving, opt.flaw, &w->counts, story, why);
	alarm(0);
	if (!why[0] && (blocks != before || lowest_fd() != fd || threads_n() != threads)) {
		snprintf(why, sizeof(why), "left %ld blocks of memory, descriptors %d to %d, "
		         "threads %d to %d", blocks - before, fd, lowest_fd(), threads,
		         threads_n());
		w->leaks++;
	}
	w->wrong += strstr(why, "wrong values") || strstr(why, "not whole");
	w->lost += strstr(why, "I7") || strstr(why, "I9") || strstr(why, "newest");
	if (!why[0])
		return true;
	w->bad++;
	fprintf(stderr, "seed %" PRIu64 ": %s\n  sim-long --seed %" PRIu64 "%s\n", seed, why, seed,
	        opt.flaw ? " with the same --flaw" : "");
	return false;
}

static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Ranks hand each other a baton: on one core that is quick. */
static void stay_on_a_core(int i)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	int here = sched_getcpu();
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)((i + (here > 0 ? here : 0)) % (n > 0 ? n : 1)), &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

static void work(struct worker *w, int i, double end)
{
	stay_on_a_core(i);
	for (uint64_t seed = opt.first + (uint64_t)i; seed <= opt.last && seed >= opt.first;
	     seed += (uint64_t)opt.jobs) {
		if ((opt.seconds && seconds_now() > end) || w->bad >= BAD_MAX)
			break;
		(void)live(seed, w, NULL);
	}
}

/* ---- the end ---- */

struct totals {
	struct life_counts c;
	uint64_t bad, wrong, lost, leaks, hangs, crashes;
	double seconds;
};

static void add(struct totals *t, const struct worker *w)
{
	uint64_t *to = (uint64_t *)&t->c;
	const uint64_t *from = (const uint64_t *)&w->counts;

	for (size_t i = 0; i < sizeof(t->c) / sizeof(*to); i++)
		to[i] += from[i];
	t->bad += w->bad;
	t->wrong += w->wrong;
	t->lost += w->lost;
	t->leaks += w->leaks;
}

static void print_json(const struct totals *t)
{
	printf("{\"lives\": %" PRIu64 ", \"jobs\": %" PRIu64 ", \"deeds\": %" PRIu64
	       ", \"deeds_done\": %" PRIu64 ", \"cuts\": %" PRIu64 ", \"judged\": %" PRIu64
	       ", \"failing_calls\": %" PRIu64, t->c.lives, t->c.jobs, t->c.deeds, t->c.deeds_done,
	       t->c.cuts, t->c.judged, t->c.failing_calls);
	for (int i = 0; i < TROUBLES; i++)
		printf("%s\"%s\": %" PRIu64, i ? ", " : ", \"jobs_that_met\": {",
		       life_troubles[i], t->c.met[i]);
	printf("}, \"bad\": %" PRIu64 ", \"wrong_restores\": %" PRIu64 ", \"lost\": %" PRIu64
	       ", \"hangs\": %" PRIu64 ", \"crashes\": %" PRIu64 ", \"leaks\": %" PRIu64
	       ", \"seconds\": %.1f}\n", t->bad, t->wrong, t->lost, t->hangs, t->crashes, t->leaks,
	       t->seconds);
}

static void print_text(const struct totals *t)
{
	printf("%" PRIu64 " lives in %.0f s (%.0f/s): %" PRIu64 " jobs, %" PRIu64 " deeds (%" PRIu64
	       " done), %" PRIu64 " power cuts, %" PRIu64 " disks judged whole\n", t->c.lives,
	       t->seconds, (double)t->c.lives / (t->seconds > 0 ? t->seconds : 1), t->c.jobs,
	       t->c.deeds, t->c.deeds_done, t->c.cuts, t->c.judged);
	printf("  %" PRIu64 " calls failed; jobs that nothing befell: %" PRIu64
	       "; jobs that met:", t->c.failing_calls, t->c.quiet);
	for (int i = 0; i < TROUBLES; i++)
		printf(" %s %" PRIu64 "%s", life_troubles[i], t->c.met[i],
		       i + 1 < TROUBLES ? "," : "\n");
	printf("  bad %" PRIu64 ": wrong restores %" PRIu64 ", lost acknowledged %" PRIu64
	       ", hangs %" PRIu64 ", crashes %" PRIu64 ", leaks %" PRIu64 "\n", t->bad, t->wrong,
	       t->lost, t->hangs, t->crashes, t->leaks);
}

static int usage(void)
{
	fputs("usage: sim-long [--seeds A..B] [--seconds S] [--jobs J] [--json]\n"
	      "       sim-long --seed N [--flaw F]\n", stderr);
	return 2;
}

static bool take_options(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *v = i + 1 < argc ? argv[i + 1] : "";
		char *end = NULL;

		if (strcmp(argv[i], "--json") == 0) {
			opt.json = true;
			continue;
		}
		if (strcmp(argv[i], "--seed") == 0) {
			opt.one = true;
			opt.first = opt.last = strtoull(v, &end, 0);
		} else if (strcmp(argv[i], "--seeds") == 0) {
			opt.first = strtoull(v, &end, 0);
			if (strncmp(end, "..", 2) != 0)
				return false;
			opt.last = strtoull(end + 2, &end, 0);
		} else if (strcmp(argv[i], "--seconds") == 0) {
			opt.seconds = strtoull(v, &end, 0);
		} else if (strcmp(argv[i], "--jobs") == 0) {
			opt.jobs = (int)strtoul(v, &end, 0);
		} else if (strcmp(argv[i], "--flaw") == 0) {
			opt.flaw = (long)strtoul(v, &end, 0);
		} else {
			return false;
		}
		if (!end || end == v || *end)
			return false;
		i++;
	}
	return opt.jobs >= 1 && opt.jobs <= JOBS_MAX && opt.first <= opt.last;
}

static void run_all(struct worker *workers, struct totals *t)
{
	double begin = seconds_now();
	pid_t pids[JOBS_MAX];
	int status;

	for (int i = 0; i < opt.jobs; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			work(&workers[i], i, begin + (double)opt.seconds);
			_exit(0);
		}
	}
	for (int i = 0; i < opt.jobs; i++) {
		if (pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i] && WIFSIGNALED(status)) {
			bool hang = WTERMSIG(status) == SIGALRM;

			workers[i].bad++;
			t->hangs += hang;
			t->crashes += !hang;
			fprintf(stderr, "seed %" PRIu64 ": %s\n  sim-long --seed %" PRIu64 "\n",
			        workers[i].seed, hang ? "never ends" : strsignal(WTERMSIG(status)),
			        workers[i].seed);
		}
		add(t, &workers[i]);
	}
	t->seconds = seconds_now() - begin;
}

int main(int argc, char **argv)
{
	struct worker *workers = mmap(NULL, JOBS_MAX * sizeof(*workers), PROT_READ | PROT_WRITE,
	                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct totals t = { .seconds = 0 };
	int rc;

	if (!take_options(argc, argv))
		return usage();
	if (workers == MAP_FAILED)
		return 2;
	if (opt.one) {
		stay_on_a_core(0);
		rc = live(opt.first, workers, stdout) ? 0 : 1;
	} else {
		run_all(workers, &t);
		if (opt.json)
			print_json(&t);
		else
			print_text(&t);
		rc = t.bad ? 1 : 0;
	}
	munmap(workers, JOBS_MAX * sizeof(*workers));
	return rc;
}
