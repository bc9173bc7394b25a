/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.sums, the table of sums and digests: writing, reading, and the checks of a whole table.
 *
 * Invariants: in a table that shf_sums_open accepted, every record lies inside its section, so the
 * accessors need no checks; the layout follows from the four counts alone. */
#include "sums.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "crc64.h"
#include "dtype.h"
#include "err.h"
#include "safetensors.h"
#include "valid.h"

#define MAGIC "SHEAFSUM"
#define VERSION 1
#define BLOCK_BYTES (UINT64_C(1) << 20)
/* The header ends in its own checksum, which covers all before it. */
#define HEAD_CRC_AT 120

/* Moves *at past an array of n items and up to the next multiple of 64. Returns false on overflow:
 * the counts may come from a damaged or hostile header, and an offset that wrapped would point into
 * the table again. */
static bool skip_array(uint64_t *at, uint64_t n, uint64_t size)
{
	uint64_t bytes, end;

	if (!shf_mul64(&bytes, n, size) || !shf_add64(&end, *at, bytes) ||
	    !shf_add64(&end, end, 63))
		return false;
	*at = end & ~UINT64_C(63);
	return true;
}

/* Computes all offsets and the size from the four counts. Writers and readers use the same
 * function, so a reader compares offsets instead of trusting them. The table of page sums is
 * last and covers all before it; `at` is a sum of byte counts below 2^64, so pages * 8 cannot
 * overflow. */
bool shf_sums_layout(struct shf_sums_head *h)
{
	uint64_t at = SHF_SUMS_HEADER, pages;

	h->files_off = at;
	if (!skip_array(&at, h->files_n, SHF_SUMS_FILE))
		return false;
	h->tensors_off = at;
	if (!skip_array(&at, h->tensors_n, SHF_SUMS_TENSOR))
		return false;
	h->blocks_off = at;
	if (!skip_array(&at, h->blocks_n, 8))
		return false;
	h->names_off = at;
	if (!skip_array(&at, h->names_bytes, 1))
		return false;
	h->pages_off = at;
	pages = at / SHF_SUMS_PAGE + (at % SHF_SUMS_PAGE != 0);
	return shf_add64(&h->bytes, at, pages * 8);
}

/* Writes the header field by field, at the offsets of doc/format.md, section 7. The memset
 * clears flags and reserved bytes, which a reader requires to be 0 so that a later version can
 * use them. */
void shf_sums_put_head(uint8_t out[SHF_SUMS_HEADER], const struct shf_sums_head *h)
{
	memset(out, 0, SHF_SUMS_HEADER);
	memcpy(out, MAGIC, 8);
	shf_put32(out + 8, VERSION);
	shf_put64(out + 16, h->files_n);
	shf_put64(out + 24, h->tensors_n);
	shf_put64(out + 32, h->blocks_n);
	shf_put64(out + 40, h->names_bytes);
	shf_put64(out + 48, h->files_off);
	shf_put64(out + 56, h->tensors_off);
	shf_put64(out + 64, h->blocks_off);
	shf_put64(out + 72, h->names_off);
	shf_put64(out + 80, h->pages_off);
	shf_put64(out + HEAD_CRC_AT, shf_crc64(out, HEAD_CRC_AT));
}

void shf_sums_put_file(uint8_t out[SHF_SUMS_FILE], const struct shf_sums_file *f)
{
	shf_put64(out, f->bytes);
	shf_put64(out + 8, f->first_block);
	shf_put64(out + 16, f->first_tensor);
	shf_put32(out + 24, f->tensors_n);
	shf_put32(out + 28, f->header_bytes);
}

void shf_sums_put_tensor(uint8_t out[SHF_SUMS_TENSOR], const struct shf_sums_tensor *t)
{
	shf_put64(out, t->off);
	shf_put64(out + 8, t->bytes);
	shf_put32(out + 16, t->file);
	shf_put32(out + 20, t->name_bytes);
	shf_put64(out + 24, t->name_off);
	shf_put64(out + 32, t->key);
	shf_put64(out + SHF_SUMS_DIGEST, t->digest);
	shf_put16(out + 48, t->dtype);
	out[50] = t->ndim;
	out[51] = 0;
	shf_put32(out + 52, t->slot);
	shf_put64(out + 56, t->items);
}

