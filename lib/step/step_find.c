/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out on rank 0 what lies at a path or under a step number, and encodes it for all ranks.
 *
 * Wire: u8 flags, u64 step, u64 ino, texts path, dir, name, index name, index flaw, manifest, index
 * (each u64 bytes, bytes), u32 files, texts; u32 plain files, each text, u64 bytes.
 */
#include "step_find.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign.h"
#include "run_id.h"
#include "shards.h"
#include "sheaf-inspect.h"
#include "step_look.h"
#include "valid.h"

enum { SOUND = 1, SINGLE = 2, IN_RUN = 4, INDEX = 8, FOREIGN = 16 };
#define WHOLE "model.safetensors"       /* a model in one file */
#define TAIL ".safetensors"
#define PLAIN_MAX (UINT64_C(64) << 20)
#define INDEX_MAX (UINT64_C(256) << 20)

/* What rank 0 has found, before it is encoded. */
struct tell {
	uint8_t flags;
	int64_t step;
	uint64_t ino;
	const char *path, *dir, *name;
	char index_name[256], index_flaw[sizeof(((struct sheaf_error *)0)->msg)];
	struct shf_buf manifest, index;
	char **files, **plain;          /* owned, and so are the strings; names of tensor files, and
	                                 * of plain files */
	uint64_t *plain_bytes;
	size_t files_n, plain_n;
};

/* Appends a text with its length. */
static void put_found_text(struct shf_buf *b, const void *s, size_t n)
{
	shf_buf_u64(b, n);
	shf_buf_add(b, s, n);
}

/* Encodes t, in the format at the head of this file. */
static void write_found(const struct tell *t, struct shf_buf *b)
{
	shf_buf_u8(b, t->flags);
	shf_buf_u64(b, (uint64_t)t->step);
	shf_buf_u64(b, t->ino);
	put_found_text(b, t->path, strlen(t->path));
	put_found_text(b, t->dir ? t->dir : "", t->dir ? strlen(t->dir) : 0);
	put_found_text(b, t->name ? t->name : "", t->name ? strlen(t->name) : 0);
	put_found_text(b, t->index_name, strlen(t->index_name));
	put_found_text(b, t->index_flaw, strlen(t->index_flaw));
	put_found_text(b, t->manifest.data, t->manifest.len);
	put_found_text(b, t->index.data, t->index.len);
	shf_buf_u32(b, (uint32_t)t->files_n);
	for (size_t i = 0; i < t->files_n; i++)
		put_found_text(b, t->files[i], strlen(t->files[i]));
	shf_buf_u32(b, (uint32_t)t->plain_n);
	for (size_t i = 0; i < t->plain_n; i++) {
		put_found_text(b, t->plain[i], strlen(t->plain[i]));
		shf_buf_u64(b, t->plain_bytes[i]);
	}
}

/* Decodes the next text into the arena. NULL: no memory, or the bytes end too early. */
static char *get_found_text(struct shf_cur *c, struct shf_arena *arena)
{
	uint64_t n = shf_cur_u64(c);
	const uint8_t *p = shf_cur_bytes(c, (size_t)n);

	return p ? shf_arena_strdup(arena, (const char *)p, (size_t)n) : NULL;
}

/* Decodes the lists of files and of plain files. */
static int get_found_files(struct shf_cur *c, struct shf_arena *arena, struct shf_step_found *f)
{
	f->files_n = shf_cur_u32(c);
	f->files = shf_arena_alloc(arena, f->files_n + 1, sizeof(*f->files));
	if (!f->files)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < f->files_n; i++)
		if (!(f->files[i] = get_found_text(c, arena)))
			return SHEAF_ENOMEM;
	f->plain_n = shf_cur_u32(c);
	f->plain = shf_arena_alloc(arena, f->plain_n + 1, sizeof(*f->plain));
	if (!f->plain)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < f->plain_n; i++) {
		if (!(f->plain[i].name = get_found_text(c, arena)))
			return SHEAF_ENOMEM;
		f->plain[i].bytes = shf_cur_u64(c);
	}
	return c->bad ? SHEAF_ENOMEM : 0;
}

