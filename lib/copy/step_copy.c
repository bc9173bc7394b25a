/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a committed step into another run: verifies the step, which reads every byte anyway, with
 * the stage of the destination run as the sink, then publishes the stage as every save does
 * (publish.c).
 *
 * Always true: a file gets its name in the stage only after all of it was found right and its fsync
 * succeeded. Until then it is named part-<half of our session>. If a copier dies, the next one
 * takes up its stage: tensor files that have their names are read again and compared with the sums
 * instead of being written again, and part files are deleted. A part file cannot be used even if it
 * reads well: its bytes may be in the page cache only, and after a failed fsync they may never
 * reach the disk. Small files, sums and manifest are written each time. */
#include "step_copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "list.h"
#include "name_in_step.h"
#include "opts.h"
#include "publish.h"
#include "step.h"
#include "step_lookup.h"
#include "step_open.h"
#include "verify.h"
#include "verify_step.h"

#define PASSES 3                /* maximum number of passes over the step, see fill_stage */
enum { NO = -1, ASK = -2 };     /* values of `there` that are not descriptors */

/* A copy in progress, and the sink of the verification that reads the step. */
struct copying {
	struct shf_verify_sink sink;    /* must be first: callbacks cast it to copying */
	struct sheaf_checkpoint *step;  /* borrowed */
	struct shf_store dst;
	struct shf_stage stage;
	struct shf_buf text;            /* owned; the step's sheaf.json, copied byte for byte */
	int *there;                     /* owned; by file: descriptor of the finished file in the
	                                 * stage; NO: the stage has no such file; ASK: not looked
	                                 * for yet */
	bool *refused;                  /* owned; by file: the finished file in the stage was found
	                                 * wrong */
	char part[24];                  /* name of the file that is being written */
	int fd;                         /* descriptor of that file; -1: no file is being written */
	uint64_t written;
};

/* Reports the errno `sys` of a call for a name in the stage. */
static int fail_in_copy(const struct copying *c, int sys, const char *name, struct sheaf_error *err)
{
	return shf_fail_io(err, sys, "%s/.sheaf/stage/%s/%s", c->dst.path, c->stage.name, name);
}

/* Opens the directory of the stage in which the file `name` lies; *base is the rest of the name.
 * Returns a descriptor or a negative errno. Close the result with leave_stage_folder. */
static int enter_stage_folder(const struct copying *c, const char *name, const char **base)
{
	return shf_in_step_enter(c->dst.sys, c->stage.dir, name, SHF_O_NOFOLLOW, base);
}

static void leave_stage_folder(const struct copying *c, int dir)
{
	shf_in_step_leave(c->dst.sys, c->stage.dir, dir);
}

/* ---- files of the stage ---- */

/* Creates the part file into which `name` is written, and replaces one that was left unfinished.
 * The part file gets its name only when it is complete (part_end), so that no copier, after a crash
 * of this one, takes an unfinished file for complete. */
static int part_begin(struct copying *c, const char *name, uint64_t bytes, struct sheaf_error *err)
{
	const struct shf_sys *sys = c->dst.sys;
	int rc = shf_sys_unlink(sys, c->stage.dir, c->part, false);

	if (rc >= 0 || rc == -ENOENT)
		rc = c->fd = shf_sys_open(sys, c->stage.dir, c->part, SHF_O_WRITE |
					  SHF_O_CREATE | SHF_O_EXCL | SHF_O_NOFOLLOW, 0666);
	/* Sets the length at once, so that a full file system is found before the bytes are
	 * read. */
	if (rc >= 0 && bytes)
		rc = shf_sys_resize(sys, c->fd, bytes);
	return rc < 0 ? fail_in_copy(c, -rc, name, err) : 0;
}

/* Writes n bytes to the part file, at `off`. name: the file's name in the step, for errors. */
static int part_put(struct copying *c, const char *name, uint64_t off, const uint8_t *bytes,
                    uint64_t n, struct sheaf_error *err)
{
	const struct shf_sys *sys = c->dst.sys;
	int64_t put = shf_sys_pwrite(sys, c->fd, bytes, (size_t)n, off);

	if (put < 0)
		return fail_in_copy(c, (int)-put, name, err);
	c->written += n;
	return 0;
}

