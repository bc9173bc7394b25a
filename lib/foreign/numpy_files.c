/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy files: .npy, which is one array, and .npz, a zip archive of such files. Arrays of Python
 * objects are pickles. They are not read, and nothing is unpickled.
 *
 * Source: numpy/lib/_format_impl.py and _npyio_impl.py of NumPy 2.4, and files that it wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "npy_head.h"
#include "valid.h"
#include "zip_verify.h"

#define NPY_NAME "array"        /* of the tensor of a .npy file, which has no name of its own */

/* An array that is a file, or a record of an archive. */
struct npy_source {
	struct shf_foreign *f;
	struct shf_region region;
	struct shf_packed packed;       /* the whole array file */
	const char *name;               /* of the record, for sentences; NULL: it is the file */
	struct sheaf_error *err;
};

static int npy_no_memory(const struct npy_source *s)
{
	return shf_fail(s->err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", s->f->path);
}

static int npy_bad(const struct npy_source *s, const char *why)
{
	return s->name ? shf_fail(s->err, SHEAF_EFORMAT, "%s: array %.*s: %s", s->region.where,
	                          shf_name_show(s->name), s->name, why)
	               : shf_fail(s->err, SHEAF_EFORMAT, "%s: %s", s->region.where, why);
}

/* Reads the header of an array. */
static int npy_read_head(const struct npy_source *s, struct shf_npy_head *h)
{
	struct shf_unpacker u;
	uint8_t first[SHF_NPY_FIRST], *head = NULL;
	const char *why;
	size_t n = 0;
	int rc;

	if (s->packed.decoded < SHF_NPY_FIRST)
		return npy_bad(s, "is not an array of NumPy: it is too short");
	shf_unpacker_init(&u, &s->packed, SHF_NPY_HEAD_MAX);
	rc = shf_unpacker_read(&u, &s->region, first, sizeof(first), 0, s->err);
	if (rc == 0) {
		n = shf_npy_head_bytes(first);
		if (!n)
			rc = npy_bad(s, "is not an array of NumPy of the versions 1 to 3 of its "
			             "format");
		else if (n > s->packed.decoded)
			rc = npy_bad(s, "ends inside its header");
	}
	if (rc == 0) {
		head = shf_alloc(n, 1);
		rc = head ? shf_unpacker_read(&u, &s->region, head, n, 0, s->err)
		          : npy_no_memory(s);
	}
	if (rc == 0) {
		why = shf_npy_head_parse(h, head, n);
		rc = why ? npy_bad(s, why) : 0;
	}
	if (rc == 0 && !h->unread && h->bytes != s->packed.decoded - n)
		rc = shf_fail(s->err, SHEAF_EFORMAT, "%s: %s%.*s%shas %" PRIu64 " bytes of items, "
		              "but its shape needs %" PRIu64, s->region.where,
		              s->name ? "array " : "", s->name ? shf_name_show(s->name) : 0,
		              s->name ? s->name : "", s->name ? " " : "", s->packed.decoded - n,
		              h->bytes);
	h->head_bytes = n;
	shf_free(head);
	shf_unpacker_release(&u);
	return rc;
}

/* Adds an array as a tensor of one piece. */
static int npy_add(const struct npy_source *s, struct shf_npy_head *h, const char *name, size_t n)
{
	struct shf_foreign *f = s->f;
	struct shf_foreign_piece piece = { .at = s->packed.at + h->head_bytes };
	struct shf_foreign_tensor x = { .dtype = h->dtype, .ndim = h->ndim, .dims = h->dims,
		.n = 1 };
	int64_t item = shf_dtype(h->dtype)->bits / 8, bytes = item * (h->pair ? 2 : 1);
	int64_t *stride = h->fortran ? shf_foreign_numbers(f, (size_t)h->ndim + 1) : NULL;
	struct shf_packed *packed = NULL;

	if (h->fortran && !stride)
		return npy_no_memory(s);
	for (int d = 0; d < h->ndim && stride; d++) {
		stride[d] = h->bytes ? bytes : 0;
		bytes *= h->bytes ? h->dims[d] : 1;
	}
	if (h->pair && stride)
		stride[x.ndim] = item;
	if (h->pair)
		h->dims[x.ndim++] = 2;
	if (s->packed.codec != SHF_CODEC_NONE) {
		packed = shf_arena_alloc(&f->arena, 1, sizeof(*packed));
		if (!packed)
			return npy_no_memory(s);
		*packed = s->packed;
		piece.at = h->head_bytes;
	}
	piece.stride = stride;
	piece.packed = packed;
	shf_buf_add(&f->pieces, &piece, sizeof(piece));
	return shf_foreign_add_tensor(f, &x, name, n, s->err);
}

/* ---- .npy ---- */

static int is_npy(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	uint8_t head[SHF_NPY_MAGIC_BYTES];
	int rc;

	if (r->bytes < sizeof(head))
		return 0;
	rc = shf_region_read(r, head, sizeof(head), 0, err);
	*why = "the magic number of an array of NumPy";
	return rc < 0 ? rc : memcmp(head, SHF_NPY_MAGIC, sizeof(head)) == 0;
}

static int open_npy(struct shf_foreign *f, struct sheaf_error *err)
{
	struct npy_source s = { .f = f, .err = err };
	struct shf_npy_head h;
	char why[200];
	int rc = shf_foreign_region(f, 0, &s.region, err);

	if (rc < 0)
		return rc;
	s.packed.bytes = s.packed.decoded = s.region.bytes;
	rc = npy_read_head(&s, &h);
	if (rc == 0 && h.unread) {
		snprintf(why, sizeof(why), "is %s, which sheaf does not read", h.unread);
		rc = npy_bad(&s, why);
	}
	return rc < 0 ? rc : npy_add(&s, &h, NPY_NAME, strlen(NPY_NAME));
}

const struct shf_foreign_format shf_npy = {
	.name = "npy",
	.is_file = is_npy,
	.open = open_npy,
};

/* ---- .npz ---- */

static bool is_array(const struct shf_zip_record *record)
{
	size_t n = strlen(record->raw);

	return n > 4 && strcmp(record->raw + n - 4, ".npy") == 0;
}

static int is_npz(const struct shf_region *r, const char **why, struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_zip zip;
	uint8_t head[8];
	int rc;

	if (r->bytes < 8)
		return 0;
	rc = shf_region_read(r, head, 8, 0, err);
	if (rc < 0 || shf_get32(head) != SHF_ZIP_MAGIC)
		return rc;
	rc = shf_zip_open(&zip, r, &arena, err);
	for (size_t i = 0; rc == 0 && i < zip.n; i++)
		rc = is_array(&zip.records[i]);
	*why = "a zip archive with a record .npy";
	shf_arena_release(&arena);
	return rc;
}

/* Adds a record of the archive. */
static int npz_add(struct npy_source *s, const struct shf_zip_record *record)
{
	size_t n = strlen(record->raw);
	struct shf_npy_head h;
	int rc;

	s->name = record->name;
	if (!is_array(record))
		return shf_foreign_note(s->f, s->err, record->raw, n, "a file of %" PRIu64 " bytes,"
		                        " and not an array", record->bytes);
	rc = shf_zip_packed(record, &s->region, &s->packed, s->err);
	if (rc == 0)
		rc = npy_read_head(s, &h);
	if (rc < 0)
		return rc;
	n -= 4;
	s->f->unread_n += h.unread != NULL;
	return h.unread ? shf_foreign_note(s->f, s->err, record->raw, n, "%s, which sheaf does not "
	                                   "read", h.unread)
	                : npy_add(s, &h, record->raw, n);
}

static int open_npz(struct shf_foreign *f, struct sheaf_error *err)
{
	struct npy_source s = { .f = f, .err = err };
	struct shf_arena arena = { 0 };
	struct shf_zip zip = { 0 };
	int rc = shf_foreign_region(f, 0, &s.region, err);

	if (rc == 0)
		rc = shf_zip_open(&zip, &s.region, &arena, err);
	for (size_t i = 0; i < zip.n && rc == 0; i++)
		rc = npz_add(&s, &zip.records[i]);
	shf_arena_release(&arena);
	return rc;
}

const struct shf_foreign_format shf_npz = {
	.name = "npz",
	.is_file = is_npz,
	.open = open_npz,
	.verify = shf_zip_verify_files,
};
