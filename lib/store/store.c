/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a run: for reading, as its one writer, or as another rank of the writing job.
 *
 * The writer first makes durable the names through which steps are reached. A dead job may have
 * renamed a step into place without a sync. Such a step must not vanish after a later one, whose
 * parent it is, was acknowledged. */
#include "store.h"
#include "decimal.h"
#include "err.h"
#include "lock.h"
#include "manifest_read.h"
#include "recover.h"
#include "run_id.h"
#include "run_files.h"
#include "valid.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* All descriptors are -1, so that shf_store_close works at any point of a failed open. */
static void store_init(struct shf_store *s, const struct shf_sys *sys)
{
	memset(s, 0, sizeof(*s));
	s->sys = sys;
	s->dir = s->dot = s->stage = s->lock = s->door = -1;
	memcpy(s->prefix, "checkpoint-", sizeof("checkpoint-"));
}

/* Closes without unlocking. The child and the parent share the open file description, so an unlock
 * by the child would take the lock from the parent, too. */
void shf_store_leave(struct shf_store *s)
{
	if (!s || !s->sys)
		return;
	shf_fd_close(s->sys, &s->stage);
	shf_fd_close(s->sys, &s->dot);
	shf_fd_close(s->sys, &s->dir);
	shf_fd_close(s->sys, &s->door);
	shf_fd_close(s->sys, &s->lock);
	shf_free(s->path);
	s->path = NULL;
	s->writer = false;
}

void shf_store_close(struct shf_store *s)
{
	if (!s || !s->sys)
		return;
	/* A close alone would leave the locks to forked children that inherited the descriptors. */
	shf_lock_close(s->sys, &s->door);
	shf_lock_close(s->sys, &s->lock);
	shf_store_leave(s);
}

/* Syncs the directory that holds the last component of path. path is changed meanwhile and
 * restored. */
static int sync_parent(const struct shf_sys *sys, char *path)
{
	size_t n = strlen(path);
	const char *dir = ".";
	char *cut;
	int fd, rc;

	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 0 && path[n - 1] != '/')
		n--;
	cut = n > 1 ? &path[n - 1] : NULL;
	if (cut) {
		*cut = '\0';
		dir = path;
	} else if (n == 1) {
		dir = "/";
	}
	fd = shf_sys_open(sys, SHF_CWD, dir, SHF_O_DIR, 0);
	if (cut)
		*cut = '/';
	if (fd < 0)
		return fd;
	rc = shf_dir_fsync(sys, fd);
	shf_sys_close(sys, fd);
	return rc < 0 ? rc : 0;
}

/* Makes the directory and those above it, and syncs each new entry. path is changed meanwhile and
 * restored. mkdir may fail for a directory above although it exists, for example with EACCES. So
 * such an error is kept, and returned only if a directory below cannot be made because of it. */
