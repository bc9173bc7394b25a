/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates a checkpoint on one rank, as `sheaf-train eval` does, and writes the logits from which
 * the loss is computed: fp32, a row for each token of eval-data but the last one, in their order.
 * oracle.py compares them with those of transformers.
 *
 * usage: eval_logits OPTIONS OUT
 *
 * OPTIONS is YAML. The program is linked with --wrap=tr_backend_cpu, so that it sees what the back
 * end gets. */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "trainloop.h"

int __real_tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err);
int __wrap_tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err);

/* A back end has no member for what belongs to a caller, so these are global. */
static FILE *out;
static void (*find_max)(struct tr_backend *, const struct tr_rows *, int64_t, int64_t,
			const float *, struct tr_span, float *);

/* The operation with which the loss of some rows begins. */
static void write_logits(struct tr_backend *be, const struct tr_rows *rows, int64_t first,
			 int64_t last, const float *logits, struct tr_span has, float *max)
{
	fwrite(logits, sizeof(*logits), (size_t)((last - first) * (has.to - has.from)), out);
	find_max(be, rows, first, last, logits, has, max);
}

int __wrap_tr_backend_cpu(struct tr_backend **be, const struct tr_isa *isa, struct tr_error *err)
{
	int rc = __real_tr_backend_cpu(be, isa, err);

	if (rc == 0) {
		find_max = (*be)->xent_max;
		(*be)->xent_max = write_logits;
	}
	return rc;
}

static int evaluate(const char *options, struct tr_error *err)
{
	struct tr_events events = { .fd = -1 };
	struct tr_ranks alone;
	struct tr_opts o;
	int rc = tr_opts_init(&o, err);

	tr_ranks_alone(&alone);
	if (rc == 0)
		rc = tr_opts_read_yaml(&o, options, strlen(options), "OPTIONS", TR_FROM_FLAG, err);
	if (rc == 0)
		rc = tr_evaluate(&alone, &o, &events, err);
	tr_opts_release(&o);
	return rc;
}

int main(int argc, char **argv)
{
	struct tr_error err = { .rank = -1 };
	int rc;

	if (argc != 3) {
		fputs("usage: eval_logits OPTIONS OUT\n", stderr);
		return 2;
	}
	out = fopen(argv[2], "wb");
	if (!out) {
		perror(argv[2]);
		return 2;
	}
	rc = evaluate(argv[1], &err);
	if (rc < 0)
		fprintf(stderr, "eval_logits: %s\n", err.msg);
	if (ferror(out))
		rc = -1;
	return fclose(out) == 0 && rc == 0 ? 0 : 1;
}