/* The get functions are the inverses of the put functions above. They check nothing:
 * shf_sums_open() does. */
struct shf_sums_file shf_sums_get_file(const uint8_t in[SHF_SUMS_FILE])
{
	return (struct shf_sums_file){
		.bytes = shf_get64(in),
		.first_block = shf_get64(in + 8),
		.first_tensor = shf_get64(in + 16),
		.tensors_n = shf_get32(in + 24),
		.header_bytes = shf_get32(in + 28),
	};
}

struct shf_sums_tensor shf_sums_get_tensor(const uint8_t in[SHF_SUMS_TENSOR])
{
	return (struct shf_sums_tensor){
		.off = shf_get64(in),
		.bytes = shf_get64(in + 8),
		.file = shf_get32(in + 16),
		.name_bytes = shf_get32(in + 20),
		.name_off = shf_get64(in + 24),
		.key = shf_get64(in + 32),
		.digest = shf_get64(in + SHF_SUMS_DIGEST),
		.dtype = shf_get16(in + 48),
		.ndim = in[50],
		.slot = shf_get32(in + 52),
		.items = shf_get64(in + 56),
	};
}

/* Returns whether all n bytes are 0. */
static bool is_zero(const uint8_t *p, uint64_t n)
{
	while (n && !*p) {
		p++;
		n--;
	}
	return !n;
}

/* Checks only the header, from its 128 bytes and the size of the table. The checksum comes before
 * the version, so that damage is not mistaken for a newer format; the version comes before
 * everything else, since a newer header may differ there.
 *
 * The offsets are recomputed from the counts and the whole structs are compared. memcmp() can do
 * that because all members are uint64_t, so the struct has no padding. Numbers of files and tensors
 * are stored in 32 bits elsewhere in the table, hence the two limits. */
int shf_sums_get_head(struct shf_sums_head *h, const uint8_t *bytes, uint64_t file_bytes,
		      const char *where, struct sheaf_error *err)
{
	struct shf_sums_head got = { 0 }, want;
	uint64_t crc;

	if (file_bytes < SHF_SUMS_HEADER)
		return shf_fail(err, SHEAF_ECORRUPT, "%s: %" PRIu64 " bytes are too short for a "
		                "file of checksums",
				where, file_bytes);
	if (memcmp(bytes, MAGIC, 8))
		return shf_fail(err, SHEAF_ECORRUPT, "%s: does not begin with " MAGIC, where);
	crc = shf_crc64(bytes, HEAD_CRC_AT);
	if (crc != shf_get64(bytes + HEAD_CRC_AT))
		return shf_fail(err, SHEAF_ECORRUPT, "%s: header checksum %016" PRIx64 ", want %016"
				PRIx64, where, crc, shf_get64(bytes + HEAD_CRC_AT));
	if (shf_get32(bytes + 8) > VERSION)
		return shf_fail(err, SHEAF_EFORMAT, "%s: version %" PRIu32 " was written by a "
				"newer sheaf; use that version", where, shf_get32(bytes + 8));
	if (shf_get32(bytes + 8) != VERSION || shf_get32(bytes + 12) || !is_zero(bytes + 88, 32))
		return shf_fail(err, SHEAF_ECORRUPT, "%s: header with version %" PRIu32
				", flags %" PRIx32 " or bytes that are not 0", where,
				shf_get32(bytes + 8), shf_get32(bytes + 12));
	got.files_n = shf_get64(bytes + 16);
	got.tensors_n = shf_get64(bytes + 24);
	got.blocks_n = shf_get64(bytes + 32);
	got.names_bytes = shf_get64(bytes + 40);
	got.files_off = shf_get64(bytes + 48);
	got.tensors_off = shf_get64(bytes + 56);
	got.blocks_off = shf_get64(bytes + 64);
	got.names_off = shf_get64(bytes + 72);
	got.pages_off = shf_get64(bytes + 80);
	got.bytes = file_bytes;
	want = got;
	if (got.files_n > UINT32_MAX || got.tensors_n > UINT32_MAX || !shf_sums_layout(&want) ||
	    memcmp(&want, &got, sizeof(want)))
		return shf_fail(err, SHEAF_ECORRUPT, "%s: %" PRIu64
				" bytes do not fit the counts and offsets in its header", where,
				file_bytes);
	*h = got;
	return 0;
}

