/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the cost of a save of a small state against the bare fsyncs that it needs. A bare round
 * makes files with the same names and sizes in the same folders: each is created, written and
 * fsynced once, every folder once, the stage twice, both parents after the rename. There are two
 * kinds: one file after another, and with the fsyncs of all files in parallel. Each round runs
 * bare, bare again, parallel and save, and begins with another one each time. */
#include <sheaf.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BARE, AGAIN, AT_ONCE, SAVE, KINDS };
static const char *const kind_names[KINDS] = { "bare", "bare again", "bare, at once", "save" };
#define FAMILIES_MAX 3
static const char *const families[FAMILIES_MAX] = { "model", "master_weights", "optimizer" };
#define TENSORS 4               /* in each family */
#define ROUNDS_MAX 100000
#define FILES_MAX (2 * FAMILIES_MAX + 2)

struct args {
	const char *dir;
	long rounds, bytes, families, steps;
	bool json;
};
struct file {                   /* a file that a bare round makes */
	char name[128];
	uint8_t *bytes;                 /* owned */
	size_t n;
	int fd, rc;                     /* while the file is being made */
};
struct bench {
	struct args args;
	char run_dir[4000], bare_dir[4000];
	struct sheaf_state *state;
	struct sheaf_run *run;
	float *data;                    /* owned; values of the state */
	struct file files[FILES_MAX];   /* sheaf.json is the last */
	int files_n;
	int64_t step;
	double begin_s, commit_s;       /* of the last save */
	double *took[KINDS];            /* owned; seconds, by round */
	double *begins;                 /* owned */
};

static char made[3000];         /* the folder to remove at the end; "": none */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	(void)remove(path);
	return 0;
}

