/* SPDX-License-Identifier: Apache-2.0 */
/* A life is a sequence of acts. An act is one job, or two at the same time, with random troubles;
 * then the power may be cut at some moment of it. Everything is a function of the seed. */
#include "life.h"
#include "rng.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ACTS_MAX = 4, DAY_S = 86400 };

const char *const life_troubles[TROUBLES] = {
	"failing calls", "renames that say other than they did", "failed fsyncs", "killed", "dead",
	"late", "starved", "clock jumps", "full disks", "two jobs",
};

struct act {                    /* one job, or two */
	struct job job[2];
	int n;
	bool has[TROUBLES];
	bool robbed;                    /* locks do not work */
	int calls_failing;
	int starve_rank;
	long starve_nth;
	const struct life_starve *starve;
	bool starved;
	bool failed;                    /* a call failed */
};
struct life {
	uint64_t seed, draws;
	const struct life_starve *starve;
	long flaw;
	struct life_counts *counts;
	FILE *story;
	struct simdisk *disk;           /* owned */
	enum simdisk_model model;
	struct ledger ledger;
	struct view view;               /* at the begin of the act */
	int64_t since;                  /* cut when the act began */
	struct act act;
	bool jumped;                    /* the clock jumped: files may be of the future */
	char *why;
};

static uint64_t draw(struct life *l, uint64_t n)
{
	return rng_mix(l->seed * UINT64_C(0x9E3779B97F4A7C15) + ++l->draws) % n;
}

static bool odds(struct life *l, unsigned one_in)
{
	return draw(l, one_in) == 0;
}

/* Small numbers are as likely as large ones. */
static int some(struct life *l, unsigned bits)
{
	return 1 + (int)draw(l, UINT64_C(1) << (1 + draw(l, bits)));
}

__attribute__((format(printf, 2, 3)))
static void tell(const struct life *l, const char *fmt, ...)
{
	va_list args;

	if (!l->story)
		return;
	va_start(args, fmt);
	vfprintf(l->story, fmt, args);
	va_end(args);
}

static int64_t now(const struct life *l)
{
	return (int64_t)simdisk_cut_n(l->disk) - 1;
}

/* ---- the plan of a job ---- */

struct course {                 /* the state of the run that a job can expect if all goes well */
	int64_t top, newest, mark;      /* -1: none */
	bool may_save;
};

/* Returns a step that is there, is certainly not marked bad, and will not be set aside by the next
 * process. */
static int64_t some_step(struct life *l)
{
	int at = (int)draw(l, ATTEMPTS);

	for (int i = 0; i < ATTEMPTS; i++) {
		int64_t step = l->ledger.attempts[(at + i) % ATTEMPTS].step;

		if (l->view.here[(at + i) % ATTEMPTS] &&
		    l->ledger.attempts[(at + i) % ATTEMPTS].rewinding == NEVER &&
		    (ledger_marked(&l->ledger, step, 0, NEVER - 1) ||
		     ledger_marked(&l->ledger, step, 'k', NEVER - 1)))
			return step;
	}
	return -1;
}

static struct deed plan_save(struct life *l, struct course *c)
{
	struct deed d = { .kind = DEED_SAVE, .step = c->top + 1 + (int64_t)draw(l, 2) };

	ledger_begin(&l->ledger, d.step, NEVER);
	d.salt = (uint64_t)l->ledger.n;
	c->top = c->newest = d.step;
	return d;
}

static struct deed plan_deed(struct life *l, struct course *c)
{
	uint64_t dice = draw(l, 100);
	int64_t step = some_step(l);

	if (dice < 20 && c->newest >= 0)
		return (struct deed){ .kind = DEED_LOAD, .step = SHEAF_LATEST };
	if (dice < 32 && c->newest >= 0)
		return (struct deed){ .kind = DEED_PRUNE };
	if (dice < 45 && step >= 0 && step <= c->top) {
		c->top = c->newest = step;
		return (struct deed){ .kind = DEED_REWIND, .step = step };
	}
	if (dice < 55 && step >= 0 && step == l->view.newest && step <= c->top)
		return (struct deed){ .kind = odds(l, 2) ? DEED_MARK_BAD : DEED_MARK_KEEP,
		                      .step = step };
	return plan_save(l, c);
}

static const int32_t placements[][JOB_RANKS] = {
	{ 0, 0, 0, 0 }, { 1, 1, 2, 2 }, { 1, 2, 1, 2 }, { 1, 1, 1, 1 }, { 2, 1, 1, 2 },
};

