/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of Orbax, and arrays of TensorStore and Zarr outside of one. A save is a folder. It
 * is a store of arrays itself, or has a folder for each item that was saved, of which those with
 * arrays are stores. CheckpointManager puts the saves of a run into folders with their numbers.
 *
 * Source: orbax/checkpoint of Orbax 0.12.8, and checkpoints that it wrote. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign_json.h"
#include "foreign_st.h"
#include "orbax_tree.h"
#include "valid.h"
#include "zarr.h"

#define SAVE_METADATA "_CHECKPOINT_METADATA"
#define ITEM_METADATA "_METADATA"
#define TEMPORARY ".orbax-checkpoint-tmp"
#define PROCESS "ocdbt.process_"        /* the database of one process, until all are merged */
#define DEPTH_MAX 16                    /* folders in each other */

/* ---- recognising it ---- */

static const char *const zarr_texts[] = { "\"zarr_format\"" };
static const char *const item_texts[] = { "\"tree_metadata\"" };
static const char *const save_texts[] = { "\"item_handlers\"", "\"init_timestamp_nsecs\"" };

/* What a directory is. */
enum orbax_kind {
	ORBAX_NONE,
	ORBAX_ARRAYS,                   /* a store that another program may have written */
	ORBAX_ITEM,                     /* a store with the tree of an item */
	ORBAX_ITEMS,                    /* a save, with a folder for each item */
	ORBAX_RUN,                      /* saves in folders with their numbers */
	ORBAX_DAMAGED                   /* only of a folder: an array with odd metadata */
};

/* Whether a folder has a file that begins as the manifest of a database does. */
static bool has_manifest(const struct shf_sys *sys, int dir)
{
	static const uint8_t magic[4] = { 0x0c, 0xdb, 0x3a, 0x2a };
	int fd = shf_sys_open(sys, dir, SHF_OCDBT_MANIFEST, 0, 0);
	uint8_t head[4] = { 0 };

	if (fd < 0)
		return false;
	if (shf_sys_pread(sys, fd, head, 4, 0) < 0)
		head[0] = 0;
	shf_sys_close(sys, fd);
	return memcmp(head, magic, 4) == 0;
}

/* Whether a folder has metadata of Zarr. */
static int has_zarr(const struct shf_sys *sys, int dir, struct sheaf_error *err)
{
	static const char *const names[] = { ".zarray", "zarr.json", ".zgroup" };
	int rc = 0;

	for (size_t i = 0; i < 3 && rc == 0; i++)
		rc = shf_begins_with_any(sys, dir, names[i], zarr_texts, 1, err);
	return rc;
}

/* Whether there are databases of processes, which a save makes before it joins them. */
static bool has_processes(const struct shf_listing *l)
{
	for (size_t i = 0; i < shf_listing_n(l); i++)
		if (strncmp(shf_listing_at(l, i), PROCESS, strlen(PROCESS)) == 0)
			return true;
	return false;
}

/* Looks at a folder. l: its names. Returns an enum orbax_kind up to ITEMS, or a negative code. */
static int look_at_save(const struct shf_sys *sys, int dir, const struct shf_listing *l,
                        const char **why, struct sheaf_error *err)
{
	int rc = 0;

	*why = "_METADATA with a tree_metadata";
	if (shf_listing_has(l, ITEM_METADATA))
		rc = shf_begins_with_any(sys, dir, ITEM_METADATA, item_texts, 1, err);
	if (rc)
		return rc < 0 ? rc : ORBAX_ITEM;
	*why = "folders " PROCESS "<number>";
	if (has_processes(l))
		return ORBAX_ITEM;
	*why = "manifest.ocdbt with the magic number of OCDBT";
	if (shf_listing_has(l, SHF_OCDBT_MANIFEST) && has_manifest(sys, dir))
		return ORBAX_ARRAYS;
	*why = SAVE_METADATA;
	if (shf_listing_has(l, SAVE_METADATA))
		rc = shf_begins_with_any(sys, dir, SAVE_METADATA, save_texts, 2, err);
	if (rc)
		return rc < 0 ? rc : ORBAX_ITEMS;
	*why = "metadata of Zarr";
	rc = has_zarr(sys, dir, err);
	return rc > 0 ? ORBAX_ARRAYS : rc;
}

/* Reads the number at the end of the name of a folder: 1000, step_1000, checkpoint-1000. Returns -1
 * if it has none. */
