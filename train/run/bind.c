/* SPDX-License-Identifier: Apache-2.0 */
#include "bind.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sheaf-admin.h"
#include "sheaf-inspect.h"
#include "sheaf-opts.h"
#include "sheaf.h"

_Static_assert((int)TR_EINVAL == SHEAF_EINVAL && (int)TR_ENOMEM == SHEAF_ENOMEM &&
	       (int)TR_EIO == SHEAF_EIO && (int)TR_ENOENT == SHEAF_ENOENT &&
	       (int)TR_ELAYOUT == SHEAF_ELAYOUT && (int)TR_ECORRUPT == SHEAF_ECORRUPT &&
	       (int)TR_EFORMAT == SHEAF_EFORMAT && (int)TR_EBUG == SHEAF_EBUG &&
	       (int)TR_ELOST == SHEAF_ELOST && (int)TR_EDIVERGED == SHEAF_EDIVERGED &&
	       (int)TR_EFAILED == SHEAF_EFAILED, "codes are those of sheaf.h");

enum { WEIGHT, MASTER, MOMENT1, MOMENT2, KINDS };       /* slices of a parameter */
static const char config_file[] = "train.yaml";

struct tr_store {
	struct tr_ranks *ranks;         /* borrowed */
	int lost;                       /* 1: operations of the group fail without waiting */
	struct sheaf_group *group;
	struct sheaf_run *run, *other;  /* other: the run that is resumed from, if another one */
	struct sheaf_checkpoint *found;
	struct sheaf_state *state;
	struct sheaf_state *load;       /* what a load fills; NULL: the same */
	int *slice;                     /* [parameters * KINDS]; -1: none */
	struct sheaf_save *save;        /* in flight */
	int64_t save_step;
	int64_t rewind_to;              /* -1: nothing is set aside */
	char *run_dir;                  /* owned */
	char name[4200];
};

const char *tr_code_name(int code)
{
	const char *name = code == TR_ENAN ? "ENAN" : code == TR_ENOSPC ? "ENOSPC" :
		sheaf_code_name(code);

	return name ? name : "EUNKNOWN";
}

static int pass(struct tr_error *err, const struct sheaf_error *from, int code)
{
	if (code >= 0)
		return code;
	tr_fail(err, code, "%s", from->msg);
	if (err)
		err->rank = from->rank;
	return code;
}

/* ---- a group of the library, made of the operations of tr_ranks ---- */

/* Returns the ranks with the deadline of one operation. */
static struct tr_ranks within(const void *arg, int timeout_ms)
{
	const struct tr_store *s = arg;
	struct tr_ranks g = *s->ranks;

	g.timeout_ms = timeout_ms;
	return g;
}

/* After a rank was lost, operations of the group would wait for it until their deadline. */
static int is_lost(const void *arg)
{
	return ((const struct tr_store *)arg)->lost;
}

static int tell(struct sheaf_error *err, const struct tr_error *e, int code)
{
	if (code < 0) {
		snprintf(err->msg, sizeof(err->msg), "%s", e->msg);
		err->rank = e->rank;
	}
	return code;
}

static int group_allgather(void *arg, const void *mine, void *all, size_t bytes, int timeout_ms,
			   struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_error e = { .rank = -1 };

	if (is_lost(arg))
		return SHEAF_ELOST;
	return tell(err, &e, tr_allgather(&g, mine, all, bytes, &e));
}

static int group_alltoallv(void *arg, const void *out, const size_t *out_bytes, void *in,
			   const size_t *in_bytes, int timeout_ms, struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_piece *p = calloc((size_t)g.n * 2, sizeof(*p));
	struct tr_error e = { .rank = -1 };
	size_t sent = 0, received = 0;
	int rc;

	if (is_lost(arg)) {
		free(p);
		return SHEAF_ELOST;
	}
	if (!p) {
		tr_fail(&e, TR_ENOMEM, "no memory for the pieces of %d ranks", g.n);
		return tell(err, &e, tr_ranks_abandon(&g, &e));
	}
	for (int r = 0; r < g.n; r++) {
		p[r] = (struct tr_piece){ (char *)(uintptr_t)out + sent, out_bytes[r] };
		p[g.n + r] = (struct tr_piece){ (char *)in + received, in_bytes[r] };
		sent += out_bytes[r];
		received += in_bytes[r];
	}
	rc = tell(err, &e, tr_exchange(&g, p, p + g.n, &e));
	free(p);
	return rc;
}