/* f->manifest borrows the bytes of `told`; all else is copied. The bytes come from rank 0 of this
 * very program, so the only check is that no read goes beyond them. */
int shf_step_find_decode(struct shf_step_found *f, struct shf_arena *arena,
                         const struct shf_buf *told, struct sheaf_error *err)
{
	struct shf_cur c = { told->data, told->data + told->len, false };
	uint8_t flags = shf_cur_u8(&c);
	const uint8_t *index;
	uint64_t n;
	int rc;

	*f = (struct shf_step_found){ .sound = flags & SOUND, .single = flags & SINGLE,
		.in_run = flags & IN_RUN, .has_index = flags & INDEX,
		.foreign = flags & FOREIGN };
	f->step = (int64_t)shf_cur_u64(&c);
	f->ino = shf_cur_u64(&c);
	f->path = get_found_text(&c, arena);
	f->dir = get_found_text(&c, arena);
	f->name = get_found_text(&c, arena);
	f->index_name = get_found_text(&c, arena);
	f->index_flaw = get_found_text(&c, arena);
	n = shf_cur_u64(&c);
	f->manifest.data = (uint8_t *)(uintptr_t)shf_cur_bytes(&c, (size_t)n);
	f->manifest.len = (size_t)n;
	n = shf_cur_u64(&c);
	index = shf_cur_bytes(&c, (size_t)n);
	rc = get_found_files(&c, arena, f);
	if (rc < 0 || !f->path || !f->dir || !f->name || !f->index_name || !f->index_flaw)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for what was found");
	return f->has_index ? shf_index_parse(&f->index, arena, index, (size_t)n, f->path, err) : 0;
}

static void found_release(struct tell *t)
{
	for (size_t i = 0; i < t->files_n; i++)
		shf_free(t->files[i]);
	for (size_t i = 0; i < t->plain_n; i++)
		shf_free(t->plain[i]);
	shf_free(t->files);
	shf_free(t->plain);
	shf_free(t->plain_bytes);
	shf_buf_release(&t->manifest);
	shf_buf_release(&t->index);
}

int shf_file_slurp(const struct shf_sys *sys, int dir, const char *name, int flags, uint64_t max,
                   struct shf_buf *out)
{
	struct shf_stat st;
	int64_t got;
	int fd = shf_sys_open(sys, dir, name, flags, 0), rc = fd;

	if (fd < 0)
		return fd;
	rc = shf_sys_fstat(sys, fd, &st);
	if (rc >= 0 && st.type != SHF_T_FILE)
		rc = -EINVAL;
	if (rc >= 0 && st.bytes > max)
		rc = -EFBIG;
	if (rc >= 0 && st.bytes && !shf_buf_extend(out, (size_t)st.bytes))
		rc = -ENOMEM;
	if (rc >= 0) {
		got = shf_sys_pread(sys, fd, out->data, (size_t)st.bytes, 0);
		rc = got < 0 ? (int)got : 0;
		out->len = got < 0 ? 0 : (size_t)got;
	}
	shf_sys_close(sys, fd);
	return rc;
}

const char *shf_path_join(struct shf_buf *out, const char *dir, const char *name)
{
	shf_buf_addf(out, "%s/%s", dir, name);
	shf_buf_u8(out, 0);
	if (!out->oom)
		return (const char *)out->data;
	shf_buf_release(out);
	return NULL;
}

/* Returns the inode of an open directory; 0: not known. */
static uint64_t ino_of(const struct shf_sys *sys, int fd)
{
	struct shf_stat st;

	return fd >= 0 && shf_sys_fstat(sys, fd, &st) >= 0 ? st.ino : 0;
}

/* Between the read of the manifest and the open, another save of the same number may have replaced
 * the directory. If an inode is 0, the file system does not report it, and the directory is
 * accepted. */
bool shf_step_find_is_same(const struct shf_step_found *found, const struct shf_sys *sys, int dir)
{
	uint64_t ino = ino_of(sys, dir);

	return found->ino == ino || !found->ino || !ino;
}

/* Says why the manifest in that directory cannot be read. rc: what the system said; dir: the
 * directory, or what the system said of it. */
