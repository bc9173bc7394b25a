/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what each slice of a state is filled from. Whatever cannot be filled is found here, on
 * every rank, before a byte of the caller's memory is touched. The rest of a load is led by
 * load_fill.c.
 *
 * A load also sets the step that the next save follows (remember). And it is counted as a try
 * before it reads anything (count_try): if several jobs have loaded a step and none of them has
 * saved a later one, the step probably crashed them, and the search for the latest step passes over
 * it. */
#include "load.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "averages.h"
#include "block_pass.h"
#include "err.h"
#include "flags.h"
#include "list.h"
#include "load_aliased.h"
#include "load_asked.h"
#include "load_common.h"
#include "load_fill.h"
#include "load_report.h"
#include "memory_dir.h"
#include "memory_tier.h"
#include "prune_task.h"
#include "run_env.h"
#include "schema.h"
#include "state.h"
#include "step.h"
#include "step_files.h"
#include "step_lookup.h"
#include "step_open.h"
#include "tries.h"
#include "work.h"

/* Decides under which name the bytes of a rank's stream (RNG state and the like) are stored in this
 * step, and writes it to `name`. If the number of ranks is the same as at the save, it is the
 * stream's own name. Otherwise the rule that was saved with the stream decides: "strict": ELAYOUT;
 * "drop": *source becomes SHF_KEEP; "modulo": the stream of rank r % n, n being the number of ranks
 * that saved. */
static int stream_source(const struct shf_load *ld, const struct shf_slice *s, char name[96],
                         enum shf_source *source, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	const struct shf_manifest *m = &ld->step->manifest;
	int64_t fam = shf_layout_family(l, "ranks");
	const char *rule = "strict";
	char key[80], msg[200];
	uint32_t saved = 0;     /* number of ranks that saved the step */
	size_t n = strlen(s->stream.stream);

	/* Counts the tensors <stream>/<rank> of the stream. */
	for (uint32_t i = 0; fam >= 0 && i < l->families[fam].tensors_n; i++) {
		const char *at = l->tensors[l->families[fam].first_tensor + i].name;

		saved += strncmp(at, s->stream.stream, n) == 0 && at[n] == '/' &&
			 !strchr(at + n + 1, '/');
	}
	snprintf(name, 96, "%s", s->name);
	/* A rank may have saved without this stream, so the count may be too small; the number in
	 * the manifest is right. */
	if (saved && m->ranks > 0 && m->ranks <= INT32_MAX)
		saved = (uint32_t)m->ranks;
	if (saved == 0 || (uint32_t)s->stream.ranks == saved)
		return 0;
	snprintf(key, sizeof(key), "ranks.%s", s->stream.stream);
	for (size_t i = 0; i < m->notes_n; i++)
		if (strcmp(m->notes[i].key, key) == 0)
			rule = m->notes[i].value;
	/* An unknown rule, of a newer version, is treated as "strict": a wrong guess might give
	 * several ranks the same random numbers. */
	if (strcmp(rule, "drop") && strcmp(rule, "modulo"))
		return shf_fail(err, SHEAF_ELAYOUT,
				"stream %s: saved by %u ranks, loaded by %d, and its rule is "
				"strict (put ranks/%s/* into opts.ignore to load the rest)",
				s->stream.stream, saved, s->stream.ranks, s->stream.stream);
	if (strcmp(rule, "drop") == 0)
		*source = SHF_KEEP;
	else
		snprintf(name, 96, "%s/%u", s->stream.stream, (uint32_t)s->stream.rank % saved);
	snprintf(msg, sizeof(msg), "saved by %u ranks, loaded by %d: %s", saved, s->stream.ranks,
		 rule);
	shf_load_report_item(&ld->report, SHEAF_REPORT_STREAM, "ranks", s->name, msg);
	return 0;
}

/* Returns whether the slice and the stored tensor have the same shape, in items. */
static bool same_items(const struct shf_slice *s, const struct shf_lt_tensor *t)
{
	return !t->wide && s->items.ndim == t->items.ndim &&
	       memcmp(s->items.dim, t->items.dim, sizeof(int64_t) * (size_t)t->items.ndim) == 0;
}

