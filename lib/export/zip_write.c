/* SPDX-License-Identifier: Apache-2.0 */
#include "zip_write.h"
#include <string.h>

#define ALIGN 64
#define LOCAL_BYTES 30          /* local header, without its texts */
#define VERSION 20              /* of the format that is needed to read a record */
#define VERSION64 45            /* ... with sizes or offsets of 64 bits */
#define UTF8 0x800              /* flag: the name is UTF-8 */
#define DAY 0x21                /* 1 January 1980, which is the first day that there is */

struct record {
	const char *name;
	uint64_t bytes, at;             /* of its data; of its local header in the archive */
	uint32_t crc;
};

void shf_zip_begin(struct shf_zip_out *z, struct shf_export_plan *plan,
                   struct shf_export_file *file, uint64_t at)
{
	*z = (struct shf_zip_out){ .plan = plan, .file = file, .begin = at, .at = at };
}

static void put(struct shf_zip_out *z, const void *bytes, size_t n)
{
	shf_buf_add(&z->file->header, bytes, n);
	z->at += n;
}

/* Adds what a local header and an entry of the directory both have, from the version on. */
static void add_common(struct shf_buf *out, const struct record *r, bool is_wide, size_t extra_n)
{
	bool is_long = r->bytes >= UINT32_MAX;
	uint32_t bytes = is_long ? UINT32_MAX : (uint32_t)r->bytes;

	shf_buf_u16(out, is_wide ? VERSION64 : VERSION);
	shf_buf_u16(out, UTF8);
	shf_buf_u16(out, 0);            /* stored */
	shf_buf_u16(out, 0);            /* midnight */
	shf_buf_u16(out, DAY);
	shf_buf_u32(out, r->crc);
	shf_buf_u32(out, bytes);        /* compressed */
	shf_buf_u32(out, bytes);
	shf_buf_u16(out, (uint16_t)strlen(r->name));
	shf_buf_u16(out, (uint16_t)extra_n);
}

/* Adds a local header. before: how many bytes of the data come before what is aligned, for which
 * there is an extra field; NULL: nothing is. */
static void add_local(struct shf_zip_out *z, const struct record *r, const size_t *before)
{
	bool is_long = r->bytes >= UINT32_MAX;
	size_t name_n = strlen(r->name), wide = is_long ? 20 : 0, pad = 0;
	struct shf_buf b = SHF_BUF_INIT;
	uint64_t data;

	if (before) {
		data = z->at + LOCAL_BYTES + name_n + wide + 4 + *before;
		pad = (size_t)(ALIGN - data % ALIGN) % ALIGN;
	}
	shf_buf_u32(&b, 0x04034b50);
	add_common(&b, r, is_long, wide + (before ? 4 + pad : 0));
	shf_buf_add(&b, r->name, name_n);
	if (is_long) {
		shf_buf_u16(&b, 1);
		shf_buf_u16(&b, 16);
		shf_buf_u64(&b, r->bytes);
		shf_buf_u64(&b, r->bytes);
	}
	if (before) {
		shf_buf_add(&b, "FB", 2);       /* as torch marks its padding */
		shf_buf_u16(&b, (uint16_t)pad);
		(void)shf_buf_extend(&b, pad);
	}
	z->file->header.oom |= b.oom;
	put(z, b.data, b.len);
	shf_buf_release(&b);
}

static void add_central(struct shf_zip_out *z, const struct record *r)
{
	bool is_long = r->bytes >= UINT32_MAX, is_far = r->at >= UINT32_MAX;
	size_t wide = (is_long ? 16u : 0u) + (is_far ? 8u : 0u);
	struct shf_buf *b = &z->central;

	shf_buf_u32(b, 0x02014b50);
	shf_buf_u16(b, wide ? VERSION64 : VERSION);     /* made by */
	add_common(b, r, wide > 0, wide ? wide + 4 : 0);
	shf_buf_u16(b, 0);              /* no comment */
	shf_buf_u16(b, 0);              /* disk */
	shf_buf_u16(b, 0);
	shf_buf_u32(b, 0);              /* attributes */
	shf_buf_u32(b, is_far ? UINT32_MAX : (uint32_t)r->at);
	shf_buf_adds(b, r->name);
	if (wide) {
		shf_buf_u16(b, 1);
		shf_buf_u16(b, (uint16_t)wide);
	}
	if (is_long) {
		shf_buf_u64(b, r->bytes);
		shf_buf_u64(b, r->bytes);
	}
	if (is_far)
		shf_buf_u64(b, r->at);
	z->records++;
}