static int group_allreduce(void *arg, uint64_t *x, size_t n, int op, int timeout_ms,
			   struct sheaf_error *err)
{
	struct tr_ranks g = within(arg, timeout_ms);
	struct tr_error e = { .rank = -1 };

	if (is_lost(arg))
		return SHEAF_ELOST;
	return tell(err, &e, tr_allreduce(&g, x, n, op == SHEAF_SUM ? TR_SUM : op == SHEAF_MAX ?
					  TR_MAX : TR_XOR, &e));
}

static int make_group(struct tr_store *s, struct sheaf_error *err)
{
	struct sheaf_group_ops ops = { .size = sizeof(ops), .rank = s->ranks->rank,
		.ranks = s->ranks->n, .allgather = group_allgather,
		.alltoallv = group_alltoallv, .allreduce = group_allreduce, .arg = s };

	return sheaf_group_new(&s->group, &ops, err);
}

int tr_store_open(struct tr_store **out, const struct tr_store_opts *o, struct tr_ranks *ranks,
		  struct tr_error *err)
{
	struct sheaf_retention keep = { .size = sizeof(keep), .keep_last = (int32_t)o->keep_last };
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = ranks->timeout_ms,
		.flags = SHEAF_RUN_CREATE, .log = o->log, .arg = o->arg, .retention = &keep };
	struct tr_store *s = calloc(1, sizeof(*s));
	struct sheaf_error e;
	int rc;

	if (!s) {
		tr_fail(err, TR_ENOMEM, "no memory to open the run");
		return tr_ranks_abandon(ranks, err);
	}
	s->ranks = ranks;
	s->rewind_to = -1;
	s->run_dir = strdup(o->run);
	rc = s->run_dir ? pass(err, &e, make_group(s, &e)) :
		tr_fail(err, TR_ENOMEM, "no memory to open the run");
	if (rc == 0)
		rc = pass(err, &e, sheaf_run_open(&s->run, o->run, s->group, &opts, &e));
	if (rc < 0) {
		tr_store_close(s, rc == TR_ELOST);
		return rc;
	}
	*out = s;
	return 0;
}

void tr_store_close(struct tr_store *s, int lost)
{
	if (!s)
		return;
	s->lost = lost;
	sheaf_checkpoint_close(s->found);
	sheaf_save_free(s->save);
	sheaf_run_close(s->other);
	sheaf_run_close(s->run);
	sheaf_state_free(s->state);
	sheaf_state_free(s->load);
	sheaf_group_free(s->group);
	free(s->slice);
	free(s->run_dir);
	free(s);
}

/* Sets *own to whether `dir` is the directory of the run, perhaps by another path. EINVAL: that is
 * so on some ranks only. */
static int is_own_run(const struct tr_store *s, const char *dir, int *own, struct tr_error *err)
{
	struct stat a, b;
	uint64_t x[2];
	int rc;

	*own = stat(dir, &a) == 0 && stat(s->run_dir, &b) == 0 && a.st_dev == b.st_dev &&
		a.st_ino == b.st_ino;
	x[0] = (uint64_t)*own;
	x[1] = !*own;
	rc = tr_allreduce(s->ranks, x, 2, TR_MAX, err);
	if (rc == 0 && x[0] && x[1])
		rc = tr_fail(err, TR_EINVAL, "resume: %s is the run itself on some ranks only; "
			     "use a path that means the same on all of them", dir);
	return rc;
}