static void clean(void)
{
	if (made[0])
		nftw(made, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static _Noreturn void die(const char *fmt, ...)
{
	va_list ap;

	fputs("sheaf-bench-small: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(2);
}

static void must(int rc, const char *what)
{
	if (rc < 0)
		die("%s: %s", what, strerror(errno));
}

static void *get(size_t n)
{
	void *p = calloc(n ? n : 1, 1);

	if (!p)
		die("no memory");
	return p;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- bare rounds ---- */

static void path_put(char path[4096], const char *dir, const char *name)
{
	if (snprintf(path, 4096, "%s/%s", dir, name) >= 4096)
		die("%s: too long", dir);
}

static void fsync_dir(const char *dir, const char *name)
{
	char path[4096];
	int fd;

	path_put(path, dir, name);
	fd = open(path, O_RDONLY | O_DIRECTORY);
	must(fd, path);
	must(fsync(fd), path);
	close(fd);
}

static void make_dir(const char *dir, const char *name)
{
	char path[4096];

	path_put(path, dir, name);
	must(mkdir(path, 0777), path);
}

static void file_write(const char *stage, struct file *f)
{
	char path[4096];

	path_put(path, stage, f->name);
	f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
	must(f->fd, path);
	for (size_t at = 0; at < f->n; ) {
		ssize_t put = write(f->fd, f->bytes + at, f->n - at);

		must((int)(put > 0) - 1, path);
		at += (size_t)put;
	}
}

static void *file_sync(void *arg)
{
	struct file *f = arg;

	f->rc = fsync(f->fd) < 0 ? errno : 0;
	close(f->fd);
	return NULL;
}

static void files_make(struct bench *b, const char *stage, int n, bool at_once)
{
	pthread_t threads[FILES_MAX];

	for (int i = 0; i < n; i++) {
		file_write(stage, &b->files[i]);
		if (!at_once)
			file_sync(&b->files[i]);
	}
	for (int i = 0; at_once && i < n; i++)
		if (pthread_create(&threads[i], NULL, file_sync, &b->files[i]))
			die("no thread");
	for (int i = 0; i < n; i++) {
		if (at_once)
			pthread_join(threads[i], NULL);
		if (b->files[i].rc)
			die("%s: %s", b->files[i].name, strerror(b->files[i].rc));
	}
}

static double bare(struct bench *b, bool at_once)
{
	char stage[4096], name[64], step[4096], from[4096], to[4096];
	double start = now();

	snprintf(name, sizeof(name), "stage/%lld", (long long)++b->step);
	make_dir(b->bare_dir, name);
	path_put(stage, b->bare_dir, name);
	for (long i = 1; i < b->args.families; i++)
		make_dir(stage, families[i]);
	files_make(b, stage, b->files_n - 1, at_once);
	for (long i = 1; i < b->args.families; i++)
		fsync_dir(stage, families[i]);
	fsync_dir(stage, ".");
	file_write(stage, &b->files[b->files_n - 1]);
	file_sync(&b->files[b->files_n - 1]);
	path_put(from, stage, "sheaf.json.tmp");
	path_put(to, stage, "sheaf.json");
	must(rename(from, to), from);
	fsync_dir(stage, ".");
	snprintf(name, sizeof(name), "checkpoint-%lld", (long long)b->step);
	path_put(step, b->bare_dir, name);
	must(rename(stage, step), step);
	fsync_dir(b->bare_dir, ".");
	fsync_dir(b->bare_dir, "stage");
	return now() - start;
}

/* Reads a file of the last step, which the bare rounds will write again. */
static void file_take(struct bench *b, const char *name, const char *as)
{
	struct file *f = &b->files[b->files_n++];
	char path[4096];
	struct stat st;
	FILE *in;

	snprintf(path, sizeof(path), "%s/checkpoint-%lld/%s", b->run_dir, (long long)b->step, name);
	in = fopen(path, "rb");
	if (!in || fstat(fileno(in), &st) < 0)
		die("%s: %s", path, strerror(errno));
	snprintf(f->name, sizeof(f->name), "%s", as);
	free(f->bytes);
	f->n = (size_t)st.st_size;
	f->bytes = get(f->n);
	if (fread(f->bytes, 1, f->n, in) != f->n)
		die("%s: short", path);
	fclose(in);
}

static void files_take(struct bench *b)
{
	char name[128];

	for (long i = 0; i < b->args.families; i++) {
		const char *folder = i ? families[i] : ".";

		snprintf(name, sizeof(name), "%s/%s-00001-of-00001.safetensors", folder,
		         families[i]);
		file_take(b, name, name);
		snprintf(name, sizeof(name), "%s/%s.safetensors.index.json", folder, families[i]);
		file_take(b, name, name);
	}
	file_take(b, "sheaf.sums", "sheaf.sums");
	file_take(b, "sheaf.json", "sheaf.json.tmp");
}

/* ---- saves ---- */

static double save(struct bench *b)
{
	struct sheaf_error err = { 0 };
	struct sheaf_save *s = NULL;
	double start = now(), begun;

	b->data[0] += 1;
	if (sheaf_save_begin(&s, b->run, ++b->step, b->state, NULL, &err) < 0)
		die("%s", err.msg);
	begun = now();
	if (sheaf_save_commit(s, -1, &err) < 0)
		die("%s", err.msg);
	sheaf_save_free(s);
	b->begin_s = begun - start;
	b->commit_s = now() - begun;
	return b->begin_s + b->commit_s;
}

static void state_make(struct bench *b)
{
	int64_t items = b->args.bytes / 4 / b->args.families / TENSORS;

	if (items < 1)
		die("--bytes %ld: too few", b->args.bytes);
	b->state = sheaf_state_new();
	b->data = get((size_t)(items * b->args.families * TENSORS) * sizeof(*b->data));
	for (long i = 0; b->state && i < b->args.families * TENSORS; i++) {
		char name[32];
		struct sheaf_slice s = { .size = sizeof(s), .family = families[i / TENSORS],
			.name = name, .dtype = SHEAF_F32, .ndim = 1, .shape = { items },
			.count = { items }, .data = b->data + i * items };

		snprintf(name, sizeof(name), "layer.%ld.weight", i % TENSORS);
		sheaf_state_add(b->state, &s, NULL);
	}
}

static void setup(struct bench *b)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE };
	struct sheaf_error err = { 0 };

	char dir[sizeof(made)];

	if ((size_t)snprintf(dir, sizeof(dir), "%s/sheaf-small-XXXXXX", b->args.dir) >= sizeof(dir))
		die("%s: too long", b->args.dir);
	if (!mkdtemp(dir))
		die("%s: %s", dir, strerror(errno));
	memcpy(made, dir, sizeof(made));
	atexit(clean);
	snprintf(b->run_dir, sizeof(b->run_dir), "%s/run", dir);
	snprintf(b->bare_dir, sizeof(b->bare_dir), "%s/bare", dir);
	make_dir(dir, "bare");
	make_dir(b->bare_dir, "stage");
	make_dir(dir, "run");
	state_make(b);
	if (sheaf_run_open(&b->run, b->run_dir, NULL, &opts, &err) < 0)
		die("%s", err.msg);
	for (long i = 0; i < b->args.steps; i++)
		(void)save(b);
	files_take(b);
	for (int k = 0; k < KINDS; k++)
		b->took[k] = get((size_t)b->args.rounds * sizeof(double));
	b->begins = get((size_t)b->args.rounds * sizeof(double));
}

static void measure(struct bench *b)
{
	for (long r = 0; r < b->args.rounds; r++)
		for (long i = 0; i < KINDS; i++) {
			long k = (r + i) % KINDS;

			b->took[k][r] = k == SAVE ? save(b) : bare(b, k == AT_ONCE);
			if (k == SAVE)
				b->begins[r] = b->begin_s;
		}
}

/* ---- output ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *v, long n)
{
	double *sorted = get((size_t)n * sizeof(*sorted)), m;

	memcpy(sorted, v, (size_t)n * sizeof(*v));
	qsort(sorted, (size_t)n, sizeof(*v), by_size);
	m = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
	free(sorted);
	return m;
}

static void json_series(const char *name, const double *v, long n, const char *end)
{
	printf("\"%s\":[", name);
	for (long i = 0; i < n; i++)
		printf("%s%.9f", i ? "," : "", v[i]);
	printf("]%s", end);
}

static void tell(const struct bench *b)
{
	long n = b->args.rounds;
	double quickest;

	if (b->args.json) {
		printf("{\"bytes\":%ld,\"families\":%ld,\"steps\":%ld,\"files\":%d,",
		       b->args.bytes, b->args.families, b->args.steps, b->files_n);
		for (int k = 0; k < KINDS; k++)
			json_series(kind_names[k], b->took[k], n, ",");
		json_series("begin", b->begins, n, "}\n");
		return;
	}
	quickest = median(b->took[BARE], n);
	if (median(b->took[AT_ONCE], n) < quickest)
		quickest = median(b->took[AT_ONCE], n);
	printf("%ld bytes, %d files, %ld steps before, median of %ld rounds\n", b->args.bytes,
	       b->files_n, b->args.steps, n);
	for (int k = 0; k < KINDS; k++)
		printf("%-14s %9.3f ms  %5.2f x the quickest bare\n", kind_names[k],
		       median(b->took[k], n) * 1e3, median(b->took[k], n) / quickest);
	printf("%-14s %9.3f ms\n", "of it, begin", median(b->begins, n) * 1e3);
}

static void release(struct bench *b)
{
	sheaf_run_close(b->run);
	sheaf_state_free(b->state);
	for (int i = 0; i < b->files_n; i++)
		free(b->files[i].bytes);
	for (int k = 0; k < KINDS; k++)
		free(b->took[k]);
	free(b->begins);
	free(b->data);
}

static const char usage[] =
	"usage: sheaf-bench-small --dir DIR [options]\n"
	"\n"
	"Save a small state again and again, between rounds that only make and fsync the same\n"
	"files. Works in a new folder under DIR, which it removes.\n"
	"\n"
	"  --rounds N     rounds (51)\n"
	"  --bytes N      bytes of the state (1000000)\n"
	"  --families N   files of the state, 1 to 3 (3)\n"
	"  --steps N      steps saved before the rounds (1)\n"
	"  --json         every round's seconds, as one object\n";

static void args_take(struct args *a, int argc, char **argv)
{
	*a = (struct args){ .rounds = 51, .bytes = 1000000, .families = 3, .steps = 1 };
	for (int i = 1; i < argc; i++) {
		const struct { const char *name; long *at, least, most; } numbers[] = {
			{ "--rounds", &a->rounds, 1, ROUNDS_MAX },
			{ "--bytes", &a->bytes, 1, 1 << 30 },
			{ "--families", &a->families, 1, FAMILIES_MAX },
			{ "--steps", &a->steps, 1, 1000000 } };
		size_t k = 0;
		char *end;

		if (strcmp(argv[i], "--help") == 0) {
			fputs(usage, stdout);
			exit(0);
		}
		if (strcmp(argv[i], "--json") == 0) {
			a->json = true;
			continue;
		}
		if (i + 1 == argc)
			die("%s: what is that?", argv[i]);
		if (strcmp(argv[i], "--dir") == 0) {
			a->dir = argv[++i];
			continue;
		}
		while (k < 4 && strcmp(argv[i], numbers[k].name))
			k++;
		if (k == 4)
			die("%s: what is that?", argv[i]);
		*numbers[k].at = strtol(argv[++i], &end, 10);
		if (*end || *numbers[k].at < numbers[k].least || *numbers[k].at > numbers[k].most)
			die("%s %s: %ld to %ld", argv[i - 1], argv[i], numbers[k].least,
			    numbers[k].most);
	}
	if (!a->dir)
		die("--dir is missing");
}

int main(int argc, char **argv)
{
	static struct bench b;

	args_take(&b.args, argc, argv);
	setup(&b);
	measure(&b);
	tell(&b);
	release(&b);
	return 0;
}