static void plan_job(struct life *l, struct job *j, int ranks_max)
{
	struct course c = { l->view.newest, l->view.newest, -1, true };
	static const int ranks[] = { 1, 2, 2, 3, 4, 4 };
	bool prunes = false;

	for (int i = 0; i < ATTEMPTS; i++)
		if (l->view.here[i] && l->ledger.attempts[i].step > c.top)
			c.top = l->ledger.attempts[i].step;
	*j = (struct job){ .disk = l->disk, .ranks = ranks[draw(l, 6)], .tiny = true,
		.rows = l->ledger.state.rows, .layout = (enum job_layout)draw(l, 3) };
	if (j->ranks > ranks_max)
		j->ranks = ranks_max;
	j->nodes = odds(l, 2) ? NULL : placements[draw(l, 5)];
	j->keep_last = odds(l, 4) ? 1 + (int)draw(l, 2) : 0;
	j->turns = odds(l, 8);
	j->staging = j->rows == 600 ? 2 << 16 : 0;
	j->file_bytes = odds(l, 8) ? 1200 : 0;
	j->deeds_n = 1 + (int)draw(l, 3);
	for (int i = 0; i < j->deeds_n; i++) {
		j->deeds[i] = plan_deed(l, &c);
		prunes |= j->deeds[i].kind == DEED_PRUNE;
		if (j->deeds[i].kind == DEED_MARK_BAD)  /* the newest step afterwards is unknown */
			j->deeds_n = i + 1;
	}
	if (prunes && !j->keep_last)
		j->keep_last = 1 + (int)draw(l, 2);
	/* A pruned step cannot be the target of a rewind. */
	for (int i = 1; i < j->deeds_n; i++)
		if (j->keep_last && (j->deeds[i].kind == DEED_REWIND ||
		                     j->deeds[i].kind >= DEED_MARK_BAD))
			j->deeds[i].kind = DEED_LOAD, j->deeds[i].step = SHEAF_LATEST,
			j->deeds_n = i;
	j->group.seed = draw(l, UINT64_MAX);
	j->asks = j->group.seed % 3 == 0;
	j->stays = j->group.seed % 4 == 1;
}

/* ---- its troubles ---- */

static const int errors[] = { EIO, ENOSPC, EDQUOT, EMFILE, ENOMEM, EINTR, EROFS, ESTALE, ENOENT,
                              EACCES };

static const struct shf_sys *some_process(struct life *l, const struct job *j)
{
	return odds(l, 3) ? NULL : j->sys[draw(l, (uint64_t)j->ranks)];
}

static void arm(struct life *l, const struct simdisk_fault *f, const char *what)
{
	tell(l, "    %s: call %d of kind %d%s fails how %d with %d, jumps %lld\n", what, f->nth,
	     (int)f->kind, f->always ? " and all after it" : "", (int)f->how, f->error,
	     (long long)f->jump_s);
	simdisk_fault(l->disk, f);
}

static void arm_call(struct life *l, const struct job *j, enum trouble t)
{
	static const enum simdisk_how hows[] = { SIMDISK_INSTEAD, SIMDISK_INSTEAD,
		SIMDISK_INSTEAD, SIMDISK_AFTER, SIMDISK_PART };
	static const int odd[] = { EIO, ENOENT, ESTALE, EEXIST };
	static const int64_t jumps[] = { 1, 3600, 3 * DAY_S, -3600, -40 * DAY_S, 4000 * DAY_S };
	struct simdisk_fault f = { .nth = some(l, 8), .error = errors[draw(l, 10)],
		.process = some_process(l, j) };

	switch (t) {
	case T_CALL:
		f.how = hows[draw(l, 5)];
		f.kind = f.how == SIMDISK_PART ? SIMDISK_PWRITE : odds(l, 2) ? SIMDISK_ANY
		       : (enum simdisk_kind)(1 + draw(l, SIMDISK_KEEP - 1));
		f.always = odds(l, 6);
		f.nth = f.kind == SIMDISK_ANY ? f.nth : some(l, 4);
		break;
	case T_RENAME:
		f = (struct simdisk_fault){ .nth = some(l, 2), .kind = SIMDISK_RENAME,
			.how = SIMDISK_AFTER, .error = odd[draw(l, 4)] };
		break;
	case T_FSYNC:
		f = (struct simdisk_fault){ .nth = some(l, 4), .kind = SIMDISK_FSYNC,
			.error = odds(l, 2) ? EIO : ENOSPC };
		break;
	case T_KILL:
		f.how = SIMDISK_KILL;
		f.process = j->sys[draw(l, (uint64_t)j->ranks)];
		break;
	default:
		f.how = SIMDISK_JUMP;
		l->jumped = true;
		f.jump_s = jumps[draw(l, 6)];
		break;
	}
	arm(l, &f, life_troubles[t]);
}

