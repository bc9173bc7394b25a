/* SPDX-License-Identifier: Apache-2.0 */
#include "restarts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "step.h"
#include "save.h"
#include "run_open.h"
#include "save_commit.h"
#include "save_calls.h"
#include "save_end.h"
#include "save_status.h"
#include "state.h"
#include "takes.h"
#include "step_open.h"
#include "run_resume.h"
#include "run_ops.h"
#include "load.h"

#define ROOM (UINT64_C(1) << 30)

int64_t re_cols = 700;

static float value(int tensor, int64_t item, int64_t step)
{
	return (float)((item * 7 + tensor * 131 + step % 65521 * 1009) % 65521);
}

void re_free(struct re_mine *m)
{
	for (int t = 0; t < RE_TENSORS; t++)
		free(m->data[t]);
}

void re_paint(struct re_mine *m, int64_t step)
{
	for (int t = 0; t < RE_TENSORS; t++)
		for (int64_t i = 0; i < m->n * re_cols; i++)
			m->data[t][i] = value(t, m->lo * re_cols + i, step);
}

int64_t re_wrong(const struct re_mine *m, int64_t step)
{
	int64_t n = 0;

	for (int t = 0; t < RE_TENSORS; t++)
		for (int64_t i = 0; i < m->n * re_cols; i++)
			n += m->data[t][i] != value(t, m->lo * re_cols + i, step);
	return n;
}

struct sheaf_state *re_state(struct re_mine *m, int rank, int ranks)
{
	static const char *const names[RE_TENSORS] = { "a", "b", "c" };
	struct sheaf_state *state = shf_state_new();

	m->lo = (int64_t)rank * RE_ROWS / ranks;
	m->n = (int64_t)(rank + 1) * RE_ROWS / ranks - m->lo;
	for (int t = 0; t < RE_TENSORS; t++) {
		struct sheaf_slice s = { .size = sizeof(s), .name = names[t],
			.family = t ? "optimizer" : "model", .dtype = SHEAF_F32, .ndim = 2,
			.shape = { RE_ROWS, re_cols }, .start = { m->lo, 0 },
			.count = { m->n, re_cols } };

		m->data[t] = calloc((size_t)(m->n * re_cols) + 1, sizeof(float));
		s.data = m->data[t];
		(void)shf_state_add(state, &s, NULL);
	}
	return state;
}

void re_say(struct re_job *j, int rank, const char *what, int rc, const struct sheaf_error *err)
{
	if (!j->why[0])
		snprintf(j->why, sizeof(j->why), "rank %d: %s: %d %.400s", rank, what, rc,
		         err->msg);
}

static int load(struct re_job *j, struct sheaf_run *run, struct sheaf_state *state,
                struct sheaf_report *report, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = NULL;
	struct takes how = { .threads = j->plan.takes };
	int rc;

	if (j->plan.resumes)
		return shf_run_resume(run, state, SHEAF_LOAD_STRICT |
		                      (j->plan.falls ? SHEAF_LOAD_FALLBACK : 0), report, err);
	rc = shf_step_open(&step, run, j->plan.resume, err);
	if (rc == 0 && j->plan.takes)
		rc = takes_load(step, state, SHEAF_LOAD_STRICT, &how, NULL, report, err);
	else if (rc == 0)
		rc = shf_step_load(step, state, SHEAF_LOAD_STRICT, report, err);
	shf_step_put(step);
	return rc;
}

int re_resume(struct re_job *j, int rank, struct sheaf_run *run, struct sheaf_state *state,
                  struct re_mine *m, int64_t *at, struct sheaf_error *err)
{
	struct sheaf_report report = { .size = sizeof(report) };
	int rc = load(j, run, state, &report, err);

	if (rc == SHEAF_ENOENT) {
		*at = 0;
		return 0;
	}
	if (rc < 0)
		return rc;
	*at = report.step;
	if (re_wrong(m, *at) && !j->why[0])
		snprintf(j->why, sizeof(j->why), "rank %d: step %lld came back wrong", rank,
		         (long long)*at);
	if (rank == 0) {
		j->loaded = *at;
		j->passed = report.passed;
		j->disk_bytes = report.disk_bytes;
		j->memory_bytes = report.memory_bytes;
		j->peers = report.peers;
	}
	return 0;
}

