/* SPDX-License-Identifier: Apache-2.0 */
#include "trainstart.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "itemhash.h"
#include "delaylink.h"
#include "sampleorder.h"
#include "tokenfile.h"

/* What fill() returns if the checkpoint is damaged and an older one is tried. */
enum { OLDER = 1 };

/* Prints the errors and warnings of the library: levels 0 and 1. */
static void log_line(void *arg, int level, const char *line)
{
	const struct tr_job *j = arg;
	char own[1024];

	snprintf(own, sizeof(own), "%s", line);
	tr_store_words(own, sizeof(own));
	if (level <= 1)
		tr_warn(j->events, "%s", own);
}

/* Keeps the name of a checkpoint that was passed over, for the event `start`. */
static void note_passed(void *arg, const char *checkpoint, const char *why)
{
	const struct tr_job *j = arg;

	json_array_append_new(j->passed, json_sprintf("%s: %s", checkpoint, why));
}

/* Refuses a seq other than the one the checkpoint was trained with. The place in the data is
 * counted in samples, so with samples of another length it would be another place. If the
 * checkpoint is in another run, training begins with the first sample instead. */
static int change_seq(struct tr_job *j, int64_t before, struct tr_error *err)
{
	if (j->evaluates)
		return 0;
	if (!tr_store_is_other(j->store))
		return tr_fail(err, TR_EINVAL, "seq %" PRId64 ": %s was trained with seq %" PRId64
			       ", and its place in the data is a number of such samples; use that "
			       "seq, or another run with resume %s", j->o->seq,
			       tr_store_found(j->store), before, tr_store_found(j->store));
	j->progress.consumed = 0;
	return 0;
}

/* Finds the checkpoint to resume from. Options that are not set get the values that it was trained
 * with. */
static int find_checkpoint(struct tr_job *j, struct tr_error *err)
{
	const char *config;
	struct tr_opts before;
	size_t n;
	int rc = tr_store_find(j->store, j->o->resume, (int)j->o->rewind, &j->progress, &config, &n,
			       err);

	if (rc < 0 || !config)
		return rc;
	rc = tr_opts_init(&before, err);
	if (rc == 0)
		rc = tr_opts_read_yaml(&before, config, n, "the options in the checkpoint",
				       TR_FROM_CHECKPOINT, err);
	if (rc == 0)
		rc = tr_opts_read_yaml(j->o, config, n, "the options in the checkpoint",
				       TR_FROM_CHECKPOINT, err);
	if (rc == 0)
		tr_opts_differ(j->o, &before, j->changed);
	if (rc == 0 && j->o->optimizer != before.optimizer)
		rc = tr_fail(err, TR_EINVAL, "optimizer %s: %s was trained with %s and has only "
			     "its moments; use that one, or start a new run from its weights with "
			     "init model", j->o->optimizer == TR_MUON ? "muon" : "adamw",
			     tr_store_found(j->store), before.optimizer == TR_MUON ? "muon" :
			     "adamw");
	if (rc == 0 && j->o->seq != before.seq)
		rc = change_seq(j, before.seq, err);
	tr_opts_release(&before);
	return rc;
}

int tr_job_options(struct tr_ranks *ranks, struct tr_opts *o, int evaluates, struct tr_error *err)
{
	struct tr_job *j = calloc(1, sizeof(*j));
	/* Warnings are printed, and no events are written. */
	struct tr_events events = { .writes = ranks->rank == 0, .fd = -1 };
	const struct tr_store_opts so = { .run = o->run, .agent = o->agent, .reads_only = 1,
					  .log = log_line, .passed = note_passed, .arg = j };
	int rc;

	if (!j) {
		tr_fail(err, TR_ENOMEM, "no memory for the options");
		return tr_ranks_abandon(ranks, err);
	}
	*j = (struct tr_job){ .o = o, .ranks = ranks, .events = &events,
			      .evaluates = evaluates };
	rc = tr_store_open(&j->store, &so, ranks, err);
	if (rc == 0)
		rc = tr_agree(ranks, find_checkpoint(j, err), err);
	tr_store_close(j->store, rc == TR_ELOST);
	free(j);
	return rc;
}