/* Opens the checkpoint of "RUN@STEP". */
static int open_named(struct tr_store *s, const char *resume, int rewind, struct tr_error *err)
{
	const char *at = strrchr(resume, '@');
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms,
				   .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = s->run;
	struct sheaf_error e;
	char dir[4096], *end;
	long long n;
	int own, rc;

	n = at ? strtoll(at + 1, &end, 10) : -1;
	if (!at || n < 0 || at[1] == 0 || *end || at == resume || at - resume >= 4096)
		return tr_fail(err, TR_EINVAL, "resume: it must be auto, none or RUN@STEP, not "
			       "'%s'", resume);
	snprintf(dir, sizeof(dir), "%.*s", (int)(at - resume), resume);
	rc = is_own_run(s, dir, &own, err);
	if (rc == 0 && !own && rewind)
		rc = tr_fail(err, TR_EINVAL, "rewind: %s is another run than %s, and a training "
			     "rewinds its own run only; leave rewind out", dir, s->run_dir);
	if (rc == 0 && !own) {
		rc = pass(err, &e, sheaf_run_open(&s->other, dir, s->group, &opts, &e));
		run = s->other;
	}
	if (rc == 0 && rewind)
		s->rewind_to = n;
	if (rc < 0)
		return rc;
	snprintf(s->name, sizeof(s->name), "%s@%lld", dir, n);
	return pass(err, &e, sheaf_checkpoint_open(&s->found, run, n, &e));
}

static int note(const struct tr_store *s, const char *key, uint64_t *x, struct tr_error *err)
{
	const char *text = sheaf_checkpoint_note(s->found, key);
	char *end;

	if (text)
		*x = strtoull(text, &end, 10);
	if (!text || !*text || *end)
		return tr_fail(err, TR_EFORMAT, "%s has no note %s: it was not saved by "
			       "sheaf-train; use init model to begin with its weights", s->name,
			       key);
	return 0;
}

enum { NOTES = 8, NOTES_NEEDED = 5 };
static const char *const keys[NOTES] = { "train.consumed_samples", "train.tokens", "train.seed",
	"train.virtual", "adam.step", "train.data_tokens", "train.data_hash", "train.virtual_tp" };

static int read_notes(const struct tr_store *s, struct tr_progress *p, struct tr_error *err)
{
	uint64_t x[NOTES] = { 0 };

	for (int i = 0; i < NOTES; i++) {
		int rc = i < NOTES_NEEDED || sheaf_checkpoint_note(s->found, keys[i]) ?
			note(s, keys[i], &x[i], err) : 0;

		if (rc < 0)
			return rc;
	}
	*p = (struct tr_progress){ .step = sheaf_checkpoint_number(s->found),
		.consumed = (int64_t)x[0], .tokens = (int64_t)x[1], .seed = x[2],
		.virtual_dp = (int64_t)x[3], .adam_step = (int64_t)x[4],
		.data_tokens = (int64_t)x[5], .data_hash = x[6], .virtual_tp = (int64_t)x[7] };
	return 0;
}

static int see_newest(void *arg, const struct sheaf_item *item)
{
	int64_t *newest = arg;

	if (item->state == SHEAF_ITEM_COMMITTED && item->mark != SHEAF_MARK_BAD &&
	    item->step > *newest)
		*newest = item->step;
	return 0;
}

/* Fails if the run has a newer step than the training begins with. The library would refuse to save
 * an older one, but only at the first save. */
static int check_newest(const struct tr_store *s, int64_t step, struct tr_error *err)
{
	struct sheaf_error e;
	int64_t newest = -1;
	int rc = pass(err, &e, sheaf_run_list(s->run, see_newest, &newest, &e));

	if (rc == 0 && newest > step && s->rewind_to < 0)
		rc = tr_fail(err, TR_EINVAL, "%s has step %" PRId64 ", and the training begins "
			     "with step %" PRId64 "; use resume auto, another run, or resume "
			     "RUN@STEP with rewind", s->run_dir, newest, step);
	return rc;
}

/* It is no error if the checkpoint has no such file. It is one if the file is listed but cannot be
 * read. */
int tr_store_file(struct tr_store *s, const char *name, const char **text, size_t *n,
		  struct tr_error *err)
{
	const void *bytes = NULL;
	const char *file;
	struct sheaf_error e;
	uint64_t size;
	int rc = 0;

