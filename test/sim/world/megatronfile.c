/* SPDX-License-Identifier: Apache-2.0 */
#include "megatronfile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static void add_numbers(struct torch_bytes *b, const int64_t *v, int n)
{
	add(b, "(");
	for (int i = 0; i < n; i++)
		torch_int(b, v[i]);
	add(b, "t");
}

/* Appends a key of a dictionary, and a torch.Size. */
static void add_size(struct torch_bytes *b, const char *key, const int64_t *v, int n)
{
	torch_text(b, key);
	add(b, "ctorch\nSize\n");
	add_numbers(b, v, n);
	add(b, "\x85R");
}

static void add_object(struct torch_bytes *b, const char *name)
{
	add(b, "ctorch.distributed.checkpoint.");
	add(b, name);
	add(b, "\n)\x81");
}

/* What is written: the data file, the chunks of the present tensor, and the places of all items */
struct writing { struct torch_bytes file, chunks, places; enum megatron_flaw flaw; };

/* Adds an item with `items` values of a box, from number `from` on, as a tensor of these
 * dimensions. */
static void add_item(struct writing *w, const struct megatron_tensor *t, const int64_t start[3],
                     const int64_t box[3], int64_t from, int64_t items, const int64_t *dims,
                     int ndim)
{
	struct torch_tensor part = { .name = "x", .dtype = t->dtype, .ndim = ndim };
	struct torch_bytes pickle = { 0 }, data = { 0 }, archive;
	bool turned = t->flat && w->flaw == MEGATRON_STRIDE;

	for (int d = 0; d < ndim; d++)
		part.shape[d] = dims[d];
	if (t->flat && w->flaw == MEGATRON_SHORT_ITEM)
		part.shape[ndim - 1]--;
	if (turned)
		part.stride[ndim - 1] = 2;
	torch_add(&pickle, "\x80\x02", 2);
	torch_put(&pickle, &part, 1, 0);
	add(&pickle, ".");
	for (int64_t k = from; k < from + items; k++) {
		int64_t i = start[0] + k / (box[1] * box[2]);
		int64_t j = start[1] + k / box[2] % box[1], l = start[2] + k % box[2];
		uint64_t v = hand_value(t->family, t->name, t->dtype,
		                        (i * t->shape[1] + j) * t->shape[2] + l);

		for (int twice = 0; twice < 1 + turned; twice++)
			torch_add(&data, &v, (size_t)hand_bits(t->dtype) / 8);
	}
	archive = torch_archive_with("archive", &pickle, &data, 1);
	torch_add(&w->file, archive.p, archive.n);
	free(archive.p);
	free(pickle.p);
	free(data.p);
}

/* Adds a chunk of a tensor, and its place: the item that will follow at the end of the file. */
static void add_chunk(struct writing *w, const struct megatron_tensor *t, const int64_t *offsets,
                      const int64_t *sizes, int ndim, int64_t at, int64_t bytes)
{
	add_object(&w->chunks, "metadata\nChunkStorageMetadata");
	add(&w->chunks, "}(");
	add_size(&w->chunks, "offsets", offsets, ndim);
	add_size(&w->chunks, "sizes", sizes, ndim);
	add(&w->chunks, "ub");
	add_object(&w->places, "metadata\nMetadataIndex");
	add(&w->places, "}(");
	torch_text(&w->places, "fqn");
	torch_text(&w->places, t->key);
	add_size(&w->places, "offset", offsets, ndim);
	add(&w->places, "ub");
	add_object(&w->places, "filesystem\n_StorageInfo");
	add(&w->places, "}(");
	torch_text(&w->places, "relative_path");
	torch_text(&w->places, "__0_0.distcp");
	torch_text(&w->places, "offset");
	torch_int(&w->places, at);
	torch_text(&w->places, "length");
	torch_int(&w->places, bytes);
	add(&w->places, "ub");
}

/* Adds a box, as one chunk or as three flat ranges of unequal length. at: its index among the
 * boxes. */
static void add_box(struct writing *w, const struct megatron_tensor *t, const int64_t at[3],
                    const int64_t box[3])
{
	int64_t start[3], items = box[0] * box[1] * box[2], begin = 0, file;

	for (int d = 0; d < 3; d++)
		start[d] = at[d] * box[d];
	if (!t->flat) {
		file = (int64_t)w->file.n;
		add_item(w, t, start, box, 0, items, box, 3);
		add_chunk(w, t, start, box, 3, file, (int64_t)w->file.n - file);
		return;
	}
	for (int k = 1; k <= 3; k++) {
		int64_t end = k == 3 ? items : items * k / 4 + 1;
		int64_t offsets[4] = { at[0], at[1], at[2], begin }, sizes[4] = { 1, 1, 1, 0 };

		sizes[3] = end - begin + (w->flaw == MEGATRON_OVERLAP && k == 1);
		sizes[0] += w->flaw == MEGATRON_TWO_BOXES && at[0] + 1 < t->parts[0];
		file = (int64_t)w->file.n;
		add_item(w, t, start, box, begin, sizes[3], sizes, 4);
		if (w->flaw != MEGATRON_GAP || k != 2)
			add_chunk(w, t, offsets, sizes, 4, file, (int64_t)w->file.n - file);
		begin = end;
	}
}