static int end_late(struct re_job *j, int rank, struct sheaf_save **late, struct sheaf_error *err)
{
	struct sheaf_save *save = *late;
	bool fails = save->id.step == j->plan.fail;
	int rc;

	if (fails && rank == 0)
		(void)shf_save_fail(save, "the loss is no number", NULL);
	rc = shf_save_commit(save, -1, err);
	if (fails && rc == SHEAF_EFAILED) {
		atomic_store(&j->given_up, save->id.step);
		rc = 0;
	}
	shf_save_free(save);
	*late = NULL;
	return rc;
}

/* Commits the previous save. If `wait`, because this save goes to disk, too, it waits for it. */
static int ask_late(struct re_job *j, struct sheaf_save **late, bool wait, struct sheaf_error *err)
{
	int rc = shf_save_commit(*late, wait ? -1 : 0, err);

	if (rc == SHEAF_EAGAIN && !wait)
		return 0;
	if (rc == 0 && (*late)->id.step > atomic_load(&j->acked))
		atomic_store(&j->acked, (*late)->id.step);
	shf_save_free(*late);
	*late = NULL;
	return rc;
}

/* Saves one step. *late: a save in memory that is not on disk yet; this one, or the previous
 * one. */
static int save_one(struct re_job *j, int rank, struct sheaf_run *run, struct sheaf_state *state,
                    struct re_mine *m, int64_t step, struct sheaf_save **late,
                    struct sheaf_error *err)
{
	bool disk = j->plan.disk_every && step % j->plan.disk_every == 0;
	struct sheaf_save_opts opts = { .size = sizeof(opts),
		.flags = j->plan.flags | (disk ? 0 : SHEAF_SAVE_NO_DISK) };
	struct sheaf_save *save = NULL;
	int rc;

	re_paint(m, step);
	rc = shf_save_begin(&save, run, step, state, &opts, err);
	if (rc == SHEAF_EAGAIN) {
		j->refused += rank == 0;
		return 0;
	}
	/* If one rank gets an error here, the commit reports it on all. */
	for (int s = 0; rc == 0 && s < RE_TENSORS && opts.flags & SHEAF_SAVE_LAZY; s++)
		(void)shf_save_copied(save, s, -1, NULL);
	if (rc == 0 && opts.flags & SHEAF_SAVE_LAZY)
		re_paint(m, 9999);         /* training continues */
	if (rc == 0 && *late && j->plan.asks)
		rc = ask_late(j, late, disk, err);
	if (rc == 0)
		rc = shf_save_commit(save, disk && j->plan.late ? 0 : -1, err);
	if (rc == SHEAF_EAGAIN && disk && j->plan.late) {
		*late = save;
		return step == j->plan.fail ? end_late(j, rank, late, err) : 0;
	}
	if (rc == 0 && *late && !j->plan.asks)
		rc = end_late(j, rank, late, err);
	if (rc == 0 && step > atomic_load(&j->acked))
		atomic_store(&j->acked, step);
	shf_save_free(save);
	return rc;
}

static void hear(void *arg, int level, const char *line)
{
	struct re_job *j = arg;

	if (getenv("RE_LOG"))
		fprintf(stderr, "# %d %s\n", level, line);
	if (level == 1 && strstr(line, "have no second copy"))
		atomic_fetch_add(&j->once, 1);
}

static int rank_main(void *arg, int rank, struct sheaf_group *group)
{
	struct re_job *j = arg;
	struct shf_opts opts = { .flags = j->plan.readonly ? SHEAF_RUN_READONLY : SHEAF_RUN_CREATE |
		        SHEAF_RUN_METRICS,
		.timeout_ms = 60000, .images_max = j->plan.images, .copies = j->plan.copies,
		.log = hear, .arg = j,
		.agent = j->plan.no_agent ? NULL : "auto",
		.resume_attempts_max = j->plan.attempts };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct re_mine m = { 0 };
	struct sheaf_state *state = re_state(&m, rank, j->ranks);
	struct sheaf_save *late = NULL;
	int64_t at = 0;
	int rc;

	if (j->plan.behind)
		(void)sheaf_group_new(&opts.copies_group, &group->ops, NULL);
	if (j->plan.reader)
		opts.flags = SHEAF_RUN_READONLY;
	if (j->starts)
		j->starts(rank);
	rc = shf_run_open(&run, "run", group, &opts, j->sys[rank], &err);
	if (rc == 0 && j->plan.rewind_first)
		rc = shf_run_rewind(run, j->plan.resume, &err);
	if (rc == 0 && !j->plan.fresh)
		rc = re_resume(j, rank, run, state, &m, &at, &err);
	for (int64_t k = j->plan.first ? j->plan.first : at + 1;
	     rc == 0 && !j->plan.stop && !j->plan.reader && k <= j->plan.last; k++)
		rc = save_one(j, rank, run, state, &m, k, &late, &err);
	shf_save_free(late);
	if (rc < 0)
		re_say(j, rank, "the job", rc, &err);
	if (j->plan.dies)
		simdisk_kill(j->disk, j->sys[rank]);    /* the calls that follow only free memory */
	shf_run_close(run);
	sheaf_group_free(opts.copies_group);
	shf_state_put(state);
	re_free(&m);
	return rc;
}