static int fail_to_read(int rc, int dir, bool remains, const char *path, struct sheaf_error *err)
{
	if (dir == -ELOOP || dir == -ENOTDIR)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: is a file or a symbolic link, and a "
		                "checkpoint of a run must be a directory; open what the link leads "
		                "to by its own path", path);
	if (rc == -ENOENT && remains)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: sheaf.json is missing", path);
	if (rc == -ENOENT)
		return shf_fail(err, SHEAF_EFORMAT, "%s: no sheaf.json, so it was not saved by "
		                "Sheaf; open it with sheaf_checkpoint_open_path", path);
	if (rc == -EINVAL || rc == -EISDIR || rc == -ELOOP)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/sheaf.json: not a regular file", path);
	if (rc == -EFBIG)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/sheaf.json: larger than 1 MiB", path);
	return shf_fail_sys(err, -rc, "%s/sheaf.json", path);
}

/* The manifest is read through an open descriptor of the directory. The inode of the directory goes
 * into the result, so that open_found() can find out whether the directory was replaced since. */
int shf_step_find_number(struct sheaf_run *run, int64_t n, struct shf_buf *told,
                         struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct tell t = { .flags = SOUND | IN_RUN };
	struct shf_buf where = SHF_BUF_INIT;
	const char *path;
	char name[SHF_STEP_NAME];
	struct shf_stat st;
	bool remains, gone;
	int rc, dir = -1;

	shf_name_of_step(&run->store, name, n);
	path = shf_path_join(&where, run->store.path, name);
	if (!path)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
	rc = shf_sys_stat(sys, run->store.dir, name, false, &st);
	if (rc == -ENOENT) {
		rc = shf_fail(err, SHEAF_ENOENT, "%s: no step %" PRId64 " (sheaf ls lists what "
		              "there is)", run->store.path, n);
		goto out;
	}
	/* The run may have been opened before its writer had made .sheaf: the run's identity is
	 * needed now. */
	if (rc >= 0 && (rc = shf_store_refresh(&run->store, err)) < 0)
		goto out;
	if (rc < 0) {
		rc = shf_fail_sys(err, -rc, "%s", path);
		goto out;
	}
	dir = shf_sys_open(sys, run->store.dir, name, SHF_O_DIR | SHF_O_NOFOLLOW, 0);
	if (dir == -ENOENT) {
		rc = shf_fail(err, SHEAF_ENOENT, "%s: was deleted or moved while it was being "
		              "opened", path);
		goto out;
	}
	t.ino = ino_of(sys, dir);
	rc = dir < 0 ? dir : shf_file_slurp(sys, dir, "sheaf.json", SHF_O_NOFOLLOW,
	                                        SHF_MANIFEST_MAX, &t.manifest);
	/* Without a manifest there are three cases: the directory was replaced or removed
	 * meanwhile; it is the remains of a step of this library; or it never was one. */
	remains = dir >= 0 && rc == -ENOENT && shf_dir_is_remains(sys, dir);
	gone = dir >= 0 && rc == -ENOENT && shf_dir_has_gone(sys, run->store.dir, name, false,
	                                                          dir);
	if (dir >= 0)
		shf_sys_close(sys, dir);
	if (gone)
		rc = shf_fail(err, SHEAF_ENOENT, "%s: was deleted or moved while it was being "
		              "opened", path);
	else if (rc < 0)
		rc = fail_to_read(rc, dir, remains, path, err);
	t.step = n;
	t.path = path;
	t.name = name;
	if (rc == 0) {
		write_found(&t, told);
		rc = told->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for a manifest") : 0;
	}
out:
	found_release(&t);
	shf_buf_release(&where);
	return rc;
}

/* ---- directories without a manifest ---- */

/* Whether s ends in `tail`. */
static bool has_ending(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);

	return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Whether the name looks like weights of some framework. Any other file in a foreign directory is a
 * plain file beside them: configuration, tokenizer and the like. */
static bool is_weights(const char *name)
{
	static const char *const tails[] = { ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5",
		".msgpack", ".onnx", ".gguf", ".npz", ".pdparams", ".pdopt", ".distcp",
		".safetensors.index.json", ".bin.index.json" };

	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		if (has_ending(name, tails[i]))
			return true;
	return false;
}

