/* SPDX-License-Identifier: Apache-2.0 */
#include "trainplan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tr_plan_rank(const struct tr_setup *s, int rank, int64_t bytes[TR_MEMORY_KINDS],
		 struct tr_error *err)
{
	const struct tr_opts *o = s->o;
	struct tr_lm_opts lm = tr_setup_task(s), eval = tr_setup_eval(s);
	struct tr_trainer t;
	struct tr_mesh mesh;
	int rc;

	tr_mesh_plan(&mesh, rank, (int)o->mesh.dp, (int)o->mesh.tp, (int)o->mesh.pp);
	t = tr_setup_trainer(s, &mesh);
	rc = tr_trainer_plan(&t, &s->config, o->micro_batch, o->seq, err);
	if (rc < 0)
		return rc;
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		bytes[kind] = tr_arenas_bytes(&t.arenas, (enum tr_memory)kind);
	bytes[TR_BUFFERS] += tr_backend_cpu_workspace() + tr_lm_bytes(&lm);
	if (o->eval_data)
		bytes[TR_BUFFERS] += tr_lm_bytes(&eval);
	tr_trainer_release(&t);
	return 0;
}

json_t *tr_json_memory(const int64_t bytes[TR_MEMORY_KINDS])
{
	json_t *memory = json_object();

	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
		json_object_set_new(memory, tr_memory_name((enum tr_memory)kind),
				    json_integer(bytes[kind]));
	return memory;
}

/* Prints the memory of a rank in MiB. */
static void print_row(int rank, const int64_t bytes[TR_MEMORY_KINDS])
{
	double sum = 0;

	printf("%6d", rank);
	for (int kind = 0; kind < TR_MEMORY_KINDS; kind++) {
		printf(" %12.1f", (double)bytes[kind] / 0x1p20);
		sum += (double)bytes[kind] / 0x1p20;
	}
	printf(" %12.1f\n", sum);
}

static void print_json(int rank, const int64_t bytes[TR_MEMORY_KINDS])
{
	json_t *line = json_pack("{s:s,s:i,s:o}", "event", "plan", "rank", rank, "planned",
				 tr_json_memory(bytes));
	char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;

	if (text)
		puts(text);
	free(text);
	json_decref(line);
}

static int print_ranks(const struct tr_setup *s, int ranks, int json, struct tr_error *err)
{
	int64_t bytes[TR_MEMORY_KINDS];
	int rc = 0;

	if (!json) {
		printf("  rank");
		for (int kind = 0; kind < TR_MEMORY_KINDS; kind++)
			printf(" %12s", tr_memory_name((enum tr_memory)kind));
		printf(" %12s\n", "MiB in all");
	}
	for (int r = 0; rc == 0 && r < ranks; r++) {
		rc = tr_plan_rank(s, r, bytes, err);
		if (rc == 0 && json)
			print_json(r, bytes);
		else if (rc == 0)
			print_row(r, bytes);
	}
	if (rc == 0 && fflush(stdout) != 0)
		rc = tr_fail(err, TR_EIO, "stdout: %s", strerror(errno));
	return rc;
}

int tr_plan_print(struct tr_opts *o, int json, struct tr_error *err)
{
	int64_t ranks = o->mesh.dp ? o->mesh.dp * o->mesh.tp * o->mesh.pp : 1;
	struct tr_setup s = { .o = NULL };
	int rc;

	if (ranks > 1 << 24)
		return tr_fail(err, TR_EINVAL, "mesh has more than 2^24 ranks; use a smaller one");
	rc = tr_opts_check(o, (int)ranks, err);
	if (rc == 0)
		rc = tr_setup_read(&s, o, err);
	if (rc == 0)
		rc = print_ranks(&s, (int)ranks, json, err);
	tr_setup_release(&s);
	return rc;
}
