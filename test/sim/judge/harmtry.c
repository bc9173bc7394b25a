/* SPDX-License-Identifier: Apache-2.0 */
#include "harmtry.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sheaf-inspect.h"
#include "step.h"
#include "simgroup.h"
#include "run_open.h"
#include "step_attached.h"
#include "step_open.h"
#include "verify_step.h"
#include "load.h"

void harm_eye_move(struct harm_eye *e, struct simdisk *disk)
{
	e->disk = disk;
	for (int r = 0; r < HARM_RANKS; r++)
		e->sys[r] = simdisk_process(disk, 5000 + (uint64_t)r, 0);
}

void harm_eye_open(struct harm_eye *e, struct simdisk *disk, uint64_t salt)
{
	*e = (struct harm_eye){ .seed = salt };
	harm_hold(&e->alone, 0, 1, salt);
	for (int r = 0; r < HARM_RANKS; r++)
		harm_hold(&e->half[r], r, HARM_RANKS, salt);
	harm_eye_move(e, disk);
}

void harm_eye_close(struct harm_eye *e)
{
	harm_hand_release(&e->alone);
	for (int r = 0; r < HARM_RANKS; r++)
		harm_hand_release(&e->half[r]);
}

/* ---- one rank ---- */

struct looking {
	struct harm_eye *e;
	struct harm_look *l;
	struct harm_look own[HARM_RANKS];
};

static void hear(void *arg, const struct sheaf_finding *f)
{
	struct harm_look *l = arg;
	struct harm_found *to = &l->found[l->found_n];

	if (l->found_n == HARM_FOUND)
		return;
	l->found_n++;
	snprintf(to->what, sizeof(to->what), "%s", sheaf_finding_kind_name(f->kind));
	snprintf(to->file, sizeof(to->file), "%s", f->file);
	snprintf(to->family, sizeof(to->family), "%s", f->family);
	snprintf(to->name, sizeof(to->name), "%s", f->name);
	to->block = f->block;
}

static void log_line(void *arg, int level, const char *line)
{
	struct harm_look *l = arg;
	size_t at = strlen(l->log);

	if (level <= 1)
		snprintf(l->log + at, sizeof(l->log) - at, "%s\n", line);
}

static void do_verify(struct harm_look *l, struct sheaf_checkpoint *step)
{
	struct sheaf_report report = { .size = sizeof(report), .finding = hear, .arg = l };
	struct sheaf_error err = { 0 };

	l->verify_rc = shf_step_verify(step, &report, &err);
	l->findings = report.findings;
	memcpy(l->verify_msg, err.msg, sizeof(l->verify_msg));
}

static void do_load(struct harm_look *l, struct sheaf_checkpoint *step, struct harm_hand *h)
{
	struct sheaf_error err = { 0 };

	harm_hand_want(h, l->opened);
	l->load_rc = shf_step_load(step, h->state, 0, NULL, &err);
	l->right = harm_hand_right(h);
	l->touched = harm_hand_touched(h);
	memcpy(l->load_msg, err.msg, sizeof(l->load_msg));
}

/* Reads one tensor of a step without any other load: header, page table and some pages of the
 * checksum table, one header of a file. */
static void do_read(struct harm_look *l, struct sheaf_checkpoint *step, const struct harm_eye *e)
{
	struct sheaf_error err = { 0 };

	l->read_rc = harm_read(step, e->alone.salt, e->looks / HARM_ORDERS, &l->read_right,
	                       l->read_who, &err);
	memcpy(l->read_msg, err.msg, sizeof(l->read_msg));
}

static void do_attached(struct harm_look *l, struct sheaf_checkpoint *step)
{
	struct sheaf_error err = { 0 };
	const void *bytes;
	size_t n;

	l->attached_rc = shf_step_attached(step, l->attached, &bytes, &n, &err);
	memcpy(l->attached_msg, err.msg, sizeof(l->attached_msg));
}

static int look_rank(void *arg, int rank, struct sheaf_group *group)
{
	struct looking *g = arg;
	struct harm_look *l = &g->own[rank];
	struct harm_hand *h = l->ranks == 1 ? &g->e->alone : &g->e->half[rank];
	struct shf_opts opts = { .flags = SHEAF_RUN_READONLY,
		.timeout_ms = 60000, .log = log_line, .arg = l };
	struct sheaf_error err = { 0 };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;

	if (!l->path)
		l->run_rc = shf_run_open(&run, l->dir, group, &opts, g->e->sys[rank], &err);
	if (l->path || l->run_rc == 0)
		l->open_rc = l->path ? shf_step_open_path(&step, l->path, group, &opts,
		                                          g->e->sys[rank], &err)
		                     : shf_step_open(&step, run, l->step, &err);
	memcpy(l->open_msg, err.msg, sizeof(l->open_msg));
	if (step) {
		l->opened = step->number;
		if (l->order == HARM_READ_FIRST && !l->verify_only)
			do_read(l, step, g->e);
		if (l->order == HARM_VERIFY_FIRST)
			do_verify(l, step);
		if (!l->verify_only)
			do_load(l, step, h);
		if (l->order != HARM_VERIFY_FIRST)
			do_verify(l, step);
		if (l->attached)
			do_attached(l, step);
	}
	shf_step_put(step);
	shf_run_put(run);
	return 0;
}