/* Syncs the complete part file and renames it to its name in the stage. The order matters: the
 * bytes must be durable before the name exists. The rename itself need not be durable here, because
 * the publish syncs the folders. */
static int part_end(struct copying *c, const char *name, struct sheaf_error *err)
{
	const struct shf_sys *sys = c->dst.sys;
	const char *base;
	int rc = shf_sys_fsync(sys, c->fd), closed = shf_sys_close(sys, c->fd), dir;

	c->fd = -1;
	/* A failed fsync is final: the part never gets its name. */
	rc = rc < 0 ? rc : closed;
	if (rc >= 0) {
		rc = dir = enter_stage_folder(c, name, &base);
		if (dir >= 0)
			rc = shf_sys_rename(sys, c->stage.dir, c->part, dir, base, false);
		leave_stage_folder(c, dir);
	}
	return rc < 0 ? fail_in_copy(c, -rc, name, err) : 0;
}

/* Writes a file of the stage from memory. */
static int write_whole(struct copying *c, const char *name, const uint8_t *bytes, uint64_t n,
                       struct sheaf_error *err)
{
	int rc = part_begin(c, name, n, err);

	if (rc == 0)
		rc = part_put(c, name, 0, bytes, n, err);
	return rc == 0 ? part_end(c, name, err) : rc;
}

/* Opens a tensor file that an earlier copier finished, which has its name in the stage and the
 * right length. Returns a descriptor, or NO if the stage has no such file. The verification reads
 * the finished file instead of the source. */
static int open_finished(const struct copying *c, const struct shf_mf_file *m)
{
	const struct shf_sys *sys = c->dst.sys;
	struct shf_stat st;
	const char *base;
	int dir = enter_stage_folder(c, m->name, &base), fd = NO;

	if (dir < 0)
		return NO;
	if (shf_sys_stat(sys, dir, base, false, &st) >= 0 && st.type == SHF_T_FILE &&
	    st.bytes == m->bytes)
		fd = shf_sys_open(sys, dir, base, SHF_O_NOFOLLOW, 0);
	leave_stage_folder(c, dir);
	return fd < 0 ? NO : fd;
}

/* ---- the sink ---- */

/* The sink's `from`: returns the descriptor of the finished file in the stage, or NO. */
static int open_if_finished(struct shf_verify_sink *sink, uint32_t f)
{
	struct copying *c = (struct copying *)sink;

	/* The answer is kept for the pass, because the verification calls this for each chunk. */
	if (c->there[f] == ASK)
		c->there[f] = open_finished(c, &c->step->manifest.files[f]);
	return c->there[f];
}

/* The sink's `refuse`: notes that the finished file is wrong. The file is deleted after the pass,
 * and written in the next pass. */
static void refuse_stage_file(struct shf_verify_sink *sink, uint32_t f)
{
	((struct copying *)sink)->refused[f] = true;
}

/* The sink's `small`: writes bytes of a small file; the first ones go into a new part file. If the
 * file's sum turns out to be wrong, the part file stays without a name and is replaced or swept. */
static int put_small_in_stage(struct shf_verify_sink *sink, const struct shf_mf_file *m,
                              uint64_t off, const uint8_t *bytes, uint64_t n,
                              struct sheaf_error *err)
{
	struct copying *c = (struct copying *)sink;
	int rc = off == 0 ? part_begin(c, m->name, m->bytes, err) : 0;

	return rc == 0 && n ? part_put(c, m->name, off, bytes, n, err) : rc;
}

/* The sink's `keep`: the sum was right, so the part file gets its name. */
static int keep_small(struct shf_verify_sink *sink, const struct shf_mf_file *m,
                      struct sheaf_error *err)
{
	return part_end((struct copying *)sink, m->name, err);
}