/* Counts the slice under `count`, and reports it to the caller's callback as `kind`. */
static void report_slice(struct shf_load *ld, enum shf_tensor_count_kind count, int32_t kind,
                         const struct shf_slice *s, const char *msg)
{
	shf_tensor_counts_add(&ld->tally, count, s->family, s->name, 0);
	shf_load_report_item(&ld->report, kind, s->family, s->name, msg);
}

/* Returns whether rounding this master gives exactly the weight that was trained. False for types
 * below 16 bits, because their weights may have a scale stored beside them; and for a weight as
 * wide as its master, because it may have had another master. */
static bool is_rounded_master(const struct shf_slice *s, const struct shf_lt_tensor *master)
{
	return (s->dtype == SHEAF_BF16 || s->dtype == SHEAF_F16) && s->data_dtype == s->dtype &&
	       master->dtype == SHEAF_F32;
}

/* Finds another stored tensor for a slice whose own is not stored, if the caller allows it
 * (SHEAF_LOAD_DERIVE): a master weight is cast from the weight of the model, a weight is rounded
 * from its master. Returns false if no such tensor is stored; else fills in *t. A tied weight has
 * no tensor of its own, but the weight it is tied to may have a master. */
static bool derive(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t)
{
	const struct shf_layout *l = &ld->step->layout;
	bool down = strcmp(s->family, "model") == 0;
	const char *from = down ? "master_weights" : "model", *tied;
	const char *how = down ? "rounded from its master" : "cast from the model";
	struct sheaf_error own;
	int64_t i = -1;

	if (!(ld->flags & SHEAF_LOAD_DERIVE) || (!down && strcmp(s->family, "master_weights")))
		return false;
	/* A master is cast from the model. But if its weight is tied, the step may have a master
	 * under the name that the weight is tied to, and that one is exact. */
	if (!down && (tied = shf_layout_tied_to(l, from, s->stored)))
		i = shf_layout_find(l, from = s->family, tied);
	if (i >= 0)
		how = "the master of the weight that it is tied to";
	else
		i = shf_load_find_stored(l, from = down ? from : "model", s->stored, s);
	if (i < 0 || (down && !is_rounded_master(s, &l->tensors[i])) ||
	    shf_load_slice_adapt(&t->slice, s, &l->tensors[i], from, true, &own) < 0)
		return false;
	t->tensor = (uint32_t)i;
	report_slice(ld, SHF_COUNT_DERIVED, SHEAF_REPORT_DERIVED, s, how);
	return true;
}

/* Returns whether the slice is an average of an optional weight that the step does not have either.
 * The source of the weight is decided by now, because averages come after their weights in a
 * state. */
static bool is_of_absent(const struct shf_load *ld, const struct shf_slice *s)
{
	uint32_t source = shf_ema_source(ld->state, (size_t)(s - ld->state->slices));

	return ld->state->slices[source].flags & SHEAF_SLICE_OPTIONAL &&
	       ld->targets[source].source == SHF_KEEP;
}

/* What helps if the slice's tensor is absent. To keep what is in memory is the last resort: a
 * trainer would go on with values that no checkpoint has. */
static const char *absent_remedy(const struct shf_slice *s)
{
	if (strcmp(s->family, "optimizer") == 0)
		return "SHEAF_LOAD_ZERO fills absent optimizer state with zeros";
	if (strcmp(s->family, "master_weights") == 0)
		return "SHEAF_LOAD_DERIVE makes master weights from the model";
	if (strcmp(s->family, "model") == 0 &&
	    (s->dtype == SHEAF_BF16 || s->dtype == SHEAF_F16))
		return "check its name, or see whether the checkpoint has master weights: "
		       "SHEAF_LOAD_DERIVE makes the model from them";
	return "check its name, or set SHEAF_SLICE_OPTIONAL if it may be absent";
}

/* Decides for a slice whose tensor is not stored: it is derived, zeroed, kept, or the load fails
 * with ELAYOUT. */