static void forget(struct harm_look *l)
{
	l->run_rc = l->open_rc = l->verify_rc = l->load_rc = l->attached_rc = l->read_rc = 1;
	l->open_msg[0] = l->verify_msg[0] = l->load_msg[0] = l->attached_msg[0] = '\0';
	l->opened = -1;
	l->found_n = 0;
	l->findings = 0;
	l->right = l->touched = l->read_right = false;
	l->log[0] = '\0';
}

/* Adds the findings and the memory of the other rank. */
static void join(struct harm_look *l, const struct harm_look *b)
{
	l->agreed = l->run_rc == b->run_rc && l->open_rc == b->open_rc &&
	            l->verify_rc == b->verify_rc && l->load_rc == b->load_rc &&
	            l->findings == b->findings && l->opened == b->opened;
	for (int i = 0; i < b->found_n && l->found_n < HARM_FOUND; i++)
		l->found[l->found_n++] = b->found[i];
	l->right &= b->right;
	l->read_right &= b->read_right;
	l->touched |= b->touched;
}

bool harm_look(struct harm_eye *e, struct harm_look *l)
{
	struct looking g = { .e = e, .l = l };
	struct simgroup_opts o = { .seed = e->seed + e->looks++, .ranks = l->ranks };
	int results[HARM_RANKS], rc = 0;

	forget(l);
	for (int r = 0; r < l->ranks; r++)
		g.own[r] = *l;
	if (l->ranks == 1)
		(void)look_rank(&g, 0, NULL);
	else
		rc = simgroup_run(&o, look_rank, &g, results);
	*l = g.own[0];
	l->agreed = true;
	if (l->ranks == 2)
		join(l, &g.own[1]);
	for (int r = 0; r < l->ranks; r++)
		if (simdisk_open_n(e->sys[r]))
			return false;
	return rc == 0;
}

/* ---- judging ---- */

static const char *say(char why[600], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *say(char why[600], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, 600, fmt, ap);
	va_end(ap);
	return why;
}

static bool is_changed(const struct harm_changed *c, const char *name)
{
	for (int i = 0; i < c->n; i++)
		if (strcmp(c->file[i]->name, name) == 0)
			return true;
	return c->extra && strcmp(c->extra, name) == 0;
}

bool harm_named(const struct harm_changed *c, const char *msg)
{
	for (int i = 0; i < c->n; i++)
		if (strstr(msg, c->file[i]->name))
			return true;
	return c->extra && strstr(msg, c->extra);
}

/* Returns whether a changed file has one of these kinds. */
static bool has(const struct harm_changed *c, enum harm_kind from, enum harm_kind to)
{
	for (int i = 0; i < c->n; i++)
		if (c->file[i]->kind >= from && c->file[i]->kind <= to)
			return true;
	return false;
}

static bool found_in(const struct harm_look *l, const char *name)
{
	for (int i = 0; i < l->found_n; i++)
		if (strcmp(l->found[i].file, name) == 0)
			return true;
	return false;
}

/* Checks that each changed file has a finding, and that no other file has. */
static void judge_verify(const struct harm_look *l, const struct harm_changed *c, char why[600])
{
	bool good = c->n == 0 && !c->extra;

	if (l->verify_rc != (good ? 0 : SHEAF_ECORRUPT) || (l->findings == 0) != good)
		say(why, "verify: %d: %.300s", l->verify_rc, l->verify_msg);
	for (int i = 0; i < l->found_n && !why[0]; i++)
		if (!is_changed(c, l->found[i].file))
			say(why, "verify: %s in %s, which nobody changed", l->found[i].what,
			    l->found[i].file);
	for (int i = 0; i < c->n && !why[0]; i++)
		if (!found_in(l, c->file[i]->name))
			say(why, "verify: nothing is said of %s", c->file[i]->name);
	if (!why[0] && c->extra && !found_in(l, c->extra))
		say(why, "verify: nothing is said of %s", c->extra);
}

