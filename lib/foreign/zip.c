/* SPDX-License-Identifier: Apache-2.0 */
/* Source: APPNOTE.TXT 6.3.10 of PKWARE, and archives that torch 2.13 wrote: local headers have no
 * sizes there, so only the central directory is used for them. All numbers are little-endian.
 *
 * Invariant: nothing is allocated before its size was compared with the size of the archive. */
#include "zip.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "valid.h"
#include "json.h"

#define END_BYTES 22            /* end record without a comment */
#define END64_BYTES 56          /* zip64 end record of version 1 */
#define LOCATOR_BYTES 20        /* has the offset of the zip64 end record */
#define ENTRY_BYTES 46          /* of the directory, without its texts */
#define LOCAL_BYTES 30          /* local header, without its texts */
#define METHOD_DEFLATE 8
#define DIRECTORY_MAX (UINT64_C(1) << 30)
#define ZIP_NAME_MAX 4096

static int zip_bad(const struct shf_region *r, uint64_t at, const char *why,
                   struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EFORMAT, "%s: zip archive, byte %" PRIu64 ": %s", r->where, at,
	                why);
}

struct zip_end {
	uint64_t records, bytes, at;    /* of the directory */
	uint64_t limit;                 /* where the end records begin */
};

/* Reads the zip64 end record, if its locator stands before the end record. */
static int read_end64(struct zip_end *e, const struct shf_region *r, struct sheaf_error *err)
{
	uint64_t end = r->bytes - END_BYTES, at;
	uint8_t b[END64_BYTES];
	int rc;

	if (end < LOCATOR_BYTES + END64_BYTES)
		return 0;
	rc = shf_region_read(r, b, LOCATOR_BYTES, end - LOCATOR_BYTES, err);
	if (rc < 0 || shf_get32(b) != 0x07064b50)
		return rc;
	at = end - LOCATOR_BYTES - END64_BYTES;
	if (shf_get64(b + 8) != at || shf_get32(b + 4))
		return zip_bad(r, end - LOCATOR_BYTES, "its zip64 end record is not where it "
		               "should be", err);
	rc = shf_region_read(r, b, END64_BYTES, at, err);
	if (rc < 0)
		return rc;
	if (shf_get32(b) != 0x06064b50 || shf_get64(b + 4) != END64_BYTES - 12)
		return zip_bad(r, at, "it has no zip64 end record of version 1", err);
	if (shf_get32(b + 16) || shf_get32(b + 20) || shf_get64(b + 24) != shf_get64(b + 32))
		return zip_bad(r, at, "it has several disks", err);
	*e = (struct zip_end){ shf_get64(b + 32), shf_get64(b + 40), shf_get64(b + 48), at };
	return 0;
}

/* Reads the end records, and checks that the directory ends where they begin. */
static int read_end(struct zip_end *e, const struct shf_region *r, struct sheaf_error *err)
{
	uint8_t b[END_BYTES];
	uint64_t at;
	int rc;

	if (r->bytes < END_BYTES)
		return zip_bad(r, r->bytes, "it ends before its end record", err);
	at = r->bytes - END_BYTES;
	rc = shf_region_read(r, b, END_BYTES, at, err);
	if (rc < 0)
		return rc;
	if (shf_get32(b) != 0x06054b50 || shf_get16(b + 20))
		return zip_bad(r, at, "it does not end with its end record: it is cut, still being "
		               "written, or has a comment", err);
	if (shf_get16(b + 4) || shf_get16(b + 6) || shf_get16(b + 8) != shf_get16(b + 10))
		return zip_bad(r, at, "it has several disks", err);
	*e = (struct zip_end){ shf_get16(b + 10), shf_get32(b + 12), shf_get32(b + 16), at };
	rc = read_end64(e, r, err);
	if (rc < 0)
		return rc;
	if (e->at > e->limit || e->bytes != e->limit - e->at)
		return zip_bad(r, at, "its directory does not end where the end record begins",
			       err);
	if (e->bytes > DIRECTORY_MAX || e->records > e->bytes / ENTRY_BYTES)
		return zip_bad(r, at, "its directory is larger than can be", err);
	return 0;
}