static void starve_begin(void *arg, int rank)
{
	struct act *a = arg;

	if (rank == a->starve_rank)
		a->starve->begin(a->starve_nth);
}

static void starve_end(void *arg, int rank)
{
	struct act *a = arg;

	if (rank == a->starve_rank)
		a->starved |= a->starve->end();
}

static void arm_trouble(struct life *l, enum trouble t)
{
	static const int64_t lates[] = { JOB_TIMEOUT_MS / 2, 2 * JOB_TIMEOUT_MS,
	                                 100 * JOB_TIMEOUT_MS };
	struct act *a = &l->act;
	struct job *j = &a->job[draw(l, (uint64_t)a->n)];
	struct simgroup_opts *g = &a->job[0].group;
	int ranks = a->job[0].ranks + (a->n > 1 ? a->job[1].ranks : 0);

	a->has[t] = true;
	switch (t) {
	case T_DIE:
		g->die_rank = (int)draw(l, (uint64_t)ranks);
		g->die_at = some(l, 7);
		g->die_sent = odds(l, 2);
		tell(l, "    rank %d dies at operation %d%s\n", g->die_rank, g->die_at,
		     g->die_sent ? ", heard" : "");
		break;
	case T_LATE:
		g->late_rank = (int)draw(l, (uint64_t)ranks);
		g->late_at = some(l, 7);
		g->late_ms = lates[draw(l, 3)];
		tell(l, "    rank %d is %lld ms late at operation %d\n", g->late_rank,
		     (long long)g->late_ms, g->late_at);
		break;
	case T_STARVE:
		a->starve_rank = (int)draw(l, (uint64_t)j->ranks);
		a->starve_nth = some(l, 11);
		j->armed = starve_begin;
		j->disarmed = starve_end;
		j->arg = a;
		tell(l, "    allocation %ld of rank %d fails\n", a->starve_nth, a->starve_rank);
		break;
	case T_SPACE:
		simdisk_set_space(l->disk, simdisk_used(l->disk) + 4096 * draw(l, 16));
		tell(l, "    the disk is nearly full\n");
		break;
	default:
		a->calls_failing++;
		arm_call(l, j, t);
		break;
	}
}

static void plan_act(struct life *l)
{
	struct act *a = &l->act;
	int troubles = (int)draw(l, 4);

	memset(a, 0, sizeof(*a));
	a->starve = l->starve;
	a->n = 1 + odds(l, 8);
	for (int i = 0; i < a->n; i++) {
		plan_job(l, &a->job[i], a->n > 1 ? 2 : JOB_RANKS);
		job_prepare(&a->job[i]);
	}
	if (a->n > 1) {
		a->has[T_RIVAL] = true;
		a->robbed = odds(l, 2);
		a->job[0].turns = true;
		simdisk_set_locks(l->disk, !a->robbed);
		tell(l, "    two jobs%s\n", a->robbed ? ", and the lock does not exclude" : "");
		troubles = odds(l, 2) ? 0 : 1;
	}
	for (int i = 0; i < troubles; i++) {
		enum trouble t = (enum trouble)draw(l, T_RIVAL);

		/* A failed fsync of one job may lose data that the other job believes to be
		 * durable, and it cannot know that. If the clock jumps by a day, a silent job looks
		 * dead. */
		if (!a->has[t] && !(a->n > 1 && (t == T_CALL || t == T_FSYNC)) &&
		    !(t == T_CLOCK && a->robbed))
			arm_trouble(l, t);
	}
}

/* ---- the results ---- */

static bool may_be_there(int rc)
{
	return rc == 0 || rc == SHEAF_EINDOUBT || rc == SHEAF_ELOST || rc == SHEAF_EAGAIN;
}

static void note_save(struct life *l, const struct job *j, const struct deed *d)
{
	struct attempt *a = &l->ledger.attempts[d->salt - 1];

	if (d->begun < 0)
		return;
	a->begun = d->begun;
	a->acked = d->acked < 0 ? NEVER : d->acked;
	for (int r = 0; r < j->ranks; r++)
		a->failed |= !j->dead[r] && !may_be_there(d->rc[r]);
}