static int make_path(const struct shf_sys *sys, char *path)
{
	size_t n = strlen(path);
	int rc, above = -ENOENT;

	rc = shf_sys_mkdir(sys, SHF_CWD, path, 0777);
	if (rc >= 0)
		return sync_parent(sys, path);
	if (rc != -ENOENT)
		return rc == -EEXIST ? 0 : rc;
	for (size_t i = 1; i <= n; i++) {
		char c = path[i];

		if ((c != '/' && c != '\0') || path[i - 1] == '/')
			continue;
		path[i] = '\0';
		rc = shf_sys_mkdir(sys, SHF_CWD, path, 0777);
		if (rc >= 0) {
			rc = sync_parent(sys, path);
		} else if (c == '/') {
			above = rc == -EEXIST ? above : rc;
			rc = 0;
		} else {
			rc = rc == -EEXIST ? 0 : rc == -ENOENT ? above : rc;
		}
		path[i] = c;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* A reader needs only the directory. A run that was copied without .sheaf, or one on a read-only
 * mount, can be read like any other. */
int shf_store_open_as(struct shf_store *s, const struct shf_sys *sys, const char *path,
                      const char *folder, struct sheaf_error *err)
{
	int rc;

	store_init(s, sys);
	s->path = shf_strdup(path);
	if (!s->path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open the run", path);
	rc = shf_folder_set(s, folder, err);
	if (rc < 0)
		goto out;
	if (folder)
		shf_folder_pattern(s, s->folder);
	rc = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);
	if (rc < 0) {
		rc = shf_fail_sys(err, -rc, "%s: no run directory here (SHEAF_RUN_CREATE makes "
		                  "one)", path);
		goto out;
	}
	s->dir = rc;
	rc = shf_store_refresh(s, err);
	if (rc < 0 || s->dot < 0)
		goto out;       /* a directory of steps is enough for a reader */
	rc = shf_dir_open(sys, s->dot, "stage");
	s->stage = rc < 0 ? -1 : rc;
	rc = rc == -ENOENT || rc >= 0 ? 0 : shf_fail_io(err, -rc, "%s/.sheaf/stage", path);
out:
	if (rc < 0)
		shf_store_close(s);
	return rc;
}

int shf_store_open(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   struct sheaf_error *err)
{
	return shf_store_open_as(s, sys, path, NULL, err);
}

/* The inode is that of the directory .sheaf. The inode of a file in it would not do, because a copy
 * by hard links (cp -al) shares the inodes of files. */
int shf_store_identity(const struct shf_store *s, char out[SHF_IDENTITY], struct sheaf_error *err)
{
	struct shf_stat st = { .type = 0 };
	uint64_t fs = 0;
	int rc = s->run[0] ? shf_sys_fstat(s->sys, s->dot, &st) : -ENOENT;

	if (rc >= 0)
		rc = shf_sys_fs_id(s->sys, s->dot, &fs);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/.sheaf: identifying the directory", s->path);
	snprintf(out, SHF_IDENTITY, "%s-%" PRIx64 "-%" PRIx64, s->run, fs, st.ino);
	return 0;
}

/* Takes the identity from the newest readable step of those names. If somebody removed .sheaf by
 * hand, the run keeps its identity; with a new one, all its steps would count as steps of another
 * run. */
static void run_id_of_steps(struct shf_store *s, const struct shf_names *names)
{
	struct shf_arena arena = { NULL, 0 };
	struct shf_manifest m;
	int64_t step, best = -1;
	int fd;

	for (const char *p = NULL; (p = shf_names_next(names, p)) != NULL; ) {
		if (!shf_step_of_name(s, p, &step) || step <= best)
			continue;
		fd = shf_dir_open(s->sys, s->dir, p);
		if (fd < 0)
			continue;
		if (shf_manifest_read(s->sys, fd, p, &m, &arena, NULL) == 0 &&
		    shf_id_is_valid(m.run, 32)) {
			memcpy(s->run, m.run, sizeof(s->run));
			best = step;
		}
		shf_arena_release(&arena);
		arena = (struct shf_arena){ NULL, 0 };
		shf_fd_close(s->sys, &fd);
	}
}

/* Returns whether `name` is a step's folder under another name pattern, and writes that pattern. */
static bool is_named_otherwise(struct shf_store *s, const char *name, char pattern[SHF_PATTERN])
{
	struct shf_store other = { .run = "" };
	size_t n = strlen(name);
	struct shf_stat st;
	int64_t step;
	bool is;
	int dir;

	while (n > 0 && shf_is_digit(name[n - 1]))
		n--;
	if (n > SHF_FOLDER_MAX)
		return false;
	snprintf(pattern, SHF_PATTERN, "%.*s{n}", (int)n, name);
	if (shf_folder_set(&other, pattern, NULL) < 0 || strcmp(other.prefix, s->prefix) == 0 ||
	    !shf_step_of_name(&other, name, &step))
		return false;
	dir = shf_dir_open(s->sys, s->dir, name);
	is = dir >= 0 && shf_sys_stat(s->sys, dir, "sheaf.json", false, &st) >= 0;
	shf_fd_close(s->sys, &dir);
	return is;
}

/* Refuses to make a run in a directory whose steps are named by another pattern, as when .sheaf was
 * removed by hand: a job would not see them, and would begin from scratch. */
static int refuse_other_names(struct shf_store *s, const struct shf_names *names,
                              struct sheaf_error *err)
{
	char has[SHF_PATTERN], want[SHF_PATTERN];
	int rc = 0;

	shf_folder_pattern(s, want);
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(names, p)) != NULL; )
		if (is_named_otherwise(s, p, has))
			rc = shf_fail(err, SHEAF_EINVAL, "%s: has checkpoint %.70s, but no "
			              ".sheaf/run; opts.folder %s would find it, %s does not",
			              s->path, p, has, want);
	return rc;
}

