/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what each slice of a state is filled from. Whatever cannot be filled is found here, on
 * every rank, before a byte of the caller's memory is touched. The rest of a load is led by
 * load_fill.c.
 *
 * A load also changes what the run goes on from (remember), and is counted while it is under way
 * (count_try): a step that several jobs loaded and none came further from is probably what they
 * failed of, and a search for the latest step passes over it. */
#include "load.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "averages.h"
#include "block_pass.h"
#include "err.h"
#include "list.h"
#include "load_aliased.h"
#include "load_asked.h"
#include "load_common.h"
#include "load_fill.h"
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
 * step. As long as the number of ranks is the same, it is the stream's own name. Otherwise the rule
 * that was saved with the stream counts: "strict" refuses, "drop" keeps what the caller has,
 * "modulo" takes the stream of rank mod the number that saved. */
static int stream_source(const struct shf_load *ld, const struct shf_slice *s, char name[96],
                         enum shf_source *source, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	const struct shf_manifest *m = &ld->step->manifest;
	int64_t fam = shf_layout_family(l, "ranks");
	const char *rule = "strict";
	char key[80], msg[200];
	uint32_t saved = 0;     /* ranks that saved; not each of them need have the stream */
	size_t n = strlen(s->stream.stream);

	for (uint32_t i = 0; fam >= 0 && i < l->families[fam].tensors_n; i++) {
		const char *at = l->tensors[l->families[fam].first_tensor + i].name;

		saved += strncmp(at, s->stream.stream, n) == 0 && at[n] == '/' &&
			 !strchr(at + n + 1, '/');
	}
	snprintf(name, 96, "%s", s->name);
	/* Not every rank need have the stream, so the manifest knows better how many saved. */
	if (saved && m->ranks > 0 && m->ranks <= INT32_MAX)
		saved = (uint32_t)m->ranks;
	if (saved == 0 || (uint32_t)s->stream.ranks == saved)
		return 0;
	snprintf(key, sizeof(key), "ranks.%s", s->stream.stream);
	for (size_t i = 0; i < m->notes_n; i++)
		if (strcmp(m->notes[i].key, key) == 0)
			rule = m->notes[i].value;
	/* A rule that this version does not know is as strict as "strict": guessing would give
	 * ranks equal random numbers. */
	if (strcmp(rule, "drop") && strcmp(rule, "modulo"))
		return shf_fail(err, SHEAF_ELAYOUT,
				"stream %s: saved by %u ranks, loaded by %d, and its "
				"rule is strict",
				s->stream.stream, saved, s->stream.ranks);
	if (strcmp(rule, "drop") == 0)
		*source = SHF_KEEP;
	else
		snprintf(name, 96, "%s/%u", s->stream.stream, (uint32_t)s->stream.rank % saved);
	snprintf(msg, sizeof(msg), "saved by %u ranks, loaded by %d: %s", saved, s->stream.ranks,
		 rule);
	shf_report_item(&ld->report, 'R', "ranks", s->name, msg);
	return 0;
}

static bool same_items(const struct shf_slice *s, const struct shf_lt_tensor *t)
{
	return !t->wide && s->items.ndim == t->items.ndim &&
	       memcmp(s->items.dim, t->items.dim, sizeof(int64_t) * (size_t)t->items.ndim) == 0;
}

/* Counts the slice under `kind`, and reports it to the caller's callback as `what`. */
static void report_slice(struct shf_load *ld, enum shf_tally_kind kind, char what,
                         const struct shf_slice *s, const char *msg)
{
	shf_tally_add(&ld->tally, kind, s->family, s->name, 0);
	shf_report_item(&ld->report, what, s->family, s->name, msg);
}

/* Whether a weight can be made from its master without losing anything. Types smaller than 16 bits
 * may have a scale stored beside them, so rounding gives other bits. A weight as wide as its master
 * may have had another master. */
static bool is_rounded_master(const struct shf_slice *s, const struct shf_lt_tensor *master)
{
	return (s->dtype == SHEAF_BF16 || s->dtype == SHEAF_F16) && s->data_dtype == s->dtype &&
	       master->dtype == SHEAF_F32;
}

/* Fills a slice that is not stored from a tensor that is, if the caller allows it (SHEAF_DERIVE):
 * masters by casting the model, the model by rounding its masters. A weight that is tied to another
 * one has no tensor of its own, but the other one may have a master. */
