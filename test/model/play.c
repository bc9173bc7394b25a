/* SPDX-License-Identifier: Apache-2.0 */
#include "play.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "draw.h"
#include "model.h"
#include "model_world.h"

struct play {
	struct model m;
	struct world *w;
	struct play_counts *counts; /* NULL: nothing is counted */
	FILE *story;
	char *why;
	enum call_kind last[RUNS];
	bool has_last[RUNS];
};

static bool wrong(struct play *p, const char *what, const char *why)
{
	snprintf(p->why, 500, "%s: %.440s", what, why);
	return false;
}

/* Checks what a new process sees of a run. */
static bool look(struct play *p, int run, int node, bool agent, bool load)
{
	struct reply r;
	char why[400], what[60];

	if (!p->m.runs[run].exists)
		return true;
	world_look(p->w, run, node, agent, load, &r);
	if (p->counts) {
		p->counts->looks++;
		p->counts->loads += load;
	}
	if (model_looked(&p->m, run, agent ? 1 << node : 0, load, &r, why))
		return true;
	snprintf(what, sizeof(what), "a look at run%d %s node %d", run,
		 agent ? "with the agent of" : "without agents from", node);
	return wrong(p, what, why);
}

static bool look_all(struct play *p, int how)
{
	for (int run = 0; run < RUNS; run++) {
		if (!look(p, run, 0, false, how > 1))
			return false;
		for (int node = 0; node < world_nodes && how && p->m.agents; node++)
			if (!look(p, run, node, true, how > 1))
				return false;
	}
	return true;
}

static bool check_spare(struct play *p)
{
	bool open[JOBS];
	char why[400];

	for (int j = 0; j < JOBS; j++)
		open[j] = p->m.jobs[j].open;
	return !world_spare(p->w, open, why)[0] || wrong(p, "what is left behind", why);
}

static void count(struct play *p, const struct call *c, const struct reply *r)
{
	const struct job_model *j = &p->m.jobs[c->job];
	int run = c->kind <= C_CHILD_EXIT && c->kind != C_OPEN && j->open ? j->as.run : c->run;

	if (!p->counts)
		return;
	p->counts->calls++;
	p->counts->refused += r->rc < 0;
	p->counts->kinds[c->kind]++;
	if (p->has_last[run])
		p->counts->pairs[p->last[run]][c->kind]++;
	p->last[run] = c->kind;
	p->has_last[run] = true;
}

/* Makes one call, and checks what it has changed. */
static bool step(struct play *p, const struct call *c)
{
	struct reply r;
	char why[400];

	if (p->story) {
		fputs("  ", p->story);
		call_print(c, p->story);
	}
	world_do(p->w, c, &r);
	count(p, c, &r);
	if (p->story && (r.rc || r.id >= 0 || r.step >= 0))
		fprintf(p->story, "      %d step %" PRId64 " values %d %s\n", r.rc, r.step, r.id,
			r.msg);
	if (!model_take(&p->m, c, &r, why))
		return wrong(p, call_names[c->kind], why);
	if (p->m.faulty)
		return true;
	return look_all(p, c->look) && check_spare(p);
}

static void begin(struct play *p, const struct sequence *s, FILE *story, char why[500])
{
	why[0] = '\0';
	*p = (struct play){ .story = story, .why = why };
	model_init(&p->m, s->agents);
	p->w = world_new(s->world, s->agents, story != NULL && getenv("MODEL_CALLS"));
	if (story)
		fprintf(story, "world %" PRIu64 ", %s agents\n", s->world,
			s->agents ? "with" : "without");
}

/* After calls failed: all jobs end, a new one opens each run and closes it, and then a new process
 * looks at the runs. */
