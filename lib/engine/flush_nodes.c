/* SPDX-License-Identifier: Apache-2.0 */
/* One agent's part in writing a step that lies on several nodes; the protocol is in flush_nodes.h.
 * The agents never talk to each other. All they know of each other is in files of the meeting's
 * directory, and each file is complete or not there, because it is renamed into place.
 *
 * Every decision is a function of these files and the disk. So agents that look at the same files
 * decide the same, and one that looks too early gets EAGAIN and looks again. */
#include "flush_nodes.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "aside.h"
#include "err.h"
#include "lock.h"
#include "manifest_read.h"
#include "step.h"
#include "step_copy.h"
#include "step_open.h"

#define HAVE_MAX (UINT64_C(16) << 20)
#define RANKS_MAX (1 << 24)
#define PAUSE_MS 100            /* between looks, a second after ten of them */
#define WRITE_MS 600000         /* for the others' bytes */
#define PATIENCE_MS 300000      /* for the one that has rank 0 to publish */
#define PUT_BYTES (UINT64_C(8) << 20)

struct table {                  /* one agent's have, as it was read */
	int32_t node;
	size_t first, end;              /* its cards, of all that were read */
};
/* This agent's part in one meeting. */
struct meet {
	const struct shf_meeting *m;
	struct shf_store store;         /* open for reading */
	int dir;                        /* of the meeting */
	int lock;                       /* of this node; -1 */
	int32_t node;
	size_t own;                     /* cards of the chosen step that our have lists */
	struct table *tables;           /* owned; of everybody */
	size_t tables_n;
	struct shf_buf cards;           /* struct shf_told of all of them */
	bool chosen;
	int64_t chosen_ms;              /* when */
	struct shf_recalled which;
	struct shf_newest disk;         /* what it follows */
	struct shf_view *view;          /* owned; what is here of it */
};

/* The folder of the meeting, below .sheaf. */
static void name_meeting(const struct shf_meeting *m, char out[48])
{
	snprintf(out, 48, "%s-%s", m->due ? "due" : "flush", m->job);
}

/* An error of a file in the meeting's directory. */
static int fail_in_meeting(const struct meet *t, int sys, const char *name, struct sheaf_error *err)
{
	char meeting[48];

	name_meeting(t->m, meeting);
	return shf_fail_io(err, sys, "%s/.sheaf/%s/%s", t->m->dir, meeting, name);
}

static int64_t now_ms(const struct meet *t)
{
	return shf_sys_mono_ns(t->m->sys) / 1000000;
}

/* ---- who has what ---- */

/* Card i of a list. Copied, because bytes in a buffer may not be aligned. */
static struct shf_told card_at(const struct shf_buf *cards, size_t i)
{
	struct shf_told c;

	memcpy(&c, cards->data + i * sizeof(c), sizeof(c));
	return c;
}

/* A line for each card of the job, and their sum. */
static void table_to_text(struct meet *t, const struct shf_buf *cards, struct shf_buf *text)
{
	t->node = INT32_MAX;
	for (size_t i = 0; i < cards->len / sizeof(struct shf_told); i++) {
		struct shf_told c = card_at(cards, i);

		if (strcmp(c.job, t->m->job))
			continue;
		t->node = c.rank < t->node ? c.rank : t->node;
		shf_buf_addf(text, "%s %" PRId64 " %d %d %" PRIx64 " %" PRIx64 " %" PRIu64 " %"
		             PRIu64 " %" PRIu64 "\n", c.session, c.step, c.rank, c.ranks, c.base,
		             c.next, c.due, c.tries, c.bytes);
	}
	shf_line_sum(text, 0);
}

/* Parses a line. The file was written by another process, perhaps of another version, so every
 * number is bounded. */
static bool one_card(const char *line, struct shf_told *c)
{
	return sscanf(line, "%32[0-9a-f] %19" SCNd64 " %9d %9d %16" SCNx64 " %16" SCNx64
	              " %20" SCNu64 " %20" SCNu64 " %20" SCNu64, c->session, &c->step, &c->rank,
	              &c->ranks, &c->base, &c->next, &c->due, &c->tries, &c->bytes) == 9 &&
	       strlen(c->session) == 32 && c->step >= 0 && c->rank >= 0 && c->rank < c->ranks &&
	       c->ranks <= RANKS_MAX;
}