static bool derive(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t)
{
	const struct shf_layout *l = &ld->step->layout;
	bool down = strcmp(s->family, "model") == 0;
	const char *from = down ? "master_weights" : "model", *tied;
	const char *how = down ? "rounded from its master" : "cast from the model";
	struct sheaf_error own;
	int64_t i = -1;

	if (!(ld->flags & SHEAF_DERIVE) || (!down && strcmp(s->family, "master_weights")))
		return false;
	/* Masters come from the model; but if the weight is tied, its master may be stored under
	 * the name that it is tied to, which has more bits. */
	if (!down && (tied = shf_layout_tied_to(l, from, s->stored)))
		i = shf_layout_find(l, from = s->family, tied);
	if (i >= 0)
		how = "the master of what its weight is tied to";
	else
		i = shf_find_stored(l, from = down ? from : "model", s->stored, s);
	if (i < 0 || (down && !is_rounded_master(s, &l->tensors[i])) ||
	    shf_slice_adapt(&t->slice, s, &l->tensors[i], from, true, &own) < 0)
		return false;
	t->tensor = (uint32_t)i;
	report_slice(ld, SHF_T_DERIVED, 'D', s, how);
	return true;
}

/* Whether the slice is an average of an optional weight that the step does not have either. The
 * weight was decided on before, because averages come after their weights in a state. */
static bool is_of_absent(const struct shf_load *ld, const struct shf_slice *s)
{
	uint32_t source = shf_ema_source(ld->state, (size_t)(s - ld->state->slices));

	return ld->state->slices[source].flags & SHEAF_OPTIONAL &&
	       ld->targets[source].source == SHF_KEEP; /* it came before its averages */
}

/* Decides for a slice whose tensor is not stored: derived, zeroed, kept, or the load fails. If the
 * step has averages at all, all of them are wanted, apart from those of weights that it does not
 * have. */
static int decide_absent(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t,
                         struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;

	if (derive(ld, s, t))
		return 0;
	if (ld->flags & SHEAF_ZERO && strcmp(s->family, "optimizer") == 0) {
		t->source = SHF_FROM_ZERO;
		report_slice(ld, SHF_T_ZEROED, 'Z', s, "filled with zeros");
		return 0;
	}
	t->source = SHF_KEEP;
	report_slice(ld, SHF_T_MISSING, 'M', s, "not in this step");
	/* Averages that the step has are wanted whole, but for those of weights that it has not. */
	if (ld->flags & SHEAF_LENIENT ||
	    (s->owned ? shf_layout_family(l, s->family) < 0 || is_of_absent(ld, s)
	              : (s->flags & SHEAF_OPTIONAL) != 0))
		return 0;
	return shf_fail(err, SHEAF_ELAYOUT, "%s: no tensor %s/%s", ld->step->path, s->family,
			s->stored);
}

/* The order of the questions matters. What the caller excluded is not looked up at all. Streams may
 * change their name before they are looked up. Only then shape and type of what is stored are
 * compared. */
static int decide_source(struct shf_load *ld, const struct shf_slice *s, struct shf_target *t,
                         struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	char stream[96];
	const char *name = s->stored;
	int64_t i;
	int rc = 0;

	t->slice = *s;
	if (s->flags & SHEAF_SAVE_ONLY ||
	    shf_ignored(ld->step->run->opts.ignore, s->family, s->name)) {
		t->source = SHF_KEEP;
		report_slice(ld, SHF_T_IGNORED, 'I', s, s->flags & SHEAF_SAVE_ONLY
		             ? "SHEAF_SAVE_ONLY" : "ignored by pattern");
		return 0;
	}
	if (s->stream.stream) {
		rc = stream_source(ld, s, stream, &t->source, err);
		name = stream;
	}
	if (rc < 0 || t->source == SHF_KEEP)
		return rc;
	i = shf_find_stored(l, s->family, name, s);
	if (i < 0)
		return decide_absent(ld, s, t, err);
	t->tensor = (uint32_t)i;
	if (ld->flags & SHEAF_LENIENT && !same_items(s, &l->tensors[i])) {
		t->source = SHF_KEEP;
		report_slice(ld, SHF_T_MISMATCHED, 'X', s, "another shape is stored");
		return 0;
	}
	rc = shf_slice_adapt(&t->slice, s, &l->tensors[i], s->family, ld->flags & SHEAF_CONVERT,
			     err);
	if (rc < 0)
		return rc;
	shf_tally_add(&ld->tally, SHF_T_LOADED, s->family, name, l->tensors[i].bytes);
	if (t->slice.dtype != s->dtype)
		report_slice(ld, SHF_T_CONVERTED, 'C', s, "another type is stored");
	return 0;
}

