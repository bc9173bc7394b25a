/* SPDX-License-Identifier: Apache-2.0 */
/* One agent's part in writing a step that lies on several nodes; the protocol is in flush_nodes.h.
 * The agents do not communicate. All that they know of each other is in files of the meeting's
 * directory, and each of these is complete or does not exist, because it is renamed into place.
 *
 * Every decision depends only on these files and on the run directory. So agents that see the same
 * files decide the same, and an agent that is too early gets EAGAIN and tries again. */
#include "flush_nodes.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "aside.h"
#include "err.h"
#include "have_table.h"
#include "lock.h"
#include "manifest_read.h"
#include "memory_dir_fill.h"
#include "step.h"
#include "step_copy.h"
#include "step_open.h"

#define HAVE_MAX (UINT64_C(16) << 20)   /* limit for the size of a have file */
#define PAUSE_MS 100            /* pause between two tries; after 100 tries, ten times as long */
#define WRITE_MS 600000         /* how long after the choice to wait for other agents' bytes */
#define PATIENCE_MS 300000      /* how long after the choice only the agent of rank 0 publishes */
#define PUT_BYTES (UINT64_C(8) << 20)   /* bytes per write */

struct table {                  /* one agent's have file, parsed */
	int32_t node;
	size_t first, end;              /* its cards are items [first, end) of the list
	                                 * meet.cards */
};
/* The state of one agent's part. */
struct meet {
	const struct shf_flush_request *m;
	struct shf_store store;         /* open for reading */
	int dir;                        /* descriptor of the meeting's directory */
	int lock;                       /* descriptor of this node's lock file; -1: not open */
	int32_t node;                   /* number of this node: the lowest rank of the job of which
	                                 * it has a card */
	size_t own;                     /* how many cards of the chosen step our have file lists */
	struct table *tables;           /* owned; the have files of all agents */
	size_t tables_n;
	struct shf_buf cards;           /* struct shf_card_info of every card in the have files */
	bool chosen;                    /* a step was chosen: `which` */
	int64_t chosen_ms;              /* when the step was chosen, for the timeouts */
	struct shf_memory_step which;
	struct shf_newest disk;         /* the newest step on disk when `which` was chosen */
	struct shf_view *view;          /* owned; this node's part of the step, mapped */
};

/* Sets out to the name that the meeting's directory has in .sheaf. */
static void name_flush_folder(const struct shf_flush_request *m, char out[48])
{
	snprintf(out, 48, "%s-%s", m->due ? "due" : "flush", m->job);
}

/* Reports the errno of a call for a file in the meeting's directory, as shf_fail_io does. */
static int fail_in_flush(const struct meet *t, int sys, const char *name, struct sheaf_error *err)
{
	char meeting[48];

	name_flush_folder(t->m, meeting);
	return shf_fail_io(err, sys, "%s/.sheaf/%s/%s", t->m->dir, meeting, name);
}

static int64_t now_ms(const struct meet *t)
{
	return shf_sys_mono_ns(t->m->sys) / 1000000;
}

/* ---- what each agent has ---- */

/* Returns card i of a list. It is copied, because the buffer may not be aligned. */
static struct shf_card_info card_at(const struct shf_buf *cards, size_t i)
{
	struct shf_card_info c;

	memcpy(&c, cards->data + i * sizeof(c), sizeof(c));
	return c;
}

/* Writes this node's have file for the other agents. If the file exists with the same content, it
 * is not written again, to save the fsync. */
