/* SPDX-License-Identifier: Apache-2.0 */
/* A flex checkpoint as paddle.distributed.save_state_dict writes it: files <number>_0.distcp with
 * dictionaries of arrays, and 0.metadata, a pickle that says where they are. Each tensor is one
 * box. Several families are such checkpoints in the folders that the trainer of PaddleFormers has
 * for them, with its names. It expects the first three folders even if nothing is in them.
 *
 * Source: python/paddle/distributed/flex_checkpoint/dcp of Paddle 3.3, trainer/trainer.py of
 * PaddleFormers 1.2, and directories that Paddle wrote. */
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "export_place.h"
#include "paddle_flex_index.h"
#include "paddle_powers.h"
#include "paddle_trainer.h"
#include "paddle_write.h"
#include "valid.h"

#define MODULE "paddle.distributed.flex_checkpoint.dcp.metadata"
#define ITEM_MOST 2048          /* most bytes of a file that are of no tensor, for each tensor */
#define FOLDERS_ALWAYS 3        /* folders that there are even for no family */

/* ---- families and names ---- */

/* Returns the folder of a family. NULL: it is the directory itself, and names are kept. */
static const struct shf_flex_folder *folder_of_family(const struct shf_lt_family *fam)
{
	for (size_t i = 0; i < SHF_FLEX_FOLDERS; i++)
		if (strcmp(fam->dir, shf_flex_folders[i].folder) == 0)
			return &shf_flex_folders[i];
	return NULL;
}

/* Gives each family its folder, and adds families without tensors where the trainer expects a
 * folder. one: a family that is written alone gets none. */
static int flex_families(struct shf_layout *l, bool one, struct sheaf_error *err)
{
	size_t n = l->families_n;
	struct shf_lt_family *all = shf_arena_alloc(&l->arena, n + FOLDERS_ALWAYS, sizeof(*all));

	if (!all)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu families", n);
	memcpy(all, l->families, n * sizeof(*all));
	for (size_t i = 0; i < n; i++)
		all[i].dir = one ? "." : NULL;
	for (size_t k = 0; !one && k < SHF_FLEX_FOLDERS; k++) {
		int64_t f = shf_layout_family(l, shf_flex_folders[k].family);

		if (f >= 0)
			all[f].dir = shf_flex_folders[k].folder;
		else if (k < FOLDERS_ALWAYS)
			all[n++] = (struct shf_lt_family){ .name = shf_flex_folders[k].family,
				.dir = shf_flex_folders[k].folder };
	}
	for (size_t i = 0; i < l->families_n; i++)
		if (!all[i].dir)
			return shf_fail(err, SHEAF_EINVAL, "family %.60s: format paddle-fc has no "
			                "folder for it; write it alone", all[i].name);
	l->families = all;
	l->families_n = n;
	return 0;
}

/* Returns what ends the key of a tensor. Averages of parameters that have no master weights have
 * the names of the parameters. */
static const char *tail_of(const struct shf_layout *l, const struct shf_flex_folder *folder,
                           const char *name)
{
	if (!folder || !folder->tail)
		return "";
	if (strcmp(folder->family, "ema") == 0 && shf_layout_find(l, "master_weights", name) < 0)
		return "";
	return folder->tail;
}

/* Checks that each tensor has the name again when the checkpoint is read. */
static int check_keys(const struct shf_layout *l, struct sheaf_error *err)
{
	for (size_t i = 0; i < l->tensors_n; i++) {
		const char *name = l->tensors[i].name, *slash = strrchr(name, '/');
		const struct shf_flex_folder *folder =
			folder_of_family(&l->families[l->tensors[i].family]);
		size_t n = strlen(name), m = folder && folder->tail ? strlen(folder->tail) : 0;
		bool same = true;

		if (folder && !folder->tail)
			same = !strchr(slash ? slash + 1 : name, '.');
		else if (m && !*tail_of(l, folder, name))
			same = n <= m || strcmp(name + n - m, folder->tail);
		if (!same)
			return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: in format paddle-fc this "
			                "name in family %s would be read back as another one; "
			                "use a map to rename it", shf_name_show(name), name,
			                folder->family);
	}
	return 0;
}

struct key {                    /* under which a tensor is found */
	const char *name, *tail;
	const char *slash;              /* in name: becomes a dot; NULL: none */
};

static struct key key_of(const struct shf_layout *l, const struct shf_lt_family *fam,
                         const char *name)
{
	const struct shf_flex_folder *folder = folder_of_family(fam);

	return (struct key){ name, tail_of(l, folder, name),
		folder && !folder->tail ? strrchr(name, '/') : NULL };
}