/* Decides for all slices, also after a failure, so that one message can name up to a dozen absent
 * tensors. A user who has to add a pattern for each would otherwise need a run for each. */
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
		/* The first failure is told in full, the others by their names. */
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

/* Finds tensors of families that the state has, which no rank asked for. Each is reported by one
 * rank. With SHEAF_STRICT ranks agree on what they found: each goes by its own opts.ignore.
 * [collective] */
static int find_unexpected(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	struct shf_team *team = &ld->step->run->team;
	int rc = shf_asked_unite(ld, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < l->tensors_n && rc == 0; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];
		const char *family = l->families[t->family].name;

		if (shf_asked_has(ld, i) || !shf_asked_family(ld, t->family) ||
		    strcmp(family, "ranks") == 0 ||
		    shf_ignored(ld->step->run->opts.ignore, family, t->name))
			continue;
		if (i % (size_t)team->ranks == (size_t)team->rank) {
			shf_tally_add(&ld->tally, SHF_T_UNEXPECTED, family, t->name, 0);
			shf_report_item(&ld->report, 'U', family, t->name,
			                "in the step, not in the state");
		}
		if (ld->flags & SHEAF_STRICT)
			rc = shf_fail(err, SHEAF_ELAYOUT,
				      "%s: %s/%s is stored and nobody asked for it", ld->step->path,
				      family, t->name);
	}
	return ld->flags & SHEAF_STRICT ? shf_agree(team, rc, err) : rc;
}

/* Counts the slices of each set of averages that are filled from the step. */
static void emas_filled(const struct shf_load *ld, uint64_t *filled)
{
	for (size_t k = 0; k < ld->state->emas_n; k++) {
		const struct shf_ema *e = &ld->state->emas[k];

		for (size_t i = 0; i < e->n; i++)
			filled[k] += ld->targets[e->first + i].source == SHF_FROM_STEP;
	}
}

/* An average that the step has not goes on from the weights of the next save. Ranks need not agree
 * on it: they hold slices of one tensor, and what the step has of it is the same for all. */
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

/* Adds up the counts of all ranks. It is also what tells each rank which averages were filled
 * anywhere, so it runs before emas_loaded, and even if the caller wants no report. [collective] */
static int fill_load_report(struct shf_load *ld, struct sheaf_error *err)
{
	uint64_t n[SHF_T_KINDS], bytes[SHF_T_KINDS];
	const struct shf_view *view = ld->step->view;
	uint64_t disk = view ? shf_view_disk_bytes(view) - ld->disk_from : ld->disk_bytes;
	uint64_t x[6 + SHF_EMAS_MAX] = { disk, ld->node_bytes, ld->net_bytes, ld->holds.bytes,
		ld->retries, ld->disk_bytes > disk ? ld->disk_bytes - disk : 0 };
	struct shf_team *team = &ld->step->run->team;
	struct sheaf_report *r = &ld->report;
	int rc;

	/* Words 6 and on count slices of each set of averages. */
	emas_filled(ld, x + 6);
	rc = shf_tally_count(&ld->tally, team, n, bytes, x, 6 + SHF_EMAS_MAX, err);
	if (rc < 0)
		return rc;
	r->loaded = n[SHF_T_LOADED];
	r->missing = n[SHF_T_MISSING];
	r->unexpected = n[SHF_T_UNEXPECTED];
	r->converted = n[SHF_T_CONVERTED];
	r->derived = n[SHF_T_DERIVED];
	r->ignored = n[SHF_T_IGNORED];
	r->mismatched = n[SHF_T_MISMATCHED];
	r->zeroed = n[SHF_T_ZEROED];
	r->unverified = n[SHF_T_UNVERIFIED];
	r->bytes = bytes[SHF_T_LOADED];
	r->files = ld->step->layout.files_n;
	r->disk_bytes = x[0];
	r->memory_bytes = x[5];
	r->peers = view && shf_view_is_peers(view);
	r->step = ld->step->number;
	r->memory = view != NULL;
	r->node_bytes = x[1];
	r->net_bytes = x[2];
	r->held = x[3];
	r->retries = x[4];
	r->read_ns = (uint64_t)ld->read_ns;
	r->verify_ns = (uint64_t)ld->verify_ns;
	for (size_t k = 0; k < ld->state->emas_n; k++)
		ld->emas_filled[k] = x[6 + k] > 0;
	return 0;
}

