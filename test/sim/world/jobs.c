/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"
#include "list.h"
#include "sheaf-stat.h"
#include "step.h"
#include "err.h"
#include "layouts.h"
#include "save.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_attach.h"
#include "save_status.h"
#include "state.h"
#include "step_attached.h"
#include "step_open.h"
#include "verify_step.h"
#include "run_ops.h"
#include "load.h"
#include "sheaf-admin.h"
#include "sheaf-inspect.h"

#include <stdlib.h>
#include <string.h>

enum { BIG = 5, BIGS = 4, TENSORS = BIG + BIGS };
int job_tensors_n(const struct job_state *state)
{
	return BIG + (state->rows == 0 ? 0 : state->bigs ? state->bigs : 1);
}

struct lay_tensor job_tensor(int i, const struct job_state *state)
{
	static const struct lay_tensor all[TENSORS] = {
		{ "model", "a.w", SHEAF_F32, 2, { 37, 29 }, 1, -1, -1, 0 },
		{ "model", "b.w", SHEAF_BF16, 2, { 33, 20 }, 0, -1, -1, 0 },
		{ "model", "norm", SHEAF_F32, 1, { 13 }, -1, -1, -1, 0 },
		{ "model", "steps", SHEAF_I64, 0, { 0 }, -1, -1, -1, 0 },
		{ "optimizer", "a.w/moment1_0", SHEAF_F32, 2, { 37, 29 }, 1, -1, -1, 0 },
		{ "model", "big.0", SHEAF_F32, 2, { 0, 64 }, 1, -1, -1, 0 },
		{ "model", "big.1", SHEAF_F32, 2, { 0, 64 }, 1, -1, -1, 0 },
		{ "model", "big.2", SHEAF_F32, 2, { 0, 64 }, 1, -1, -1, 0 },
		{ "model", "big.3", SHEAF_F32, 2, { 0, 64 }, 1, -1, -1, 0 },
	};
	struct lay_tensor t = all[i];

	if (i >= BIG)
		t.shape[0] = state->rows;
	else if (state->tiny && t.ndim == 2)
		t.shape[0] /= 4;
	return t;
}

/* ---- memory of one rank ---- */

struct memory {
	struct sheaf_slice slices[TENSORS];
	int n;
	struct job_state of;
	struct sheaf_save *flying;      /* just begun */
	struct sheaf_save *begun[JOB_DEEDS];    /* by the deed that began it; until the commit */
};

static int64_t items_of(const struct sheaf_slice *s)
{
	int64_t n = 1;

	for (int d = 0; d < s->ndim; d++)
		n *= s->count[d];
	return n;
}

/* Fills each item of the slice (paint), or compares it. Returns the number of items that differ. */
static int64_t each_item(const struct sheaf_slice *s, const struct lay_tensor *t, bool paint,
                         uint64_t seed)
{
	int64_t n = items_of(s), cols = s->ndim == 2 ? s->count[1] : 1, wrong = 0;
	size_t bytes = (size_t)lay_bytes(s->dtype);
	uint64_t salt = lay_salt(t, seed);

	for (int64_t k = 0; k < n; k++) {
		int64_t global = s->ndim == 0 ? 0
		               : s->ndim == 1 ? s->start[0] + k
		               : (s->start[0] + k / cols) * s->shape[1] + s->start[1] + k % cols;
		uint64_t v = lay_salted(salt, t->dtype == SHEAF_BOOL, global);
		uint8_t *at = (uint8_t *)s->data + (size_t)k * bytes;

		if (paint)
			memcpy(at, &v, bytes);
		else
			wrong += memcmp(at, &v, bytes) != 0;
	}
	return wrong;
}

/* Narrows the slice to the rank's piece of t. */
static void cut(struct sheaf_slice *s, const struct lay_tensor *t, int rank, int ranks,
                enum job_layout layout)
{
	if (ranks == 1 || layout == JOB_WHOLE || t->ndim == 0)
		return;
	if (layout == JOB_ROWS)
		(void)sheaf_slice_shard(s, 0, ranks - 1 - rank, ranks, NULL);
	else if (t->axis >= 0)
		(void)sheaf_slice_shard(s, ranks == 4 ? t->axis : 0, ranks == 4 ? rank % 2 : rank,
		                        ranks == 4 ? 2 : ranks, NULL);
}