static bool survives(struct play *p)
{
	if (p->counts && world_fired(p->w))
		p->counts->faults_met++;
	world_calm(p->w);
	for (int j = 0; j < JOBS; j++) {
		struct reply r;

		if (p->m.jobs[j].open)
			world_do(p->w, &(struct call){ .kind = C_KILL, .job = j }, &r);
		if (p->m.jobs[j].child)
			world_do(p->w, &(struct call){ .kind = C_CHILD_EXIT, .job = j }, &r);
	}
	for (int run = 0; run < RUNS; run++) {
		struct call open = { .kind = C_OPEN, .run = run, .n = 1, .nodes = 1 };
		struct reply r;
		char why[400];

		if (!p->m.runs[run].exists)
			continue;
		world_do(p->w, &open, &r);
		if (r.rc < 0)
			return wrong(p, "after calls failed, a job", r.msg);
		world_do(p->w, &(struct call){ .kind = C_CLOSE }, &r);
		world_look(p->w, run, 0, false, true, &r);
		if (!model_survives(&p->m, run, &r, why))
			return wrong(p, "after calls failed", why);
	}
	return true;
}

/* Checks everything, then ends the jobs. */
static bool end(struct play *p)
{
	bool good = true;

	good = p->m.faulty ? survives(p) : look_all(p, 2);
	if (p->story && !good && getenv("MODEL_CALLS"))
		world_tell(p->w, p->story);
	world_free(p->w);
	return good;
}

bool play_draw(const struct play_opts *o, struct sequence *s, struct play_counts *counts,
	       FILE *story, char why[500])
{
	static const enum focus foci[] = { F_ANY,   F_ANY,   F_ANY,      F_ANY,
					   F_RULES, F_RULES, F_AVERAGES, F_MOVES };
	struct draw d = { .state = o->seed,
			  .next_id = 1,
			  .ranks_max = o->ranks_max,
			  .faults = o->faults,
			  .real = world_nodes == 1 };
	struct play p;
	bool good = true;

	d.focus = foci[draw_u(&d, 8)];
	if (o->seed % 16 == 15)
		d.focus = F_BRANCHES;
	d.faults &= draw_u(&d, 8) == 0;
	*s = (struct sequence){ .world = o->seed, .agents = draw_u(&d, 4) != 0 };
	if (draw_u(&d, 3) == 0)
		d.ranks_max = 1;
	begin(&p, s, story, why);
	p.counts = counts;
	while (good && s->n < o->calls && s->n < CALLS_MAX) {
		s->calls[s->n] = draw_call(&d, &p.m);
		good = step(&p, &s->calls[s->n++]);
	}
	good = (good && end(&p)) || (!good && (world_free(p.w), false));
	counts->sequences++;
	return good;
}

bool play_again(const struct sequence *s, FILE *story, char why[500])
{
	struct play p;
	bool good = true;

	begin(&p, s, story, why);
	for (int i = 0; i < s->n && good; i++)
		if (model_can(&p.m, &s->calls[i]))
			good = step(&p, &s->calls[i]);
	if (story && !good && getenv("MODEL_CALLS"))
		world_tell(p.w, story);
	return (good && end(&p)) || (!good && (world_free(p.w), false));
}

/* ---- shrinking ---- */

struct shrink {
	struct sequence s;
	bool (*again)(const struct sequence *s, char why[500]);
	char *why;
};

static bool play_here(const struct sequence *s, char why[500])
{
	return play_again(s, NULL, why);
}

bool play_apart(const struct sequence *s, char why[500])
{
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY);

		dup2(null, 2);
		alarm(60);
		play_again(s, NULL, why);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	snprintf(why, 500, "its process ended by signal %d", WTERMSIG(status));
	return !WIFSIGNALED(status);
}

/* Replaces the sequence by t, if t still fails. */
static bool fails(struct shrink *k, const struct sequence *t)
{
	char why[500];

	if (k->again(t, why))
		return false;
	k->s = *t;
	memcpy(k->why, why, 500);
	return true;
}

static bool without(struct shrink *k, int at, int n)
{
	struct sequence t = k->s;

	memmove(&t.calls[at], &t.calls[at + n], (size_t)(t.n - at - n) * sizeof(t.calls[0]));
	t.n -= n;
	return fails(k, &t);
}

