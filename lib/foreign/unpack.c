/* SPDX-License-Identifier: Apache-2.0 */
#include "unpack.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "codec.h"
#include "err.h"
#include "mem.h"

#define IN_BYTES (UINT64_C(128) << 10)
#define STEP_BYTES (UINT64_C(256) << 10)        /* decoded in one step, at most. Before a step, as
                                                 * many of the oldest bytes leave a full ring */
#define BLOSC_HEAD 16           /* what blosc adds to bytes that it cannot compress */

void shf_unpacker_init(struct shf_unpacker *u, const struct shf_packed *of, uint64_t room)
{
	room = room < of->decoded ? room : of->decoded;
	*u = (struct shf_unpacker){ .of = of, .room = room ? room : 1, .lo = UINT64_MAX,
		.read = shf_unpacker_read };
}

void shf_unpacker_release(struct shf_unpacker *u)
{
	shf_codec_end(u->codec);
	shf_free(u->in);
	shf_free(u->out);
}

uint64_t shf_unpacker_bytes(const struct shf_unpacker *u)
{
	return u->room + (UINT64_C(1) << 20);
}

static int packed_bad(const struct shf_unpacker *u, const struct shf_region *r, const char *why,
                    struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_EFORMAT, "%s: the %s data of %" PRIu64 " bytes at byte %" PRIu64
	                " %s", r->where, shf_codec_name(u->of->codec), u->of->bytes, u->of->at,
	                why);
}

static int packed_no_memory(const struct shf_region *r, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to decode a part of it", r->where);
}

/* Reads n bytes of the part as it is stored. */
static int packed_read(const struct shf_packed *p, const struct shf_region *r, uint8_t *to,
                     uint64_t n, uint64_t at, struct sheaf_error *err)
{
	struct shf_region file = *r;

	if (p->here) {
		memcpy(to, p->here + at, n);
		return 0;
	}
	/* The region is the decoded part itself: the stored bytes are read from its file. */
	if (r->unpacker && r->unpacker->of == p) {
		file.unpacker = NULL;
		file.bytes = p->at + p->bytes;
	}
	return shf_region_read(&file, to, n, p->at + at, err);
}

/* Decodes the whole part at once. */
static int decode_blosc(struct shf_unpacker *u, const struct shf_region *r, struct sheaf_error *err)
{
	const struct shf_packed *p = u->of;
	uint8_t *in;
	int rc;

	if (p->decoded > u->room || p->bytes > p->decoded + BLOSC_HEAD)
		return packed_bad(u, r, "are more than can be decoded at once", err);
	in = shf_alloc((size_t)p->bytes, 1);
	rc = in ? packed_read(p, r, in, p->bytes, 0, err) : packed_no_memory(r, err);
	if (rc == 0 && !shf_codec_blosc(in, (size_t)p->bytes, u->out, (size_t)p->decoded))
		rc = packed_bad(u, r, "are damaged, or have another size than they should", err);
	if (rc == 0)
		u->hi = p->decoded;
	shf_free(in);
	return rc;
}

/* Begins at the first byte, for the first time or again. */
static int unpacker_begin(struct shf_unpacker *u, const struct shf_region *r,
                          struct sheaf_error *err)
{
	shf_codec_end(u->codec);
	u->codec = NULL;
	u->fed = u->lo = u->hi = 0;
	u->in_i = u->in_n = 0;
	u->ended = false;
	if (!shf_codec_is_built(u->of->codec))
		return shf_fail(err, SHEAF_EFORMAT, "%s: has %s data, and this library was built "
		                "without what decodes them", r->where,
		                shf_codec_name(u->of->codec));
	u->out = u->out ? u->out : shf_alloc((size_t)u->room, 1);
	if (!u->out)
		return packed_no_memory(r, err);
	if (u->of->codec == SHF_CODEC_BLOSC)
		return decode_blosc(u, r, err);
	u->in = u->in ? u->in : shf_alloc(IN_BYTES, 1);
	u->codec = u->in ? shf_codec_begin(u->of->codec) : NULL;
	return u->codec ? 0 : packed_no_memory(r, err);
}

/* Decodes up to n bytes to `to`. Returns how many, 0 at the end, or a negative code. */
static int64_t decode_some(struct shf_unpacker *u, const struct shf_region *r, uint8_t *to,
                           size_t n, struct sheaf_error *err)
{
	const char *why = NULL;
	struct shf_codec_step s = { .out = to, .out_n = n };

	while (s.out_n == n && !u->ended) {
		uint64_t left = u->of->bytes - u->fed;
		int rc = 0;

		if (u->in_i == u->in_n && left) {
			u->in_n = (size_t)(left < IN_BYTES ? left : IN_BYTES);
			u->in_i = 0;
			rc = packed_read(u->of, r, u->in, u->in_n, u->fed, err);
			u->fed += u->in_n;
		}
		if (rc < 0)
			return rc;
		s.in = u->in + u->in_i;
		s.in_n = u->in_n - u->in_i;
		if (!shf_codec_more(u->codec, &s, &why)) {
			char text[120];

			if (s.oom)
				return packed_no_memory(r, err);
			snprintf(text, sizeof(text), "are damaged: %s", why);
			return packed_bad(u, r, text, err);
		}
		if (u->in_n - u->in_i == s.in_n && s.out_n == n && !s.ended && (s.in_n || !left))
			return packed_bad(u, r, "end before they are complete", err);
		u->in_i = u->in_n - s.in_n;
		u->ended = s.ended && !(u->of->frames && (s.in_n || u->fed < u->of->bytes));
	}
	return (int64_t)(n - s.out_n);
}