static void hold(struct memory *m, int rank, int ranks, enum job_layout layout,
                 const struct job_state *state)
{
	memset(m, 0, sizeof(*m));
	m->n = job_tensors_n(state);
	m->of = *state;
	for (int i = 0; i < m->n; i++) {
		struct lay_tensor t = job_tensor(i, state);
		struct sheaf_slice *s = &m->slices[i];

		*s = (struct sheaf_slice){ .size = sizeof(*s), .family = t.family, .name = t.name,
			.dtype = t.dtype, .ndim = t.ndim };
		memcpy(s->shape, t.shape, sizeof(s->shape));
		memcpy(s->count, t.shape, sizeof(s->count));
		cut(s, &t, rank, ranks, layout);
		s->data = calloc((size_t)items_of(s) + 1, 8);
		if (!s->data)
			abort();
	}
}

uint64_t job_seed(int64_t step, uint64_t salt)
{
	return JOB_SEED + (uint64_t)step + salt * UINT64_C(0x9E3779B97F4A7C15);
}

static int64_t paint(const struct memory *m, bool fill, int64_t step, uint64_t salt)
{
	int64_t wrong = 0;

	for (int i = 0; i < m->n; i++) {
		struct lay_tensor t = job_tensor(i, &m->of);

		if (fill || step >= 0)
			wrong += each_item(&m->slices[i], &t, fill, job_seed(step, salt));
		else
			memset(m->slices[i].data, 0xA5, (size_t)items_of(&m->slices[i]) * 8);
	}
	return wrong;
}

static void release(struct memory *m)
{
	for (int i = 0; i < m->n; i++)
		free(m->slices[i].data);
}

static struct sheaf_state *state_of(const struct memory *m)
{
	struct sheaf_state *state = shf_state_new();

	for (int i = 0; i < m->n; i++)
		(void)shf_state_add(state, &m->slices[i], NULL);
	return state;
}

/* ---- deeds ---- */

static const struct sheaf_save_opts lazy = { .size = sizeof(lazy), .flags = SHEAF_SAVE_LAZY };
static const char config[] = "{\"layers\": 2}\n";

/* Passes the gate of each tensor and changes it. Some gates are only polled first, and the order is
 * not that of the tensors. */
static void pass_gates(struct memory *m, struct sheaf_save *save, int rank)
{
	for (int i = 0; i < m->n; i++) {
		struct sheaf_slice *s = &m->slices[(2 * m->n - 1 - i + rank) % m->n];
		int slice = (int)(s - m->slices);

		if (shf_save_copied(save, slice, i % 2 - 1, NULL) != SHEAF_EAGAIN ||
		    shf_save_copied(save, slice, -1, NULL) != SHEAF_EAGAIN)
			memset(s->data, 0xA5, (size_t)items_of(s) * 8);
	}
}

static int begin_step(struct job *j, struct sheaf_run *run, struct memory *m,
                      struct sheaf_state *state, struct deed *d, int rank)
{
	struct sheaf_save *save = NULL;
	char salt[24];
	int rc;

	(void)paint(m, true, d->step, d->salt);
	rc = shf_save_begin(&save, run, d->step, state, j->lazy ? &lazy : NULL, &d->err[rank]);
	/* If the attachment fails, the commit returns the error. */
	if (rc == 0 && rank == j->ranks - 1)
		(void)shf_save_attach(save, "config.json", config, sizeof(config) - 1, NULL);
	if (rc == 0 && rank == 0)
		(void)shf_save_note(save, "mesh", "dp=2,tp=2", NULL);
	snprintf(salt, sizeof(salt), "%llu", (unsigned long long)d->salt);
	if (rc == 0 && rank == 0 && d->salt)
		(void)shf_save_note(save, "salt", salt, NULL);
	if (rc == 0 && j->lazy)
		pass_gates(m, save, rank);
	m->flying = rc == 0 ? save : NULL;
	return rc;
}

