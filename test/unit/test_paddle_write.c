/* SPDX-License-Identifier: Apache-2.0 */
/* paddle.save files, as lib/export writes them, are read by lib/foreign. Some are too large to
 * be stored, so a read of such a file gives the bytes that were written beside the tensors, and
 * zeros for the tensors. Each array must be at the offset that it was given, a multiple of 8. */
#include "t.h"

#include "numpy_array.h"
#include "paddle_write.h"

static struct shf_buf header;           /* all bytes but those of the tensor */
static struct shf_lt_tensor tensor;
static struct shf_file_ops ops;
static struct shf_sys sys;

static int64_t read_made(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	uint64_t end = tensor.off + tensor.bytes;
	uint8_t *to = buf;

	(void)arg;
	(void)fd;
	for (size_t i = 0; i < n; i++) {
		uint64_t at = off + i;

		to[i] = at < tensor.off ? header.data[at]
		      : at < end ? 0 : header.data[at - tensor.bytes];
	}
	return (int64_t)n;
}

/* Writes {<name>: the tensor, "two": [2.5]}, and reads it. */
static void is_found(int32_t dtype, int64_t rows, uint64_t bytes, size_t name)
{
	static const char names[] = "a name of some length";
	struct shf_region r = { &sys, 3, 0, 0, "f", NULL, false };
	struct shf_numpy_array a;
	struct shf_paddle_out p;
	struct shf_pickle read = { 0 };
	struct sheaf_error err;
	const char *why;
	float two = 0;

	tensor = (struct shf_lt_tensor){ .dtype = dtype, .bytes = bytes,
		.items = { .ndim = 2, .dim = { rows, 4 } } };
	shf_paddle_begin(&p);
	shf_pkw_op(&p.pickle, SHF_PKW_EMPTY_DICT);
	shf_pkw_op(&p.pickle, SHF_PKW_MARK);
	shf_pkw_text(&p.pickle, names, name);
	shf_paddle_put_tensor(&p, &tensor);
	shf_pkw_text(&p.pickle, "two", 3);
	shf_paddle_put_float(&p, 2.5f);
	shf_pkw_op(&p.pickle, SHF_PKW_SETITEMS);
	r.bytes = shf_paddle_end(&p, &header);
	CHECK(!header.oom);
	CHECK_INT(r.bytes, header.len + bytes);
	CHECK_INT(tensor.off % 8, 0);
	ops = *shf_sys_real()->file.ops;
	ops.pread = read_made;
	sys = *shf_sys_real();
	sys.file.ops = &ops;
	CHECK_RC(shf_pickle_read_file(&read, &r, NULL, &err), 0, &err);
	CHECK_INT(read.root->n, 2);
	CHECK_INT(read.root->u.a[0]->n, name);
	CHECK_INT(shf_numpy_array_of(&a, read.root->u.a[1], &why), SHF_TENSOR_READ);
	CHECK_INT(a.dtype, dtype == SHEAF_BF16 ? SHEAF_U16 : dtype);
	CHECK_INT(a.at, tensor.off);
	CHECK_INT(a.bytes, bytes);
	CHECK_INT(a.dims->u.a[0]->u.i, rows);
	CHECK_INT(a.dims->u.a[1]->u.i, 4);
	CHECK_INT(shf_numpy_array_of(&a, shf_pk_get(read.root, "two"), &why), SHF_TENSOR_READ);
	CHECK_INT(a.at % 8, 0);
	CHECK_RC(shf_region_read(&r, &two, sizeof(two), a.at, &err), 0, &err);
	CHECK(two == 2.5f);
	shf_pickle_release(&read);
	shf_buf_release(&header);
}

TEST(arrays_lie_at_multiples_of_8_whatever_comes_before_them)
{
	for (size_t name = 1; name <= 16; name++)
		for (int64_t rows = 0; rows < 9; rows++)
			is_found(SHEAF_I8, rows, 4 * (uint64_t)rows, name);
}

TEST(each_type_is_the_one_that_numpy_has)
{
	static const struct { int32_t dtype; uint64_t bytes; } types[] = { { SHEAF_F64, 8 },
		{ SHEAF_F32, 4 }, { SHEAF_F16, 2 }, { SHEAF_BF16, 2 }, { SHEAF_I64, 8 },
		{ SHEAF_I32, 4 }, { SHEAF_I16, 2 }, { SHEAF_I8, 1 }, { SHEAF_U8, 1 },
		{ SHEAF_BOOL, 1 }, { SHEAF_C64, 8 } };

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		CHECK(shf_paddle_has_type(types[i].dtype));
		is_found(types[i].dtype, 3, 12 * types[i].bytes, 5);
	}
	CHECK(!shf_paddle_has_type(SHEAF_U16));
	CHECK(!shf_paddle_has_type(SHEAF_F8_E4M3));
}

TEST(an_array_of_more_than_4_GiB_has_a_length_of_64_bits)
{
	is_found(SHEAF_F32, INT64_C(1) << 28, UINT64_C(1) << 32, 3);
	is_found(SHEAF_F32, (INT64_C(1) << 28) + 1, (UINT64_C(1) << 32) + 16, 4);
	is_found(SHEAF_U8, (INT64_C(1) << 30) - 1, (UINT64_C(1) << 32) - 4, 5);
}
