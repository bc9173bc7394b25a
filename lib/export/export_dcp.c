/* SPDX-License-Identifier: Apache-2.0 */
/* A directory as torch.distributed.checkpoint writes it: files __0_<n>.distcp, in which each tensor
 * is an archive of torch.save of its own, and .metadata, a pickle that says where they are. Each
 * tensor is one box. Several families are dictionaries in one from family to dictionary: then a
 * tensor is called <family>.<name>, as DCP calls what is nested. State of the optimizer has the
 * keys that get_state_dict of torch gives it: optimizer.state.<parameter>.exp_avg.
 *
 * Source: torch/distributed/checkpoint/metadata.py, filesystem.py and _nested_dict.py of torch
 * 2.13, and directories that torch 2.13 wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dcp_write.h"
#include "err.h"
#include "export_place.h"
#include "torch_write.h"
#include "valid.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"
#define ITEM_MOST 2048          /* most bytes of an archive that are not of its tensor */

/* ---- names ---- */

/* The keys that lead to a tensor in the dictionary that was saved. */
struct keys {
	const char *key[4];
	size_t bytes[4];
	int n;
};

static void push_key(struct keys *k, const char *key, size_t bytes)
{
	k->key[k->n] = key;
	k->bytes[k->n++] = bytes;
}

/* nested: each family is a dictionary. */
static void keys_of(struct keys *k, const struct shf_layout *l, const struct shf_lt_tensor *t,
                    bool nested)
{
	const char *family = l->families[t->family].name, *slash = strrchr(t->name, '/'), *kind;

	k->n = 0;
	if (nested)
		push_key(k, family, strlen(family));
	if (nested && slash && strcmp(family, "optimizer") == 0) {
		kind = shf_torch_state_key(slash + 1);
		push_key(k, "state", 5);
		push_key(k, t->name, (size_t)(slash - t->name));
		push_key(k, kind, strlen(kind));
	} else {
		push_key(k, t->name, strlen(t->name));
	}
}

/* Appends the name of a tensor, which is its keys with dots between them. */
static void dcp_name(struct shf_buf *out, const struct shf_layout *l, const struct shf_lt_tensor *t,
                    bool nested)
{
	struct keys k;

	keys_of(&k, l, t, nested);
	for (int i = 0; i < k.n; i++) {
		shf_buf_adds(out, i ? "." : "");
		shf_buf_add(out, k.key[i], k.bytes[i]);
	}
}

