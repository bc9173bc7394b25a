/* SPDX-License-Identifier: Apache-2.0 */
/* The literal is a dictionary with exactly the keys descr, fortran_order and shape, in any order:
 * {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. descr is the name of a type, or a
 * list for a structured one.
 *
 * Source: numpy/lib/_format_impl.py of NumPy 2.4, and files that NumPy 1 and 2 wrote. */
#include "npy_head.h"
#include <string.h>
#include "dtype.h"
#include "mem.h"

#define NPY_DIMS_MAX 64         /* as NumPy 2 has it */

struct literal { const char *p, *end; };

static const struct { const char *name; int32_t type; bool pair; } npy_types[] = {
	{ "f8", SHEAF_F64, false }, { "f4", SHEAF_F32, false }, { "f2", SHEAF_F16, false },
	{ "i8", SHEAF_I64, false }, { "i4", SHEAF_I32, false }, { "i2", SHEAF_I16, false },
	{ "i1", SHEAF_I8, false }, { "u8", SHEAF_U64, false }, { "u4", SHEAF_U32, false },
	{ "u2", SHEAF_U16, false }, { "u1", SHEAF_U8, false }, { "b1", SHEAF_BOOL, false },
	{ "c8", SHEAF_C64, false }, { "c16", SHEAF_F64, true },
};

static void literal_space(struct literal *l)
{
	while (l->p < l->end && (*l->p == ' ' || *l->p == '\n' || *l->p == '\t' || *l->p == '\r'))
		l->p++;
}

/* Takes a character, after white space, if it is the next one. */
static bool literal_is(struct literal *l, char c)
{
	literal_space(l);
	if (l->p == l->end || *l->p != c)
		return false;
	l->p++;
	return true;
}

/* Takes a word if it is the next one. */
static bool literal_word(struct literal *l, const char *word)
{
	size_t n = strlen(word);

	literal_space(l);
	if ((size_t)(l->end - l->p) < n || memcmp(l->p, word, n))
		return false;
	l->p += n;
	return true;
}

/* Takes a text without escapes in either kind of quotes. */
static bool literal_text(struct literal *l, const char **text, size_t *n)
{
	const char *last;
	char quote;

	literal_space(l);
	if (l->p == l->end || (*l->p != '\'' && *l->p != '"'))
		return false;
	quote = *l->p++;
	last = memchr(l->p, quote, (size_t)(l->end - l->p));
	if (!last || memchr(l->p, '\\', (size_t)(last - l->p)))
		return false;
	*text = l->p;
	*n = (size_t)(last - l->p);
	l->p = last + 1;
	return true;
}

/* Takes a number >= 0, of Python 2 too, which marks long ones with an L. */
static bool literal_number(struct literal *l, int64_t *v)
{
	const char *from;

	literal_space(l);
	from = l->p;
	*v = 0;
	for (; l->p < l->end && *l->p >= '0' && *l->p <= '9'; l->p++) {
		int digit = *l->p - '0';

		if (*v > (INT64_MAX - digit) / 10)
			return false;
		*v = *v * 10 + digit;
	}
	if (l->p == from)
		return false;
	l->p += l->p < l->end && *l->p == 'L';
	return true;
}

static bool literal_shape(struct literal *l, struct shf_npy_head *h)
{
	if (!literal_is(l, '('))
		return false;
	while (!literal_is(l, ')')) {
		if (h->ndim == NPY_DIMS_MAX || !literal_number(l, &h->dims[h->ndim++]))
			return false;
		if (!literal_is(l, ',')) {
			/* (3) is a number, and no tuple of one. */
			if (h->ndim == 1 || !literal_is(l, ')'))
				return false;
			return true;
		}
	}
	return true;
}

/* Passes over a list, for the type of a structured array, with the brackets in it. */
static bool literal_skip_list(struct literal *l)
{
	const char *text;
	size_t n;
	int depth = 0;

	do {
		literal_space(l);
		if (l->p == l->end)
			return false;
		if (*l->p == '\'' || *l->p == '"') {
			if (!literal_text(l, &text, &n))
				return false;
			continue;
		}
		depth += *l->p == '[' || *l->p == '(';
		depth -= *l->p == ']' || *l->p == ')';
		l->p++;
	} while (depth > 0);
	return depth == 0;
}