/* Fails on all ranks if one of them has other options or data than the others. It would compute
 * other numbers, or wait in an operation in which the others do not take part. */
static int agree_on_options(struct tr_job *j, struct tr_error *err)
{
	char *text = tr_opts_yaml(j->o);
	const uint64_t data[2] = { j->progress.data_hash, j->eval_hash };
	uint64_t x[2];
	int rc = text ? 0 : tr_fail(err, TR_ENOMEM, "no memory for the options");

	x[0] = text ? tr_crc64_more(tr_crc64(text), data, sizeof(data)) : 0;
	x[1] = ~x[0];
	free(text);
	rc = tr_agree(j->ranks, rc, err);
	if (rc == 0)
		rc = tr_allreduce(j->ranks, x, 2, TR_MAX, err);
	if (rc == 0 && x[0] != ~x[1])
		rc = tr_fail(err, TR_EINVAL, "the ranks have different options or data; give all "
			     "of them the same files and flags");
	return rc;
}

/* Chooses the kernels. With bf16 `auto` takes avx512-bf16 if all ranks have it. Its results differ
 * from those of all other kernels, so it is not taken if `virtual` is set: then the bits must not
 * depend on the CPU. */
static int choose_isa(struct tr_job *j, struct tr_error *err)
{
	static const char own_bits[] = "avx512-bf16";
	const struct tr_isa *isa;
	struct tr_error why;
	uint64_t lacks;
	int rc;

	j->isa = j->o->isa;
	if (strcmp(j->isa, "auto") != 0 || j->o->dtype != TR_BF16 || j->o->virtual.dp)
		return 0;
	lacks = tr_isa_find(&isa, own_bits, &why) < 0;
	rc = tr_allreduce(j->ranks, &lacks, 1, TR_MAX, err);
	if (rc == 0 && !lacks)
		j->isa = own_bits;
	return rc;
}

static int make_backend(struct tr_job *j, struct tr_error *err)
{
	const struct tr_isa *isa;
	float *work;
	int rc = tr_isa_find(&isa, j->isa, err);

	if (rc == 0)
		rc = tr_backend_cpu(&j->be, isa, err);
	if (rc < 0)
		return rc;
	work = j->be->alloc(j->be, (size_t)TR_GEMM_WORK);
	rc = work ? tr_isa_check(isa, work, err) :
		tr_fail(err, TR_ENOMEM, "no memory to check the kernels");
	j->be->release(j->be, work);
	return rc;
}

/* In the first and in the last stage the first rank of tp reads the data. It sends it to the other
 * ranks of tp in its stage, and that of the first stage also to the stages between. */
static int choose_readers(struct tr_job *j, struct tr_error *err)
{
	int tp = (int)j->o->mesh.tp, ranks = j->mesh.line.n;

	j->source = calloc((size_t)ranks, sizeof(*j->source));
	for (int r = ranks - tp; j->source && r < ranks; r++)
		j->source[r] = ranks - tp;
	return j->source ? 0 : tr_fail(err, TR_ENOMEM, "no memory to list the ranks that read");
}

/* Puts the moments into a file. */
static int offload(struct tr_job *j, struct tr_error *err)
{
	int64_t bytes = tr_arenas_bytes(&j->t.arenas, TR_OPTIMIZER);
	int rc = tr_offload_open(&j->moments, j->o->offload, (size_t)bytes, err);

	if (rc == 0)
		tr_arena_lend(&j->t.arenas, TR_OPTIMIZER, j->moments.memory);
	return rc;
}

static int make_trainer(struct tr_job *j, struct tr_error *err)
{
	int rc;

	j->t = tr_setup_trainer(&j->setup, &j->mesh);
	j->t.be = j->be;
	rc = tr_trainer_plan(&j->t, &j->setup.config, j->o->micro_batch, j->o->seq, err);
	if (rc == 0 && j->o->offload)
		rc = offload(j, err);
	return rc == 0 ? tr_arenas_allocate(&j->t.arenas, err) : rc;
}