static int64_t orbax_step(const char *name)
{
	size_t n = strcspn(name, "/"), at = n;
	int64_t v = 0;

	while (at && name[at - 1] >= '0' && name[at - 1] <= '9')
		at--;
	if (at == n || n - at > 18 || (at && name[at - 1] != '_' && name[at - 1] != '-'))
		return -1;
	for (size_t i = at; i < n; i++)
		v = v * 10 + (name[i] - '0');
	return v;
}

/* Looks at a folder of a directory that is no save itself. Returns RUN if it is a save of a run,
 * ARRAYS or DAMAGED if it is an array. */
static int look_at_folder(const struct shf_sys *sys, int dir, const char *path, const char *name,
                       struct sheaf_error *err)
{
	struct shf_listing l = { .arena = NULL };
	struct shf_arena arena = { 0 };
	const char *why;
	int fd = strstr(name, TEMPORARY) ? -1 : shf_sys_open(sys, dir, name, SHF_O_DIR, 0), rc;

	if (fd < 0)
		return ORBAX_NONE;
	rc = shf_listing_read(&l, &arena, sys, fd, path, err);
	if (rc == 0 && orbax_step(name) >= 0 && shf_listing_has(&l, SAVE_METADATA)) {
		rc = look_at_save(sys, fd, &l, &why, err);
		rc = rc > 0 ? ORBAX_RUN : rc;
	}
	if (rc == 0) {
		rc = has_zarr(sys, fd, err);
		rc = rc > 0 ? ORBAX_ARRAYS : rc;
		if (rc == 0 && (shf_listing_has(&l, ".zarray") || shf_listing_has(&l, "zarr.json")))
			rc = ORBAX_DAMAGED;
	}
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	shf_sys_close(sys, fd);
	return rc;
}

/* Finds out what the directory is. *newest: of a run, the folder of its newest save, in the
 * arena. */
static int look_at_orbax(const struct shf_sys *sys, int dir, const char *path,
                         struct shf_arena *arena, const char **newest, const char **why,
                         struct sheaf_error *err)
{
	struct shf_listing l = { .arena = NULL };
	int rc = shf_listing_read(&l, arena, sys, dir, path, err), kind;
	size_t arrays = 0, others = 0;
	int64_t step = -1;

	*newest = NULL;
	kind = rc < 0 ? rc : look_at_save(sys, dir, &l, why, err);
	for (size_t i = 0; kind == ORBAX_NONE && rc >= 0 && i < shf_listing_n(&l); i++) {
		const char *name = shf_listing_at(&l, i);

		if (*newest && orbax_step(name) <= step)
			continue;
		rc = look_at_folder(sys, dir, path, name, err);
		arrays += rc == ORBAX_ARRAYS;
		others += rc == ORBAX_NONE && name[0] != '.';
		if (rc == ORBAX_RUN) {
			*newest = name;
			step = orbax_step(name);
		}
	}
	/* A model may have a folder with arrays beside it, and is no store. */
	if (kind == ORBAX_NONE && arrays && !others)
		kind = ORBAX_ARRAYS;
	if (*newest)
		*why = "folders with numbers that have a _CHECKPOINT_METADATA";
	else if (arrays)
		*why = "folders with metadata of Zarr";
	shf_buf_release(&l.a);
	return rc < 0 ? rc : *newest ? ORBAX_RUN : kind;
}

static int is_any(const struct shf_sys *sys, int dir, const char *path, const char **why,
                  bool arrays, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	const char *newest;
	int rc = look_at_orbax(sys, dir, path, &arena, &newest, why, err);

	shf_arena_release(&arena);
	return rc > 0 ? (rc == ORBAX_ARRAYS) == arrays : rc;
}

static int is_orbax(const struct shf_sys *sys, int dir, const char *path, const char **why,
                    struct sheaf_error *err)
{
	return is_any(sys, dir, path, why, false, err);
}

static int is_zarr(const struct shf_sys *sys, int dir, const char *path, const char **why,
                   struct sheaf_error *err)
{
	return is_any(sys, dir, path, why, true, err);
}

/* ---- stores ---- */

struct orbax {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_arena arena;         /* of what is needed only until it is open */
};