static int decide_absent(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t,
                         struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;

	if (derive(ld, s, t))
		return 0;
	if (ld->flags & SHEAF_LOAD_ZERO && strcmp(s->family, "optimizer") == 0) {
		t->source = SHF_FROM_ZERO;
		report_slice(ld, SHF_COUNT_ZEROED, SHEAF_REPORT_ZEROED, s, "filled with zeros");
		return 0;
	}
	t->source = SHF_KEEP;
	report_slice(ld, SHF_COUNT_MISSING, SHEAF_REPORT_MISSING, s, "not in this checkpoint");
	/* If the step has averages of a set at all, it must have all of them, except those of
	 * optional weights that it does not have. */
	if (ld->flags & SHEAF_LOAD_LENIENT ||
	    (s->owned ? shf_layout_family(l, s->family) < 0 || is_of_absent(ld, s)
	              : (s->flags & SHEAF_SLICE_OPTIONAL) != 0))
		return 0;
	return shf_fail(err, SHEAF_ELAYOUT, "%s: no tensor %s/%s; %s", ld->step->path, s->family,
	                s->stored, absent_remedy(s));
}

/* Decides what one slice is filled from, and fills in *t. The order matters: what the caller
 * excluded is not looked up at all; a stream may be stored under another name, so that is found
 * before the lookup; shape and type are compared last, with the tensor that was found. */
static int decide_source(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t,
                         struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	char stream[96];
	const char *name = s->stored;
	int64_t i;
	int rc = 0;

	t->slice = *s;
	if (s->flags & SHEAF_SLICE_SAVE_ONLY ||
	    shf_ignored(ld->step->run->opts.ignore, s->family, s->name)) {
		t->source = SHF_KEEP;
		report_slice(ld, SHF_COUNT_IGNORED, SHEAF_REPORT_IGNORED, s, s->flags &
		             SHEAF_SLICE_SAVE_ONLY
		             ? "SHEAF_SLICE_SAVE_ONLY" : "ignored by pattern");
		return 0;
	}
	if (s->stream.stream) {
		rc = stream_source(ld, s, stream, &t->source, err);
		name = stream;
	}
	if (rc < 0 || t->source == SHF_KEEP)
		return rc;
	i = shf_load_find_stored(l, s->family, name, s);
	if (i < 0)
		return decide_absent(ld, s, t, err);
	t->tensor = (uint32_t)i;
	if (ld->flags & SHEAF_LOAD_LENIENT && !same_items(s, &l->tensors[i])) {
		t->source = SHF_KEEP;
		report_slice(ld, SHF_COUNT_MISMATCHED, SHEAF_REPORT_MISMATCHED, s,
		             "stored with another shape");
		return 0;
	}
	rc = shf_load_slice_adapt(&t->slice, s, &l->tensors[i], s->family,
	                          ld->flags & SHEAF_LOAD_CONVERT, err);
	if (rc < 0)
		return rc;
	shf_tensor_counts_add(&ld->tally, SHF_COUNT_LOADED, s->family, name, l->tensors[i].bytes);
	if (t->slice.dtype != s->dtype)
		report_slice(ld, SHF_COUNT_CONVERTED, SHEAF_REPORT_CONVERTED, s,
		             "stored as another type");
	return 0;
}

/* Decides for all slices. It goes on after a failure, so that one message can name up to a dozen
 * missing tensors; otherwise a user would have to start the job again for each of them. */
static int decide_all(struct shf_load *ld, struct sheaf_error *err)
{
	struct sheaf_error first = { 0 }, own;
	char more[400] = "";
	size_t at = 0, absent = 0;
	int rc = 0;

	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->state->slices[i];
		int r = decide_source(ld, s, &ld->targets[i], &own);

		if (r < 0 && rc == 0) {
			first = own;
			rc = r;
		/* The message has the first failure in full, and the names of the others. */
		} else if (r == SHEAF_ELAYOUT && absent++ < 11 && at < sizeof(more)) {
			at += (size_t)snprintf(more + at, sizeof(more) - at, ", %s/%s", s->family,
					       s->name);
		}
	}
	if (rc < 0 && absent)
		shf_fail(err, rc, "%.300s; also%s%s", first.msg, more + 1,
			 absent > 11 ? ", ..." : "");
	else if (rc < 0 && err)
		*err = first;
	return rc;
}