	for (size_t i = 0; rc == 0; i++) {
		rc = sheaf_checkpoint_file_at(s->found, i, &file, &size, &e);
		if (rc == 0 && strcmp(file, name) == 0) {
			rc = sheaf_checkpoint_file(s->found, name, &bytes, n, &e);
			break;
		}
	}
	*text = rc == 0 ? bytes : NULL;
	return rc == SHEAF_EEND ? 0 : pass(err, &e, rc);
}

int tr_store_find(struct tr_store *s, const char *resume, int rewind, struct tr_progress *p,
		  const char **config, size_t *n, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	*p = (struct tr_progress){ .step = 0 };
	*config = NULL;
	if (strcmp(resume, "none") == 0)
		return check_newest(s, 0, err);
	if (strcmp(resume, "auto") == 0) {
		rc = sheaf_checkpoint_open(&s->found, s->run, SHEAF_LATEST, &e);
		if (rc == SHEAF_ENOENT)
			return check_newest(s, 0, err);
		rc = pass(err, &e, rc);
		if (rc == 0)
			snprintf(s->name, sizeof(s->name), "%s@%" PRId64, s->run_dir,
				 sheaf_checkpoint_number(s->found));
	} else {
		rc = open_named(s, resume, rewind, err);
	}
	if (rc == 0)
		rc = read_notes(s, p, err);
	if (rc == 0)
		rc = check_newest(s, p->step, err);
	return rc == 0 ? tr_store_file(s, config_file, config, n, err) : rc;
}

int tr_store_is_other(const struct tr_store *s)
{
	return s->other != NULL;
}

/* Fills the state from the checkpoint. If that has no masters, they are converted from the
 * model. */
static int load_state(struct tr_store *s, uint64_t flags, struct sheaf_error *err)
{
	return sheaf_checkpoint_load(s->found, s->load ? s->load : s->state,
				     flags | SHEAF_LOAD_DERIVE, NULL, err);
}

int tr_store_rewind(struct tr_store *s, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	if (s->rewind_to < 0)
		return 0;
	/* A dry load checks the names, shapes and types of all tensors, and reads none. */
	rc = load_state(s, SHEAF_LOAD_DRY, &e);
	if (rc == 0)
		rc = sheaf_run_rewind(s->run, s->rewind_to, &e);
	return pass(err, &e, rc);
}

const char *tr_store_found(const struct tr_store *s)
{
	return s->name;
}

/* ---- the state ---- */

/* Adds the box of a parameter.
 * own    which items of the flat buffer of weights this rank has of it
 * slice  its flags and type, and its memory: the first of these items */
static int add_tensor(struct sheaf_state *state, const struct tr_param *p, const char *family,
		      const char *suffix, const struct tr_span *own, struct sheaf_slice slice,
		      struct sheaf_error *err)
{
	char name[160];

	snprintf(name, sizeof(name), "%s%s", p->name, suffix);
	slice.size = sizeof(slice);
	slice.family = family;
	slice.name = name;
	slice.ndim = p->ndim;
	if (own->to - own->from < p->items) {
		slice.flags |= SHEAF_SLICE_FLAT;
		slice.flat_start = own->from - p->offset;
		slice.flat_count = own->to - own->from;
	}
	for (int d = 0; d < p->ndim; d++) {
		slice.shape[d] = p->shape[d];
		slice.start[d] = p->start[d];
		slice.count[d] = p->count[d];
	}
	return sheaf_state_add(state, &slice, err);
}

/* Adds a slice of a parameter. Returns its number in the state, or -1 if there is none.
 * weights  the family of the weights that are fp32 */