/* false for a file that is not all there: its writer is still busy, or died. */
static bool table_from_text(const struct meet *t, const struct shf_buf *text, struct shf_buf *cards)
{
	const char *start = (const char *)text->data, *end = start + text->len, *p = start, *stop;

	while (p < end && strncmp(p, "sum ", 4) != 0) {
		struct shf_told c = { .step = -1 };
		char line[400];

		stop = memchr(p, '\n', (size_t)(end - p));
		if (!stop || (size_t)(stop - p) >= sizeof(line))
			return false;
		memcpy(line, p, (size_t)(stop - p));
		line[stop - p] = '\0';
		if (!one_card(line, &c))
			return false;
		memcpy(c.job, t->m->job, sizeof(c.job));
		shf_buf_add(cards, &c, sizeof(c));
		p = stop + 1;
	}
	return p < end && shf_line_sum_is_right(start, p, end);
}

/* Writes what this node has, for the other agents to read. If the file says so already it is left
 * alone, since writing it again would only cost time. */
static int write_own_table(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct shf_buf cards = SHF_BUF_INIT, text = SHF_BUF_INIT, was = SHF_BUF_INIT;
	char name[64];
	int rc = shf_recall_cards(sys, t->m->keep, t->store.run, false, &cards);

	if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s: asking the agent", t->m->dir);
	if (rc == 0)
		table_to_text(t, &cards, &text);
	if (text.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	snprintf(name, sizeof(name), "have-%d", t->node);
	if (rc == 0 && (shf_text_read(sys, t->dir, name, &was, HAVE_MAX) < 0 ||
	                was.len != text.len || memcmp(was.data, text.data, text.len))) {
		rc = shf_text_put(sys, t->dir, t->dir, name, text.data, text.len, false);
		if (rc >= 0)
			rc = shf_dir_sync(&t->store, t->dir);
		rc = rc < 0 ? fail_in_meeting(t, -rc, name, err) : 0;
	}
	shf_buf_release(&cards);
	shf_buf_release(&text);
	shf_buf_release(&was);
	return rc;
}

/* Adds one agent's table. A table that cannot be parsed counts as not there: its agent has not come
 * yet. */
static int add_table(struct meet *t, const char *name, struct sheaf_error *err)
{
	struct table *more = shf_realloc(t->tables, t->tables_n + 1, sizeof(*more));
	struct shf_buf text = SHF_BUF_INIT;
	size_t was = t->cards.len;
	int rc;

	if (!more)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	t->tables = more;
	rc = shf_text_read(t->m->sys, t->dir, name, &text, HAVE_MAX);
	if (rc >= 0 && table_from_text(t, &text, &t->cards))
		more[t->tables_n++] = (struct table){ atoi(name + 5),
			was / sizeof(struct shf_told), t->cards.len / sizeof(struct shf_told) };
	else
		t->cards.len = was;
	shf_buf_release(&text);
	if (t->cards.oom)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	/* ENOENT: the step was published meanwhile, and the meeting removed. */
	return rc < 0 && rc != -ENOENT ? fail_in_meeting(t, -rc, name, err) : 0;
}

/* Reads the tables of all agents. */
static int read_all_tables(struct meet *t, struct sheaf_error *err)
{
	struct shf_names names;
	int rc = shf_names_read(t->m->sys, t->dir, &names);

	if (rc < 0)
		return fail_in_meeting(t, -rc, "", err);
	t->tables_n = 0;
	shf_buf_reset(&t->cards);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL;)
		if (strncmp(p, "have-", 5) == 0 && p[5] >= '0' && p[5] <= '9')
			rc = add_table(t, p, err);
	shf_names_release(&names);
	return rc;
}

/* How many ranks the job has, according to the newest card of this node, or of any node if this one
 * has none. Other cards may have been left by an older job with another number of ranks. */
