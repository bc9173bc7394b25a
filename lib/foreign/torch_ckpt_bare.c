/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of torch_checkpointing without metadata.pkl, which it writes for items that have a
 * resharder only. What is left are the files <item>_<rank>.pt. Of one rank they have whole tensors.
 * Of several ranks nothing says how their parts fit together, so such a directory is refused.
 *
 * Source: checkpoint_layout.py and checkpoint_writer.py of torch_checkpointing 0.1.1. */
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign_st.h"
#include "torch_ckpt_ranks.h"
#include "torch_folder.h"
#include "valid.h"
#include "zip_verify.h"

struct rank_file {
	const char *name;               /* item_n bytes of the item, '_', and the rank */
	size_t item_n;
	uint32_t rank;
};
struct rank_files {             /* of a directory, by item and rank */
	struct shf_arena arena;         /* owned; of the names */
	struct shf_buf a;               /* owned; of struct rank_file */
	uint32_t ranks;                 /* how many each item has; 0: it is no such directory */
};

/* Reads <item>_<rank>.pt. Returns false if the name is another one. */
static bool read_rank_file(struct rank_file *x, const char *name)
{
	size_t n = strlen(name), end = n > 3 ? n - 3 : 0, at = end;
	uint32_t rank = 0;

	while (at && name[at - 1] >= '0' && name[at - 1] <= '9')
		at--;
	if (!end || strcmp(name + end, ".pt") || at == end || at < 2 || name[at - 1] != '_' ||
	    end - at > 7 || (name[at] == '0' && end - at > 1))
		return false;
	for (size_t i = at; i < end; i++)
		rank = 10 * rank + (uint32_t)(name[i] - '0');
	*x = (struct rank_file){ name, at - 1, rank };
	return true;
}

static bool is_same_item(const struct rank_file *a, const struct rank_file *b)
{
	return a->item_n == b->item_n && memcmp(a->name, b->name, a->item_n) == 0;
}

static int rank_file_order(const void *a, const void *b)
{
	const struct rank_file *x = a, *y = b;
	size_t n = x->item_n < y->item_n ? x->item_n : y->item_n;
	int c = memcmp(x->name, y->name, n);

	c = c ? c : (x->item_n > y->item_n) - (x->item_n < y->item_n);
	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Returns how many ranks each item has a file of, or 0 if they are not all ranks from 0 on. */
static uint32_t ranks_of_items(const struct rank_files *r)
{
	const struct rank_file *x = (const void *)r->a.data;
	size_t n = r->a.len / sizeof(*x);
	uint32_t ranks = 0;

	for (size_t i = 0; i < n; i++) {
		bool last = i + 1 == n || !is_same_item(&x[i], &x[i + 1]);

		if (x[i].rank != (i && is_same_item(&x[i - 1], &x[i]) ? x[i - 1].rank + 1 : 0))
			return 0;
		if (last && ranks && ranks != x[i].rank + 1)
			return 0;
		ranks = last ? x[i].rank + 1 : ranks;
	}
	return ranks;
}

/* Lists the files of ranks. A directory with another file *.pt is not of this kind. */
static int list_rank_files(struct rank_files *r, const struct shf_sys *sys, int dir,
                           const char *path, struct sheaf_error *err)
{
	struct shf_listing names;
	bool other = false;
	int rc = shf_listing_read(&names, &r->arena, sys, dir, path, err);

	for (size_t i = 0; rc == 0 && i < shf_listing_n(&names); i++) {
		const char *name = shf_listing_at(&names, i);
		size_t n = strlen(name);
		struct rank_file x;

		if (n <= 3 || strcmp(name + n - 3, ".pt"))
			continue;
		other |= !read_rank_file(&x, name);
		if (!other)
			shf_buf_add(&r->a, &x, sizeof(x));
	}
	shf_buf_release(&names.a);
	if (rc == 0 && r->a.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of files", path);
	if (rc == 0 && !other && r->a.len) {
		qsort(r->a.data, r->a.len / sizeof(struct rank_file), sizeof(struct rank_file),
		      rank_file_order);
		r->ranks = ranks_of_items(r);
	}
	return rc;
}

static void rank_files_release(struct rank_files *r)
{
	shf_buf_release(&r->a);
	shf_arena_release(&r->arena);
}

/* Only the first file is looked into: it must be an archive of torch.save. */
static int is_bare(const struct shf_sys *sys, int dir, const char *path, const char **why,
                   struct sheaf_error *err)
{
	static const char *const texts[] = { "/data.pkl" };
	struct rank_files r = { .ranks = 0 };
	int rc = list_rank_files(&r, sys, dir, path, err);

	*why = "files <item>_<rank>.pt of torch.save";
	if (rc == 0 && r.ranks)
		rc = shf_begins_with_any(sys, dir, ((const struct rank_file *)(const void *)
		                                    r.a.data)->name, texts, 1, err);
	rank_files_release(&r);
	return rc;
}

static void show_item(void *arg, const char *name, size_t n, const char **family,
                      struct shf_buf *shown)
{
	(void)arg;
	(void)family;
	shf_buf_add(shown, name, n);
}

/* Adds the tensors of a file. Their names begin with the name of the item. */
static int add_bare_file(struct shf_foreign *f, const struct rank_file *x, struct sheaf_error *err)
{
	struct shf_torch_show show = { .show = show_item, .local = true };
	uint32_t file;
	int rc = shf_foreign_add_file(f, x->name, strlen(x->name), &file, err);

	show.prefix = shf_name_escape(&f->arena, x->name, x->item_n);
	if (rc == 0 && !show.prefix)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
	return rc < 0 ? rc : shf_torch_file_add(f, file, &show, err);
}

static int open_bare_ckpt(struct shf_foreign *f, struct sheaf_error *err)
{
	struct rank_files r = { .ranks = 0 };
	const struct rank_file *x;
	int rc = list_rank_files(&r, f->in, f->dir, f->path, err);

	x = (const void *)r.a.data;
	if (rc == 0 && r.ranks > 1)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has the files of %u ranks, such as %.*s, "
		              "and no metadata.pkl that says how their parts fit "
		              "together; open one of them", f->path, r.ranks,
		              shf_name_show(x->name), x->name);
	for (size_t i = 0; rc == 0 && i < r.a.len / sizeof(*x); i++)
		rc = add_bare_file(f, &x[i], err);
	if (rc == 0)
		rc = shf_foreign_check_names(f, err);
	rank_files_release(&r);
	return rc;
}

const struct shf_foreign_format shf_torch_ckpt_bare = {
	.name = "torch.checkpointing",
	.is_dir = is_bare,
	.open = open_bare_ckpt,
	.verify = shf_zip_verify_files,
};
