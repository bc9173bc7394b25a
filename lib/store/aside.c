/* SPDX-License-Identifier: Apache-2.0 */
/* Rewinds a run: later steps are set aside, newest first, and each rename is durable before the
 * next, so that a crash leaves a shorter and valid run. The journal .sheaf/rewind says beforehand
 * which steps go, and has the checksum of the manifest of each. A journal may outlive its rewind,
 * if a crash undoes its removal. Because of the checksums it cannot touch a step that was saved
 * later under an old number. */
#include "aside.h"
#include "crc64.h"
#include "err.h"
#include "lock.h"
#include "manifest_read.h"
#include "marks.h"
#include "marks_read.h"
#include "steps.h"
#include "run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOURNAL_MAX ((size_t)64 << 20)
#define ODD_REWINDS (UINT64_C(1) << 62)         /* count of a file that we did not write */
#define ID_UNREADABLE "----------------"        /* step_id of a manifest that is too long or no
                                                 * file */

/* Checks once more whether a name is gone, because a network file system may have answered from an
 * old cache. Returns -ENOENT if it is gone, -EAGAIN if it exists now, or another errno. */
static int still_gone(const struct shf_sys *sys, int dir, const char *name)
{
	struct shf_stat st;
	int rc = shf_sys_stat(sys, dir, name, false, &st);

	return rc < 0 ? rc : -EAGAIN;
}

/* Identifies a step by the checksum of its manifest. Returns 1; 0 if the step is gone or foreign;
 * -errno if the manifest cannot be read now. The last case is an error and not 0, because a step
 * that is skipped here would stay after the rewind. */
static int step_id(struct shf_store *s, int64_t step, char id[17])
{
	const struct shf_sys *sys = s->sys;
	struct shf_buf text = SHF_BUF_INIT;
	char t[SHF_STEP_NAME];
	int dir, rc;

	shf_name_of_step(s, t, step);
	dir = shf_dir_open(sys, s->dir, t);
	if (dir == -ENOTDIR || dir == -ELOOP)
		return 0;
	if (dir == -ENOENT)
		dir = still_gone(sys, s->dir, t);
	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	rc = shf_text_read(sys, dir, "sheaf.json", &text, SHF_MANIFEST_MAX);
	if (rc == -ENOENT)
		rc = still_gone(sys, dir, "sheaf.json");
	shf_fd_close(sys, &dir);
	if (rc == 0)
		snprintf(id, 17, "%016llx", (unsigned long long)shf_crc64(text.data, text.len));
	shf_buf_release(&text);
	if (rc == -EFBIG || rc == -ELOOP || rc == -EISDIR) {
		memcpy(id, ID_UNREADABLE, 17);
		rc = 0;
	}
	return rc == 0 ? 1 : rc == -ENOENT ? 0 : rc;
}

/* Tries the name with the session first, then names with fresh digits, because the same step may
 * have been set aside before. After an error it checks whether the step has moved all the same: a
 * network file system may perform a rename and report an error. */
int shf_step_move(struct shf_store *s, int64_t step, int to, const char *session,
                  struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;
	char t[SHF_STEP_NAME], name[64], fresh[33];
	int rc;

	shf_name_of_step(s, t, step);
	for (int i = 0; i < 3; i++) {
		rc = session && i == 0 ? 0 : shf_id_draw(sys, fresh, 32);
		if (rc < 0)
			break;
		snprintf(name, sizeof(name), "%lld-%s", (long long)step,
		         session && i == 0 ? session : fresh);
		rc = shf_sys_rename(sys, s->dir, t, to, name, true);
		if (rc >= 0)
			return 0;
		if (shf_sys_stat(sys, s->dir, t, false, &st) == -ENOENT &&
		    shf_sys_stat(sys, to, name, false, &st) >= 0)
			return 0;
		if (rc != -EEXIST && rc != -ENOTEMPTY)
			break;
	}
	return shf_fail_io(err, -rc, "%s/%s: moving it away", s->path, t);
}

/* Copies the mark of a save that is about to be set aside to where the next save of its number does
 * not remove it: what a person called bad must not come back as a good step. A mark that was made
 * for another save, or cannot be read, is not copied. Returns 0 or a negative errno. */
static int keep_mark(struct shf_store *s, int64_t step, char mark, const char *marked,
                     const char *session)
{
	char name[64];

	if ((mark != 'b' && mark != 'k') || (marked[0] && strcmp(marked, session) != 0))
		return 0;
	shf_mark_aside_name(name, step, session);
	return shf_mark_write(s, name, mark, session);
}

/* Moves one step and makes that durable before the next one is moved. The caller moves the newest
 * first, so at any moment the run is a shorter run without a hole. The new name is
 * <step>-<session>. If the manifest cannot be read, the session is taken from the step's mark, or,
 * if it has none, replaced by 32 random digits. */