static int commit_step(const struct job *j, struct sheaf_save **save, struct sheaf_error *err)
{
	int rc;

	do
		rc = shf_save_commit(*save, j->asks ? 0 : -1, err);
	while (j->asks && rc == SHEAF_EAGAIN);
	shf_save_free(*save);
	*save = NULL;
	return rc;
}

static int save_step(struct job *j, struct sheaf_run *run, struct memory *m,
                     struct sheaf_state *state, struct deed *d, int rank)
{
	int rc = begin_step(j, run, m, state, d, rank);

	return rc == 0 ? commit_step(j, &m->flying, &d->err[rank]) : rc;
}

static int deed_of(const struct job *j, enum deed_kind kind, int64_t step)
{
	int i = 0;

	while (i < j->deeds_n && (j->deeds[i].kind != kind || j->deeds[i].step != step))
		i++;
	return i;
}

/* Commits the save that another deed began. */
static int commit_begun(struct job *j, struct memory *m, struct deed *d, int rank)
{
	int i = deed_of(j, DEED_BEGIN, d->step), asked = deed_of(j, DEED_ASK, d->step);

	if (m->begun[i])
		return commit_step(j, &m->begun[i], &d->err[rank]);
	i = j->deeds[i].rc[rank] == 0 && asked < j->deeds_n ? asked : i;
	d->err[rank] = j->deeds[i].err[rank];
	return j->deeds[i].rc[rank];
}

static int ask_begun(struct job *j, struct memory *m, struct deed *d, int rank)
{
	struct sheaf_save **save = &m->begun[deed_of(j, DEED_BEGIN, d->step)];
	struct sheaf_stat stat = { .phase = 0 };
	int rc;

	if (!*save)
		return 0;
	do {
		rc = shf_save_commit(*save, 0, &d->err[rank]);
		shf_save_stat(*save, &stat);
	} while (rc == SHEAF_EAGAIN && stat.phase != 6);
	if (rc == SHEAF_EAGAIN)
		return 0;
	shf_save_free(*save);
	*save = NULL;
	return rc;
}

/* Begins a save, and then changes memory, as a trainer may. */
static int begin_only(struct job *j, struct sheaf_run *run, struct memory *m,
                      struct sheaf_state *state, struct deed *d, int rank)
{
	int rc = begin_step(j, run, m, state, d, rank);

	m->begun[d - j->deeds] = m->flying;
	(void)paint(m, false, -1, 0);
	return rc;
}

static uint64_t salt_of(const struct sheaf_checkpoint *step)
{
	for (size_t i = 0; i < step->manifest.notes_n; i++)
		if (strcmp(step->manifest.notes[i].key, "salt") == 0)
			return strtoull(step->manifest.notes[i].value, NULL, 10);
	return 0;
}

static int load_step(struct sheaf_run *run, struct memory *m, struct sheaf_state *state,
                     int64_t number, int *local_rc, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error own = { 0 };
	struct sheaf_checkpoint *step = NULL;
	const void *bytes = NULL;
	size_t n = 0;
	int rc;

	(void)paint(m, false, -1, 0);
	rc = shf_step_open(&step, run, number, err);
	if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_LOAD_STRICT, &report, err);
	if (rc == 0 && report.unverified)
		rc = shf_fail(err, SHEAF_EBUG, "tensors were not verified");
	if (rc == 0 && paint(m, false, step->number, salt_of(step)))
		rc = shf_fail(err, SHEAF_EBUG, "step %lld: wrong values", (long long)step->number);
	if (rc == 0) {
		*local_rc = shf_step_attached(step, "config.json", &bytes, &n, &own);
		if (*local_rc == 0 && (n != sizeof(config) - 1 || memcmp(bytes, config, n)))
			rc = shf_fail(err, SHEAF_EBUG, "config.json: other bytes");
	}
	shf_step_put(step);
	return rc;
}