static int32_t ranks_of_job(const struct meet *t)
{
	int64_t newest = -1;
	int32_t ranks = 0;
	bool own = false;

	for (size_t k = 0; k < t->tables_n; k++)
		for (size_t i = t->tables[k].first; i < t->tables[k].end; i++) {
			struct shf_told c = card_at(&t->cards, i);
			bool ours = t->tables[k].node == t->node;

			/* A card of this node counts more than any of another one, and of two the
			 * newer. */
			if (ours < own || (ours == own && c.step <= newest))
				continue;
			own = ours;
			newest = c.step;
			ranks = c.ranks;
		}
	return ranks;
}

/* Counts the ranks of the job that some card is of. done: only cards of the chosen step, of agents
 * that have written their part. */
static int count_ranks(const struct meet *t, const bool *done, int32_t *here, int32_t *ranks)
{
	uint8_t *seen;

	*here = 0;
	*ranks = done ? t->which.ranks : ranks_of_job(t);
	seen = shf_zalloc((size_t)*ranks + 1, 1);
	if (!seen)
		return SHEAF_ENOMEM;
	for (size_t k = 0; k < t->tables_n; k++)
		for (size_t i = t->tables[k].first; i < t->tables[k].end; i++) {
			struct shf_told c = card_at(&t->cards, i);

			/* A rank has a card for each of its steps in memory. */
			if (c.rank >= *ranks || seen[c.rank] ||
			    (done && (!done[k] || strcmp(c.session, t->which.session))))
				continue;
			seen[c.rank] = 1;
			++*here;
		}
	shf_free(seen);
	return 0;
}

/* The search for the step that all choose. */
struct choosing {
	struct meet *t;
	int rc;
	struct sheaf_error *err;
};

/* Called for each step, newest first. The first one that is complete over all nodes and can be
 * written is chosen. */
static int consider_common_step(void *arg, const struct shf_recalled *r)
{
	struct choosing *c = arg;
	struct meet *t = c->t;
	struct shf_newest disk;
	int rc;

	if (r->here != r->ranks || (t->m->due && !r->due))
		return 0;
	rc = shf_recall_state(&t->store, r, &disk, c->err);
	c->rc = rc < 0 ? rc : 0;
	if (rc != SHF_MEMORY_UNWRITTEN)
		return c->rc;
	t->chosen = true;
	t->chosen_ms = now_ms(t);
	t->which = *r;
	t->disk = disk;
	return 1;
}

/* All agents choose the same step, once all have come: the tables are the same for all, and so is
 * the disk. EAGAIN: some have not come. */