/* A number that is saved again loses its mark. */
static void note_number(struct life *l, const struct deed *d)
{
	for (int i = 0; i < l->ledger.marks_n; i++)
		if (l->ledger.marks[i].step == d->step) {
			ledger_mark(&l->ledger, d->step, 0, d->begun,
			            l->act.n == 1 && d->acked >= 0 ? d->acked : NEVER);
			break;
		}
}

/* Returns whether the attempt was finished when this deed began. */
static bool is_before(const struct life *l, const struct attempt *a, int64_t begun)
{
	return a->begun < l->since || a->begun == -1 || (l->act.n == 1 && a->begun < begun) ||
	       (a->acked != NEVER && a->acked <= begun);
}

static void note_rewind(struct life *l, const struct deed *d)
{
	for (int i = 0; i < l->ledger.n; i++) {
		struct attempt *a = &l->ledger.attempts[i];

		if (a->step <= d->step || a->over || a->begun > d->ended ||
		    (l->act.n == 1 && a->begun > d->begun))
			continue;
		if (a->rewinding > d->begun)
			a->rewinding = d->begun;
		if (d->acked >= 0 && is_before(l, a, d->begun) && a->gone == NEVER)
			a->gone = d->acked;
	}
}

static void note_prune(struct life *l, const struct deed *d)
{
	int64_t newest = d->kind == DEED_SAVE ? d->step : -1;

	for (int i = 0; i < l->ledger.n; i++) {
		const struct attempt *a = &l->ledger.attempts[i];

		if (!a->over && a->begun != NEVER && a->begun <= d->ended && a->step > newest)
			newest = a->step;
	}
	for (int i = 0; i < l->ledger.n; i++) {
		struct attempt *a = &l->ledger.attempts[i];
		bool went = false;

		/* Another job's rewind may be recorded first and happen later. */
		if (a->step >= newest || a->over || a->begun > d->ended || a->gone <= d->begun)
			continue;
		for (int k = 0; k < d->pruned_n; k++)
			went |= d->pruned[k] == a->step;
		if (ledger_marked(&l->ledger, a->step, 'k', d->begun) && l->act.n == 1) {
			if (went)
				snprintf(l->why, 600, "I9: step %lld is pruned and marked keep",
				         (long long)a->step);
			continue;
		}
		a->pruning = a->pruning < d->begun ? a->pruning : d->begun;
		if (went && d->acked >= 0 && l->act.n == 1)
			a->gone = d->acked;
	}
}

static void note_deed(struct life *l, const struct job *j, const struct deed *d)
{
	bool alone = l->act.n == 1;

	if (d->begun < 0)
		return;
	switch (d->kind) {
	case DEED_REWIND:
		note_rewind(l, d);
		break;
	case DEED_MARK_BAD:
	case DEED_MARK_KEEP:
		ledger_mark(&l->ledger, d->step, d->kind == DEED_MARK_BAD ? 'b' : 'k', d->begun,
		            alone && d->acked >= 0 ? d->acked : NEVER);
		break;
	case DEED_LOAD:
		l->counts->loads += d->acked >= 0;
		break;
	case DEED_SAVE:
		note_number(l, d);
		if (j->keep_last)
			note_prune(l, d);
		break;
	default:
		if (j->keep_last)
			note_prune(l, d);
		break;
	}
}

static void note_job(struct life *l, const struct job *j, bool quiet)
{
	if (j->why[0])
		snprintf(l->why, 600, "%.590s", j->why);
	for (int i = 0; i < j->deeds_n; i++) {
		const struct deed *d = &j->deeds[i];

		tell(l, "    deed %d: kind %d, step %lld, salt %llu: %d (cuts %lld to %lld) %s\n",
		     i, (int)d->kind, (long long)d->step, (unsigned long long)d->salt, d->rc[0],
		     (long long)d->begun, (long long)d->acked, d->rc[0] ? d->err[0].msg : "");
		note_deed(l, j, d);
		l->counts->deeds++;
		l->counts->deeds_done += d->acked >= 0;
		if (quiet && d->rc[0] && !l->why[0])
			snprintf(l->why, 600, "nothing befell it, and deed %d is %d: %.400s", i,
			         d->rc[0], d->err[0].msg);
	}
}