static int move_aside(struct shf_store *s, int aside, int64_t step, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	char t[SHF_STEP_NAME], where[320], marked[33], mark;
	int dir, rc;

	shf_name_of_step(s, t, step);
	snprintf(where, sizeof(where), "%.250s/%s", s->path, t);
	dir = shf_dir_open(s->sys, s->dir, t);
	if (dir < 0)
		return shf_fail_io(err, -dir, "%s", where);
	rc = shf_manifest_read(s->sys, dir, where, &m, &arena, err);
	if (rc == SHEAF_ENOENT)         /* returned as it is, it would mean that the step does not
	                                 * exist */
		rc = shf_fail_io(err, ENOENT, "%s/sheaf.json", where);
	mark = shf_mark_of(s, step, marked, NULL);
	if (rc == 0) {
		rc = keep_mark(s, step, mark, marked, m.session);
		if (rc < 0)
			rc = shf_fail_io(err, -rc, "%s/.sheaf/marks/%lld-%s", s->path,
			                 (long long)step, m.session);
	}
	if (rc == 0 || rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT)
		rc = shf_step_move(s, step, aside, rc == 0 ? m.session : marked[0] ? marked : NULL,
		                   err);
	shf_arena_release(&arena);
	shf_fd_close(s->sys, &dir);
	if (rc < 0)
		return rc;
	rc = shf_dir_sync(s, aside);
	if (rc == 0)
		rc = shf_dir_sync(s, s->dir);
	return rc < 0 ? shf_fail_io(err, -rc, "%s: fsync of the directory after setting step %lld "
	                            "aside", s->path,
	                            (long long)step) : 0;
}

int shf_step_set_aside(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	int rc, aside = shf_dir_make(s->sys, s->dot, "aside");

	if (aside < 0)
		return shf_fail_io(err, -aside, "%s/.sheaf/aside", s->path);
	rc = shf_dir_sync(s, s->dot);   /* aside itself may be new */
	rc = rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf", s->path) : move_aside(s, aside, step, err);
	shf_fd_close(s->sys, &aside);
	return rc;
}

/* Carries out a journal whose checksum is right. Each line names a step and the checksum of its
 * manifest. A step that does not match is left alone: another save has the number by now. The
 * journal is removed last, so after a power cut at any point the next job does the rest. */
static int apply(struct shf_store *s, const char *p, const char *end, struct sheaf_error *err)
{
	char line[48], want[17], id[17], *gap;
	int aside, rc;

	rc = aside = shf_dir_make(s->sys, s->dot, "aside");
	if (rc >= 0)
		rc = shf_dir_sync(s, s->dot);   /* makes the names of aside and of the journal
		                                 * durable before anything moves */
	if (rc < 0) {
		shf_fd_close(s->sys, &aside);
		return shf_fail_io(err, -rc, "%s/.sheaf/aside", s->path);
	}
	while (rc == 0 && shf_line_get(&p, end, "move ", line, sizeof(line))) {
		int64_t step = strtoll(line, &gap, 10);

		if (*gap != ' ' || strlen(gap + 1) != 16)
			continue;
		memcpy(want, gap + 1, 17);
		rc = step_id(s, step, id);
		if (rc < 0)
			rc = shf_fail_io(err, -rc, "%s: setting steps aside", s->path);
		else
			rc = rc && strcmp(id, want) == 0 ? move_aside(s, aside, step, err) : 0;
	}
	shf_fd_close(s->sys, &aside);
	if (rc < 0)
		return rc;
	rc = shf_sys_unlink(s->sys, s->dot, "rewind", false);
	if (rc >= 0)
		rc = shf_dir_sync(s, s->dot);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/rewind", s->path) : 0;
}

/* Reads the journal and carries it out. must: the caller has just written the journal, so its
 * absence is an error. */
static int rewind_carry_out(struct shf_store *s, bool must, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	const char *p, *end, *moves, *sum;
	char line[48];
	uint64_t to;
	int rc;

	rc = shf_text_read(s->sys, s->dot, "rewind", &text, JOURNAL_MAX);
	if (rc < 0) {
		rc = rc == -ENOENT && !must ? 0
		   : shf_fail_io(err, -rc, "%s/.sheaf/rewind", s->path);
		goto out;
	}
	p = text.len ? (const char *)text.data : "";
	end = p + text.len;
	if (shf_line_get(&p, end, "sheaf-rewind 1", line, 1) &&
	    shf_line_number(&p, end, "to ", &to)) {
		moves = sum = p;
		while (shf_line_get(&sum, end, "move ", line, sizeof(line)))
			;
		if (shf_line_sum_is_right((const char *)text.data, sum, end)) {
			rc = apply(s, moves, end, err);
			goto out;
		}
	}
	/* The journal is renamed into place when it is complete, so no crash leaves a damaged one.
	 * Guessing which steps a person wanted to set aside would be worse than stopping. */
	rc = shf_fail(err, SHEAF_ECORRUPT, "%s/.sheaf/rewind: not the journal of a rewind; remove "
	              "it and rewind again", s->path);
out:
	shf_buf_release(&text);
	return rc;
}

int shf_rewind_finish(struct shf_store *s, struct sheaf_error *err)
{
	return rewind_carry_out(s, false, err);
}

