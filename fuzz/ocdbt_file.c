/* SPDX-License-Identifier: Apache-2.0 */
#include "ocdbt_file.h"
#include "crc32.h"

#define NODE_AT 64              /* where the root begins in the file; values come before */

/* Appends a body with its header and its checksum. */
static void put_coded(struct shf_buf *b, const char *magic, const uint8_t *body, size_t n)
{
	size_t from = b->len;
	static struct shf_crc32 crc;    /* tables, which take longer than an input */
	static bool made;

	shf_buf_add(b, magic, 4);
	shf_buf_u64(b, n + 18);
	shf_buf_u16(b, 0);
	shf_buf_add(b, body, n);
	MUST(!b->oom);
	if (!made)
		shf_crc32c_init(&crc);
	made = true;
	shf_buf_u32(b, shf_crc32_more(&crc, 0, b->data + from, b->len - from));
}

#define MANIFEST "\x0c\xdb\x3a\x2a"
#define NODE "\x0c\xdb\x20\xde"
/* A configuration, one data file "v", and one version, whose root of this height, place and length
 * (a varint of two bytes) is in it. */
#define HEAD "0123456789abcdef\0\x64\x80\x40\4\0\1\1\0v\1\1"
#define TAIL "\0\0\0\0\0\0\0\0\0\0\0\0"

/* A sound leaf with the metadata of an array "a" and its chunk. */
static size_t leaf_body(uint8_t body[400])
{
	static const char meta[] = "{\"chunks\":[6],\"compressor\":null,\"dtype\":\"|u1\","
		"\"fill_value\":null,\"filters\":null,\"order\":\"C\",\"shape\":[6],"
		"\"zarr_format\":2}";
	uint8_t *p = body;

	memcpy(p, "\0\1\1\0v\2\2\x09\1a/.zarray0", 19);
	p += 19;
	*p++ = sizeof(meta) - 1;
	memcpy(p, "\6\0\1\0\3", 5);
	p += 5;
	memcpy(p, meta, sizeof(meta) - 1);
	return (size_t)(p - body) + sizeof(meta) - 1;
}

void put_database(struct shf_buf *manifest, struct shf_buf *values, enum ocdbt_part part,
                  const uint8_t *data, size_t n)
{
	/* One child, of which all keys begin with "a/". */
	static const char inner[] = "\1\1\1\0v\1\3\2a/.\0";
	struct shf_buf body = SHF_BUF_INIT;
	uint8_t leaf[400];
	size_t leaf_n = leaf_body(leaf), at, bytes, child;
	bool deep = part == OCDBT_LEAF, sound = part == OCDBT_MANIFEST;

	shf_buf_extend(values, NODE_AT);
	put_coded(values, NODE, sound ? leaf : data, sound ? leaf_n : n);
	at = NODE_AT;
	bytes = values->len - at;
	if (deep) {
		child = bytes;
		at = values->len;
		shf_buf_add(&body, inner, sizeof(inner) - 1);
		shf_buf_u8(&body, NODE_AT);
		shf_buf_u8(&body, (uint8_t)(child & 0x7f) | 0x80);
		shf_buf_u8(&body, (uint8_t)(child >> 7 & 0x7f));
		shf_buf_add(&body, "\1\1\1", 3);
		put_coded(values, NODE, body.data, body.len);
		bytes = values->len - at;
	}
	shf_buf_reset(&body);
	shf_buf_add(&body, HEAD, sizeof(HEAD) - 1);
	shf_buf_u8(&body, deep);
	shf_buf_u8(&body, 0);
	shf_buf_u8(&body, (uint8_t)(at & 0x7f) | 0x80);
	shf_buf_u8(&body, (uint8_t)(at >> 7 & 0x7f));
	shf_buf_u8(&body, (uint8_t)(bytes & 0x7f) | 0x80);
	shf_buf_u8(&body, (uint8_t)(bytes >> 7 & 0x7f));
	shf_buf_add(&body, TAIL, sizeof(TAIL) - 1);
	put_coded(manifest, MANIFEST, sound ? data : body.data, sound ? n : body.len);
	MUST(!manifest->oom && !values->oom && !body.oom);
	shf_buf_release(&body);
}
