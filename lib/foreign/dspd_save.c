/* SPDX-License-Identifier: Apache-2.0 */
#include "dspd_save.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"

int shf_dspd_no_memory(const struct shf_dspd *d)
{
	return shf_fail(d->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", d->f->path);
}

int shf_dspd_bad(const struct shf_dspd *d, const char *where, const char *why)
{
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: %s", where, why);
}

int shf_dspd_charge(struct shf_dspd *d, size_t n)
{
	if (n >= d->names_left)
		return shf_dspd_bad(d, d->f->path, "has more tensors, or longer names, than can "
		                    "be listed");
	d->names_left -= n;
	return 0;
}

const char *shf_dspd_shown(struct shf_dspd *d, const char *name, size_t n, const char *key)
{
	char rank[16] = "";
	size_t rank_n, more = key ? strlen(key) + 1 : 0;
	char *own;

	if (d->tp_n > 1)
		snprintf(rank, sizeof(rank), "@mp%02d", d->mp % d->tp_n);
	rank_n = strlen(rank);
	if (shf_dspd_charge(d, n + rank_n + more + SHF_DSPD_TENSOR_COST) < 0)
		return NULL;
	own = shf_arena_alloc(&d->f->arena, n + rank_n + more + 1, 1);
	if (!own) {
		shf_dspd_no_memory(d);
		return NULL;
	}
	memcpy(own, name, n);
	memcpy(own + n, rank, rank_n);
	if (key) {
		own[n + rank_n] = '/';
		memcpy(own + n + rank_n + 1, key, more);
	}
	return own;
}

const char *shf_dspd_keep(struct shf_dspd *d, const char *name, size_t n)
{
	const char *own;

	if (shf_dspd_charge(d, n) < 0)
		return NULL;
	own = shf_arena_strdup(&d->f->arena, name, n);
	if (!own)
		shf_dspd_no_memory(d);
	return own;
}

/* Whether a file that DeepSpeed saved as `was` has another name now. Old and new versions spell the
 * name of a rank in several ways. */
static bool has_been_renamed(const char *name, const char *was)
{
	struct shf_dspd_name x, y;
	struct shf_dspd_layer layer;

	if (shf_dspd_name_of(&x, name) && shf_dspd_name_of(&y, was))
		return x.dp != y.dp || x.mp != y.mp || x.optimizer != y.optimizer;
	return (shf_dspd_layer_of(&layer, was) || shf_dspd_name_of(&y, was)) && strcmp(name, was);
}

/* All records of an archive of torch.save are in a folder that has the name of the file, without
 * its end, under which it was saved. So a file of another rank, layer or expert that was given this
 * name is found. */
static int check_renamed(struct shf_dspd *d, const struct shf_dspd_file *x, const char *name)
{
	char text[256];
	size_t n = x->zip.prefix.len;

	if (n == 0 || n > sizeof(text) - 4)
		return 0;
	memcpy(text, x->zip.prefix.data, n);
	memcpy(text + n - 1, ".pt", 4);
	if (!has_been_renamed(name, text))
		return 0;
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: was saved as %s, and has been renamed; its "
	                "values belong to the file of that name", x->where, text);
}

/* Makes the path of a folder under the one that has the save, or of that one if `under` is NULL:
 * *path, or NULL if it is f->dir itself. to: has the bytes, and is released by the caller. */
static int folder_path(const struct shf_dspd *d, const char *under, struct shf_buf *to,
                       const char **path)
{
	shf_buf_addf(to, "%s%s%s", d->dir.folder ? d->dir.folder : "",
	             d->dir.folder && under ? "/" : "", under ? under : "");
	shf_buf_u8(to, 0);
	*path = !to->oom && to->len > 1 ? (const char *)to->data : NULL;
	return to->oom ? shf_dspd_no_memory(d) : 0;
}

int shf_dspd_list(struct shf_dspd *d, const char *under, struct shf_arena *arena,
                  struct shf_listing *l)
{
	struct shf_buf buf = SHF_BUF_INIT;
	const char *path;
	int rc = folder_path(d, under, &buf, &path), fd = d->f->dir;

	*l = (struct shf_listing){ .arena = arena };
	if (rc == 0 && path)
		fd = shf_foreign_folder(d->f, path);
	if (rc == 0)
		rc = fd == -ENOTDIR ? 1
		   : fd < 0 ? shf_fail_sys(d->err, -fd, "%s/%s", d->f->path, path)
		   : shf_listing_read(l, arena, d->f->in, fd, d->f->path, d->err);
	if (fd >= 0 && fd != d->f->dir)
		shf_sys_close(d->f->in, fd);
	shf_buf_release(&buf);
	return rc;
}

int shf_dspd_open(struct shf_dspd *d, const char *under, const char *name,
                  struct shf_dspd_file *x)
{
	struct shf_buf buf = SHF_BUF_INIT;
	struct shf_region r;
	const char *folder;
	int rc = folder_path(d, under, &buf, &folder);

	*x = (struct shf_dspd_file){ .file = UINT32_MAX };
	if (rc == 0)
		rc = shf_foreign_add_file_in(d->f, folder, name, strlen(name), &x->file, d->err);
	shf_buf_release(&buf);
	if (rc == 0)
		rc = shf_foreign_region(d->f, x->file, &r, d->err);
	if (rc < 0) {
		x->file = UINT32_MAX;
		return rc;
	}
	x->where = r.where;
	rc = shf_torch_zip_open(&x->zip, &r, d->err);
	if (rc == 0 && !under)
		rc = check_renamed(d, x, name);
	d->names_left += rc == 0 ? 16 * x->zip.pickle.read : 0;
	return rc;
}