void re_died(void *arg, int rank)
{
	struct re_job *j = arg;

	simdisk_kill(j->disk, j->sys[rank]);
}

static int node_of(const struct re_job *j, int rank)
{
	int n = j->plan.nodes ? j->plan.nodes : 1, node = rank * n / j->ranks;

	return j->plan.backwards ? n - 1 - node : node;
}

int re_play(struct re_job *j, uint64_t seed)
{
	static uint64_t pid = 100;
	int results[RE_RANKS], rc = 0;

	j->group.seed = seed;
	j->group.ranks = j->ranks;
	j->group.died = re_died;
	j->loaded = -1;
	j->peers = false;
	atomic_store(&j->once, 0);
	atomic_store(&j->given_up, 0);
	atomic_store(&j->acked, -1);
	j->killed = 0;
	for (int r = 0; r < j->ranks; r++)
		if (!j->sys[r])
			j->sys[r] = simdisk_process(j->disk, pid++, node_of(j, r));
	if (simgroup_run(&j->group, rank_main, j, results) < 0)
		return SHEAF_EBUG;
	for (int r = 0; r < j->ranks; r++) {
		rc = results[r] < rc ? results[r] : rc;
		j->killed += simdisk_is_dead(j->sys[r]);
		simdisk_kill(j->disk, j->sys[r]);
		j->sys[r] = NULL;
	}
	return rc;
}

struct simdisk *re_world(uint64_t seed)
{
	struct simdisk *d = simdisk_new(seed, SIMDISK_STRICT);

	simdisk_set_trace(d, false);
	simdisk_set_agents(d, ROOM);
	return d;
}

struct re_job re_on(struct simdisk *d, int ranks, struct re_plan plan)
{
	if (plan.resume == 0)
		plan.resume = SHEAF_LATEST;
	return (struct re_job){ .disk = d, .ranks = ranks, .plan = plan };
}

int re_told(struct simdisk *d, const char *what, const char *member)
{
	size_t n = 0;
	char *text = simdisk_get(d, "run/.sheaf/metrics.jsonl", &n);
	int lines = 0;

	for (char *p = text, *end; p && p < text + n; p = end + 1) {
		end = memchr(p, '\n', (size_t)(text + n - p));
		if (!end)
			break;
		*end = '\0';
		lines += strstr(p, what) && strstr(p, member);
	}
	free(text);
	return lines;
}

struct images {
	int n;
	char names[32][SHF_KEEP_NAME];
};

static int note_image(void *arg, const char *name)
{
	struct images *f = arg;

	if (strstr(name, ".image") && f->n < 32)
		snprintf(f->names[f->n++], SHF_KEEP_NAME, "%s", name);
	return 0;
}

int re_flip(struct simdisk *d, int node)
{
	static uint64_t pid = 40000;
	const struct shf_sys *sys = simdisk_process(d, pid++, node);
	struct images f = { 0 };
	int keep, n = 0;

	if (shf_sys_keep_open(sys, "auto/x", "", "", &keep, NULL) == 0)
		(void)shf_sys_keep_list(sys, keep, note_image, &f);
	for (int i = 0; i < f.n; i++) {
		struct shf_shm shm = { NULL, 0, -1 };

		if (shf_sys_keep_get(sys, keep, f.names[i], &shm) < 0)
			continue;
		((uint8_t *)shm.base)[shm.bytes / 2] ^= 16;
		shf_sys_shm_free(sys, &shm);
		n++;
	}
	simdisk_kill(d, sys);
	return n;
}
