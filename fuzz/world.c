/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"
#include <errno.h>
#include <inttypes.h>
#include "crc64.h"
#include "dtype.h"
#include "fuzz.h"
#include "json.h"
#include "safetensors.h"
#include "sums.h"

#define BLOCK (UINT64_C(1) << 20)
#define DATA_MAX (UINT64_C(3) << 20)    /* that is really there; a file may say that it is longer */
#define INPUT_MAX (8 + SHF_ST_HEADER_MAX)       /* a header can be so long */
#define RUN_ID "00112233445566778899aabbccddeeff"
#define SESSION "0123456789abcdef0123456789abcdef"

static const char *const families[] = { "model", "optimizer", "ranks" };
static const char *const names[] = { "a", "b.w", "", "a/moment1_0", "__metadata__", "x\ny", "rng/0",
	"\x1b[2J", "\xff", "../a", "e", "a\"b\\", "\xc2\x85", "\xe2\x80\xae", "model", "rng/1" };
static const char *const paths[] = { "..", "../secret", "/secret", "a/../../secret", "sheaf.json",
	".", "", "model/x", "\x1b]0;x", "optimizer", "x.safetensors", "model.safetensors",
	"loop", "/", "../../..", "checkpoint-7" };
static const char *const texts[] = { "{", "}", "[", "]", "\"", ",", ":", "0", "-1", "1e9", "null",
	"true", "\\u0000", "\\ud83d", "18446744073709551615", "9223372036854775807", "\"a\":1",
	"\"x\":[[[[", " ", "\n", "\"sheaf\": 2,", "\"needs\": [\"x\"],", "\xff", "1.5" };
static const uint64_t numbers[] = { 0, 1, 2, 7, 8, 63, 64, 127, 255, 256, 4095, 4096, 65536,
	BLOCK - 1, BLOCK, BLOCK + 1, 100000000, 100000001, INT32_MAX, UINT32_MAX,
	UINT64_C(1) << 32, UINT64_C(1) << 40, UINT64_C(1) << 62, INT64_MAX, UINT64_C(1) << 63,
	UINT64_MAX - 7, UINT64_MAX };
#define N(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t bent(uint64_t old, const struct bend *b)
{
	switch (b->how % 4) {
	case 0:
		return numbers[b->value % N(numbers)];
	case 1:
		return b->value;
	case 2:
		return old + (uint64_t)(int64_t)(int32_t)b->value;
	default:
		return old ^ UINT64_C(1) << b->value % 64;
	}
}

/* The next bend of one of the kinds [from, to], from *i on. */
static const struct bend *next(const struct world *w, int *i, int from, int to)
{
	for (; *i < w->bends_n; ++*i)
		if (w->bends[*i].what >= from && w->bends[*i].what <= to)
			return &w->bends[(*i)++];
	return NULL;
}

/* Text: a byte, a piece put in, a piece taken out. */
static void bend_text(struct shf_buf *t, const struct bend *b, int kind)
{
	size_t at = t->len ? b->value % t->len : 0, n = 1 + b->part % 24u;
	const char *piece = texts[b->part % N(texts)];

	if (t->len == 0)
		return;
	if (kind == 0) {
		t->data[at] = b->part;
	} else if (kind == 1) {
		n = strlen(piece);
		if (!shf_buf_extend(t, n))
			return;
		memmove(t->data + at + n, t->data + at, t->len - n - at);
		memcpy(t->data + at, piece, n);
	} else {
		n = n < t->len - at ? n : t->len - at;
		memmove(t->data + at, t->data + at + n, t->len - at - n);
		t->len -= n;
	}
}

/* ---- tensors ---- */

struct base {
	const char *name;
	int file, dtype, ndim;
	uint64_t dim[3];
};
static const struct base bases[] = {
	{ "a", 0, SHEAF_F32, 2, { 4, 6 } }, { "e", 0, SHEAF_F32, 2, { 0, 3 } },
	{ "b.w", 0, SHEAF_BF16, 2, { 3, 5 } }, { "c", 1, SHEAF_I64, 1, { 2 } },
	{ "s", 1, SHEAF_F64, 0, { 0 } }, { "q", 1, SHEAF_F4, 2, { 2, 4 } },
	{ "a/moment1_0", 2, SHEAF_F32, 2, { 4, 6 } }, { "rng/0", 3, SHEAF_U8, 1, { 5 } },
	{ "rng/1", 3, SHEAF_U8, 1, { 5 } }, { "big", 0, SHEAF_U8, 2, { 1025, 1024 } },
};

