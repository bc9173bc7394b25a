/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf cat: writes one tensor to stdout. Each window is checked before any byte of it is written,
 * so that everything on stdout is intact even if the rest is damaged. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "sheaf-inspect.h"
#include "workload.h"

#define WINDOW (INT64_C(4) << 20)
#define SMALL (INT64_C(1) << 20)

static int write_all(const struct cli_args *a, const void *bytes, uint64_t n)
{
	const char *p = bytes;

	while (n) {
		ssize_t put = write(STDOUT_FILENO, p, n < (1u << 30) ? (size_t)n : 1u << 30);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return cli_error(a, SHEAF_EIO, "stdout", strerror(errno), NULL);
		p += put;
		n -= (uint64_t)put;
	}
	return 0;
}

/* --- --slice ------------------------------------------------------------------------------ */

/* Parses one end of start:stop: empty, or a number that may count from the end of the dimension. */
static bool bound(const char *s, size_t n, int64_t dim, int64_t none, int64_t *out)
{
	bool minus = n && *s == '-';
	int64_t v = 0;

	if (n == 0) {
		*out = none;
		return true;
	}
	for (size_t i = minus; i < n; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		/* A number this large is clamped to the dimension anyway. */
		v = v > INT64_MAX / 16 ? v : v * 10 + (s[i] - '0');
	}
	if (minus)
		v = v <= dim ? dim - v : 0;
	*out = v < dim ? v : dim;
	return n > (size_t)minus;
}

/* Parses one start:stop of n bytes. */
static bool part(const char *s, size_t n, int64_t dim, int64_t *start, int64_t *count)
{
	const char *colon = memchr(s, ':', n);
	int64_t stop;

	if (!colon || !bound(s, (size_t)(colon - s), dim, 0, start) ||
	    !bound(colon + 1, n - (size_t)(colon + 1 - s), dim, dim, &stop))
		return false;
	*count = stop > *start ? stop - *start : 0;
	if (!*count)
		*start = 0;
	return true;
}

static int slice_parse(const struct cli_args *a, const char *text, struct cli_box *b)
{
	const char *s = text;

	if (!text)
		return 0;
	if (b->wide)
		return cli_usage(a, text, "a tensor of more than 8 dimensions has no "
				 "slices", "leave --slice out to read it whole");
	b->items = 1;
	for (int d = 0; d < b->t.ndim; d++) {
		size_t n = strcspn(s, ",");

		if (!part(s, n, b->t.shape[d], &b->start[d], &b->count[d]))
			return cli_usage(a, text, "a slice is start:stop for each dimension, "
					 "without a step", "as in 0:4,:");
		b->items *= b->count[d];
		b->whole = b->whole && b->count[d] == b->t.shape[d];
		s += n;
		if (d + 1 < b->t.ndim && *s++ != ',')
			return cli_usage(a, text, "the tensor has more dimensions than the slice "
					 "has parts", NULL);
	}
	if (*s)
		return cli_usage(a, text, "the tensor has fewer dimensions than the slice has "
				 "parts", NULL);
	return 0;
}

/* --- --npy -------------------------------------------------------------------------------- */

static const char *npy_type(int dtype)
{
	switch (dtype) {
	case SHEAF_BOOL: return "|b1";
	case SHEAF_I8: return "|i1";
	case SHEAF_U16: return "<u2";
	case SHEAF_I16: return "<i2";
	case SHEAF_U32: return "<u4";
	case SHEAF_I32: return "<i4";
	case SHEAF_U64: return "<u8";
	case SHEAF_I64: return "<i8";
	case SHEAF_F16: return "<f2";
	case SHEAF_BF16: return "<u2";
	case SHEAF_F32: return "<f4";
	case SHEAF_F64: return "<f8";
	case SHEAF_C64: return "<c8";
	default: return "|u1";
	}
}

