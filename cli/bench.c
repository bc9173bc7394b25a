/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf bench: what a disk can do, what Sheaf gets from it, and what limits Sheaf.
 *
 * The first process waits for signals and for a second process, which measures, and then removes
 * all files, whatever happened to the second. Nothing is written outside one new directory.
 */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "device.h"
#include "workload.h"

#define TENSOR_ROWS 2048
#define TENSOR_BYTES ((uint64_t)16 << 20)
#define FILE_BYTES_MAX ((uint64_t)5000000000 / 4096 * 4096)
#define ROUNDS_MAX 1000

enum what { WRITE_DIRECT, WRITE_BUFFERED, READ_DIRECT, READ_BUFFERED, SAVE, LOAD, SYNC, WHATS };
static const char *const names[WHATS] = {
	"device, direct writes", "device, buffered writes", "device, direct reads",
	"device, buffered reads", "sheaf saves", "sheaf loads", "a file of 4 KiB, fsynced",
};

struct bench {
	const struct cli_args *a;
	const char *dir;                /* as given by the user */
	char own[PATH_MAX - 128];       /* the directory for all files */
	struct device_place place;
	struct device_job job;
	struct sheaf_run *run;
	struct sheaf_state *state;
	int64_t rounds;
	int n[WHATS];
	struct device_time t[WHATS][ROUNDS_MAX];
	double begin_s;                 /* of the fastest save, until its memory was free */
};

static int failed(const struct bench *b, int rc, const char *what)
{
	char why[300];

	snprintf(why, sizeof(why), "%s: %s", what, strerror(-rc));
	return cli_error(b->a, SHEAF_EIO, b->dir, why, NULL);
}

/* --- values ----------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t x)
{
	x += UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	return x ^ (x >> 29);
}

/* Fills the memory with values that a file system cannot compress or deduplicate. */
static void fill(const struct device_job *j)
{
	for (uint64_t i = 0; i < j->bytes / 8; i++) {
		uint64_t v = mixed(i);

		memcpy(j->memory + 8 * i, &v, 8);
	}
}

static bool is_filled(const struct device_job *j)
{
	for (uint64_t i = 0; i < j->bytes / 8; i++) {
		uint64_t v = mixed(i);

		if (memcmp(j->memory + 8 * i, &v, 8) != 0)
			return false;
	}
	return true;
}

/* --- one of each ------------------------------------------------------------------------------ */

static void note(struct bench *b, enum what what, const struct device_time *t)
{
	b->t[what][b->n[what]++] = *t;
}

/* Checks that the values read are those written. The caller has overwritten the memory before the
 * read, so that its pages are present and do not have the values. */
static int came_back(struct bench *b, const char *what)
{
	if (is_filled(&b->job))
		return 0;
	return cli_error(b->a, SHEAF_ECORRUPT, b->dir, what, "check the disk and the kernel log; "
	                 "if they are fine, report it");
}

static int raw(struct bench *b, bool direct)
{
	struct device_time t;
	int rc = device_write(&b->job, direct, &t);

	if (rc < 0)
		return failed(b, rc, direct ? "a direct write" : "a buffered write");
	note(b, direct ? WRITE_DIRECT : WRITE_BUFFERED, &t);
	memset(b->job.memory, 0xa7, b->job.bytes);
	rc = device_read(&b->job, direct, &t);
	if (rc < 0)
		return failed(b, rc, direct ? "a direct read" : "a buffered read");
	note(b, direct ? READ_DIRECT : READ_BUFFERED, &t);
	device_remove(&b->job);
	return came_back(b, "plain reads return other bytes than were written");
}

static int save(struct bench *b, int64_t step)
{
	struct sheaf_error err = { .msg = "" };
	struct sheaf_save *save = NULL;
	double start = device_now(), cpu = device_cpu(), begin = 0;
	struct device_time t;
	int rc = sheaf_save_begin(&save, b->run, step, b->state, NULL, &err);

	begin = device_now() - start;
	while (rc == 0) {
		rc = sheaf_save_commit(save, -1, &err);
		if (rc != SHEAF_EAGAIN)
			break;
		rc = 0; /* the disk is slow */
	}
	t.seconds = device_now() - start;
	t.cpu_s = device_cpu() - cpu;
	sheaf_save_free(save);
	if (rc < 0)
		return cli_error(b->a, rc, b->dir, err.msg, NULL);
	if (!b->n[SAVE] || begin < b->begin_s)
		b->begin_s = begin;
	note(b, SAVE, &t);
	return 0;
}