/* The names in a directory, each owned. */
struct names {
	char **a;
	size_t n, cap;
};

static void found_names_free(struct names *l)
{
	for (size_t i = 0; i < l->n; i++)
		shf_free(l->a[i]);
	shf_free(l->a);
}

/* Callback of shf_sys_list: adds a name to the list. Leaves out names that cannot be opened safely,
 * for example with a slash in them. */
static int add_foreign_name(void *arg, const char *name)
{
	struct names *l = arg;

	if (!shf_plain_is_valid(name))
		return 0;
	if (l->n == l->cap) {
		char **more = shf_realloc(l->a, l->cap ? 2 * l->cap : 32, sizeof(*more));

		if (!more)
			return -ENOMEM;
		l->a = more;
		l->cap = l->cap ? 2 * l->cap : 32;
	}
	l->a[l->n] = shf_strdup(name);
	return l->a[l->n] ? (l->n++, 0) : -ENOMEM;
}

static int text_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Appends a copy of the name to a list of n. */
static int add_to_list(char ***list, size_t *n, const char *name)
{
	char **more = shf_realloc(*list, *n + 1, sizeof(*more));

	if (!more)
		return SHEAF_ENOMEM;
	*list = more;
	more[*n] = shf_strdup(name);
	return more[*n] ? ((*n)++, 0) : SHEAF_ENOMEM;
}

/* Lists the plain files beside the weights, up to 64 MiB each. */
static int add_plain(const struct shf_sys *sys, int dir, const struct names *l, struct tell *t)
{
	for (size_t i = 0; i < l->n; i++) {
		struct shf_stat st;
		uint64_t *more;

		if (is_weights(l->a[i]) || !shf_attached_is_valid(l->a[i]) ||
		    strcmp(l->a[i], SHF_EXPORT_MARK) == 0 ||
		    shf_sys_stat(sys, dir, l->a[i], true, &st) < 0 ||
		    st.type != SHF_T_FILE || st.bytes > PLAIN_MAX)
			continue;
		more = shf_realloc(t->plain_bytes, t->plain_n + 1, sizeof(*more));
		if (!more)
			return SHEAF_ENOMEM;
		t->plain_bytes = more;
		more[t->plain_n] = st.bytes;
		if (add_to_list(&t->plain, &t->plain_n, l->a[i]) < 0)
			return SHEAF_ENOMEM;
	}
	return 0;
}

/* Picks the index file: model.safetensors.index.json, else the only index there is, else NULL. */
static const char *foreign_index(const struct names *l)
{
	const char *one = NULL;
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++) {
		if (strcmp(l->a[i], "model.safetensors.index.json") == 0)
			return l->a[i];
		if (has_ending(l->a[i], ".safetensors.index.json")) {
			one = l->a[i];
			n++;
		}
	}
	return n == 1 ? one : NULL;
}

/* Whether the directory has a file with that name. The list must be sorted. */
static bool has(const struct names *l, const char *name)
{
	return l->n && bsearch(&name, l->a, l->n, sizeof(*l->a), text_order);
}

/* Lists the files of a directory without an index: only model.safetensors, or every *.safetensors
 * file. If a file is named as shard k of n, all n shards must exist. */
static int files_of_names(struct tell *t, const char *path, const struct names *l,
                          struct sheaf_error *err)
{
	bool one = has(l, WHOLE);
	char want[300];

	for (size_t i = 0; i < l->n; i++) {
		/* model.safetensors is complete by itself; other files beside it are not part of
		 * it. */
		if (!has_ending(l->a[i], TAIL) || (one && strcmp(l->a[i], WHOLE)))
			continue;
		if (add_to_list(&t->files, &t->files_n, l->a[i]) < 0)
			return shf_fail(err, SHEAF_ENOMEM, "no memory for file names");
		if (shf_shard_is_missing(l->a, l->n, l->a[i], TAIL, want))
			return shf_fail(err, SHEAF_ECORRUPT, "%s: %s is missing", path, want);
	}
	if (t->files_n == 0)
		return shf_fail(err, SHEAF_EFORMAT, "%s: not a checkpoint: no sheaf.json and no "
		                "*.safetensors (if it is a run directory, use sheaf_run_open, or "
		                "name RUN@STEP)", path);
	return 0;
}