/* Takes the sizes that do not fit 32 bits from the extra field. */
static bool take_zip64(struct shf_zip_record *rec, const uint8_t *p, size_t n)
{
	uint64_t *const wants[] = { &rec->bytes, &rec->packed, &rec->at };

	while (n >= 4) {
		size_t len = shf_get16(p + 2);
		const uint8_t *at = p + 4;

		if (len > n - 4)
			return false;
		for (int i = 0; shf_get16(p) == 1 && i < 3; i++) {
			if (*wants[i] != UINT32_MAX)
				continue;
			if (at + 8 > p + 4 + len)
				return false;
			*wants[i] = shf_get64(at);
			at += 8;
		}
		p += 4 + len;
		n -= 4 + len;
	}
	return true;
}

/* Reads the entry at byte `at` of the directory's bytes [p, p + n). Returns its length, or a
 * negative code. */
static int64_t read_entry(struct shf_zip_record *rec, const uint8_t *p, size_t n, uint64_t at,
                          const struct shf_region *r, struct shf_arena *arena,
                          struct sheaf_error *err)
{
	size_t name_n, extra_n, note_n;

	if (n < ENTRY_BYTES || shf_get32(p) != 0x02014b50)
		return zip_bad(r, at, "its directory has no entry here", err);
	name_n = shf_get16(p + 28);
	extra_n = shf_get16(p + 30);
	note_n = shf_get16(p + 32);
	if (name_n + extra_n + note_n > n - ENTRY_BYTES)
		return zip_bad(r, at, "an entry of its directory is longer than the directory",
			       err);
	if (!name_n || name_n > ZIP_NAME_MAX || memchr(p + ENTRY_BYTES, 0, name_n) ||
	    !shf_utf8_is_valid(p + ENTRY_BYTES, name_n))
		return zip_bad(r, at, "the name of a record is empty, too long, or not a text",
			       err);
	rec->name = shf_name_escape(arena, (const char *)p + ENTRY_BYTES, name_n);
	rec->raw = shf_arena_strdup(arena, (const char *)p + ENTRY_BYTES, name_n);
	if (!rec->name || !rec->raw)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its directory", r->where);
	rec->crc = shf_get32(p + 16);
	rec->packed = shf_get32(p + 20);
	rec->bytes = shf_get32(p + 24);
	rec->at = shf_get32(p + 42);
	if (!take_zip64(rec, p + ENTRY_BYTES + name_n, extra_n))
		return zip_bad(r, at, "an entry has a broken extra field", err);
	if (shf_get16(p + 8) & 1)
		return shf_fail(err, SHEAF_EFORMAT, "%s: record %.*s is encrypted, which sheaf "
		                "does not read", r->where, shf_name_show(rec->name), rec->name);
	rec->deflated = shf_get16(p + 10) == METHOD_DEFLATE;
	if ((shf_get16(p + 10) && !rec->deflated) || (!rec->deflated && rec->packed != rec->bytes))
		return shf_fail(err, SHEAF_EFORMAT, "%s: record %.*s is compressed (method %u), "
		                "which sheaf does not read", r->where, shf_name_show(rec->name),
		                rec->name, shf_get16(p + 10));
	return (int64_t)(ENTRY_BYTES + name_n + extra_n + note_n);
}