static void tensors_make(struct world *w, int base)
{
	int n = (int)N(bases) - (base != 3), files = base == 0 ? 1 : base == 1 ? 2 : 4;

	files = w->hf && files > 2 ? 2 : files;
	for (int i = 0; i < n; i++) {
		struct world_tensor *t = &w->tensors[w->tensors_n];

		if (bases[i].file >= files)
			continue;
		*t = (struct world_tensor){ .name = bases[i].name, .file = bases[i].file,
			.dtype = bases[i].dtype, .ndim = bases[i].ndim };
		memcpy(t->dim, bases[i].dim, sizeof(bases[i].dim));
		w->tensors_n++;
	}
	w->files_n = files;
	w->families_n = files < 3 ? 1 : 3;
	for (int f = 0; f < files; f++)
		w->files[f].family = f < 2 ? 0 : f - 1;
}

static void bend_shapes(struct world *w)
{
	const struct bend *b;

	for (int i = 0; (b = next(w, &i, BEND_DTYPE, BEND_NAME)) != NULL;) {
		struct world_tensor *t = &w->tensors[b->which % w->tensors_n];

		if (b->what == BEND_DTYPE)
			t->dtype = b->part % 24;
		else if (b->what == BEND_DIM)
			t->dim[b->part % WORLD_DIMS] = bent(t->dim[b->part % WORLD_DIMS], b);
		else if (b->what == BEND_NDIM)
			t->ndim = b->part % (WORLD_DIMS + 1);
		else
			t->name = names[b->part % N(names)];
	}
}

static uint64_t items_of(const struct world_tensor *t)
{
	uint64_t n = 1;

	for (int d = 0; d < t->ndim; d++)
		n *= t->dim[d];
	return n;
}

/* One behind the other; then what bends make of that. */
static void tensors_place(struct world *w)
{
	uint64_t at[WORLD_FILES] = { 0 };
	const struct bend *b;

	for (int i = 0; i < w->tensors_n; i++) {
		struct world_tensor *t = &w->tensors[i];

		if (!shf_dtype_bytes(&t->bytes, t->dtype, items_of(t)))
			t->bytes = items_of(t);
		t->off = at[t->file];
		at[t->file] += t->bytes;
	}
	for (int i = 0; (b = next(w, &i, BEND_OFFSET, BEND_FILE_OF)) != NULL;) {
		struct world_tensor *t = &w->tensors[b->which % w->tensors_n];

		if (b->what == BEND_OFFSET)
			t->off = bent(t->off, b);
		else if (b->what == BEND_BYTES)
			t->bytes = bent(t->bytes, b);
		else
			t->file = b->part % w->files_n;
	}
}

/* ---- tensor files ---- */

static void file_name(struct world *w, int f)
{
	const char *family = families[w->files[f].family];
	int of = f < 2 ? w->files_n < 2 ? 1 : 2 : 1;

	snprintf(w->files[f].name, sizeof(w->files[f].name), "%s%s%s-%05d-of-%05d.safetensors",
	         f < 2 ? "" : family, f < 2 ? "" : "/", family, f < 2 ? f + 1 : 1, of);
}