/* Refuses to keep what a damaged step has begun to fill. Averages that are kept are no danger: they
 * begin anew, and what their memory holds is not read. [local] */
static int check_kept(const struct shf_load *ld, struct sheaf_error *err)
{
	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->state->slices[i];
		int64_t by = ld->step->filled_by[i];

		if (by >= 0 && ld->targets[i].source == SHF_KEEP && !s->owned)
			return shf_fail(err, SHEAF_ELAYOUT, "%.120s: has nothing for %s/%.120s, "
			                "whose memory was changed by step %" PRId64 ", which is "
			                "damaged (rewind the run to step %" PRId64 " and start "
			                "again)", ld->step->path, s->family, s->name, by,
			                ld->step->number);
	}
	return 0;
}

/* Remembers which slices this step is about to overwrite. If the step turns out to be damaged and
 * an older one is tried next, those slices must not be kept (check_kept). */
static void note_filled(const struct shf_load *ld)
{
	for (size_t i = 0; i < ld->state->n; i++)
		if (ld->targets[i].source != SHF_KEEP && !ld->targets[i].slice.empty)
			ld->step->filled_by[i] = ld->step->number;
}

/* Checks the arguments and decides for all slices, on this rank alone. The caller's memory must not
 * be read any more by a save in progress: a lazy save copies from it until each slice has been
 * copied. */
static int prepare_load(struct shf_load *ld, struct sheaf_error *err)
{
	const struct sheaf_step *step = ld->step;
	const struct sheaf_state *state = ld->state;
	uint32_t known = SHEAF_STRICT | SHEAF_CONVERT | SHEAF_DRY | SHEAF_DERIVE | SHEAF_ZERO |
	                 SHEAF_LENIENT;
	int rc = shf_state_ready(state, !(ld->flags & SHEAF_DRY), err);

	if (rc < 0)
		return rc;
	if (ld->flags & ~known)
		return shf_fail(err, SHEAF_EINVAL, "load flags 0x%x are none of this sheaf's",
		                (unsigned)(ld->flags & ~known));
	if (step->cat_rc < 0) {
		if (err)
			*err = step->cat_err;
		return step->cat_rc;
	}
	/* Lazy saves still read the caller's memory; loading over it would mix two steps in the
	 * file. */
	for (struct shf_reader *r = state->readers; r; r = r->next)
		if (r->reads(r, SHF_EVERY_SLICE))
			return shf_fail(err, SHEAF_EINVAL, "a load into memory that step %" PRId64
			                " has not copied", r->step);
	ld->targets = shf_zalloc(state->n, sizeof(*ld->targets));
	if (!ld->targets || shf_tally_init(&ld->tally, step->run->team.ranks) < 0)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu slices", state->n);
	rc = decide_all(ld, err);
	if (rc == 0)
		rc = shf_asked_new(ld, err);
	if (rc == 0 && step->filled_by)
		rc = check_kept(ld, err);
	return rc == 0 ? shf_load_check_aliased(ld, err) : rc;
}

/* Whether the same save of the step lies in memory and on disk. */
static bool has_twin(const struct sheaf_step *step)
{
	const struct shf_base *base = &step->run->lineage.base;

	return step->run->lineage.memory_of && base->step == step->number &&
	       strcmp(base->session, step->manifest.session) == 0;
}

/* After a load from memory: where saving goes on from. If the step is on disk as well, newer steps
 * in memory are given up. Otherwise the new parent is the newest step that the disk had when this
 * one was opened, and a caller that loaded an older step than the newest one must rewind before
 * saving. */
