/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file for llama.cpp, of float types: the metadata, the list of tensors, and their data.
 * The tensors must have the names that llama.cpp gives them, which a map makes (llama-hf-gguf).
 *
 * Source: docs/gguf.md of ggml, and files that the converter of llama.cpp wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "export_place.h"
#include "gguf_model.h"
#include "gguf_vocab.h"
#include "valid.h"

#define ALIGN 32
#define FACTORS "rope_freqs.weight"
#define EMBEDDING "token_embd.weight"

static const struct gguf_type { int32_t dtype; uint32_t number, file; } gguf_types[] = {
	{ SHEAF_F32, 0, 0 }, { SHEAF_F16, 1, 1 }, { SHEAF_BF16, 30, 32 },
};

static const struct gguf_type *type_of(int32_t dtype)
{
	for (size_t i = 0; i < sizeof(gguf_types) / sizeof(gguf_types[0]); i++)
		if (gguf_types[i].dtype == dtype)
			return &gguf_types[i];
	return NULL;
}

static bool gguf_has_type(int32_t dtype)
{
	return type_of(dtype) != NULL;
}

/* ---- names ---- */

/* Returns the part of the name after "blk.<N>.", and sets *layer to N. NULL: the name does not
 * begin so. */
static const char *in_layer(const char *name, uint64_t *layer)
{
	char *end;

	if (strncmp(name, "blk.", 4) || name[4] < '0' || name[4] > '9' ||
	    (name[4] == '0' && name[5] != '.'))
		return NULL;
	*layer = strtoull(name + 4, &end, 10);
	return *end == '.' ? end + 1 : NULL;
}

/* Returns whether a list, which ends with NULL, has this name. */
static bool is_part(const char *const *list, const char *name)
{
	while (*list && strcmp(*list, name))
		list++;
	return *list != NULL;
}

static int check_gguf_name(const struct shf_gguf_model *m, const char *name,
                           struct sheaf_error *err)
{
	static const char *const outside[] = { EMBEDDING, "output_norm.weight", "output.weight",
		FACTORS, NULL };
	uint64_t layer = 0;
	const char *part = in_layer(name, &layer);

	if (part ? layer < m->layers && (is_part(m->arch->needs, part) ||
	                                 is_part(m->arch->may, part))
	         : is_part(outside, name))
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: is not a tensor of a model %s of %" PRIu64
	                " layers in llama.cpp; use --map %s if the names are those of Hugging "
	                "Face", shf_name_show(name), name, m->arch->name, m->layers,
	                m->arch->map);
}

static int check_has(const struct shf_layout *l, const char *name, struct sheaf_error *err)
{
	if (shf_layout_find(l, l->families[0].name, name) >= 0)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "there is no tensor %s, which llama.cpp needs", name);
}

/* Checks that the tensors are those of the model. */
static int check_names(const struct shf_layout *l, const struct shf_gguf_model *m,
                       struct sheaf_error *err)
{
	char name[80];
	int rc = 0;

	for (size_t i = 0; i < l->tensors_n && rc == 0; i++)
		rc = check_gguf_name(m, l->tensors[i].name, err);
	for (uint64_t layer = 0; layer < m->layers && rc == 0; layer++)
		for (const char *const *part = m->arch->needs; *part && rc == 0; part++) {
			snprintf(name, sizeof(name), "blk.%" PRIu64 ".%s", layer, *part);
			rc = check_has(l, name, err);
		}
	if (rc == 0)
		rc = check_has(l, EMBEDDING, err);
	if (rc == 0)
		rc = check_has(l, "output_norm.weight", err);
	if (rc == 0 && !m->tied)
		rc = check_has(l, "output.weight", err);
	return rc;
}

/* ---- the file ---- */

/* Makes norms and biases F32, the type in which llama.cpp computes with them. */
static void widen_vectors(struct shf_layout *l)
{
	for (size_t i = 0; i < l->tensors_n; i++) {
		struct shf_lt_tensor *t = &l->tensors[i];

		if (t->items.ndim > 1 || t->dtype == SHEAF_F32)
			continue;
		t->dtype = SHEAF_F32;
		t->bytes *= 2;          /* F16 and BF16 */
	}
}

/* Returns the value of general.file_type: the number of the type that most bytes of matrices
 * have. */
static uint32_t file_type(const struct shf_layout *l)
{
	uint64_t bytes[sizeof(gguf_types) / sizeof(gguf_types[0])] = { 0 };
	size_t best = 0;

	for (size_t i = 0; i < l->tensors_n; i++)
		if (l->tensors[i].items.ndim > 1)
			bytes[type_of(l->tensors[i].dtype) - gguf_types] += l->tensors[i].bytes;
	for (size_t i = 1; i < sizeof(bytes) / sizeof(bytes[0]); i++)
		best = bytes[i] > bytes[best] ? i : best;
	return gguf_types[best].file;
}

