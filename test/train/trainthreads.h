/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings of a small model on ranks that are threads of this process. All files are in the
 * directory "whole", which is in one that this program alone uses. */
#ifndef TRAINTHREADS_H
#define TRAINTHREADS_H
#include "t.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataprep.h"
#include "ranks_threads.h"
#include "rmtree.h"
#include "sheaf-agent.h"
#include "trainloop.h"

enum { RANKS_MAX = 8 };

/* The config.json of the model. */
#define MODEL \
	"{\"model_type\": \"qwen2\", \"vocab_size\": 257, \"hidden_size\": 16, " \
	"\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
	"\"intermediate_size\": 20, \"tie_word_embeddings\": true}"

struct rank {
	pthread_t thread;
	struct tr_ranks g;
	const char *run, *steps;
	const char *flags;              /* further options, as YAML */
	struct tr_signals *signals;
	int tells;                      /* 1: it writes events to stdout */
	struct tr_error err;
	int rc;
};
#define VIRTUAL "virtual: {dp: 6, tp: 2}\n"
static const char options[] = "model: whole/model.json\ndata: whole/data\nseq: 9\nbatch: 12\n"
	"micro-batch: 3\nsteps: 3\nlr: 0.01\ndecay: constant\ndropout: 0.1\n"
	"attention-dropout: 0.2\nema: 0.75\n" VIRTUAL;

/* A test sets these before it calls train_with. */
static struct tr_signals *signals_of_ranks __attribute__((unused));     /* by rank; NULL: none */
static int rank_0_tells __attribute__((unused));        /* 1: rank 0 writes events to stdout */
static int hub_timeout_ms __attribute__((unused)) = 20000;      /* how long ranks wait */
static int ranks_evaluate __attribute__((unused));      /* 1: the ranks evaluate a checkpoint */
static int without_virtual __attribute__((unused));     /* 1: `virtual` is not set */

static inline void put_text(const char *path, const char *text)
{
	FILE *f = fopen(path, "wb");

	CHECK(f && fputs(text, f) >= 0);
	CHECK_INT(fclose(f), 0);
}

/* Makes a token file of a text. Returns the number of tokens. */
static inline int64_t prepare_tokens(const char *text, const char *to)
{
	const struct tr_prepare p = { .in = &text, .n = 1, .out = to };
	struct tr_prepared made;
	struct tr_error err;

	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
	return made.tokens;
}

/* Makes an empty directory "whole" with the model and data. Other programs of this header run at
 * the same time, so the first call enters a directory that has the name of this one. */
static inline void prepare(void)
{
	static char text[2000], own[100];

	if (!own[0]) {
		snprintf(own, sizeof(own), "%s.files", program_invocation_short_name);
		CHECK(mkdir(own, 0777) == 0 || errno == EEXIST);
		CHECK_INT(chdir(own), 0);
	}
	rmtree("whole");
	CHECK_INT(mkdir("whole", 0777), 0);
	put_text("whole/model.json", MODEL);
	for (size_t i = 0; i + 1 < sizeof(text); i++)
		text[i] = (char)('a' + i * i % 7 + i % 3);
	put_text("whole/text", text);
	prepare_tokens("whole/text", "whole/data");
}

/* Makes also the data "whole/eval" of evaluations: two samples and a part of one. */
static inline void prepare_with_eval(void)
{
	prepare();
	put_text("whole/short", "abcabcacbacbabcabcacb");
	prepare_tokens("whole/short", "whole/eval");
}

/* Makes also the data "whole/eval" of 100 samples, which are more than a round of an evaluation
 * with micro-batch 1. */
static inline void prepare_with_long_eval(void)
{
	char text[901];

	prepare();
	for (size_t i = 0; i + 1 < sizeof(text); i++)
		text[i] = (char)('a' + i * i % 7 % 3);
	text[sizeof(text) - 1] = 0;
	put_text("whole/long", text);
	prepare_tokens("whole/long", "whole/eval");
}

static inline void *train(void *arg)
{
	struct rank *r = arg;
	struct tr_events events = { .writes = r->tells, .json = rank_0_tells, .fd = -1 };
	size_t n = strlen(options) - (without_virtual ? strlen(VIRTUAL) : 0);
	struct tr_opts o;

	r->rc = tr_opts_init(&o, &r->err);
	if (r->rc == 0)
		r->rc = tr_opts_read_yaml(&o, options, n, "options", TR_FROM_FILE, &r->err);
	if (r->rc == 0)
		r->rc = tr_opts_set(&o, "run", r->run, TR_FROM_FLAG, "--", &r->err);
	if (r->rc == 0)
		r->rc = tr_opts_set(&o, "steps", r->steps, TR_FROM_FLAG, "--", &r->err);
	if (r->rc == 0)
		r->rc = tr_opts_read_yaml(&o, r->flags, strlen(r->flags), "flags", TR_FROM_FLAG,
					  &r->err);
	if (r->rc == 0)
		r->rc = ranks_evaluate ? tr_evaluate(&r->g, &o, &events, &r->err) :
			tr_train(&r->g, &o, &events, r->signals, &r->err);
	tr_opts_release(&o);
	return NULL;
}

