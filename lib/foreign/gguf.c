/* SPDX-License-Identifier: Apache-2.0 */
/* Files of llama.cpp and ggml: a header, metadata, a list of tensors, and their data. Quantised
 * tensors consist of blocks that have scales of their own. They are listed as the bytes that they
 * are stored as, and are not read.
 *
 * Source: docs/gguf.md of ggml, and files that the package gguf 0.19 wrote. All numbers are
 * little-endian. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "decimal.h"
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "json.h"

#define MAGIC 0x46554747u               /* GGUF */
#define WINDOW (UINT64_C(64) << 10)
#define NAME_MAX_BYTES 4096
#define TEXT_MAX 1024                   /* of a note */
#define GGUF_DIMS_MAX 8
#define ALIGN_KEY "general.alignment"

/* The types of tensors, by their numbers: those that are stored as items have a dtype, the others
 * blocks of `items` items in `bytes` bytes. Numbers that are no longer in use have no name. */
static const struct gguf_type { const char *name; int32_t dtype; uint16_t items, bytes; }
gguf_types[] = {
	{ "F32", SHEAF_F32, 1, 4 }, { "F16", SHEAF_F16, 1, 2 }, { "Q4_0", 0, 32, 18 },
	{ "Q4_1", 0, 32, 20 }, { NULL, 0, 0, 0 }, { NULL, 0, 0, 0 }, { "Q5_0", 0, 32, 22 },
	{ "Q5_1", 0, 32, 24 }, { "Q8_0", 0, 32, 34 }, { "Q8_1", 0, 32, 36 },
	{ "Q2_K", 0, 256, 84 }, { "Q3_K", 0, 256, 110 }, { "Q4_K", 0, 256, 144 },
	{ "Q5_K", 0, 256, 176 }, { "Q6_K", 0, 256, 210 }, { "Q8_K", 0, 256, 292 },
	{ "IQ2_XXS", 0, 256, 66 }, { "IQ2_XS", 0, 256, 74 }, { "IQ3_XXS", 0, 256, 98 },
	{ "IQ1_S", 0, 256, 50 }, { "IQ4_NL", 0, 32, 18 }, { "IQ3_S", 0, 256, 110 },
	{ "IQ2_S", 0, 256, 82 }, { "IQ4_XS", 0, 256, 136 }, { "I8", SHEAF_I8, 1, 1 },
	{ "I16", SHEAF_I16, 1, 2 }, { "I32", SHEAF_I32, 1, 4 }, { "I64", SHEAF_I64, 1, 8 },
	{ "F64", SHEAF_F64, 1, 8 }, { "IQ1_M", 0, 256, 56 }, { "BF16", SHEAF_BF16, 1, 2 },
	{ NULL, 0, 0, 0 }, { NULL, 0, 0, 0 }, { NULL, 0, 0, 0 }, { "TQ1_0", 0, 256, 54 },
	{ "TQ2_0", 0, 256, 66 }, { NULL, 0, 0, 0 }, { NULL, 0, 0, 0 }, { NULL, 0, 0, 0 },
	{ "MXFP4", 0, 32, 17 }, { "NVFP4", 0, 64, 36 },
};
#define TYPES (sizeof(gguf_types) / sizeof(gguf_types[0]))

/* Types of metadata: bytes of a value; 0: a text or an array. */
enum { V_U8, V_I8, V_U16, V_I16, V_U32, V_I32, V_F32, V_BOOL, V_TEXT, V_ARRAY, V_U64, V_I64, V_F64,
       V_TYPES };
