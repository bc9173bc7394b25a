/* SPDX-License-Identifier: Apache-2.0 */
#include "textprep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 1 << 16 };

struct preparing {
	const char *const *in;
	int n;
	const char *out;
	int64_t *begin;                 /* [n + 1] */
	FILE *to;
	char *part;                     /* name of the file until it is whole; owned */
	struct tr_error *err;
};

static int failed(const struct preparing *p, const char *name)
{
	return tr_fail(p->err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", name,
		       strerror(errno));
}

static int measure(struct preparing *p)
{
	for (int i = 0; i < p->n; i++) {
		struct stat st;

		if (stat(p->in[i], &st) < 0)
			return failed(p, p->in[i]);
		if (!S_ISREG(st.st_mode))
			return tr_fail(p->err, TR_EINVAL, "%s: not a file; give text files",
				       p->in[i]);
		p->begin[i + 1] = p->begin[i] + st.st_size + 1;
	}
	return 0;
}

static int put(struct preparing *p, const void *bytes, size_t n)
{
	return fwrite(bytes, 1, n, p->to) == n ? 0 : failed(p, p->part);
}

static int put_integer(struct preparing *p, uint64_t x, size_t bytes)
{
	unsigned char b[8];

	for (size_t i = 0; i < bytes; i++)
		b[i] = (unsigned char)(x >> 8 * i);
	return put(p, b, bytes);
}

static int put_header(struct preparing *p)
{
	int64_t n = p->begin[p->n], documents = (int64_t)(p->n + 1) * 8;
	char text[512];
	int length = snprintf(text, sizeof(text), "{\"__metadata__\":{\"tokenizer\":\"bytes\"},"
		"\"documents\":{\"dtype\":\"I64\",\"shape\":[%d],\"data_offsets\":[0,%" PRId64 "]},"
		"\"tokens\":{\"dtype\":\"U16\",\"shape\":[%" PRId64 "],\"data_offsets\":[%" PRId64
		",%" PRId64 "]}}", p->n + 1, documents, n, documents, documents + 2 * n);
	int rc;

	while (length % 8)
		text[length++] = ' ';
	rc = put_integer(p, (uint64_t)length, 8);
	if (rc == 0)
		rc = put(p, text, (size_t)length);
	for (int i = 0; rc == 0 && i <= p->n; i++)
		rc = put_integer(p, (uint64_t)p->begin[i], 8);
	return rc;
}

static int put_document(struct preparing *p, int i)
{
	static const unsigned char end[2] = { TR_BYTE_END & 255, TR_BYTE_END >> 8 };
	unsigned char text[AT_ONCE], wide[2 * AT_ONCE];
	int64_t left = p->begin[i + 1] - p->begin[i] - 1;
	FILE *from = fopen(p->in[i], "rbe");
	int rc = from ? 0 : failed(p, p->in[i]);
	size_t n;

	while (rc == 0 && (n = fread(text, 1, sizeof(text), from)) > 0) {
		left -= (int64_t)n;
		for (size_t j = 0; j < n; j++) {
			wide[2 * j] = text[j];
			wide[2 * j + 1] = 0;
		}
		rc = put(p, wide, 2 * n);
	}
	if (rc == 0 && ferror(from))
		rc = failed(p, p->in[i]);
	if (rc == 0 && left != 0)
		rc = tr_fail(p->err, TR_EFAILED, "%s: it changed while it was read; run this again "
			     "when it is complete", p->in[i]);
	if (from)
		fclose(from);
	return rc == 0 ? put(p, end, sizeof(end)) : rc;
}

static int finish(struct preparing *p)
{
	int rc = 0;

	if (fflush(p->to) != 0 || fsync(fileno(p->to)) < 0)
		rc = failed(p, p->part);
	if (fclose(p->to) != 0 && rc == 0)
		rc = failed(p, p->part);
	p->to = NULL;
	if (rc == 0 && rename(p->part, p->out) < 0)
		rc = failed(p, p->out);
	return rc;
}

static int prepare(struct preparing *p)
{
	int rc = measure(p);

	if (rc < 0)
		return rc;
	p->to = fopen(p->part, "wbe");
	if (!p->to)
		return failed(p, p->part);
	rc = put_header(p);
	for (int i = 0; rc == 0 && i < p->n; i++)
		rc = put_document(p, i);
	if (rc == 0)
		rc = finish(p);
	if (p->to)
		fclose(p->to);
	if (rc < 0)
		unlink(p->part);
	return rc;
}

int tr_prepare_bytes(const char *const *in, int n, const char *out, int64_t *tokens,
		     struct tr_error *err)
{
	struct preparing p = { .in = in, .n = n, .out = out, .err = err };
	size_t length = strlen(out) + 6;
	int rc;

	p.begin = calloc((size_t)n + 1, sizeof(*p.begin));
	p.part = malloc(length);
	if (!p.begin || !p.part) {
		rc = tr_fail(err, TR_ENOMEM, "no memory for a list of %d files", n);
	} else {
		snprintf(p.part, length, "%s.part", out);
		rc = prepare(&p);
		*tokens = p.begin[n];
	}
	free(p.begin);
	free(p.part);
	return rc;
}