static void put_key(struct shf_pkw *w, const struct key *key)
{
	size_t at;

	shf_pkw_op(w, 'X');             /* BINUNICODE */
	shf_buf_u32(&w->out, (uint32_t)(strlen(key->name) + strlen(key->tail)));
	at = w->out.len;
	shf_buf_adds(&w->out, key->name);
	shf_buf_adds(&w->out, key->tail);
	if (key->slash && !w->out.oom)
		w->out.data[at + (size_t)(key->slash - key->name)] = '.';
}

/* ---- files ---- */

/* Puts a tensor, and the powers of the betas that belong to it: item *n of the dictionary, and
 * those after it. pow NULL: there are no powers. */
static void put_item(struct shf_paddle_out *p, struct shf_layout *l, struct shf_lt_tensor *t,
                     const float *pow, size_t *n)
{
	const struct shf_lt_family *fam = &l->families[t->family];
	struct key key = key_of(l, fam, t->name);

	shf_pkw_next_item(&p->pickle, (*n)++);
	put_key(&p->pickle, &key);
	shf_paddle_put_tensor(p, t);
	for (int i = 0; i < 2 && pow && shf_adam_is_moment(t); i++) {
		const char *name = shf_paddle_power_name(&l->arena, t, i);

		p->pickle.out.oom |= !name;
		key = key_of(l, fam, name ? name : "");
		shf_pkw_next_item(&p->pickle, (*n)++);
		put_key(&p->pickle, &key);
		shf_paddle_put_float(p, pow[i]);
	}
}

/* Makes file f, whose number is i in its family. Its tensors are order[0] and those after it. Sets
 * *n to how many there are. */
static int flex_file(struct shf_export_plan *plan, uint32_t f, uint32_t i, const uint32_t *order,
                     size_t most, const float *pow, size_t *n, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	const char *folder = l->families[l->files[f].family].dir;
	struct shf_buf name = SHF_BUF_INIT;
	struct shf_paddle_out p;
	size_t items = 0;
	char *kept;

	shf_paddle_begin(&p);
	shf_pkw_op(&p.pickle, SHF_PKW_EMPTY_DICT);
	for (*n = 0; *n < most && l->tensors[order[*n]].file == f; ++*n)
		put_item(&p, l, &l->tensors[order[*n]], pow, &items);
	if (items)
		shf_pkw_op(&p.pickle, SHF_PKW_SETITEMS);
	if (strcmp(folder, "."))
		shf_buf_addf(&name, "%s/", folder);
	shf_buf_addf(&name, "%u_0.distcp", i);
	kept = name.oom ? NULL : shf_arena_strdup(&l->arena, (char *)name.data, name.len);
	shf_buf_release(&name);
	return shf_export_file_end(plan, f, kept, shf_paddle_end(&p, &plan->files[f].header), err);
}

/* Makes the files of a family. */
static int flex_family(struct shf_export_plan *plan, uint32_t f, const uint32_t *order,
                       struct sheaf_checkpoint *step, const struct shf_export_opts *opts,
                       struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	const struct shf_lt_family *fam = &l->families[f];
	bool with = shf_paddle_needs_powers(l, fam);
	size_t at = 0, n = 0;
	float pow[2];
	int rc = with ? shf_paddle_powers(pow, step, opts, err) : 0;

	for (uint32_t i = 0; i < fam->files_n && rc == 0; i++) {
		l->files[fam->first_file + i].family = f;
		rc = flex_file(plan, fam->first_file + i, i, order + fam->first_tensor + at,
		               fam->tensors_n - at, with ? pow : NULL, &n, err);
		at += n;
	}
	return rc;
}

static int flex_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	uint32_t *order = NULL;
	int rc = shf_paddle_leave_steps(plan, step, opts, err);

	if (rc == 0)
		order = shf_export_by_source(plan, step, err);
	if (rc == 0)
		rc = order ? flex_families(l, opts->family != NULL, err) : SHEAF_ENOMEM;
	if (rc == 0)
		rc = shf_paddle_check_names(l, err);
	if (rc == 0)
		rc = check_keys(l, err);
	if (rc == 0)
		rc = shf_export_files_make(plan, shf_export_divide(plan, order,
		                           opts->file_bytes_max, ITEM_MOST), false, err);
	for (uint32_t f = 0; f < l->families_n && rc == 0; f++)
		rc = flex_family(plan, f, order, step, opts, err);
	if (rc == 0)
		rc = shf_layout_number(l, err);
	return rc == 0 ? shf_paddle_trainer_add(plan, step, opts, err) : rc;
}

/* ---- metadata ---- */

struct entry {                  /* an array in a file */
	struct key key;
	int32_t dtype, ndim;
	const int64_t *dims;
	const char *file;               /* without its folder */
};