static int write_own_table(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct shf_buf cards = SHF_BUF_INIT, text = SHF_BUF_INIT, was = SHF_BUF_INIT;
	char name[64];
	int rc = shf_memory_steps_read_cards(sys, t->m->keep, t->store.run, false, &cards);

	if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s: sending a request to the agent", t->m->dir);
	if (rc == 0)
		t->node = shf_have_put(&text, &cards, t->m->job);
	if (text.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	snprintf(name, sizeof(name), "have-%d", t->node);
	if (rc == 0 && (shf_text_read(sys, t->dir, name, &was, HAVE_MAX) < 0 ||
	                was.len != text.len || memcmp(was.data, text.data, text.len))) {
		rc = shf_text_put(sys, t->dir, t->dir, name, text.data, text.len, false);
		if (rc >= 0)
			rc = shf_dir_sync(&t->store, t->dir);
		rc = rc < 0 ? fail_in_flush(t, -rc, name, err) : 0;
	}
	shf_buf_release(&cards);
	shf_buf_release(&text);
	shf_buf_release(&was);
	return rc;
}

/* Reads one agent's have file into t->tables. A file that cannot be parsed is ignored, as if its
 * agent had not come yet. */
static int add_table(struct meet *t, const char *name, struct sheaf_error *err)
{
	struct table *more = shf_realloc(t->tables, t->tables_n + 1, sizeof(*more));
	struct shf_buf text = SHF_BUF_INIT;
	size_t first = t->cards.len / sizeof(struct shf_card_info);
	int rc;

	if (!more)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	t->tables = more;
	rc = shf_text_read(t->m->sys, t->dir, name, &text, HAVE_MAX);
	if (rc >= 0 && shf_have_get(&t->cards, t->m->job, text.data, text.len))
		more[t->tables_n++] = (struct table){ atoi(name + 5), first,
			t->cards.len / sizeof(struct shf_card_info) };
	shf_buf_release(&text);
	if (t->cards.oom)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	/* ENOENT: the step was published meanwhile, and the directory removed. */
	return rc < 0 && rc != -ENOENT ? fail_in_flush(t, -rc, name, err) : 0;
}

/* Reads the have files of all agents. */
static int read_all_tables(struct meet *t, struct sheaf_error *err)
{
	struct shf_names names;
	int rc = shf_names_read(t->m->sys, t->dir, &names);

	if (rc < 0)
		return fail_in_flush(t, -rc, "", err);
	t->tables_n = 0;
	shf_buf_reset(&t->cards);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL;)
		if (strncmp(p, "have-", 5) == 0 && p[5] >= '0' && p[5] <= '9')
			rc = add_table(t, p, err);
	shf_names_release(&names);
	return rc;
}

/* Returns the number of ranks of the job, according to the newest card of this node, or of any node
 * if this node has no card. This node's cards come first, because the have file of another node was
 * written by another process. */
static int32_t ranks_of_job(const struct meet *t)
{
	int64_t newest = -1;
	int32_t ranks = 0;
	bool own = false;

	for (size_t k = 0; k < t->tables_n; k++)
		for (size_t i = t->tables[k].first; i < t->tables[k].end; i++) {
			struct shf_card_info c = card_at(&t->cards, i);
			bool ours = t->tables[k].node == t->node;

			/* A card of this node takes precedence over those of other nodes, and then
			 * the newer one. */
			if (ours < own || (ours == own && c.step <= newest))
				continue;
			own = ours;
			newest = c.step;
			ranks = c.ranks;
		}
	return ranks;
}

/* Sets *here to the number of ranks of the job of which some agent has a card, and *ranks to how
 * many ranks there should be. done NULL: all cards count. Else only cards of the chosen step count,
 * and only those of agents that have written their part (done[k] for tables[k]). 0 or ENOMEM. */
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
			struct shf_card_info c = card_at(&t->cards, i);

			/* A rank has a card for each of its steps in memory; it is counted once. */
			if (c.rank >= *ranks || seen[c.rank] ||
			    (done && (!done[k] || strcmp(c.session, t->which.session))))
				continue;
			seen[c.rank] = 1;
			++*here;
		}
	shf_free(seen);
	return 0;
}

/* The argument of consider_common_step. */
struct choosing {
	struct meet *t;
	int rc;
	struct sheaf_error *err;
};

/* Callback of shf_memory_steps_join, for each step, newest first. Chooses the first step that is
 * complete over all nodes and can be written. */
static int consider_common_step(void *arg, const struct shf_memory_step *r)
{
	struct choosing *c = arg;
	struct meet *t = c->t;
	struct shf_newest disk;
	int rc;

	if (r->here != r->ranks || (t->m->due && !r->due))
		return 0;
	rc = shf_memory_step_state(&t->store, r, &disk, c->err);
	c->rc = rc < 0 ? rc : 0;
	if (rc != SHF_MEMORY_UNWRITTEN)
		return c->rc;
	t->chosen = true;
	t->chosen_ms = now_ms(t);
	t->which = *r;
	t->disk = disk;
	return 1;
}