static int choose_common_step(struct meet *t, struct sheaf_error *err)
{
	struct choosing c = { .t = t, .err = err };
	int32_t here = 0, ranks = 0;
	int rc = read_all_tables(t, err);

	if (rc == 0 && count_ranks(t, NULL, &here, &ranks) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	if (rc == 0 && here < ranks)
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: a step in memory lies on several nodes, and "
		              "the agents of %d of its %d ranks have come", t->m->dir, here, ranks);
	if (rc == 0 && shf_recall_join(&t->cards, consider_common_step, &c) < 0 && c.rc == 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	t->own = 0;
	/* How many cards of the step this node said it has, to be compared with what the view
	 * finds. */
	for (size_t k = 0; rc == 0 && t->chosen && k < t->tables_n; k++)
		for (size_t i = t->tables[k].first; i < t->tables[k].end; i++)
			t->own += t->tables[k].node == t->node &&
			          strcmp(card_at(&t->cards, i).session, t->which.session) == 0;
	return rc < 0 ? rc : c.rc;
}

/* ---- its own bytes ---- */

/* The folder of the step, in the meeting's directory and then in the stage. */
static void name_step(const struct meet *t, char out[64])
{
	snprintf(out, 64, "%" PRId64 "-%s", t->which.step, t->which.session);
}

/* The file that says: what this node has of the step is on disk. */
static void name_done(const struct meet *t, int32_t node, char out[64])
{
	snprintf(out, 64, "done-%d-%" PRId64, node, t->which.step);
}

/* This node's bytes on their way to the meeting's directory. */
struct putting {
	struct meet *t;
	int step;                       /* the folder of the step */
	int fd;                         /* the file that is being written; -1 */
	uint32_t file;
	int rc;
	struct sheaf_error *err;
};

static const struct shf_mf_file *file_being_written(const struct putting *p)
{
	return &shf_view_manifest(p->t->view)->files[p->file];
}

/* Syncs and closes the file that is being written. */
static int end_file(struct putting *p)
{
	const struct shf_sys *sys = p->t->m->sys;
	int rc, closed;

	if (p->fd < 0)
		return 0;
	rc = shf_sys_fsync(sys, p->fd);
	closed = shf_sys_close(sys, p->fd);
	p->fd = -1;
	rc = rc < 0 ? rc : closed;
	return rc < 0 ? fail_in_meeting(p->t, -rc, file_being_written(p)->name, p->err) : 0;
}

/* Opens the file in the folder of the step, and gives it its final length. Every node does that,
 * because none knows which comes first; the result is the same. */
static int begin_file(struct putting *p, uint32_t file)
{
	const struct shf_sys *sys = p->t->m->sys;
	const char *name, *slash;
	char folder[64];
	int dir = p->step, rc;

	p->file = file;
	name = file_being_written(p)->name;
	slash = strrchr(name, '/');
	if (slash) {
		snprintf(folder, sizeof(folder), "%.*s", (int)(slash - name), name);
		rc = dir = shf_dir_make(sys, p->step, folder);
		if (rc < 0)
			return fail_in_meeting(p->t, -rc, folder, p->err);
	}
	rc = p->fd = shf_sys_open(sys, dir, slash ? slash + 1 : name,
				  SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (rc >= 0)
		rc = shf_sys_resize(sys, p->fd, file_being_written(p)->bytes);
	if (rc >= 0)
		rc = shf_dir_sync(&p->t->store, dir);
	if (slash)
		shf_fd_close(sys, &dir);
	return rc < 0 ? fail_in_meeting(p->t, -rc, name, p->err) : 0;
}

/* Writes one stretch. Nodes write to the same files at different places. */
static int put_stretch(void *arg, uint32_t file, uint64_t lo, uint64_t hi)
{
	struct putting *p = arg;
	const struct shf_sys *sys = p->t->m->sys;
	int rc = 0;

	if (p->fd < 0 || p->file != file) {
		rc = end_file(p);
		if (rc == 0)
			rc = begin_file(p, file);
	}
	for (uint64_t at = lo, n; at < hi && rc == 0; at += n) {
		const uint8_t *from;
		int64_t put;

		n = hi - at < PUT_BYTES ? hi - at : PUT_BYTES;
		from = shf_view_at(p->t->view, file, at, &n);
		/* shf_view_each calls only for bytes that are here. */
		put = always(from != NULL)
		      ? shf_sys_pwrite(sys, p->fd, from, (size_t)n, at) : -EIO;
		if (put < 0)
			rc = fail_in_meeting(p->t, (int)-put, file_being_written(p)->name, p->err);
	}
	p->rc = rc;
	return rc < 0;
}

/* Writes everything that this node has. Files and folders are synced before the caller says that it
 * is done. */
static int write_own_part(struct meet *t, const char *folder, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct putting p = { .t = t, .fd = -1, .err = err };
	int rc;

	p.step = shf_dir_make(sys, t->dir, folder);
	if (p.step < 0)
		return fail_in_meeting(t, -p.step, folder, err);
	(void)shf_view_each(t->view, put_stretch, &p);
	rc = p.rc == 0 ? end_file(&p) : p.rc;
	shf_fd_close(sys, &p.fd);
	if (rc == 0) {
		rc = shf_dir_sync(&t->store, p.step);
		if (rc >= 0)
			rc = shf_dir_sync(&t->store, t->dir);
		rc = rc < 0 ? fail_in_meeting(t, -rc, folder, err) : 0;
	}
	shf_fd_close(sys, &p.step);
	return rc;
}

/* Later steps of the job in this node's memory follow the chosen step from now on. */
static int let_later_steps_follow(struct meet *t, struct sheaf_error *err)
{
	uint64_t rewinds = shf_store_rewinds(&t->store);
	int rc = shf_recall_go_on(t->m->sys, t->m->keep, t->store.run, &t->which,
	                          shf_card_on(t->disk.known, t->disk.session, rewinds),
	                          shf_card_on(t->which.step, t->which.session, rewinds));

	return rc < 0 ? shf_fail_sys(err, -rc, "%s: asking the agent", t->m->dir) : 0;
}

/* Maps what this node has. If it has less than its table said, the agent dropped something: EAGAIN,
 * and the next try begins with what is there. */
static int open_own_part(struct meet *t, struct sheaf_error *err)
{
	int rc;

	if (t->view)
		return 0;
	rc = shf_recall_parts(t->m->sys, t->m->keep, &t->which, NULL, &t->view, err);
	if (rc == 0)
		rc = shf_view_finish(t->view, false, err);
	if (rc == 0 && shf_view_parts(t->view) != t->own)
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: the agent has "
		              "not all that it had of it", t->m->dir, t->which.step);
	if (rc < 0) {
		shf_view_free(t->view);
		t->view = NULL;
	}
	return rc;
}

/* Writes this node's part, if that was not done before. The order is: bytes, sync, a last look
 * whether the memory still was the step's, then the file that says done. */
static int write_share(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct shf_stat st;
	char folder[64], done[64];
	int rc;

	name_step(t, folder);
	name_done(t, t->node, done);
	if (shf_sys_stat(sys, t->dir, done, false, &st) >= 0)
		return 0;
	if (shf_lock_is_held(&t->store)) /* a job has the run open for writing */
		return shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: a job has the "
		                "run open", t->m->dir, t->which.step);
	rc = write_own_part(t, folder, err);
	if (rc == 0 && !shf_view_is_still(t->view))
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: its memory was "
		              "another step's meanwhile", t->m->dir, t->which.step);
	if (rc == 0)
		rc = let_later_steps_follow(t, err);
	if (rc < 0)
		return rc;
	rc = shf_text_put(sys, t->dir, t->dir, done, "done\n", 5, false);
	if (rc >= 0)
		rc = shf_dir_sync(&t->store, t->dir);
	return rc < 0 ? fail_in_meeting(t, -rc, done, err) : 0;
}