static void add_tensor(struct writing *w, struct torch_bytes *tensors,
                       const struct megatron_tensor *t)
{
	int64_t stored[4], box[3], at[3];

	for (int d = 0; d < 3; d++) {
		box[d] = t->shape[d] / t->parts[d];
		stored[d] = t->flat ? t->parts[d] : t->shape[d];
	}
	stored[3] = box[0] * box[1] * box[2];
	w->chunks.n = 0;
	for (at[0] = 0; at[0] < t->parts[0]; at[0]++)
		for (at[1] = 0; at[1] < t->parts[1]; at[1]++)
			for (at[2] = 0; at[2] < t->parts[2]; at[2]++)
				add_box(w, t, at, box);
	torch_text(tensors, t->key);
	add_object(tensors, "metadata\nTensorStorageMetadata");
	add(tensors, "}(");
	torch_text(tensors, "properties");
	add_object(tensors, "metadata\nTensorProperties");
	add(tensors, "(ctorch\n");
	add(tensors, t->dtype == SHEAF_BF16 ? "bfloat16" : "float32");
	add(tensors, "\nNNNNtb");
	add_size(tensors, "size", stored, t->flat ? 4 : 3);
	torch_text(tensors, "chunks");
	add(tensors, "](");
	torch_add(tensors, w->chunks.p, w->chunks.n);
	add(tensors, "eub");
}

/* Appends the true shapes of flat tensors. */
static void add_mcore_data(struct torch_bytes *b, const struct megatron_tensor *t, int n,
                           enum megatron_flaw flaw)
{
	torch_text(b, "mcore_data");
	add(b, "}(");
	for (int i = 0; i < n; i++) {
		int64_t shape[3] = { t[i].shape[0], t[i].shape[1],
			t[i].shape[2] + (flaw == MEGATRON_OTHER_SHAPE ? t[i].parts[2] : 0) };

		torch_text(b, t[i].key);
		add(b, "}");
		if (!t[i].flat)
			continue;
		torch_text(b, "nd_reformulated_orig_global_shape");
		add_numbers(b, shape, 3);
		add(b, "s");
	}
	add(b, "u");
}

static void put_bytes(struct simdisk *disk, const char *dir, const char *name, const void *p,
                      size_t n)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (simdisk_put(disk, path, p, n) < 0)
		abort();
}

void megatron_put(struct simdisk *disk, const char *dir, const char *name,
                  const struct torch_bytes *archive)
{
	put_bytes(disk, dir, name, archive->p, archive->n);
}

/* Puts common.pt: the iteration, and arguments in a namespace. */
static void put_common(struct simdisk *disk, const char *dir)
{
	struct torch_bytes pickle = { 0 }, archive;

	torch_add(&pickle, "\x80\x02}(", 4);
	torch_text(&pickle, "iteration");
	torch_int(&pickle, 7);
	torch_text(&pickle, "args");
	add(&pickle, "cargparse\nNamespace\n)\x81}(");
	torch_text(&pickle, "num_layers");
	torch_int(&pickle, 3);
	add(&pickle, "ubu.");
	archive = torch_archive_of(pickle.p, pickle.n);
	megatron_put(disk, dir, "common.pt", &archive);
	free(archive.p);
	free(pickle.p);
}

void megatron_dist(struct simdisk *disk, const char *dir, const struct megatron_tensor *t, int n,
                   enum megatron_flaw flaw)
{
	static const char config[] = "{\"sharded_backend\": \"torch_dist\", "
		"\"sharded_backend_version\": 1, \"common_backend\": \"torch\", "
		"\"common_backend_version\": 1}";
	struct torch_bytes tensors = { 0 }, meta = { 0 };
	struct writing w = { .flaw = flaw };

	for (int i = 0; i < n; i++)
		add_tensor(&w, &tensors, &t[i]);
	torch_add(&meta, "\x80\x02", 2);
	add_object(&meta, "metadata\nMetadata");
	add(&meta, "}(");
	torch_text(&meta, "state_dict_metadata");
	add(&meta, "}(");
	torch_add(&meta, tensors.p, tensors.n);
	add(&meta, "u");
	torch_text(&meta, "storage_data");
	add(&meta, "}(");
	torch_add(&meta, w.places.p, w.places.n);
	add(&meta, "u");
	add_mcore_data(&meta, t, n, flaw);
	add(&meta, "ub.");
	put_bytes(disk, dir, ".metadata", meta.p, meta.n);
	put_bytes(disk, dir, "__0_0.distcp", w.file.p, w.file.n);
	put_bytes(disk, dir, "metadata.json", config, sizeof(config) - 1);
	put_common(disk, dir);
	free(tensors.p);
	free(meta.p);
	free(w.file.p);
	free(w.chunks.p);
	free(w.places.p);
}