/* Chooses the step to write, once there are have files for all ranks. All agents choose the same
 * step, because they read the same files and the same disk. EAGAIN: agents of some ranks have not
 * come. */
static int choose_common_step(struct meet *t, struct sheaf_error *err)
{
	struct choosing c = { .t = t, .err = err };
	int32_t here = 0, ranks = 0;
	int rc = read_all_tables(t, err);

	if (rc == 0 && count_ranks(t, NULL, &here, &ranks) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	if (rc == 0 && here < ranks)
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: a step in memory is spread over several "
		              "nodes, and the agents of only %d of its %d ranks answered in time; "
		              "run sheaf agent RUN --flush on all nodes", t->m->dir, here, ranks);
	if (rc == 0 && shf_memory_steps_join(&t->cards, consider_common_step, &c) < 0 && c.rc == 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for what is in memory");
	t->own = 0;
	/* open_own_part() compares t->own with the number of cards that it finds. */
	for (size_t k = 0; rc == 0 && t->chosen && k < t->tables_n; k++)
		for (size_t i = t->tables[k].first; i < t->tables[k].end; i++)
			t->own += t->tables[k].node == t->node &&
			          strcmp(card_at(&t->cards, i).session, t->which.session) == 0;
	return rc < 0 ? rc : c.rc;
}

/* ---- this node's bytes ---- */

/* Sets out to the name that the step's folder has in the meeting's directory. */
static void name_step(const struct meet *t, char out[64])
{
	snprintf(out, 64, "%" PRId64 "-%s", t->which.step, t->which.session);
}

/* Sets out to the name of the file whose existence says that a node's part is on disk. */
static void name_done(const struct meet *t, int32_t node, char out[64])
{
	snprintf(out, 64, "done-%d-%" PRId64, node, t->which.step);
}

/* The argument of put_stretch: what writes this node's bytes. */
struct putting {
	struct meet *t;
	int step;                       /* descriptor of the step's folder */
	int fd;                         /* descriptor of the file that is being written; -1: none */
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
	return rc < 0 ? fail_in_flush(p->t, -rc, file_being_written(p)->name, p->err) : 0;
}

/* Opens a file in the step's folder, and sets its final length. Every node does so, because it does
 * not know which comes first; the result is the same. Syncs the folder, so that the name is
 * durable. */
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
			return fail_in_flush(p->t, -rc, folder, p->err);
	}
	rc = p->fd = shf_sys_open(sys, dir, slash ? slash + 1 : name,
				  SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (rc >= 0)
		rc = shf_sys_resize(sys, p->fd, file_being_written(p)->bytes);
	if (rc >= 0)
		rc = shf_dir_sync(&p->t->store, dir);
	if (slash)
		shf_fd_close(sys, &dir);
	return rc < 0 ? fail_in_flush(p->t, -rc, name, p->err) : 0;
}

/* Callback of shf_view_each_range: writes one range of bytes that this node has. Nodes write
 * different ranges of the same files. */
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
		/* shf_view_each_range only reports bytes that are mapped here. */
		put = always(from != NULL)
		      ? shf_sys_pwrite(sys, p->fd, from, (size_t)n, at) : -EIO;
		if (put < 0)
			rc = fail_in_flush(p->t, (int)-put, file_being_written(p)->name, p->err);
	}
	p->rc = rc;
	return rc < 0;
}

/* Writes all bytes that this node has. Files and folders are synced before the caller writes the
 * done file. */
static int write_own_part(struct meet *t, const char *folder, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct putting p = { .t = t, .fd = -1, .err = err };
	int rc;

	p.step = shf_dir_make(sys, t->dir, folder);
	if (p.step < 0)
		return fail_in_flush(t, -p.step, folder, err);
	(void)shf_view_each_range(t->view, put_stretch, &p);
	rc = p.rc == 0 ? end_file(&p) : p.rc;
	shf_fd_close(sys, &p.fd);
	if (rc == 0) {
		rc = shf_dir_sync(&t->store, p.step);
		if (rc >= 0)
			rc = shf_dir_sync(&t->store, t->dir);
		rc = rc < 0 ? fail_in_flush(t, -rc, folder, err) : 0;
	}
	shf_fd_close(sys, &p.step);
	return rc;
}

/* Updates the cards of later steps of the job in this node's memory: it notes in them that they
 * follow the chosen step. Otherwise a restart would pass over them once the chosen step is on
 * disk. */