static int orbax_no_memory(const struct orbax *o)
{
	return shf_fail(o->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", o->f->path);
}

/* Returns folder/name, or NULL. */
static char *joined(struct orbax *o, const char *folder, const char *name)
{
	struct shf_buf b = SHF_BUF_INIT;
	char *path = NULL;

	shf_buf_addf(&b, folder && *folder ? "%s/%s" : "%s%s", folder ? folder : "", name);
	if (!b.oom)
		path = shf_arena_strdup(&o->arena, (const char *)b.data, b.len);
	shf_buf_release(&b);
	return path;
}

/* Opens a folder, NULL for the directory itself, and lists it. The caller calls folder_end, after a
 * failure, too. */
static int folder_list(struct orbax *o, const char *folder, int *fd, struct shf_listing *l)
{
	*fd = folder ? shf_foreign_folder(o->f, folder) : o->f->dir;
	*l = (struct shf_listing){ .arena = NULL };
	if (*fd < 0)
		return shf_fail_sys(o->err, -*fd, "%s/%s", o->f->path, folder ? folder : "");
	return shf_listing_read(l, &o->arena, o->f->in, *fd, o->f->path, o->err);
}

static void folder_end(const struct orbax *o, int fd, struct shf_listing *l)
{
	shf_buf_release(&l->a);
	if (fd >= 0 && fd != o->f->dir)
		shf_sys_close(o->f->in, fd);
}

/* Adds a file of an array as a value. key: its path in the store. */
static int walk_file(struct orbax *o, const char *folder, const char *name, const char *key,
                     struct shf_buf *kv)
{
	struct shf_kv x = { .key = key };
	int rc = shf_foreign_add_file_in(o->f, folder, name, strlen(name), &x.file, o->err);

	if (rc < 0)
		return rc;
	x.bytes = shf_foreign_file(o->f, x.file)->bytes;
	shf_buf_add(kv, &x, sizeof(x));
	return kv->oom ? orbax_no_memory(o) : 0;
}

/* Returns what an entry of a folder is: LINK if it is a link to a folder. A link to nothing counts
 * as a file, which is missing. */
static int entry_type(const struct orbax *o, int fd, const char *name, const char *path)
{
	struct shf_stat st, behind;
	int rc = shf_sys_stat(o->f->in, fd, name, false, &st);

	if (rc < 0)
		return shf_fail_sys(o->err, -rc, "%s/%s", o->f->path, path);
	if (st.type != SHF_T_LINK)
		return st.type;
	rc = shf_sys_stat(o->f->in, fd, name, true, &behind);
	if (rc < 0 && rc != -ENOENT)
		return shf_fail_sys(o->err, -rc, "%s/%s", o->f->path, path);
	return rc == 0 && behind.type == SHF_T_DIR ? SHF_T_LINK : SHF_T_FILE;
}

/* Links to folders are not followed, because they can lead in a circle. One in an array is refused:
 * the chunks under it would be taken for chunks that are not stored, which have the fill value. Any
 * other one is noted. */
static int walk_link(struct orbax *o, const char *path, const char *key, bool in_array)
{
	if (in_array)
		return shf_fail(o->err, SHEAF_EFORMAT, "%s/%s: is a link to a folder in an array, "
		                "which is not followed", o->f->path, path);
	return shf_foreign_note(o->f, o->err, key, strlen(key), "a link to a folder, which is not "
	                        "followed");
}

/* Adds all files of a folder that is an array or is in one, and those of the folders in it. key:
 * the path of the folder in the store. */
static int walk_folder(struct orbax *o, const char *folder, const char *key, bool in_array,
                       int depth, struct shf_buf *kv)
{
	struct shf_listing l;
	int fd, rc = folder_list(o, folder, &fd, &l);

	in_array |= shf_listing_has(&l, ".zarray") || shf_listing_has(&l, "zarr.json");
	if (rc == 0 && depth == DEPTH_MAX)
		rc = shf_fail(o->err, SHEAF_EFORMAT, "%s/%s: its folders lie deeper in each other "
		              "than is read", o->f->path, folder);
	for (size_t i = 0; i < shf_listing_n(&l) && rc == 0; i++) {
		const char *name = shf_listing_at(&l, i);
		char *path = joined(o, folder, name), *own = joined(o, key, name);
		int type = path && own ? entry_type(o, fd, name, path) : orbax_no_memory(o);

		if (type < 0)
			rc = type;
		else if (type == SHF_T_DIR)
			rc = walk_folder(o, path, own, in_array, depth + 1, kv);
		else if (type == SHF_T_LINK)
			rc = walk_link(o, path, own, in_array);
		else if (in_array)
			rc = walk_file(o, folder, name, own, kv);
	}
	folder_end(o, fd, &l);
	return rc;
}

static int kv_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_kv *)a)->key, ((const struct shf_kv *)b)->key);
}

