/* SPDX-License-Identifier: Apache-2.0 */
/* An array is pickled as _reconstruct(ndarray, (0,), b"b"), whose state is set to (version, shape,
 * dtype, is it of Fortran's order, bytes). A dtype is dtype("f4", False, True), whose state is set
 * to (version, byte order, and what only structured types have).
 *
 * Source: numpy/core/src/multiarray/methods.c and descriptor.c, and files that NumPy 1 and 2
 * wrote. */
#include "numpy_array.h"
#include <string.h>
#include "dtype.h"
#include "err.h"

static const struct { const char *name; int32_t type; bool pair; } numpy_types[] = {
	{ "f8", SHEAF_F64, false }, { "f4", SHEAF_F32, false }, { "f2", SHEAF_F16, false },
	{ "i8", SHEAF_I64, false }, { "i4", SHEAF_I32, false }, { "i2", SHEAF_I16, false },
	{ "i1", SHEAF_I8, false }, { "u8", SHEAF_U64, false }, { "u4", SHEAF_U32, false },
	{ "u2", SHEAF_U16, false }, { "u1", SHEAF_U8, false }, { "b1", SHEAF_BOOL, false },
	{ "c8", SHEAF_C64, false }, { "c16", SHEAF_F64, true },
};

/* Reads the record of a dtype. Returns false if it is not one of the table, little-endian. */
static bool read_numpy_type(struct shf_numpy_array *a, const struct shf_pk *v, const char **why)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "numpy.dtype");
	const struct shf_pk *name = c ? shf_pk_at(c->args, 0) : NULL, *order;

	order = c ? shf_pk_at(c->state, 1) : NULL;
	*why = "a NumPy array of a type that is not read";
	if (!name || !order)
		return false;
	if (shf_pk_text_is(order, ">")) {
		*why = "a big-endian NumPy array, which sheaf does not read";
		return false;
	}
	for (uint32_t i = 2; i < 5; i++)        /* parts of a structured type */
		if (shf_pk_at(c->state, i) && shf_pk_at(c->state, i)->kind != SHF_PK_NONE)
			return false;
	for (size_t i = 0; i < sizeof(numpy_types) / sizeof(numpy_types[0]); i++)
		if (shf_pk_text_is(name, numpy_types[i].name)) {
			a->dtype = numpy_types[i].type;
			a->pair = numpy_types[i].pair;
			return true;
		}
	return false;
}

/* Finds the bytes in the file. Protocol 2 has no bytes: it has encode(text, "latin1") instead, and
 * bytes() if there are none. */
static bool find_data(struct shf_numpy_array *a, const struct shf_pk *v, uint64_t *bytes)
{
	const struct shf_pk_call *text = shf_pk_call_of(v, "_codecs.encode");
	const struct shf_pk_call *none = shf_pk_call_of(v, "__builtin__.bytes");

	if (v && v->kind == SHF_PK_STORED && !v->u.stored->text) {
		a->at = v->u.stored->at;
		*bytes = v->u.stored->bytes;
		return true;
	}
	if (v && v->kind == SHF_PK_FEW) {
		a->at = shf_pk_few_place(v);
		*bytes = v->n;
		return true;
	}
	if (none && none->args->n == 0 && !none->state) {
		*bytes = 0;
		return true;
	}
	if (!text || text->state || text->args->n != 2 ||
	    !shf_pk_text_is(shf_pk_at(text->args, 1), "latin1") ||
	    !shf_pk_text_place(shf_pk_at(text->args, 0), &a->at, &a->text_bytes))
		return false;
	/* A character has one byte, or two. */
	*bytes = a->text_bytes < a->bytes || (a->text_bytes + 1) / 2 > a->bytes ? a->text_bytes
	                                                                        : a->bytes;
	return true;
}

