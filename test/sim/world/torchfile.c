/* SPDX-License-Identifier: Apache-2.0 */
#include "torchfile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "packedfile.h"

void torch_add(struct torch_bytes *b, const void *bytes, size_t n)
{
	if (b->n + n > b->cap) {
		b->cap = 2 * (b->n + n);
		b->p = realloc(b->p, b->cap);
	}
	if (n)
		memcpy(b->p + b->n, bytes, n);
	b->n += n;
}

static void add_number(struct torch_bytes *b, uint64_t v, int width)
{
	for (int i = 0; i < width; i++)
		torch_add(b, &(uint8_t){ (uint8_t)(i < 8 ? v >> 8 * i : 0) }, 1);
}

static void add_string(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

/* ---- the pickle ---- */

void torch_text(struct torch_bytes *b, const char *s)
{
	add_string(b, "X");
	add_number(b, strlen(s), 4);
	add_string(b, s);
}

void torch_int(struct torch_bytes *b, int64_t v)
{
	torch_add(b, "\x8a\x08", 2);
	add_number(b, (uint64_t)v, 8);
}

static void put_ints(struct torch_bytes *b, const int64_t *v, int n)
{
	add_string(b, "(");
	for (int i = 0; i < n; i++)
		torch_int(b, v[i]);
	add_string(b, "t");
}

static const char *storage_of(int dtype)
{
	switch (dtype) {
	case SHEAF_F64: return "DoubleStorage";
	case SHEAF_F32: return "FloatStorage";
	case SHEAF_F16: return "HalfStorage";
	case SHEAF_BF16: return "BFloat16Storage";
	case SHEAF_I64: return "LongStorage";
	case SHEAF_I32: return "IntStorage";
	case SHEAF_I16: return "ShortStorage";
	case SHEAF_I8: return "CharStorage";
	default: return "ByteStorage";
	}
}

static void strides_of(const struct torch_tensor *t, int64_t stride[8])
{
	int64_t row = 1, any = 0;

	for (int d = 0; d < t->ndim; d++)
		any |= t->stride[d];
	for (int d = t->ndim - 1; d >= 0; d--) {
		stride[d] = any ? t->stride[d] : row;
		row *= t->shape[d];
	}
}

/* Returns the number of items in the storage. */
static int64_t items_of(const struct torch_tensor *t)
{
	int64_t stride[8], last = t->at;

	strides_of(t, stride);
	for (int d = 0; d < t->ndim; d++) {
		if (t->shape[d] == 0)
			return 0;
		last += (t->shape[d] - 1) * stride[d];
	}
	return last + 1;
}

static const struct torch_tensor *owner_of(const struct torch_tensor *t, int n, int i, int *key)
{
	*key = i;
	for (int k = 0; t[i].of && k < n; k++)
		if (strcmp(t[k].name, t[i].of) == 0)
			*key = k;
	return &t[*key];
}

void torch_put(struct torch_bytes *b, const struct torch_tensor *t, int n, int i)
{
	const struct torch_tensor *owner;
	int64_t stride[8];
	char key[20];
	int k;

	owner = owner_of(t, n, i, &k);
	snprintf(key, sizeof(key), "%d", k);
	strides_of(&t[i], stride);
	add_string(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
	torch_text(b, "storage");
	add_string(b, "ctorch\n");
	add_string(b, storage_of(t[i].dtype));
	add_string(b, "\n");
	torch_text(b, key);
	torch_text(b, "cpu");
	torch_int(b, items_of(owner) + t[i].lied_items);
	add_string(b, "tQ");
	torch_int(b, t[i].at);
	put_ints(b, t[i].shape, t[i].ndim);
	put_ints(b, stride, t[i].ndim);
	add_string(b, "\x89" "ccollections\nOrderedDict\n)R");
	if (t[i].neg) {
		add_string(b, "}");
		torch_text(b, "neg");
		add_string(b, "\x88s");
	}
	add_string(b, "tR");
}

/* ---- the archive ---- */

static uint32_t crc_of(const uint8_t *p, size_t n)
{
	uint32_t c = ~0u;

	for (size_t i = 0; i < n; i++) {
		c ^= p[i];
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

struct archive {
	struct torch_bytes file, dir;
	enum torch_flaw flaw;
	unsigned records;
};

/* Adds a record as torch does: the local header has no sizes, the data begins at a multiple of 64,
 * and a descriptor follows it. packed: the data compressed by deflate; p NULL: uncompressed. */
static void add_packed(struct archive *a, const char *name, const uint8_t *data, size_t n,
                       struct torch_bytes packed)
{
	size_t name_n = strlen(name), at = a->file.n;
	size_t pad = (64 - (at + 30 + name_n + 4) % 64) % 64;
	bool odd = strstr(name, "data/0") != NULL;
	uint16_t flags = a->flaw == TORCH_ENCRYPTED && odd ? 0x809 : 0x808;
	uint16_t method = (a->flaw == TORCH_COMPRESSED && odd) || packed.p ? 8 : 0;
	size_t stored = packed.p ? packed.n : n;
	uint32_t crc = a->flaw == TORCH_NO_SUMS ? 0 : crc_of(data, n);

	add_number(&a->file, 0x04034b50, 4);
	add_number(&a->file, 0, 2);
	add_number(&a->file, flags, 2);
	add_number(&a->file, method, 2);
	add_number(&a->file, 0, 4 + 12);
	add_number(&a->file, name_n, 2);
	add_number(&a->file, 4 + pad, 2);
	if (a->flaw == TORCH_OTHER_NAME && odd)
		add_string(&a->file, "x");
	torch_add(&a->file, name + (a->flaw == TORCH_OTHER_NAME && odd),
	          name_n - (a->flaw == TORCH_OTHER_NAME && odd));
	add_string(&a->file, "FB");
	add_number(&a->file, pad, 2);
	for (size_t i = 0; i < pad; i++)
		add_string(&a->file, "Z");
	torch_add(&a->file, packed.p ? packed.p : data, stored);
	add_number(&a->file, 0x08074b50, 4);
	add_number(&a->file, crc, 4);
	add_number(&a->file, stored, 4);
	add_number(&a->file, n, 4);
	add_number(&a->dir, 0x02014b50, 4);
	add_number(&a->dir, 0, 4);
	add_number(&a->dir, flags, 2);
	add_number(&a->dir, method, 2);
	add_number(&a->dir, 0, 4);
	add_number(&a->dir, crc, 4);
	add_number(&a->dir, stored + (a->flaw == TORCH_OVERLAP && odd ? 200 : 0), 4);
	add_number(&a->dir, n + (a->flaw == TORCH_OVERLAP && odd ? 200 : 0), 4);
	add_number(&a->dir, name_n, 2);
	add_number(&a->dir, 0, 12);
	add_number(&a->dir, at, 4);
	torch_add(&a->dir, a->flaw == TORCH_NUL_NAME && odd ? "a\0data/0" : name, name_n);
	a->records++;
}

static void add_record(struct archive *a, const char *name, const uint8_t *data, size_t n)
{
	add_packed(a, name, data, n, (struct torch_bytes){ NULL, 0, 0 });
}

static struct torch_bytes end_archive(struct archive *a)
{
	size_t at = a->file.n;

	torch_add(&a->file, a->dir.p, a->dir.n);
	add_number(&a->file, 0x06054b50, 4);
	add_number(&a->file, 0, 4);
	add_number(&a->file, a->flaw == TORCH_MANY_RECORDS ? 60000 : a->records, 2);
	add_number(&a->file, a->flaw == TORCH_MANY_RECORDS ? 60000 : a->records, 2);
	add_number(&a->file, a->dir.n, 4);
	add_number(&a->file, at, 4);
	add_number(&a->file, a->flaw == TORCH_COMMENT ? 5 : 0, 2);
	if (a->flaw == TORCH_COMMENT || a->flaw == TORCH_TAIL)
		add_string(&a->file, "words");
	free(a->dir.p);
	return a->file;
}

struct torch_bytes torch_archive_of(const void *pickle, size_t n)
{
	struct archive a = { .flaw = TORCH_SOUND };
	uint8_t data[64];

	for (int i = 0; i < 64; i++)
		data[i] = (uint8_t)i;
	add_record(&a, "a/data.pkl", pickle, n);
	add_record(&a, "a/byteorder", (const uint8_t *)"little", 6);
	add_record(&a, "a/data/0", data, 64);
	return end_archive(&a);
}

struct torch_bytes torch_zip(const struct torch_record *r, int n)
{
	struct archive a = { .flaw = TORCH_SOUND };

	for (int i = 0; i < n; i++)
		add_packed(&a, r[i].name, r[i].data.p, r[i].data.n, r[i].packed);
	return end_archive(&a);
}

struct torch_bytes torch_archive_with(const char *folder, const struct torch_bytes *pickle,
                                      const struct torch_bytes *storages, int n)
{
	struct archive a = { .flaw = TORCH_SOUND };
	char name[100];

	snprintf(name, sizeof(name), "%s/data.pkl", folder);
	add_record(&a, name, pickle->p, pickle->n);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s/data/%d", folder, i);
		add_record(&a, name, storages[i].p, storages[i].n);
	}
	return end_archive(&a);
}

struct torch_bytes torch_storage(const struct torch_tensor *t)
{
	size_t item = (size_t)hand_bits(t->dtype) / 8;
	int64_t items = items_of(t), stride[8], n = 1;
	struct torch_bytes out = { calloc((size_t)items + 1, item), (size_t)items * item,
		((size_t)items + 1) * item };

	strides_of(t, stride);
	for (int d = 0; d < t->ndim; d++)
		n *= t->shape[d];
	for (int64_t k = 0; k < n; k++) {
		uint64_t v = hand_value("model", t->name, t->dtype, k);
		int64_t at = t->at, rest = k;

		for (int d = t->ndim - 1; d >= 0; d--) {
			at += rest % t->shape[d] * stride[d];
			rest /= t->shape[d];
		}
		memcpy(out.p + (size_t)at * item, &v, item);
	}
	return out;
}

struct torch_bytes torch_archive(const struct torch_tensor *t, int n, enum torch_flaw flaw)
{
	struct archive a = { .flaw = flaw };
	struct torch_bytes pickle = { 0 };
	char name[40];

	torch_add(&pickle, "\x80\x02}(", 4);
	for (int i = 0; i < n; i++) {
		torch_text(&pickle, t[i].name);
		torch_put(&pickle, t, n, i);
	}
	add_string(&pickle, "u.");
	add_record(&a, flaw == TORCH_NO_PICKLE ? "a/other.pkl" : "a/data.pkl", pickle.p, pickle.n);
	add_record(&a, "a/byteorder", (const uint8_t *)(flaw == TORCH_BIG_ENDIAN ? "big" :
							"little"),
	           flaw == TORCH_BIG_ENDIAN ? 3 : 6);
	if (flaw == TORCH_TWO_FOLDERS)
		add_record(&a, "z/data.pkl", pickle.p, pickle.n);
	if (flaw == TORCH_SCRIPT)
		add_record(&a, "a/constants.pkl", pickle.p, pickle.n);
	for (int i = 0; i < n; i++) {
		struct torch_bytes data;

		if (t[i].of || (flaw == TORCH_NO_STORAGE && i == 0))
			continue;
		data = torch_storage(&t[i]);
		snprintf(name, sizeof(name), "a/data/%d", i);
		for (int twice = 0; twice < 1 + (flaw == TORCH_TWICE && i == 0); twice++)
			add_record(&a, name, data.p, data.n);
		free(data.p);
	}
	free(pickle.p);
	return end_archive(&a);
}

/* ---- directories of DCP ---- */

/* Returns an archive with one box of a tensor. turned: it is stored column by column. */
static struct torch_bytes dcp_item(const struct torch_tensor *t, const int64_t start[2],
                                   const int64_t count[2], bool turned)
{
	size_t item = (size_t)hand_bits(t->dtype) / 8;
	struct torch_tensor part = { .name = t->name, .dtype = t->dtype, .ndim = 2,
		.shape = { count[0], count[1] }, .neg = t->neg };
	struct torch_bytes pickle = { 0 }, data = { 0 };
	struct archive a = { .flaw = TORCH_SOUND };

	part.stride[0] = turned ? 1 : count[1];
	part.stride[1] = turned ? count[0] : 1;
	torch_add(&pickle, "\x80\x02", 2);
	torch_put(&pickle, &part, 1, 0);
	add_string(&pickle, ".");
	for (int64_t k = 0; k < count[0] * count[1]; k++) {
		int64_t i = turned ? k % count[0] : k / count[1];
		int64_t j = turned ? k / count[0] : k % count[1];
		uint64_t v = hand_value("model", t->name, t->dtype,
		                        (start[0] + i) * t->shape[1] + start[1] + j);

		torch_add(&data, &v, item);
	}
	add_record(&a, "archive/data.pkl", pickle.p, pickle.n);
	add_record(&a, "archive/data/0", data.p, data.n);
	free(pickle.p);
	free(data.p);
	return end_archive(&a);
}

static void put_object(struct torch_bytes *b, const char *name)
{
	add_string(b, "ctorch.distributed.checkpoint.");
	add_string(b, name);
	add_string(b, "\n)\x81");
}

static void put_size(struct torch_bytes *b, const char *key, const int64_t *v)
{
	torch_text(b, key);
	add_string(b, "ctorch\nSize\n");
	put_ints(b, v, 2);
	add_string(b, "\x85R");
}

struct dcp_piece { int64_t start[2], count[2], at, bytes; int file; };

/* Returns a zstd frame that decompresses to 4000 blocks of 128 KiB zeros. */
static struct torch_bytes bomb(void)
{
	struct torch_bytes b = { NULL, 0, 0 };

	torch_add(&b, "\x28\xb5\x2f\xfd\0\x50", 6);
	for (int i = 0; i < 4000; i++) {
		packed_number(&b, (UINT64_C(131072) << 3) | 2u | (i == 3999), 3);
		packed_number(&b, 0, 1);
	}
	return b;
}

/* Flips a bit of the first value of an item. The value follows the name in the header of its record
 * and an extra field, whose length is before the name. */
static void flip_value(struct torch_bytes item)
{
	static const char name[] = "archive/data/0";
	uint8_t *at = memmem(item.p, item.n, name, sizeof(name) - 1);

	at[sizeof(name) - 1 + at[-2] + 256u * at[-1]] ^= 4;
}

/* Returns the compressed item; frees the item. */
static struct torch_bytes compressed(struct torch_bytes item, enum dcp_flaw flaw, bool first)
{
	struct torch_bytes out, rest = { item.p + item.n / 2, item.n - item.n / 2, 0 };

	if (flaw == DCP_ZSTD_FLIPPED && first)
		flip_value(item);
	if (flaw == DCP_BOMB && first) {
		out = bomb();
	} else if (flaw == DCP_FRAMES) {
		item.n /= 2;
		out = packed_zstd(item);
		rest = packed_zstd(rest);
		torch_add(&out, rest.p, rest.n);
		free(rest.p);
		rest = packed_zstd((struct torch_bytes){ item.p, 0, 0 });
		torch_add(&out, rest.p, rest.n);        /* an empty frame */
		free(rest.p);
	} else {
		out = packed_zstd(item);
	}
	free(item.p);
	return out;
}

/* Adds the items of a tensor to the files. Returns their number. */
static int put_items(struct torch_bytes *files, int files_n, const struct torch_tensor *t,
                     int rows, int columns, struct dcp_piece *p, enum dcp_flaw flaw)
{
	int n = 0;

	for (int i = 0; i < rows; i++)
		for (int j = 0; j < columns; j++, p++, n++) {
			struct torch_bytes item;

			p->start[0] = t->shape[0] * i / rows;
			p->count[0] = t->shape[0] * (i + 1) / rows - p->start[0];
			p->start[1] = t->shape[1] * j / columns;
			p->count[1] = t->shape[1] * (j + 1) / columns - p->start[1];
			item = dcp_item(t, p->start, p->count, n % 3 == 1);
			if (flaw >= DCP_ZSTD)
				item = compressed(item, flaw, n == 0);
			p->file = n % files_n;
			p->at = (int64_t)files[p->file].n;
			p->bytes = (int64_t)item.n;
			torch_add(&files[p->file], item.p, item.n);
			free(item.p);
		}
	return n;
}

static void put_metadata(struct torch_bytes *b, const struct torch_tensor *t,
                         const struct dcp_piece *p, int n, enum dcp_flaw flaw)
{
	torch_text(b, t->name);
	put_object(b, "metadata\nTensorStorageMetadata");
	add_string(b, "}(");
	torch_text(b, "properties");
	put_object(b, "metadata\nTensorProperties");
	add_string(b, "(ctorch\n");
	add_string(b, t->dtype == SHEAF_BF16 ? "bfloat16" : t->dtype == SHEAF_F64 ? "float64"
	                                                                         : "float32");
	add_string(b, "\nNNNNtb");
	put_size(b, "size", t->shape);
	torch_text(b, "chunks");
	add_string(b, "](");
	for (int i = flaw == DCP_GAP; i < n; i++) {
		int64_t count[2] = { p[i].count[0] + (flaw == DCP_OVERLAP && i == 0) +
			100000 * (flaw == DCP_LEAVES), p[i].count[1] };

		put_object(b, "metadata\nChunkStorageMetadata");
		add_string(b, "}(");
		put_size(b, "offsets", p[i].start);
		put_size(b, "sizes", count);
		add_string(b, "ub");
	}
	add_string(b, "eub");
}

static void put_entry_of(struct torch_bytes *b, const struct torch_tensor *t,
                         const struct dcp_piece *p, enum dcp_flaw flaw)
{
	char path[40];

	snprintf(path, sizeof(path), "%s__%d_0.distcp", flaw == DCP_OUTSIDE ? "../" : "", p->file);
	put_object(b, "metadata\nMetadataIndex");
	add_string(b, "}(");
	torch_text(b, "fqn");
	torch_text(b, t->name);
	put_size(b, "offset", p->start);
	add_string(b, "ub");
	put_object(b, "filesystem\n_StorageInfo");
	add_string(b, "}(");
	torch_text(b, "relative_path");
	torch_text(b, path);
	torch_text(b, "offset");
	torch_int(b, p->at);
	torch_text(b, "length");
	torch_int(b, flaw == DCP_BEYOND ? INT64_MAX : p->bytes);
	if (flaw >= DCP_ZSTD) {
		torch_text(b, "transform_descriptors");
		add_string(b, "](");
		torch_text(b, flaw == DCP_ZSTD_2 ? "stream.zstd/2" : "stream.zstd/1");
		if (flaw == DCP_CIPHER)
			torch_text(b, "stream.aes@here/7");
		add_string(b, "e");
	}
	add_string(b, "ub");
}

/* Adds an item that is not an archive, of a value "words". */
static void put_bytes_item(struct torch_bytes *b, struct torch_bytes *file)
{
	put_object(b, "metadata\nMetadataIndex");
	add_string(b, "}(");
	torch_text(b, "fqn");
	torch_text(b, "words");
	torch_text(b, "offset");
	add_string(b, "Nub");
	put_object(b, "filesystem\n_StorageInfo");
	add_string(b, "}(");
	torch_text(b, "relative_path");
	torch_text(b, "__0_0.distcp");
	torch_text(b, "offset");
	torch_int(b, (int64_t)file->n);
	torch_text(b, "length");
	torch_int(b, 11);
	add_string(b, "ub");
	add_string(file, "hello world");
}

/* Puts a metadata file with these entries for tensors and places. */
static void put_metadata_file(struct simdisk *disk, const char *path,
                              const struct torch_bytes *tensors, const struct torch_bytes *data)
{
	struct torch_bytes meta = { 0 };

	torch_add(&meta, "\x80\x02", 2);
	put_object(&meta, "metadata\nMetadata");
	add_string(&meta, "}(");
	torch_text(&meta, "state_dict_metadata");
	add_string(&meta, "}(");
	torch_add(&meta, tensors->p, tensors->n);
	add_string(&meta, "u");
	torch_text(&meta, "storage_data");
	add_string(&meta, "}(");
	torch_add(&meta, data->p, data->n);
	add_string(&meta, "uub.");
	if (simdisk_put(disk, path, meta.p, meta.n) < 0)
		abort();
	free(meta.p);
}

void torch_dcp(struct simdisk *disk, const char *dir, const struct torch_tensor *t, int n, int rows,
               int columns, enum dcp_flaw flaw)
{
	struct torch_bytes files[200] = { { 0 } }, tensors[2] = { { 0 } }, data = { 0 };
	int files_n = flaw == DCP_MANY_FILES ? 200 : 2;
	struct dcp_piece *p = calloc((size_t)(rows * columns), sizeof(*p));
	char path[100];

	for (int i = 0; i < n; i++) {
		int pieces = put_items(files, files_n, &t[i], rows, columns, p, flaw);

		for (int twice = 0; twice < 1 + (flaw == DCP_TWICE); twice++)
			put_metadata(&tensors[0], &t[i], p,
			             pieces - (flaw == DCP_RANKS && i == 0), flaw);
		put_metadata(&tensors[1], &t[i], p, pieces, flaw);
		for (int k = flaw == DCP_NO_ENTRY; k < pieces; k++) {
			/* Another save had a box of another size there. */
			if (flaw == DCP_OTHER_SAVE && k == 0) {
				p[k].at = p[4].at;
				p[k].bytes = p[4].bytes;
			}
			if (p[k].count[0] && p[k].count[1])
				put_entry_of(&data, &t[i], &p[k], flaw);
			if (flaw == DCP_ENTRY_TWICE && k == 0) {
				p[k].at++;
				put_entry_of(&data, &t[i], &p[k], flaw);
				p[k].at--;
			}
		}
	}
	if (flaw == DCP_BYTES) {
		torch_text(&tensors[0], "words");
		put_object(&tensors[0], "metadata\nBytesStorageMetadata");
		put_bytes_item(&data, &files[0]);
	}
	for (int i = 0; i < files_n; i++) {
		snprintf(path, sizeof(path), "%s/__%d_0.distcp", dir, i);
		if (flaw == DCP_TORN && i == 0)         /* the first item begins with zeros */
			memset(files[i].p, 0, 8);
		if (flaw != DCP_NO_FILE && simdisk_put(disk, path, files[i].p, files[i].n) < 0)
			abort();
		free(files[i].p);
	}
	for (int i = 0; i < 2; i++) {
		if (flaw == DCP_RANKS)
			snprintf(path, sizeof(path), "%s/__%d.metadata", dir, i);
		else
			snprintf(path, sizeof(path), "%s/.metadata", dir);
		if (flaw == DCP_RANKS || i == 0)
			put_metadata_file(disk, path, &tensors[i], &data);
		free(tensors[i].p);
	}
	free(data.p);
	free(p);
}