static int dcp_names_order(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int shf_dcp_check_names(struct shf_layout *l, bool nested, struct sheaf_error *err)
{
	const char **names = shf_alloc(l->tensors_n + 1, sizeof(*names));
	struct shf_buf name = SHF_BUF_INIT;
	int rc = names ? 0 : SHEAF_ENOMEM;

	for (size_t i = 0; i < l->tensors_n && rc == 0; i++) {
		shf_buf_reset(&name);
		dcp_name(&name, l, &l->tensors[i], nested);
		names[i] = name.oom ? NULL : shf_arena_strdup(&l->arena, (const char *)name.data,
		                                              name.len);
		rc = names[i] ? 0 : SHEAF_ENOMEM;
	}
	shf_buf_release(&name);
	if (rc < 0)
		shf_fail(err, rc, "no memory for the names of %zu tensors", l->tensors_n);
	else
		qsort(names, l->tensors_n, sizeof(*names), dcp_names_order);
	for (size_t i = 1; i < l->tensors_n && rc == 0; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			rc = shf_fail(err, SHEAF_EINVAL, "tensor %.*s: two tensors would have this "
			              "name in what is written, where a reader finds only one; "
			              "write one of them alone, by its family or the beginning of "
			              "its name", shf_name_show(names[i]), names[i]);
	shf_free(names);
	return rc;
}

/* ---- archives ---- */

/* Adds the archive of tensor i at byte `at` of file f. Returns where it ends. */
static uint64_t add_item(struct shf_export_plan *plan, uint32_t f, uint64_t at, uint32_t i)
{
	struct shf_zip_out z;
	struct shf_pkw w;
	uint64_t end;

	shf_pkw_begin(&w, 2);
	shf_torch_put_tensor(&w, &plan->out.tensors[i], 0);
	shf_torch_begin(&z, plan, &plan->files[f], at, &w);
	shf_zip_add_tensor(&z, SHF_TORCH_ARCHIVE "data/0", NULL, 0, i);
	end = shf_zip_end(&z);
	plan->items[i] = (struct shf_export_item){ at, end - at };
	return end;
}

int shf_dcp_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                  const struct shf_export_opts *opts, const char *folder, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	uint32_t *order = shf_export_by_source(plan, step, err);
	size_t n, i = 0;
	int rc;

	plan->items = shf_arena_alloc(&l->arena, l->tensors_n, sizeof(*plan->items));
	if (!order || !plan->items)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to place %zu tensors", l->tensors_n);
	n = shf_export_divide(plan, order, opts->file_bytes_max, ITEM_MOST);
	rc = shf_export_files_make(plan, n, true, err);
	for (uint32_t f = 0; f < n && rc == 0; f++) {
		char text[100], *name;
		uint64_t at = 0;

		snprintf(text, sizeof(text), "%s__0_%" PRIu32 ".distcp", folder, f);
		name = shf_arena_strdup(&l->arena, text, strlen(text));
		for (; i < l->tensors_n && l->tensors[order[i]].file == f; i++)
			at = add_item(plan, f, at, order[i]);
		rc = shf_export_file_end(plan, f, name, at, err);
	}
	return rc == 0 ? shf_layout_number(l, err) : rc;
}

static int dcp_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                     const struct shf_export_opts *opts, struct sheaf_error *err)
{
	int rc = shf_dcp_place(plan, step, opts, "", err);

	return rc == 0 ? shf_dcp_check_names(&plan->out, !opts->family, err) : rc;
}

/* ---- metadata ---- */

static void put_name(struct shf_pkw *w, const struct shf_layout *l, const struct shf_lt_tensor *t,
                     bool nested)
{
	struct shf_buf name = SHF_BUF_INIT;

	dcp_name(&name, l, t, nested);
	shf_pkw_text(w, (const char *)name.data, name.len);
	w->out.oom |= name.oom;
	shf_buf_release(&name);
}

/* Puts TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory). */
static void put_properties(struct shf_pkw *w, const struct shf_lt_tensor *t)
{
	shf_pkw_global(w, METADATA, "TensorProperties");
	shf_pkw_op(w, SHF_PKW_EMPTY_TUPLE);
	shf_pkw_op(w, SHF_PKW_NEWOBJ);
	shf_pkw_op(w, SHF_PKW_MARK);
	shf_pkw_global(w, "torch", shf_torch_name(t->dtype));
	shf_pkw_global(w, "torch.serialization", "_get_layout");
	shf_pkw_known_text(w, "torch.strided");
	shf_pkw_op(w, SHF_PKW_TUPLE1);
	shf_pkw_op(w, SHF_PKW_REDUCE);
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	shf_pkw_global(w, METADATA, "_MEM_FORMAT_ENCODING");
	shf_pkw_int(w, 0);              /* TORCH_CONTIGUOUS_FORMAT */
	shf_pkw_op(w, SHF_PKW_TUPLE1);
	shf_pkw_op(w, SHF_PKW_REDUCE);
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	shf_pkw_op(w, SHF_PKW_TUPLE);
	shf_pkw_op(w, SHF_PKW_BUILD);
}

static void put_tensor(struct shf_pkw *w, const struct shf_lt_tensor *t)
{
	shf_pkw_object_begin(w, METADATA, "TensorStorageMetadata");
	shf_pkw_known_text(w, "properties");
	put_properties(w, t);
	shf_pkw_known_text(w, "size");
	shf_torch_put_size(w, t->items.dim, t->items.ndim);
	shf_pkw_known_text(w, "chunks");
	shf_pkw_op(w, SHF_PKW_EMPTY_LIST);
	shf_pkw_object_begin(w, METADATA, "ChunkStorageMetadata");
	shf_pkw_known_text(w, "offsets");
	shf_torch_put_size(w, NULL, t->items.ndim);
	shf_pkw_known_text(w, "sizes");
	shf_torch_put_size(w, t->items.dim, t->items.ndim);
	shf_pkw_object_end(w);
	shf_pkw_op(w, SHF_PKW_APPEND);
	shf_pkw_object_end(w);
}