static void count(struct life *l, bool quiet)
{
	const struct act *a = &l->act;
	bool fired = simdisk_fired(l->disk) > 0;

	l->counts->jobs += (uint64_t)a->n;
	l->counts->quiet += quiet;
	l->counts->failing_calls += (uint64_t)simdisk_fired(l->disk);
	l->act.failed = fired;
	for (int t = 0; t < TROUBLES; t++) {
		bool met = a->has[t];

		if (t == T_DIE || t == T_LATE)
			met &= a->job[0].stat.fired;
		else if (t == T_STARVE)
			met &= a->starved;
		else if (t != T_SPACE && t != T_RIVAL)
			met &= fired;
		l->counts->met[t] += met;
	}
}

static void act(struct life *l)
{
	struct act *a = &l->act;
	struct job *jobs[2] = { &a->job[0], &a->job[1] };
	bool quiet;

	l->since = now(l);
	plan_act(l);
	quiet = a->n == 1;
	for (int t = 0; t < TROUBLES; t++)
		quiet &= !a->has[t];
	for (int i = 0; i < a->n; i++)
		tell(l, "    job of %d ranks, layout %d, keep %d%s\n", a->job[i].ranks,
		     (int)a->job[i].layout, a->job[i].keep_last,
		     a->job[i].nodes ? ", nodes" : "");
	a->job[0].skip_fsync = l->flaw;
	(void)jobs_run(jobs, a->n);
	count(l, quiet);
	for (int i = 0; i < a->n; i++)
		for (int k = 0; k < a->job[i].deeds_n; k++)
			if (a->job[i].deeds[k].kind == DEED_SAVE)
				note_save(l, &a->job[i], &a->job[i].deeds[k]);
	for (int i = 0; i < a->n; i++)
		note_job(l, &a->job[i], quiet);
	if (!l->why[0] && a->job[0].stat.clock_ms > 115 * JOB_TIMEOUT_MS)
		snprintf(l->why, 600, "it took %lld ms", (long long)a->job[0].stat.clock_ms);
	simdisk_faults_clear(l->disk);
	simdisk_set_locks(l->disk, true);
	simdisk_set_space(l->disk, UINT64_C(1) << 44);
}

/* ---- the power cut, and later processes ---- */

static uint64_t hash_without_lock(struct simdisk *disk)
{
	(void)simdisk_remove(disk, "run/.sheaf/lock");
	return simdisk_hash(disk, "run");
}

/* Judges the disk as later users do: it is read, opened, left for two days and opened again. */
static void judge_later(struct life *l, struct simdisk *disk, int64_t cut, bool fresh)
{
	struct view view;
	struct seen seen;
	uint64_t hash;
	char why[300];

	l->counts->judged++;
	if (*ledger_judge(&l->ledger, disk, cut, fresh, &view, why) ||
	    *job_look_at(disk, false, &l->ledger.state, &seen, why) ||
	    *job_look_at(disk, true, &l->ledger.state, &seen, why) ||
	    *ledger_judge(&l->ledger, disk, cut, false, &view, why))
		goto out;
	if (seen.newest != view.newest || seen.damaged || view.journal) {
		snprintf(why, sizeof(why), "the newest step is %lld, a job sees %lld; %d damaged"
		         "%s", (long long)view.newest, (long long)seen.newest, seen.damaged,
		         view.journal ? ", a rewind left open" : "");
		goto out;
	}
	simdisk_advance(disk, (l->jumped ? 300 : 2) * DAY_S);
	if (*job_look_at(disk, true, &l->ledger.state, &seen, why) ||
	    *ledger_judge(&l->ledger, disk, cut, false, &view, why))
		goto out;
	hash = hash_without_lock(disk);
	if (*job_look_at(disk, true, &l->ledger.state, &seen, why))
		goto out;
	if (hash != hash_without_lock(disk) || (seen.staged && !l->ledger.halves))
		snprintf(why, sizeof(why), "I11: another recovery changes something, or %d stages "
		         "stay", seen.staged);
out:
	if (why[0] && !l->why[0])
		snprintf(l->why, 600, "at cut %lld of %lld: %s", (long long)cut,
		         (long long)now(l), why);
}

static void judge_copy(struct life *l, struct simdisk *disk, int64_t cut, bool fresh)
{
	struct simdisk *copy = simdisk_crash(disk, simdisk_cut_n(disk) - 1, NULL);

	judge_later(l, copy, cut, fresh);
	simdisk_free(copy);
}