/* Whether the codec has come to the end where it should. */
static int check_end(struct shf_unpacker *u, const struct shf_region *r, struct sheaf_error *err)
{
	uint8_t more;
	int64_t n = u->ended ? 0 : decode_some(u, r, &more, 1, err);

	if (n < 0)
		return (int)n;
	if (n || u->fed - (u->in_n - u->in_i) != u->of->bytes)
		return packed_bad(u, r, "are longer than they should be", err);
	return 0;
}

/* Decodes up to `left` more bytes into the ring. Returns how many, 0 at the end, or a negative
 * code. */
static int64_t ring_some(struct shf_unpacker *u, const struct shf_region *r, uint64_t left,
                         struct sheaf_error *err)
{
	uint64_t at = u->hi % u->room, n = u->room - at;
	int64_t got;

	n = n < left ? n : left;
	n = n < STEP_BYTES ? n : STEP_BYTES;
	/* Bytes about to be overwritten leave [lo, hi) first, so that a failure leaves no wrong
	 * bytes in it. */
	if (u->hi + n > u->room && u->lo < u->hi + n - u->room)
		u->lo = u->hi + n - u->room;
	got = decode_some(u, r, u->out + at, (size_t)n, err);
	u->hi += got > 0 ? (uint64_t)got : 0;
	return got;
}

/* Decodes more bytes into the ring, but none beyond the decoded length of the part. */
static int ring_more(struct shf_unpacker *u, const struct shf_region *r, struct sheaf_error *err)
{
	int64_t got = ring_some(u, r, u->of->decoded - u->hi, err);

	if (got < 0)
		return (int)got;
	if (!got)
		return packed_bad(u, r, "are fewer than they should be when decoded", err);
	return u->hi == u->of->decoded ? check_end(u, r, err) : 0;
}

int shf_unpacker_measure(struct shf_unpacker *u, const struct shf_region *r, uint64_t most,
                         uint64_t *decoded, struct sheaf_error *err)
{
	int64_t got = unpacker_begin(u, r, err);
	char why[100];

	for (got = got < 0 ? got : 1; got > 0 && u->hi <= most;)
		got = ring_some(u, r, most + 1 - u->hi, err);
	if (got < 0)
		return (int)got;
	if (u->hi > most) {
		snprintf(why, sizeof(why), "stand for more than the %" PRIu64 " bytes that they "
		         "may have", most);
		return packed_bad(u, r, why, err);
	}
	*decoded = u->hi;
	return check_end(u, r, err);
}

int shf_unpacker_read(struct shf_unpacker *u, const struct shf_region *r, uint8_t *to, uint64_t n,
                      uint64_t at, struct sheaf_error *err)
{
	const struct shf_packed *p = u->of;
	int rc = 0;

	if (at > p->decoded || n > p->decoded - at)
		return packed_bad(u, r, "are fewer than they should be when decoded", err);
	if (p->codec == SHF_CODEC_NONE)
		return packed_read(p, r, to, n, at, err);
	if (n && at < u->lo)
		rc = unpacker_begin(u, r, err);
	while (n && rc == 0) {
		uint64_t some, i = at % u->room;

		if (at >= u->hi) {
			rc = ring_more(u, r, err);
			continue;
		}
		some = u->hi - at < n ? u->hi - at : n;
		some = u->room - i < some ? u->room - i : some;
		memcpy(to, u->out + i, some);
		to += some;
		at += some;
		n -= some;
	}
	/* After a failure the next read begins again, and fails again. */
	if (rc < 0)
		u->lo = UINT64_MAX;
	return rc;
}

bool shf_unpack_all(enum shf_codec codec, const uint8_t *in, size_t n, size_t most,
                    struct shf_buf *out, const char **why)
{
	struct shf_codec_state *c = shf_codec_begin(codec);
	struct shf_codec_step s = { .in = in, .in_n = n };
	bool good = c != NULL;

	out->oom |= !c;
	*why = "has more compressed bytes than are read";
	while (good && !s.ended) {
		size_t used = s.in_n, room = most - out->len < STEP_BYTES ? most - out->len
		                                                           : STEP_BYTES;

		s.out = room ? shf_buf_room(out, room) : NULL;
		s.out_n = room;
		if (!s.out)
			break;
		good = shf_codec_more(c, &s, why);
		out->oom |= s.oom;
		out->len -= s.out_n;
		if (good && !s.ended && s.in_n == used && s.out_n == room) {
			*why = "its compressed bytes end before they are complete";
			good = false;
		}
	}
	if (good && s.ended && s.in_n) {
		*why = "its compressed bytes continue past their end";
		good = false;
	}
	good = good && s.ended;
	shf_codec_end(c);
	return good;
}