/* The least bytes of an entry in a header: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]} has
 * 49. */
#define ENTRY_MIN 40
#define FAMILY_MAX 34                   /* bytes of a family, with its NUL and that of the name */

/* The number of blocks follows exactly from the sizes of the files. Tensors and names are bounded
 * from above: each tensor has an entry in a header, a header is no larger than its file or than the
 * format allows, and an entry has at least ENTRY_MIN bytes. Names are in the headers too, where
 * escapes can only lengthen them, so only families and NULs come on top. */
bool shf_sums_is_likely(const struct shf_sums_head *h, const struct shf_manifest *m)
{
	uint64_t blocks = 0, text = 0;

	for (size_t i = 0; i < m->files_n; i++) {
		uint64_t n = m->files[i].bytes, max = 8 + SHF_ST_HEADER_MAX;

		blocks += n / BLOCK_BYTES + (n % BLOCK_BYTES != 0);
		text += n < max ? n : max;
	}
	return h->files_n == m->files_n && h->blocks_n == blocks &&
	       h->tensors_n <= text / ENTRY_MIN &&
	       h->names_bytes <= text + h->tensors_n * FAMILY_MAX;
}

/* The table was checked by shf_sums_open(), so only the index from the caller is left to assert. */
struct shf_sums_file shf_sums_file(const struct shf_sums *s, uint64_t i)
{
	assert(i < s->head.files_n);
	return shf_sums_get_file(s->bytes + s->head.files_off + i * SHF_SUMS_FILE);
}

struct shf_sums_tensor shf_sums_tensor(const struct shf_sums *s, uint64_t i)
{
	assert(i < s->head.tensors_n);
	return shf_sums_get_tensor(s->bytes + s->head.tensors_off + i * SHF_SUMS_TENSOR);
}

uint64_t shf_sums_block(const struct shf_sums *s, uint64_t i)
{
	assert(i < s->head.blocks_n);
	return shf_get64(s->bytes + s->head.blocks_off + i * 8);
}

const char *shf_sums_family(const struct shf_sums *s, const struct shf_sums_tensor *t)
{
	return (const char *)s->bytes + s->head.names_off + t->name_off;
}

/* The names section has family, NUL, name, NUL for each tensor. */
const char *shf_sums_name(const struct shf_sums *s, const struct shf_sums_tensor *t)
{
	const char *family = shf_sums_family(s, t);

	return family + strlen(family) + 1;
}

/* The key is the checksum of family, NUL, name: strlen() + 1 includes the NUL, so that ("ab", "c")
 * and ("a", "bc") differ. */
uint64_t shf_sums_key(const char *family, const char *name)
{
	uint64_t crc = shf_crc64(family, strlen(family) + 1);

	return shf_crc64_more(crc, name, strlen(name));
}

/* Returns slot i of the permutation. It is stored in the record of tensor i, but is not about that
 * tensor. slot() and key() read single fields, because the binary search needs no others. */
static uint32_t slot(const struct shf_sums *s, uint64_t i)
{
	return shf_get32(s->bytes + s->head.tensors_off + i * SHF_SUMS_TENSOR + 52);
}

static uint64_t key(const struct shf_sums *s, uint64_t i)
{
	return shf_get64(s->bytes + s->head.tensors_off + i * SHF_SUMS_TENSOR + 32);
}

/* A binary search finds the first slot whose key is not below the key wanted. Different names may
 * have the same 64-bit key, so all slots of equal key are compared by name. */
int64_t shf_sums_find(const struct shf_sums *s, const char *family, const char *name)
{
	uint64_t want = shf_sums_key(family, name), lo = 0, hi = s->head.tensors_n;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (key(s, slot(s, mid)) < want)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < s->head.tensors_n && key(s, slot(s, lo)) == want; lo++) {
		struct shf_sums_tensor t = shf_sums_tensor(s, slot(s, lo));

		if (!strcmp(shf_sums_family(s, &t), family) && !strcmp(shf_sums_name(s, &t), name))
			return slot(s, lo);
	}
	return -1;
}