static int let_later_steps_follow(struct meet *t, struct sheaf_error *err)
{
	uint64_t rewinds = shf_store_rewinds(&t->store);
	int rc = shf_memory_steps_rebase(t->m->sys, t->m->keep, t->store.run, &t->which,
	                                 shf_card_disk_state(t->disk.known, t->disk.session,
	                                                     rewinds),
	                                 shf_card_disk_state(t->which.step, t->which.session,
	                                                     rewinds));

	return rc < 0 ? shf_fail_sys(err, -rc, "%s: sending a request to the agent", t->m->dir) : 0;
}

/* Maps this node's part. If it is less than the have file says, the agent has dropped some of it
 * meanwhile: EAGAIN, and the next call starts with a new have file. */
static int open_own_part(struct meet *t, struct sheaf_error *err)
{
	int rc;

	if (t->view)
		return 0;
	rc = shf_memory_step_open_parts(t->m->sys, t->m->keep, &t->which, NULL, &t->view, err);
	if (rc == 0)
		rc = shf_view_finish(t->view, false, err);
	if (rc == 0 && shf_view_parts(t->view) != t->own)
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: the agent no "
		              "longer holds all staging buffers of it, so it is not written",
		              t->m->dir, t->which.step);
	if (rc < 0) {
		shf_view_free(t->view);
		t->view = NULL;
	}
	return rc;
}

/* Writes this node's part, unless its done file exists. The order is: bytes, fsync, check that the
 * memory was not reused for another step meanwhile, done file. */
static int write_share(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct shf_stat st;
	char folder[64], done[64];
	int rc;

	name_step(t, folder);
	name_done(t, t->node, done);
	/* An earlier process of this node has written the part. */
	if (shf_sys_stat(sys, t->dir, done, false, &st) >= 0)
		return 0;
	if (shf_lock_is_held(&t->store)) /* a training job has the run open */
		return shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: a job has the "
		                "run open, and writes its own steps", t->m->dir, t->which.step);
	rc = write_own_part(t, folder, err);
	if (rc == 0 && !shf_view_is_unchanged(t->view))
		rc = shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: a newer save "
		              "reused its staging buffers while it was being written", t->m->dir,
		              t->which.step);
	if (rc == 0)
		rc = let_later_steps_follow(t, err);
	if (rc < 0)
		return rc;
	rc = shf_text_put(sys, t->dir, t->dir, done, "done\n", 5, false);
	if (rc >= 0)
		rc = shf_dir_sync(&t->store, t->dir);
	return rc < 0 ? fail_in_flush(t, -rc, done, err) : 0;
}

/* ---- publishing ---- */

/* Checks whether all agents have written their parts. Returns 0, or EAGAIN if some have not.
 * *first: whether this node has rank 0. */
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
	       : shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: the parts of only %d "
	                  "of its %d ranks were written in time; run sheaf agent RUN --flush on "
	                  "all nodes", t->m->dir, t->which.step, here, ranks);
}

enum on_disk { ABSENT, PUBLISHED, OVERTAKEN };

/* Looks for the chosen step on disk. OVERTAKEN: the run has another step of its number, or a newer
 * one. An error counts as ABSENT: publishing will meet it again and report it. */
static enum on_disk find_on_disk(struct meet *t, struct shf_store *store)
{
	struct shf_manifest m;
	struct shf_arena arena = { 0 };
	struct shf_newest disk;
	struct sheaf_error own;
	enum on_disk f = ABSENT;

	if (shf_store_newest(store, t->which.step, &disk, &own) < 0 ||
	    shf_memory_step_replaces(store, &t->which, &disk))
		return ABSENT;
	if (disk.exists)
		f = shf_store_manifest(store, t->which.step, &m, &arena, &own) == 0 &&
		    strcmp(m.session, t->which.session) == 0 ? PUBLISHED : OVERTAKEN;
	else if (disk.newest >= t->which.step)
		f = OVERTAKEN;
	shf_arena_release(&arena);
	return f;
}

/* Callback of shf_step_copy_if, with the run's lock held: sets the parent of the step (flush.c).
 * Then renames the folder that all agents have written to the stage that the copy takes up. */