static void pruned(void *arg, int64_t step, int32_t action, const char *why)
{
	char what = sheaf_prune_action_name(action)[0];
	struct deed *d = arg;

	(void)why;
	if (what == 'r' && d->pruned_n < JOB_STEPS)
		d->pruned[d->pruned_n++] = step;
}

static int do_deed(struct job *j, struct sheaf_run *run, struct memory *m,
                   struct sheaf_state *state, struct deed *d, int rank)
{
	struct sheaf_error *err = &d->err[rank];
	int local = 0, rc = 0;

	switch (d->kind) {
	case DEED_SAVE:
		rc = save_step(j, run, m, state, d, rank);
		break;
	case DEED_BEGIN:
		rc = begin_only(j, run, m, state, d, rank);
		break;
	case DEED_ASK:
		rc = ask_begun(j, m, d, rank);
		break;
	case DEED_COMMIT:
		rc = commit_begun(j, m, d, rank);
		break;
	case DEED_LOAD:
		rc = load_step(run, m, state, d->step, &local, err);
		break;
	case DEED_PRUNE:
		rc = shf_run_prune(run, false, pruned, d, err);
		rc = rc > 0 ? 0 : rc;
		break;
	case DEED_REWIND:
		rc = shf_run_rewind(run, d->step, err);
		break;
	case DEED_MARK_BAD:
	case DEED_MARK_KEEP:
		rc = shf_run_mark(run, d->step, d->kind == DEED_MARK_BAD ? SHEAF_MARK_BAD
		                  : SHEAF_MARK_KEEP, err);
		break;
	}
	if (local < 0)
		j->local_rc = local;
	return rc;
}

static int64_t now(const struct job *j)
{
	return (int64_t)simdisk_cut_n(j->disk) - 1;
}

struct crew {                   /* the jobs of one simulation */
	struct job **jobs;
	int n, ranks;
};

/* Returns the job of a rank, and converts the rank to the job's own. */
static struct job *job_of_rank(const struct crew *c, int *rank)
{
	int i = 0;

	while (*rank >= c->jobs[i]->ranks)
		*rank -= c->jobs[i++]->ranks;
	return c->jobs[i];
}

/* One rank runs at a time, and each is a thread: its turn ends when it calls the disk. */
static _Thread_local struct sheaf_group *on_turn;

static void give_way(void *arg)
{
	(void)arg;
	simgroup_pause(on_turn, 0);
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct job *j = job_of_rank(arg, &rank);
	struct shf_opts opts = { .flags = SHEAF_RUN_CREATE | (j->lazy ? SHEAF_RUN_METRICS : 0),
				   .timeout_ms = JOB_TIMEOUT_MS,
				   .staging_bytes_max = j->staging,
				   .file_bytes_max = j->file_bytes,
				   .keep_last = j->keep_last,
				   .images_max = j->images,
				   .grace_s = -1,
				   .io_threads = 1 };
	struct sheaf_state *state;
	struct sheaf_run *run = NULL;
	struct job_state of = { j->rows, j->bigs, j->tiny };
	struct memory m;
	int rc;

	on_turn = group;
	hold(&m, rank, j->ranks, j->layout, &of);
	for (int i = 0; i < m.n; i++)
		m.slices[i].flags |= j->stays ? SHEAF_SLICE_IN_PLACE : 0;
	state = state_of(&m);
	if (j->armed)
		j->armed(j->arg, rank);
	rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &j->open_err[rank]);
	j->open_rc[rank] = rc;
	if (rc == 0 && j->opened < 0)
		j->opened = now(j);
	for (int i = 0; i < j->deeds_n; i++) {
		struct deed *d = &j->deeds[i];

		if (rc < 0) {
			d->rc[rank] = rc;
			d->err[rank] = j->open_err[rank];
			continue;
		}
		if (d->begun < 0)
			d->begun = now(j);
		if (j->skip_fsync && j->skip_of_deeds && !j->skipping) {
			j->skipping = true;
			simdisk_skip_fsync(j->disk, j->skip_fsync);
		}
		d->rc[rank] = do_deed(j, run, &m, state, d, rank);
		d->ended = now(j);
		if (d->rc[rank] == 0 && d->acked < 0)
			d->acked = now(j);
	}
	for (int i = 0; i < j->deeds_n; i++)
		shf_save_free(m.begun[i]);
	shf_run_close(run);
	if (j->disarmed)
		j->disarmed(j->arg, rank);
	shf_state_put(state);
	release(&m);
	return 0;
}