int shf_rewind_is_over(const struct shf_store *s, struct sheaf_error *err)
{
	if (!s->rewinding)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s: a rewind failed half-way; rewind again first",
	                s->path);
}

/* Returns whether the next job would find a journal. It would then finish this rewind, and whatever
 * is saved or pruned until then would build on steps that are to be set aside. Returns true if that
 * is unknown. */
static bool journal_stands(struct shf_store *s)
{
	struct shf_stat st;

	return shf_sys_stat(s->sys, s->dot, "rewind", false, &st) != -ENOENT;
}

/* Writes the journal, which lists the steps that are later than `to`, and sets *moves_n to their
 * number. Nothing is written if there are no such steps. */
static int write_journal(struct shf_store *s, int64_t to, const struct shf_steps *steps,
                         size_t *moves_n, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	char id[17];
	int rc = 0;

	*moves_n = 0;
	shf_buf_addf(&text, "sheaf-rewind 1\nto %lld\n", (long long)to);
	for (size_t i = 0; i < steps->n && rc == 0 && steps->all[i] > to; i++) {
		rc = step_id(s, steps->all[i], id);
		if (rc <= 0)
			continue;
		shf_buf_addf(&text, "move %lld %s\n", (long long)steps->all[i], id);
		(*moves_n)++;
		rc = 0;
	}
	shf_line_sum(&text, 0);
	if (rc == 0 && text.oom)
		rc = -ENOMEM;
	if (rc == 0 && *moves_n)
		rc = shf_text_write(s, s->dot, "rewind", text.data, text.len, false);
	shf_buf_release(&text);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/rewind", s->path) : 0;
}

/* Reads the count of rewinds. If the file has content that we did not write, the count is a number
 * that no run reaches, so that no step in memory matches it. */
static int rewinds_read(struct shf_store *s, uint64_t *n)
{
	struct shf_buf text = SHF_BUF_INIT;
	int rc = s->dot < 0 ? -ENOENT : shf_text_read(s->sys, s->dot, "rewinds", &text, 24);
	bool odd = rc == -EFBIG || text.len > 20;

	*n = 0;
	for (size_t i = 0; i < text.len && text.data[i] != '\n' && !odd; i++) {
		odd = text.data[i] < '0' || text.data[i] > '9';
		*n = *n * 10 + (text.data[i] - '0');
	}
	if (odd)
		*n = ODD_REWINDS;
	shf_buf_release(&text);
	return odd || rc == -ENOENT ? 0 : rc;
}

uint64_t shf_store_rewinds(struct shf_store *s)
{
	uint64_t n;

	return rewinds_read(s, &n) < 0 ? UINT64_MAX : n;
}

/* Counts the rewind in .sheaf/rewinds. A step in memory carries the count of the time when it was
 * saved, and is skipped if the count has changed. This is needed even if the step on disk that it
 * follows stays, because a step in memory may be later than the target of the rewind. */
static int count_rewind(struct shf_store *s, struct sheaf_error *err)
{
	char text[24];
	uint64_t before;
	int n, rc = rewinds_read(s, &before);

	if (rc >= 0) {
		n = snprintf(text, sizeof(text), "%" PRIu64 "\n", before + 1);
		rc = shf_text_write(s, s->dot, "rewinds", text, (size_t)n, false);
	}
	if (rc >= 0)
		rc = shf_dir_sync(s, s->dot);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/rewinds", s->path) : 0;
}

int shf_store_rewind(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_steps steps = { NULL, 0 };
	struct shf_manifest m;
	size_t moves_n;
	int rc;

	if (!s->writer)
		return shf_fail(err, SHEAF_EINVAL, "%s: a rewind needs a run that is open for "
		                "writing",
		                s->path);
	rc = shf_lock_check(s, err);
	if (rc == 0)
		rc = shf_rewind_finish(s, err);         /* finishes a rewind that failed before */
	if (rc == 0)
		/* The manifest is read only to refuse a target that cannot be loaded: with a
		 * mistyped number, all later steps would be set aside for nothing. */
		rc = shf_store_manifest(s, step, &m, &arena, err);
	if (rc < 0)
		goto out;
	rc = shf_steps_read(s, &steps);
	if (rc < 0) {
		rc = shf_fail_io(err, -rc, "%s: the steps to set aside", s->path);
		goto out;
	}
	/* The count is raised before the journal is written. If we crash in between, no step has
	 * moved, and the steps in memory are lost for nothing. In the other order, the next job
	 * would finish the rewind and might then load a step from memory that was rewound. */
	rc = count_rewind(s, err);
	if (rc == 0)
		rc = write_journal(s, step, &steps, &moves_n, err);
	if (rc == 0 && moves_n)
		rc = rewind_carry_out(s, true, err);
out:
	/* If the journal is still there, saves and prunes are refused (shf_rewind_is_over). */
	s->rewinding = rc < 0 && journal_stands(s);
	shf_free(steps.all);
	shf_arena_release(&arena);
	return rc;
}
