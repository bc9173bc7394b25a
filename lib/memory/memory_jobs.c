/* SPDX-License-Identifier: Apache-2.0 */
/* Drops memory that earlier jobs left with the agent (T2 to T4 of memory_tier.h). A job that dies
 * leaves all its images with the agent. If they stayed, a few restarts would fill the machine's
 * memory; if the wrong ones were dropped, a restart would lose steps. */
#include "memory_jobs.h"
#include <string.h>
#include "aside.h"
#include "image_card.h"
#include "memory_choose.h"
#include "memory_steps.h"
#include "memory_tier.h"
#include "run.h"

struct heir {                   /* the earlier job whose memory T3 keeps; equal on all ranks */
	bool unknown;                   /* the job is unknown; then every job with a whole card
	                                 * keeps its memory */
	char job[33];                   /* "": no job */
	uint64_t turn;                  /* the largest `turn` in the cards of earlier jobs */
};

/* ---- dropping the memory of other jobs ---- */

/* The argument of note_other(). */
struct others {
	const char *job;                /* this job */
	const struct heir *heir;        /* NULL: no other job is kept */
	const struct shf_buf *whole;    /* struct shf_card_info of the whole cards on this node;
	                                 * NULL: unknown */
	struct shf_buf names;           /* the agent's names of the cards and images to drop, each
	                                 * with its NUL */
};

/* Returns whether a whole card on this node belongs to that job. */
static bool job_has_card(const struct shf_buf *whole, const char *job)
{
	const struct shf_card_info *t = (const void *)whole->data;

	for (size_t i = 0; i < whole->len / sizeof(*t); i++)
		if (strcmp(t[i].job, job) == 0)
			return true;
	return false;
}

/* Returns whether the memory of `job` is kept. This job keeps its memory. Another job keeps it if
 * it has a whole card on this node and is the heir, or if the heir is unknown. */
static bool stays(const struct others *o, const char *job)
{
	if (strcmp(job, o->job) == 0)
		return true;
	if (!o->heir || (o->whole && !job_has_card(o->whole, job)))
		return false;
	return o->heir->unknown || strcmp(job, o->heir->job) == 0;
}

/* Names are collected first and dropped afterwards, because the list must not change while it is
 * read. */
static int note_other(void *arg, const char *name)
{
	struct others *o = arg;
	char job[33];
	int rank, image;
	bool card;

	if (shf_card_parse(name, job, &rank, &image, &card) && !stays(o, job))
		shf_buf_add(&o->names, name, strlen(name) + 1);
	return 0;
}

/* Drops the memory that jobs other than this one and the heir have on this node. Returns false if
 * some of it may be left. */
static bool drop_others(struct sheaf_run *run, const struct heir *heir,
                        const struct shf_buf *whole)
{
	const struct shf_sys *sys = run->sys;
	struct others o = { run->tier->job, heir, whole, SHF_BUF_INIT };
	bool all = shf_sys_keep_list(sys, run->tier->keep, note_other, &o) == 0 &&
	           !o.names.oom;

	for (size_t at = 0; at < o.names.len;
	     at += strlen((char *)o.names.data + at) + 1)
		(void)shf_sys_keep_drop(sys, run->tier->keep, (char *)o.names.data + at);
	shf_buf_release(&o.names);
	return all;
}

void shf_memory_jobs_drop_others(struct sheaf_run *run)
{
	if (!run->tier->alone && run->tier->keep >= 0 && run->place.node_first == run->team.rank)
		run->tier->alone = drop_others(run, NULL, NULL);
}

/* ---- when a job opens the run ---- */

/* The search for the heir. */
struct weighing {
	struct sheaf_run *run;
	struct shf_newest disk;         /* the newest steps on disk */
	struct heir *heir;              /* the result */
};

/* Called for each step in memory, in the order of shf_memory_steps_join, until it returns a value
 * other than 0. The heir is the job of the first step that a load would take. If a load would take
 * none, the heir is the job of the first step: that step may seem not to follow the disk only
 * because this process sees an old state of a network file system, and its missing ranks may be on
 * nodes that this job does not have. */
static int weigh(void *arg, const struct shf_memory_step *r)
{
	struct weighing *w = arg;
	bool same = r->step == w->disk.known && strcmp(r->session, w->disk.session) == 0;
	struct sheaf_error why;
	int of_use = same ? 1 : r->here != r->ranks ? 0 :
	             shf_memory_step_follows(&w->run->store, r, &w->disk, &why);

	if (!w->heir->job[0] || of_use > 0)
		memcpy(w->heir->job, r->job, sizeof(w->heir->job));
	return of_use;
}

/* Returns the largest turn in the cards of earlier jobs. This job gets the next one, so that the
 * turn in a card shows which of two jobs was later. */
static uint64_t last_turn(const struct shf_buf *cards)
{
	const struct shf_card_info *t = (const void *)cards->data;
	uint64_t last = 0;

	for (size_t i = 0; i < cards->len / sizeof(*t); i++)
		last = t[i].turn > last ? t[i].turn : last;
	return last;
}

/* Finds the heir, or sets heir->unknown if that fails. [rank 0] */
static void choose_job_to_keep(struct sheaf_run *run, struct shf_buf *cards, struct heir *heir)
{
	struct weighing w = { .run = run, .heir = heir };
	struct sheaf_error why;

	heir->unknown = shf_store_newest(&run->store, 0, &w.disk, &why) < 0 ||
	                shf_memory_steps_join(cards, weigh, &w) < 0;
}

/* If an agent did not answer, the heir is unknown, and jobs with whole cards are kept: the cards
 * that show which job to keep may be with that agent. [collective] */
int shf_memory_jobs_drop_old(struct sheaf_run *run, struct sheaf_error *err)
{
	struct heir heir = { .unknown = true };
	struct shf_buf mine = SHF_BUF_INIT, cards = SHF_BUF_INIT;
	bool asked = false;
	uint64_t silent = 0;
	int rc = shf_memory_choose_gather(run, &mine, &asked, &cards, err);

	silent = run->place.node_first == run->team.rank && !asked;
	if (rc == 0)
		rc = shf_allreduce(&run->team, &silent, 1, SHEAF_MAX, err);
	if (run->team.rank == 0)
		heir.turn = last_turn(&cards);
	if (rc == 0 && run->team.rank == 0 && !silent)
		choose_job_to_keep(run, &cards, &heir);
	if (rc == 0)
		rc = shf_bcast(&run->team, 0, &heir, sizeof(heir), err);
	if (rc == 0)
		run->tier->turn = heir.turn + 1;
	/* Only one rank of each node, the one that asked the agent, makes it drop memory. */
	if (rc == 0 && asked)
		(void)drop_others(run, &heir, &mine);
	shf_buf_release(&mine);
	shf_buf_release(&cards);
	return rc;
}