/* ---- the job ---- */

static uint64_t next_pid = 1000;

void job_pids(uint64_t next)
{
	next_pid = next;
}

static void died(void *arg, int rank)
{
	struct job *j = job_of_rank(arg, &rank);

	j->dead[rank] = true;
	simdisk_kill(j->disk, j->sys[rank]);
}

static bool is_killed(void *arg, int rank)
{
	struct job *j = job_of_rank(arg, &rank);

	return simdisk_is_dead(j->sys[rank]);
}

void job_prepare(struct job *j)
{
	for (int r = 0; r < j->ranks; r++) {
		j->sys[r] = simdisk_process(j->disk, next_pid++, j->nodes ? j->nodes[r] : 0);
		j->dead[r] = false;
	}
	j->why[0] = '\0';
	j->local_rc = 0;
	j->opened = -1;
	for (int i = 0; i < j->deeds_n; i++)
		j->deeds[i].begun = j->deeds[i].acked = -1;
}

/* Checks that all living ranks have the same code, except for ELOST, with a message. */
static void check_codes(struct job *j, const char *what, const int *rc,
                        const struct sheaf_error *err)
{
	int code = 1;

	for (int r = 0; r < j->ranks && !j->why[0]; r++) {
		if (j->dead[r])
			continue;
		if (rc[r] == SHEAF_EBUG || rc[r] > 0)
			snprintf(j->why, sizeof(j->why), "%s: rank %d: %d %.500s", what, r, rc[r],
			         err[r].msg);
		else if (rc[r] < 0 && (err[r].code != rc[r] || strlen(err[r].msg) < 8))
			snprintf(j->why, sizeof(j->why),
				 "%s: rank %d: %d with the words '%.300s' of %d", what, r, rc[r],
				 err[r].msg, err[r].code);
		if (rc[r] == SHEAF_ELOST)
			continue;
		if (code <= 0 && rc[r] != code)
			snprintf(j->why, sizeof(j->why), "%s: rank %d has %d, others %d: %.300s",
				 what, r, rc[r], code, err[r].msg);
		code = rc[r];
	}
}

static void check_job(struct job *j)
{
	char what[40];

	for (int r = 0; r < j->ranks; r++)
		j->dead[r] |= simdisk_is_dead(j->sys[r]);
	check_codes(j, "open", j->open_rc, j->open_err);
	for (int i = 0; i < j->deeds_n; i++) {
		snprintf(what, sizeof(what), "deed %d", i);
		check_codes(j, what, j->deeds[i].rc, j->deeds[i].err);
	}
	for (int r = 0; r < j->ranks; r++) {
		if (!j->why[0] && simdisk_open_n(j->sys[r]))
			snprintf(j->why, sizeof(j->why), "rank %d left %zu descriptors open", r,
			         simdisk_open_n(j->sys[r]));
		simdisk_kill(j->disk, j->sys[r]);
	}
}