static int npy_header(const struct cli_args *a, const struct cli_box *b)
{
	const int64_t *dims = b->wide ? b->t.dims : b->count;
	int n = 10, ndim = b->wide ? b->ndim : b->t.ndim;
	char head[2048]; /* 64 dimensions of 19 digits */

	memcpy(head, "\x93NUMPY\x01\x00", 8);
	n += snprintf(head + n, sizeof(head) - (size_t)n,
		      "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_type(b->t.dtype));
	for (int d = 0; d < ndim; d++)
		n += snprintf(head + n, sizeof(head) - (size_t)n, "%s%lld", d ? ", " : "",
			      (long long)dims[d]);
	n += snprintf(head + n, sizeof(head) - (size_t)n, "%s), }", ndim == 1 ? "," : "");
	while ((n + 1) % 64)
		head[n++] = ' ';
	head[n++] = '\n';
	head[8] = (char)((n - 10) & 0xff);
	head[9] = (char)((n - 10) >> 8);
	return write_all(a, head, (uint64_t)n);
}

/* --- the verb ----------------------------------------------------------------------------- */

static int stream(const struct cli_args *a, struct sheaf_checkpoint *step, const struct cli_box *b)
{
	struct sheaf_error err = { .msg = "" };
	int64_t most = WINDOW;
	char *window = malloc((size_t)WINDOW + 16);
	int rc = window ? 0 : cli_nomem(a);

	for (int64_t at = 0; rc == 0 && at < b->items;) {
		int64_t n = cli_box_window(b, at, most);
		int code = cli_box_read(step, b, at, n, window, &err);

		if (code < 0 && most > SMALL) {
			most = SMALL; /* read again in small windows, for what comes before the
				       * damage */
			continue;
		}
		if (code < 0) {
			rc = cli_error(a, code, a->pos[0], err.msg, NULL);
			break;
		}
		rc = write_all(a, window, cli_box_bytes(b, n));
		at += n;
	}
	free(window);
	return rc;
}

/* Reports a missing tensor, and a family that does have one of that name. */
static int not_found(const struct cli_args *a, struct sheaf_checkpoint *step, const char *family)
{
	struct sheaf_tensor t = { .size = sizeof(t) };
	char hint[200] = "", why[300];

	for (size_t i = 0; sheaf_checkpoint_tensor(step, i, &t, NULL) == 0; i++)
		if (strcmp(t.name, a->pos[1]) == 0)
			snprintf(hint, sizeof(hint), "--family %.150s has it", t.family);
	snprintf(why, sizeof(why), "no such tensor in family %.200s", family);
	return cli_error(a, SHEAF_ELAYOUT, a->pos[1], why, hint);
}

static int cat(const struct cli_args *a, struct sheaf_checkpoint *step)
{
	const char *family = cli_value(a, "family");
	struct sheaf_tensor t = { .size = sizeof(t) };
	struct cli_box b;
	int bits, rc = sheaf_checkpoint_find(step, family, a->pos[1], &t, NULL);

	if (rc < 0)
		return not_found(a, step, family ? family : "model");
	bits = sheaf_dtype_bits(t.dtype);
	if (!bits || (!cli_dims(&t) && cli_flag(a, "npy")))
		return cli_error(a, SHEAF_EFORMAT, a->pos[1], "this tensor has more dimensions, or "
				 "another dtype, than NumPy has", "leave --npy out");
	cli_box_init(&b, &t);
	rc = slice_parse(a, cli_value(a, "slice"), &b);
	if (rc)
		return rc;
	if (bits < 8 && cli_flag(a, "npy"))
		return cli_usage(a, "--npy", "cannot be used: NumPy has no type smaller than a "
		                 "byte", NULL);
	if (bits < 8 && b.items % (bits == 6 ? 4 : 2))
		return cli_usage(a, "--slice", "must begin and end at a byte, as the items are "
		                 "smaller than a byte",
				 NULL);
	if (cli_flag(a, "npy"))
		rc = npy_header(a, &b);
	return rc ? rc : stream(a, step, &b);
}

static int run(const struct cli_args *a)
{
	struct cli_step s;
	int rc = cli_step_open(&s, a, a->pos[0], cli_flag(a, "unverified"));

	if (rc)
		return rc;
	rc = cli_step_map(&s, a, cli_value(a, "family") ? cli_value(a, "family") : "model");
	if (rc == 0)
		rc = cat(a, s.step);
	cli_step_close(&s);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "family", "F", "the family it is in (model)" },
	{ "slice", "A:B,C:D", "a part: start:stop for each dimension, either may be\n"
			      "empty, negative counts from the end as in Python" },
	{ "map", "MAP", "map names and shapes: a file, or a map that comes with sheaf" },
	{ "to", "SIDE", "the side of the map that is made (the right one)" },
	{ "set", "NAME=N,...", "numbers for the map, such as tp=2" },
	{ "config", "FILE", "the config.json for the map (that of PATH)" },
	{ "npy", NULL, "a NumPy file instead of raw bytes" },
	{ "unverified", NULL, "read past damaged blocks" },
	{ 0 },
};
const struct cli_verb cli_cat = {
	.name = "cat",
	.brief = "one tensor to stdout",
	.synopsis = "sheaf cat PATH TENSOR [--family F] [--slice A:B,C:D] [--npy] [--unverified]\n"
		    "          [--map MAP [--to SIDE] [--set NAME=N,...] [--config FILE]]",
	.text = "Writes a tensor's items, row-major, little-endian, in bounded memory. Each\n"
		"block is checked before a byte of it is written: at damage cat stops with\n"
		"exit 1, and what was written is good. With --map TENSOR is one that the map\n"
		"makes (doc/mapping.md), and what it needs of PATH is read.\n\n"
		"--npy writes a NumPy file; types that NumPy lacks (BF16, F8) become unsigned\n"
		"integers of their width, types smaller than a byte are refused.",
	.exits = "  0  written\n  1  damaged, or no tensor of that name\n  2  no such step, wrong "
		"arguments, or it could not be read or written",
	.examples = "  sheaf cat runs/gpt@1000 model.norm.weight --npy > norm.npy\n"
		    "  sheaf cat runs/gpt model.embed_tokens.weight --slice 0:4,: | xxd | head",
	.opts = opts,
	.pos_min = 2,
	.pos_max = 2,
	.pos_names = "PATH TENSOR",
	.run = run,
};