static int add_kind(struct sheaf_state *state, struct tr_trainer *t, const struct tr_param *p,
		    int kind, const char *weights, struct sheaf_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	int muon = t->muon && p->matrix;
	const char *suffix = kind == MASTER ? "" : muon ? "/velocity_0" : kind == MOMENT1 ?
		"/moment1_0" : "/moment2_0";
	struct sheaf_slice slice = { .dtype = SHEAF_F32 };
	struct tr_span all, own;
	void *w = tr_model_weights(t->model);
	int64_t at;
	float *fp32;

	if (p->tied_to >= 0)
		return -1;
	fp32 = tr_adamw_of(&t->adamw, p, w, &own, &at);
	tr_shares_of(NULL, p, &all);
	if (kind == WEIGHT && t->adamw.master) {
		slice.dtype = SHEAF_BF16;
		slice.flags = SHEAF_SLICE_SAVE_ONLY;    /* tr_trainer_spread makes them */
	}
	slice.data = kind == WEIGHT ? tr_item(t->be->type, w, p->offset) : kind == MASTER ? fp32 :
		kind == MOMENT1 ? t->adamw.m + at :
		tr_adamw_second(&t->adamw, (int)(p - reg->param), at);
	if (kind == WEIGHT)
		return add_tensor(state, p, t->adamw.master ? "model" : weights, "", &all, slice,
				  err);
	if (own.from == own.to || (kind == MASTER && !t->adamw.master) ||
	    (kind == MOMENT2 && muon))
		return -1;
	/* Moments and masters in a file are not copied to memory for a save. */
	slice.flags |= t->arenas.lent[TR_OPTIMIZER] ? SHEAF_SLICE_IN_PLACE : 0;
	return add_tensor(state, p, kind == MASTER ? "master_weights" : "optimizer", suffix, &own,
			  slice, err);
}

/* Adds all slices. s->slice receives their numbers. */
static int add_all(struct tr_store *s, struct sheaf_state *state, struct tr_trainer *t,
		   const char *weights, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	struct sheaf_error e;

	for (int i = 0; i < reg->n * KINDS; i++) {
		s->slice[i] = add_kind(state, t, &reg->param[i / KINDS], i % KINDS, weights, &e);
		if (s->slice[i] < -1)
			return pass(err, &e, s->slice[i]);
	}
	return 0;
}

/* Returns whether the checkpoint was trained with masters. */
static int has_masters(struct tr_store *s, const struct tr_registry *reg)
{
	struct sheaf_tensor tensor = { .size = sizeof(tensor) };

	return s->found && sheaf_checkpoint_find(s->found, "master_weights", reg->param[0].name,
						 &tensor, NULL) == 0;
}

int tr_store_describe(struct tr_store *s, struct tr_trainer *t, struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	int rc = 0;

	s->state = sheaf_state_new();
	s->slice = malloc((size_t)reg->n * KINDS * sizeof(*s->slice));
	if (!s->state || !s->slice)
		return tr_fail(err, TR_ENOMEM, "no memory to describe the state");
	/* The checkpoint has fp32 masters, and this run has fp32 weights. They are loaded from the
	 * masters, because family model of the checkpoint has them rounded to bf16. */
	if (has_masters(s, reg) && !t->adamw.master) {
		s->load = sheaf_state_new();
		rc = s->load ? add_all(s, s->load, t, "master_weights", err) :
			tr_fail(err, TR_ENOMEM, "no memory to describe the state");
	}
	return rc == 0 ? add_all(s, s->state, t, "model", err) : rc;
}

int tr_store_load(struct tr_store *s, struct tr_error *err)
{
	struct sheaf_error e;
	int rc = pass(err, &e, load_state(s, 0, &e));

	sheaf_checkpoint_close(s->found);
	s->found = NULL;
	sheaf_run_close(s->other);
	s->other = NULL;
	return rc;
}

int tr_store_import(struct tr_store *s, struct tr_trainer *t, const char *dir,
		    struct tr_error *err)
{
	const struct tr_registry *reg = tr_model_registry(t->model);
	struct sheaf_opts opts = { .size = sizeof(opts), .timeout_ms = s->ranks->timeout_ms };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_checkpoint *from = NULL;
	struct sheaf_error e;
	int rc = sheaf_checkpoint_open_path(&from, dir, s->group, &opts, &e);

	for (int i = 0; i < reg->n; i++) {
		const struct tr_param *p = &reg->param[i];
		struct sheaf_slice slice = { .dtype = SHEAF_F32 };
		struct tr_span own;
		int64_t at;

		if (p->tied_to >= 0)
			continue;
		slice.data = tr_adamw_of(&t->adamw, p, tr_model_weights(t->model), &own, &at);
		if (own.from < own.to)
			add_tensor(state, p, "model", "", &own, slice, NULL);
	}
	if (rc == 0)
		rc = sheaf_checkpoint_load(from, state, SHEAF_LOAD_CONVERT, NULL, &e);
	rc = pass(err, &e, rc);
	sheaf_checkpoint_close(from);
	sheaf_state_free(state);
	return rc;
}