static void remember_in_memory(const struct sheaf_step *step)
{
	const struct shf_base *base = &step->run->lineage.base;
	struct sheaf_run *run = step->run->lineage.memory_of;
	int64_t newest = shf_tier_newest(run);
	bool brought = run->lineage.parent == step->number &&
	               strcmp(run->lineage.parent_session, step->manifest.session) == 0;

	/* Saving goes on where the disk ended when the step was opened, unless this handle has
	 * brought the step itself to disk since. No prune takes what it goes on from. */
	if (!brought) {
		run->lineage.parent = base->step;
		memcpy(run->lineage.parent_session, base->session, sizeof(base->session));
	}
	run->lineage.loaded = run->lineage.parent;
	if (brought || has_twin(step))
		shf_tier_went_back(run, step->number);
	else
		shf_tier_took(run, newest > step->number && newest > base->newest ? newest
		                                                                 : base->beyond);
}

/* After a load: the run goes on from this step. Saves that were begun before see from `loads` that
 * their parent may have changed. */
static void remember(struct shf_load *ld)
{
	struct sheaf_run *run = ld->step->run;

	if (run->opts.flags & SHEAF_READONLY)
		return;
	shf_run_that_saves(run)->lineage.loads++;
	if (run->lineage.memory_of)
		remember_in_memory(ld->step);
	if (run->life.foreign)
		return;
	shf_tier_went_back(run, ld->step->number);
	run->lineage.loaded = run->lineage.parent = ld->step->number;
	run->lineage.doubtful = -1;
	memcpy(run->lineage.parent_session, ld->step->manifest.session,
	       sizeof(run->lineage.parent_session));
}

/* Whether this handle has not loaded the step before. Filling several states from one step is one
 * try. */
static bool is_first_try(const struct sheaf_step *step)
{
	char *tried = step->run->lineage.memory_of->tier->tried;
	bool first = strcmp(tried, step->manifest.session) != 0;

	memcpy(tried, step->manifest.session, sizeof(step->manifest.session));
	return first;
}

/* That this session tries the step is on disk before any byte of it is read: rank 0 writes it
 * before it takes part in the plan, and no rank reads before there is one. */
static void count_try(const struct sheaf_step *step)
{
	struct sheaf_run *run = shf_run_that_saves(step->run);
	struct sheaf_error own;
	int n;

	/* Nobody would forget the try after a close, which has forgotten those before it. */
	if (run->life.foreign || run->life.closed || run->opts.flags & SHEAF_READONLY)
		return;
	run->lineage.unsure = true;
	/* A try of a step in memory is counted in its cards, by one rank of each node. */
	if (step->run != run && is_first_try(step) && run->place.node_first == run->team.rank)
		shf_view_count_try(step->view, step->run->lineage.base.tries + 1);
	if (run->team.rank == 0) {
		shf_pruning_settle(run); /* it does not know yet what is being loaded */
		n = shf_tries_add(&run->store, step->number, step->manifest.session, &own);
		if (n < 0)
			shf_log(run, 1, "%s: a load of step %" PRId64 " is not counted: %s",
			        run->store.path, step->number, own.msg);
		else if (n > 1)
			shf_log(run, 1, "%s: step %" PRId64 " was loaded %d time%s by jobs that "
			        "came no further, and is loaded again", run->store.path,
			        step->number, n - 1, n > 2 ? "s" : "");
	}
}

/* Gives up the memory of a damaged step if the same save is on disk, which is then read next. */
static void give_up_load(const struct sheaf_step *step)
{
	if (has_twin(step) && !(step->run->opts.flags & SHEAF_READONLY))
		shf_view_condemn(step->view);
}

/* Appends to err what a person can do about the damage. [collective] */
static void add_remedy(const struct sheaf_step *step, struct sheaf_error *err)
{
	struct sheaf_run *run = shf_run_that_saves(step->run);
	char text[SHF_REMEDY] = "";
	size_t at;

	if (run->team.rank == 0)
		shf_store_remedy(&run->store, step->number, text);
	if (shf_bcast(&run->team, 0, text, sizeof(text), NULL) < 0 || !err)
		return;
	if (has_twin(step))
		snprintf(text, sizeof(text), " (it lies on disk, too: load again%s)",
		         run->opts.flags & SHEAF_READONLY ? " without opts.agent" : "");
	at = strlen(err->msg);
	at = at + strlen(text) < sizeof(err->msg) ? at : sizeof(err->msg) - 1 - strlen(text);
	snprintf(err->msg + at, sizeof(err->msg) - at, "%s", text);
}

