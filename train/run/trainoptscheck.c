/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the options of a job fit together. */
#include <inttypes.h>
#include <string.h>

#include "bf16.h"
#include "pipeorder.h"
#include "trainopts.h"

#define TOKENS_MAX ((int64_t)1 << 31)   /* that a rank computes at once */

static int check_needed(const struct tr_opts *o, struct tr_error *err)
{
	const char *key = tr_opts_missing(o);

	if (key)
		return tr_fail(err, TR_EINVAL, "%s is not set; set it in the file or with --%s",
			       key, key);
	if (!o->steps && !o->epochs)
		return tr_fail(err, TR_EINVAL, "neither steps nor epochs is set; set one of them");
	return 0;
}

static int check_mesh(const struct tr_opts *o, int ranks, struct tr_error *err)
{
	const struct tr_axes *m = &o->mesh, *v = &o->virtual;
	int64_t product = m->dp * m->tp * m->pp;

	if (v->dp && v->pp != 1)
		return tr_fail(err, TR_EINVAL, "virtual pp=%" PRId64 ": no sum is over the stages "
			       "of a pipeline, so mesh pp=%" PRId64 " changes no bit; leave pp out "
			       "of virtual", v->pp, m->pp);
	if (ranks && product != ranks)
		return tr_fail(err, TR_EINVAL, "mesh dp=%" PRId64 ", tp=%" PRId64 ", pp=%" PRId64
			       " needs %" PRId64 " ranks, and the job has %d; use mpirun -n %"
			       PRId64 ", or another mesh", m->dp, m->tp, m->pp, product, ranks,
			       product);
	if (o->sp && m->tp == 1)
		return tr_fail(err, TR_EINVAL, "sp cuts tokens over the ranks of tp, and mesh has "
			       "tp=1; use a larger tp, or leave sp out");
	return 0;
}

static int check_pipeline(const struct tr_opts *o, struct tr_error *err)
{
	int interleaved = o->schedule == TR_ORDER_INTERLEAVED;

	if (o->chunks > 1 && !interleaved)
		return tr_fail(err, TR_EINVAL, "chunks %" PRId64 " is for schedule interleaved, "
			       "and schedule is %s; use that schedule, or leave chunks out",
			       o->chunks, o->schedule == TR_ORDER_AFAB ? "afab" : "1f1b");
	if (interleaved && o->chunks == 1)
		return tr_fail(err, TR_EINVAL, "schedule interleaved needs several parts in a "
			       "stage, and chunks is 1; use chunks 2, or schedule 1f1b");
	if (interleaved && o->mesh.pp == 1)
		return tr_fail(err, TR_EINVAL, "schedule interleaved needs several stages, and "
			       "mesh has pp=1; use a larger pp, or schedule 1f1b");
	if (o->stages.n && o->stages.n != o->mesh.pp * o->chunks)
		return tr_fail(err, TR_EINVAL, "stages has %d numbers, and with mesh pp=%" PRId64
			       " and chunks %" PRId64 " there are %" PRId64 " parts; give the "
			       "layers of each part", o->stages.n, o->mesh.pp, o->chunks,
			       o->mesh.pp * o->chunks);
	return 0;
}

static int check_layout(const struct tr_opts *o, int ranks, struct tr_error *err)
{
	const struct tr_axes *m = &o->mesh, *v = &o->virtual;
	int rc = check_mesh(o, ranks, err);

	if (rc == 0)
		rc = check_pipeline(o, err);
	if (rc < 0)
		return rc;
	if (v->dp && v->dp % m->dp)
		return tr_fail(err, TR_EINVAL, "mesh dp=%" PRId64 " does not divide virtual dp=%"
			       PRId64 "; use another number of ranks", m->dp, v->dp);
	if (v->dp && v->tp % m->tp)
		return tr_fail(err, TR_EINVAL, "mesh tp=%" PRId64 " does not divide virtual tp=%"
			       PRId64 "; use another tp", m->tp, v->tp);
	if (v->dp && o->batch % v->dp)
		return tr_fail(err, TR_EINVAL, "virtual dp=%" PRId64 " does not divide batch %"
			       PRId64 "; use another batch", v->dp, o->batch);
	if (o->batch % m->dp)
		return tr_fail(err, TR_EINVAL, "mesh dp=%" PRId64 " does not divide batch %" PRId64
			       "; use another batch or number of ranks", m->dp, o->batch);
	return 0;
}

/* Returns the samples of a micro-batch if the option is not set. With a pipeline there are four
 * micro-batches for each stage, so that a stage waits for less than a fifth of a step. */