/* Opens the data of a task on the ranks that read. */
static int open_task(struct tr_job *j, struct tr_lm_opts o, struct tr_lm **lm, struct tr_error *err)
{
	o.ranks = &j->mesh.line;
	o.source = j->source;
	o.job_ranks = j->ranks->n;
	return tr_lm_new(lm, &o, err);
}

static int make_task(struct tr_job *j, struct tr_error *err)
{
	const struct tr_opts *o = j->o;
	int rc = open_task(j, tr_setup_task(&j->setup), &j->lm, err);
	int64_t all = rc == 0 ? tr_epochs_positions(o->epochs, tr_lm_samples(j->lm)) : 0;

	if (rc == 0 && o->epochs && all < o->batch)
		return tr_fail(err, TR_EINVAL, "batch %" PRId64 " is above the %" PRId64
			       " samples of %" PRId64 " epochs, so there is no step; use a "
			       "smaller batch or more epochs", o->batch, all, o->epochs);
	return rc;
}

/* Opens the data of evaluations, if there is any, and reads it once. */
static int make_eval(struct tr_job *j, struct tr_error *err)
{
	int64_t tokens;
	int rc = 0;

	if (j->o->eval_data)
		rc = open_task(j, tr_setup_eval(&j->setup), &j->eval, err);
	/* The first evaluation may come days later. */
	if (rc == 0 && j->eval && !j->evaluates)
		rc = tr_lm_check(j->eval, err);
	j->last_eval = -1;
	if (rc == 0 && j->eval)
		tr_lm_identify(j->eval, &tokens, &j->eval_hash);
	return rc;
}

/* Compares the model with that of the checkpoint. Weights of different models may have the same
 * shapes, so the load would not notice. */
static int check_model(const struct tr_job *j, struct tr_error *err)
{
	struct tr_model_config before;
	const char *text = NULL, *key;
	size_t n;
	int rc = j->progress.found ? tr_store_file(j->store, "config.json", &text, &n, err) : 0;

	if (rc < 0 || !text)
		return rc;
	rc = tr_model_config_read(&before, text, n, "config.json in the checkpoint", err);
	key = rc == 0 ? tr_model_config_differ(&before, &j->setup.config) : NULL;
	if (key)
		return tr_fail(err, TR_EINVAL, "model %s: %s differs from that in %s; use the "
			       "config.json of the checkpoint, or begin another run", j->o->model,
			       key, tr_store_found(j->store));
	return rc;
}

static void list_as_changed(struct tr_job *j, const char *key)
{
	int i = 0;

	while (j->changed[i] && strcmp(j->changed[i], key) != 0)
		i++;
	j->changed[i] = key;
}

/* Lists `isa` as changed if the kernels differ in their bits from those of the checkpoint. A
 * checkpoint of other software has no bits to compare with. */
static void compare_isa(struct tr_job *j)
{
	const struct tr_isa *isa = j->be->isa;
	struct tr_progress *p = &j->progress;
	const char *own = isa->tile_bf16 ? isa->name : "";

	if (p->found && p->data_tokens && strcmp(p->isa, own) != 0)
		list_as_changed(j, "isa");
	snprintf(p->isa, sizeof(p->isa), "%s", own);
}

/* Refuses data other than the checkpoint was trained on, because its place in the data would mean
 * nothing there. If the checkpoint is in another run, the training begins with the first sample of
 * the new data instead, and `data` is listed as changed. */
static int check_data(struct tr_job *j, struct tr_error *err)
{
	struct tr_progress *p = &j->progress;
	int64_t tokens;
	uint64_t hash;
	int other;

	tr_lm_identify(j->lm, &tokens, &hash);
	other = p->found && p->data_tokens && (p->data_tokens != tokens || p->data_hash != hash);
	if (other && !tr_store_is_other(j->store))
		return tr_fail(err, TR_EINVAL, "data %s, of %" PRId64 " tokens, is not the data of "
			       "%s, of %" PRId64 " tokens; use that data, or another run with "
			       "resume %s", j->o->data, tokens, tr_store_found(j->store),
			       p->data_tokens, tr_store_found(j->store));
	if (other) {
		list_as_changed(j, "data");
		p->consumed = 0;
	}
	p->data_tokens = tokens;
	p->data_hash = hash;
	return 0;
}

