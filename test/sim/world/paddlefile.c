/* SPDX-License-Identifier: Apache-2.0 */
#include "paddlefile.h"
#include <stdlib.h>
#include <string.h>

static void add_string(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

static void add_number(struct torch_bytes *b, uint64_t v, int width)
{
	for (int i = 0; i < width; i++)
		torch_add(b, &(uint8_t){ (uint8_t)(v >> 8 * i) }, 1);
}

static const char *type_of(int dtype)
{
	switch (dtype) {
	case SHEAF_F64: return "f8";
	case SHEAF_F32: return "f4";
	case SHEAF_F16: return "f2";
	case SHEAF_BF16: return "u2";
	case SHEAF_I64: return "i8";
	case SHEAF_I32: return "i4";
	case SHEAF_I16: return "i2";
	case SHEAF_I8: return "i1";
	default: return "u1";
	}
}

/* Returns the bytes of items [from, to) in the order of the file, which for Fortran begins with the
 * first dimension. */
static uint8_t *items_of(const char *family, const struct torch_tensor *t, int64_t from, int64_t to,
                         bool fortran, size_t *n)
{
	size_t width = (size_t)hand_bits(t->dtype) / 8;
	uint8_t *bytes = malloc((size_t)(to - from) * width + 1);

	*n = (size_t)(to - from) * width;
	for (int64_t i = from; i < to; i++) {
		int64_t rest = i, at = 0, row = 1;
		uint64_t v;

		for (int d = 0; fortran && d < t->ndim; d++) {
			int64_t below = 1;

			for (int k = d + 1; k < t->ndim; k++)
				below *= t->shape[k];
			at += rest / below * row;
			rest %= below;
			row *= t->shape[d];
		}
		v = hand_value(family, t->name, t->dtype, i);
		memcpy(bytes + (size_t)(fortran ? at : i - from) * width, &v, width);
	}
	return bytes;
}

static void put_bytes(struct torch_bytes *b, const uint8_t *bytes, size_t n, enum paddle_flaw flaw)
{
	struct torch_bytes text = { 0 };

	if (flaw == PADDLE_OBJECTS) {
		add_string(b, "]");
		return;
	}
	if (flaw != PADDLE_TEXT && flaw != PADDLE_BAD_TEXT && flaw != PADDLE_WIDE_TEXT) {
		add_string(b, "\x8e");
		add_number(b, n, 8);
		torch_add(b, bytes, n);
		return;
	}
	if (n == 0) {
		add_string(b, "c__builtin__\nbytes\n)R");
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint8_t two[2] = { (uint8_t)(0xc0 | bytes[i] >> 6),
			(uint8_t)(0x80 | (bytes[i] & 0x3f)) };

		if (bytes[i] < 0x80)
			torch_add(&text, &bytes[i], 1);
		else
			torch_add(&text, two, 2);
	}
	if (flaw == PADDLE_BAD_TEXT)
		text.p[text.n / 2] = 0xff;
	if (flaw == PADDLE_WIDE_TEXT) {
		memcpy(text.p, "\xe2\x82", 2);
		text.p[2] = 0xac;
	}
	add_string(b, "c_codecs\nencode\n(X");
	add_number(b, text.n, 4);
	torch_add(b, text.p, text.n);
	torch_text(b, "latin1");
	add_string(b, "tR");
	free(text.p);
}

static void put_dtype(struct torch_bytes *b, int dtype, enum paddle_flaw flaw)
{
	add_string(b, "cnumpy\ndtype\n(");
	torch_text(b, type_of(dtype));
	add_string(b, "\x89\x88tR(K\3");
	torch_text(b, flaw == PADDLE_BIG_ENDIAN ? ">" : hand_bits(dtype) == 8 ? "|" : "<");
	add_string(b, flaw == PADDLE_STRUCTURED ? "N(tN" : "NNN");
	add_string(b, "J\xff\xff\xff\xffJ\xff\xff\xff\xff");
	torch_add(b, "K\0tb", 4);
}

void paddle_array(struct torch_bytes *b, const char *family, const struct torch_tensor *t,
                  int64_t from, int64_t to, enum paddle_flaw flaw)
{
	int64_t all = 1;
	uint8_t *bytes;
	size_t n;

	for (int d = 0; d < t->ndim; d++)
		all *= t->shape[d];
	bytes = items_of(family, t, from, to, flaw == PADDLE_FORTRAN, &n);
	n -= flaw == PADDLE_SHORT && n ? 1 : 0;
	add_string(b, "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\n");
	add_string(b, flaw == PADDLE_MATRIX ? "matrix\n" : "ndarray\n");
	torch_add(b, "K\0\x85" "C\1btR", 8);
	if (flaw != PADDLE_NO_STATE) {
		add_string(b, "(K\1(");
		for (int d = 0; (from || to != all ? d < 1 : d < t->ndim); d++)
			torch_int(b, (from || to != all ? to - from : t->shape[d]) -
			           (flaw == PADDLE_LONG && d == 0) +
			           (flaw == PADDLE_HUGE ? INT64_MAX / 4 : 0) -
			           (flaw == PADDLE_NEGATIVE ? INT64_MAX / 2 : 0));
		add_string(b, flaw == PADDLE_LIST_SHAPE ? "l" : "t");
		put_dtype(b, t->dtype, flaw);
		add_string(b, flaw == PADDLE_FORTRAN ? "\x88" : "\x89");
		put_bytes(b, bytes, n, flaw);
		add_string(b, "tb");
	}
	free(bytes);
}

struct torch_bytes paddle_file(const struct torch_tensor *t, int n, enum paddle_flaw flaw)
{
	struct torch_bytes b = { 0 };
	bool text = flaw == PADDLE_TEXT || flaw == PADDLE_BAD_TEXT || flaw == PADDLE_WIDE_TEXT;

	add_string(&b, text ? "\x80\2}(" : "\x80\4}(");
	for (int i = 0; i < n; i++) {
		int64_t all = 1;

		for (int d = 0; d < t[i].ndim; d++)
			all *= t[i].shape[d];
		torch_text(&b, t[i].name);
		if (flaw == PADDLE_TUPLES) {
			add_string(&b, "cbuiltins\ntuple\n(");
			torch_text(&b, "linear_0.w_0");
		}
		if (flaw == PADDLE_STATIC || flaw == PADDLE_EVAL) {
			add_string(&b, "cbuiltins\neval\n(");
			torch_text(&b, flaw == PADDLE_EVAL ? "os" : "data");
			add_string(&b, "}");
			torch_text(&b, "data");
		}
		paddle_array(&b, "model", &t[i], 0, all, flaw);
		add_string(&b, flaw == PADDLE_TUPLES ? "t\x85R" :
		           flaw == PADDLE_STATIC || flaw == PADDLE_EVAL ? "stR" : "");
	}
	torch_text(&b, "StructuredToParameterName@@");
	add_string(&b, "}u.");
	return b;
}