/* ---- publishing ---- */

/* Whether all agents have written what they have. *first: this node has rank 0. */
static int all_have_written(const struct meet *t, bool *first, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	bool *done = shf_zalloc(t->tables_n, sizeof(*done));
	int32_t here = 0, ranks = 0;
	struct shf_stat st;
	char name[64];
	int rc;

	*first = t->node == 0;
	for (size_t k = 0; done && k < t->tables_n; k++) {
		name_done(t, t->tables[k].node, name);
		done[k] = shf_sys_stat(sys, t->dir, name, false, &st) >= 0;
	}
	rc = done ? count_ranks(t, done, &here, &ranks) : SHEAF_ENOMEM;
	shf_free(done);
	if (rc < 0)
		return shf_fail(err, rc, "no memory for what is in memory");
	return here == ranks ? 0
	       : shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: what %d of its %d "
	                  "ranks had is written", t->m->dir, t->which.step, here, ranks);
}

enum found { NOT, THERE, OVER };        /* OVER: the run has gone another way */

/* Whether the chosen step is on disk, or the run has gone another way. An error counts as not
 * there: publishing will meet it again and report it. */
static enum found find_on_disk(struct meet *t, struct shf_store *store)
{
	struct shf_manifest m;
	struct shf_arena arena = { 0 };
	struct shf_newest disk;
	struct sheaf_error own;
	enum found f = NOT;

	if (shf_store_newest(store, t->which.step, &disk, &own) < 0)
		return NOT;
	if (disk.exists)
		f = shf_store_manifest(store, t->which.step, &m, &arena, &own) == 0 &&
		    strcmp(m.session, t->which.session) == 0 ? THERE : OVER;
	else if (disk.newest >= t->which.step)
		f = OVER;
	shf_arena_release(&arena);
	return f;
}