/* ---- the index of a directory ---- */

/* Lists the files of a directory by its index, which has been parsed. If one of them is missing,
 * the files are listed by their names: the tensors may be in others. Whether each tensor is where
 * the index says is checked later, once the headers are read (catalog.c). */
static int files_of_index(struct tell *t, const char *path, const struct shf_index *ix,
                          const struct names *l, struct sheaf_error *err)
{
	struct shf_buf files = SHF_BUF_INIT;
	const char *missing;
	struct sheaf_error own;
	int rc = shf_shards_of_index(&files, ix, l->a, l->n, TAIL, &missing);

	for (size_t i = 0; rc == 0 && !missing && i < files.len / sizeof(char *); i++)
		rc = add_to_list(&t->files, &t->files_n, ((char **)(void *)files.data)[i]);
	if (rc < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for file names");
	else if (missing && files_of_names(t, path, l, &own) < 0)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s: the index names %s, which is missing",
		              path, missing);
	shf_buf_release(&files);
	t->flags |= INDEX;
	return rc;
}

/* Reads the index of this name. If it cannot be parsed, or does not count because the model is
 * there in one file, that is noted as its flaw, and the files are listed by their names. An index
 * that leads out of the directory is refused. */
static int read_foreign_index(struct tell *t, const struct shf_sys *sys, const char *path, int dir,
                              const char *index, const struct names *l, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct sheaf_error flaw = { 0 };
	struct shf_index ix;
	int rc = shf_file_slurp(sys, dir, index, 0, INDEX_MAX, &t->index);

	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s/%s", path, index);
	rc = shf_index_parse(&ix, &arena, t->index.data, t->index.len, index, &flaw);
	if (rc == 0 && ix.n == 0)
		rc = shf_fail(&flaw, SHEAF_EFORMAT, "%s: it lists no tensor", index);
	if (rc == 0 && shf_shards_are_beside(&ix, WHOLE, l->a, l->n))
		rc = shf_fail(&flaw, SHEAF_EFORMAT, "%s: names other files, and " WHOLE " is "
		              "there, which transformers reads instead; remove what is old",
		              index);
	if (rc == 0) {
		rc = files_of_index(t, path, &ix, l, err);
	} else if (rc == SHEAF_EFORMAT && !ix.leaves) {
		memcpy(t->index_flaw, flaw.msg, sizeof(t->index_flaw));
		shf_buf_reset(&t->index);
		rc = files_of_names(t, path, l, err);
	} else {
		rc = shf_fail(err, rc, "%s/%s", path, flaw.msg);
	}
	shf_arena_release(&arena);
	return rc;
}

/* Names the index: as the one that is there, or as loaders expect it for these files. A single
 * model.safetensors needs none. */
static void name_index(struct tell *t, const char *index)
{
	struct shf_shard s;

	if (index)
		snprintf(t->index_name, sizeof(t->index_name), "%s", index);
	else if (t->files_n > 1 && shf_shard_of(&s, t->files[0], TAIL))
		snprintf(t->index_name, sizeof(t->index_name), "%.*s" TAIL ".index.json", s.stem,
		         t->files[0]);
	else if (t->files_n > 1)
		snprintf(t->index_name, sizeof(t->index_name), "model" TAIL ".index.json");
}

/* Lists the weights and the plain files of a directory without a manifest. */
static int look_inside(const struct shf_sys *sys, const char *path, int dir, struct tell *t,
                       struct sheaf_error *err)
{
	struct names l = { 0 };
	const char *index;
	int rc = shf_sys_list(sys, dir, add_foreign_name, &l);

