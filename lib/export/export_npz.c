/* SPDX-License-Identifier: Apache-2.0 */
/* One file as numpy.savez writes it: a zip archive in which each tensor is a file in NumPy's
 * format 1.0. Several families are folders of the archive.
 *
 * Source: numpy/lib/_format_impl.py of NumPy 2.4, and files that NumPy wrote. */
#include <inttypes.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export_place.h"
#include "valid.h"
#include "zip_write.h"

#define NPY_ALIGN 64

static const struct { int32_t dtype; const char *descr; } npz_types[] = {
	{ SHEAF_BOOL, "|b1" }, { SHEAF_U8, "|u1" }, { SHEAF_I8, "|i1" }, { SHEAF_U16, "<u2" },
	{ SHEAF_I16, "<i2" }, { SHEAF_U32, "<u4" }, { SHEAF_I32, "<i4" }, { SHEAF_U64, "<u8" },
	{ SHEAF_I64, "<i8" }, { SHEAF_F16, "<f2" }, { SHEAF_F32, "<f4" }, { SHEAF_F64, "<f8" },
	{ SHEAF_C64, "<c8" },
};

static const char *npz_descr(int32_t dtype)
{
	for (size_t i = 0; i < sizeof(npz_types) / sizeof(npz_types[0]); i++)
		if (npz_types[i].dtype == dtype)
			return npz_types[i].descr;
	return NULL;
}

static bool npz_has_type(int32_t dtype)
{
	return npz_descr(dtype) != NULL;
}

/* Appends the header of a .npy file: magic, version, length, and a Python literal that is padded
 * with spaces and ends in a newline, so that the data begins at a multiple of NPY_ALIGN. With at
 * most 8 dimensions the length fits version 1.0. */
static void npy_header(struct shf_buf *out, const struct shf_lt_tensor *t)
{
	struct shf_buf text = SHF_BUF_INIT;
	size_t all;

	shf_buf_addf(&text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
	             npz_descr(t->dtype));
	for (int d = 0; d < t->items.ndim; d++)
		shf_buf_addf(&text, "%s%" PRId64 "%s", d ? ", " : "", t->items.dim[d],
		             t->items.ndim == 1 ? "," : "");
	shf_buf_adds(&text, "), }");
	all = (10 + text.len + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN;
	while (text.len < all - 11 && !text.oom)
		shf_buf_u8(&text, ' ');
	shf_buf_u8(&text, '\n');
	shf_buf_add(out, "\x93NUMPY\x01\x00", 8);
	shf_buf_u16(out, (uint16_t)text.len);
	shf_buf_add(out, text.data, text.len);
	out->oom |= text.oom;
	shf_buf_release(&text);
}

/* numpy.load looks for a record of exactly the given name first, and only then appends ".npy". So
 * it would return tensor "a" for the name "a.npy". */
static int npz_check_names(const struct shf_layout *l, struct sheaf_error *err)
{
	for (size_t i = 0; i < l->tensors_n; i++) {
		const char *name = l->tensors[i].name;
		size_t n = strlen(name);

		if (n >= 4 && strcmp(name + n - 4, ".npy") == 0)
			return shf_fail(err, SHEAF_EINVAL, "tensor %.*s: its name ends in .npy, "
			                "and numpy.load may give another one for it; use another "
			                "format, such as hf", shf_name_show(name), name);
	}
	return 0;
}

static int npz_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                     const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	struct shf_buf name = SHF_BUF_INIT, header = SHF_BUF_INIT;
	uint32_t *order = shf_export_by_source(plan, step, err);
	int rc = order ? shf_export_files_make(plan, 1, true, err) : SHEAF_ENOMEM;
	struct shf_zip_out z;

	if (rc == 0)
		rc = npz_check_names(l, err);
	if (rc < 0)
		return rc;
	shf_zip_begin(&z, plan, &plan->files[0], 0);
	for (size_t i = 0; i < l->tensors_n && !name.oom && !header.oom; i++) {
		const struct shf_lt_tensor *t = &l->tensors[order[i]];

		shf_buf_reset(&name);
		shf_buf_reset(&header);
		if (!opts->family)
			shf_buf_addf(&name, "%s/", l->families[t->family].name);
		shf_buf_adds(&name, t->name);
		shf_buf_adds(&name, ".npy");
		shf_buf_u8(&name, 0);
		npy_header(&header, t);
		if (!name.oom && !header.oom)
			shf_zip_add_tensor(&z, (const char *)name.data, header.data, header.len,
			                   order[i]);
	}
	plan->files[0].header.oom |= name.oom || header.oom;
	shf_buf_release(&name);
	shf_buf_release(&header);
	return shf_export_only_file_end(plan, shf_zip_end(&z), err);
}

const struct shf_export_format shf_export_npz = {
	.name = "npz",
	.is_file = true,
	.families = true,
	.copies_tied = true,
	.has_type = npz_has_type,
	.place = npz_place,
};