/* Takes the identity from the steps that the directory holds, if it holds any. */
static int run_id_find(struct shf_store *s, struct sheaf_error *err)
{
	struct shf_names names;
	int rc = shf_names_read(s->sys, s->dir, &names);

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s: listing the directory", s->path);
	run_id_of_steps(s, &names);
	rc = s->run[0] == '\0' ? refuse_other_names(s, &names, err) : 0;
	shf_names_release(&names);
	return rc;
}

/* Reads or makes the identity of the run. On a file system without locks, two jobs may do this at
 * once. The file is written without replacing, so one of them wins and the other takes its
 * identity. An empty file, which a crash may leave, is replaced. */
static int run_id_make(struct shf_store *s, const char *run, struct sheaf_error *err)
{
	struct shf_buf had = SHF_BUF_INIT;
	char text[SHF_RUN_TEXT_MAX], pattern[SHF_PATTERN];
	int rc;

	rc = shf_run_id_read(s, err);
	if (rc < 0 || s->run[0])
		return rc;
	rc = run_id_find(s, err);
	if (rc < 0)
		return rc;
	if (s->run[0] == '\0' && run)
		memcpy(s->run, run, sizeof(s->run));
	else if (s->run[0] == '\0')
		rc = shf_id_draw(s->sys, s->run, 32);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s: reading random bytes for the run's identity",
		                   s->path);
	shf_folder_pattern(s, pattern);
	if (shf_folder_is_usual(s))
		snprintf(text, sizeof(text), "sheaf-run 1\n%s\n", s->run);
	else
		snprintf(text, sizeof(text), "sheaf-run 2\n%s\nfolder %s\n", s->run, pattern);
	rc = shf_text_write(s, s->dot, "run", text, strlen(text), true);
	/* Another job has just made the file, or a crash left an empty one. */
	if (rc == -EEXIST) {
		rc = shf_run_id_read(s, err);
		if (rc < 0 || s->run[0])
			return rc;
		/* A file that exists but cannot be read is not replaced, because all steps may
		 * carry its identity. */
		rc = shf_text_read(s->sys, s->dot, "run", &had, SHF_RUN_TEXT_MAX);
		shf_buf_release(&had);
		if (rc < 0)
			return shf_fail_io(err, -rc, "%s/.sheaf/run", s->path);
		memcpy(s->run, strchr(text, '\n') + 1, 32);
		rc = shf_text_write(s, s->dot, "run", text, strlen(text), false);
	}
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/run", s->path) : 0;
}

/* Returns 1 if a step is in the directory, 0 if not, or a negative errno. A directory with a step
 * is a run, even if .sheaf is missing. */
static int has_steps(struct shf_store *s)
{
	struct shf_names names;
	int64_t step;
	int rc = shf_names_read(s->sys, s->dir, &names);

	if (rc < 0)
		return rc;
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; )
		rc = shf_step_of_name(s, p, &step);
	shf_names_release(&names);
	return rc;
}

/* Opens .sheaf and makes what is missing in it. A step is refused as a run: it would then hold
 * files that its manifest does not name. Without create, a directory that has neither steps nor
 * .sheaf is refused, too, so that a mistyped path does not become a run. */
static int open_dot(struct shf_store *s, bool create, struct sheaf_error *err)
{
	static const char *const folders[] = { "trash", "aside", "marks" };
	const struct shf_sys *sys = s->sys;
	struct shf_stat st;
	int rc;

	rc = shf_dir_open(sys, s->dir, ".sheaf");
	if (rc == -ENOENT && shf_sys_stat(sys, s->dir, "sheaf.json", false, &st) >= 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: is a checkpoint, and no run is made inside "
		                "one; name another directory", s->path);
	if (rc == -ENOENT) {
		rc = create ? 1 : has_steps(s);
		if (rc == 0)
			return shf_fail(err, SHEAF_ENOENT, "%s: not a run: no checkpoint and no "
			                ".sheaf in it (SHEAF_RUN_CREATE makes it one)", s->path);
		if (rc > 0)
			rc = shf_dir_make(sys, s->dir, ".sheaf");
	}
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf", s->path);
	s->dot = rc;
	rc = shf_dir_make(sys, s->dot, "stage");
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s/.sheaf/stage", s->path);
	s->stage = rc;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		rc = shf_sys_mkdir(sys, s->dot, folders[i], 0777);
		if (rc < 0 && rc != -EEXIST)
			return shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, folders[i]);
	}
	return 0;
}