/* Sets the step at which the schedule of the learning rate ends. Without `steps` it is the last one
 * of the epochs, counted from the current step: earlier ones may have had another batch or other
 * data. Refuses a warmup that is longer, as tr_opts_check does if `steps` is set. */
static int find_end(struct tr_job *j, struct tr_error *err)
{
	const struct tr_opts *o = j->o;
	int64_t left = tr_epochs_positions(o->epochs, tr_lm_samples(j->lm)) - j->progress.consumed;
	int64_t steps = j->progress.step + (left > 0 ? left / o->batch : 0);

	if (o->steps)
		return 0;
	j->t.schedule.steps = steps;
	if (o->warmup <= steps)
		return 0;
	return tr_fail(err, TR_EINVAL, "warmup %" PRId64 " is above the %" PRId64 " steps of %"
		       PRId64 " epochs; use fewer steps of warmup, or more epochs", o->warmup,
		       steps, o->epochs);
}

/* Loads the checkpoint that was found. Returns OLDER if that one is damaged, and an older one was
 * loaded instead or has other tensors: the caller then begins again, with the options, the notes
 * and the tensors of the older one. */
static int load(struct tr_job *j, struct tr_error *err)
{
	int moments = tr_store_has_moments(j->store), rc;
	int64_t step;

	if (!moments && !j->evaluates)
		tr_warn(j->events, "%s has no moments of the optimizer, or does not say how many "
			"updates were made; they begin at 0", tr_store_found(j->store));
	rc = tr_store_load(j->store, &step, err);
	if ((rc == 0 || rc == TR_ELAYOUT) && step >= 0 && step != j->progress.step) {
		j->only = step;
		j->sets_aside = rc < 0;
		return OLDER;
	}
	j->t.step = j->progress.step;
	j->t.adamw.step = moments ? j->progress.adam_step : 0;
	return rc;
}

/* The average begins with the weights, unless the checkpoint has one. */
static int begin_average(struct tr_job *j, struct tr_error *err)
{
	if (!j->t.averaged || tr_store_has_average(j->store))
		return 0;
	if (j->evaluates && j->o->eval_ema)
		return tr_fail(err, TR_ENOENT, "%s has no average of the weights; use another "
			       "checkpoint, or leave eval-ema out", tr_store_found(j->store));
	tr_trainer_average(&j->t);
	if (j->progress.found)
		list_as_changed(j, "ema");
	return 0;
}

/* Sets the weights and the progress from the checkpoint, or to those with which a new job begins.
 * Returns OLDER as load() does, or if the checkpoint is damaged before anything is loaded. */
static int fill(struct tr_job *j, struct tr_error *err)
{
	int rc = tr_store_describe(j->store, &j->t, err);
	int64_t older = -1;

	rc = tr_agree(j->ranks, rc, err);
	if (rc == 0)
		rc = tr_store_rewind(j->store, &older, err);
	if (rc < 0)
		return rc;
	if (older >= 0) {
		j->only = older;
		j->sets_aside = 1;
		return OLDER;
	}
	if (j->progress.found) {
		rc = load(j, err);
	} else if (j->o->init == TR_INIT_MODEL) {
		rc = tr_store_import(j->store, &j->t, j->o->model, err);
	} else {
		tr_trainer_draw(&j->t, (uint64_t)j->o->seed, j->setup.config.init_range);
	}
	if (rc == 0)
		rc = begin_average(j, err);
	if (rc)
		return rc;
	rc = tr_trainer_spread(&j->t, err);
	if (rc == 0)
		rc = tr_trainer_settle(&j->t, err);
	if (j->progress.evaluated)
		j->last_eval = j->progress.step;
	j->last_saved = j->committed = j->progress.on_disk ? j->progress.step : 0;
	j->progress.seed = (uint64_t)j->o->seed;
	j->progress.virtual_dp = j->o->virtual.dp;
	j->progress.virtual_tp = j->o->virtual.tp;
	return rc;
}

