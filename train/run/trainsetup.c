/* SPDX-License-Identifier: Apache-2.0 */
#include "trainsetup.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "configread.h"

enum { EVAL_MICROS = 8 };               /* of each stage, whose rows are sent at once */

/* Sets the type in config.json, which is attached to checkpoints, to that of their weights. */
static int set_type(struct tr_setup *s, struct tr_error *err)
{
	char *typed = tr_model_config_typed(s->text, s->n, (enum tr_type)s->o->dtype);

	if (!typed)
		return tr_fail(err, TR_ENOMEM, "no memory for the config.json of the model");
	free(s->text);
	s->text = typed;
	s->n = strlen(typed);
	return 0;
}

static int read_model_config(struct tr_setup *s, struct tr_error *err)
{
	char path[4200];
	int rc;

	snprintf(path, sizeof(path), "%s%s", s->o->model,
		 tr_is_directory(s->o->model) ? "/config.json" : "");
	rc = tr_config_read_regular(path, &s->text, &s->n, err);
	if (rc == 0)
		rc = tr_model_config_read(&s->config, s->text, s->n, path, err);
	if (rc == 0)
		rc = set_type(s, err);
	if (rc == 0 && s->o->seq > s->config.positions_max)
		rc = tr_fail(err, TR_EINVAL, "seq %" PRId64 " is above max_position_embeddings %"
			     PRId64 " of %s; use a smaller seq", s->o->seq,
			     s->config.positions_max, path);
	if (rc == 0 && s->o->init == TR_INIT_MODEL && !tr_is_directory(s->o->model))
		rc = tr_fail(err, TR_EINVAL, "init model reads weights from the directory of "
			     "model, and %s is a file; use a Hugging Face directory, or init "
			     "random", s->o->model);
	return rc;
}

/* The number of pieces must divide the kv heads, which are not cut themselves. */
static int check_heads(const struct tr_setup *s, struct tr_error *err)
{
	const struct tr_opts *o = s->o;
	int64_t pieces = o->virtual.dp ? o->virtual.tp : o->mesh.tp;

	if (s->config.kv_heads % pieces == 0)
		return 0;
	return tr_fail(err, TR_EINVAL, "%s tp=%" PRId64 " does not divide num_key_value_heads %"
		       PRId64 " of model %s; use another tp", o->virtual.dp ? "virtual" : "mesh",
		       pieces, s->config.kv_heads, o->model);
}

/* Each part of the model has at least one layer. */
static int check_parts(const struct tr_setup *s, struct tr_error *err)
{
	const struct tr_opts *o = s->o;
	int64_t layers = 0;

	if (o->mesh.pp * o->chunks > s->config.layers)
		return tr_fail(err, TR_EINVAL, "mesh pp=%" PRId64 " with chunks %" PRId64 " has "
			       "more parts than the %" PRId64 " layers of model %s; use a smaller "
			       "pp or fewer chunks", o->mesh.pp, o->chunks, s->config.layers,
			       o->model);
	for (int i = 0; i < o->stages.n; i++)
		layers += o->stages.count[i];
	if (o->stages.n && layers != s->config.layers)
		return tr_fail(err, TR_EINVAL, "stages has %" PRId64 " layers, and model %s has %"
			       PRId64 "; give the layers of each part", layers, o->model,
			       s->config.layers);
	return 0;
}

int tr_setup_read(struct tr_setup *s, const struct tr_opts *o, struct tr_error *err)
{
	int rc;

	*s = (struct tr_setup){ .o = o };
	rc = read_model_config(s, err);
	if (rc == 0)
		rc = check_heads(s, err);
	return rc == 0 ? check_parts(s, err) : rc;
}

/* Returns whether a directory may be a run with checkpoints, on disk or in memory: a job that has
 * saved to memory only has made the folder .sheaf, too. If the directory cannot be read, the
 * library says why when it opens the run. */
static int may_have_checkpoints(const char *run)
{
	static const char prefix[] = "checkpoint-";
	DIR *d = opendir(run);
	struct dirent *e;
	int found = 0;

	if (!d)
		return errno != ENOENT;
	while (!found && (e = readdir(d)) != NULL)
		found = strcmp(e->d_name, ".sheaf") == 0 ||
			strncmp(e->d_name, prefix, sizeof(prefix) - 1) == 0;
	closedir(d);
	return found;
}

/* Returns whether a checkpoint may set options that neither the file nor a flag has set. */
static int may_resume(const struct tr_opts *o)
{
	return strcmp(o->resume, "none") != 0 &&
		(strcmp(o->resume, "auto") != 0 || may_have_checkpoints(o->run));
}

int tr_setup_check(const struct tr_opts *o, int ranks, struct tr_error *err)
{
	struct tr_opts checked = *o;    /* its texts are borrowed */
	struct tr_setup s = { .o = NULL };
	int rc;

	if (!o->run)
		return tr_fail(err, TR_EINVAL, "run is not set; set it in the file or with --run");
	if (may_resume(o))
		return 0;
	rc = tr_opts_check(&checked, ranks, err);
	if (rc == 0)
		rc = tr_setup_read(&s, &checked, err);
	tr_setup_release(&s);
	return rc;
}

void tr_setup_release(struct tr_setup *s)
{
	free(s->text);
	*s = (struct tr_setup){ .o = NULL };
}

struct tr_lm_opts tr_setup_task(const struct tr_setup *s)
{
	const struct tr_opts *o = s->o;

	return (struct tr_lm_opts){ .data = o->data, .batch = o->batch,
		.micro_batch = o->micro_batch, .rank_batch = o->batch / o->mesh.dp, .seq = o->seq,
		.vocab = s->config.vocab, .seed = (uint64_t)o->seed, .shuffle = (int)o->shuffle,
		.documents = (int)o->document_attention, .dropout = o->dropout,
		.attention_dropout = o->attention_dropout,
		.trace = o->trace == TR_TRACE_SAMPLES };
}

struct tr_lm_opts tr_setup_eval(const struct tr_setup *s)
{
	const struct tr_opts *o = s->o;

	return (struct tr_lm_opts){ .data = o->eval_data, .micro_batch = o->micro_batch,
		.rank_batch = EVAL_MICROS * o->mesh.pp * o->micro_batch, .seq = o->seq,
		.vocab = s->config.vocab, .documents = (int)o->document_attention };
}

struct tr_trainer tr_setup_trainer(const struct tr_setup *s, const struct tr_mesh *mesh)
{
	const struct tr_opts *o = s->o;
	const struct tr_lm_opts lm = tr_setup_task(s);

	return (struct tr_trainer){ .mesh = mesh, .type = (enum tr_type)o->dtype,
		.adamw = { .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
			   .decay = o->weight_decay, .ema_decay = o->ema },
		.schedule = { .lr = o->lr, .min_lr = o->min_lr, .warmup = o->warmup,
			      .steps = o->steps, .decay = (enum tr_decay)o->decay },
		.averaged = o->ema > 0, .muon = o->optimizer == TR_MUON, .clip = o->clip,
		.leaves = (int)(o->virtual.dp ? o->virtual.dp : o->mesh.dp),
		.pieces = (int)(o->virtual.dp ? o->virtual.tp : o->mesh.tp), .batch = o->batch,
		.sp = (int)o->sp, .recompute = (int)o->recompute, .zero = (int)o->zero,
		.overlap = (int)o->overlap, .zero_form = (enum tr_zero_form)o->zero_form,
		.pipe = { .order = (enum tr_order)o->schedule, .chunks = (int)o->chunks,
			  .micros = tr_lm_micros(&lm) },
		.layers = o->stages.n ? o->stages.count : NULL };
}