/* For one changed bit: checks that there is one finding, with the right place. */
static void judge_place(const struct harm_look *l, const struct harm_changed *c, char why[600])
{
	const struct harm_found *f = &l->found[0];
	int64_t block = c->file[0]->kind == HARM_WEIGHTS ? 0 : -1;

	if (l->found_n != 1 || l->findings != 1)
		say(why, "verify: %d findings of one bit", l->found_n);
	else if (strcmp(f->what, "checksum") || f->block != block)
		say(why, "verify: %s in block %lld", f->what, (long long)f->block);
	else if (strcmp(f->family, c->family) || strcmp(f->name, c->name))
		say(why, "verify: accuses %s/%s, but it is in %s/%s", f->family, f->name,
		    c->family, c->name);
}

/* Checks the load. It reads the manifest, the checksum table and the tensor files. */
static void judge_load(const struct harm_look *l, const struct harm_changed *c, char why[600])
{
	bool good = !has(c, HARM_MANIFEST, HARM_WEIGHTS);

	if (l->load_rc != (good ? 0 : SHEAF_ECORRUPT))
		say(why, "load: %d: %.300s", l->load_rc, l->load_msg);
	else if (!good && !harm_named(c, l->load_msg))
		say(why, "load: names no changed file: %.300s", l->load_msg);
	else if (!good && l->touched)
		say(why, "load: refused, after memory was touched: %.300s", l->load_msg);
}

/* For one changed bit: checks that the message has the block and the tensor. */
static void judge_load_place(const struct harm_look *l, const struct harm_changed *c,
                             char why[600])
{
	char who[130];

	snprintf(who, sizeof(who), "(%s%s%s)", c->name[0] ? c->family : "header",
	         c->name[0] ? "/" : "", c->name);
	if (!strstr(l->load_msg, " block 0 ") || !strstr(l->load_msg, who))
		say(why, "load: not of block 0, %s: %.300s", who, l->load_msg);
}

static void judge_attached(const struct harm_look *l, const struct harm_changed *c, char why[600])
{
	bool good = !is_changed(c, l->attached);

	if (l->attached_rc != (good ? 0 : SHEAF_ECORRUPT) ||
	    (!good && !strstr(l->attached_msg, l->attached)))
		say(why, "%s: read with %d: %.300s", l->attached, l->attached_rc, l->attached_msg);
}

/* Checks the read of one tensor, which may succeed if only others are changed. */
static void judge_read(const struct harm_look *l, const struct harm_changed *c, char why[600])
{
	char own[130] = "";

	if (c->name)
		snprintf(own, sizeof(own), "%s/%s", c->family, c->name);
	if (l->read_rc == 0 && strcmp(own, l->read_who) == 0)
		say(why, "read: %s is changed, and nobody says so", own);
	else if (l->read_rc != 0 && (l->read_rc != SHEAF_ECORRUPT || !harm_named(c, l->read_msg)))
		say(why, "read: %s: %d: %.300s", l->read_who, l->read_rc, l->read_msg);
}

/* Checks that a step with a changed manifest cannot be opened. */
static const char *judge_closed(const struct harm_look *l, char why[600])
{
	if (l->open_rc != SHEAF_ECORRUPT)
		say(why, "open: %d %.300s", l->open_rc, l->open_msg);
	else if (!strstr(l->open_msg, "manifest") && !strstr(l->open_msg, "sheaf.json"))
		say(why, "open: says nothing of sheaf.json: %.300s", l->open_msg);
	return why;
}

const char *harm_judge(const struct harm_look *l, const struct harm_changed *c, char why[600],
                       bool *wrong_restore)
{
	why[0] = '\0';
	*wrong_restore = (l->load_rc == 0 && !l->right) || (l->read_rc == 0 && !l->read_right);
	if (*wrong_restore)
		return say(why, "loaded, and it is not what was saved");
	if (!l->agreed)
		return say(why, "ranks differ");
	if (!l->path && l->run_rc)
		return say(why, "run: %d %.300s", l->run_rc, l->open_msg);
	if (has(c, HARM_MANIFEST, HARM_MANIFEST))
		return judge_closed(l, why);
	if (l->open_rc)
		return say(why, "open: %d %.300s", l->open_rc, l->open_msg);
	judge_verify(l, c, why);
	if (!why[0] && c->name)
		judge_place(l, c, why);
	if (!why[0] && !l->verify_only)
		judge_load(l, c, why);
	if (!why[0] && !l->verify_only && c->name && c->file[0]->kind == HARM_WEIGHTS)
		judge_load_place(l, c, why);
	if (!why[0] && l->read_rc <= 0)
		judge_read(l, c, why);
	if (!why[0] && l->attached)
		judge_attached(l, c, why);
	return why;
}