/* After a load that ended with rc: if the step is damaged in memory and whole on disk, its memory
 * is given up, so that the next load reads the disk. If it was the latest step, the message says
 * what a person can do. [collective] */
static void load_failed(const struct sheaf_step *step, int rc, struct sheaf_error *err)
{
	if (rc == SHEAF_ECORRUPT)
		give_up_load(step);
	if (step->latest && shf_is_of_step(rc))
		add_remedy(step, err);
}

/* The first operation of a load. It compares flags and averages of the ranks, and finds the least
 * room that any of them has for staging. [collective] */
static int meet_in_load(struct shf_load *ld, int rc, struct sheaf_error *err)
{
	enum { FLAGS, CHECKED, ROOM, MARKS };
	struct shf_call m = { .kind = SHF_CALL_LOAD, .handle = ld->step->made };

	_Static_assert(MARKS + SHF_EMAS_MAX <= SHF_CALL_ARGS, "marks travel with the call");
	if (rc == 0) {
		m.x[FLAGS] = ld->flags;
		m.x[CHECKED] = shf_pass_sums(ld->step);
		m.x[ROOM] = shf_load_room(ld->step->run);
		shf_emas_mark(ld->state, &m.x[MARKS]);
	}
	rc = shf_call_enter(&ld->step->run->team, &m, rc, err);
	if (rc == 0 && m.lo[FLAGS] != m.hi[FLAGS])
		rc = shf_fail(err, SHEAF_EINVAL, "ranks load with different flags");
	/* What they find by comparing sums would differ, too. */
	if (rc == 0 && m.lo[CHECKED] != m.hi[CHECKED])
		rc = shf_fail(err, SHEAF_EINVAL, "%s: some ranks opened it with SHEAF_UNVERIFIED, "
		              "others without", ld->step->path);
	if (rc == 0)
		rc = shf_emas_check(ld->state, &m.hi[MARKS], err);
	ld->room = m.lo[ROOM];
	return rc;
}

/* The order: everything that may be refused comes before count_try, and count_try before the first
 * byte is read, because a step that crashes the job must have been counted by then. shf_step_doubt
 * comes right after the reading: if the memory that held the step has been taken for another one,
 * what looked like damage was none. */
int shf_step_load(struct sheaf_step *step, struct sheaf_state *state, uint32_t flags,
                  struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_load ld = { .step = step, .state = state, .flags = flags };
	int64_t from = shf_now(step->run);
	int rc;

	ld.disk_from = step->view ? shf_view_disk_bytes(step->view) : 0;

	if (report) {
		ld.report.item = report->item;
		ld.report.finding = report->finding;
		ld.report.arg = report->arg;
	}
	shf_sought_tell(&step->passed, &ld.report);
	rc = shf_step_wake(step, err);
	if (rc == 0 && !(flags & SHEAF_DRY))
		rc = shf_emas_ready(state, err);
	rc = meet_in_load(&ld, rc == 0 ? prepare_load(&ld, err) : rc, err);
	if (rc == 0)
		rc = find_unexpected(&ld, err);
	ld.report.plan_ns = (uint64_t)(shf_now(step->run) - from);
	if (rc == 0 && !(flags & SHEAF_DRY))
		count_try(step);
	if (rc == 0 && step->filled_by)
		note_filled(&ld);
	if (rc == 0 && !(flags & SHEAF_DRY))
		rc = shf_fill(&ld, err);
	/* Everything that was read is judged here, before anyone acts on it. */
	rc = shf_step_doubt(step, rc, err);
	load_failed(step, rc, err);
	if (rc == 0)
		rc = fill_load_report(&ld, err);
	if (rc == 0 && !(flags & SHEAF_DRY)) {
		emas_loaded(&ld, state);
		remember(&ld);
	}
	if (rc == 0 && report) {
		ld.report.size = report->size;
		ld.report.flags = report->flags;
		*report = ld.report;
	}
	shf_free(ld.targets);
	shf_asked_free(&ld);
	shf_holds_release(&ld.holds);
	shf_work_release(&ld.work);
	if (ld.tally.out)
		shf_tally_release(&ld.tally);
	return rc;
}
