/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the safetensors header. Its bytes are a function of the tensors alone, so equal states
 * give equal files. */
#include "safetensors.h"

#include <inttypes.h>
#include <string.h>

#include "decimal.h"
#include "dtype.h"
#include "err.h"
#include "json.h"
#include "valid.h"

#define ALIGN 4096                      /* 8 + N is a multiple of this */

/* Refuses a name that occurs twice. The names are sorted in a copy, because the tensors must stay
 * in the order of the file. */
static int check_tensors_unique(const struct shf_st_tensor *tensors, size_t n,
                                struct sheaf_error *err)
{
	const char **names = shf_alloc(n, sizeof(*names)), *twice;
	int rc = 0;

	if (!names)
		return shf_fail(err, SHEAF_ENOMEM, "out of memory for the names of a header");
	for (size_t i = 0; i < n; i++)
		names[i] = tensors[i].name;
	twice = shf_names_twice(names, n);
	if (twice)
		rc = shf_fail(err, SHEAF_EINVAL, "tensor \"%.*s\" twice in one file",
			      shf_name_show(twice), twice);
	shf_free(names);
	return rc;
}

/* Refuses a tensor that our own reader would refuse at offset pos: a bad name, a size that does not
 * match dtype and shape, a gap or an overlap. The rules are those of safetensors.c, so that no bug
 * in a caller can publish a file that cannot be loaded. */
static int check_tensor(const struct shf_st_tensor *t, uint64_t pos, struct sheaf_error *err)
{
	uint64_t items = 1, bytes;
	bool empty = false, fits = t->ndim >= 0 && t->ndim <= SHEAF_DIMS_MAX && shf_dtype(t->dtype);

	if (!t->name || !shf_name_is_valid(t->name, strlen(t->name)))
		return shf_fail(err, SHEAF_EINVAL, "tensor name \"%.*s\" is not valid",
				t->name ? shf_name_show(t->name) : 0, t->name ? t->name : "");
	for (int32_t d = 0; fits && d < t->ndim; d++) {
		if (!t->shape[d])
			empty = true;
		else
			fits = t->shape[d] > 0 &&
			       shf_mul64(&items, items, (uint64_t)t->shape[d]) &&
			       items <= INT64_MAX;
	}
	fits = fits && shf_dtype_bytes(&bytes, t->dtype, empty ? 0 : items) && bytes == t->bytes;
	if (!fits)
		return shf_fail(err, SHEAF_EINVAL,
				"tensor \"%.*s\": %" PRIu64 " bytes do not fit its dtype and shape",
				shf_name_show(t->name), t->name, t->bytes);
	if (t->off != pos || t->bytes > UINT64_MAX - pos)
		return shf_fail(err, SHEAF_EINVAL, "tensor \"%.*s\": at byte %" PRIu64
				" of the data, want %" PRIu64, shf_name_show(t->name), t->name,
				t->off, pos);
	return 0;
}

/* Writes a comma and an entry. There always is a member before the entry, because __metadata__ is
 * the first member of the object. */
static void add_tensor_entry(struct shf_buf *out, const struct shf_st_tensor *t)
{
	shf_buf_adds(out, ",");
	shf_json_put(out, t->name, strlen(t->name));
	shf_buf_adds(out, ":{\"dtype\":\"");
	shf_buf_adds(out, shf_dtype(t->dtype)->name);
	shf_buf_adds(out, "\",\"shape\":[");
	for (int32_t d = 0; d < t->ndim; d++) {
		if (d > 0)
			shf_buf_adds(out, ",");
		shf_decimal_add(out, (uint64_t)t->shape[d]); /* checked: not negative */
	}
	shf_buf_adds(out, "],\"data_offsets\":[");
	shf_decimal_add(out, t->off);
	shf_buf_adds(out, ",");
	shf_decimal_add(out, t->off + t->bytes);
	shf_buf_adds(out, "]}");
}

/* The length N is unknown until the entries are written, so its 8 bytes are filled in last. Padding
 * makes 8 + N a multiple of 4096: the data section then begins on a page, and so do the tensors
 * that placement puts first.
 *
 * All tensors are checked before the first byte is written. A header beyond the format's limit of
 * 100 MB is removed from out again; placement begins a new file long before that (place.c). */
int shf_st_write_as(struct shf_buf *out, const struct shf_st_tensor *tensors, size_t n,
		    const char *format, struct sheaf_error *err)
{
	size_t start = out->len, len;
	uint64_t pos = 0;
	uint8_t *pad;
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = check_tensor(&tensors[i], pos, err);
		pos += tensors[i].bytes;
	}
	if (rc == 0)
		rc = check_tensors_unique(tensors, n, err);
	if (rc < 0)
		return rc;
	shf_buf_u64(out, 0);
	shf_buf_addf(out, "{\"__metadata__\":{\"format\":\"%s\"}", format);
	for (size_t i = 0; i < n; i++)
		add_tensor_entry(out, &tensors[i]);
	shf_buf_adds(out, "}");
	len = out->len - start;
	pad = shf_buf_extend(out, (ALIGN - len % ALIGN) % ALIGN);
	if (out->oom || !pad)
		return shf_fail(err, SHEAF_ENOMEM, "out of memory for a header of %zu tensors", n);
	memset(out->data + start + len, ' ', out->len - start - len);
	len = out->len - start;
	if (len - 8 > SHF_ST_HEADER_MAX) {
		out->len = start;
		return shf_fail(err, SHEAF_EINVAL, "header of %zu bytes, at most %" PRIu64 " are "
				"allowed; lower opts.file_bytes_max for more files, or shorten "
				"names", len - 8, SHF_ST_HEADER_MAX);
	}
	shf_put64(out->data + start, len - 8);
	return 0;
}

int shf_st_write(struct shf_buf *out, const struct shf_st_tensor *tensors, size_t n,
		 struct sheaf_error *err)
{
	return shf_st_write_as(out, tensors, n, "pt", err);
}

/* Returns the bytes of a name between its quotes. A valid name holds no control bytes, so only
 * the quote and the backslash grow, to two bytes. Counting 6 for control bytes keeps the result
 * an upper bound for any text. */
static uint64_t escaped_bytes(const char *s)
{
	uint64_t n = 0;

	for (; *s; s++) {
		uint8_t c = (uint8_t)*s;

		if (c == '"' || c == '\\')
			n += 2;
		else
			n += c < 0x20 ? 6 : 1;
	}
	return n;
}

/* Returns how many decimal digits v has, which must not be negative. */
static uint64_t digits_of(int64_t v)
{
	uint64_t n = 1;

	for (; v >= 10; v /= 10)
		n++;
	return n;
}

/* An upper bound of the bytes of an entry. Placement needs it before offsets exist, so it
 * counts 20 digits for each offset, as many as a number of 64 bits can have. The formula is
 * part of the format (doc/format.md, section 4): it decides where files are cut, so a change of
 * it moves tensors to other files. */
uint64_t shf_st_entry_bound(const struct shf_st_tensor *t)
{
	/* The fixed text of an entry with the comma after it, and two offsets of 20 digits. */
	static const char fixed[] = "\"\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[,]},";
	const struct shf_dtype *d = shf_dtype(t->dtype);
	uint64_t n = sizeof(fixed) - 1 + 2 * 20 + escaped_bytes(t->name);

	if (d)
		n += strlen(d->name);
	for (int32_t i = 0; i < t->ndim && i < SHEAF_DIMS_MAX; i++)
		n += digits_of(t->shape[i]) + (i > 0);
	return n;
}