/* Takes the type from its name, such as "<f4". */
static void take_type(struct shf_npy_head *h, const char *name, size_t n)
{
	static const char *const known[][2] = {
		{ "O", "an array of Python objects, which are pickled" },
		{ "U", "an array of texts" }, { "S", "an array of bytes" },
		{ "a", "an array of bytes" }, { "M", "an array of dates" },
		{ "m", "an array of durations" },
		{ "V", "an array of a type that its file does not name, such as bfloat16" },
		{ "f", "an array of long doubles" }, { "c", "an array of long doubles" },
	};
	bool big = n && name[0] == '>';

	h->unread = "an array of an unknown type";
	if (n && strchr("<>|=", name[0])) {
		name++;
		n--;
	}
	for (size_t i = 0; n && i < sizeof(known) / sizeof(known[0]); i++)
		if (name[0] == known[i][0][0])
			h->unread = known[i][1];
	for (size_t i = 0; i < sizeof(npy_types) / sizeof(npy_types[0]); i++) {
		if (strlen(npy_types[i].name) != n || memcmp(npy_types[i].name, name, n))
			continue;
		h->unread = NULL;
		h->dtype = npy_types[i].type;
		h->pair = npy_types[i].pair;
		if (big && shf_dtype(h->dtype)->bits > 8)
			h->unread = "a big-endian array";
	}
}

/* Takes one entry of the dictionary. *seen: a bit for each key. */
static const char *take_entry(struct shf_npy_head *h, struct literal *l, unsigned *seen)
{
	static const char *const keys[] = { "descr", "fortran_order", "shape" };
	const char *text, *odd = "its header is not the dictionary of three entries that NumPy "
	                         "writes";
	size_t n, key = 0;
	bool good;

	if (!literal_text(l, &text, &n) || !literal_is(l, ':'))
		return odd;
	while (key < 3 && (strlen(keys[key]) != n || memcmp(keys[key], text, n)))
		key++;
	if (key == 3 || *seen & 1u << key)
		return odd;
	*seen |= 1u << key;
	if (key == 2)
		return literal_shape(l, h) ? NULL : "its header has no shape";
	if (key == 1) {
		h->fortran = literal_word(l, "True");
		return h->fortran || literal_word(l, "False") ? NULL : odd;
	}
	literal_space(l);
	if (l->p < l->end && *l->p == '[') {
		h->unread = "a structured array";
		return literal_skip_list(l) ? NULL : odd;
	}
	good = literal_text(l, &text, &n);
	if (good)
		take_type(h, text, n);
	return good ? NULL : odd;
}

size_t shf_npy_head_bytes(const uint8_t first[SHF_NPY_FIRST])
{
	uint64_t n;

	if (memcmp(first, SHF_NPY_MAGIC, SHF_NPY_MAGIC_BYTES) || first[6] < 1 || first[6] > 3 ||
	    first[7])
		return 0;
	n = first[6] == 1 ? 10 + (uint64_t)shf_get16(first + 8)
	                  : 12 + (uint64_t)shf_get32(first + 8);
	return n <= SHF_NPY_HEAD_MAX ? (size_t)n : 0;
}

/* Computes the size of all items. Returns false if it is beyond 63 bits. */
static bool npy_size(struct shf_npy_head *h)
{
	uint64_t n = shf_dtype(h->dtype)->bits / 8u * (h->pair ? 2 : 1);
	bool empty = false;

	for (int d = 0; d < h->ndim; d++)
		empty |= h->dims[d] == 0;
	for (int d = 0; d < h->ndim; d++)
		if (h->dims[d] && (!shf_mul64(&n, n, (uint64_t)h->dims[d]) || n > INT64_MAX))
			return false;
	h->bytes = empty ? 0 : n;
	return true;
}

const char *shf_npy_head_parse(struct shf_npy_head *h, const uint8_t *head, size_t n)
{
	size_t from = n > 6 && head[6] == 1 ? 10 : 12;
	struct literal l = { (const char *)head + from, (const char *)head + n };
	const char *why = NULL;
	unsigned seen = 0;
	bool ended;

	*h = (struct shf_npy_head){ 0 };
	if (n < from || !literal_is(&l, '{'))
		return "its header is not a dictionary";
	ended = literal_is(&l, '}');
	while (!ended && !why) {
		why = take_entry(h, &l, &seen);
		ended = !literal_is(&l, ',');
		if (literal_is(&l, '}'))
			break;
		if (ended)
			why = why ? why : "its header does not end";
	}
	literal_space(&l);
	if (!why && (seen != 7 || l.p != l.end))
		why = "its header is not the dictionary of three entries that NumPy writes";
	if (!why && !h->unread && !npy_size(h))
		why = "its shape has a size beyond 63 bits";
	if (h->unread)
		h->dtype = 0;
	return why;
}
