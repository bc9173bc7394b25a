/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_ckpt_ranks.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign_json.h"
#include "foreign_st.h"
#include "sort.h"
#include "torch_folder.h"
#include "valid.h"

#define METADATA SHF_CKPT_METADATA

int shf_ckpt_no_memory(const struct shf_ckpt *c)
{
	return shf_fail(c->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", c->f->path);
}

int shf_ckpt_bad(const struct shf_ckpt *c, const char *name, const char *why)
{
	if (c->oom)
		return shf_ckpt_no_memory(c);
	return shf_fail(c->err, SHEAF_EFORMAT, "%s/" METADATA ": %s%.*s%s%s", c->f->path,
	                name ? "tensor " : "", name ? shf_name_show(name) : 0, name ? name : "",
	                name ? ": " : "", why);
}

static void show_part(void *arg, const char *name, size_t n, const char **family,
                      struct shf_buf *shown)
{
	(void)arg;
	(void)family;
	shf_buf_add(shown, name, n);
}

/* Adds the tensors of a safetensors file. */
static int add_st_parts(struct shf_ckpt *c, uint32_t file)
{
	struct shf_st st;
	int rc = shf_foreign_st_head(c->f, file, &c->f->arena, &st, c->err);

	for (size_t i = 0; i < st.n && rc == 0; i++) {
		const struct shf_st_tensor *t = &st.tensors[i];
		struct shf_foreign_tensor x = { .dtype = t->dtype, .ndim = t->ndim,
			.dims = t->shape, .n = 1 };
		struct shf_foreign_piece p = { .file = file, .at = st.header_bytes + t->off };
		struct shf_buf name = SHF_BUF_INIT;

		if (shf_dtype(t->dtype)->bits < 8) {
			c->f->unread_n++;
			continue;
		}
		shf_buf_addf(&name, "%s.%s", c->item, t->name);
		shf_buf_add(&c->f->pieces, &p, sizeof(p));
		rc = name.oom ? shf_ckpt_no_memory(c)
		   : shf_foreign_add_tensor(c->f, &x, (const char *)name.data, name.len, c->err);
		shf_buf_release(&name);
	}
	return rc;
}

/* Moves tensors that were added last from the list of the checkpoint to the parts of a rank. had,
 * had_pieces: bytes of the lists of tensors and pieces that stay. */
static int take_parts(struct shf_ckpt *c, int64_t rank, size_t had, size_t had_pieces)
{
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(c->f, &n);
	const struct shf_foreign_piece *pieces = (const void *)c->f->pieces.data;

	for (size_t i = had / sizeof(*t); i < n; i++) {
		struct shf_ckpt_part x = { .t = t[i], .piece = pieces[t[i].first], .rank = rank };

		shf_buf_add(&c->parts, &x, sizeof(x));
	}
	c->f->tensors.len = had;
	c->f->pieces.len = had_pieces;
	return c->parts.oom ? shf_ckpt_no_memory(c) : 0;
}

/* Lists the tensors in the file of a rank. Notes of other values are kept for rank 0 only. */
static int ckpt_add_file(struct shf_ckpt *c, const char *folder, const char *name, const char *type,
                         int64_t rank)
{
	const struct shf_torch_show show = { .show = show_part, .arg = c, .prefix = c->item,
		.local = true };
	size_t notes = c->f->notes.len, had = c->f->tensors.len, pieces = c->f->pieces.len;
	uint64_t unread = c->f->unread_n, left = c->f->notes_left;
	uint32_t file;
	int rc;

	if (strcmp(type, "JsonSerialization") == 0)
		return rank ? 0 : shf_foreign_json_notes(c->f, folder, name, c->item, c->err);
	if (strcmp(type, "RawSerialization") == 0)
		return rank ? 0 : shf_foreign_note(c->f, c->err, c->item, strlen(c->item),
		                                   "bytes, which are not read");
	if (strcmp(type, "TorchSerialization") && strcmp(type, "SafetensorsSerialization"))
		return shf_fail(c->err, SHEAF_EFORMAT, "%s/" METADATA ": item %.*s is stored by "
		                "%.*s, which is not known", c->f->path, shf_name_show(c->item),
		                c->item, shf_name_show(type), type);
	rc = shf_foreign_add_file_in(c->f, folder, name, strlen(name), &file, c->err);
	if (rc == 0)
		rc = type[0] == 'S' ? add_st_parts(c, file)
		                    : shf_torch_file_add(c->f, file, &show, c->err);
	if (rank) {
		c->f->notes.len = notes;
		c->f->unread_n = unread;
		c->f->notes_left = left;
	}
	return rc == 0 ? take_parts(c, rank, had, pieces) : rc;
}

const char *shf_ckpt_text(struct shf_ckpt *c, const struct shf_pk *v)
{
	const char *own;

	if (!v || v->kind != SHF_PK_STR || memchr(v->u.s, 0, v->n))
		return NULL;
	own = shf_name_escape(&c->f->arena, v->u.s, v->n);
	c->oom |= !own;
	return own;
}

/* Sorts by name and rank. */
static int ckpt_parts_order(const void *a, const void *b)
{
	const struct shf_ckpt_part *x = a, *y = b;
	int c = strcmp(x->t.name, y->t.name);

	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

int shf_ckpt_add_files(struct shf_ckpt *c, const struct shf_pk *layouts)
{
	int64_t rank;
	int rc = 0;

	if (!layouts || layouts->kind != SHF_PK_DICT || layouts->n != (uint64_t)c->ranks)
		return shf_ckpt_bad(c, NULL, "an item does not say the files of all ranks");
	for (uint32_t i = 0; i < layouts->n && rc == 0; i++) {
		const struct shf_pk *of = layouts->u.a[2 * i + 1];
		const char *path, *type = "TorchSerialization";
		char own[300], *slash;

		if (!shf_pk_int(layouts->u.a[2 * i], &rank) || rank < 0 || rank >= c->ranks)
			return shf_ckpt_bad(c, NULL, "an item has a file of a rank that is none");
		snprintf(own, sizeof(own), "%.200s_%" PRId64 ".pt", c->item, rank);
		if (of->kind != SHF_PK_NONE) {
			path = shf_ckpt_text(c, shf_pk_get(of, "file_path"));
			of = shf_pk_get(of, "serialization_format");
			type = shf_ckpt_text(c, shf_pk_get(of, "type"));
			if (!path || !type || strlen(path) >= sizeof(own))
				return shf_ckpt_bad(c, NULL, "an item has a file without a name or "
				                    "a format");
			snprintf(own, sizeof(own), "%s", path);
		}
		slash = strrchr(own, '/');
		if (slash)
			*slash = '\0';
		rc = ckpt_add_file(c, slash ? own : NULL, slash ? slash + 1 : own, type, rank);
	}
	shf_records_sort(c->parts.data, c->parts.len / sizeof(struct shf_ckpt_part),
	                 sizeof(struct shf_ckpt_part), ckpt_parts_order);
	return rc;
}

struct shf_ckpt_part *shf_ckpt_part_of(const struct shf_ckpt *c, const char *name, int64_t rank)
{
	struct shf_ckpt_part want = { .t = { .name = name }, .rank = rank };

	return c->parts.len ? bsearch(&want, c->parts.data, c->parts.len / sizeof(want),
	                              sizeof(want), ckpt_parts_order) : NULL;
}