/* Checks and makes what needs no other rank. The caller has to agree with the other ranks on the
 * result. */
static int prepare_alone(struct tr_job *j, struct tr_error *err)
{
	int rc = tr_setup_read(&j->setup, j->o, err);

	if (rc == 0)
		rc = check_model(j, err);
	if (rc == 0)
		rc = make_backend(j, err);
	if (rc < 0)
		return rc;
	compare_isa(j);
	rc = choose_readers(j, err);
	if (rc == 0)
		rc = make_trainer(j, err);
	if (rc < 0)
		return rc;
	if (j->ranks->rank == 0 && !j->evaluates)
		rc = tr_modelfiles_read(&j->files, j->o, err);
	if (rc < 0)
		return rc;
	j->yaml = tr_opts_yaml(j->o);
	return j->yaml ? 0 : tr_fail(err, TR_ENOMEM, "no memory for the options");
}

/* Opens the data. The caller has to agree with the other ranks on the result. */
static int prepare_data(struct tr_job *j, struct tr_error *err)
{
	int rc = j->evaluates ? 0 : make_task(j, err);

	if (rc == 0)
		rc = make_eval(j, err);
	if (rc == 0 && !j->evaluates)
		rc = check_data(j, err);
	if (rc == 0 && !j->evaluates)
		rc = find_end(j, err);
	return rc;
}

/* Checks that there is something to evaluate. */
static int check_evaluation(const struct tr_job *j, struct tr_error *err)
{
	if (!j->progress.found)
		return tr_fail(err, TR_ENOENT, "run %s has no checkpoint to evaluate; set run, or "
			       "resume to RUN@STEP or a directory", j->o->run);
	if (!j->o->eval_data)
		return tr_fail(err, TR_EINVAL, "eval-data is not set; set it in the file or with "
			       "--eval-data");
	return 0;
}

/* Names what is evaluated by the hash of the data. The run is opened with this name, before the
 * data is opened, so rank 0 reads it here. */
static int name_loss(struct tr_job *j, struct tr_error *err)
{
	struct tr_tokenfile f;
	uint64_t hash = 0;
	int rc = 0;

	if (!j->o->eval_data || j->evaluates)
		return 0;
	if (j->ranks->rank == 0) {
		rc = tr_tokenfile_open(&f, j->o->eval_data, err);
		if (rc == 0)
			rc = tr_tokenfile_hash(&f, &hash, err);
		tr_tokenfile_close(&f);
	}
	rc = tr_agree(j->ranks, rc, err);
	if (rc == 0)
		rc = tr_allreduce(j->ranks, &hash, 1, TR_MAX, err);
	if (rc == 0)
		snprintf(j->loss_key, sizeof(j->loss_key), "eval.loss.%s%016" PRIx64,
			 j->o->eval_ema ? "ema." : "", hash);
	return rc;
}

/* Delays messages, if that is wanted: all ranks have the same options now. */
static int make_link(struct tr_job *j, struct tr_error *err)
{
	const struct tr_opts *o = j->o;
	int rc = 0;

	if (o->link_gbps > 0 || o->link_us > 0)
		rc = tr_ranks_link(&j->linked, j->ranks, o->link_gbps, o->link_us, err);
	rc = tr_agree(j->ranks, rc, err);
	if (rc == 0 && j->linked.arg)
		j->ranks = &j->linked;
	return rc;
}

/* Checks the options, and warns if micro-batch is above what a rank has, as it may be in a file
 * that is used with several meshes. */
static int check_options(struct tr_job *j, struct tr_error *err)
{
	struct tr_opts *o = j->o;
	int64_t micro_batch = o->micro_batch;
	int rc = tr_opts_check(o, j->ranks->n, err);

	if (rc == 0 && micro_batch > o->micro_batch)
		tr_warn(j->events, "micro-batch %" PRId64 " is above the %" PRId64 " samples that "
			"a rank has in a step, so it is %" PRId64, micro_batch, o->micro_batch,
			o->micro_batch);
	return rc;
}