/* Makes durable all names on the way to a step. A dead job may have renamed a step into place
 * without the sync (C9); after this the step cannot vanish any more, so later steps may follow it.
 * If the directory above cannot be opened, it is skipped: the job that made the run has synced
 * it. */
static int sync_names(struct shf_store *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = s->sys;
	int up, rc;

	rc = shf_dir_sync(s, s->stage);
	if (rc == 0)
		rc = shf_dir_sync(s, s->dot);
	if (rc == 0)
		rc = shf_dir_sync(s, s->dir);
	if (rc < 0)
		return shf_fail_io(err, -rc, "%s: fsync of the directory", s->path);
	up = shf_sys_open(sys, s->dir, "..", SHF_O_DIR, 0);
	if (up < 0)
		return 0;
	rc = shf_sys_fsync(sys, up);
	shf_sys_close(sys, up);
	if (rc < 0 && rc != -EINVAL && rc != -ENOTSUP && rc != -EROFS)
		return shf_fail_io(err, -rc, "%s: fsync of the directory above", s->path);
	return 0;
}

/* Opens .sheaf before it locks, since the lock is a file in it. The text of the last owner is read
 * while the door is locked (D1). Whether that owner is gone is decided now, before
 * shf_store_own_end overwrites its text. */
int shf_store_own_begin(struct shf_store *s, const struct shf_sys *sys, const char *path,
                        const struct shf_owning *how, struct sheaf_error *err)
{
	bool create = how->create;
	int rc;

	store_init(s, sys);
	s->path = shf_strdup(path);
	if (!s->path)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open the run", path);
	rc = shf_folder_set(s, how->folder ? how->folder : how->folder_if_new, err);
	if (rc < 0)
		goto out;
	if (how->folder)
		shf_folder_pattern(s, s->folder);
	rc = create ? make_path(sys, s->path) : 0;
	if (rc >= 0)
		rc = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0);
	if (rc < 0) {
		rc = create ? shf_fail_io(err, -rc, "%s: creating the run directory", path)
		            : shf_fail_sys(err, -rc, "%s: no run directory here (SHEAF_RUN_CREATE "
		                           "makes one)", path);
		goto out;
	}
	s->dir = rc;
	rc = open_dot(s, create, err);
	if (rc == 0)
		rc = shf_lock_take(s, how->wait_ms, err);
	/* Another pattern is refused before the lock names this process as the last owner. */
	if (rc == 0 && how->folder)
		rc = shf_run_id_read(s, err);
	if (rc < 0)
		goto out;
	/* From here on the lock is held. The session is drawn for each opening, so that texts and
	 * stages of an earlier opening by this very process are not taken for its own. */
	rc = shf_sys_owner(sys, &s->self);
	if (rc >= 0)
		rc = shf_id_draw(sys, s->session, 32);
	if (rc < 0) {
		rc = shf_fail_io(err, -rc, "%s: reading random bytes for the session", path);
		goto out;
	}
	s->writer = true;
	rc = shf_lock_read(s, &s->prev, s->prev_session);
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/lock", path);
	else
		s->prev_gone = shf_prev_is_gone(s, s->lock);
out:
	if (rc < 0)
		shf_store_close(s);
	return rc;
}

/* The text of the lock comes first, because .sheaf/door stays locked until it is written (D1). */
int shf_store_own_end(struct shf_store *s, const char *run, struct sheaf_error *err)
{
	int rc = shf_lock_write(s, err);

	if (rc == 0)
		rc = run_id_make(s, run, err);
	return rc == 0 ? sync_names(s, err) : rc;
}