/* Refuses a store whose save did not finish. */
static int check_finished(struct orbax *o, const char *folder, const struct shf_listing *l)
{
	if (!has_processes(l) || shf_listing_has(l, SHF_OCDBT_MANIFEST))
		return 0;
	return shf_fail(o->err, SHEAF_EFORMAT, "%s%s%s: has the databases of processes, but no "
	                "manifest.ocdbt that joins them: its save has not finished",
	                o->f->path, folder ? "/" : "", folder ? folder : "");
}

/* Adds the arrays of a store. prefix: of their names. */
static int add_store(struct orbax *o, const char *folder, const char *prefix)
{
	struct shf_zarr_store s = { .f = o->f, .arena = &o->arena, .path = o->f->path,
		.prefix = prefix };
	struct shf_orbax_tree tree = { .all_stored = false };
	struct shf_buf kv = SHF_BUF_INIT;
	struct shf_listing l;
	int fd, rc = folder_list(o, folder, &fd, &l);

	if (rc == 0)
		rc = check_finished(o, folder, &l);
	if (rc == 0 && shf_listing_has(&l, ITEM_METADATA))
		rc = shf_orbax_tree_read(&tree, o->f, folder, prefix, &o->arena, o->err);
	if (rc == 0 && shf_listing_has(&l, SHF_OCDBT_MANIFEST))
		rc = shf_ocdbt_read(o->f, folder, &l, &o->arena, &kv, o->err);
	else if (rc == 0)
		rc = walk_folder(o, folder, "", false, 0, &kv);
	if (kv.len && !shf_listing_has(&l, SHF_OCDBT_MANIFEST))
		qsort(kv.data, kv.len / sizeof(struct shf_kv), sizeof(struct shf_kv), kv_order);
	s.kv = (const void *)kv.data;
	s.n = kv.len / sizeof(struct shf_kv);
	s.all_stored = tree.all_stored;
	if (rc == 0)
		rc = shf_zarr_add(&s, o->err);
	if (rc == 0)
		rc = shf_orbax_tree_check(&tree, o->f, &s.names, o->err);
	shf_orbax_tree_release(&tree);
	shf_buf_release(&s.names);
	shf_buf_release(&kv);
	folder_end(o, fd, &l);
	return rc;
}

/* ---- a save ---- */

/* Notes what is in an item that is a file of JSON, which has the name of its handler. */
static int note_json_item(struct orbax *o, const char *path, const char *name, int fd,
                          const struct shf_listing *l)
{
	static const char *const files[] = { "metadata", "metrics" };
	struct shf_stat st;
	int rc = 0;

	for (size_t i = 0; i < 2 && rc == 0; i++)
		if (shf_listing_has(l, files[i]) &&
		    shf_sys_stat(o->f->in, fd, files[i], true, &st) == 0 && st.type == SHF_T_FILE)
			rc = shf_foreign_json_notes(o->f, path, files[i], name, o->err);
	return rc;
}

/* Makes a name from the path of an item, with dots for slashes, and appends the tail. It begins the
 * names of what is in the item. */
static const char *item_name(struct orbax *o, const char *item, const char *tail)
{
	struct shf_buf b = SHF_BUF_INIT;
	char *text = NULL;

	shf_buf_addf(&b, "%s%s", item, tail);
	if (!b.oom)
		text = shf_arena_strdup(&o->arena, (const char *)b.data, b.len);
	for (char *p = text; p && (p = strchr(p, '/')) != NULL;)
		*p = '.';
	shf_buf_release(&b);
	return text;
}

static int look_at_items(struct orbax *o, const char *folder, const char *above,
                         const struct shf_listing *l, struct shf_buf *items);

/* Looks at an entry of a save. If it is an item with arrays, appends its path in the save to
 * *items, which has const char *. An item of a random generator has folders that are items
 * themselves. above: the item that the entry is in; NULL: none. */
static int look_at_item(struct orbax *o, const char *folder, const char *above, const char *name,
                        struct shf_buf *items)
{
	const char *path = joined(o, folder, name), *own = joined(o, above, name), *why, *shown;
	struct shf_listing l;
	int fd, rc, kind = 0;