static void header_put(struct world *w, int f)
{
	struct shf_buf *h = &w->files[f].bytes;
	const struct bend *b;
	uint64_t n;

	shf_buf_u64(h, 0);
	shf_buf_adds(h, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (int i = 0; i < w->tensors_n; i++) {
		const struct world_tensor *t = &w->tensors[i];
		const struct shf_dtype *d = shf_dtype(t->dtype);

		if (t->file != f)
			continue;
		shf_buf_adds(h, ",");
		shf_json_put(h, t->name, strlen(t->name));
		shf_buf_addf(h, ":{\"dtype\":\"%s\",\"shape\":[", d ? d->name : "F128");
		for (int k = 0; k < t->ndim; k++)
			shf_buf_addf(h, "%s%" PRIu64, k ? "," : "", t->dim[k]);
		shf_buf_addf(h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->off,
		             t->off + t->bytes);
	}
	shf_buf_adds(h, "}");
	for (int i = 0; (b = next(w, &i, BEND_HEADER_BYTE, BEND_HEADER_CUT)) != NULL;)
		if (b->which % w->files_n == f)
			bend_text(h, b, b->what - BEND_HEADER_BYTE);
	while (h->len % 64)
		shf_buf_u8(h, ' ');
	n = h->len - 8;
	for (int i = 0; (b = next(w, &i, BEND_HEADER_N, BEND_HEADER_N)) != NULL;)
		if (b->which % w->files_n == f)
			n = bent(n, b);
	w->files[f].header = h->len;
	if (!h->oom)
		shf_put64(h->data, n);
}

static void data_put(struct world *w, int f)
{
	struct world_file *file = &w->files[f];
	uint64_t end = 0, there;
	uint8_t *data;

	for (int i = 0; i < w->tensors_n; i++)
		if (w->tensors[i].file == f && w->tensors[i].off + w->tensors[i].bytes > end)
			end = w->tensors[i].off + w->tensors[i].bytes;
	file->size = end > INT64_MAX - file->header ? INT64_MAX : file->header + end;
	there = end < 4096 ? end : 4096;        /* what is not there is zeros, and costs nothing */
	data = shf_buf_extend(&file->bytes, (size_t)there);
	for (uint64_t i = 0; data && i < there; i++)
		data[i] = (uint8_t)(i * 7 + (uint64_t)f);
}

static void files_make(struct world *w)
{
	const struct bend *b;

	for (int f = 0; f < w->files_n; f++) {
		file_name(w, f);
		header_put(w, f);
		data_put(w, f);
	}
	for (int i = 0; (b = next(w, &i, BEND_DATA, BEND_DATA)) != NULL;) {
		struct world_file *file = &w->files[b->which % w->files_n];
		uint64_t there = file->bytes.len - file->header;

		if (there)
			file->bytes.data[file->header + b->value % there] ^= b->part;
	}
}

/* CRC of bytes [lo, lo + n) of a file, of which the tail may be zeros that are not there. */
static uint64_t file_raw(const struct world_file *f, uint64_t lo, uint64_t n)
{
	uint64_t have = lo < f->bytes.len ? f->bytes.len - lo : 0;
	uint64_t crc;

	have = have < n ? have : n;
	crc = have ? shf_crc64_raw(0, f->bytes.data + lo, (size_t)have) : 0;
	return shf_crc64_shift(crc, n - have);
}

static uint64_t file_crc(const struct world_file *f, uint64_t lo, uint64_t n)
{
	return file_raw(f, lo, n) ^ shf_crc64_ones(n);
}

/* ---- the table of sums ---- */

static uint64_t blocks_of(const struct world_file *f)
{
	uint64_t n = f->size / BLOCK + (f->size % BLOCK != 0);

	return n < 8 ? n : 8;   /* longer ones do not fit their table */
}

/* Tensors of a table stand by file, then offset: empty ones where they are. */
static int order_make(const struct world *w, int order[WORLD_TENSORS])
{
	int n = 0;

	for (int f = 0; f < w->files_n; f++)
		for (int i = 0; i < w->tensors_n; i++)
			if (w->tensors[i].file == f)
				order[n++] = i;
	return n;
}

static void sums_records(struct world *w, uint8_t *p, const struct shf_sums_head *h)
{
	uint64_t block = 0, name = 0, keys[WORLD_TENSORS];
	int order[WORLD_TENSORS], n = order_make(w, order), first = 0;

	for (int f = 0; f < w->files_n; f++) {
		struct world_file *file = &w->files[f];
		int k = 0;

		while (first + k < n && w->tensors[order[first + k]].file == f)
			k++;
		shf_sums_put_file(p + h->files_off + (size_t)f * SHF_SUMS_FILE,
		                  &(struct shf_sums_file){ file->size, block, (uint64_t)first,
		                                           (uint32_t)k, (uint32_t)file->header });
		for (uint64_t i = 0; i < blocks_of(file); i++, block++) {
			uint64_t left = file->size - i * BLOCK;

			shf_put64(p + h->blocks_off + block * 8,
			          file_crc(file, i * BLOCK, left < BLOCK ? left : BLOCK));
		}
		first += k;
	}
	for (int i = 0; i < n; i++) {
		const struct world_tensor *t = &w->tensors[order[i]];
		const struct world_file *file = &w->files[t->file];
		const char *family = families[file->family];
		size_t family_n = strlen(family), name_n = strlen(t->name);
		struct shf_sums_tensor r = { .off = file->header + t->off, .bytes = t->bytes,
			.file = (uint32_t)t->file, .name_bytes = (uint32_t)(family_n + 1 + name_n),
			.name_off = name, .key = shf_sums_key(family, t->name),
			.dtype = (uint16_t)t->dtype, .ndim = (uint8_t)t->ndim,
			.items = items_of(t) };

		if (t->bytes && t->bytes < DATA_MAX)
			r.digest = file_raw(file, r.off, r.bytes);
		keys[i] = r.key;
		shf_sums_put_tensor(p + h->tensors_off + (size_t)i * SHF_SUMS_TENSOR, &r);
		memcpy(p + h->names_off + name, family, family_n + 1);
		memcpy(p + h->names_off + name + family_n + 1, t->name, name_n + 1);
		name += family_n + name_n + 2;
	}
	for (int i = 0; i < n; i++) {
		uint32_t at = 0;

		for (int k = 0; k < n; k++)
			at += keys[k] < keys[i] || (keys[k] == keys[i] && k < i);
		shf_put32(p + h->tensors_off + at * SHF_SUMS_TENSOR + 52, (uint32_t)i);
	}
}

/* Fields of records by their place and width: every one of them once. */
static void bend_field(uint8_t *p, const uint8_t *fields, size_t n, const struct bend *b)
{
	size_t i = b->part % (n / 2);
	uint8_t *at = p + fields[2 * i];

	if (fields[2 * i + 1] == 8)
		shf_put64(at, bent(shf_get64(at), b));
	else if (fields[2 * i + 1] == 4)
		shf_put32(at, (uint32_t)bent(shf_get32(at), b));
	else if (fields[2 * i + 1] == 2)
		shf_put16(at, (uint16_t)bent(shf_get16(at), b));
	else
		*at = (uint8_t)bent(*at, b);
}

static void bend_sums(struct world *w, const struct shf_sums_head *h)
{
	static const uint8_t head[] = { 8, 4, 12, 4, 16, 8, 24, 8, 32, 8, 40, 8, 48, 8, 56, 8, 64,
		8, 72, 8, 80, 8, 88, 8 };
	static const uint8_t file[] = { 0, 8, 8, 8, 16, 8, 24, 4, 28, 4 };
	static const uint8_t tensor[] = { 0, 8, 8, 8, 16, 4, 20, 4, 24, 8, 32, 8, 40, 8, 48, 2,
		50, 1, 51, 1, 52, 4, 56, 8 };
	uint8_t *p = w->sums.data;
	const struct bend *b;

	for (int i = 0; (b = next(w, &i, BEND_SUMS_HEAD, BEND_SUMS_BYTE)) != NULL;) {
		if (b->what == BEND_SUMS_HEAD)
			bend_field(p, head, sizeof(head), b);
		else if (b->what == BEND_SUMS_FILE)
			bend_field(p + h->files_off + b->which % h->files_n * SHF_SUMS_FILE, file,
			           sizeof(file), b);
		else if (b->what == BEND_SUMS_TENSOR && h->tensors_n)
			bend_field(p + h->tensors_off + b->which % h->tensors_n * SHF_SUMS_TENSOR,
			           tensor, sizeof(tensor), b);
		else if (b->what == BEND_SUMS_BYTE)
			p[SHF_SUMS_HEADER + b->value % (h->pages_off - SHF_SUMS_HEADER)] = b->part;
	}
}

/* A table that says that it is longer than what there is of it, and a file that is so. */
static void sums_stretch(struct world *w, const struct shf_sums_head *h)
{
	const struct bend *b;

	w->sums_size = w->sums.len;
	for (int i = 0; (b = next(w, &i, BEND_SUMS_LONG, BEND_SUMS_LONG)) != NULL;) {
		struct shf_sums_head long_one = *h;
		uint64_t *n = b->part % 3 == 0 ? &long_one.tensors_n
		            : b->part % 3 == 1 ? &long_one.blocks_n : &long_one.names_bytes;

		*n = bent(*n, b) % UINT32_MAX;
		MUST(shf_sums_layout(&long_one));
		shf_sums_put_head(w->sums.data, &long_one);
		w->sums_size = long_one.bytes;
	}
}

static void sums_make(struct world *w)
{
	struct shf_sums_head h = { .files_n = (uint64_t)w->files_n,
	                           .tensors_n = (uint64_t)w->tensors_n };
	const struct bend *b;
	bool loose = false;
	uint8_t *p;

	for (int f = 0; f < w->files_n; f++)
		h.blocks_n += blocks_of(&w->files[f]);
	for (int i = 0; i < w->tensors_n; i++)
		h.names_bytes += strlen(families[w->files[w->tensors[i].file].family]) +
		                 strlen(w->tensors[i].name) + 2;
	MUST(shf_sums_layout(&h));
	p = shf_buf_extend(&w->sums, (size_t)h.bytes);
	MUST(p);
	shf_sums_put_head(p, &h);
	sums_records(w, p, &h);
	bend_sums(w, &h);
	sums_stretch(w, &h);
	for (int i = 0; (b = next(w, &i, BEND_SUMS_LOOSE, BEND_SUMS_LOOSE)) != NULL;)
		loose = true;
	if (!loose)
		shf_put64(p + 120, shf_crc64(p, 120));
	for (uint64_t at = 0; at < h.pages_off; at += SHF_SUMS_PAGE) {
		uint64_t n = h.pages_off - at;

		n = n < SHF_SUMS_PAGE ? n : SHF_SUMS_PAGE;
		shf_put64(p + h.pages_off + at / SHF_SUMS_PAGE * 8, shf_crc64(p + at, (size_t)n));
	}
	w->sums_crc = shf_crc64_more(shf_crc64(p, SHF_SUMS_HEADER), p + h.pages_off,
	                             (size_t)(h.bytes - h.pages_off));
}

/* ---- index, manifest ---- */

static void index_of_family(struct world *w, int family)
{
	const char *head = "{\n  \"metadata\": {\n    \"total_size\": ";
	struct shf_buf *index = &w->index[family];
	uint64_t total = 0;
	bool first = true;

	for (int i = 0; i < w->tensors_n; i++)
		total += w->files[w->tensors[i].file].family == family ? w->tensors[i].bytes : 0;
	shf_buf_addf(index, "%s%" PRIu64 "\n  },\n  \"weight_map\": {", head, total);
	for (int i = 0; i < w->tensors_n; i++) {
		const struct world_tensor *t = &w->tensors[i];
		const char *slash = strchr(w->files[t->file].name, '/');

		if (w->files[t->file].family != family)
			continue;
		shf_buf_adds(index, first ? "\n    " : ",\n    ");
		shf_json_put(index, t->name, strlen(t->name));
		shf_buf_addf(index, ": \"%s\"", slash ? slash + 1 : w->files[t->file].name);
		first = false;
	}
	shf_buf_adds(index, "\n  }\n}\n");
}

/* Only the index of model is bent. */
static void index_make(struct world *w)
{
	const struct bend *b;

	for (int k = 0; k < w->families_n; k++)
		index_of_family(w, k);
	for (int i = 0; (b = next(w, &i, BEND_INDEX_BYTE, BEND_INDEX_CUT)) != NULL;)
		bend_text(&w->index[0], b, b->what - BEND_INDEX_BYTE);
}

static void mf_families(struct world *w, struct shf_buf *m)
{
	const struct bend *b;

	shf_buf_adds(m, ",\n \"families\": [");
	for (int k = 0; k < w->families_n; k++) {
		uint64_t n[3] = { 0, 0, 0 };

		for (int f = 0; f < w->files_n; f++)
			n[0] += w->files[f].family == k;
		for (int i = 0; i < w->tensors_n; i++)
			if (w->files[w->tensors[i].file].family == k) {
				n[1]++;
				n[2] += w->tensors[i].bytes;
			}
		for (int i = 0; (b = next(w, &i, BEND_FAMILY, BEND_FAMILY)) != NULL;)
			if (b->which % w->families_n == k)
				n[b->part % 3] = bent(n[b->part % 3], b);
		shf_buf_addf(m, "%s\n  {\"name\": \"%s\", \"dir\": \"%s\", \"files\": %" PRIu64
		             ", \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", k ? "," : "",
		             families[k], k ? families[k] : ".", n[0], n[1], n[2]);
	}
	shf_buf_adds(m, "]");
}

/* One file record; which: its number among all that the manifest names. */
static void mf_file(const struct world *w, struct shf_buf *m, int which, const char *name,
                    uint64_t bytes, uint64_t crc)
{
	const struct bend *b;

	for (int i = 0; (b = next(w, &i, BEND_MF_FILE, BEND_MF_NAME)) != NULL;) {
		if (b->which % 8 != which)
			continue;
		if (b->what == BEND_MF_NAME)
			name = paths[b->value % N(paths)];
		else if (b->part % 2)
			bytes = bent(bytes, b);
		else
			crc = bent(crc, b);
	}
	shf_buf_adds(m, "{\"name\": ");
	shf_json_put(m, name, strlen(name));
	shf_buf_addf(m, ", \"bytes\": %" PRIu64 ", \"crc\": \"%016" PRIx64 "\"}", bytes, crc);
}

static void mf_files(const struct world *w, struct shf_buf *m)
{
	shf_buf_adds(m, ",\n \"files\": [");
	for (int f = 0; f < w->files_n; f++) {
		shf_buf_adds(m, f ? ",\n  " : "\n  ");
		mf_file(w, m, f, w->files[f].name, w->files[f].size,
		        w->files[f].size < DATA_MAX ? file_crc(&w->files[f], 0, w->files[f].size)
		                                    : 0);
	}
	shf_buf_adds(m, "],\n \"attached\": [\n  ");
	mf_file(w, m, 5, "config.json", 3, shf_crc64("{}\n", 3));
	shf_buf_adds(m, ",\n  ");
	mf_file(w, m, 6, "model.safetensors.index.json", w->index[0].len,
	        shf_crc64(w->index[0].data, w->index[0].len));
	for (int k = 1; k < w->families_n; k++) {
		char name[80];

		snprintf(name, sizeof(name), "%s/%s.safetensors.index.json", families[k],
		         families[k]);
		shf_buf_adds(m, ",\n  ");
		mf_file(w, m, 6 + k, name, w->index[k].len,
		        shf_crc64(w->index[k].data, w->index[k].len));
	}
	shf_buf_adds(m, "]");
}

static void mf_ties(const struct world *w, struct shf_buf *m)
{
	const struct bend *b;
	bool first = true;

	shf_buf_adds(m, ",\n \"tied\": [");
	for (int i = 0; (b = next(w, &i, BEND_TIE, BEND_TIE)) != NULL; first = false) {
		const char *name = b->part % 4 == 0 ? names[b->value % N(names)] : "head.weight";
		const char *to = b->part % 4 == 1 ? names[b->value % N(names)] : "a";

		shf_buf_addf(m, "%s[\"%s\", ", first ? "\n  " : ",\n  ",
		             b->part % 4 == 2 ? "ema" : families[b->which % 3]);
		shf_json_put(m, name, strlen(name));
		shf_buf_adds(m, ", ");
		shf_json_put(m, to, strlen(to));
		shf_buf_adds(m, "]");
	}
	shf_buf_adds(m, "]");
}

static void manifest_make(struct world *w, struct shf_buf *m)
{
	uint64_t step = 7;
	const struct bend *b;
	bool loose = false;

	for (int i = 0; (b = next(w, &i, BEND_STEP, BEND_STEP)) != NULL;)
		step = bent(step, b);
	shf_buf_addf(m, "{\"sheaf\": 1,\n \"needs\": [],\n \"step\": %" PRIu64 ",\n \"session\": "
	             "\"" SESSION "\",\n \"run\": \"" RUN_ID "\",\n \"parent\": null,\n "
	             "\"created\": \"2026-01-31T12:00:00Z\",\n \"writer\": {\"version\": \"0\", "
	             "\"commit\": \"\", \"compiler\": \"\"},\n \"config\": null,\n "
	             "\"flags\": [],\n "
	             "\"page\": 4096,\n \"block\": 1048576,\n \"sum\": \"crc64nvme\",\n "
	             "\"file_bytes_max\": 5000000000,\n \"ranks\": 2,\n "
	             "\"plan\": \"0000000000000001\"", step);
	mf_families(w, m);
	mf_files(w, m);
	mf_ties(w, m);
	shf_buf_adds(m, ",\n \"notes\": {\n  \"adam.step\": \"7\",\n  \"ranks.rng\": \"modulo\"},"
	             "\n \"sums\": ");
	mf_file(w, m, 7, "sheaf.sums", w->sums_size, w->sums_crc);
	for (int i = 0; (b = next(w, &i, BEND_MF_BYTE, BEND_MF_CUT)) != NULL;)
		bend_text(m, b, b->what - BEND_MF_BYTE);
	for (int i = 0; (b = next(w, &i, BEND_MF_LOOSE, BEND_MF_LOOSE)) != NULL;)
		loose = true;
	shf_buf_addf(m, ",\n \"self\": \"%016" PRIx64 "\"}\n", shf_crc64(m->data, m->len) ^ loose);
}

/* ---- the directory ---- */

static struct ram_node *put_text(struct world *w, struct ram_node *dir, const char *name,
                                 const char *text)
{
	uint8_t *copy = (uint8_t *)shf_strdup(text);

	MUST(copy);
	return ram_put(&w->disk, dir, name, SHF_T_FILE, copy, strlen(text));
}

static void put_buf(struct world *w, struct ram_node *dir, const char *name, struct shf_buf *b,
                    uint64_t size)
{
	struct ram_node *p;

	MUST(!b->oom);
	p = ram_put(&w->disk, dir, name, SHF_T_FILE, b->data, b->len);
	if (p)
		p->size = size;
	*b = (struct shf_buf)SHF_BUF_INIT;
}

static void step_put(struct world *w, struct ram_node *dir)
{
	struct shf_buf manifest = SHF_BUF_INIT;
	struct ram_node *folders[3] = { NULL };

	if (!w->hf) {
		sums_make(w);
		manifest_make(w, &manifest);
	}
	for (int f = 0; f < w->files_n; f++) {
		const char *slash = strchr(w->files[f].name, '/');
		struct ram_node *at = dir;

		if (slash)
			at = folders[w->files[f].family] = ram_put(&w->disk, dir,
			        families[w->files[f].family], SHF_T_DIR, NULL, 0);
		put_buf(w, at, slash ? slash + 1 : w->files[f].name, &w->files[f].bytes,
		        w->files[f].size);
	}
	put_text(w, dir, "config.json", "{}\n");
	put_buf(w, dir, "model.safetensors.index.json", &w->index[0], w->index[0].len);
	if (w->hf)
		return;
	for (int k = 1; k < w->families_n; k++) {
		char name[80];

		snprintf(name, sizeof(name), "%s.safetensors.index.json", families[k]);
		if (folders[k])
			put_buf(w, folders[k], name, &w->index[k], w->index[k].len);
	}
	put_buf(w, dir, "sheaf.sums", &w->sums, w->sums_size);
	put_buf(w, dir, "sheaf.json", &manifest, manifest.len);
}

static void dot_put(struct world *w, struct ram_node *run)
{
	static const char owner[] = "sheaf-owner 1\nhost node\nboot boot\npid_ns 1\npid 1\n"
		"start 1\nsession " SESSION "\nsum 0000000000000000\n";
	static const char journal[] = "sheaf-rewind 1\nto 6\nmove 7 0123456789abcdef\n"
		"sum 0000000000000000\n";
	struct ram_node *dot = ram_put(&w->disk, run, ".sheaf", SHF_T_DIR, NULL, 0), *marks, *tries;

	ram_put(&w->disk, ram_put(&w->disk, dot, "stage", SHF_T_DIR, NULL, 0),
	        "8-" SESSION, SHF_T_DIR, NULL, 0);
	ram_put(&w->disk, ram_put(&w->disk, dot, "aside", SHF_T_DIR, NULL, 0),
	        "9-" SESSION, SHF_T_DIR, NULL, 0);
	marks = ram_put(&w->disk, dot, "marks", SHF_T_DIR, NULL, 0);
	tries = ram_put(&w->disk, dot, "tries", SHF_T_DIR, NULL, 0);
	put_text(w, marks, "7", "k");
	put_text(w, tries, "7-" SESSION, "1");
	put_text(w, dot, "run", "sheaf-run 1\n" RUN_ID "\n");
	put_text(w, dot, "lock", owner);
	put_text(w, dot, "rewind", journal);
}

/* ---- bends of files ---- */

/* Some node that is there, by number; never the root. */
static struct ram_node *some(struct world *w, uint8_t which)
{
	return &w->disk.nodes[1 + which % (w->disk.nodes_n - 1)];
}

static void bend_node(struct world *w, const struct bend *b, struct ram_node *p)
{
	static const int codes[] = { EACCES, EIO, EPERM, ENAMETOOLONG, ESTALE };
	const char *path = paths[b->part % N(paths)];

	switch (b->what) {
	case BEND_GONE:
		ram_drop(p);
		break;
	case BEND_DIRECTORY:
		ram_put(&w->disk, p->parent, p->name, SHF_T_DIR, NULL, 0);
		break;
	case BEND_LINK:
		ram_link(&w->disk, p->parent, p->name, path);
		break;
	case BEND_OTHER:
		ram_put(&w->disk, p->parent, p->name, SHF_T_OTHER, NULL, 0);
		break;
	case BEND_REFUSED:
		p->refuse = codes[b->part % N(codes)];
		break;
	case BEND_BROKEN:
		p->broken = codes[b->part % N(codes)];
		break;
	case BEND_CHANGES:
		p->reads = 1 + b->part % 16;
		break;
	case BEND_SIZE:
		p->size = bent(p->size, b);
		p->size = p->size > INT64_MAX ? INT64_MAX : p->size;
		break;
	case BEND_RENAMED:
		if (*path && !strchr(path, '/'))
			ram_name(&w->disk, p, path);
		break;
	case BEND_EXTRA:
		if (*path && !strchr(path, '/') && p->type == SHF_T_DIR)
			put_text(w, p, path, texts[b->how % N(texts)]);
		break;
	default:
		if (p->have)
			p->bytes[b->value % p->have] ^= b->part;
	}
}

static void bend_nodes(struct world *w)
{
	struct ram_node *dot = ram_find(&w->disk, NULL, "run/.sheaf");
	const struct bend *b;

	for (int i = 0; (b = next(w, &i, BEND_DOT_BYTE, BEND_DOT_TEXT)) != NULL;) {
		static const char *const of[] = { "run", "lock", "rewind", "marks/7",
			("tries/7-" SESSION) };
		struct ram_node *p = dot ? ram_find(&w->disk, dot, of[b->which % N(of)]) : NULL;
		struct shf_buf text = SHF_BUF_INIT;

		if (!p || p->type != SHF_T_FILE)
			continue;
		shf_buf_add(&text, p->bytes, p->have);
		bend_text(&text, b, b->what - BEND_DOT_BYTE);
		put_buf(w, p->parent, p->name, &text, text.len);
	}
	for (int i = 0; (b = next(w, &i, BEND_GONE, BEND_FILE_BYTE)) != NULL;) {
		if (b->what == BEND_CHANGES)
			w->changes = true;
		bend_node(w, b, some(w, b->which));
	}
}

/* ---- all of it ---- */

bool world_make(struct world *w, const uint8_t *data, size_t size)
{
	struct ram_node *top;

	if (size < 2)
		return false;
	ramdisk_init(&w->disk);
	memset(&w->hf, 0, sizeof(*w) - offsetof(struct world, hf));
	w->hf = data[0] & 1;
	w->dot = data[0] & 2;
	w->disk.resident = data[0] & 4;
	w->use = data[1];
	for (size_t at = 2; at + 8 <= size && w->bends_n < WORLD_BENDS; at += 8)
		w->bends[w->bends_n++] = (struct bend){ data[at] % BEND_KINDS, data[at + 1],
			data[at + 2], data[at + 3], shf_get32(data + at + 4) };
	w->sound = w->bends_n == 0;
	tensors_make(w, data[0] >> 3 & 3);
	bend_shapes(w);
	tensors_place(w);
	files_make(w);
	index_make(w);
	put_text(w, NULL, "secret", "nobody's");
	top = ram_put(&w->disk, NULL, w->hf ? "hf" : "run", SHF_T_DIR, NULL, 0);
	step_put(w, w->hf ? top : ram_put(&w->disk, top, "checkpoint-7", SHF_T_DIR, NULL, 0));
	if (w->dot && !w->hf)
		dot_put(w, top);
	bend_nodes(w);
	for (size_t i = 1; i < w->disk.nodes_n; i++)
		w->input += w->disk.nodes[i].size < INPUT_MAX ? w->disk.nodes[i].size : INPUT_MAX;
	return true;
}

void world_release(struct world *w)
{
	for (int f = 0; f < WORLD_FILES; f++)
		shf_buf_release(&w->files[f].bytes);
	shf_buf_release(&w->sums);
	for (int k = 0; k < 3; k++)
		shf_buf_release(&w->index[k]);
	ramdisk_release(&w->disk);
}