/* The sink's `put`: writes verified bytes of a tensor file. The bytes come in order of offset, so
 * the last ones complete the file. */
static int put_in_stage(struct shf_verify_sink *sink, uint32_t f, uint64_t off,
                        const uint8_t *bytes, uint64_t n, struct sheaf_error *err)
{
	struct copying *c = (struct copying *)sink;
	const struct shf_mf_file *m = &c->step->manifest.files[f];
	int rc = put_small_in_stage(sink, m, off, bytes, n, err);

	return rc == 0 && off + n == m->bytes ? keep_small(sink, m, err) : rc;
}

/* ---- what an earlier copier left ---- */

/* Returns whether the manifest names that file. It does not name sheaf.json itself. */
static bool is_named(const struct shf_manifest *m, const char *name)
{
	for (size_t i = 0; i < m->files_n; i++)
		if (strcmp(m->files[i].name, name) == 0)
			return true;
	for (size_t i = 0; i < m->attached_n; i++)
		if (strcmp(m->attached[i].name, name) == 0)
			return true;
	return strcmp(m->sums.name, name) == 0;
}

/* Returns whether a family of the manifest has its files in this folder. */
static bool is_folder(const struct shf_manifest *m, const char *name)
{
	for (size_t i = 0; i < m->families_n; i++)
		if (strcmp(m->families[i].dir, name) == 0)
			return true;
	return false;
}

/* Removes from a folder of the stage all that the manifest does not name: part files, a manifest
 * that was not published, and other files. folder: its name, "" for the stage itself. */
static int sweep(struct copying *c, int dir, const char *folder, struct sheaf_error *err)
{
	const struct shf_manifest *m = &c->step->manifest;
	struct shf_names names;
	char full[600];
	int rc = shf_names_read(c->dst.sys, dir, &names);

	if (rc < 0)
		return fail_in_copy(c, -rc, folder, err);
	/* The manifest has the names of files with their folder, so the folder is put before the
	 * name. */
	for (const char *p = NULL; rc == 0 && (p = shf_names_next(&names, p)) != NULL; ) {
		snprintf(full, sizeof(full), "%s%s%s", folder, folder[0] ? "/" : "", p);
		if (is_named(m, full) || (!folder[0] && is_folder(m, p)))
			continue;
		rc = shf_tree_remove(c->dst.sys, dir, p);
	}
	shf_names_release(&names);
	return rc < 0 ? fail_in_copy(c, -rc, full, err) : 0;
}

/* Sweeps the stage and the folders of its families. */
static int sweep_all(struct copying *c, struct sheaf_error *err)
{
	const struct shf_manifest *m = &c->step->manifest;
	int rc = sweep(c, c->stage.dir, "", err);

	for (size_t i = 0; i < m->families_n && rc == 0; i++) {
		int dir;

		if (strcmp(m->families[i].dir, ".") == 0)
			continue;
		dir = shf_dir_open(c->dst.sys, c->stage.dir, m->families[i].dir);
		rc = dir < 0 ? fail_in_copy(c, -dir, m->families[i].dir, err)
		             : sweep(c, dir, m->families[i].dir, err);
		shf_fd_close(c->dst.sys, &dir);
	}
	return rc;
}

/* ---- passes ---- */

/* Closes all descriptors after a pass, so that the next pass looks for finished files again. */
static void forget_stage_files(struct copying *c)
{
	for (size_t f = 0; f < c->step->manifest.files_n; f++) {
		shf_fd_close(c->dst.sys, &c->there[f]);
		c->there[f] = ASK;
	}
	shf_fd_close(c->dst.sys, &c->fd);
}

/* Deletes the files of the stage that were found wrong. Returns how many there were, or a code. */
static int drop_refused(struct copying *c, struct sheaf_error *err)
{
	const struct shf_sys *sys = c->dst.sys;
	int n = 0;

	for (size_t f = 0; f < c->step->manifest.files_n; f++) {
		const char *name = c->step->manifest.files[f].name, *base;
		int dir, rc;

		if (!c->refused[f])
			continue;
		c->refused[f] = false;
		rc = dir = enter_stage_folder(c, name, &base);
		if (dir >= 0)
			rc = shf_sys_unlink(sys, dir, base, false);
		leave_stage_folder(c, dir);
		if (rc < 0 && rc != -ENOENT)
			return fail_in_copy(c, -rc, name, err);
		n++;
	}
	return n;
}