void shf_dspd_close(struct shf_dspd *d, struct shf_dspd_file *x)
{
	if (x->file == UINT32_MAX)
		return;
	shf_torch_zip_release(&x->zip);
	shf_foreign_region_end(d->f, x->file);
}

int shf_dspd_place(struct shf_dspd *d, const struct shf_dspd_file *x,
                   const struct shf_torch_tensor *t, const char *name,
                   struct shf_foreign_piece *piece)
{
	int64_t *stride = shf_foreign_numbers(d->f, (size_t)t->ndim + 1);

	*piece = (struct shf_foreign_piece){ .file = x->file, .stride = stride };
	return stride ? shf_torch_zip_place(&x->zip, t, name, &piece->at, stride, d->err)
	              : shf_dspd_no_memory(d);
}

int shf_dspd_flat(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                  const char *name, struct shf_dspd_part *part)
{
	struct shf_foreign_piece piece;
	struct shf_torch_tensor t;
	const char *why;
	int rc;

	if (shf_torch_tensor_of(&t, v, &why) != SHF_TENSOR_READ || t.pair || t.conj || t.neg)
		return 0;
	rc = shf_dspd_place(d, x, &t, name, &piece);
	if (rc < 0)
		return rc;
	if (t.ndim != 1 || (t.dims->u.a[0]->u.i > 1 &&
	                    piece.stride[0] != shf_torch_item_bytes(&t)))
		return 0;
	part->dtype = t.dtype;
	part->at = piece.at;
	part->items = (uint64_t)t.dims->u.a[0]->u.i;
	part->file = x->file;
	return 1;
}

int shf_dspd_add_flat(struct shf_dspd *d, const struct shf_dspd_part *part,
                      const struct shf_dspd_param *p, const char *family, const char *name)
{
	struct shf_foreign_tensor of = { .family = family, .dtype = part->dtype, .ndim = p->ndim,
		.dims = p->dims, .n = 1 };
	struct shf_foreign_piece piece = { .file = part->file, .at = part->at };

	shf_buf_add(&d->f->pieces, &piece, sizeof(piece));
	return shf_foreign_add_tensor(d->f, &of, name, strlen(name), d->err);
}

/* Reads a number that all files of a save have; *was -1: none has said it yet. */
static int same_number(struct shf_dspd *d, const struct shf_dspd_file *x, const struct shf_pk *v,
                       const char *what, int64_t *was)
{
	int64_t is;

	if (!shf_pk_int(v, &is) || is < 0)
		return 0;
	if (*was >= 0 && *was != is)
		return shf_fail(d->err, SHEAF_EFORMAT, "%s: is of another save than the files "
		                "before it: %s is %" PRId64 ", not %" PRId64, x->where, what, is,
		                *was);
	*was = is;
	return 0;
}

int shf_dspd_same_save(struct shf_dspd *d, const struct shf_dspd_file *x,
                       const struct shf_pk *root)
{
	const struct shf_pk *version = shf_pk_get(root, "ds_version");

	if (root->kind != SHF_PK_DICT)
		return shf_dspd_bad(d, x->where, "is not a dictionary, as DeepSpeed saves it");
	if (version && version->kind == SHF_PK_STR && version->n < 100) {
		if (d->version && !shf_pk_text_is(version, d->version))
			return shf_fail(d->err, SHEAF_EFORMAT, "%s: is of another save than the "
			                "files before it: DeepSpeed %.*s wrote it, not %s",
			                x->where, (int)version->n, version->u.s, d->version);
		d->version = shf_dspd_keep(d, version->u.s, version->n);
		if (!d->version)
			return d->err->code;
	}
	return same_number(d, x, shf_pk_get(root, "global_steps"), "global_steps", &d->steps);
}

struct shf_dspd_param *shf_dspd_param(const struct shf_dspd *d, const char *name, size_t n)
{
	struct shf_dspd_param *const *of = (const void *)d->by_name.data;
	size_t lo = 0, hi = d->by_name.len / sizeof(*of);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = strncmp(of[mid]->name, name, n);

		c = c ? c : of[mid]->name[n] != '\0';
		if (c == 0)
			return of[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

uint32_t shf_dspd_spread(const struct shf_dspd *d, const struct shf_dspd_group *g)
{
	return g->count > 0 && d->stage < 3 ? (uint32_t)(d->world / g->count) : 1;
}

const struct shf_dspd_entry *shf_dspd_entries(const struct shf_dspd *d, bool optimizer, size_t *n)
{
	const struct shf_dspd_entry *e = (const void *)d->entries.data;
	size_t all = d->entries.len / sizeof(*e), lo = 0, hi = all;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct shf_dspd_name *x = &e[mid].x;

		if (x->mp < d->mp || (x->mp == d->mp && x->optimizer < optimizer))
			lo = mid + 1;
		else
			hi = mid;
	}
	for (*n = 0; lo + *n < all && e[lo + *n].x.mp == d->mp &&
	             e[lo + *n].x.optimizer == optimizer;)
		++*n;
	return e ? e + lo : NULL;
}

bool shf_dspd_has_shape(const struct shf_torch_tensor *t, const struct shf_dspd_param *p)
{
	for (int i = 0; i < t->ndim && t->ndim == p->ndim; i++)
		if (t->dims->u.a[i]->u.i != p->dims[i])
			return false;
	return t->ndim == p->ndim;
}
