/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of one rank that does what its standard input says, one reply a line.
 *
 * usage: trainer RUN [buffered] [keep] [agent]
 *
 *   buffered        never past the page cache
 *   keep            of committed steps the last three
 *   agent           saves are copied behind, and lie in the memory of the run's agent too
 *
 *   save STEP       every value is a function of (STEP, tensor, index)
 *   load STEP       STEP -1: the newest; every value is compared
 *   verify STEP
 *   close           the run; the next command opens it again
 *
 * A reply is {"verb", "step", "code", "sys", "findings", "message"}. It lives through every
 * failure: what a library does to its host is what is looked at. Exit 0 at the end of the input.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sheaf-opts.h"
#include "sheaf.h"
#include "sheaf-inspect.h"
#include "rng.h"

#define EVALUE 1                /* loaded without complaint, and wrong */
#define TENSORS 5

/* Large enough to go past the page cache, in several files; small enough to be quick. */
static const struct {
	const char *family, *name;
	int64_t shape[2];
} tensors[TENSORS] = {
	{ "model", "emb.weight", { 1024, 513 } },
	{ "model", "layers.2.up", { 257, 129 } },
	{ "model", "layers.10.up", { 257, 128 } },
	{ "optimizer", "emb.weight/moment1_0", { 1024, 257 } },
	{ "optimizer", "step", { 1, 1 } },
};
#define FILE_BYTES (UINT64_C(1) << 20)

struct trainer {
	const char *dir;
	uint64_t flags;
	int32_t keep_last;
	bool agent;
	struct sheaf_run *run;
	struct sheaf_state *state;
	uint32_t *data[TENSORS];        /* owned */
};

static uint64_t items(int t)
{
	return (uint64_t)(tensors[t].shape[0] * tensors[t].shape[1]);
}

static uint32_t value(int64_t step, int t, uint64_t i)
{
	uint64_t x = ((uint64_t)step << 40 ^ (uint64_t)t << 36 ^ i) + 1;

	return (uint32_t)rng_mix(x);
}

static int open_run(struct trainer *tr, struct sheaf_error *err)
{
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = tr->keep_last,
					.grace_s = -1 };
	struct sheaf_memory_tier tier = { .size = sizeof(tier),
					  .agent = tr->agent ? "auto" : NULL };
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_CREATE | tr->flags,
				   .file_bytes_max = FILE_BYTES, .timeout_ms = 500,
				   .retention = &keep, .memory_tier = &tier };

	return tr->run ? 0 : sheaf_run_open(&tr->run, tr->dir, NULL, &opts, err);
}

static int save(struct trainer *tr, int64_t step, struct sheaf_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts),
					.flags = tr->agent ? SHEAF_SAVE_LAZY : 0 };
	struct sheaf_save *save = NULL;
	int rc;

	for (int t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < items(t); i++)
			tr->data[t][i] = value(step, t, i);
	rc = sheaf_save_begin(&save, tr->run, step, tr->state, &opts, err);
	for (int t = 0; t < TENSORS && rc == 0 && tr->agent; t++)
		rc = sheaf_save_wait_copied(save, t, -1, NULL);
	if (rc == 0) {
		sheaf_save_attach(save, "config.json", "{}\n", 3, NULL);
		sheaf_save_note(save, "consumed_samples", "1", NULL);
		do
			rc = sheaf_save_commit(save, 10000, err);
		while (rc == SHEAF_EAGAIN);
	}
	sheaf_save_free(save);
	return rc;
}

static int compare(const struct trainer *tr, int64_t step, struct sheaf_error *err)
{
	for (int t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < items(t); i++)
			if (tr->data[t][i] != value(step, t, i)) {
				snprintf(err->msg, sizeof(err->msg), "%s item %" PRIu64 " is wrong",
					 tensors[t].name, i);
				return EVALUE;
			}
	return 0;
}

