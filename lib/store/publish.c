/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of the commit, and the code of the publish, the part that rank 0 does alone: C5 to
 * C9.
 *
 * Names: S = .sheaf/stage/<step>-<session>/, T = checkpoint-<step>/. Rank 0 = lowest rank.
 *
 *   C0  [all] begin: agree step, plan, flags; T must not exist; mkdir S; set the sizes of the
 *       files (of a lazy save in the background; C2 then waits for that, too)
 *   C1  [all] copy; stamp the step before the first and after the last byte; digest
 *   C2  [all] exchange edges; write pages; sums and digests of what is written
 *   C3  [all] each writer fsyncs each file through the descriptor it wrote with, closes (direct
 *       writes used a second descriptor of the same file; each of them returned its own error)
 *   C4  [all] agree: code (the first by rank), stamps equal, sum of each file's digests and
 *       header = sum of its blocks, bytes written = plan
 *   C5  [all] index, attached files, sums written by their owners, fsynced; agree again;
 *       [0] alive-* removed, names and sizes checked, folders of S and S fsynced
 *   C6  [0] sheaf.json.tmp written, fsynced, renamed to sheaf.json; S fsynced again
 *   C7  [0] the lock file still names this session, else ELOST
 *   C8  [0] rename S -> T, never replacing
 *   C9  [0] fsync the run directory, then .sheaf/stage
 *   C10 [all] rank 0 sends the outcome to all ranks; prune
 *
 * A crash before C8 leaves S, which recovery deletes; after C8, S or T and never both; after C9,
 * T. A failure at C0..C7 returns its code, S is removed and T never appears. If the outcome of C8
 * cannot be determined, or C9 fails, the code is EINDOUBT. It is 0 only after C10.
 *
 *   I1  Nothing under checkpoint-* is created, written or truncated except by C8's rename; marks
 *       and tries live in .sheaf/; data files do not change after C3.
 *   I2  When sheaf.json exists in S, every byte and directory entry it names was fsynced by its
 *       writer with success.
 *   I3  The directory entry sheaf.json is durable before C8 starts.
 *   I4  The manifest is written only if every rank reported success for the same (session, plan,
 *       step), with equal stamps and equal digests.
 *   I5  S carries a session never used before; no process writes or deletes in another live
 *       session's S.
 *   I6  C8 never replaces: if T exists, in any form, the save is EEXIST and T is untouched.
 *   I7  commit returned 0 on any rank => T survives any later power cut. It returned a code other
 *       than 0, EAGAIN, EINDOUBT, ELOST on any rank => T never exists.
 *   I8  A reader sees T with a valid manifest and all its bytes, or no T.
 *   I9  No step is deleted unless a newer one on the same branch has been re-read and verified
 *       since its commit, and keep rules allow; marks k are never deleted, nor is the loaded
 *       step before this job has committed one.
 *   I10 A staging page is reused only after the write that took it completed; if that step then
 *       fails, no other step is affected.
 *   I11 Recovery is idempotent, needs only the lock, and never creates a step.
 *   I12 The agent's image k is discarded only when image k+1 is whole at every rank of the
 *       session, or a disk step >= k is committed.
 */
#include "publish.h"
#include "err.h"
#include "lock.h"
#include "stage.h"
#include "run_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct want {                   /* a file that S must hold */
	const char *name;       /* borrowed from the manifest */
	uint64_t bytes;
	bool seen;              /* found in S, with this size */
};
struct wants {
	struct want *all;       /* owned */
	size_t n;
};
/* What all functions of C5 to C9 need. */
struct check {
	struct shf_store *s;
	struct shf_stage *g;
	const struct shf_manifest *m;
	struct wants wants;
	struct sheaf_error *err;
	uint64_t there;         /* bytes of the sheaf.json that S already has; 0: S has no
	                         * sheaf.json, and C6 is to write it */
};

/* Compares two struct want by name, for qsort and bsearch. */
static int wants_by_name(const void *a, const void *b)
{
	return strcmp(((const struct want *)a)->name, ((const struct want *)b)->name);
}

/* Makes the error for a call that failed for a name in S. */
static int fail_in_stage(const struct check *c, int sys, const char *what)
{
	return shf_stage_fail(c->err, sys, "%s/.sheaf/stage/%s/%s", c->s->path, c->g->name, what);
}

/* Collects the names and sizes that S must hold: everything that the manifest names, and the
 * manifest itself if C6 is already done. */