uint64_t shf_sums_crc(const struct shf_sums_head *h, const uint8_t header[SHF_SUMS_HEADER],
                      const uint8_t *pages)
{
	return shf_crc64_more(shf_crc64(header, SHF_SUMS_HEADER), pages,
	                      (size_t)(h->bytes - h->pages_off));
}

uint64_t shf_sums_page_bytes(const struct shf_sums_head *h, uint64_t page)
{
	uint64_t left = h->pages_off - page * SHF_SUMS_PAGE;

	return left < SHF_SUMS_PAGE ? left : SHF_SUMS_PAGE;
}

struct check {                          /* the table that is checked, and where its sentences go */
	const struct shf_sums *s;
	const char *where;
	struct sheaf_error *err;
};

/* Verifies every 64 KiB page of the table. The manifest's checksum covers the header and the page
 * sums, and these cover the rest, so the chain of trust begins in the manifest. A reader that needs
 * one tensor can verify only the pages that it reads. */
static int check_pages(const struct check *c, uint64_t crc)
{
	const struct shf_sums_head *h = &c->s->head;
	const uint8_t *bytes = c->s->bytes;
	uint64_t got = shf_sums_crc(h, bytes, bytes + h->pages_off);

	if (got != crc)
		return shf_fail(c->err, SHEAF_ECORRUPT, "%s: checksum of header and page table %016"
				PRIx64 ", the manifest says %016" PRIx64, c->where, got, crc);
	for (uint64_t at = 0; at < h->pages_off; at += SHF_SUMS_PAGE) {
		uint64_t want = shf_get64(bytes + h->pages_off + at / SHF_SUMS_PAGE * 8);

		got = shf_crc64(bytes + at, (size_t)shf_sums_page_bytes(h, at / SHF_SUMS_PAGE));
		if (got != want)
			return shf_fail(c->err, SHEAF_ECORRUPT,
					"%s: checksum of the 64 KiB at byte %"
					PRIu64 " is %016" PRIx64 ", want %016" PRIx64, c->where, at,
					got, want);
	}
	return 0;
}

/* Checks that the bytes between the sections are 0. The page sums cover them, so they cannot change
 * by accident; the check makes sure that a later version can use them, and that the same contents
 * give the same bytes. */
static int check_padding(const struct check *c)
{
	const struct shf_sums_head *h = &c->s->head;
	const uint64_t ends[] = { h->files_off + h->files_n * SHF_SUMS_FILE,
				  h->tensors_off + h->tensors_n * SHF_SUMS_TENSOR,
				  h->blocks_off + h->blocks_n * 8, h->names_off + h->names_bytes };
	const uint64_t nexts[] = { h->tensors_off, h->blocks_off, h->names_off, h->pages_off };

	for (int i = 0; i < 4; i++)
		if (!is_zero(c->s->bytes + ends[i], nexts[i] - ends[i]))
			return shf_fail(c->err, SHEAF_ECORRUPT, "%s: padding at byte %" PRIu64
					" is not 0", c->where, ends[i]);
	return 0;
}

/* Fails because of record i of the tensors. */
static int bad_tensor(const struct check *c, uint64_t i, const char *why)
{
	return shf_fail(c->err, SHEAF_ECORRUPT, "%s: tensor %" PRIu64 " of the table: %s", c->where,
			i, why);
}

/* Checks name and key of tensor i. Names follow each other without gaps in the order of the
 * tensors: *name_off is where this one must begin, and is moved past it. name_bytes is compared
 * with what is left before anything is read, and the byte after the name must be NUL, so strlen()
 * ends inside the section. name_bytes counts the family, its NUL and the name. */