static void add_hole(struct shf_buf *holes, uint64_t at, uint32_t tensor, uint32_t more)
{
	struct shf_export_hole h = { at, tensor, more };

	shf_buf_add(holes, &h, sizeof(h));
}

/* Adds a record with these bytes. before: as in add_local. */
static void add_record(struct shf_zip_out *z, const char *name, const void *bytes, size_t n,
                       const size_t *before)
{
	struct record r = { name, n, z->at - z->begin, shf_crc32_more(z->plan->crc, 0, bytes, n) };

	add_central(z, &r);
	add_local(z, &r, before);
	put(z, bytes, n);
}

void shf_zip_add(struct shf_zip_out *z, const char *name, const void *bytes, size_t n)
{
	add_record(z, name, bytes, n, NULL);
}

void shf_zip_add_aligned(struct shf_zip_out *z, const char *name, const void *bytes, size_t n)
{
	static const size_t none = 0;

	add_record(z, name, bytes, n, &none);
}

/* A tensor without bytes leaves no hole: the CRC-32 is known. */
void shf_zip_add_tensor(struct shf_zip_out *z, const char *name, const void *before, size_t n,
                        uint32_t i)
{
	struct shf_lt_tensor *t = &z->plan->out.tensors[i];
	uint32_t crc = shf_crc32_more(z->plan->crc, 0, before, n);
	uint32_t more = shf_crc32_shift(crc, t->bytes);
	struct record r = { name, n + t->bytes, z->at - z->begin, t->bytes ? 0 : crc };

	if (t->bytes) {
		add_hole(&z->file->holes, z->at + 14, i, more);
		add_hole(&z->late, z->central.len + 16, i, more);
	}
	add_central(z, &r);
	add_local(z, &r, &n);
	put(z, before, n);
	t->off = z->at;
	z->at += t->bytes;
}

/* Adds the end records, of zip64 if need be. dir: where the directory begins in the archive. */
static void add_end(struct shf_zip_out *z, uint64_t dir, uint64_t bytes)
{
	bool is_wide = dir >= UINT32_MAX || bytes >= UINT32_MAX || z->records >= UINT16_MAX;
	struct shf_buf b = SHF_BUF_INIT;

	if (is_wide) {
		shf_buf_u32(&b, 0x06064b50);
		shf_buf_u64(&b, 44);            /* bytes that follow */
		shf_buf_u16(&b, VERSION64);
		shf_buf_u16(&b, VERSION64);
		shf_buf_u64(&b, 0);             /* disks */
		shf_buf_u64(&b, z->records);
		shf_buf_u64(&b, z->records);
		shf_buf_u64(&b, bytes);
		shf_buf_u64(&b, dir);
		shf_buf_u32(&b, 0x07064b50);
		shf_buf_u32(&b, 0);
		shf_buf_u64(&b, dir + bytes);
		shf_buf_u32(&b, 1);
	}
	shf_buf_u32(&b, 0x06054b50);
	shf_buf_u32(&b, 0);
	shf_buf_u16(&b, is_wide ? UINT16_MAX : (uint16_t)z->records);
	shf_buf_u16(&b, is_wide ? UINT16_MAX : (uint16_t)z->records);
	shf_buf_u32(&b, is_wide ? UINT32_MAX : (uint32_t)bytes);
	shf_buf_u32(&b, is_wide ? UINT32_MAX : (uint32_t)dir);
	shf_buf_u16(&b, 0);             /* no comment */
	z->file->header.oom |= b.oom;
	put(z, b.data, b.len);
	shf_buf_release(&b);
}

uint64_t shf_zip_end(struct shf_zip_out *z)
{
	const struct shf_export_hole *h = (const void *)z->late.data;
	uint64_t dir = z->at;

	z->file->header.oom |= z->central.oom;
	z->file->holes.oom |= z->late.oom;
	for (size_t i = 0; i < z->late.len / sizeof(*h); i++)
		add_hole(&z->file->holes, dir + h[i].at, h[i].tensor, h[i].more);
	put(z, z->central.data, z->central.len);
	add_end(z, dir - z->begin, z->central.len);
	shf_buf_release(&z->central);
	shf_buf_release(&z->late);
	return z->at;
}