/* Called with the run's lock held: what all have written becomes the stage that a copy takes up. */
static int adopt_stage(void *arg, struct shf_store *dst, struct sheaf_error *err)
{
	struct meet *t = arg;
	const struct shf_sys *sys = t->m->sys;
	char folder[64], stage[80];
	struct shf_newest disk;
	enum found f = find_on_disk(t, dst);
	int rc = shf_recall_state(dst, &t->which, &disk, err);

	if (rc < 0 || f == THERE)
		return rc < 0 ? rc : 0;
	if (f == OVER || rc == SHF_MEMORY_LOST)
		return shf_fail(err, SHEAF_EBUSY, "step %" PRId64 " in memory: the run has gone on "
		                "meanwhile", t->which.step);
	name_step(t, folder);
	snprintf(stage, sizeof(stage), "copy-%s", folder);
	rc = shf_sys_rename(sys, t->dir, folder, dst->stage, stage, true);
	if (rc == -EEXIST) { /* of one who died, or of a copier that knew nothing of this */
		rc = shf_tree_remove(sys, dst->stage, stage);
		if (rc >= 0)
			rc = shf_sys_rename(sys, t->dir, folder, dst->stage, stage, true);
	}
	if (rc == -ENOENT) /* it is there already, of one who died then */
		return 0;
	return rc < 0 ? fail_in_meeting(t, -rc, folder, err) : 0;
}

/* Removes everything that was written, because it was found wrong. Nobody's part counts as done any
 * more. */
static void start_again(const struct meet *t)
{
	const struct shf_sys *sys = t->m->sys;
	char name[64];

	for (size_t k = 0; k < t->tables_n; k++) {
		name_done(t, t->tables[k].node, name);
		(void)shf_sys_unlink(sys, t->dir, name, false);
	}
	name_step(t, name);
	(void)shf_tree_remove(sys, t->dir, name);
}

/* The copy verifies every byte of the stage before it is published. If another agent was faster,
 * that is success. */
static int publish_common_step(struct meet *t, struct sheaf_report *report, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct sheaf_opts opts = { .size = sizeof(opts) };
	struct sheaf_step *step = NULL;
	struct shf_stat st;
	char folder[80] = "copy-";
	int rc, from = t->dir;

	name_step(t, folder + 5);
	if (shf_sys_stat(sys, t->dir, folder + 5, false, &st) < 0)
		from = t->store.stage;  /* adopted, and not published */
	rc = shf_view_on_disk(t->view, from, from == t->dir ? folder + 5 : folder, err);
	if (rc == 0)
		rc = shf_step_open_view(&step, t->view, NULL, NULL, &opts, t->m->dir, err);
	else
		shf_view_free(t->view);
	if (rc == 0)
		rc = shf_step_copy_if(step, t->m->dir, adopt_stage, t, report, err);
	if (rc == 0)
		shf_view_is_written(t->view);
	shf_step_put(step);     /* and the view with it */
	t->view = NULL;
	if (rc == 0 || find_on_disk(t, &t->store) == THERE)
		return 0;
	if (rc == SHEAF_EBUSY) {
		err->code = SHEAF_EAGAIN;
		return SHEAF_EAGAIN;
	}
	start_again(t);
	/* A file that was refused is gone, and part of it was nowhere else. */
	return rc == SHEAF_ENOENT
	       ? shf_fail(err, SHEAF_EIO, "%s: step %" PRId64 " in memory: what the agents wrote "
	                  "is not what its sums say; the next try writes it again", t->m->dir,
	                  t->which.step) : rc;
}

/* ---- one try ---- */

/* Whether the disk has gone beyond everything that is here. */
static bool disk_has_gone_on(struct meet *t)
{
	struct shf_newest disk;
	struct sheaf_error own;

	return shf_store_newest(&t->store, t->m->step, &disk, &own) == 0 &&
	       (disk.exists || disk.newest >= t->m->step);
}

/* One try. Each part of it can be repeated: what was done before is found done. *over: nothing is
 * to be written. */
static int try_flush(struct meet *t, bool *over, struct sheaf_report *report,
                     struct sheaf_error *err)
{
	enum found f;
	bool first = false;
	int rc = 0;