static int check_name(const struct check *c, uint64_t i, uint64_t *name_off)
{
	struct shf_sums_tensor t = shf_sums_tensor(c->s, i);
	const char *text = (const char *)c->s->bytes + c->s->head.names_off + *name_off, *name;
	uint64_t left = c->s->head.names_bytes - *name_off;
	size_t family_n;

	if (t.name_off != *name_off || t.name_bytes >= left || text[t.name_bytes])
		return bad_tensor(c, i, "its name is not where the table says");
	family_n = strlen(text);        /* ends at text[t.name_bytes] at the latest */
	if (family_n >= t.name_bytes || !shf_family_is_valid(text))
		return bad_tensor(c, i, "its family is invalid");
	name = text + family_n + 1;
	if (!shf_name_is_valid(name, t.name_bytes - family_n - 1))
		return bad_tensor(c, i, "its name is invalid");
	if (t.key != shf_sums_key(text, name))
		return bad_tensor(c, i, "its key does not match its name");
	*name_off += t.name_bytes + UINT64_C(1);
	return 0;
}

/* Checks that the tensors of a file tile it after its header: each one begins where the one before
 * it ends, and the last ends with the file. An empty tensor lies at the start or the end of
 * another. `last` is where the last tensor that is not empty began; UINT64_MAX, which no offset
 * equals, as long as all tensors so far were empty.
 *
 * The expected bytes are computed from dtype and items, so a record cannot claim more than its type
 * allows. */
static int check_tensors_of(const struct check *c, uint32_t file, const struct shf_sums_file *f)
{
	uint64_t pos = f->header_bytes, last = UINT64_MAX, bytes;

	for (uint64_t i = f->first_tensor; i < f->first_tensor + f->tensors_n; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(c->s, i);

		if (t.file != file)
			return bad_tensor(c, i, "it names another file");
		if (c->s->bytes[c->s->head.tensors_off + i * SHF_SUMS_TENSOR + 51])
			return bad_tensor(c, i, "a byte that must be 0 is not");
		if (!shf_dtype(t.dtype) || t.ndim > SHEAF_DIMS_MAX || t.items > INT64_MAX ||
		    !shf_dtype_bytes(&bytes, t.dtype, t.items) || bytes != t.bytes)
			return bad_tensor(c, i, "dtype, dimensions, items and bytes do not fit");
		if (!t.bytes && t.digest)
			return bad_tensor(c, i, "an empty tensor with a digest");
		if (!t.bytes && t.off == last)
			continue;
		if (t.off != pos || t.bytes > f->bytes - pos)
			return bad_tensor(c, i, "it does not follow the one before it");
		if (t.bytes)
			last = pos;
		pos += t.bytes;
	}
	if (pos != f->bytes)
		return shf_fail(c->err, SHEAF_ECORRUPT,
				"%s: tensors of file %" PRIu32 " end at byte %"
				PRIu64 " of %" PRIu64, c->where, file, pos, f->bytes);
	return 0;
}

/* Checks the files. Blocks and tensors are numbered through all files without gaps. The comparisons
 * with what is left come before the additions, so nothing wraps, and every record that
 * check_tensors_of() reads is inside the table. */
static int check_sums_files(const struct check *c)
{
	const struct shf_sums_head *h = &c->s->head;
	uint64_t block = 0, tensor = 0;

	for (uint32_t i = 0; i < h->files_n; i++) {
		struct shf_sums_file f = shf_sums_file(c->s, i);
		uint64_t blocks = f.bytes / BLOCK_BYTES + (f.bytes % BLOCK_BYTES != 0);
		int rc;

		if (f.first_block != block || blocks > h->blocks_n - block ||
		    f.first_tensor != tensor || f.tensors_n > h->tensors_n - tensor ||
		    f.header_bytes > f.bytes)
			return shf_fail(c->err, SHEAF_ECORRUPT,
					"%s: file %" PRIu32 " of the table does not follow the one "
					"before it", c->where, i);
		rc = check_tensors_of(c, i, &f);
		if (rc < 0)
			return rc;
		block += blocks;
		tensor += f.tensors_n;
	}
	if (block != h->blocks_n || tensor != h->tensors_n)
		return shf_fail(c->err, SHEAF_ECORRUPT, "%s: %" PRIu64 " blocks and %" PRIu64
				" tensors belong to no file", c->where, h->blocks_n - block,
				h->tensors_n - tensor);
	return 0;
}