/* Returns whether one of two ranks finished, because the other one was lost in the last exchange:
 * when the last step had been saved. */
static inline int has_finished(const struct rank *a, const struct rank *b)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/checkpoint-%s", a->run, a->steps);
	return (a->rc == 0 || b->rc == 0) && (a->rc == TR_ELOST || b->rc == TR_ELOST) &&
		access(path, F_OK) == 0;
}

/* Trains on n threads, with further options of rank 0 and of the others. Returns the result of
 * rank 0, which all must have, or ELOST if a rank is lost.
 * fail_at  the exchange of rank fail_at mod n that fails; 0: none */
static inline int train_with(int n, const char *run, const char *steps, const char *flags,
		      const char *others, int fail_at, struct rank *rank)
{
	struct tr_hub *hub = tr_hub_new(n);
	int lost = 0;

	tr_hub_fail_at(hub, fail_at % n, fail_at);
	memset(rank, 0, (size_t)n * sizeof(*rank));
	for (int i = 0; i < n; i++) {
		tr_ranks_hub(&rank[i].g, hub, i, hub_timeout_ms);
		rank[i].run = run;
		rank[i].steps = steps;
		rank[i].flags = i ? others : flags;
		rank[i].signals = signals_of_ranks ? &signals_of_ranks[i] : NULL;
		rank[i].tells = i == 0 && rank_0_tells;
		CHECK_INT(pthread_create(&rank[i].thread, NULL, train, &rank[i]), 0);
	}
	for (int i = 0; i < n; i++)
		pthread_join(rank[i].thread, NULL);
	tr_hub_free(hub);
	for (int i = 1; i < n; i++)
		CHECK(rank[i].rc == rank[0].rc || (fail_at && has_finished(&rank[0], &rank[i])));
	for (int i = 0; i < n; i++)
		lost |= rank[i].rc == TR_ELOST;
	return fail_at && lost ? TR_ELOST : rank[0].rc;
}

/* Trains in a group of n, which must succeed. */
static inline void train_on(int n, const char *run, const char *steps, const char *flags)
{
	struct rank rank[RANKS_MAX];

	CHECK_RC(train_with(n, run, steps, flags, flags, 0, rank), 0, &rank[0].err);
}

/* Trains in a group of n. The training must fail with that code and a message with those
 * words. */
static inline void train_fails(int n, const char *run, const char *flags, int code,
			       const char *words)
{
	struct rank rank[RANKS_MAX];

	CHECK_RC(train_with(n, run, "4", flags, flags, 0, rank), code, &rank[0].err);
	if (!strstr(rank[0].err.msg, words))
		print_error("%s\n", rank[0].err.msg);
	CHECK(strstr(rank[0].err.msg, words) != NULL);
}

/* ---- an agent, which keeps checkpoints in memory ---- */

struct agent {
	pthread_t thread;
	const char *run;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int ready;                      /* guarded by lock; -1: it did not begin */
};

static inline void set_ready(struct agent *a, int ready)
{
	pthread_mutex_lock(&a->lock);
	a->ready = a->ready ? a->ready : ready;
	pthread_cond_broadcast(&a->changed);
	pthread_mutex_unlock(&a->lock);
}

static inline int agent_is_ready(void *arg, const char *socket)
{
	(void)socket;
	set_ready(arg, 1);
	return 0;
}

static inline void *serve(void *arg)
{
	struct agent *a = arg;
	struct sheaf_agent_opts o = { .size = sizeof(o), .ready = agent_is_ready, .arg = a };

	if (sheaf_agent_serve(a->run, &o, NULL) < 0)
		set_ready(a, -1);
	return NULL;
}

/* Starts the agent of a run in a thread of this process. */
static inline void start_agent(struct agent *a, const char *run)
{
	*a = (struct agent){ .run = run, .lock = PTHREAD_MUTEX_INITIALIZER,
			     .changed = PTHREAD_COND_INITIALIZER };
	CHECK_INT(pthread_create(&a->thread, NULL, serve, a), 0);
	pthread_mutex_lock(&a->lock);
	while (!a->ready)
		pthread_cond_wait(&a->changed, &a->lock);
	pthread_mutex_unlock(&a->lock);
	CHECK_INT(a->ready, 1);
}

static inline void stop_agent(struct agent *a)
{
	struct sheaf_error err;

	CHECK_RC(sheaf_agent_stop(a->run, NULL, &err), 0, &err);
	pthread_join(a->thread, NULL);
}

