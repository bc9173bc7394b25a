/* SPDX-License-Identifier: Apache-2.0 */
/* An array is pickled as _reconstruct(ndarray, (0,), b"b"), whose state is set to (version, shape,
 * dtype, is it of Fortran's order, bytes). A dtype is dtype("f4", False, True), whose state is set
 * to (version, byte order, and what only structured types have). NumPy 1 and 2 know _reconstruct by
 * the name that it has here; not all versions of NumPy 1 know that of NumPy 2. NumPy lacks BF16:
 * Paddle takes 16-bit integers without a sign, which it lacks, for it.
 *
 * Source: python/paddle/framework/io.py of Paddle 3.3, and files that it wrote. */
#include "paddle_write.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "paddle_tensor.h"
#include "valid.h"

static const struct { int32_t dtype; const char *descr, *name; } paddle_types[] = {
	{ SHEAF_F64, "f8", "float64" }, { SHEAF_F32, "f4", "float32" },
	{ SHEAF_F16, "f2", "float16" }, { SHEAF_BF16, "u2", "bfloat16" },
	{ SHEAF_I64, "i8", "int64" }, { SHEAF_I32, "i4", "int32" }, { SHEAF_I16, "i2", "int16" },
	{ SHEAF_I8, "i1", "int8" }, { SHEAF_U8, "u1", "uint8" }, { SHEAF_BOOL, "b1", "bool" },
	{ SHEAF_C64, "c8", "complex64" },
};
#define PADDLE_TYPES (sizeof(paddle_types) / sizeof(paddle_types[0]))

const char *shf_paddle_name(int32_t dtype)
{
	for (size_t i = 0; i < PADDLE_TYPES; i++)
		if (paddle_types[i].dtype == dtype)
			return paddle_types[i].name;
	return NULL;
}

bool shf_paddle_has_type(int32_t dtype)
{
	return shf_paddle_name(dtype) != NULL;
}

int shf_paddle_check_names(const struct shf_layout *l, struct sheaf_error *err)
{
	for (size_t i = 0; i < l->tensors_n; i++) {
		const char *name = l->tensors[i].name;

		if (strcmp(name, SHF_PADDLE_NAMES) == 0 || strcmp(name, SHF_PADDLE_PARTS) == 0)
			return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: paddle.load takes what "
			                "has this name for something else; use another format, "
			                "such as hf", shf_name_show(name), name);
	}
	return 0;
}

/* Puts the record of a dtype. */
static void put_dtype(struct shf_pkw *w, int32_t dtype)
{
	const char *descr = "";

	for (size_t i = 0; i < PADDLE_TYPES; i++)
		if (paddle_types[i].dtype == dtype)
			descr = paddle_types[i].descr;
	if (shf_pkw_recall(w, "dtype", descr))
		return;
	shf_pkw_global(w, "numpy", "dtype");
	shf_pkw_known_text(w, descr);
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	shf_pkw_op(w, SHF_PKW_NEWTRUE);
	shf_pkw_op(w, SHF_PKW_TUPLE3);
	shf_pkw_op(w, SHF_PKW_REDUCE);
	shf_pkw_op(w, SHF_PKW_MARK);
	shf_pkw_int(w, 3);
	shf_pkw_known_text(w, shf_dtype(dtype)->bits > 8 ? "<" : "|");
	for (int i = 0; i < 3; i++)
		shf_pkw_op(w, SHF_PKW_NONE);
	for (int i = 0; i < 2; i++)
		shf_buf_add(&w->out, "J\xff\xff\xff\xff", 5);   /* BININT -1 */
	shf_pkw_int(w, 0);
	shf_pkw_op(w, SHF_PKW_TUPLE);
	shf_pkw_op(w, SHF_PKW_BUILD);
	shf_pkw_keep(w, "dtype", descr);
}

/* Puts opcodes that change nothing, so that what follows `more` bytes later lies at a multiple of
 * 8: NONE POP has 2 bytes, BININT1 0 POP has 3. */
static void put_padding(struct shf_paddle_out *p, uint64_t more)
{
	struct shf_pkw *w = &p->pickle;
	uint64_t pad = (8 - (w->out.len + p->tensors + more) % 8) % 8;

	pad += pad == 1 ? 8 : 0;
	if (pad % 2) {
		shf_pkw_int(w, 0);
		shf_pkw_op(w, SHF_PKW_POP);
		pad -= 3;
	}
	for (; pad; pad -= 2) {
		shf_pkw_op(w, SHF_PKW_NONE);
		shf_pkw_op(w, SHF_PKW_POP);
	}
}

/* Puts an array up to its bytes, of which there are n. */
static void array_begin(struct shf_paddle_out *p, int32_t dtype, const int64_t *dims, int ndim,
                        uint64_t n)
{
	struct shf_pkw *w = &p->pickle;

	shf_pkw_global(w, "numpy.core.multiarray", "_reconstruct");
	shf_pkw_global(w, "numpy", "ndarray");
	shf_pkw_int(w, 0);
	shf_pkw_op(w, SHF_PKW_TUPLE1);
	shf_buf_add(&w->out, "C\1b", 3);        /* SHORT_BINBYTES */
	shf_pkw_op(w, SHF_PKW_TUPLE3);
	shf_pkw_op(w, SHF_PKW_REDUCE);
	shf_pkw_op(w, SHF_PKW_MARK);
	shf_pkw_int(w, 1);
	shf_pkw_ints(w, dims, ndim);
	put_dtype(w, dtype);
	shf_pkw_op(w, SHF_PKW_NEWFALSE);
	put_padding(p, n > UINT32_MAX ? 9 : 5);
	if (n > UINT32_MAX) {
		shf_pkw_op(w, '\x8e');          /* BINBYTES8 */
		shf_buf_u64(&w->out, n);
	} else {
		shf_pkw_op(w, 'B');             /* BINBYTES */
		shf_buf_u32(&w->out, (uint32_t)n);
	}
}

static void array_end(struct shf_paddle_out *p)
{
	shf_pkw_op(&p->pickle, SHF_PKW_TUPLE);
	shf_pkw_op(&p->pickle, SHF_PKW_BUILD);
}

void shf_paddle_begin(struct shf_paddle_out *p)
{
	p->tensors = 0;
	shf_pkw_begin(&p->pickle, 4);
}

void shf_paddle_put_tensor(struct shf_paddle_out *p, struct shf_lt_tensor *t)
{
	array_begin(p, t->dtype, t->items.dim, t->items.ndim, t->bytes);
	t->off = p->pickle.out.len + p->tensors;
	p->tensors += t->bytes;
	array_end(p);
}

void shf_paddle_put_float(struct shf_paddle_out *p, float x)
{
	static const int64_t one = 1;

	array_begin(p, SHEAF_F32, &one, 1, sizeof(x));
	shf_buf_add(&p->pickle.out, &x, sizeof(x));
	array_end(p);
}

uint64_t shf_paddle_end(struct shf_paddle_out *p, struct shf_buf *out)
{
	shf_pkw_end(&p->pickle);
	*out = p->pickle.out;
	return out->len + p->tensors;
}