/* Fills the stage, in up to PASSES passes over the step. The first pass writes the missing files
 * and verifies the files that an earlier copier finished. Wrong files among the latter are deleted
 * after the pass and written in the next one. The table of sums is written last. */
static int fill_stage(struct copying *c, struct sheaf_report *report, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = c->step;
	int rc = sweep_all(c, err), bad = 1;

	for (int i = 0; rc == 0 && bad && i < PASSES; i++) {
		rc = shf_step_verify_into(c->step, &c->sink, report, err);
		forget_stage_files(c);
		/* Also after another failure, because the next copier would only find the files
		 * wrong again. */
		bad = drop_refused(c, rc == 0 ? err : NULL);
		rc = rc == 0 && bad < 0 ? bad : rc;
	}
	if (rc == 0 && bad)
		return shf_fail(err, SHEAF_EIO, "%s/.sheaf/stage/%s: bytes read back differ from "
		                "those that were written; check the disk, and copy again",
		                c->dst.path, c->stage.name);
	return rc == 0 ? write_whole(c, "sheaf.sums", step->sums_bytes, step->manifest.sums.bytes,
	                             err) : rc;
}

/* ---- the destination ---- */

/* The run has another save of the number. Returns 0 if that one is bad and may be set aside, EEXIST
 * if not, or the code of a failure to find out. t: its name. */
static int is_in_the_way(struct copying *c, bool over, const char *t, struct sheaf_error *err)
{
	int bad = over ? shf_step_is_condemned(&c->dst, c->step->manifest.step) : 0;

	if (bad < 0)
		return shf_fail(err, bad, "%s/%s: finding out whether it is marked bad",
		                c->dst.path, t);
	return bad ? 0 : shf_fail(err, SHEAF_EEXIST, "%s/%s: exists, and is another save of this "
	                          "number; move it away, or copy to another run",
	                          c->dst.path, t);
}

/* Returns 1 if the manifest `there` is that of the step's save, or 0. The session decides, because
 * the parent may differ: a flush sets it anew when it writes a step from memory. ENOMEM. */
static int is_same_save(const struct copying *c, const struct shf_buf *there,
                        struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_manifest m;
	struct sheaf_error own;
	int rc = shf_manifest_decode(&m, &arena, there->data, there->len, "sheaf.json", &own);

	if (rc == 0)
		rc = strcmp(m.session, c->step->manifest.session) == 0;
	else
		rc = rc == SHEAF_ENOMEM ? shf_fail(err, rc, "no memory for the manifest") : 0;
	shf_arena_release(&arena);
	return rc;
}

/* Checks whether the run has the same save already. Returns 1 if so, 0 if the run has no step of
 * that number, EEXIST if it has another save of that number, or the code of another failure. over:
 * a bad step of that number does not count, because C0 sets it aside. */
static int is_there(struct copying *c, bool over, struct sheaf_error *err)
{
	const struct shf_sys *sys = c->dst.sys;
	struct shf_buf text = SHF_BUF_INIT;
	char t[SHF_STEP_NAME];
	int dir, rc;

	shf_name_of_step(&c->dst, t, c->step->manifest.step);
	dir = shf_dir_open(sys, c->dst.dir, t);
	if (dir < 0)
		return 0;       /* or the name is that of another file, which shf_stage_copy (C0)
		                 * refuses */
	rc = shf_text_read(sys, dir, "sheaf.json", &text, SHF_MANIFEST_MAX);
	shf_fd_close(sys, &dir);
	if (rc == -ENOENT)
		rc = 0;
	else if (rc < 0)
		rc = shf_fail_io(err, -rc, "%s/%s/sheaf.json", c->dst.path, t);
	else if ((rc = is_same_save(c, &text, err)) == 0)
		rc = is_in_the_way(c, over, t, err);
	shf_buf_release(&text);
	return rc;
}