/* Finds tensors that no rank asked for, in families of which some rank has slices. One rank reports
 * each. With SHEAF_LOAD_STRICT that is ELAYOUT, and the ranks agree on it, because their
 * opts.ignore may differ. [collective] */
static int find_unexpected(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	struct shf_team *team = &ld->step->run->team;
	int rc = shf_load_asked_unite(ld, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < l->tensors_n && rc == 0; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];
		const char *family = l->families[t->family].name;

		if (shf_load_asked_has(ld, i) || !shf_load_asked_family(ld, t->family) ||
		    strcmp(family, "ranks") == 0 ||
		    shf_ignored(ld->step->run->opts.ignore, family, t->name))
			continue;
		if (i % (size_t)team->ranks == (size_t)team->rank) {
			shf_tensor_counts_add(&ld->tally, SHF_COUNT_UNEXPECTED, family, t->name, 0);
			shf_load_report_item(&ld->report, SHEAF_REPORT_UNEXPECTED, family, t->name,
			                     "in the checkpoint, not in the state");
		}
		if (ld->flags & SHEAF_LOAD_STRICT)
			rc = shf_fail(err, SHEAF_ELAYOUT,
				      "%s: %s/%s is stored, but no rank has a slice of it (load "
				      "without SHEAF_LOAD_STRICT, or put it into opts.ignore)",
				      ld->step->path,
				      family, t->name);
	}
	return ld->flags & SHEAF_LOAD_STRICT ? shf_agree(team, rc, err) : rc;
}

/* Sets the averages of the state after a load. If the step had only some slices of an average, the
 * others start again from the weights at the next save. The ranks need not agree on this: ranks
 * hold slices of the same tensors, and which tensors the step has is the same for all. */
static void emas_loaded(const struct shf_load *ld, struct sheaf_state *state)
{
	shf_emas_loaded(state, &ld->step->manifest, ld->emas_filled);
	for (size_t k = 0; k < state->emas_n; k++) {
		struct shf_ema *e = &state->emas[k];

		for (size_t i = 0; i < e->n; i++)
			e->anew[i] = ld->emas_filled[k] &&
				     ld->targets[e->first + i].source != SHF_FROM_STEP;
	}
}

/* For a load with SHEAF_LOAD_DRY, and for the beginning of a load by slices. In other loads the
 * numbers of the report are sent together with the plan and with the digests; these have neither.
 */
int shf_load_report_decided(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	uint64_t x[SHF_LOAD_REPORT_WORDS];
	int rc = shf_tensor_counts_exchange(&ld->tally, team, 0, err);

	if (rc < 0)
		return rc;
	shf_load_report_put(ld, x);
	rc = shf_allreduce(team, x, SHF_LOAD_REPORT_WORDS, SHEAF_SUM, err);
	if (rc == 0)
		shf_load_report_take(ld, x);
	return rc;
}

/* Refuses to keep slices that a damaged step has begun to fill (SHEAF_LOAD_FALLBACK, note_filled):
 * ELAYOUT. Averages are exempt: those that are kept start again from the weights, so what their
 * memory holds does not matter. [local] */
static int check_kept(const struct shf_load *ld, struct sheaf_error *err)
{
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->state->slices[i];
		int64_t by = ld->step->filled_by[i];

		if (by >= 0 && ld->targets[i].source == SHF_KEEP && !s->owned)
			return shf_fail(err, SHEAF_ELAYOUT, "%.120s: has no tensor %s/%.120s, and "
			                "its memory was overwritten by step %" PRId64 ", which is "
			                "damaged; rewind the run to step %" PRId64 " and start the "
			                "job again", ld->step->path, s->family, s->name, by,
			                ld->step->number);
	}
	return 0;
}

/* Notes which slices this step is about to overwrite. If it turns out to be damaged and an older
 * step is tried next, these slices must not be kept (check_kept). */
static void note_filled(const struct shf_load *ld)
{
	for (size_t i = 0; i < ld->state->n; i++)
		if (ld->targets[i].source != SHF_KEEP && !ld->targets[i].slice.empty)
			ld->step->filled_by[i] = ld->step->number;
}

/* Does all of a load that can fail on a single rank before the ranks communicate: checks the
 * arguments, decides for all slices, allocates, and lists what this rank wants. [local] */