/* ---- saves ---- */

static void add_notes(struct tr_store *s, const struct tr_progress *p)
{
	const uint64_t x[NOTES] = { (uint64_t)p->consumed, (uint64_t)p->tokens, p->seed,
		(uint64_t)p->virtual_dp, (uint64_t)p->adam_step, (uint64_t)p->data_tokens,
		p->data_hash, (uint64_t)p->virtual_tp };
	char text[24];

	/* All ranks add the same notes, because otherwise the commit fails. It also fails if one of
	 * these calls did, so their results are not checked. */
	for (int i = 0; i < NOTES; i++) {
		snprintf(text, sizeof(text), "%" PRIu64, x[i]);
		sheaf_save_note(s->save, keys[i], text, NULL);
	}
}

/* Returns the code of a save that has failed: ENOSPC if the disk is full for one of the ranks. All
 * ranks have the same code of the library, but not the same errno. */
static int save_failed(struct tr_store *s, struct tr_error *err, const struct sheaf_error *e,
		       int code)
{
	uint64_t full = e->sys == ENOSPC || e->sys == EDQUOT;
	int rc;

	if (code != SHEAF_EIO)
		return pass(err, e, code);
	rc = tr_allreduce(s->ranks, &full, 1, TR_MAX, err);
	if (rc < 0)
		return rc;
	code = pass(err, e, code);
	if (full && err)
		err->code = TR_ENOSPC;
	return full ? TR_ENOSPC : code;
}

int tr_store_begin(struct tr_store *s, const struct tr_progress *p,
		   const struct tr_attachment *files, int files_n, struct tr_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY };
	struct sheaf_error e;
	int rc = 0;

	if (s->save)
		return tr_fail(err, TR_EBUG, "a save began before the last one was committed");
	rc = sheaf_save_begin(&s->save, s->run, p->step, s->state, &opts, &e);
	if (rc < 0)
		return save_failed(s, err, &e, rc);
	s->save_step = p->step;
	add_notes(s, p);
	for (int i = 0; rc == 0 && i < files_n; i++)
		rc = pass(err, &e, sheaf_save_attach(s->save, files[i].file, files[i].bytes,
						     files[i].n, &e));
	rc = tr_agree(s->ranks, rc, err);
	/* A file could not be attached, so the save must not be committed. */
	if (rc < 0) {
		sheaf_save_free(s->save);
		s->save = NULL;
	}
	return rc;
}

static int wait_gate(void *arg, int param, struct tr_error *err)
{
	struct tr_store *s = arg;
	struct sheaf_error e;
	int rc = 0;

	for (int kind = 0; s->save && rc == 0 && kind < KINDS; kind++) {
		int slice = s->slice[param * KINDS + kind];

		if (slice >= 0)
			rc = pass(err, &e, sheaf_save_wait_copied(s->save, slice, -1, &e));
	}
	/* A save that has failed does not read the memory any more, so the update goes on. All
	 * ranks learn of the failure when they continue the save. */
	return rc == TR_EINVAL || rc == TR_EBUG || rc == TR_ELOST ? rc : 0;
}

struct tr_gate tr_store_gate(struct tr_store *s)
{
	return (struct tr_gate){ wait_gate, s };
}

int tr_store_advance(struct tr_store *s, int wait, int64_t *step, struct tr_error *err)
{
	struct sheaf_error e;
	int rc;

	*step = 0;
	if (!s->save)
		return 0;
	rc = wait ? sheaf_save_commit(s->save, -1, &e) : sheaf_save_advance(s->save, 0, &e);
	if (rc == SHEAF_EAGAIN && !wait)
		return 0;
	if (rc == 0)
		*step = s->save_step;
	sheaf_save_free(s->save);
	s->save = NULL;
	return rc < 0 ? save_failed(s, err, &e, rc) : 0;
}
