/* SPDX-License-Identifier: Apache-2.0 */
/* Flex checkpoints of paddle.distributed. <number>.metadata, a pickle, has for each tensor a list
 * of parts, and for each part the files that have it. A part is a box of the tensor, or a flat
 * range of a box. The file <rank>_<number>.distcp, which paddle.save wrote, has the parts of one
 * rank. A trainer puts up to four such directories into one.
 *
 * Source: python/paddle/distributed/flex_checkpoint/dcp of Paddle 3.3, and directories that it and
 * Paddle 3.0 wrote. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "paddle_facts.h"
#include "paddle_flex_file.h"
#include "sort.h"
#include "valid.h"

/* ---- recognising it ---- */

/* The metadata with the highest number: each save into the same directory takes the next number. */
struct newest {
	long number;                    /* -1: there are no metadata */
	int n;                          /* how many metadata there are */
	bool data;                      /* there are .distcp files */
};

static int see_metadata(void *arg, const char *name)
{
	struct newest *x = arg;
	char end[12];
	size_t n = strlen(name);
	unsigned number;

	if (sscanf(name, "%9u.%11s", &number, end) == 2 && strcmp(end, "metadata") == 0 &&
	    *name >= '0' && *name <= '9') {
		x->number = (long)number > x->number ? (long)number : x->number;
		x->n++;
	}
	x->data |= n > 7 && strcmp(name + n - 7, ".distcp") == 0;
	return 0;
}

/* Finds the newest metadata of a directory, or of a folder in it. Returns 1 if they are Paddle's, 0
 * if there are none, or a negative code. */
static int find_metadata(const struct shf_sys *sys, int dir, const char *path, const char *folder,
                         struct newest *x, struct sheaf_error *err)
{
	static const char *const modules[] = { "paddle.distributed.flex_checkpoint.dcp.metadata",
		"paddle.distributed.checkpoint.metadata" };
	int in = folder ? shf_sys_open(sys, dir, folder, SHF_O_DIR, 0) : dir, rc;
	char name[40];

	*x = (struct newest){ .number = -1 };
	if (in == -ENOENT || in == -ENOTDIR)
		return 0;
	rc = in < 0 ? in : shf_sys_list(sys, in, see_metadata, x);
	snprintf(name, sizeof(name), "%ld.metadata", x->number);
	if (rc < 0)
		rc = folder ? shf_fail_sys(err, -rc, "%s/%s", path, folder)
		            : shf_fail_sys(err, -rc, "%s", path);
	else if (x->number >= 0)
		rc = shf_begins_with_any(sys, in, name, modules, 2, err);
	if (folder && in >= 0)
		shf_sys_close(sys, in);
	return rc;
}

static int is_flex(const struct shf_sys *sys, int dir, const char *path, const char **why,
                   struct sheaf_error *err)
{
	struct newest x;
	int rc = find_metadata(sys, dir, path, NULL, &x, err);

	*why = "a directory with <number>.metadata, a pickle of paddle.distributed";
	for (size_t i = 0; i < SHF_FLEX_FOLDERS && rc == 0; i++) {
		rc = find_metadata(sys, dir, path, shf_flex_folders[i].folder, &x, err);
		if (rc == 1)
			*why = "folders such as model_state with <number>.metadata, pickles of "
			       "paddle.distributed";
	}
	return rc;
}

/* ---- tensors ---- */

struct flex {                   /* a directory that is being opened */
	struct shf_foreign *f;
	struct sheaf_error *err;
	const char *folder, *family, *tail;
	struct shf_flex_set *set;
	uint32_t number;                /* of the set */
	/* Owned; of the tensor that is being added. */
	struct shf_buf name, pieces;
	struct shf_arena arena;         /* numbers of the pieces */
};