static int prepare_load(struct shf_load *ld, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = ld->step;
	struct sheaf_state *state = ld->state;
	/* The buffers of a load by slices come with the slices. */
	int rc = shf_state_ready(state, ld->prepare && ld->call == SHF_CALL_LOAD, err);

	if (rc == 0)
		rc = shf_flags_check(ld->flags, SHF_LOAD_FLAGS, "load", err);
	if (rc < 0)
		return rc;
	if (step->cat_rc < 0) {
		if (err)
			*err = step->cat_err;
		return step->cat_rc;
	}
	/* A lazy save copies from the caller's memory in the background. Loading over what it has
	 * not copied would mix two steps in its files. */
	for (struct shf_reader *r = state->readers; r; r = r->next)
		if (r->reads(r, SHF_EVERY_SLICE))
			return shf_fail(err, SHEAF_EINVAL, "the save of step %" PRId64 " has not "
			                "copied this state's memory yet; wait with "
			                "sheaf_save_wait_copied before loading into it", r->step);
	ld->targets = shf_zalloc(state->n, sizeof(*ld->targets));
	if (!ld->targets || shf_tensor_counts_init(&ld->tally, step->run->team.ranks) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", state->n);
	rc = decide_all(ld, err);
	if (rc == 0)
		rc = shf_load_asked_new(ld, err);
	if (rc == 0 && step->filled_by)
		rc = check_kept(ld, err);
	if (rc == 0)
		rc = shf_load_check_aliased(ld, err);
	return rc == 0 && ld->prepare ? ld->prepare(ld, err) : rc;
}

bool shf_load_has_twin(const struct sheaf_checkpoint *step)
{
	const struct shf_base *base = &step->run->lineage.base;

	return step->run->lineage.memory_of && base->step == step->number &&
	       strcmp(base->session, step->manifest.session) == 0;
}

/* Sets the parent of the next save after a load from memory. If the step is on disk as well, the
 * run has gone back to it, and newer steps in memory count no more. Otherwise the parent is the
 * newest step that the disk had when this one was opened; if memory has a newer step than the one
 * loaded, the caller must rewind before it saves. */
static void remember_in_memory(const struct sheaf_checkpoint *step)
{
	const struct shf_base *base = &step->run->lineage.base;
	struct sheaf_run *run = step->run->lineage.memory_of;
	int64_t newest = shf_memory_tier_newest(run);
	bool brought = run->lineage.parent == step->number &&
	               strcmp(run->lineage.parent_session, step->manifest.session) == 0;

	/* The parent is what the disk ended with when the step was opened. But if this handle has
	 * written the step itself to disk since (brought), the parent is the step itself. A prune
	 * never deletes the parent. */
	if (!brought) {
		run->lineage.parent = base->step;
		memcpy(run->lineage.parent_session, base->session, sizeof(base->session));
	}
	run->lineage.loaded = run->lineage.parent;
	if (brought || shf_load_has_twin(step))
		shf_memory_tier_disk_loaded(run, step->number);
	else
		shf_memory_tier_step_loaded(run, step->number, step->manifest.session,
		                            newest > step->number && newest > base->newest
		                            ? newest : base->beyond);
}

/* Sets the parent of the next save after a load: this step. Saves in flight that began earlier see
 * from `loads` that their parent may differ from the parent of later saves. */
static void remember(struct shf_load *ld)
{
	struct sheaf_run *run = ld->step->run;

	if (run->opts.flags & SHEAF_RUN_READONLY)
		return;
	shf_run_that_saves(run)->lineage.loads++;
	if (run->lineage.memory_of)
		remember_in_memory(ld->step);
	if (run->life.foreign)
		return;
	shf_memory_tier_disk_loaded(run, ld->step->number);
	run->lineage.loaded = run->lineage.parent = ld->step->number;
	run->lineage.doubtful = -1;
	memcpy(run->lineage.parent_session, ld->step->manifest.session,
	       sizeof(run->lineage.parent_session));
}

/* Returns whether this is the first load of the step by this handle, and notes it. If a caller
 * fills several states from one step, that is one try. */
static bool is_first_try(const struct sheaf_checkpoint *step)
{
	char *tried = step->run->lineage.memory_of->tier->tried;
	bool first = strcmp(tried, step->manifest.session) != 0;

	memcpy(tried, step->manifest.session, sizeof(step->manifest.session));
	return first;
}

/* Counts one more try of this session to load the step. The count is on disk before any rank reads
 * a byte: rank 0 writes it before it takes part in the plan, and no rank reads before it has a
 * plan. */
static void count_try(const struct sheaf_checkpoint *step)
{
	struct sheaf_run *run = shf_run_that_saves(step->run);
	struct sheaf_error own;
	int n;

	/* A close deletes the tries of its session, so one that is counted after it would stay for
	 * ever. */
	if (run->life.foreign || run->life.closed || run->opts.flags & SHEAF_RUN_READONLY)
		return;
	run->lineage.unsure = true;
	/* If the step is in memory, its cards count the try as well. One rank of each node writes
	 * that count. */
	if (step->run != run && is_first_try(step) && run->place.node_first == run->team.rank)
		shf_view_count_try(step->view, step->run->lineage.base.tries + 1);
	if (run->team.rank == 0) {
		shf_prune_task_finish(run); /* a prune in the background uses the store, and does
		                             * not know yet which step is being loaded */
		n = shf_tries_add(&run->store, step->number, step->manifest.session, &own);
		if (n < 0)
			shf_log(run, 1, "%s: loading step %" PRId64 " could not be recorded as a "
			        "resume attempt: %s",
			        run->store.path, step->number, own.msg);
		else if (n > 1)
			shf_log(run, 1, "%s: step %" PRId64 " is loaded again, after %d job%s "
			        "resumed from it and ended without saving (see "
			        "opts.resume_attempts_max)", run->store.path,
			        step->number, n - 1, n > 2 ? "s" : "");
	}
}

/* Clears the cards of a step that is damaged in memory if the step of the same save is on disk, so
 * that the next load reads the disk. */
static void give_up_load(const struct sheaf_checkpoint *step)
{
	if (shf_load_has_twin(step) && !(step->run->opts.flags & SHEAF_RUN_READONLY))
		shf_view_clear_cards(step->view);
}

/* Appends to the message what the user can do about the damage; rank 0 looks it up. [collective] */
static void add_remedy(const struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct sheaf_run *run = shf_run_that_saves(step->run);
	char text[SHF_REMEDY] = "";
	size_t at;

	if (run->team.rank == 0)
		shf_store_remedy(&run->store, step->number, text);
	if (shf_bcast(&run->team, 0, text, sizeof(text), NULL) < 0 || !err)
		return;
	if (shf_load_has_twin(step))
		snprintf(text, sizeof(text), " (the checkpoint is also on disk: load again%s)",
		         run->opts.flags & SHEAF_RUN_READONLY ? " without opts.memory_tier.agent"
		                                              : "");
	at = strlen(err->msg);
	at = at + strlen(text) < sizeof(err->msg) ? at : sizeof(err->msg) - 1 - strlen(text);
	snprintf(err->msg + at, sizeof(err->msg) - at, "%s", text);
}

/* Ends a load with rc < 0; does nothing if rc is 0. If the step is damaged in memory and is on
 * disk, too, its cards are cleared. If the step was opened as the latest one, the message gets the
 * remedy. [collective] */
static void load_failed(const struct sheaf_checkpoint *step, int rc, struct sheaf_error *err)
{
	if (rc == SHEAF_ECORRUPT)
		give_up_load(step);
	if (step->latest && shf_is_of_step(rc))
		add_remedy(step, err);
}

/* Enters the collective call with rc, the result of prepare_load. Compares flags and averages of
 * the ranks, and sets ld->room to the least staging memory that any rank may use. [collective] */
static int enter_load_call(struct shf_load *ld, int rc, struct sheaf_error *err)
{
	/* Index of each argument in m.x; the marks of averages follow from MARKS on. */
	enum { FLAGS, CHECKED, ROOM, MARKS };
	struct shf_call m = { .kind = ld->call, .handle = ld->step->made };

	_Static_assert(MARKS + SHF_EMAS_MAX <= SHF_CALL_ARGS, "marks travel with the call");
	if (rc == 0) {
		m.x[FLAGS] = ld->flags;
		m.x[CHECKED] = shf_block_pass_sums(ld->step);
		m.x[ROOM] = shf_load_room(ld->step->run);
		shf_emas_mark(ld->state, &m.x[MARKS]);
	}
	rc = shf_call_enter(&ld->step->run->team, &m, rc, err);
	if (rc == 0 && m.lo[FLAGS] != m.hi[FLAGS])
		rc = shf_fail(err, SHEAF_EINVAL, "ranks pass different flags to "
		              "sheaf_checkpoint_load");
	/* One rank would check sums that another one does not, and their results could differ. */
	if (rc == 0 && m.lo[CHECKED] != m.hi[CHECKED])
		rc = shf_fail(err, SHEAF_EINVAL,
		              "%s: some ranks opened it with SHEAF_RUN_UNVERIFIED, others without; "
		              "use the same opts.flags on all ranks", ld->step->path);
	if (rc == 0)
		rc = shf_emas_check(ld->state, &m.hi[MARKS], err);
	ld->room = m.lo[ROOM];
	ld->made = m.number;
	return rc;
}

/* The order matters. Everything that may refuse the load comes before count_try. count_try comes
 * before the first byte is read: if the step crashes the job, it must have been counted. */
int shf_load_enter(struct shf_load *ld, struct sheaf_state *state, int rc, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = ld->step;
	int64_t from = shf_now(step->run);

	ld->disk_from = step->view ? shf_view_disk_bytes(step->view) : 0;
	shf_load_report_passed(&step->passed, &ld->report);
	if (rc == 0)
		rc = shf_step_wake(step, err);
	if (rc == 0 && ld->prepare)
		rc = shf_emas_ready(state, err);
	rc = enter_load_call(ld, rc == 0 ? prepare_load(ld, err) : rc, err);
	if (rc == 0)
		rc = find_unexpected(ld, err);
	ld->report.plan_ns = (uint64_t)(shf_now(step->run) - from);
	if (rc == 0 && ld->prepare)
		count_try(step);
	if (rc == 0 && step->filled_by)
		note_filled(ld);
	return rc;
}

/* shf_step_exclude_reuse comes right after the reading: if the memory that held the step was reused
 * for another step, what looked like damage is reported as EAGAIN. Nothing may act on rc before
 * that. */
int shf_load_leave(struct shf_load *ld, struct sheaf_state *state, int rc, struct sheaf_error *err)
{
	rc = shf_step_exclude_reuse(ld->step, rc, err);
	load_failed(ld->step, rc, err);
	if (rc == 0 && ld->prepare) {
		emas_loaded(ld, state);
		remember(ld);
	}
	return rc;
}

void shf_load_release(struct shf_load *ld)
{
	shf_free(ld->targets);
	shf_load_asked_free(ld);
	shf_buf_release(&ld->tells.bytes);
	shf_free(ld->tells.to);
	shf_holds_release(&ld->holds);
	shf_work_release(&ld->work);
	if (ld->tally.out)
		shf_tensor_counts_release(&ld->tally);
}

int shf_step_load(struct sheaf_checkpoint *step, struct sheaf_state *state, uint64_t flags,
                  struct sheaf_report *report, struct sheaf_error *err)
{
	bool dry = flags & SHEAF_LOAD_DRY;
	struct shf_load ld = { .step = step, .state = state, .flags = flags, .call = SHF_CALL_LOAD,
		.prepare = dry ? NULL : shf_load_fill_prepare };
	int rc;

	if (report) {
		ld.report.item = report->item;
		ld.report.finding = report->finding;
		ld.report.arg = report->arg;
	}
	rc = shf_load_enter(&ld, state, 0, err);
	if (rc == 0 && !dry)
		rc = shf_load_fill(&ld, err);
	rc = shf_load_leave(&ld, state, rc, err);
	if (rc == 0 && dry)
		rc = shf_load_report_decided(&ld, err);
	if (rc == 0 && report) {
		ld.report.size = report->size;
		*report = ld.report;
	}
	shf_load_release(&ld);
	return rc;
}