static int load(struct bench *b, const char *path, int64_t number)
{
	struct sheaf_error err = { .msg = "" };
	struct sheaf_checkpoint *step = NULL;
	struct device_time t;
	double start, cpu;
	int rc = device_forget(path);

	if (rc < 0)
		return failed(b, rc, "listing the step's files");
	memset(b->job.memory, 0xa7, b->job.bytes);
	start = device_now();
	cpu = device_cpu();
	rc = sheaf_checkpoint_open(&step, b->run, number, &err);
	if (rc == 0)
		rc = sheaf_checkpoint_load(step, b->state, 0, NULL, &err);
	t.seconds = device_now() - start;
	t.cpu_s = device_cpu() - cpu;
	sheaf_checkpoint_close(step);
	if (rc < 0)
		return cli_error(b->a, rc, b->dir, err.msg, NULL);
	note(b, LOAD, &t);
	return came_back(b, "a load returned other bytes than were saved");
}

static int sheaf_turn(struct bench *b, int64_t step)
{
	char path[PATH_MAX];
	int rc = save(b, step);

	snprintf(path, sizeof(path), "%s/run/checkpoint-%lld", b->own, (long long)step);
	if (!rc)
		rc = load(b, path, step);
	if (!rc && device_clear(path) < 0)
		rc = failed(b, -EIO, "removing the step");
	return rc;
}

static int raw_turn(struct bench *b)
{
	struct device_time t = { 0 };
	int rc = 0;

	for (int i = 0; i < 3; i++) {
		rc = device_sync(&b->job, &t.seconds);
		if (rc < 0)
			return failed(b, rc, "fsync");
		if (b->n[SYNC] < ROUNDS_MAX)
			note(b, SYNC, &t);
	}
	if (b->place.direct)
		rc = raw(b, true);
	return rc ? rc : raw(b, false);
}

/* The order alternates, so that a disk that slows down affects both. */
static int rounds(struct bench *b)
{
	bool tty = isatty(STDERR_FILENO) && !b->a->json;
	int rc = 0;

	for (int64_t r = 0; !rc && r < b->rounds; r++) {
		if (tty)
			fprintf(stderr, "\rround %lld of %lld ", (long long)r + 1,
				(long long)b->rounds);
		if (r % 2 == 0)
			rc = raw_turn(b);
		if (!rc)
			rc = sheaf_turn(b, r + 1);
		if (!rc && r % 2 == 1)
			rc = raw_turn(b);
	}
	if (tty)
		fputs("\r\033[K", stderr);
	return rc;
}

/* --- the report ------------------------------------------------------------------------------- */

struct told {
	double best, median, spread;    /* seconds, seconds, share of the median */
	double cpu_s;                   /* of the median round, approximately */
};