static void crash(struct life *l)
{
	static const unsigned tears[] = { 0, 0, 512, 4096 };
	int64_t cut = odds(l, 3) ? now(l)
	            : l->since + (int64_t)draw(l, (uint64_t)(now(l) - l->since + 1));
	size_t n = simdisk_unsynced(l->disk, (size_t)cut);
	uint64_t *kept = calloc(n / 64 + 1, sizeof(*kept)), how = draw(l, 5);
	struct simdisk_choice choice = { kept, tears[draw(l, 4)], draw(l, UINT64_MAX) };
	struct simdisk *left;
	char why[300];

	if (!kept)
		abort();
	for (size_t i = 0; i < n; i++)
		if (how == 1 || (how == 2 && odds(l, 2)) || (how == 3 && odds(l, 6)) ||
		    (how == 4 && !odds(l, 6)))
			kept[i / 64] |= UINT64_C(1) << (i % 64);
	left = simdisk_crash(l->disk, (size_t)cut, &choice);
	free(kept);
	l->counts->cuts++;
	tell(l, "  the power is cut at %lld of %lld, after call %zu, %zu unsynced, tear %u\n",
	     (long long)cut, (long long)now(l), simdisk_cut_call(l->disk, (size_t)cut), n,
	     choice.tear);
	if (*ledger_judge(&l->ledger, left, cut, true, &l->view, why))
		snprintf(l->why, 600, "at cut %lld of %lld: %s", (long long)cut,
		         (long long)now(l), why);
	else if (odds(l, 3))
		judge_copy(l, left, cut, true);
	if (l->why[0]) {
		simdisk_free(left);
		return;
	}
	ledger_crashed(&l->ledger, left, cut, &l->view);
	simdisk_free(l->disk);
	l->disk = left;
}

static void go_on(struct life *l, bool all)
{
	int64_t opened = NEVER;
	char why[300];

	tell(l, "  it goes on%s\n", all ? ", all of it durable" : "");
	if (*ledger_judge(&l->ledger, l->disk, now(l), false, &l->view, why)) {
		snprintf(l->why, 600, "as it is: %s", why);
		return;
	}
	for (int i = 0; i < l->act.n; i++)
		if (l->act.job[i].opened >= 0 && l->act.job[i].opened < opened)
			opened = l->act.job[i].opened;
	ledger_go_on(&l->ledger, l->disk, &l->view, l->since, opened, all);
	if (all)
		simdisk_settle(l->disk);
}

/* A failed call may have left changes in flight that no later fsync covers: either the power is cut
 * now, or all of them become durable. */
static void fate(struct life *l)
{
	uint64_t dice = draw(l, 10);

	if (dice < 6)
		crash(l);
	else
		go_on(l, l->act.failed || dice < 8);
}

const char *life_run(uint64_t seed, const struct life_starve *starve, long flaw,
                     struct life_counts *counts, FILE *story, char why[600])
{
	struct life *l = calloc(1, sizeof(*l));
	int acts;

	if (!l)
		abort();
	*l = (struct life){ .seed = seed, .starve = starve, .flaw = flaw, .counts = counts,
	                    .story = story, .view = { .newest = -1 }, .why = why };
	why[0] = '\0';
	l->model = (enum simdisk_model)draw(l, 3);
	l->disk = simdisk_new(seed, l->model);
	/* Usually as small as possible; some have files of many pages, or are written in rounds. */
	l->ledger.state = (struct job_state){ .rows = odds(l, 32) ? 64 : odds(l, 64) ? 600 : 0,
	                                      .tiny = true };
	l->ledger.halves = l->model == SIMDISK_STRICT;
	l->ledger.twice = odds(l, 2);
	simdisk_set_dir_twice(l->disk, l->ledger.twice);
	l->ledger.twice &= l->ledger.halves;
	simdisk_set_trace(l->disk, story != NULL);
	job_pids(1000);
	if (odds(l, 4))
		ledger_put_foreign(&l->ledger, l->disk);
	simdisk_settle(l->disk);
	acts = 1 + (int)draw(l, ACTS_MAX);
	for (int i = 0; i < acts && !why[0]; i++) {
		tell(l, "  act %d, disk model %d\n", i + 1, (int)l->model);
		act(l);
		if (!why[0])
			fate(l);
	}
	if (!why[0])
		judge_later(l, l->disk, now(l), false);
	if (why[0] && story)
		simdisk_print(l->disk, story);
	counts->lives++;
	simdisk_free(l->disk);
	free(l);
	return why;
}
