/* SPDX-License-Identifier: Apache-2.0 */
/* Python's pickle protocol 2 has no opcode for bytes. It writes them as the text of their Latin-1
 * characters, in UTF-8: bytes from 0x80 on take two. So the place of a byte is unknown until the
 * text has been read up to it. The first read keeps the place of every 65,536th byte; from then on
 * a read begins at the last of these places before it. */
#include "foreign_text.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"

struct decoder {
	const struct shf_region *region;
	const struct shf_foreign_text *text;
	uint8_t *buf;                   /* SHF_FOREIGN_MARK bytes of the text */
	size_t n, i;                    /* in buf: how many there are; which is next */
	uint64_t at;                    /* byte of the text that follows buf */
	struct sheaf_error *err;
};

static int text_bad(const struct decoder *d, const char *why)
{
	return shf_fail(d->err, SHEAF_EFORMAT, "%s: byte %" PRIu64 ": the text of an array %s",
	                d->region->where, d->text->at + d->at - (d->n - d->i), why);
}

static int decoder_fill(struct decoder *d)
{
	uint64_t left = d->text->bytes - d->at;
	int rc;

	if (!left)
		return text_bad(d, "ends before the array");
	d->n = (size_t)(left < SHF_FOREIGN_MARK ? left : SHF_FOREIGN_MARK);
	d->i = 0;
	rc = shf_region_read(d->region, d->buf, d->n, d->text->at + d->at, d->err);
	d->at += d->n;
	return rc;
}

/* Returns the next byte that the text stands for, or a negative code. */
static int decode_slow(struct decoder *d)
{
	uint8_t first;
	int rc = d->i < d->n ? 0 : decoder_fill(d);

	if (rc < 0)
		return rc;
	first = d->buf[d->i++];
	if (first < 0x80)
		return first;
	if (first != 0xc2 && first != 0xc3)
		return text_bad(d, "has a character that is not a byte");
	rc = d->i < d->n ? 0 : decoder_fill(d);
	if (rc < 0)
		return rc;
	if ((d->buf[d->i] & 0xc0) != 0x80)
		return text_bad(d, "is not UTF-8");
	return (first & 3) << 6 | (d->buf[d->i++] & 0x3f);
}

/* Decodes n bytes to `to`; NULL: they are only passed over. */
static int decode(struct decoder *d, uint8_t *to, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++) {
		int byte = d->i < d->n && d->buf[d->i] < 0x80 ? d->buf[d->i++] : decode_slow(d);

		if (byte < 0)
			return byte;
		if (to)
			to[k] = (uint8_t)byte;
	}
	return 0;
}

/* Goes through the text, and finds the places. Another thread may do the same meanwhile: then those
 * that it has found are returned. */
static int make_marks(struct shf_foreign *f, struct decoder *d, struct shf_foreign_text *text,
                      const uint64_t **out)
{
	size_t n = (size_t)(text->decoded / SHF_FOREIGN_MARK + 1);
	uint64_t *marks = shf_alloc(n, sizeof(*marks)), *kept;
	int rc = marks ? 0 : SHEAF_ENOMEM;

	for (size_t i = 0; i < n && rc == 0; i++) {
		uint64_t left = text->decoded - i * SHF_FOREIGN_MARK;

		marks[i] = d->at - (d->n - d->i);
		rc = decode(d, NULL, left < SHF_FOREIGN_MARK ? left : SHF_FOREIGN_MARK);
	}
	if (rc == 0 && (d->at != text->bytes || d->i != d->n))
		rc = text_bad(d, "goes on after the array");
	if (rc == 0) {
		pthread_mutex_lock(&f->lock);
		if (!text->marks) {
			kept = shf_arena_alloc(&f->resolved, n, sizeof(*kept));
			if (kept)
				memcpy(kept, marks, n * sizeof(*kept));
			text->marks = kept;
		}
		*out = text->marks;
		pthread_mutex_unlock(&f->lock);
		rc = *out ? 0 : SHEAF_ENOMEM;
	}
	shf_free(marks);
	return rc == SHEAF_ENOMEM ? shf_fail(d->err, rc, "%s: no memory to read an array",
	                                     d->region->where) : rc;
}

int shf_foreign_text_read(struct shf_foreign *f, struct shf_foreign_text *text,
                          const struct shf_region *r, uint8_t *to, uint64_t n, uint64_t at,
                          struct sheaf_error *err)
{
	struct decoder d = { .region = r, .text = text, .err = err };
	const uint64_t *marks;
	int rc = 0;

	d.buf = shf_alloc(SHF_FOREIGN_MARK, 1);
	if (!d.buf)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to read an array", r->where);
	pthread_mutex_lock(&f->lock);
	marks = text->marks;
	pthread_mutex_unlock(&f->lock);
	if (!marks)
		rc = make_marks(f, &d, text, &marks);
	if (rc == 0) {
		d.at = marks[at / SHF_FOREIGN_MARK];
		d.n = d.i = 0;
		rc = decode(&d, NULL, at % SHF_FOREIGN_MARK);
	}
	if (rc == 0)
		rc = decode(&d, to, n);
	shf_free(d.buf);
	return rc;
}