static int by_seconds(const void *a, const void *b)
{
	const struct device_time *x = a, *y = b;

	return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static struct told sum_up(struct bench *b, enum what what)
{
	struct device_time *t = b->t[what];
	int n = b->n[what];
	struct told s = { 0 };

	if (!n)
		return s;
	qsort(t, (size_t)n, sizeof(*t), by_seconds);
	s.best = t[0].seconds;
	s.median = (t[(n - 1) / 2].seconds + t[n / 2].seconds) / 2;
	s.spread = s.median > 0 ? (t[n - 1].seconds - t[0].seconds) / s.median : 0;
	s.cpu_s = (t[(n - 1) / 2].cpu_s + t[n / 2].cpu_s) / 2;
	return s;
}

static void tell_row(const struct bench *b, enum what what, const struct told *s, double limit)
{
	double gb = (double)b->job.bytes * 1e-9;

	if (!b->n[what])
		return;
	if (b->a->json) {
		cli_line(json_pack("{s:s,s:I,s:i,s:f,s:f,s:f,s:f,s:o}", "what", names[what],
				   "bytes", (json_int_t)(what == SYNC ? 4096 : b->job.bytes),
				   "rounds", b->n[what], "best_s", s->best, "median_s", s->median,
				   "spread", s->spread, "cpu_s", s->cpu_s, "of_device",
				   limit > 0 ? json_real(limit / s->best) : json_null()));
		return;
	}
	if (what == SYNC) {
		printf("%-26s%7.2f ms  %7.2f ms  %5.0f %%\n", names[what], s->best * 1e3,
		       s->median * 1e3, s->spread * 100);
		return;
	}
	printf("%-26s%5.0f MB/s  %5.0f MB/s  %5.0f %%  %6.3f", names[what], gb * 1e3 / s->best,
	       gb * 1e3 / s->median, s->spread * 100, s->cpu_s / gb);
	if (limit > 0)
		printf("     %.2f", limit / s->best);
	putchar('\n');
}

/* Returns the faster of the two that were tried. */
static double quicker(const struct told *a, const struct told *b)
{
	return a->best > 0 && a->best < b->best ? a->best : b->best;
}

/* Prints what limits it: the device, the processor, or neither. */
static void tell_limit(const struct bench *b, const char *what, const struct told *s, double limit,
		       double begin_s)
{
	const char *who;
	char text[240];
	int n;

	if (s->best * 0.9 <= limit)
		who = "the device";
	else if (s->cpu_s >= 0.85 * s->median)
		who = "the processor";
	else
		who = "neither alone: parts of it wait for each other";
	n = snprintf(text, sizeof(text), "%s are limited by %s: %.2f of the device, %.2f s of "
		     "processor time in %.2f s", what, who, limit / s->best, s->cpu_s, s->median);
	if (begin_s > 0 && n > 0 && (size_t)n < sizeof(text))
		snprintf(text + n, sizeof(text) - (size_t)n, ", memory free again after %.2f s",
			 begin_s);
	if (b->a->json)
		cli_line(json_pack("{s:s,s:s,s:f,s:s}", "limit", who, "of", what, "of_device",
				   limit / s->best, "text", text));
	else
		printf("%s\n", text);
}

static void tell(struct bench *b)
{
	struct told s[WHATS];
	double write, read;

	for (enum what w = 0; w < WHATS; w++)
		s[w] = sum_up(b, w);
	write = quicker(&s[WRITE_DIRECT], &s[WRITE_BUFFERED]);
	read = quicker(&s[READ_DIRECT], &s[READ_BUFFERED]);
	if (!b->a->json)
		printf("%-26s%10s  %10s  %7s  %6s  %s\n", "", "BEST", "MEDIAN", "SPREAD", "CPU/GB",
		       "OF DEVICE");
	for (enum what w = 0; w < WHATS; w++)
		tell_row(b, w, &s[w], w == SAVE ? write : w == LOAD ? read : 0);
	tell_limit(b, "saves", &s[SAVE], write, b->begin_s);
	tell_limit(b, "loads", &s[LOAD], read, 0);
}

static void warning(void *arg, const char *text)
{
	const struct bench *b = arg;

	if (b->a->json) {
		cli_line(json_pack("{s:o}", "warning", cli_str(text)));
		return;
	}
	fputs("warning: ", stdout);
	cli_put(stdout, text);
	putchar('\n');
}

static void tell_place(struct bench *b)
{
	char kind[32], room[32], bytes[32];
	const char *own = strrchr(b->own, '/');

	snprintf(kind, sizeof(kind), "0x%llx", (unsigned long long)b->place.kind_number);
	if (*b->place.kind)
		snprintf(kind, sizeof(kind), "%s", b->place.kind);
	if (b->a->json) {
		cli_line(json_pack("{s:o,s:s,s:I,s:b,s:I,s:I,s:i}", "dir", cli_str(b->dir),
				   "file_system", kind, "free_bytes",
				   (json_int_t)b->place.free_bytes, "direct", b->place.direct,
				   "bytes", (json_int_t)b->job.bytes, "rounds",
				   (json_int_t)b->rounds, "threads", b->job.threads));
	} else {
		cli_put(stdout, b->dir);
		printf(": %s, %s free; %s, %lld rounds, %d threads\n", kind,
		       wl_size(room, b->place.free_bytes), wl_size(bytes, b->job.bytes),
		       (long long)b->rounds, b->job.threads);
	}
	device_warn(&b->place, b->dir, own ? own + 1 : "", warning, b);
	fflush(stdout);
}

/* --- the process that measures ---------------------------------------------------------------- */

static int describe(struct bench *b)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE,
				   .file_bytes_max = FILE_BYTES_MAX };
	struct sheaf_error err = { .msg = "" };
	char path[PATH_MAX], name[64];
	int rc = 0;

	b->state = sheaf_state_new();
	for (uint64_t i = 0; rc >= 0 && i * TENSOR_BYTES < b->job.bytes; i++) {
		struct sheaf_slice s = {
			.size = sizeof(s), .name = name, .dtype = SHEAF_BF16, .ndim = 2,
			.shape = { TENSOR_ROWS, TENSOR_BYTES / 2 / TENSOR_ROWS },
			.count = { TENSOR_ROWS, TENSOR_BYTES / 2 / TENSOR_ROWS },
			.data = b->job.memory + i * TENSOR_BYTES,
		};

		snprintf(name, sizeof(name), "bench.%llu.weight", (unsigned long long)i);
		rc = sheaf_state_add(b->state, &s, NULL);
	}
	if (rc < 0)
		return cli_error(b->a, rc, b->dir, sheaf_strerror(rc), NULL);
	snprintf(path, sizeof(path), "%s/run", b->own);
	rc = sheaf_run_open(&b->run, path, NULL, &opts, &err);
	return rc < 0 ? cli_error(b->a, rc, b->dir, err.msg, NULL) : 0;
}