static int wants_fill(struct check *c)
{
	const struct shf_manifest *m = c->m;
	struct wants *w = &c->wants;

	w->all = shf_zalloc(m->files_n + m->attached_n + 2, sizeof(*w->all));
	if (!w->all)
		return shf_fail(c->err, SHEAF_ENOMEM, "%s: no memory for the names of step %lld",
		                c->s->path, (long long)m->step);
	for (size_t i = 0; i < m->files_n; i++)
		w->all[w->n++] = (struct want){ m->files[i].name, m->files[i].bytes, false };
	for (size_t i = 0; i < m->attached_n; i++)
		w->all[w->n++] = (struct want){ m->attached[i].name, m->attached[i].bytes, false };
	w->all[w->n++] = (struct want){ m->sums.name, m->sums.bytes, false };
	if (c->there)
		w->all[w->n++] = (struct want){ "sheaf.json", c->there, false };
	qsort(w->all, w->n, sizeof(*w->all), wants_by_name);
	return 0;
}

/* Checks that the manifest names this file of S, with this size. An unknown file is an error,
 * because it shows that somebody else writes in S, and it would become part of a step that does not
 * name it. */
static int check_staged_file(struct check *c, int dir, const char *name, const char *full)
{
	struct want key = { full, 0, false }, *w;
	struct shf_stat st;
	int rc;

	w = bsearch(&key, c->wants.all, c->wants.n, sizeof(key), wants_by_name);
	if (!w) {
		/* NFS gives such a name to an open file that is removed, and deletes it when it is
		 * closed. */
		if (strncmp(name, ".nfs", 4) == 0)
			return 0;
		return shf_fail(c->err, SHEAF_EIO, "%s/.sheaf/stage/%s/%s: unexpected file, which "
		                "no rank has written; find out what put it there, and save again",
		                c->s->path, c->g->name, full);
	}
	rc = shf_sys_stat(c->s->sys, dir, name, false, &st);
	if (rc < 0)
		return fail_in_stage(c, -rc, full);
	if (st.type != SHF_T_FILE || st.bytes != w->bytes)
		return shf_fail(c->err, SHEAF_EIO, "%s/.sheaf/stage/%s/%s: has %llu bytes, but "
		                "%llu were written; check the file system, and save again",
		                c->s->path, c->g->name, full,
		                (unsigned long long)st.bytes, (unsigned long long)w->bytes);
	w->seen = true;
	return 0;
}

/* Checks the files of one folder of S, then syncs the folder. The writers have synced the bytes of
 * the files, but only this sync makes their names durable, as I2 demands. */
static int check_folder(struct check *c, const char *folder)
{
	const struct shf_sys *sys = c->s->sys;
	struct shf_names names = { SHF_BUF_INIT };
	char full[600];
	int fd, rc;

	fd = shf_dir_open(sys, c->g->dir, folder);
	if (fd < 0)
		return fail_in_stage(c, -fd, folder);
	rc = shf_names_read(sys, fd, &names);
	if (rc < 0)
		rc = fail_in_stage(c, -rc, folder);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		snprintf(full, sizeof(full), "%s/%s", folder, p);
		rc = check_staged_file(c, fd, p, full);
	}
	shf_names_release(&names);
	if (rc == 0) {
		rc = shf_dir_sync(c->s, fd);
		if (rc < 0)
			rc = fail_in_stage(c, -rc, folder);
	}
	shf_fd_close(sys, &fd);
	return rc;
}

/* Checks the entries of S itself and removes the alive files. The alive files have to go before the
 * publish, because nothing may change below checkpoint-* (I1). */
static int check_top(struct check *c)
{
	const struct shf_sys *sys = c->s->sys;
	struct shf_names names;
	struct shf_stat st;
	int rc;

	rc = shf_names_read(sys, c->g->dir, &names);
	if (rc < 0)
		return fail_in_stage(c, -rc, ".");
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		if (strncmp(p, "alive-", 6) == 0) {
			/* A network file system may send an unlink twice and report the second
			 * result. So only the presence of the name counts. */
			rc = shf_sys_unlink(sys, c->g->dir, p, false);
			if (shf_sys_stat(sys, c->g->dir, p, false, &st) == -ENOENT)
				rc = 0;
			else
				rc = fail_in_stage(c, rc < 0 ? -rc : EBUSY, p);
			continue;
		}
		rc = shf_sys_stat(sys, c->g->dir, p, false, &st);
		if (rc < 0)
			rc = fail_in_stage(c, -rc, p);
		else if (st.type == SHF_T_DIR)
			rc = check_folder(c, p);
		else
			rc = check_staged_file(c, c->g->dir, p, p);
	}
	shf_names_release(&names);
	return rc;
}

