/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed parts of files, read as the bytes that they decode to. A part is decoded from its
 * beginning, and the bytes that were decoded last stay in a buffer. A read of later bytes decodes
 * on from there; a read of bytes that are no longer in the buffer decodes from the beginning again.
 * So a part of any size takes bounded memory. */
#ifndef SHF_UNPACK_H
#define SHF_UNPACK_H
#include "mem.h"
#include "region.h"

enum shf_codec {
	SHF_CODEC_NONE, SHF_CODEC_DEFLATE, /* raw, as in zip archives */
	SHF_CODEC_ZLIB, SHF_CODEC_GZIP, SHF_CODEC_ZSTD, SHF_CODEC_BLOSC
};
#define SHF_UNPACK_ROOM (UINT64_C(64) << 20)    /* bytes of the buffer, at most; and of a part of
                                                 * blosc, which is decoded as a whole */
struct shf_packed {
	const uint8_t *here;            /* NULL: it is in a file; else it is here */
	uint64_t at, bytes;             /* where it begins in its file; how long it is */
	uint64_t decoded;               /* its size after decoding */
	enum shf_codec codec;
	/* sum_after: a CRC-32C follows the part in its file. sum_inside: the last four decoded
	 * bytes are the CRC-32C of those before them. Neither is compared here. */
	bool sum_after, sum_inside;
	bool frames;                    /* the part may be several zstd frames, one after another */
};
/* Returns its name, for sentences. */
const char *shf_codec_name(enum shf_codec codec);
/* Returns whether the library was built with what decodes it. */
bool shf_codec_is_built(enum shf_codec codec);

struct shf_unpacker {           /* a part that is being read */
	const struct shf_packed *of;    /* borrowed */
	struct shf_codec_state *codec;  /* owned; NULL: not begun */
	uint8_t *in, *out;              /* owned; NULL: not made yet. out: a ring of `room` bytes,
	                                 * in which byte i of what is decoded is at i % room */
	uint64_t room;
	uint64_t fed;                   /* bytes of the part that were read from the file */
	uint64_t lo, hi;                /* decoded bytes that are in the ring: from lo to before hi.
	                                 * lo is UINT64_MAX if decoding must begin at the first byte
	                                 * of the part */
	size_t in_i, in_n;              /* of `in`: what is next; how many bytes it has */
	bool ended;                     /* the codec has seen the end */
	/* shf_unpacker_read. shf_region_read calls it for a region of decoded bytes. */
	int (*read)(struct shf_unpacker *u, const struct shf_region *r, uint8_t *to, uint64_t n,
	            uint64_t at, struct sheaf_error *err);
};
/* room: bytes of the ring, which is never larger than what the part stands for. */
void shf_unpacker_init(struct shf_unpacker *u, const struct shf_packed *of, uint64_t room);
void shf_unpacker_release(struct shf_unpacker *u);
/* Returns how much memory it keeps between reads. Two things are not counted: the window of a zstd
 * frame, mostly a few MiB and at most 128 MiB; and the stored bytes of a part of blosc, which are
 * in memory only while it is decoded. */
uint64_t shf_unpacker_bytes(const struct shf_unpacker *u);
/* Reads n decoded bytes from byte `at` on. r: the file. EFORMAT: the part is damaged, ends earlier,
 * or goes on after `decoded` bytes, which is found out when the last byte is read. */
int shf_unpacker_read(struct shf_unpacker *u, const struct shf_region *r, uint8_t *to, uint64_t n,
                      uint64_t at, struct sheaf_error *err);
/* Decodes a part to its end to find out its decoded length. The `decoded` of the part must be
 * UINT64_MAX; the caller sets it to *decoded before it reads from the part. EFORMAT: the part is
 * damaged, or has more than `most` decoded bytes. Not for blosc. */
int shf_unpacker_measure(struct shf_unpacker *u, const struct shf_region *r, uint64_t most,
                         uint64_t *decoded, struct sheaf_error *err);
/* Decodes n bytes, whose decoded length is unknown, into *out. Returns false if they are damaged,
 * are more than `most` decoded bytes (*why is set), or if there is no memory (out->oom). Not for
 * blosc. */
bool shf_unpack_all(enum shf_codec codec, const uint8_t *in, size_t n, size_t most,
                    struct shf_buf *out, const char **why);
#endif