bool jobs_run(struct job **jobs, int n)
{
	int results[2 * JOB_RANKS], teams[2 * JOB_RANKS];
	int32_t nodes[2 * JOB_RANKS];
	struct crew crew = { jobs, n, 0 };
	struct job *first = jobs[0];
	bool fine = true, turns = false, has_nodes = false;

	for (int i = 0; i < n; i++) {
		turns |= jobs[i]->turns;
		has_nodes |= jobs[i]->nodes != NULL;
		for (int r = 0; r < jobs[i]->ranks; r++) {
			teams[crew.ranks] = i;
			nodes[crew.ranks++] = jobs[i]->nodes ? jobs[i]->nodes[r] : 0;
		}
	}
	first->group.ranks = crew.ranks;
	first->group.nodes = has_nodes ? nodes : NULL;
	first->group.teams = teams;
	first->group.pair_bytes = n == 1 ? first->pairs : NULL;
	first->group.stat = &first->stat;
	first->group.died = died;
	first->group.is_killed = is_killed;
	if (turns)
		simdisk_set_turn(first->disk, give_way, NULL);
	first->skipping = false;
	if (first->skip_fsync && !first->skip_of_deeds)
		simdisk_skip_fsync(first->disk, first->skip_fsync);
	if (simgroup_run(&first->group, rank_main, &crew, results) != 0)
		snprintf(first->why, sizeof(first->why), "the ranks fell out: %s",
		         first->stat.why);
	simdisk_set_turn(first->disk, NULL, NULL);
	if (first->skip_fsync) {
		first->fsyncs = simdisk_fsyncs(first->disk);
		snprintf(first->skipped, sizeof(first->skipped), "%s",
		         simdisk_skipped(first->disk));
		simdisk_skip_fsync(first->disk, 0);
	}
	for (int i = 0; i < n; i++) {
		check_job(jobs[i]);
		fine &= !jobs[i]->why[0];
	}
	return fine;
}

bool job_run(struct job *j)
{
	return jobs_run(&j, 1);
}

int job_rc(const struct job *j)
{
	int worst = 0;

	for (int r = 0; r < j->ranks; r++)
		for (int i = 0; i < j->deeds_n; i++)
			if (!j->dead[r] && j->deeds[i].rc[r] < worst)
				worst = j->deeds[i].rc[r];
	return worst;
}

const char *job_word(const struct job *j)
{
	for (int i = 0; i < j->deeds_n; i++)
		for (int r = 0; r < j->ranks; r++)
			if (!j->dead[r] && j->deeds[i].rc[r] < 0)
				return j->deeds[i].err[r].msg;
	return "";
}

/* ---- looks by later processes ---- */

static void finding(void *arg, const struct sheaf_finding *f)
{
	*(int *)arg += strcmp(sheaf_finding_kind_name(f->kind), "extra") != 0;
}

/* Checks that a stage with a manifest has everything; after half a rename it may have more. */
static int look_at_stage(struct simdisk *disk, const struct shf_sys *sys, const char *name,
                         struct sheaf_error *err)
{
	int findings = 0;
	struct sheaf_report report = { .size = sizeof(report), .finding = finding,
	                               .arg = &findings };
	struct shf_opts opts = { .io_threads = 1 };
	struct sheaf_checkpoint *step = NULL;
	char path[160];
	int rc;

	snprintf(path, sizeof(path), "run/%.100s/sheaf.json", name);
	if (!simdisk_exists(disk, path))
		return 0;
	*strrchr(path, '/') = '\0';
	rc = shf_step_open_path(&step, path, NULL, &opts, sys, err);
	if (rc == 0)
		rc = shf_step_verify(step, &report, err);
	shf_step_put(step);
	return rc == 0 || (rc == SHEAF_ECORRUPT && step && findings == 0) ? 1 : rc;
}

static int verify_step(struct sheaf_run *run, int64_t number, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_checkpoint *step = NULL;
	int rc = shf_step_open(&step, run, number, err);

	if (rc == 0)
		rc = shf_step_verify(step, &report, err);
	shf_step_put(step);
	return rc;
}

enum look { LOOK_WRITE = 1, LOOK_STAGES = 2 };

static int look_at(struct simdisk *disk, struct sheaf_run *run, struct memory *m,
                   struct sheaf_state *state, enum look how, struct seen *seen,
                   struct sheaf_error *err)
{
	struct shf_list list = { NULL, 0 };
	struct sheaf_checkpoint *latest = NULL;
	int local = 0, rc = shf_store_list(&run->store, &list, err);