/* Carries out C5. Rank 0 does not rely on reports of the other ranks here. It reads the directories
 * and compares them with the manifest, because a file can also be lost between its fsync and now
 * (somebody removes it, or a node sees another file system). Our own alive file is closed before it
 * is removed: some file systems, such as NFS, keep a removed file under another name while it is
 * open, and that name would be found in the step. */
static int stage_check_and_sync(struct check *c)
{
	int rc;

	shf_lock_close(c->s->sys, &c->g->alive);
	rc = wants_fill(c);
	if (rc == 0)
		rc = check_top(c);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < c->wants.n; i++)
		if (!c->wants.all[i].seen)
			return shf_fail(c->err, SHEAF_EIO, "%s/.sheaf/stage/%s/%s: was written, "
			                "but rank 0 does not see it; check that all nodes mount "
			                "the same file system", c->s->path, c->g->name,
			                c->wants.all[i].name);
	rc = shf_dir_sync(c->s, c->g->dir);
	return rc < 0 ? fail_in_stage(c, -rc, ".") : 0;
}

/* Encodes the manifest and decodes the bytes again, so that a manifest that no reader would accept
 * fails the save instead of the next load. */
static int encode(struct check *c, struct shf_buf *text)
{
	struct shf_manifest m = *c->m, back;
	struct shf_arena arena = { NULL, 0 };
	int rc;

	m.no_dir_fsync |= c->s->no_dir_fsync;
	rc = shf_manifest_encode(text, &m, c->err);
	if (rc < 0)
		return rc;
	rc = shf_manifest_decode(&back, &arena, text->data, text->len, "sheaf.json", c->err);
	shf_arena_release(&arena);
	/* Our own bytes that do not decode are a bug; only a lack of memory is an error. */
	return always(rc == SHEAF_ENOMEM || rc == 0) ? rc : SHEAF_EBUG;
}

/* C6. The manifest is written under another name first. Its name sheaf.json says that S is complete
 * (I2), so it may appear only when its bytes are durable. The second sync of S is what I3 needs:
 * without it, a power cut could bring back the renamed directory without the name sheaf.json in
 * it. */