/* Checks all names. They must fill their section exactly: other bytes there would belong to no
 * tensor. */
static int check_sums_names(const struct check *c)
{
	uint64_t off = 0;

	for (uint64_t i = 0; i < c->s->head.tensors_n; i++) {
		int rc = check_name(c, i, &off);

		if (rc < 0)
			return rc;
	}
	if (off != c->s->head.names_bytes)
		return shf_fail(c->err, SHEAF_ECORRUPT, "%s: %" PRIu64
				" bytes of names belong to no tensor", c->where,
				c->s->head.names_bytes - off);
	return 0;
}

/* Compares two records of the names section, each a family, a NUL, a name and a NUL. */
static int by_pair(const void *a, const void *b)
{
	const char *x = *(const char *const *)a, *y = *(const char *const *)b;
	int order = strcmp(x, y);

	return order ? order : strcmp(x + strlen(x) + 1, y + strlen(y) + 1);
}

/* Checks the tensors of equal key, in slots [from, to). They may be different names with the same
 * checksum, but no name may occur twice. Mostly there are two such tensors; they are sorted so that
 * a hostile table with many names of one key does not cost n^2. */
static int check_equal_keys(const struct check *c, uint64_t from, uint64_t to)
{
	size_t n = (size_t)(to - from);
	const char **pairs = shf_alloc(n, sizeof(*pairs));
	int rc = 0;

	if (!pairs)
		return shf_fail(c->err, SHEAF_ENOMEM, "%s: out of memory", c->where);
	for (size_t i = 0; i < n; i++) {
		struct shf_sums_tensor t = shf_sums_tensor(c->s, slot(c->s, from + i));

		pairs[i] = shf_sums_family(c->s, &t);
	}
	qsort(pairs, n, sizeof(*pairs), by_pair);
	for (size_t i = 1; i < n && rc == 0; i++) {
		const char *name = pairs[i] + strlen(pairs[i]) + 1;

		if (!by_pair(&pairs[i - 1], &pairs[i]))
			rc = shf_fail(c->err, SHEAF_ECORRUPT, "%s: tensor \"%.*s\" is there twice",
				      c->where, shf_name_show(name), name);
	}
	shf_free(pairs);
	return rc;
}

/* Checks that the slots are a permutation in the right order. The pairs (key, number) must strictly
 * ascend, so no number occurs twice, and every number is below n; n distinct numbers below n are a
 * permutation. Runs of equal keys are passed to check_equal_keys(); the last run ends with the
 * table, after the loop. */
static int check_slots(const struct check *c)
{
	uint64_t n = c->s->head.tensors_n, run = 0;
	int rc = 0;

	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t now = slot(c->s, i), before = i ? slot(c->s, i - 1) : 0;

		if (now >= n)
			return bad_tensor(c, i, "its slot is out of range");
		if (i && (key(c->s, now) < key(c->s, before) ||
			  (key(c->s, now) == key(c->s, before) && now <= before)))
			return bad_tensor(c, i, "its slot is out of order");
		if (i && key(c->s, now) != key(c->s, before)) {
			rc = i - run > 1 ? check_equal_keys(c, run, i) : 0;
			run = i;
		}
	}
	return rc == 0 && n - run > 1 ? check_equal_keys(c, run, n) : rc;
}

/* The order matters. The header gives the bounds of every section, the pages prove that the bytes
 * are those that were written, the files give the bounds of the tensors, and the names must be
 * valid strings before the slots compare them. *s is written on success only. */
int shf_sums_open(struct shf_sums *s, const uint8_t *bytes, size_t n, uint64_t crc,
		  const char *where, struct sheaf_error *err)
{
	struct shf_sums got = { .bytes = bytes };
	struct check c = { &got, where, err };
	int rc = shf_sums_get_head(&got.head, bytes, n, where, err);

	if (rc == 0)
		rc = check_pages(&c, crc);
	if (rc == 0)
		rc = check_padding(&c);
	if (rc == 0)
		rc = check_sums_files(&c);
	if (rc == 0)
		rc = check_sums_names(&c);
	if (rc == 0)
		rc = check_slots(&c);
	if (rc == 0)
		*s = got;
	return rc;
}