/* Does what tr_job_start says, or returns OLDER as fill() does. */
static int start(struct tr_job *j, struct tr_error *err)
{
	struct tr_store_opts so = { .run = j->o->run, .keep_last = j->o->keep_last,
				    .keep_every = j->o->keep_every,
				    .keep_best = j->o->keep_best, .loss_key = j->loss_key,
				    .agent = j->o->agent, .reads_only = j->evaluates,
				    .memory = !j->evaluates && j->o->save_memory_every > 0,
				    .only = j->only, .sets_aside = j->sets_aside,
				    .log = log_line, .passed = note_passed, .arg = j };
	int rc = tr_agree(j->ranks, tr_setup_check(j->o, j->ranks->n, err), err);

	if (rc == 0)
		rc = agree_on_options(j, err);
	if (rc == 0)
		rc = make_link(j, err);
	if (rc == 0)
		rc = name_loss(j, err);
	if (rc == 0)
		rc = tr_store_open(&j->store, &so, j->ranks, err);
	if (rc == 0)
		tr_events_begin(j->events);
	if (rc == 0)
		rc = tr_agree(j->ranks, find_checkpoint(j, err), err);
	if (rc == 0)
		rc = tr_agree(j->ranks, check_options(j, err), err);
	if (rc == 0 && j->evaluates)
		rc = tr_agree(j->ranks, check_evaluation(j, err), err);
	if (rc == 0)
		rc = tr_mesh_make(&j->mesh, j->ranks, (int)j->o->mesh.dp, (int)j->o->mesh.tp,
				  (int)j->o->mesh.pp, err);
	if (rc == 0)
		rc = choose_isa(j, err);
	if (rc == 0)
		rc = tr_agree(j->ranks, prepare_alone(j, err), err);
	if (rc == 0)
		rc = tr_agree(j->ranks, prepare_data(j, err), err);
	/* Again, now that options of the checkpoint and the data are known. */
	if (rc == 0)
		rc = agree_on_options(j, err);
	return rc == 0 ? fill(j, err) : rc;
}

/* Releases everything that start() has made, and begins again with an older checkpoint. */
static int start_again(struct tr_job *j, const struct tr_job *as_given, struct tr_error *err)
{
	struct tr_job again = *as_given;
	int rc;

	again.only = j->only;
	again.sets_aside = j->sets_aside;
	again.passed = json_incref(j->passed);
	tr_job_release(j, 0);
	*j = again;
	rc = tr_agree(j->ranks, tr_opts_reset(j->o, err), err);
	return rc == 0 ? start(j, err) : rc;
}

int tr_job_start(struct tr_job *j, struct tr_error *err)
{
	const struct tr_job as_given = *j;
	int64_t last = INT64_MAX;
	int rc;

	j->passed = json_array();
	rc = start(j, err);
	/* Each time it begins with an older step, so this ends. */
	while (rc == OLDER && j->only < last) {
		last = j->only;
		rc = start_again(j, &as_given, err);
	}
	return rc == OLDER ? tr_fail(err, TR_ECORRUPT, "%s was damaged after it was loaded; see "
				     "sheaf verify", tr_store_found(j->store)) : rc;
}

void tr_job_release(struct tr_job *j, int lost)
{
	/* First, because a save in flight after a failure may read memory of the trainer. */
	tr_store_close(j->store, lost);
	tr_lm_free(j->lm);
	tr_lm_free(j->eval);
	tr_trainer_release(&j->t);
	tr_offload_close(&j->moments);
	tr_backend_free(j->be);
	tr_mesh_release(&j->mesh);
	tr_ranks_free(&j->linked);
	free(j->source);
	tr_setup_release(&j->setup);
	free(j->yaml);
	tr_modelfiles_release(&j->files);
	json_decref(j->passed);
}