static int64_t default_micro_batch(const struct tr_opts *o)
{
	int64_t samples = o->batch / o->mesh.dp, micros = o->mesh.pp > 1 ? 4 * o->mesh.pp : 1;

	return (samples + micros - 1) / micros;
}

/* Checks the options of evaluations and checkpoints. */
static int check_checkpoints(const struct tr_opts *o, struct tr_error *err)
{
	if (o->save_memory_every && strcmp(o->agent, "none") == 0)
		return tr_fail(err, TR_EINVAL, "save-memory-every %" PRId64 " needs an agent, and "
			       "agent is none; leave one of them out", o->save_memory_every);
	if (o->save_memory_every && o->offload)
		return tr_fail(err, TR_EINVAL, "save-memory-every %" PRId64 " keeps a copy in "
			       "memory of the moments that offload %s takes out of it; leave one "
			       "of them out", o->save_memory_every, o->offload);
	if (o->eval_every && !o->eval_data)
		return tr_fail(err, TR_EINVAL, "eval-every %" PRId64 " needs data, and eval-data "
			       "is not set; set it, or leave eval-every out", o->eval_every);
	if (o->eval_ema && o->ema == 0)
		return tr_fail(err, TR_EINVAL, "eval-ema needs an average, and ema is 0; set ema, "
			       "or leave eval-ema out");
	if (o->eval_ema && !o->eval_data)
		return tr_fail(err, TR_EINVAL, "eval-ema needs data, and eval-data is not set; set "
			       "it, or leave eval-ema out");
	if (o->rewind && (strcmp(o->resume, "auto") == 0 || strcmp(o->resume, "none") == 0))
		return tr_fail(err, TR_EINVAL, "rewind sets aside what is newer than a step, and "
			       "resume is %s; use resume RUN@STEP, or leave rewind out",
			       o->resume);
	if (o->keep_best && !o->eval_data)
		return tr_fail(err, TR_EINVAL, "keep-best %" PRId64 " needs the loss of data, and "
			       "eval-data is not set; set it, or leave keep-best out",
			       o->keep_best);
	if ((o->keep_every || o->keep_best) && !o->keep_last)
		return tr_fail(err, TR_EINVAL, "keep-%s %" PRId64 " names checkpoints that are "
			       "kept beside the newest ones, and keep-last is 0, which keeps all; "
			       "set keep-last", o->keep_every ? "every" : "best",
			       o->keep_every ? o->keep_every : o->keep_best);
	return 0;
}

int tr_opts_check(struct tr_opts *o, int ranks, struct tr_error *err)
{
	int rc = check_needed(o, err);

	if (rc < 0)
		return rc;
	if (!o->mesh.dp)
		o->mesh = (struct tr_axes){ ranks ? ranks : 1, 1, 1 };
	rc = check_layout(o, ranks, err);
	if (rc < 0)
		return rc;
	if (o->zero_form && !o->zero)
		return tr_fail(err, TR_EINVAL, "zero-form flat is for zero 1 and 2, and zero is 0; "
			       "use zero 1, or leave zero-form out");
	if (o->zero_form && o->optimizer == TR_MUON)
		return tr_fail(err, TR_EINVAL, "optimizer muon updates whole matrices, and "
			       "zero-form flat cuts them; use zero-form tensor, or optimizer "
			       "adamw");
	rc = check_checkpoints(o, err);
	if (rc < 0)
		return rc;
	if (o->dtype != TR_BF16 && strcmp(o->isa, "avx512-bf16") == 0)
		return tr_fail(err, TR_EINVAL, "isa avx512-bf16 computes products of bf16, and "
			       "dtype is fp32; use isa avx512, or dtype bf16");
	if (o->min_lr > o->lr)
		return tr_fail(err, TR_EINVAL, "min-lr %g is above lr %g; use a smaller min-lr",
			       o->min_lr, o->lr);
	if (o->steps && o->warmup > o->steps)
		return tr_fail(err, TR_EINVAL, "warmup %" PRId64 " is above steps %" PRId64
			       "; use fewer steps of warmup", o->warmup, o->steps);
	if (!o->micro_batch)
		o->micro_batch = default_micro_batch(o);
	if (o->micro_batch > o->batch / o->mesh.dp)
		o->micro_batch = o->batch / o->mesh.dp;
	if (ranks && o->micro_batch * o->seq > TOKENS_MAX)
		return tr_fail(err, TR_EINVAL, "micro-batch %" PRId64 " of seq %" PRId64 " has "
			       "more than 2^31 tokens; use a smaller micro-batch", o->micro_batch,
			       o->seq);
	return 0;
}