/* Verifies the step in the destination run instead of copying it. So if a copy returns 0, the step
 * there was verified in either case. */
static int verify_there(const struct copying *c, struct sheaf_report *report,
                        struct sheaf_error *err)
{
	struct shf_opts opts = c->step->run->opts;
	struct sheaf_checkpoint *there = NULL;
	struct shf_buf path = SHF_BUF_INIT;
	char t[SHF_STEP_NAME];
	int rc;

	shf_name_of_step(&c->dst, t, c->step->manifest.step);
	shf_buf_addf(&path, "%s/%s", c->dst.path, t);
	shf_buf_u8(&path, 0);
	/* Flags of the source, such as SHEAF_RUN_UNVERIFIED, must not weaken this verification. */
	opts.flags = SHEAF_RUN_READONLY | (opts.flags & SHEAF_RUN_BUFFERED);
	rc = path.oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a path", c->dst.path)
	              : shf_step_open_path(&there, (char *)path.data, NULL, &opts, c->dst.sys, err);
	if (rc == 0)
		rc = shf_step_verify_named(there, report, err);
	shf_step_put(there);
	shf_buf_release(&path);
	return rc;
}

/* Opens the destination run and takes its lock, or creates it with the run id of the step. Steps of
 * another run are refused, because their sessions and parents would mean nothing in it. */
static int open_dst(struct copying *c, const char *path, struct sheaf_error *err)
{
	const struct shf_manifest *m = &c->step->manifest;
	const struct sheaf_run *run = c->step->run;
	struct shf_owning how = { .create = true, .run = m->run,
		.wait_ms = shf_opts_wait_ms(&run->opts, SHF_LOCK_WAIT_MS),
		.clear_ms = shf_opts_clear_ms(&run->opts) };
	char pattern[SHF_PATTERN];
	int rc = shf_store_is_no_step(run->sys, path, err);

	/* A new run names its steps as the run that the step comes from, if that one is open. */
	if (!run->life.foreign) {
		shf_folder_pattern(&run->store, pattern);
		how.folder_if_new = pattern;
	}
	if (rc == 0)
		rc = shf_store_own_as(&c->dst, run->sys, path, &how, err);
	if (rc == 0 && strcmp(c->dst.run, m->run) != 0)
		rc = shf_fail(err, SHEAF_EINVAL, "%s: is run %s, but step %" PRId64 " is of run "
		              "%s; copy it to a new directory, or to a copy of its own run", path,
		              c->dst.run, m->step,
		              m->run);
	if (rc == 0)
		/* The name contains our session, so that two copiers never write to the same
		 * file. */
		snprintf(c->part, sizeof(c->part), "part-%.16s", c->dst.session);
	return rc;
}

/* Reads the manifest of the step as text, because the copy must have the same bytes. */
static int read_source_manifest(struct copying *c, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = c->step;
	int rc = shf_text_read(step->run->sys, step->dir, "sheaf.json", &c->text, SHF_MANIFEST_MAX);

	return rc < 0 ? shf_fail_io(err, -rc, "%s/sheaf.json", step->path) : 0;
}

/* Does C0 to C9 of the copy. If the source is damaged, the stage is deleted. After any other
 * failure the stage is kept for the next copier. */