static int measure(struct bench *b)
{
	int rc = device_direct(b->own, &b->place.direct);

	if (rc < 0)
		return failed(b, rc, "a small file");
	b->job.memory = mmap(NULL, b->job.bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->job.memory == MAP_FAILED)
		return cli_nomem(b->a);
	tell_place(b);
	fill(&b->job);
	rc = describe(b);
	if (!rc)
		rc = rounds(b);
	if (!rc)
		tell(b);
	sheaf_run_close(b->run);
	sheaf_state_free(b->state);
	munmap(b->job.memory, b->job.bytes);
	return rc;
}

/* --- the process that waits ------------------------------------------------------------------- */

/* Waits for the child. Returns its exit status, or 128 + the signal. */
static int await(const struct bench *b, pid_t child, const sigset_t *set)
{
	char why[80];
	int status;

	for (;;) {
		int sig = sigwaitinfo(set, NULL);

		if (sig < 0 && errno == EINTR)
			continue;
		if (sig != SIGCHLD)
			kill(child, SIGKILL);
		if (waitpid(child, &status, sig == SIGCHLD ? WNOHANG : 0) != child)
			continue;
		if (sig != SIGCHLD)
			return 128 + sig;
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		snprintf(why, sizeof(why), "it was ended by signal %d", WTERMSIG(status));
		return cli_error(b->a, SHEAF_EIO, b->dir, why, NULL);
	}
}

static int watched(struct bench *b)
{
	sigset_t set, before;
	pid_t child;
	int rc;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &before);
	snprintf(b->own, sizeof(b->own), "%s/sheaf-bench.XXXXXX", b->dir);
	if (!mkdtemp(b->own)) {
		rc = failed(b, -errno, "creating a directory there");
		sigprocmask(SIG_SETMASK, &before, NULL);
		return rc;
	}
	snprintf(b->job.dir, sizeof(b->job.dir), "%s", b->own);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		/* Signals stay blocked: the parent decides. Without it, the files would stay. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		rc = measure(b);
		if (fflush(stdout) != 0 && !rc)
			rc = failed(b, -errno, "stdout");
		_exit(rc);
	}
	rc = child < 0 ? failed(b, -errno, "starting a second process") : await(b, child, &set);
	if (device_clear(b->own) < 0 && rc == 0)
		rc = cli_error(b->a, SHEAF_EIO, b->own, "this directory cannot be "
		               "removed", "remove it by hand");
	sigprocmask(SIG_SETMASK, &before, NULL);
	return rc;
}

/* --- the verb --------------------------------------------------------------------------------- */