/* Reads at most n bytes of a file. Returns their number; 0 if there is no such file. */
static inline size_t read_whole(const char *path, char *to, size_t n)
{
	FILE *f = fopen(path, "rb");
	size_t got = f ? fread(to, 1, n, f) : 0;

	if (f)
		fclose(f);
	return got;
}

/* Overwrites a byte of a file of checkpoint `step` of whole/run. */
static inline void damage(int step, const char *file, int64_t at)
{
	char path[200], byte;
	int fd;

	snprintf(path, sizeof(path), "whole/run/checkpoint-%d/%s", step, file);
	fd = open(path, O_RDWR);
	CHECK_INT(pread(fd, &byte, 1, at), 1);
	byte ^= 8;
	CHECK_INT(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

/* Layouts that must give the same bits. */
static const struct {
	int ranks;
	const char *flags;
} layout[] __attribute__((unused)) = { { 1, "" }, { 2, "" }, { 3, "" }, { 2, "mesh: {tp: 2}" },
	       { 2, "mesh: {tp: 2}\nsp: true" }, { 4, "mesh: {dp: 2, tp: 2}" },
	       { 4, "mesh: {dp: 2, tp: 2}\nsp: true" }, { 2, "mesh: {pp: 2}\nschedule: afab" },
	       { 3, "mesh: {pp: 3}\nstages: 1,2,1\nmicro-batch: 1\nrecompute: block\n"
		 "offload: whole" },
	       { 2, "mesh: {pp: 2}\nschedule: interleaved\nchunks: 2\nmicro-batch: 1" },
	       { 8, "mesh: {dp: 2, tp: 2, pp: 2}\nsp: true\nmicro-batch: 2" },
	       { 2, "zero: 1\noffload: whole" }, { 3, "zero: 1\nzero-form: flat" },
	       { 4, "mesh: {dp: 2, tp: 2}\nzero: 1" },
	       { 6, "mesh: {dp: 3, tp: 2}\nsp: true\nzero: 1\nzero-form: flat" },
	       { 4, "mesh: {dp: 2, pp: 2}\nzero: 1\nzero-form: flat" },
	       { 8, "mesh: {dp: 2, tp: 2, pp: 2}\nsp: true\nzero: 1\nmicro-batch: 2\n"
		 "schedule: interleaved\nchunks: 2\nrecompute: block" },
	       { 2, "zero: 2" }, { 3, "zero: 2\nzero-form: flat\nmicro-batch: 1" },
	       { 4, "mesh: {dp: 2, tp: 2}\nzero: 2\nmicro-batch: 2\noverlap: true" },
	       { 6, "mesh: {dp: 3, tp: 2}\nsp: true\nzero: 2\nzero-form: flat\nmicro-batch: 4" },
	       { 4, "mesh: {dp: 2, pp: 2}\nzero: 2\nzero-form: flat\noverlap: true\n"
		 "micro-batch: 4" },
	       { 8, "mesh: {dp: 2, tp: 2, pp: 2}\nsp: true\nzero: 2\nmicro-batch: 2\n"
		 "schedule: interleaved\nchunks: 2\noverlap: true\nrecompute: block" },
	       { 2, "overlap: true\nlink-gbps: 10\nlink-us: 20" },
	       { 4, "mesh: {dp: 2, pp: 2}\nzero: 1\noverlap: true\nmicro-batch: 2\n"
		 "link-gbps: 10\nlink-us: 20" } };
enum { LAYOUTS = sizeof(layout) / sizeof(layout[0]) };

/* Reads the weights, the masters and the average if there are any, and the moments of a checkpoint,
 * one behind the other. */
static inline size_t read_tensors(const char *checkpoint, char *to, size_t n)
{
	static const char *const files[] = {
		"model-00001-of-00001.safetensors",
		"master_weights/master_weights-00001-of-00001.safetensors",
		"ema/ema-00001-of-00001.safetensors",
		"optimizer/optimizer-00001-of-00001.safetensors" };
	size_t got = 0;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char path[300];

		snprintf(path, sizeof(path), "%s/%s", checkpoint, files[i]);
		got += read_whole(path, to + got, n - got);
	}
	return got;
}

/* Compares all tensors of two checkpoints. */
static inline void same_tensors(const char *one, const char *other)
{
	static char a[1 << 19], b[1 << 19];
	size_t n = read_tensors(one, a, sizeof(a));

	CHECK(n > 50000 && n < sizeof(a));
	CHECK(read_tensors(other, b, sizeof(b)) == n && memcmp(a, b, n) == 0);
}

/* Trains in a layout, with further options. */
static inline void train_layout(int i, const char *run, const char *steps, const char *more)
{
	char flags[300];

	snprintf(flags, sizeof(flags), "%s\n%s", layout[i].flags, more);
	train_on(layout[i].ranks, run, steps, flags);
}
#endif