int shf_store_is_no_step(const struct shf_sys *sys, const char *path, struct sheaf_error *err)
{
	struct shf_stat st;
	int dir = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0), rc;

	if (dir < 0)
		return 0;       /* the open for writing reports the error */
	rc = shf_sys_stat(sys, dir, "sheaf.json", false, &st);
	shf_fd_close(sys, &dir);
	return rc < 0 ? 0 : shf_fail(err, SHEAF_EINVAL, "%s: is a checkpoint; name the directory "
	                             "of a run", path);
}

/* The text of the lock is written before recovery begins. On a file system without locks, another
 * job sees only by this text that it has lost the run (C7). */
int shf_store_own_as(struct shf_store *s, const struct shf_sys *sys, const char *path,
                     const struct shf_owning *how, struct sheaf_error *err)
{
	int rc = shf_store_own_begin(s, sys, path, how, err);

	if (rc < 0)
		return rc;
	s->clear_ms = how->clear_ms;
	rc = shf_store_own_end(s, how->run, err);
	if (rc == 0)
		rc = shf_store_recover(s, err);
	if (rc < 0)
		shf_store_close(s);
	return rc;
}

int shf_store_own(struct shf_store *s, const struct shf_sys *sys, const char *path, bool create,
                  int wait_ms, struct sheaf_error *err)
{
	struct shf_owning how = { .create = create, .wait_ms = wait_ms };

	return shf_store_own_as(s, sys, path, &how, err);
}

/* The caller has received run and session from rank 0. If the directory here has another id, this
 * rank sees another file system under the same path. */
int shf_store_join(struct shf_store *s, const struct shf_sys *sys, const char *path,
                   const char *run, const char *session, struct sheaf_error *err)
{
	int rc;

	if (!shf_id_is_valid(run, 32) || !shf_id_is_valid(session, 32)) {
		store_init(s, sys);
		return shf_fail(err, SHEAF_EINVAL, "%s: run and session are not 32 hex digits",
		                path);
	}
	rc = shf_store_open(s, sys, path, err);
	if (rc < 0)
		return rc;
	if (s->dot < 0 || s->stage < 0 || strcmp(s->run, run) != 0) {
		rc = shf_fail(err, SHEAF_EINVAL, "%s: this rank sees %s, but rank 0 opened run %s; "
		              "check that all nodes mount the same file system there", path,
		              s->run[0] ? s->run : "no run", run);
		goto out;
	}
	memcpy(s->session, session, sizeof(s->session));
	rc = shf_sys_owner(sys, &s->self);
	if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s: identifying this process", path);
out:
	if (rc < 0)
		shf_store_close(s);
	return rc < 0 ? rc : 0;
}

/* Sets the name of the token's file. EINVAL. */
static int proof_name(const struct shf_store *s, const char token[33], char name[48],
                      struct sheaf_error *err)
{
	if (s->dot < 0 || !shf_id_is_valid(token, 32))
		return shf_fail(err, SHEAF_EINVAL, "%s: a proof needs an open run and 32 hex "
		                "digits", s->path);
	snprintf(name, 48, "proof-%s", token);
	return 0;
}

/* The file is renamed into place, so a rank that sees the name also sees the token. */
int shf_store_proof_write(struct shf_store *s, const char token[33], struct sheaf_error *err)
{
	char name[48];
	int rc = proof_name(s, token, name, err);

	if (rc < 0)
		return rc;
	rc = shf_text_write(s, s->dot, name, token, 32, false);
	return rc < 0 ? shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, name) : 0;
}

/* A missing or different token proves that this rank sees another directory; an I/O error proves
 * nothing. */
int shf_store_proof_read(struct shf_store *s, const char token[33], struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[48];
	int rc = proof_name(s, token, name, err);

	if (rc < 0)
		return rc;
	rc = shf_text_read(s->sys, s->dot, name, &text, 64);
	if (rc == -ENOENT || (rc == 0 && (text.len != 32 || memcmp(text.data, token, 32) != 0)))
		rc = shf_fail(err, SHEAF_EINVAL, "%s: a file that rank 0 has just written is not "
		              "visible to this rank; check that all nodes mount the same file "
		              "system there", s->path);
	else if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/.sheaf/%s", s->path, name);
	shf_buf_release(&text);
	return rc;
}

void shf_store_proof_remove(struct shf_store *s, const char token[33])
{
	char name[48];

	if (proof_name(s, token, name, NULL) == 0)
		shf_sys_unlink(s->sys, s->dot, name, false);
}