/* Reads --size: 64M, 1G, or a number of bytes. */
static int parse_size(const struct cli_args *a, uint64_t *out)
{
	int64_t bytes = (int64_t)*out;
	int rc = cli_bytes(a, "size", (int64_t)TENSOR_BYTES, INT64_C(1) << 42, &bytes);

	*out = (uint64_t)bytes / TENSOR_BYTES * TENSOR_BYTES;
	return rc;
}

/* Checks that this does not fill a disk that is in use, and that the machine does not swap. */
static int check_room(const struct bench *b)
{
	uint64_t bytes = b->job.bytes, most = (uint64_t)DEVICE_FILES_MAX * FILE_BYTES_MAX;
	char room[32], why[200];

	if (b->place.free_bytes / 2 < bytes) {
		snprintf(why, sizeof(why), "only %s are free, but twice the size is needed",
			 wl_size(room, b->place.free_bytes));
		return cli_error(b->a, SHEAF_EIO, b->dir, why, "give a smaller --size");
	}
	if (b->place.memory_bytes / 9 * 4 < bytes) {
		snprintf(why, sizeof(why), "only %s of memory are free, but 2.25 times the size is "
		         "needed",
			 wl_size(room, b->place.memory_bytes));
		return cli_error(b->a, SHEAF_ENOMEM, b->dir, why, "give a smaller --size");
	}
	return bytes > most ? cli_usage(b->a, "--size", "this size needs more than 64 files; "
	                                "choose a smaller one",
	                                NULL) : 0;
}

static int run(const struct cli_args *a)
{
	struct bench *b = calloc(1, sizeof(*b));
	int64_t threads = 8;
	int rc;

	if (!b)
		return cli_nomem(a);
	b->a = a;
	b->dir = a->pos[0];
	b->rounds = 5;
	b->job.bytes = UINT64_C(1) << 30;
	b->job.file_bytes = FILE_BYTES_MAX;
	rc = parse_size(a, &b->job.bytes);
	if (!rc)
		rc = cli_int(a, "rounds", 1, ROUNDS_MAX, &b->rounds);
	if (!rc)
		rc = cli_int(a, "threads", 1, DEVICE_THREADS_MAX, &threads);
	b->job.threads = (int)threads;
	if (!rc && strlen(b->dir) > PATH_MAX - 512)
		rc = cli_usage(a, "DIR", "this path is too long", NULL);
	if (!rc) {
		int bad = device_look(&b->place, b->dir);

		if (bad < 0)
			rc = cli_error(a, bad == -ENOENT ? SHEAF_ENOENT : SHEAF_EIO, b->dir,
				       strerror(-bad), NULL);
	}
	if (!rc)
		rc = check_room(b);
	if (!rc)
		rc = watched(b);
	free(b);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "size", "S", "how much is written at a time: bytes, or with K, M or G (1G)" },
	{ "rounds", "N", "how often (5)" },
	{ "threads", "N", "of the plain reads and writes (8)" },
	{ 0 },
};
const struct cli_verb cli_bench = {
	.name = "bench",
	.brief = "what a disk can do, and what sheaf gets from it",
	.synopsis = "sheaf bench DIR [--size S] [--rounds N] [--threads N] [--json]",
	.text = "Writes and reads new preallocated files in DIR by plain threads, directly and\n"
		"through the page cache, and by turns saves and loads a state of the same size.\n"
		"Everything is fsynced; what is read was dropped from the page cache before; all\n"
		"that comes back is compared. Says which of device and processor is the limit,\n"
		"and warns of what will hurt: memory that looks like a disk, an overlay, Lustre\n"
		"without striping, O_DIRECT refused, few descriptors, a umask that keeps the\n"
		"group out, a quota.\n\n"
		"Needs twice the size on the disk, which it refuses to fill, and 2.25 times the\n"
		"size in memory. Whatever happens, nothing is left in DIR, unless it is killed\n"
		"by SIGKILL: then DIR/sheaf-bench.* remains, and the next bench says so.",
	.exits = "  0  measured\n"
		 "  2  no room, no such directory, the disk failed, or it was interrupted",
	.examples = "  sheaf bench /scratch/me\n  sheaf bench . --size 256M --rounds 3 --json",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "DIR",
	.run = run,
};