static int adopt_stage(void *arg, struct shf_store *dst, struct sheaf_error *err)
{
	struct meet *t = arg;
	const struct shf_sys *sys = t->m->sys;
	char folder[64], stage[80];
	struct shf_newest disk;
	enum on_disk f = find_on_disk(t, dst);
	int rc = shf_memory_step_state(dst, &t->which, &disk, err);

	if (rc < 0 || f == PUBLISHED)
		return rc < 0 ? rc : 0;
	if (f == OVERTAKEN || rc == SHF_MEMORY_LOST)
		return shf_fail(err, SHEAF_EBUSY, "step %" PRId64 " in memory: it is not written, "
		                "because a later job has saved meanwhile", t->which.step);
	rc = shf_memory_step_check_passed(sys, t->m->keep, dst, &t->which, err);
	if (rc == 0 && !disk.exists)
		rc = shf_view_set_parent(t->view, disk.known, disk.session, err);
	if (rc < 0)
		return rc;
	name_step(t, folder);
	snprintf(stage, sizeof(stage), "copy-%s", folder);
	rc = shf_sys_rename(sys, t->dir, folder, dst->stage, stage, true);
	if (rc == -EEXIST) { /* left by an agent that died, or by a copy of the same step */
		rc = shf_tree_remove(sys, dst->stage, stage);
		if (rc >= 0)
			rc = shf_sys_rename(sys, t->dir, folder, dst->stage, stage, true);
	}
	if (rc == -ENOENT) /* already renamed, by an agent that died afterwards */
		return 0;
	return rc < 0 ? fail_in_flush(t, -rc, folder, err) : 0;
}

/* Removes all parts and done files, because the step was found wrong or could not be published. All
 * agents write their parts again. */
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

/* Publishes the step: copies it from the folder that the agents filled, which verifies every byte
 * first. If another agent was faster, that is success. Releases t->view. */
static int publish_common_step(struct meet *t, struct sheaf_report *report, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	struct shf_opts opts = { 0 };
	struct sheaf_checkpoint *step = NULL;
	struct shf_stat st;
	char folder[80] = "copy-", name[SHF_STEP_NAME];
	int rc, from = t->dir;

	name_step(t, folder + 5);
	shf_name_of_step(&t->store, name, t->which.step);
	if (shf_sys_stat(sys, t->dir, folder + 5, false, &st) < 0)
		from = t->store.stage;  /* renamed by an agent that did not publish it */
	rc = shf_view_open_disk(t->view, from, from == t->dir ? folder + 5 : folder, err);
	if (rc == 0)
		rc = shf_step_open_view(&step, t->view, NULL, NULL, &opts, t->m->dir, name, err);
	else
		shf_view_free(t->view);
	if (rc == 0)
		rc = shf_step_copy_if(step, t->m->dir, adopt_stage, t, report, err);
	if (rc == 0)
		shf_view_set_written(t->view);
	shf_step_put(step);     /* also frees the view */
	t->view = NULL;
	if (rc == 0 || find_on_disk(t, &t->store) == PUBLISHED)
		return 0;
	/* Another process has the run locked, or the run has moved on: the next try finds out
	 * which. */
	if (rc == SHEAF_EBUSY) {
		err->code = SHEAF_EAGAIN;
		return SHEAF_EAGAIN;
	}
	start_again(t);
	/* ENOENT: the copy deletes a file with wrong bytes. What other nodes wrote into the file is
	 * nowhere else, so the next pass of the copy does not find it. */
	return rc == SHEAF_ENOENT
	       ? shf_fail(err, SHEAF_EIO, "%s: step %" PRId64 " in memory: what the agents wrote "
	                  "does not match its checksums; the next flush writes it again", t->m->dir,
	                  t->which.step) : rc;
}

/* ---- one try ---- */

/* Whether the disk has the newest step of this node, or a newer one. A bad step of its number may
 * be another save, which is then set aside. */
static bool disk_has_gone_on(struct meet *t)
{
	struct shf_newest disk;
	struct sheaf_error own;

	return shf_store_newest(&t->store, t->m->step, &disk, &own) == 0 &&
	       ((disk.exists && !disk.is_bad) || disk.newest >= t->m->step);
}

/* Makes one try. All parts of it can be repeated: what an earlier try has done is not done again.
 * *over: there is nothing left to write. EAGAIN: try again later. */