/* Puts the key and the value of an entry of storage_data. */
static void put_place(struct shf_pkw *w, const struct shf_export_plan *plan, size_t i, bool nested)
{
	const struct shf_lt_tensor *t = &plan->out.tensors[i];
	const char *file = plan->files[t->file].name, *slash = strrchr(file, '/');

	file = slash ? slash + 1 : file;
	shf_pkw_object_begin(w, METADATA, "MetadataIndex");
	shf_pkw_known_text(w, "fqn");
	put_name(w, &plan->out, t, nested);
	shf_pkw_known_text(w, "offset");
	shf_torch_put_size(w, NULL, t->items.ndim);
	shf_pkw_known_text(w, "index");
	shf_pkw_int(w, 0);
	shf_pkw_object_end(w);
	shf_pkw_object_begin(w, FILESYSTEM, "_StorageInfo");
	shf_pkw_known_text(w, "relative_path");
	shf_pkw_text(w, file, strlen(file));
	shf_pkw_known_text(w, "offset");
	shf_pkw_int(w, plan->items[i].at);
	shf_pkw_known_text(w, "length");
	shf_pkw_int(w, plan->items[i].bytes);
	shf_pkw_object_end(w);
}

/* Puts the path of a tensor in the dictionary that was saved. */
static void put_path(struct shf_pkw *w, const struct shf_layout *l, const struct shf_lt_tensor *t,
                     bool nested)
{
	struct keys k;

	keys_of(&k, l, t, nested);
	shf_pkw_op(w, SHF_PKW_MARK);
	for (int i = 0; i < k.n; i++)
		shf_pkw_text(w, k.key[i], k.bytes[i]);
	shf_pkw_op(w, SHF_PKW_TUPLE);
}

enum table { TENSORS, PATHS, PLACES };

/* Puts one of the three dictionaries of the metadata. */
static void put_table(struct shf_pkw *w, const struct shf_export_plan *plan, enum table table,
                      bool nested)
{
	const struct shf_layout *l = &plan->out;

	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];

		shf_pkw_next_item(w, i);
		if (table != PLACES)
			put_name(w, l, t, nested);
		if (table == TENSORS)
			put_tensor(w, t);
		else if (table == PATHS)
			put_path(w, l, t, nested);
		else
			put_place(w, plan, i, nested);
	}
	shf_pkw_op(w, SHF_PKW_SETITEMS);
}

int shf_dcp_metadata(const struct shf_export_plan *plan, bool nested, struct shf_buf *out,
                     struct sheaf_error *err)
{
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	shf_pkw_object_begin(&w, METADATA, "Metadata");
	shf_pkw_known_text(&w, "state_dict_metadata");
	put_table(&w, plan, TENSORS, nested);
	shf_pkw_known_text(&w, "planner_data");
	put_table(&w, plan, PATHS, nested);
	shf_pkw_known_text(&w, "storage_data");
	put_table(&w, plan, PLACES, nested);
	shf_pkw_known_text(&w, "storage_meta");
	shf_pkw_op(&w, SHF_PKW_NONE);
	shf_pkw_object_end(&w);
	shf_pkw_end(&w);
	*out = w.out;
	return !out->oom ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for the metadata of %zu "
	                                "tensors", plan->out.tensors_n);
}

static const char *dcp_index(struct shf_export_plan *plan, const struct shf_export_opts *opts,
                             size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	if (i > 0)
		return NULL;
	*rc = shf_dcp_metadata(plan, !opts->family, out, err);
	return ".metadata";
}

const struct shf_export_format shf_export_dcp = {
	.name = "dcp",
	.copies_files = true,
	.families = true,
	.copies_tied = true,
	.has_type = shf_torch_has_type,
	.place = dcp_place,
	.index = dcp_index,
};