static int flex_no_memory(const struct flex *x)
{
	return shf_fail(x->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", x->f->path);
}

static int flex_bad(const struct flex *x, const struct shf_flex_tensor *t, const char *why)
{
	const char *shown = shf_name_escape(&x->f->arena, t->name, t->name_n);

	if (!shown)
		return flex_no_memory(x);
	return shf_fail(x->err, SHEAF_EFORMAT, "%s: tensor %.*s: %s", x->f->path,
	                shf_name_show(shown), shown, why);
}

/* Sets the shape of a tensor: that in the metadata, or, if they have none, the smallest one that
 * contains all parts. */
static void flex_shape(const struct shf_flex_tensor *t, int64_t *dims)
{
	for (uint32_t d = 0; d < t->ndim; d++) {
		dims[d] = t->dims ? t->dims[d] : 0;
		for (uint32_t i = 0; !t->dims && i < t->parts_n; i++) {
			int64_t end = shf_flex_start(t, i)[d] + shf_flex_count(t, i)[d];

			dims[d] = end > dims[d] ? end : dims[d];
		}
	}
}

/* Refuses a tensor whose description in the metadata is impossible or of an unknown form. */
static int flex_prove_tensor(const struct flex *x, const struct shf_flex_tensor *t)
{
	const char *why = NULL;

	if (t->ndim > 64)
		why = "has more than 64 dimensions";
	else if (t->again || !t->parts_n)
		why = "is in the metadata twice, or has no parts";
	else if (t->odd)
		why = "has a part of unknown structure";
	else if (t->leaves)
		why = "has a part that leaves it";
	else if (t->two_types)
		why = "has parts of two types";
	for (uint32_t i = 0; !why && i < t->parts_n; i++)
		if (t->spots[i].file == SHF_FLEX_NOWHERE)
			why = "has a part that is in no file";
	return why ? flex_bad(x, t, why) : 0;
}

/* Sets x->name to the name that Sheaf gives tensor t of the folder that is being read. */
static bool flex_name(struct flex *x, const struct shf_flex_tensor *t)
{
	size_t n = t->name_n, m = x->tail ? strlen(x->tail) : 0;
	char *dot;

	if (m && n > m && memcmp(t->name + n - m, x->tail, m) == 0)
		n -= m;
	shf_buf_reset(&x->name);
	shf_buf_add(&x->name, t->name, n);
	dot = x->tail || x->name.oom ? NULL : memrchr(x->name.data, '.', n);
	if (dot)
		*dot = '/';
	shf_buf_u8(&x->name, 0);
	return !x->name.oom;
}

/* Returns 1 and sets `why` if the parts of a tensor do not tile it, and 0 or a negative code
 * otherwise. */
static int flex_prove_parts(struct flex *x, const struct shf_flex_tensor *t,
                            const struct shf_foreign_tensor *own, char why[300])
{
	const struct shf_flex_make m = { x->set, t, &x->arena, &x->pieces, false };
	int rc;

	for (uint32_t i = 0; t->ranges && i < t->parts_n; i++)
		if (t->ranges[2 * (size_t)i] >= 0 && (uint64_t)t->ranges[2 * (size_t)i + 1] >
		    shf_foreign_box_items(shf_flex_count(t, i), (int32_t)t->ndim)) {
			snprintf(why, 300, "has a flat range that leaves its box");
			return 1;
		}
	shf_buf_reset(&x->pieces);
	rc = shf_flex_make(x->f, &m, own, x->err);
	if (rc == 0)
		rc = shf_foreign_tiles((const void *)x->pieces.data, x->pieces.len /
		                       sizeof(struct shf_foreign_piece), own, why);
	if (t->ranges) {
		shf_arena_release(&x->arena);
		x->arena = (struct shf_arena){ 0 };
	}
	return rc == SHEAF_ENOMEM ? flex_no_memory(x) : rc;
}

/* Adds tensor number i. A part that several ranks have is read from one of them. */
static int flex_add_tensor(struct flex *x, uint32_t i)
{
	size_t n;
	struct shf_flex_tensor *t = shf_flex_tensors(&x->set->index, &n) + i;
	struct shf_foreign_tensor own = { .family = x->family, .ndim = (int32_t)t->ndim,
		.first = shf_key(x->number, i) };
	int64_t dims[SHF_FOREIGN_DIMS_MAX];
	char why[300];
	int rc = 0;

	if (!flex_name(x, t))
		return flex_no_memory(x);
	own.name = (const char *)x->name.data;
	if (!t->dtype)
		rc = shf_flex_read_type(x->f, x->set, t, own.name, x->err);
	flex_shape(t, dims);
	own.dims = dims;
	own.dtype = t->dtype;
	if (rc == 0)
		rc = flex_prove_parts(x, t, &own, why);
	if (rc)
		return rc < 0 ? rc : flex_bad(x, t, why);
	return shf_foreign_add_tensor(x->f, &own, own.name, x->name.len - 1, x->err);
}

/* Reads the metadata. */
static int flex_read(struct flex *x, const struct newest *newest)
{
	struct shf_flex_index *index = &x->set->index;
	const struct shf_pickle_taker taker = { shf_flex_index_take, index, true };
	struct shf_pickle pickle = { 0 };
	struct shf_region r;
	uint32_t file;
	char name[40];
	int rc;

	snprintf(name, sizeof(name), "%ld.metadata", newest->number);
	rc = shf_foreign_add_file_in(x->f, x->folder, name, strlen(name), &file, x->err);
	if (rc == 0)
		rc = shf_foreign_region(x->f, file, &r, x->err);
	if (rc < 0)
		return rc;
	index->kept = &x->f->arena;
	index->left = 64 * r.bytes + (1 << 20);
	rc = r.bytes > SHF_PICKLE_MAX
	   ? shf_fail(x->err, SHEAF_EFORMAT, "%s: is not a file of at most 1 GiB", r.where)
	   : shf_pickle_read_file(&pickle, &r, &taker, x->err);
	if (rc == 0 && !shf_flex_index_end(index, pickle.root) && !index->oom)
		rc = shf_fail(x->err, SHEAF_EFORMAT, "%s: is not Metadata of paddle.distributed as "
		              "it is known", r.where);
	if (rc == 0 && index->oom)
		rc = flex_no_memory(x);
	shf_pickle_release(&pickle);
	shf_foreign_region_end(x->f, file);
	return rc;
}

/* Adds the files that the metadata name. */
static int flex_add_files(struct flex *x)
{
	const struct shf_text_table *names = &x->set->index.files;
	uint32_t n = shf_text_count(names);
	int rc = 0;

	x->set->files = shf_arena_alloc(&x->f->arena, n, sizeof(*x->set->files));
	if (!x->set->files)
		return flex_no_memory(x);
	for (uint32_t k = 0; k < n && rc == 0; k++)
		rc = shf_foreign_add_file_in(x->f, x->folder, shf_text_at(names, k)->s,
		                             shf_text_at(names, k)->n, &x->set->files[k], x->err);
	return rc;
}

/* Adds all tensors. */
static int flex_add_tensors(struct flex *x)
{
	size_t n;
	const struct shf_flex_tensor *t = shf_flex_tensors(&x->set->index, &n);
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = flex_prove_tensor(x, &t[i]);
	if (rc == 0)
		rc = flex_add_files(x);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = flex_add_tensor(x, i);
	shf_buf_release(&x->name);
	shf_buf_release(&x->pieces);
	shf_arena_release(&x->arena);
	return rc;
}

/* Reads one directory with metadata: f's own if folder is NULL. */
static int flex_folder(struct shf_foreign *f, const struct newest *newest, const char *folder,
                       const char *family, const char *tail, struct sheaf_error *err)
{
	struct shf_flex *flex = f->own;
	struct flex x = { .f = f, .err = err, .folder = folder, .family = family, .tail = tail,
		.set = &flex->sets[flex->sets_n], .number = flex->sets_n };
	int rc;

	flex->sets_n++;
	rc = flex_read(&x, newest);
	if (rc == 0)
		rc = flex_add_tensors(&x);
	if (rc == 0 && newest->n > 1)
		rc = shf_foreign_note(f, err, folder ? folder : "(root)",
		                      folder ? strlen(folder) : 6, "has the metadata of %d saves; "
		                      "the newest, %ld, is read", newest->n, newest->number);
	return rc;
}

static int open_flex(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_listing names = { .arena = &f->arena };
	struct shf_flex *flex = shf_zalloc(1, sizeof(*flex));
	struct newest x;
	int rc;

	f->own = flex;
	if (!flex)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to open it", f->path);
	pthread_mutex_init(&flex->lock, NULL);
	pthread_cond_init(&flex->read, NULL);
	rc = find_metadata(f->in, f->dir, f->path, NULL, &x, err);
	if (rc == 1)
		rc = flex_folder(f, &x, NULL, NULL, "", err);
	for (size_t i = 0; i < SHF_FLEX_FOLDERS && rc == 0; i++) {
		const struct shf_flex_folder *own = &shf_flex_folders[i];

		rc = find_metadata(f->in, f->dir, f->path, own->folder, &x, err);
		if (rc == 1)
			rc = flex_folder(f, &x, own->folder, own->family, own->tail, err);
		else if (rc == 0 && x.data)
			rc = shf_fail(err, SHEAF_EFORMAT, "%s/%s: has .distcp files, but no "
			              "metadata of paddle.distributed: its save has not finished",
			              f->path, own->folder);
	}
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	if (rc == 0)
		rc = shf_listing_read(&names, &f->arena, f->in, f->dir, f->path, err);
	if (rc == 0)
		rc = shf_paddle_facts(f, &names, err);
	shf_buf_release(&names.a);
	return rc;
}

const struct shf_foreign_format shf_paddle_flex = {
	.name = "paddle.flex",
	.is_dir = is_flex,
	.open = open_flex,
	.make_pieces = shf_flex_make_pieces,
	.digest = shf_flex_digest,
	.verify = shf_flex_verify,
	.close = shf_flex_close,
};