static uint64_t aligned(uint64_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Appends an entry of the list of tensors. dims: in row-major order, which GGUF has in reverse. */
static void list_tensor(struct shf_buf *out, const char *name, const int64_t *dims, int ndim,
                        int32_t dtype, uint64_t off)
{
	shf_gguf_text(out, name, strlen(name));
	shf_buf_u32(out, (uint32_t)ndim);
	for (int d = ndim - 1; d >= 0; d--)
		shf_buf_u64(out, (uint64_t)dims[d]);
	shf_buf_u32(out, type_of(dtype)->number);
	shf_buf_u64(out, off);
}

static void pad_to(struct shf_buf *out, uint64_t *at)
{
	for (; *at % ALIGN && !out->oom; ++*at)
		shf_buf_u8(out, 0);
}

/* Appends the list of tensors and all padding, and gives each tensor its offset. The factors of
 * RoPE, which are no tensor of the step, come first. Returns the size of the file. */
static uint64_t place_gguf_tensors(struct shf_buf *out, struct shf_layout *l, const uint32_t *order,
                                   const struct shf_buf *factors)
{
	uint64_t off = aligned(factors->len), at;
	const int64_t pairs = (int64_t)factors->len / 4;

	if (factors->len)
		list_tensor(out, FACTORS, &pairs, 1, SHEAF_F32, 0);
	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[order[i]];

		list_tensor(out, t->name, t->items.dim, t->items.ndim, t->dtype, off);
		off += aligned(t->bytes);
	}
	at = out->len;
	pad_to(out, &at);
	shf_buf_add(out, factors->data, factors->len);
	at += factors->len;
	for (size_t i = 0; i < l->tensors_n; i++) {
		pad_to(out, &at);
		l->tensors[order[i]].off = at;
		at += l->tensors[order[i]].bytes;
	}
	pad_to(out, &at);
	return at;
}

/* Makes the header: magic number, version, numbers of tensors and values, the values. */
static void put_header(struct shf_buf *out, const struct shf_layout *l,
                       const struct shf_gguf_model *m, const struct shf_gguf_vocab *v,
                       uint64_t tensors)
{
	struct shf_gguf_out o = { .values = 0 };

	shf_gguf_model_put(&o, m, (uint32_t)v->rows);
	shf_gguf_put_u32(&o, "general.file_type", file_type(l));
	shf_gguf_vocab_put(&o, v, &m->config);
	shf_buf_adds(out, "GGUF");
	shf_buf_u32(out, 3);
	shf_buf_u64(out, tensors);
	shf_buf_u64(out, o.values);
	shf_buf_add(out, o.bytes.data, o.bytes.len);
	out->oom |= o.bytes.oom;
	shf_buf_release(&o.bytes);
}

/* Returns the rows of the embedding, or a negative code. */
static int64_t rows_of(const struct shf_layout *l, struct sheaf_error *err)
{
	const struct shf_lt_tensor *t =
		&l->tensors[shf_layout_find(l, l->families[0].name, EMBEDDING)];

	if (t->items.ndim == 2 && t->items.dim[0] > 0 && t->items.dim[0] < INT32_MAX)
		return t->items.dim[0];
	return shf_fail(err, SHEAF_EINVAL, "tensor " EMBEDDING ": is not a matrix with a row for "
	                "each token");
}

static int make_gguf_file(struct shf_export_plan *plan, const uint32_t *order,
                          const struct shf_gguf_model *m, const struct shf_gguf_vocab *v,
                          struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	static const struct shf_buf nothing = SHF_BUF_INIT;
	bool has = shf_layout_find(l, l->families[0].name, FACTORS) >= 0;
	const struct shf_buf *factors = has ? &nothing : &m->factors;
	struct shf_buf *out = &plan->files[0].header;

	put_header(out, l, m, v, l->tensors_n + (factors->len > 0));
	return shf_export_only_file_end(plan, place_gguf_tensors(out, l, order, factors), err);
}

static int gguf_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                      const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	struct shf_gguf_model m = { .layers = 0 };
	struct shf_gguf_vocab v = { .rows = 0 };
	int64_t rows = 0;
	uint32_t *order;
	int rc;

	(void)opts;
	widen_vectors(l);
	order = shf_export_by_source(plan, step, err);
	rc = order ? shf_gguf_model_read(&m, step, err) : SHEAF_ENOMEM;
	if (rc == 0)
		rc = check_names(l, &m, err);
	if (rc == 0)
		rows = rows_of(l, err);
	if (rows < 0)
		rc = (int)rows;
	if (rc == 0)
		rc = shf_gguf_vocab_read(&v, step, (size_t)rows, err);
	if (rc == 0)
		rc = shf_export_files_make(plan, 1, false, err);
	if (rc == 0)
		rc = make_gguf_file(plan, order, &m, &v, err);
	shf_gguf_vocab_release(&v);
	shf_gguf_model_release(&m);
	return rc;
}

const struct shf_export_format shf_export_gguf = {
	.name = "gguf",
	.is_file = true,
	.has_type = gguf_has_type,
	.place = gguf_place,
};