	if (rc < 0)
		rc = shf_fail_sys(err, -rc, "%s", path);
	if (l.n)
		qsort(l.a, l.n, sizeof(*l.a), text_order);
	index = rc == 0 ? foreign_index(&l) : NULL;
	if (index)
		rc = read_foreign_index(t, sys, path, dir, index, &l, err);
	else if (rc == 0)
		rc = files_of_names(t, path, &l, err);
	if (rc == 0)
		name_index(t, index);
	if (rc == 0 && add_plain(sys, dir, &l, t) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for file names");
	found_names_free(&l);
	return rc;
}

/* Whether the directory has a table of sums, which means that it once was a step of this
 * library. */
static bool has_sums(const struct shf_sys *sys, int dir)
{
	struct shf_stat st;

	return shf_sys_stat(sys, dir, "sheaf.sums", true, &st) >= 0;
}

/* Reads the directory at `path`. A directory with a table of sums and no manifest was a step, and
 * is damaged. It is opened as a foreign one only if the caller asked for no checks
 * (SHEAF_RUN_UNVERIFIED). */
static int look_at_dir(const struct shf_sys *sys, const char *path, bool unverified,
                       struct tell *t, struct sheaf_error *err)
{
	int dir = shf_sys_open(sys, SHF_CWD, path, SHF_O_DIR, 0), rc;

	if (dir < 0)
		return shf_fail_sys(err, -dir, "%s", path);
	t->ino = ino_of(sys, dir);
	rc = shf_file_slurp(sys, dir, "sheaf.json", 0, SHF_MANIFEST_MAX, &t->manifest);
	if (rc == -EFBIG)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/sheaf.json: larger than 1 MiB", path);
	else if (rc == -EINVAL || rc == -EISDIR)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/sheaf.json: not a regular file", path);
	else if (rc < 0 && rc != -ENOENT)
		rc = shf_fail_sys(err, -rc, "%s/sheaf.json", path);
	else if (rc == -ENOENT && !unverified && has_sums(sys, dir))
		rc = shf_fail(err, SHEAF_ECORRUPT,
			      "%s: sheaf.json is missing, so sheaf.sums proves nothing; "
			      "SHEAF_RUN_UNVERIFIED reads it without checks", path);
	else if (rc == -ENOENT)
		rc = look_inside(sys, path, dir, t, err);
	else
		t->flags |= SOUND;
	shf_sys_close(sys, dir);
	return rc;
}

/* If the path is a file, the step consists of only that file, in its directory. */
int shf_step_find_path(struct sheaf_run *run, const char *path, struct shf_buf *told,
                       struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct tell t = { .step = -1, .path = path, .dir = path };
	struct shf_stat st;
	char *parent = NULL;
	int rc = shf_sys_stat(sys, SHF_CWD, path, true, &st), foreign;

	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	foreign = shf_foreign_is_here(sys, path, err);
	if (foreign < 0)
		return foreign;
	if (foreign) {
		t.flags = FOREIGN;
		t.dir = SHF_FOREIGN_DIR;
	} else if (st.type == SHF_T_DIR) {
		rc = look_at_dir(sys, path, run->opts.flags & SHEAF_RUN_UNVERIFIED, &t, err);
	} else if (st.type == SHF_T_FILE) {
		const char *slash = strrchr(path, '/');

		t.flags = SINGLE;
		/* The part of the path before the last slash, or the root, or the current
		 * directory. */
		parent = shf_strdup(slash ? path : ".");
		if (parent && slash)
			parent[slash == path ? 1 : slash - path] = '\0';
		t.dir = parent;
		rc = parent && add_to_list(&t.files, &t.files_n, slash ? slash + 1 : path) == 0
		   ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for a path");
	} else {
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: neither a file nor a directory", path);
	}
	if (rc == 0) {
		write_found(&t, told);
		rc = told->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for a path") : 0;
	}
	found_release(&t);
	shf_free(parent);
	return rc;
}

int shf_step_find_shown(const char *path, struct shf_buf *told, struct sheaf_error *err)
{
	struct tell t = { .flags = FOREIGN, .step = -1, .path = path, .dir = SHF_FOREIGN_DIR };

	write_found(&t, told);
	return told->oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open it", path) : 0;
}

int shf_step_find_memory(const char *path, const char *dir, const uint8_t *manifest, size_t n,
                         struct shf_buf *told, struct sheaf_error *err)
{
	struct tell t = { .flags = SOUND, .path = path, .dir = dir };

	t.manifest.data = (uint8_t *)(uintptr_t)manifest; /* borrowed: not released */
	t.manifest.len = n;
	write_found(&t, told);
	return told->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for a manifest") : 0;
}
