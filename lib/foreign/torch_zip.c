/* SPDX-License-Identifier: Apache-2.0 */
/* Source: torch/serialization.py and caffe2/serialize/inline_container.cc of torch 2.13, and files
 * that torch 2.13 wrote.
 *
 * What torch itself does not check is checked here: that a storage is as long as the pickle says,
 * and that a tensor lies within it. */
#include "torch_zip.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "torch_place.h"
#include "valid.h"

#define PICKLE "data.pkl"

const struct shf_zip_record *shf_torch_zip_pickle(const struct shf_zip *zip)
{
	for (size_t i = 0; i < zip->n; i++) {
		const char *slash = strchr(zip->records[i].name, '/');

		if (slash && strcmp(slash + 1, PICKLE) == 0)
			return &zip->records[i];
	}
	return NULL;
}

/* Finds the record <prefix><dir><key>. *record NULL: there is none. */
static int record_of(const struct shf_torch_zip *z, const char *dir, const char *key, size_t key_n,
                     const struct shf_zip_record **record, struct sheaf_error *err)
{
	struct shf_buf name = SHF_BUF_INIT;
	bool oom;

	*record = NULL;

	shf_buf_add(&name, z->prefix.data, z->prefix.len);
	shf_buf_adds(&name, dir);
	shf_buf_add(&name, key, key_n);
	oom = name.oom;
	if (!oom)
		*record = shf_zip_find(&z->zip, (const char *)name.data, name.len);
	shf_buf_release(&name);
	return oom ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors",
	                      z->region.where) : 0;
}

/* Reads a whole record. */
static int record_read(const struct shf_torch_zip *z, const struct shf_zip_record *record,
                       struct shf_buf *out, struct sheaf_error *err)
{
	uint64_t data;
	int rc = shf_zip_data(record, &z->region, &data, err);

	if (rc < 0)
		return rc;
	if (record->bytes > SHF_PICKLE_MAX)
		return shf_fail(err, SHEAF_EFORMAT, "%s: its pickle has %" PRIu64 " bytes, at most "
		                "1 GiB is read", z->region.where, record->bytes);
	if (record->bytes && !shf_buf_room(out, (size_t)record->bytes))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its pickle", z->region.where);
	return shf_region_read(&z->region, out->data, record->bytes, data, err);
}

/* Refuses archives whose values would be taken for others: of a big-endian machine, or with the
 * code of TorchScript. */
static int check_archive_kind(const struct shf_torch_zip *z, struct sheaf_error *err)
{
	const struct shf_zip_record *order, *code;
	struct shf_buf text = SHF_BUF_INIT;
	int rc = record_of(z, "byteorder", "", 0, &order, err);

	if (rc == 0)
		rc = record_of(z, "constants.pkl", "", 0, &code, err);
	if (rc < 0)
		return rc;
	if (code)
		return shf_fail(err, SHEAF_EFORMAT, "%s: a TorchScript archive, which holds code "
		                "and is not read; save the state_dict of its model",
				z->region.where);
	if (order && order->bytes > 16)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: its record byteorder is not a byte order",
		              z->region.where);
	else if (order)
		rc = record_read(z, order, &text, err);
	if (rc == 0 && order && (text.len != 6 || memcmp(text.data, "little", 6)))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: its byte order is \"%.*s\"; only "
		              "little-endian files are read", z->region.where, (int)text.len,
		              text.len ? (const char *)text.data : "");
	shf_buf_release(&text);
	return rc;
}

/* Refuses archives with a record outside the folder of the pickle, as torch does: it is not clear
 * then which folder is meant. */
static int zip_check_folder(const struct shf_torch_zip *z, struct sheaf_error *err)
{
	for (size_t i = 0; i < z->zip.n; i++) {
		const char *name = z->zip.records[i].name;

		if (strncmp(name, (const char *)z->prefix.data, z->prefix.len))
			return shf_fail(err, SHEAF_EFORMAT, "%s: record %.*s is not in folder %.*s "
			                "with the others, where torch.save puts all",
			                z->region.where, shf_name_show(name), name,
			                (int)(z->prefix.len < 80 ? z->prefix.len : 80),
			                (const char *)z->prefix.data);
	}
	return 0;
}

int shf_torch_zip_open(struct shf_torch_zip *z, const struct shf_region *r,
                       struct sheaf_error *err)
{
	const struct shf_zip_record *record;
	int rc;

	*z = (struct shf_torch_zip){ .region = *r };
	rc = shf_zip_open(&z->zip, r, &z->arena, err);
	if (rc < 0)
		return rc;
	record = shf_torch_zip_pickle(&z->zip);
	if (!record)
		return shf_fail(err, SHEAF_EFORMAT, "%s: a zip archive without data.pkl, so "
		                "torch.save did not write it", r->where);
	shf_buf_add(&z->prefix, record->name, strlen(record->name) - strlen(PICKLE));
	if (z->prefix.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its pickle", r->where);
	rc = zip_check_folder(z, err);
	if (rc == 0)
		rc = check_archive_kind(z, err);
	if (rc == 0)
		rc = record_read(z, record, &z->bytes, err);
	return rc < 0 ? rc : shf_pickle_read(&z->pickle, z->bytes.data, z->bytes.len, r->where,
					     err);
}

void shf_torch_zip_release(struct shf_torch_zip *z)
{
	shf_pickle_release(&z->pickle);
	shf_buf_release(&z->bytes);
	shf_buf_release(&z->prefix);
	shf_arena_release(&z->arena);
}

int shf_torch_zip_place(const struct shf_torch_zip *z, const struct shf_torch_tensor *t,
                        const char *name, uint64_t *at, int64_t *stride, struct sheaf_error *err)
{
	const struct shf_zip_record *record;
	uint64_t data;
	int rc = record_of(z, "data/", t->key->u.s, t->key->n, &record, err);

	if (rc < 0)
		return rc;
	if (!record)
		return shf_fail(err, SHEAF_EFORMAT, "%s: tensor %.*s: its storage %.*s is not in "
		                "the file", z->region.where, shf_name_show(name), name,
		                t->key->n < 40 ? (int)t->key->n : 40, t->key->u.s);
	rc = shf_zip_data(record, &z->region, &data, err);
	if (rc == 0)
		rc = shf_torch_place(t, record->bytes, z->region.where, name, at, stride, err);
	if (rc == 0)
		*at += data;
	return rc;
}