static int copy(struct copying *c, struct sheaf_report *report, struct sheaf_error *err)
{
	const struct shf_manifest *m = &c->step->manifest;
	const char **folders = shf_zalloc(m->families_n + 1, sizeof(*folders));
	int rc;

	c->there = shf_alloc(m->files_n, sizeof(*c->there));
	c->refused = shf_zalloc(m->files_n, sizeof(*c->refused));
	for (size_t f = 0; c->there && f < m->files_n; f++)
		c->there[f] = ASK;
	for (size_t i = 0; folders && i < m->families_n; i++)
		folders[i] = m->families[i].dir;
	rc = folders && c->there && c->refused ? 0
	   : shf_fail(err, SHEAF_ENOMEM, "%s: no memory to copy it", c->step->path);
	if (rc == 0)
		rc = shf_stage_copy(&c->dst, &c->stage, m->step, m->session, folders, err);
	if (rc == 0) {
		rc = fill_stage(c, report, err);
		if (rc == 0)
			rc = shf_stage_publish_as(&c->dst, &c->stage, &c->text, false, err);
		forget_stage_files(c);
		/* A later copy cannot use anything of a damaged step. */
		if (rc == SHEAF_ECORRUPT)
			shf_stage_discard(&c->dst, &c->stage);
		shf_stage_close(&c->dst, &c->stage);
	}
	shf_free(folders);
	shf_free(c->there);
	shf_free(c->refused);
	return rc;
}

/* Checks that the step can be copied: it was saved by this library, is open in one process, and its
 * table of sums can be read. */
static int look_at(struct sheaf_checkpoint *step, struct sheaf_report *report,
                   struct sheaf_error *err)
{
	int rc;

	if (step->run->team.ranks != 1)
		return shf_fail(err, SHEAF_EINVAL, "%s: is open on %d ranks; open it in one "
		                "process alone to copy it",
		                step->path, step->run->team.ranks);
	if (!step->sound)
		return shf_fail(err, SHEAF_EFORMAT, "%s: has no manifest, so its bytes cannot be "
		                "checked; use cp -a to copy it as it is", step->path);
	rc = shf_step_wake(step, err);
	if (rc == 0 && (step->sums_rc < 0 || step->cat_rc < 0)) {
		/* The verification reports each fault that it finds. */
		rc = shf_step_verify_named(step, report, err);
		/* The verification cannot return 0 for a bad table. */
		if (rc == 0 && !always(step->sums_rc == 0))
			return shf_fail(err, SHEAF_EBUG, "%s: valid without its checksums",
			                step->path);
		if (rc == 0) {  /* the verification could read a header that the open could not */
			rc = step->cat_rc;
			*err = step->cat_err;
		}
	}
	return rc;
}

/* `wanted` is called with the lock of the run held, so that its answer stays true until the step is
 * published. */
int shf_step_copy_if(struct sheaf_checkpoint *step, const char *path,
                     int (*wanted)(void *arg, struct shf_store *dst, struct sheaf_error *err),
                     void *arg, struct sheaf_report *report, struct sheaf_error *err)
{
	struct copying c = { .sink = { open_if_finished, refuse_stage_file, put_in_stage,
	                               put_small_in_stage, keep_small }, .step = step, .fd = -1 };
	struct sheaf_error own;
	bool owned = false;
	int rc;

	err = err ? err : &own;
	rc = look_at(step, report, err);
	if (rc == 0 && (!path || !path[0]))
		rc = shf_fail(err, SHEAF_EINVAL, "argument 'dir' is NULL or empty");
	if (rc == 0)
		rc = read_source_manifest(&c, err);
	if (rc == 0) {
		rc = open_dst(&c, path, err);
		owned = true;
	}
	if (rc == 0 && wanted) {
		rc = wanted(arg, &c.dst, err);
		shf_buf_reset(&c.text); /* its parent may be another one now */
		rc = rc == 0 ? read_source_manifest(&c, err) : rc;
	}
	if (rc == 0)
		rc = is_there(&c, wanted != NULL, err);
	if (rc == 1)
		rc = verify_there(&c, report, err);
	else if (rc == 0)
		rc = copy(&c, report, err);
	if (report)
		report->held = c.written;
	if (owned)
		shf_store_close(&c.dst);
	shf_buf_release(&c.text);
	return rc;
}

int shf_step_copy(struct sheaf_checkpoint *step, const char *path, struct sheaf_report *report,
                  struct sheaf_error *err)
{
	return shf_step_copy_if(step, path, NULL, NULL, report, err);
}