	for (size_t i = 0; rc == 0 && i < list.n; i++) {
		const struct shf_entry *e = &list.entries[i];

		seen->damaged += e->state == SHF_DAMAGED || e->state == SHF_FOREIGN;
		seen->staged += e->state == SHF_STAGED;
		seen->aside += e->state == SHF_ASIDE;
		if (e->state == SHF_STAGED && !(how & LOOK_STAGES))
			continue;
		if (e->state == SHF_STAGED) {
			rc = look_at_stage(disk, run->sys, e->path, err);
			seen->unpublished += rc == 1;
			rc = rc < 0 ? rc : 0;
			continue;
		}
		if (e->state != SHF_COMMITTED || seen->n == JOB_STEPS)
			continue;
		seen->steps[seen->n++] = e->step;
		rc = load_step(run, m, state, e->step, &local, err);
		rc = rc ? rc : local;
		if (rc == 0 && !(how & LOOK_WRITE))
			rc = verify_step(run, e->step, err);
	}
	shf_list_release(&list);
	if (rc < 0)
		return rc;
	rc = shf_step_open(&latest, run, SHEAF_LATEST, err);
	seen->newest = rc == 0 ? latest->number : -1;
	seen->salt = rc == 0 ? salt_of(latest) : 0;
	shf_step_put(latest);
	if (rc == SHEAF_ENOENT && seen->n)
		return shf_fail(err, SHEAF_EBUG, "told to start afresh, and %zu steps are there",
		                seen->n);
	if (rc == SHEAF_ECORRUPT && strstr(err->msg, "is marked bad, like all that are left"))
		rc = 0;
	return rc == SHEAF_ENOENT ? 0 : rc;
}

static const char *visit(struct simdisk *disk, enum look how, const struct job_state *of,
                         int64_t step, struct seen *seen, char why[300])
{
	const struct shf_sys *sys = simdisk_process(disk, next_pid++, 0);
	struct shf_opts opts = { .timeout_ms = JOB_TIMEOUT_MS,
		.flags = how & LOOK_WRITE ? SHEAF_RUN_CREATE : SHEAF_RUN_READONLY,
		        .io_threads = 1 };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct memory m;
	struct sheaf_state *state;
	struct job j = { .ranks = 1 };
	int rc, local = 0;

	*seen = (struct seen){ .newest = -1 };
	hold(&m, 0, 1, JOB_MESH, of);
	state = state_of(&m);
	rc = shf_run_open(&run, "run", NULL, &opts, sys, &err);
	if (rc == 0)
		rc = look_at(disk, run, &m, state, how, seen, &err);
	if (rc == 0 && step >= 0) {
		struct deed d = { .kind = DEED_SAVE, .step = step };

		/* as if nothing had been loaded */
		run->lineage.loaded = run->lineage.parent = -1;
		rc = save_step(&j, run, &m, state, &d, 0);
		err = d.err[0];
		if (rc == 0)
			rc = load_step(run, &m, state, step, &local, &err);
		rc = rc ? rc : local;
	}
	shf_run_close(run);
	if (rc == SHEAF_ENOENT && !(how & LOOK_WRITE))
		rc = 0;
	why[0] = '\0';
	if (rc < 0)
		snprintf(why, 300, "who comes later gets %d: %.250s", rc, err.msg);
	else if (simdisk_open_n(sys))
		snprintf(why, 300, "who comes later leaves descriptors open");
	shf_state_put(state);
	release(&m);
	simdisk_kill(disk, sys);
	return why;
}

const char *job_look(struct simdisk *disk, bool write, int64_t rows, struct seen *seen,
                     char why[300])
{
	struct job_state of = { .rows = rows };

	return visit(disk, LOOK_STAGES | (write ? LOOK_WRITE : 0), &of, -1, seen, why);
}

const char *job_look_at(struct simdisk *disk, bool write, const struct job_state *state,
                        struct seen *seen, char why[300])
{
	return visit(disk, write ? LOOK_WRITE : 0, state, -1, seen, why);
}

const char *job_go_on(struct simdisk *disk, int64_t step, int64_t rows, char why[300])
{
	struct job_state of = { .rows = rows };
	struct seen seen;

	return visit(disk, LOOK_WRITE | LOOK_STAGES, &of, step, &seen, why);
}

bool seen_has(const struct seen *seen, int64_t step)
{
	for (size_t i = 0; i < seen->n; i++)
		if (seen->steps[i] == step)
			return true;
	return false;
}