static int write_manifest(struct check *c, const struct shf_buf *text)
{
	const struct shf_sys *sys = c->s->sys;
	const int dir = c->g->dir;
	int64_t put;
	int fd, rc, closed;

	fd = shf_sys_open(sys, dir, "sheaf.json.tmp",
			  SHF_O_WRITE | SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	if (fd < 0)
		return fail_in_stage(c, -fd, "sheaf.json.tmp");
	put = shf_sys_pwrite(sys, fd, text->data, text->len, 0);
	rc = put < 0 ? (int)put : shf_sys_fsync(sys, fd);
	closed = shf_sys_close(sys, fd);
	if (rc >= 0)
		rc = closed;
	if (rc < 0)
		return fail_in_stage(c, -rc, "sheaf.json.tmp");
	rc = shf_sys_rename(sys, dir, "sheaf.json.tmp", dir, "sheaf.json", true);
	if (rc < 0)
		return fail_in_stage(c, -rc, "sheaf.json");
	rc = shf_dir_sync(c->s, dir);
	return rc < 0 ? fail_in_stage(c, -rc, ".") : 0;
}

/* Returns 1 if T is the step whose manifest is `text`, 0 if not, or a negative errno if that cannot
 * be seen. The manifest names the session that wrote it, so equal bytes mean that T is this
 * step. */
static int target_is_ours(struct shf_store *s, const char *t, const struct shf_buf *text)
{
	struct shf_buf there = SHF_BUF_INIT;
	int fd, rc;

	fd = shf_dir_open(s->sys, s->dir, t);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	rc = shf_text_read(s->sys, fd, "sheaf.json", &there, SHF_MANIFEST_MAX);
	shf_fd_close(s->sys, &fd);
	if (rc == 0)
		rc = there.len == text->len && memcmp(there.data, text->data, text->len) == 0;
	else if (rc == -ENOENT || rc == -EFBIG || rc == -ELOOP || rc == -EISDIR)
		rc = 0;
	shf_buf_release(&there);
	return rc;
}

/* C8. A network file system may perform the rename and still report an error, for example if the
 * reply was lost and the client asked again. So after an error the directories decide:
 *   - T holds our manifest: it was renamed.
 *   - T does not, and S still has its old name: it was not, and the save has failed.
 *   - Neither can be seen: EINDOUBT. */
static int rename_stage(struct check *c, const struct shf_buf *text)
{
	struct shf_store *s = c->s;
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;
	char t[SHF_STEP_NAME], name[64];
	int rc, ours;

	shf_name_of_step(s, t, c->g->step);
	snprintf(name, sizeof(name), "%s", c->g->name);
	/* From here on S may be T. Without its name, shf_stage_discard cannot delete in it, even if
	 * the rename fails in a way that hides its outcome. */
	c->g->name[0] = '\0';
	rc = shf_sys_rename(sys, s->stage, name, s->dir, t, true);
	if (rc >= 0)
		return 0;
	ours = target_is_ours(s, t, text);
	if (ours == 1)
		return 0;
	if (ours == 0 && shf_sys_stat(sys, s->stage, name, false, &st) >= 0) {
		snprintf(c->g->name, sizeof(c->g->name), "%s", name);
		if (rc == -EEXIST || rc == -ENOTEMPTY)
			return shf_fail(c->err, SHEAF_EEXIST, "%s/%s: exists; save another step, "
			                "or rewind the run", s->path, t);
		return shf_fail_io(c->err, -rc, "%s/%s: rename of the stage", s->path, t);
	}
	shf_fail_io(c->err, -rc, "%s/%s: perhaps published, as its rename failed: find out with "
	            "sheaf ls", s->path, t);
	if (c->err)
		c->err->code = SHEAF_EINDOUBT;
	return SHEAF_EINDOUBT;
}

/* C9. The run directory comes first. If the power fails between the two syncs, a file system
 * without a journal may show both S and T, which shf_tree_is_step recognises. In the other order it
 * might show neither. */
static int sync_parents(struct shf_store *s, int64_t step, struct sheaf_error *err)
{
	char t[SHF_STEP_NAME];
	int rc = shf_dir_sync(s, s->dir);

	if (rc == 0)
		rc = shf_dir_sync(s, s->stage);
	if (rc == 0)
		return 0;
	shf_name_of_step(s, t, step);
	shf_fail_io(err, -rc, "%s/%s: published, but a power failure may still lose it; save "
	            "another step: fsync of the directory",
	            s->path, t);
	if (err)
		err->code = SHEAF_EINDOUBT;
	return SHEAF_EINDOUBT;
}

/* Returns 0 if this stage may be published, else EINVAL. The name of a stage is empty once a rename
 * of it was tried. */
static int is_open(const struct check *c)
{
	if (c->s->writer && c->g->dir >= 0 && c->g->name[0] && c->m->step == c->g->step)
		return 0;
	return shf_fail(c->err, SHEAF_EINVAL, "%s: step %lld cannot be published from this stage",
	                c->s->path, (long long)c->m->step);
}

/* C6 to C9. text: the bytes of the manifest. C6 is skipped if S has its manifest already. */
static int publish_with_manifest(struct check *c, const struct shf_buf *text)
{
	int rc = c->there ? 0 : write_manifest(c, text);

	if (rc == 0)
		rc = shf_lock_check(c->s, c->err);      /* C7 */
	if (rc == 0)
		rc = rename_stage(c, text);
	if (rc == 0)
		rc = sync_parents(c->s, c->g->step, c->err);
	if (rc == 0 || rc == SHEAF_EINDOUBT)
		c->s->in_doubt = rc < 0;
	return rc;
}

int shf_stage_publish(struct shf_store *s, struct shf_stage *g, const struct shf_manifest *m,
                      struct sheaf_error *err)
{
	struct check c = { s, g, m, { NULL, 0 }, err, 0 };
	struct shf_buf text = SHF_BUF_INIT;
	int rc = is_open(&c);

	if (rc == 0)
		rc = stage_check_and_sync(&c);
	if (rc == 0)
		rc = encode(&c, &text);
	if (rc == 0)
		rc = publish_with_manifest(&c, &text);
	shf_free(c.wants.all);
	shf_buf_release(&text);
	return rc;
}

/* Decodes the text, because C5 needs the names and sizes in it. What is published is the text
 * itself. */
int shf_stage_publish_as(struct shf_store *s, struct shf_stage *g, const struct shf_buf *text,
                         bool there, struct sheaf_error *err)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	struct check c = { s, g, &m, { NULL, 0 }, err, there ? text->len : 0 };
	int rc = shf_manifest_decode(&m, &arena, text->data, text->len, "sheaf.json", err);

	if (rc == 0)
		rc = is_open(&c);
	if (rc == 0)
		rc = stage_check_and_sync(&c);
	if (rc == 0)
		rc = publish_with_manifest(&c, text);
	shf_free(c.wants.all);
	shf_arena_release(&arena);
	return rc;
}