static const uint8_t value_bytes[V_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

struct gguf {                   /* a file that is being read from its beginning */
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_region r;
	uint8_t *window;                /* owned */
	uint64_t at, lo, hi;            /* byte that is next; those that the window has */
	uint64_t align;
	int rc;                         /* the first failure; nothing is read after it */
};

static int gguf_bad(struct gguf *g, const char *why)
{
	if (g->rc == 0)
		g->rc = shf_fail(g->err, SHEAF_EFORMAT, "%s: GGUF, byte %" PRIu64 ": %s",
		                 g->r.where, g->at, why);
	return g->rc;
}

static int gguf_no_memory(struct gguf *g)
{
	return g->rc = shf_fail(g->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
	                        g->r.where);
}

/* Reads n bytes, at most those of the window. They are zero after a failure. */
static const uint8_t *gguf_bytes(struct gguf *g, uint64_t n)
{
	static const uint8_t none[16] = { 0 };

	if (g->rc == 0 && n > g->r.bytes - g->at)
		gguf_bad(g, "the file ends inside its header");
	if (g->rc == 0 && g->at + n > g->hi) {
		uint64_t left = g->r.bytes - g->at, some = left < WINDOW ? left : WINDOW;

		g->rc = shf_region_read(&g->r, g->window, some, g->at, g->err);
		g->lo = g->at;
		g->hi = g->at + some;
	}
	if (g->rc < 0)
		return none;
	g->at += n;
	return g->window + (g->at - n - g->lo);
}

static uint32_t gguf_u32(struct gguf *g)
{
	return shf_get32(gguf_bytes(g, 4));
}

static uint64_t gguf_u64(struct gguf *g)
{
	return shf_get64(gguf_bytes(g, 8));
}

static void gguf_skip(struct gguf *g, uint64_t n)
{
	if (g->rc == 0 && n > g->r.bytes - g->at)
		gguf_bad(g, "the file ends inside its header");
	if (g->rc < 0)
		return;
	g->at += n;
	if (g->at > g->hi)
		g->lo = g->hi = g->at;
}

/* Reads the first bytes of a text to `to`, NUL-ended, and passes over the rest. Returns how
 * many. */
static size_t gguf_text(struct gguf *g, char *to, size_t room, bool whole)
{
	uint64_t n = gguf_u64(g), some = n < room ? n : room - 1;
	const uint8_t *p;

	if (g->rc == 0 && whole && n >= room)
		gguf_bad(g, "a name is too long");
	if (g->rc == 0 && n > g->r.bytes - g->at)
		gguf_bad(g, "a text is longer than the file");
	p = gguf_bytes(g, some);
	if (g->rc < 0)
		return 0;
	memcpy(to, p, some);
	to[some] = '\0';
	gguf_skip(g, n - some);
	return (size_t)some;
}

/* ---- metadata ---- */

/* Writes a number as a text. */
static void print_value(char text[64], uint32_t type, const uint8_t *p)
{
	uint64_t bits = value_bytes[type] == 8 ? shf_get64(p) : value_bytes[type] == 4
	              ? shf_get32(p) : value_bytes[type] == 2 ? shf_get16(p) : p[0];
	int shift = 64 - 8 * value_bytes[type];
	double v = 0;

	if (type == V_BOOL)
		snprintf(text, 64, "%s", bits ? "true" : "false");
	else if (type == V_F32 || type == V_F64) {
		shf_value(&v, type == V_F32 ? SHEAF_F32 : SHEAF_F64, p);
		shf_decimal_print(text, v);
	} else if (type == V_I8 || type == V_I16 || type == V_I32 || type == V_I64)
		snprintf(text, 64, "%" PRId64, (int64_t)(bits << shift) >> shift);
	else
		snprintf(text, 64, "%" PRIu64, bits);
}

/* Passes over an array, and notes what it is. Arrays in arrays are refused: no program writes
 * them. */
static void gguf_array(struct gguf *g, const char *key, size_t key_n)
{
	uint32_t type = gguf_u32(g);
	uint64_t n = gguf_u64(g), bytes = 0;
	char text[64];

	if (g->rc == 0 && (type >= V_TYPES || type == V_ARRAY))
		gguf_bad(g, "an array has items of unknown type");
	if (g->rc == 0 && n > g->r.bytes - g->at)
		gguf_bad(g, "an array is longer than the file");
	if (g->rc < 0)
		return;
	for (uint64_t i = 0; type == V_TEXT && i < n && g->rc == 0; i++)
		gguf_text(g, text, sizeof(text), false);
	if (type != V_TEXT && !shf_mul64(&bytes, n, value_bytes[type]))
		gguf_bad(g, "an array is longer than the file");
	gguf_skip(g, bytes);
	if (g->rc == 0)
		g->rc = shf_foreign_note(g->f, g->err, key, key_n, "an array of %" PRIu64 " %s", n,
		                         type == V_TEXT ? "texts" : "numbers");
}

/* Reads one value of the metadata. */
static void gguf_value(struct gguf *g)
{
	char key[NAME_MAX_BYTES + 1], text[TEXT_MAX + 1] = "";
	size_t key_n = gguf_text(g, key, sizeof(key), true);
	uint32_t type = gguf_u32(g);
	const uint8_t *p;

	if (g->rc == 0 && type >= V_TYPES)
		gguf_bad(g, "a value of the metadata has an unknown type");
	if (g->rc < 0)
		return;
	if (type == V_ARRAY) {
		gguf_array(g, key, key_n);
		return;
	}
	if (type == V_TEXT) {
		gguf_text(g, text, sizeof(text), false);
	} else {
		p = gguf_bytes(g, value_bytes[type]);
		print_value(text, type, p);
		if (strcmp(key, ALIGN_KEY) == 0)
			g->align = type == V_U32 ? shf_get32(p) : 0;
	}
	if (g->rc == 0)
		g->rc = shf_foreign_note(g->f, g->err, key, key_n, "%s", text);
}

/* ---- tensors ---- */

/* Reads the dimensions of a tensor, which come with the one that lies in a row first. */
static void gguf_dims(struct gguf *g, struct shf_foreign_tensor *x, int64_t *dims)
{
	uint32_t n = gguf_u32(g);

	if (g->rc == 0 && n > GGUF_DIMS_MAX)
		gguf_bad(g, "a tensor has more than 8 dimensions");
	for (uint32_t d = 0; d < n && g->rc == 0; d++) {
		uint64_t v = gguf_u64(g);

		if (v > INT64_MAX)
			gguf_bad(g, "a tensor has a dimension beyond 63 bits");
		dims[n - 1 - d] = (int64_t)v;
	}
	x->ndim = (int32_t)n;
	x->dims = dims;
}

/* Sets the type of a tensor. One that is quantised has rows of bytes. */
static void set_gguf_type(struct gguf *g, struct shf_foreign_tensor *x, int64_t *dims,
                          uint32_t type)
{
	const struct gguf_type *t = type < TYPES ? &gguf_types[type] : NULL;
	char text[80];
	int last = x->ndim - 1;
	char *own;

	if (!t || !t->name) {
		snprintf(text, sizeof(text), "a tensor is of type %u, which is not known", type);
		gguf_bad(g, text);
		return;
	}
	x->dtype = t->dtype ? t->dtype : SHEAF_U8;
	if (t->dtype)
		return;
	if (last < 0 || dims[last] % t->items || dims[last] > INT64_MAX / 512) {
		gguf_bad(g, "a quantised tensor has rows that are not whole blocks");
		return;
	}
	dims[last] = dims[last] / t->items * t->bytes;
	snprintf(text, sizeof(text), "is quantised (%s), which is listed as bytes and is not read",
	         t->name);
	own = shf_arena_strdup(&g->f->arena, text, strlen(text));
	if (!own)
		gguf_no_memory(g);
	x->refused = own;
}

/* Reads one entry of the list of tensors. Its offset is relative to the data, which begin after the
 * list. */
static void gguf_tensor(struct gguf *g)
{
	int64_t dims[GGUF_DIMS_MAX] = { 0 };
	struct shf_foreign_tensor x = { .n = 1 };
	struct shf_foreign_piece piece = { .file = 0 };
	char name[NAME_MAX_BYTES + 1];
	size_t n = gguf_text(g, name, sizeof(name), true);
	uint32_t type;

	gguf_dims(g, &x, dims);
	type = gguf_u32(g);
	piece.at = gguf_u64(g);
	if (g->rc == 0)
		set_gguf_type(g, &x, dims, type);
	if (g->rc == 0 && (piece.at % g->align))
		gguf_bad(g, "the data of a tensor are not aligned");
	if (g->rc < 0)
		return;
	shf_buf_add(&g->f->pieces, &piece, sizeof(piece));
	g->rc = g->f->pieces.oom ? gguf_no_memory(g)
	      : shf_foreign_add_tensor(g->f, &x, name, n, g->err);
}

/* Lets the pieces begin where the data do, and checks that they are in the file. */
static void place_tensors(struct gguf *g)
{
	struct shf_foreign_piece *p = (struct shf_foreign_piece *)(void *)g->f->pieces.data;
	uint64_t data = (g->at + g->align - 1) / g->align * g->align;
	size_t n;
	const struct shf_foreign_tensor *t = shf_foreign_tensors(g->f, &n);

	for (size_t i = 0; i < n && g->rc == 0; i++) {
		struct shf_foreign_piece *of = &p[t[i].first];

		if (!shf_add64(&of->at, of->at, data) || of->at > g->r.bytes ||
		    t[i].bytes > g->r.bytes - of->at)
			g->rc = shf_fail(g->err, SHEAF_EFORMAT, "%s: tensor %.*s of %" PRIu64
			                 " bytes at byte %" PRIu64 " is beyond the end of the file",
			                 g->r.where, shf_name_show(t[i].name), t[i].name,
			                 t[i].bytes, of->at);
	}
}

static int is_gguf(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	uint8_t head[8];
	int rc;

	if (r->bytes < sizeof(head))
		return 0;
	rc = shf_region_read(r, head, sizeof(head), 0, err);
	*why = "the magic number of GGUF";
	/* A safetensors file with a header of more than 1 GiB may begin with the same bytes, but
	 * such a header is not read. */
	return rc < 0 ? rc : shf_get32(head) == MAGIC && shf_get32(head + 4) != 0;
}

static int open_gguf(struct shf_foreign *f, struct sheaf_error *err)
{
	struct gguf g = { .f = f, .err = err, .align = 32 };
	uint64_t tensors, values;
	uint32_t version;

	g.rc = shf_foreign_region(f, 0, &g.r, err);
	g.window = shf_alloc(WINDOW, 1);
	if (!g.window && g.rc == 0)
		gguf_no_memory(&g);
	gguf_u32(&g);
	version = gguf_u32(&g);
	if (g.rc == 0 && version >= 1u << 16)
		gguf_bad(&g, "a big-endian file, which sheaf does not read");
	if (g.rc == 0 && version != 2 && version != 3)
		gguf_bad(&g, "is of a version that is not read; 2 and 3 are");
	tensors = gguf_u64(&g);
	values = gguf_u64(&g);
	for (uint64_t i = 0; i < values && g.rc == 0; i++)
		gguf_value(&g);
	if (g.rc == 0 && (!g.align || g.align & (g.align - 1) || g.align > 1u << 20))
		gguf_bad(&g, "its alignment is not a power of two");
	for (uint64_t i = 0; i < tensors && g.rc == 0; i++)
		gguf_tensor(&g);
	if (g.rc == 0)
		place_tensors(&g);
	if (g.rc == 0)
		g.rc = shf_foreign_check_names(f, err);
	shf_free(g.window);
	return g.rc;
}

const struct shf_foreign_format shf_gguf = {
	.name = "gguf",
	.is_file = is_gguf,
	.open = open_gguf,
};