	/* As long as no step is chosen, this asks about all that is here; after that, find_on_disk
	 * asks about the step. */
	if (!t->chosen && disk_has_gone_on(t)) {
		*over = true;
		return 0;
	}
	if (!t->chosen)
		rc = choose_common_step(t, err);
	if (rc < 0 || !t->chosen)
		return rc;
	f = find_on_disk(t, &t->store);
	*over = f == OVER;
	if (f == THERE && t->view)
		shf_view_is_written(t->view);
	if (f != NOT)
		return 0;
	rc = open_own_part(t, err);
	if (rc == 0)
		rc = write_share(t, err);
	if (rc == 0)
		rc = all_have_written(t, &first, err);
	if (rc == 0 && !first && now_ms(t) - t->chosen_ms < (t->m->wait_ms ? PATIENCE_MS : 0))
		return shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: all of it is "
		                "written, and the agent of rank 0 publishes it", t->m->dir,
		                t->which.step);
	if (rc == 0)
		rc = publish_common_step(t, report, err);
	return rc;
}

/* One process per node, because two would write the same files at the same time. */
static int lock_node(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	char name[64];
	int rc;

	snprintf(name, sizeof(name), "lock-%d", t->node);
	t->lock = shf_sys_open(sys, t->dir, name,
			       SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (t->lock < 0)
		return fail_in_meeting(t, -t->lock, name, err);
	rc = shf_sys_lock(sys, t->lock, true);
	return rc == -EAGAIN ? shf_fail(err, SHEAF_EBUSY, "%s: another process writes what the "
	                                "memory of this node has", t->m->dir) : 0;
}

/* Makes the meeting's directory, and writes this node's table to it. */
static int meet_open(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	char name[48];
	int rc = shf_store_open(&t->store, sys, t->m->dir, err);

	if (rc < 0)
		return rc;
	name_meeting(t->m, name);
	t->dir = shf_dir_make(sys, t->store.dot, name);
	if (t->dir < 0)
		return fail_in_meeting(t, -t->dir, "", err);
	rc = shf_dir_sync(&t->store, t->store.dot);
	if (rc < 0)
		return fail_in_meeting(t, -rc, "", err);
	rc = write_own_table(t, err);
	return rc == 0 ? lock_node(t, err) : rc;
}

/* Before a step is chosen the others are waited for as long as the caller wants; after that, ten
 * minutes for their bytes. */
static bool is_time_up(const struct meet *t, int64_t from_ms)
{
	if (!t->m->wait_ms)
		return true;
	return t->chosen ? now_ms(t) - t->chosen_ms >= WRITE_MS
	                 : now_ms(t) - from_ms >= t->m->wait_ms;
}

/* Looks every 100 ms at first, later every second. The directory is removed by whoever sees the
 * step on disk first. */
int shf_meet(const struct shf_meeting *m, int64_t *step, struct sheaf_report *report,
             struct sheaf_error *err)
{
	struct meet t = { .m = m, .dir = -1, .lock = -1, .cards = SHF_BUF_INIT,
		.store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 } };
	int64_t from_ms = shf_sys_mono_ns(m->sys) / 1000000;
	bool over = false;
	char name[48];
	int rc = meet_open(&t, err);

	*step = -1;
	for (int i = 0; rc == 0; i++) {
		rc = try_flush(&t, &over, report, err);
		if (rc != SHEAF_EAGAIN || is_time_up(&t, from_ms))
			break;
		shf_sys_sleep_ms(m->sys, i < 100 ? PAUSE_MS : 10 * PAUSE_MS);
		rc = 0;
	}
	if (rc == 0 && t.chosen) {
		*step = over ? -1 : t.which.step;
		name_meeting(m, name);
		/* Whoever removes it last finds it gone, which is no failure. */
		(void)shf_tree_remove(m->sys, t.store.dot, name);
	}
	shf_view_free(t.view);
	shf_lock_close(m->sys, &t.lock);
	shf_fd_close(m->sys, &t.dir);
	shf_store_close(&t.store);
	shf_free(t.tables);
	shf_buf_release(&t.cards);
	return rc;
}