static int records_by_place(const void *a, const void *b)
{
	const struct shf_zip_record *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

static int records_by_name(const void *a, const void *b)
{
	const struct shf_zip_record *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* Checks that records do not overlap and have different names, and sorts them by name. */
static int check_records(struct shf_zip *z, uint64_t limit, const struct shf_region *r,
                         struct sheaf_error *err)
{
	struct shf_zip_record *a = z->records;

	if (z->n)
		qsort(a, z->n, sizeof(*a), records_by_place);
	for (size_t i = 0; i < z->n; i++) {
		a[i].end = i + 1 < z->n ? a[i + 1].at : limit;
		if (a[i].at > limit || a[i].end - a[i].at < LOCAL_BYTES ||
		    a[i].packed > a[i].end - a[i].at - LOCAL_BYTES)
			return shf_fail(err, SHEAF_EFORMAT, "%s: zip archive: record %.*s of %"
			                PRIu64 " bytes at byte %" PRIu64 " overlaps what follows "
					"it",
			                r->where, shf_name_show(a[i].name), a[i].name, a[i].packed,
			                a[i].at);
	}
	if (z->n)
		qsort(a, z->n, sizeof(*a), records_by_name);
	for (size_t i = 1; i < z->n; i++)
		if (strcmp(a[i - 1].name, a[i].name) == 0)
			return shf_fail(err, SHEAF_EFORMAT,
					"%s: zip archive: has record %.*s twice",
			                r->where, shf_name_show(a[i].name), a[i].name);
	return 0;
}

int shf_zip_open(struct shf_zip *z, const struct shf_region *r, struct shf_arena *arena,
                 struct sheaf_error *err)
{
	struct zip_end e = { 0 };
	uint8_t *dir = NULL;
	uint64_t at = 0;
	int rc = read_end(&e, r, err);

	*z = (struct shf_zip){ 0 };
	if (rc < 0)
		return rc;
	dir = shf_alloc((size_t)e.bytes, 1);
	z->records = shf_arena_alloc(arena, (size_t)e.records + 1, sizeof(*z->records));
	if (!dir || !z->records)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its directory", r->where);
	if (rc == 0)
		rc = shf_region_read(r, dir, e.bytes, e.at, err);
	for (; rc == 0 && z->n < e.records; z->n++) {
		int64_t n = read_entry(&z->records[z->n], dir + at, (size_t)(e.bytes - at),
		                       e.at + at, r, arena, err);

		rc = n < 0 ? (int)n : 0;
		at += n < 0 ? 0 : (uint64_t)n;
	}
	if (rc == 0 && at != e.bytes)
		rc = zip_bad(r, e.at + at, "its directory has more entries than the end record "
		             "says", err);
	shf_free(dir);
	return rc < 0 ? rc : check_records(z, e.at, r, err);
}

const struct shf_zip_record *shf_zip_find(const struct shf_zip *z, const char *name, size_t n)
{
	size_t lo = 0, hi = memchr(name, 0, n) ? 0 : z->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = strncmp(z->records[mid].name, name, n);

		if (c == 0 && z->records[mid].name[n] == '\0')
			return &z->records[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

int shf_zip_packed(const struct shf_zip_record *rec, const struct shf_region *r,
                   struct shf_packed *packed, struct sheaf_error *err)
{
	uint8_t b[LOCAL_BYTES + 256];
	size_t name_n = strlen(rec->raw), n = LOCAL_BYTES + (name_n < 256 ? name_n : 256);
	uint64_t head;
	int rc = shf_region_read(r, b, n, rec->at, err);

	if (rc < 0)
		return rc;
	if (shf_get32(b) != SHF_ZIP_MAGIC || shf_get16(b + 26) != name_n ||
	    memcmp(b + LOCAL_BYTES, rec->raw, n - LOCAL_BYTES))
		return shf_fail(err, SHEAF_EFORMAT, "%s: zip archive, byte %" PRIu64 ": is not the "
		                "beginning of record %.*s", r->where, rec->at,
		                shf_name_show(rec->name), rec->name);
	head = LOCAL_BYTES + name_n + shf_get16(b + 28);
	if (head + rec->packed > rec->end - rec->at)
		return shf_fail(err, SHEAF_EFORMAT, "%s: zip archive: record %.*s overlaps what "
		                "follows it", r->where, shf_name_show(rec->name), rec->name);
	*packed = (struct shf_packed){ .at = rec->at + head, .bytes = rec->packed,
		.decoded = rec->bytes,
		.codec = rec->deflated ? SHF_CODEC_DEFLATE : SHF_CODEC_NONE };
	return 0;
}

int shf_zip_data(const struct shf_zip_record *rec, const struct shf_region *r, uint64_t *data,
                 struct sheaf_error *err)
{
	struct shf_packed packed = { 0 };
	int rc;

	if (rec->deflated)
		return shf_fail(err, SHEAF_EFORMAT, "%s: record %.*s is compressed (method %u), "
		                "which sheaf does not read", r->where, shf_name_show(rec->name),
		                rec->name, METHOD_DEFLATE);
	rc = shf_zip_packed(rec, r, &packed, err);
	if (rc == 0)
		*data = packed.at;
	return rc;
}