/* Simplifies a call; how: number of the simplification. Returns false if it does not apply. */
static bool plainer(struct call *c, int how)
{
	switch (how) {
	case 0:
		c->look = 2;
		return true;
	case 1:
		c->look = 0;
		return true;
	case 2:
		c->variant = 0;
		return c->kind == C_OPEN;
	case 3:
		c->n = 1;
		return c->kind == C_OPEN;
	case 4:
		c->nodes = 1;
		return c->kind == C_OPEN;
	case 5:
		c->layout = L_ROWS;
		return c->kind == C_OPEN;
	case 6:
		c->images = 0;
		return c->kind == C_OPEN;
	case 7:
		c->keep = 0;
		return c->kind == C_OPEN;
	case 8:
		c->agent = false;
		return c->kind == C_OPEN;
	case 9:
		c->flags = 0;
		return c->kind == C_BEGIN;
	case 10:
		c->flags &= ~SHEAF_SAVE_MAY_DROP;
		return c->kind == C_BEGIN;
	case 11:
		c->flags &= ~SHEAF_SAVE_LATER;
		return c->kind == C_BEGIN;
	case 12:
		c->to = -1;
		return c->kind == C_COMMIT || c->kind == C_GATE;
	case 13:
		c->n = -1;
		return c->kind == C_GATE || c->kind == C_PUT;
	case 14:
	case 15:
		if (c->keep < how - 12)
			return false;
		c->keep = how - 13;
		return c->kind == C_OPEN;
	default:
		return false;
	}
}

/* Replaces the job that ends there by the next one that opens its run: one job goes on. */
static bool joined(struct sequence *s, int at)
{
	int from = s->calls[at].job, to, i = at + 1, run = 0;

	if (s->calls[at].kind != C_CLOSE && s->calls[at].kind != C_KILL)
		return false;
	for (int k = 0; k < at; k++)
		if (s->calls[k].kind == C_OPEN && s->calls[k].job == from)
			run = s->calls[k].run;
	while (i < s->n && (s->calls[i].kind != C_OPEN || s->calls[i].run != run))
		i++;
	if (i == s->n)
		return false;
	to = s->calls[i].job;
	s->calls[i] = (struct call){ .kind = C_DROP, .job = from, .slot = 1 };
	s->calls[at] = (struct call){ .kind = C_DROP, .job = from, .slot = 0 };
	for (int k = i; k < s->n && to != from; k++)
		if (s->calls[k].kind <= C_CHILD_EXIT && s->calls[k].job == to)
			s->calls[k].job = from;
	return true;
}

static bool join_jobs(struct shrink *k)
{
	bool any = false;

	for (int i = 0; i < k->s.n; i++) {
		struct sequence t = k->s;

		any |= joined(&t, i) && fails(k, &t);
	}
	return any;
}

static bool make_plainer(struct shrink *k)
{
	bool any = false;

	for (int i = 0; i < k->s.n; i++)
		for (int how = 0; how < 16; how++) {
			struct sequence t = k->s;

			if (!plainer(&t.calls[i], how) ||
			    memcmp(&t.calls[i], &k->s.calls[i], sizeof(t.calls[i])) == 0 ||
			    (how == 0 && k->s.calls[i].look == 0) || !fails(k, &t))
				continue;
			any = any || how > 1;
		}
	return any;
}

void play_shrink(struct sequence *s, bool (*again)(const struct sequence *s, char why[500]),
		 char why[500])
{
	struct shrink k = { .s = *s, .again = again ? again : play_here, .why = why };
	bool any = true;

	while (any) {
		any = false;
		for (int n = k.s.n / 2; n > 0; n /= 2)
			for (int at = k.s.n - n; at >= 0; at -= n)
				any |= at + n <= k.s.n && without(&k, at, n);
		any |= make_plainer(&k) || join_jobs(&k);
	}
	*s = k.s;
}