static int try_flush(struct meet *t, bool *over, struct sheaf_report *report,
                     struct sheaf_error *err)
{
	enum on_disk f;
	bool first = false;
	int rc = 0;

	/* Before a step is chosen, the newest step of this node is compared with the disk; after
	 * that, find_on_disk() looks for the chosen step. */
	if (!t->chosen && disk_has_gone_on(t)) {
		*over = true;
		return 0;
	}
	if (!t->chosen)
		rc = choose_common_step(t, err);
	if (rc < 0 || !t->chosen)
		return rc;
	f = find_on_disk(t, &t->store);
	*over = f == OVERTAKEN;
	/* Another agent has published the step, so it is no longer due in this node's memory. */
	if (f == PUBLISHED && t->view)
		shf_view_set_written(t->view);
	if (f != ABSENT)
		return 0;
	rc = open_own_part(t, err);
	if (rc == 0)
		rc = write_share(t, err);
	if (rc == 0)
		rc = all_have_written(t, &first, err);
	/* The agent with rank 0 publishes, so that usually only one agent reads all bytes. The
	 * others wait for it, and take over if it does not. */
	if (rc == 0 && !first && now_ms(t) - t->chosen_ms < (t->m->wait_ms ? PATIENCE_MS : 0))
		return shf_fail(err, SHEAF_EAGAIN, "%s: step %" PRId64 " in memory: all of it is "
		                "written, but the agent of rank 0 has not published it in time; "
		                "see that agent's log", t->m->dir,
		                t->which.step);
	if (rc == 0)
		rc = publish_common_step(t, report, err);
	return rc;
}

/* Takes this node's lock, because two processes of a node would write the same files at the same
 * time. On a file system without locks it goes on without one: the copy that publishes the step
 * verifies every byte. EBUSY: another process has the lock. */
static int lock_node(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	char name[64];
	int rc;

	snprintf(name, sizeof(name), "lock-%d", t->node);
	t->lock = shf_sys_open(sys, t->dir, name,
			       SHF_O_WRITE | SHF_O_CREATE | SHF_O_NOFOLLOW, 0666);
	if (t->lock < 0)
		return fail_in_flush(t, -t->lock, name, err);
	rc = shf_sys_lock(sys, t->lock, true);
	if (rc == -EAGAIN)
		return shf_fail(err, SHEAF_EBUSY, "%s: another process is writing the step that "
		                "this node has in memory; wait for it", t->m->dir);
	return rc < 0 && !shf_lock_is_absent(rc) ? fail_in_flush(t, -rc, name, err) : 0;
}

/* Makes the meeting's directory, writes this node's have file and takes the node's lock. */
static int flush_nodes_open(struct meet *t, struct sheaf_error *err)
{
	const struct shf_sys *sys = t->m->sys;
	char name[48];
	int rc = shf_store_open(&t->store, sys, t->m->dir, err);

	if (rc < 0)
		return rc;
	name_flush_folder(t->m, name);
	t->dir = shf_dir_make(sys, t->store.dot, name);
	if (t->dir < 0)
		return fail_in_flush(t, -t->dir, "", err);
	rc = shf_dir_sync(&t->store, t->store.dot);
	if (rc < 0)
		return fail_in_flush(t, -rc, "", err);
	rc = write_own_table(t, err);
	return rc == 0 ? lock_node(t, err) : rc;
}

/* Whether to stop trying. Before a step is chosen, the other agents have wait_ms to come; after
 * that, WRITE_MS to write their bytes. */
static bool is_time_up(const struct meet *t, int64_t from_ms)
{
	if (!t->m->wait_ms)
		return true;
	return t->chosen ? now_ms(t) - t->chosen_ms >= WRITE_MS
	                 : now_ms(t) - from_ms >= t->m->wait_ms;
}

/* Tries every 100 ms at first, later every second. Each agent that finds the step on disk removes
 * the meeting's directory. */
int shf_flush_nodes(const struct shf_flush_request *m, int64_t *step, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct meet t = { .m = m, .dir = -1, .lock = -1, .cards = SHF_BUF_INIT,
		.store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 } };
	int64_t from_ms = now_ms(&t);
	bool over = false;
	char name[48];
	int rc = flush_nodes_open(&t, err);

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
		name_flush_folder(m, name);
		/* If another agent removed it first, that is no failure. */
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