static int load(struct trainer *tr, int64_t *step, struct sheaf_error *err)
{
	struct sheaf_checkpoint *open = NULL;
	int rc = sheaf_checkpoint_open(&open, tr->run, *step, err);

	for (int t = 0; t < TENSORS; t++)
		memset(tr->data[t], 0xa5, items(t) * sizeof(*tr->data[t]));
	if (rc == 0) {
		*step = sheaf_checkpoint_number(open);
		rc = sheaf_checkpoint_load(open, tr->state, 0, NULL, err);
	}
	if (rc == 0)
		rc = compare(tr, *step, err);
	sheaf_checkpoint_close(open);
	return rc;
}

static int verify(struct trainer *tr, int64_t step, uint64_t *findings, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *open = NULL;
	int rc = sheaf_checkpoint_open(&open, tr->run, step, err);

	if (rc == 0)
		rc = sheaf_checkpoint_verify(open, &report, err);
	*findings = report.findings;
	sheaf_checkpoint_close(open);
	return rc;
}

static void put_text(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			putchar('\\');
		putchar(*s);    /* the library's sentences have no controls */
	}
	putchar('"');
}

static void answer(struct trainer *tr, const char *verb, int64_t step)
{
	struct sheaf_error err = { .msg = "" };
	uint64_t findings = 0;
	int rc = 0;

	if (strcmp(verb, "close") == 0) {
		sheaf_run_close(tr->run);
		tr->run = NULL;
	} else {
		rc = open_run(tr, &err);
		if (rc == 0 && strcmp(verb, "save") == 0)
			rc = save(tr, step, &err);
		else if (rc == 0 && strcmp(verb, "load") == 0)
			rc = load(tr, &step, &err);
		else if (rc == 0 && strcmp(verb, "verify") == 0)
			rc = verify(tr, step, &findings, &err);
		else if (rc == 0)
			rc = SHEAF_EINVAL;
	}
	printf("{\"verb\": \"%s\", \"step\": %" PRId64 ", \"code\": %d, \"sys\": %d, "
	       "\"findings\": %" PRIu64 ", \"message\": ", verb, step, rc, rc ? err.sys : 0,
	       findings);
	put_text(rc ? err.msg : "");
	puts("}");
	fflush(stdout);
}

static int prepare(struct trainer *tr)
{
	tr->state = sheaf_state_new();
	for (int t = 0; t < TENSORS; t++) {
		struct sheaf_slice s = { .size = sizeof(s), .family = tensors[t].family,
					 .name = tensors[t].name, .dtype = SHEAF_U32, .ndim = 2 };

		tr->data[t] = malloc(items(t) * sizeof(*tr->data[t]));
		if (!tr->data[t])
			return -1;
		for (int d = 0; d < 2; d++)
			s.shape[d] = s.count[d] = tensors[t].shape[d];
		s.data = tr->data[t];
		if (sheaf_state_add(tr->state, &s, NULL) < 0)
			return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct trainer tr = { .dir = argv[1] };
	char verb[16], line[128];
	int64_t step;

	if (argc < 2 || prepare(&tr) < 0) {
		fputs("usage: trainer RUN [buffered] [keep] [agent]\n", stderr);
		return 2;
	}
	for (int i = 2; i < argc; i++) {
		tr.flags |= strcmp(argv[i], "buffered") == 0 ? SHEAF_RUN_BUFFERED : 0;
		tr.keep_last = strcmp(argv[i], "keep") == 0 ? 3 : tr.keep_last;
		tr.agent = tr.agent || strcmp(argv[i], "agent") == 0;
	}
	while (fgets(line, sizeof(line), stdin)) {
		step = -1;
		if (sscanf(line, "%15s %" SCNd64, verb, &step) >= 1)
			answer(&tr, verb, step);
	}
	sheaf_run_close(tr.run);
	sheaf_state_free(tr.state);
	for (int t = 0; t < TENSORS; t++)
		free(tr.data[t]);
	return 0;
}