/* Puts the members that describe the one box of a tensor, in both classes of the metadata. */
static void put_box(struct shf_pkw *w, const struct entry *e)
{
	static const int64_t zeros[SHEAF_DIMS_MAX];

	shf_pkw_known_text(w, "global_offset");
	shf_pkw_ints(w, zeros, e->ndim);
	shf_pkw_known_text(w, "local_shape");
	shf_pkw_ints(w, e->dims, e->ndim);
	shf_pkw_known_text(w, "is_flattened");
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	shf_pkw_known_text(w, "flattened_range");
	shf_pkw_op(w, SHF_PKW_NONE);
}

static void put_list_of_boxes(struct shf_pkw *w, const struct entry *e)
{
	put_key(w, &e->key);
	shf_pkw_op(w, SHF_PKW_EMPTY_LIST);
	shf_pkw_object_begin(w, MODULE, "LocalTensorMetadata");
	put_box(w, e);
	shf_pkw_known_text(w, "dtype");
	shf_pkw_known_text(w, shf_paddle_name(e->dtype));
	shf_pkw_known_text(w, "global_shape");
	shf_pkw_ints(w, e->dims, e->ndim);
	shf_pkw_object_end(w);
	shf_pkw_op(w, SHF_PKW_APPEND);
}

static void put_place_of_box(struct shf_pkw *w, const struct entry *e)
{
	shf_pkw_object_begin(w, MODULE, "LocalTensorIndex");
	shf_pkw_known_text(w, "tensor_key");
	put_key(w, &e->key);
	put_box(w, e);
	shf_pkw_known_text(w, "replica_id");
	shf_pkw_op(w, SHF_PKW_NONE);
	shf_pkw_object_end(w);
	shf_pkw_text(w, e->file, strlen(e->file));
}

static void put_path_of_key(struct shf_pkw *w, const struct entry *e)
{
	put_key(w, &e->key);
	put_key(w, &e->key);
	shf_pkw_op(w, SHF_PKW_TUPLE1);
}

/* Puts one of the dictionaries of the metadata: an item for each array of the family. */
static void put_dict_of(struct shf_pkw *w, struct shf_export_plan *plan,
                        const struct shf_lt_family *fam,
                        void (*put)(struct shf_pkw *w, const struct entry *e))
{
	static const int64_t one = 1;
	struct shf_layout *l = &plan->out;
	bool with = shf_paddle_needs_powers(l, fam);
	size_t items = 0;

	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (size_t i = fam->first_tensor; i < fam->first_tensor + (size_t)fam->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];
		const char *file = plan->files[t->file].name, *slash = strrchr(file, '/');
		struct entry e = { key_of(l, fam, t->name), t->dtype, t->items.ndim, t->items.dim,
			slash ? slash + 1 : file };

		shf_pkw_next_item(w, items++);
		put(w, &e);
		for (int k = 0; k < 2 && with && shf_adam_is_moment(t); k++) {
			const char *name = shf_paddle_power_name(&l->arena, t, k);

			w->out.oom |= !name;
			e = (struct entry){ key_of(l, fam, name ? name : ""), SHEAF_F32, 1, &one,
				e.file };
			shf_pkw_next_item(w, items++);
			put(w, &e);
		}
	}
	if (items)
		shf_pkw_op(w, SHF_PKW_SETITEMS);
}

static const char *flex_index(struct shf_export_plan *plan, const struct shf_export_opts *opts,
                              size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	const struct shf_lt_family *fam = &plan->out.families[i];
	const struct shf_flex_folder *folder;
	struct shf_pkw w;
	char name[60];

	(void)opts;
	if (i >= plan->out.families_n)
		return NULL;
	folder = folder_of_family(fam);
	shf_pkw_begin(&w, 4);
	shf_pkw_object_begin(&w, MODULE, "Metadata");
	shf_pkw_known_text(&w, "state_dict_metadata");
	put_dict_of(&w, plan, fam, put_list_of_boxes);
	shf_pkw_known_text(&w, "storage_metadata");
	put_dict_of(&w, plan, fam, put_place_of_box);
	shf_pkw_known_text(&w, "flat_mapping");
	put_dict_of(&w, plan, fam, put_path_of_key);
	shf_pkw_object_end(&w);
	shf_pkw_end(&w);
	*out = w.out;
	snprintf(name, sizeof(name), "%s%s0.metadata", folder ? folder->folder : "",
	         folder ? "/" : "");
	return shf_export_index_end(shf_arena_strdup(&plan->out.arena, name, strlen(name)), out, rc,
	                            err);
}

const struct shf_export_format shf_export_paddle_flex = {
	.name = "paddle-fc",
	.copies_files = true,
	.families = true,
	.ties_states = true,
	.has_type = shf_paddle_has_type,
	.place = flex_place,
	.index = flex_index,
};