/* Returns whether the bytes are in the file, and as many as the shape needs. */
static bool read_data(struct shf_numpy_array *a, const struct shf_pk *v, const char **why)
{
	uint64_t want = shf_dtype(a->dtype)->bits / 8u * (a->pair ? 2 : 1), bytes;
	bool empty = false;

	for (int d = 0; d < a->ndim; d++)
		empty |= a->dims->u.a[d]->u.i == 0;
	*why = "a NumPy array whose bytes are not as many as its shape needs";
	for (int d = 0; d < a->ndim && !empty; d++)
		if (!shf_mul64(&want, want, (uint64_t)a->dims->u.a[d]->u.i))
			return false;
	a->bytes = empty ? 0 : want;
	if (!find_data(a, v, &bytes)) {
		*why = "a NumPy array of Python objects, which sheaf does not read";
		return false;
	}
	return a->bytes == bytes;
}

enum shf_tensor_kind shf_numpy_array_of(struct shf_numpy_array *a, const struct shf_pk *v,
                                        const char **why)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "numpy.core.multiarray._reconstruct");
	const struct shf_pk *order;
	int64_t n;

	*a = (struct shf_numpy_array){ 0 };
	c = c ? c : shf_pk_call_of(v, "numpy._core.multiarray._reconstruct");
	if (!c)
		return SHF_TENSOR_NONE;
	*why = "a NumPy array of unknown structure";
	if (!shf_pk_is_global(shf_pk_at(c->args, 0), "numpy.ndarray") || !c->state ||
	    c->state->kind != SHF_PK_TUPLE || c->state->n != 5)
		return SHF_TENSOR_UNREAD;
	a->dims = shf_pk_at(c->state, 1);
	order = shf_pk_at(c->state, 3);
	if (a->dims->kind != SHF_PK_TUPLE || a->dims->n > 64 ||
	    (order->kind != SHF_PK_BOOL && order->kind != SHF_PK_INT))
		return SHF_TENSOR_UNREAD;
	for (uint32_t d = 0; d < a->dims->n; d++)
		if (!shf_pk_int(a->dims->u.a[d], &n) || n < 0)
			return SHF_TENSOR_UNREAD;
	a->ndim = (int32_t)a->dims->n;
	a->fortran = order->u.i != 0;
	if (!read_numpy_type(a, shf_pk_at(c->state, 2), why) ||
	    !read_data(a, shf_pk_at(c->state, 4), why))
		return SHF_TENSOR_UNREAD;
	return SHF_TENSOR_READ;
}

int shf_numpy_shown(struct shf_foreign *f, const struct shf_numpy_array *a, uint32_t file,
                    struct shf_foreign_tensor *x, struct shf_foreign_piece *piece,
                    struct sheaf_error *err)
{
	int64_t *dims = shf_foreign_numbers(f, (size_t)a->ndim + 1);
	int64_t *stride = a->fortran ? shf_foreign_numbers(f, (size_t)a->ndim + 1) : NULL;
	int64_t bytes = shf_dtype(a->dtype)->bits / 8 * (a->pair ? 2 : 1);
	struct shf_foreign_text *text = NULL;

	if (a->text_bytes)
		text = shf_arena_alloc(&f->arena, 1, sizeof(*text));
	if (!dims || (a->fortran && !stride) || (a->text_bytes && !text))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
		                f->path);
	*x = (struct shf_foreign_tensor){ .dtype = a->dtype, .ndim = a->ndim, .dims = dims,
		.n = 1 };
	*piece = (struct shf_foreign_piece){ .file = file, .at = a->at, .stride = stride,
		.text = text };
	if (text) {
		*text = (struct shf_foreign_text){ .at = a->at, .bytes = a->text_bytes,
			.decoded = a->bytes };
		piece->at = 0;
	}
	for (int d = 0; d < a->ndim; d++) {
		dims[d] = a->dims->u.a[d]->u.i;
		if (stride)
			stride[d] = a->bytes ? bytes : 0;
		bytes *= a->bytes ? dims[d] : 1;
	}
	if (a->pair && stride)
		stride[x->ndim] = shf_dtype(a->dtype)->bits / 8;
	if (a->pair)
		dims[x->ndim++] = 2;
	return 0;
}