	shown = own ? item_name(o, own, "") : NULL;
	if (!path || !shown)
		return orbax_no_memory(o);
	fd = shf_foreign_folder(o->f, path);
	if (fd == -ENOTDIR || (above && (fd == -ENOENT || fd == -ELOOP)))
		return 0;
	if (fd >= 0)
		shf_sys_close(o->f->in, fd);
	rc = folder_list(o, path, &fd, &l);
	if (rc == 0)
		rc = kind = look_at_save(o->f->in, fd, &l, &why, o->err);
	if (kind > 0 && kind != ORBAX_ITEMS)
		shf_buf_add(items, &own, sizeof(own));
	else if (rc == ORBAX_NONE)
		rc = note_json_item(o, path, shown, fd, &l);
	if (rc == 0 && kind == ORBAX_NONE && !above)
		rc = look_at_items(o, path, name, &l, items);
	folder_end(o, fd, &l);
	return rc < 0 ? rc : 0;
}

/* Looks at the entries of a save, or of an item in it. */
static int look_at_items(struct orbax *o, const char *folder, const char *above,
                         const struct shf_listing *l, struct shf_buf *items)
{
	int rc = 0;

	for (size_t i = 0; i < shf_listing_n(l) && rc == 0; i++) {
		const char *name = shf_listing_at(l, i);

		rc = strstr(name, TEMPORARY)
		   ? shf_fail(o->err, SHEAF_EFORMAT, "%s: has the item %s, whose save has not "
		              "finished", o->f->path, name)
		   : look_at_item(o, folder, above, name, items);
	}
	return rc;
}

/* Adds the stores of a save that has a folder for each item. If there are several, names begin with
 * that of the item. */
static int add_items(struct orbax *o, const char *folder, const struct shf_listing *l)
{
	struct shf_buf items = SHF_BUF_INIT;
	int rc = look_at_items(o, folder, NULL, l, &items);
	size_t n = items.len / sizeof(char *);

	if (rc == 0)
		rc = items.oom ? orbax_no_memory(o) : 0;
	if (rc == 0 && !n)
		rc = shf_fail(o->err, SHEAF_EFORMAT, "%s: is a save of Orbax without arrays",
		              o->f->path);
	for (size_t i = 0; i < n && rc == 0; i++) {
		const char *item = ((const char **)(void *)items.data)[i];
		const char *path = joined(o, folder, item);
		const char *prefix = n > 1 ? item_name(o, item, ".") : "";

		rc = path && prefix ? add_store(o, path, prefix) : orbax_no_memory(o);
	}
	shf_buf_release(&items);
	return rc;
}

/* Adds a save: the directory itself, or a folder in it. */
static int add_save(struct orbax *o, const char *folder)
{
	struct shf_listing l;
	const char *why;
	int fd, rc = folder_list(o, folder, &fd, &l), kind = 0;

	if (rc == 0)
		rc = kind = look_at_save(o->f->in, fd, &l, &why, o->err);
	if (rc >= 0)
		rc = shf_listing_has(&l, SAVE_METADATA)
		   ? shf_foreign_json_notes(o->f, folder, SAVE_METADATA, "orbax", o->err) : 0;
	if (rc == 0)
		rc = kind == ORBAX_ITEMS ? add_items(o, folder, &l) : add_store(o, folder, "");
	folder_end(o, fd, &l);
	return rc;
}

/* Returns the last part of the path. */
static const char *last_part(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	return path + n;
}

static int open_orbax(struct shf_foreign *f, struct sheaf_error *err)
{
	struct orbax o = { .f = f, .err = err };
	const char *newest = NULL, *why;
	int64_t step;
	int rc;

	if (strstr(last_part(f->path), TEMPORARY))
		return shf_fail(err, SHEAF_EFORMAT, "%s: is the folder of a save of Orbax that has "
		                "not finished", f->path);
	rc = look_at_orbax(f->in, f->dir, f->path, &o.arena, &newest, &why, err);
	if (rc == ORBAX_NONE)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc >= 0)
		rc = add_save(&o, newest);
	/* An array has no step, whatever its name. */
	step = f->format == &shf_zarr ? -1 : orbax_step(newest ? newest : last_part(f->path));
	if (rc == 0 && step >= 0)
		rc = shf_foreign_note(f, err, "step", 4, "%" PRId64, step);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	shf_arena_release(&o.arena);
	return rc;
}

const struct shf_foreign_format shf_orbax = {
	.name = "orbax",
	.is_dir = is_orbax,
	.open = open_orbax,
	.verify = shf_zarr_verify,
};

const struct shf_foreign_format shf_zarr = {
	.name = "zarr",
	.is_dir = is_zarr,
	.open = open_orbax,
	.verify = shf_zarr_verify,
};
