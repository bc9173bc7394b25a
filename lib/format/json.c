/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON pull reader and the string emitter.
 *
 * Invariants: p never passes end; depth is the number of open brackets, and stack[0..depth) has
 * them; every call moves p forward or ends the document, so a loop over tokens takes time linear in
 * the bytes. An error is final: p stays, and every later call returns the error again. */
#include "json.h"
#include "valid.h"

#include <stdio.h>
#include <string.h>

enum {                                  /* what may come next */
	WANT_VALUE,
	WANT_VALUE_OR_END,              /* just after [ */
	WANT_KEY,                       /* after a comma in an object */
	WANT_KEY_OR_END,                /* just after { */
	WANT_COLON,
	WANT_COMMA,                     /* after a value inside brackets */
	WANT_NOTHING,                   /* the document is whole */
	STUCK                           /* an error was returned */
};

void shf_json_init(struct shf_json *j, const void *bytes, size_t n)
{
	memset(j, 0, sizeof(*j));
	j->bytes = bytes;
	j->p = j->bytes;
	j->end = n ? j->bytes + n : j->bytes;
	j->state = WANT_VALUE;
	j->depth_max = SHF_JSON_DEPTH;
}

void shf_json_release(struct shf_json *j)
{
	if (j)
		shf_buf_release(&j->scratch);
}

/* Fails: writes the sentence, with the offset of `where`, and makes the reader return
 * SHF_JSON_ERROR from now on. */
static enum shf_json_kind json_stop(struct shf_json *j, const char *what, const uint8_t *where)
{
	snprintf(j->why, sizeof(j->why), "%s at byte %zu", what, (size_t)(where - j->bytes));
	j->state = STUCK;
	return SHF_JSON_ERROR;
}

/* Fails at p. If the bytes have ended there, the sentence says so instead of `what`. */
static enum shf_json_kind stop_here(struct shf_json *j, const char *what)
{
	return json_stop(j, j->p < j->end ? what : "unexpected end", j->p);
}

/* Returns the length of the UTF-8 sequence at p, whose first byte is at least 0x80, or 0 if the
 * bytes are no valid sequence.
 *
 * The ranges are those of table 3-7 of the Unicode standard. The first byte decides the length.
 * Only the second byte has narrower bounds than 80..bf, and only after four first bytes: after
 * e0 and f0 a smaller one would be an overlong form, after ed a larger one a surrogate, after
 * f4 a larger one a code point above U+10FFFF. c0, c1 and f5..ff begin no sequence. */
static size_t utf8_sequence(const uint8_t *p, size_t n)
{
	uint8_t lo = 0x80, hi = 0xbf;
	size_t len;

	if (p[0] >= 0xc2 && p[0] <= 0xdf)
		len = 2;
	else if (p[0] >= 0xe0 && p[0] <= 0xef)
		len = 3;
	else if (p[0] >= 0xf0 && p[0] <= 0xf4)
		len = 4;
	else
		return 0;
	if (p[0] == 0xe0)
		lo = 0xa0;
	else if (p[0] == 0xed)
		hi = 0x9f;
	else if (p[0] == 0xf0)
		lo = 0x90;
	else if (p[0] == 0xf4)
		hi = 0x8f;
	if (n < len || p[1] < lo || p[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if (p[i] < 0x80 || p[i] > 0xbf)
			return 0;
	return len;
}

bool shf_utf8_is_valid(const void *s, size_t n)
{
	const uint8_t *p = s;

	while (n) {
		size_t len = *p < 0x80 ? 1 : utf8_sequence(p, n);

		if (!len)
			return false;
		p += len;
		n -= len;
	}
	return true;
}

/* Appends one code point as UTF-8. It is called for escapes only, after surrogates have been joined
 * or refused, so every value is a valid scalar. */
static void add_code_point(struct shf_buf *b, uint32_t c)
{
	if (c < 0x80) {
		shf_buf_u8(b, (uint8_t)c);
	} else if (c < 0x800) {
		shf_buf_u8(b, (uint8_t)(0xc0 | c >> 6));
		shf_buf_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
	} else if (c < 0x10000) {
		shf_buf_u8(b, (uint8_t)(0xe0 | c >> 12));
		shf_buf_u8(b, (uint8_t)(0x80 | (c >> 6 & 0x3f)));
		shf_buf_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
	} else {
		shf_buf_u8(b, (uint8_t)(0xf0 | c >> 18));
		shf_buf_u8(b, (uint8_t)(0x80 | (c >> 12 & 0x3f)));
		shf_buf_u8(b, (uint8_t)(0x80 | (c >> 6 & 0x3f)));
		shf_buf_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
	}
}

/* Returns the value of the four hex digits at p, or -1 if there are fewer than four bytes or one of
 * them is no hex digit. Upper and lower case are allowed, as in all JSON escapes. */
static int32_t hex4(const uint8_t *p, const uint8_t *end)
{
	int32_t v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		int c = p[i], d;

		if (c >= '0' && c <= '9')
			d = c - '0';
		else if (c >= 'a' && c <= 'f')
			d = c - 'a' + 10;
		else if (c >= 'A' && c <= 'F')
			d = c - 'A' + 10;
		else
			return -1;
		v = v << 4 | d;
	}
	return v;
}

/* Decodes \uXXXX; p is at the u. JSON writes a character above U+FFFF as two escapes, a high
 * surrogate (d800..dbff) and a low one (dc00..dfff), each of which carries ten bits of the code
 * point minus 0x10000. One without the other has no UTF-8 form and is refused.
 *
 * The second escape is read only if all six of its bytes are there, so nothing after `end` is
 * read. */
static bool read_unicode(struct shf_json *j, const uint8_t *escape)
{
	int32_t c = hex4(j->p + 1, j->end), low;

	if (c < 0)
		return json_stop(j, "bad \\u escape", escape), false;
	j->p += 5;
	if (c >= 0xd800 && c <= 0xdfff) {
		low = -1;
		if (c <= 0xdbff && j->end - j->p >= 6 && j->p[0] == '\\' && j->p[1] == 'u')
			low = hex4(j->p + 2, j->end);
		if (low < 0xdc00 || low > 0xdfff)
			return json_stop(j, "lone surrogate", escape), false;
		j->p += 6;
		c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
	}
	add_code_point(&j->scratch, (uint32_t)c);
	return true;
}

/* Decodes one escape; p is at the backslash. from[] and to[] are parallel. strchr() would also
 * find the NUL that ends from[], so a NUL byte after the backslash is ruled out before. */
static bool read_escape(struct shf_json *j)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const uint8_t *escape = j->p++;
	const char *found;

	if (j->p == j->end)
		return stop_here(j, ""), false;
	if (*j->p == 'u')
		return read_unicode(j, escape);
	found = *j->p ? strchr(from, *j->p) : NULL;
	if (!found)
		return json_stop(j, "bad escape", escape), false;
	shf_buf_u8(&j->scratch, (uint8_t)to[found - from]);
	j->p++;
	return true;
}

/* Decodes a string into scratch; p is at the opening quote. Text without escapes is copied run by
 * run: the inner loop passes over plain ASCII, and only bytes that need a decision leave it. Almost
 * all names of tensors are plain ASCII, and a header may hold 100 MB of them. */
static bool read_string(struct shf_json *j)
{
	j->p++;
	for (;;) {
		const uint8_t *run = j->p;
		size_t len;

		while (j->p < j->end && *j->p >= 0x20 && *j->p < 0x80 && *j->p != '"' &&
		       *j->p != '\\')
			j->p++;
		shf_buf_add(&j->scratch, run, (size_t)(j->p - run));
		if (j->p == j->end)
			return stop_here(j, ""), false;
		if (*j->p == '"')
			break;
		if (*j->p == '\\') {
			if (!read_escape(j))
				return false;
			continue;
		}
		if (*j->p < 0x20)
			return json_stop(j, "raw control byte in a string", j->p), false;
		len = utf8_sequence(j->p, (size_t)(j->end - j->p));
		if (!len)
			return json_stop(j, "bad UTF-8", j->p), false;
		shf_buf_add(&j->scratch, j->p, len);
		j->p += len;
	}
	j->p++;
	return true;
}

/* Skips decimal digits and returns how many there were. */
static size_t digits(struct shf_json *j)
{
	const uint8_t *from = j->p;

	while (j->p < j->end && *j->p >= '0' && *j->p <= '9')
		j->p++;
	return (size_t)(j->p - from);
}

/* Checks the grammar of a number and copies its text to scratch. The value is not computed: an
 * offset of 64 bits does not fit a double, so shf_json_u64() reads the text again where an
 * integer is wanted. JSON forbids a leading zero, because 017 would be octal for some readers. */
static bool read_number(struct shf_json *j)
{
	const uint8_t *from = j->p;
	const uint8_t *first;

	if (*j->p == '-')
		j->p++;
	first = j->p;
	if (!digits(j))
		return stop_here(j, "a digit is missing"), false;
	if (*first == '0' && j->p - first > 1)
		return json_stop(j, "leading zero", first), false;
	if (j->p < j->end && *j->p == '.') {
		j->p++;
		if (!digits(j))
			return stop_here(j, "a digit is missing"), false;
	}
	if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
		j->p++;
		if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
			j->p++;
		if (!digits(j))
			return stop_here(j, "a digit is missing"), false;
	}
	shf_buf_add(&j->scratch, from, (size_t)(j->p - from));
	return true;
}

/* Reads true, false or null: exactly the bytes of `word`. */
static enum shf_json_kind read_word(struct shf_json *j, const char *word, enum shf_json_kind kind)
{
	size_t n = strlen(word);

	if ((size_t)(j->end - j->p) < n || memcmp(j->p, word, n))
		return json_stop(j, "not a JSON value", j->p);
	j->p += n;
	return kind;
}

/* Opens a bracket. The stack is an array of fixed size in place of recursion, so a hostile
 * document of a million brackets costs an error and not the thread's stack. */
static enum shf_json_kind json_push(struct shf_json *j, char bracket)
{
	char what[40];

	if (j->depth == j->depth_max) {
		snprintf(what, sizeof(what), "nested deeper than %d", j->depth_max);
		return json_stop(j, what, j->p);
	}
	j->stack[j->depth++] = bracket;
	j->p++;
	j->state = bracket == '{' ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
	return bracket == '{' ? SHF_JSON_OBJECT : SHF_JSON_ARRAY;
}

/* Closes a bracket. depth is not 0: a state in which a closing bracket is accepted exists only
 * inside brackets. */
static enum shf_json_kind pop(struct shf_json *j)
{
	bool object = *j->p == '}';

	if (j->stack[j->depth - 1] != (object ? '{' : '['))
		return json_stop(j, "unbalanced bracket", j->p);
	j->depth--;
	j->p++;
	j->state = j->depth ? WANT_COMMA : WANT_NOTHING;
	return object ? SHF_JSON_OBJECT_END : SHF_JSON_ARRAY_END;
}

/* Reads a value that is no object and no array. The state changes only on success: after a failure
 * it must stay STUCK, as json_stop() has set it. */
static enum shf_json_kind read_scalar(struct shf_json *j)
{
	enum shf_json_kind kind = SHF_JSON_ERROR;

	if (*j->p == '"')
		kind = read_string(j) ? SHF_JSON_STRING : SHF_JSON_ERROR;
	else if (*j->p == '-' || (*j->p >= '0' && *j->p <= '9'))
		kind = read_number(j) ? SHF_JSON_NUMBER : SHF_JSON_ERROR;
	else if (*j->p == 't')
		kind = read_word(j, "true", SHF_JSON_TRUE);
	else if (*j->p == 'f')
		kind = read_word(j, "false", SHF_JSON_FALSE);
	else if (*j->p == 'n')
		kind = read_word(j, "null", SHF_JSON_NULL);
	else
		json_stop(j, "not a JSON value", j->p);
	if (kind != SHF_JSON_ERROR)
		j->state = j->depth ? WANT_COMMA : WANT_NOTHING;
	return kind;
}

/* Reads a key. It has the form of a string, and a colon must follow. */
static enum shf_json_kind read_key(struct shf_json *j)
{
	if (*j->p != '"')
		return json_stop(j, "a key is missing", j->p);
	if (!read_string(j))
		return SHF_JSON_ERROR;
	j->state = WANT_COLON;
	return SHF_JSON_KEY;
}

static void skip_space(struct shf_json *j)
{
	while (j->p < j->end &&
	       (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
		j->p++;
}

/* Skips the comma or colon before the next token and decides what may follow it. Returns false on
 * error. A closing bracket after a value needs no comma: the state stays WANT_COMMA then, and
 * read_token() handles the bracket. After a comma a bracket is not accepted, so trailing commas are
 * errors. */
static bool read_separator(struct shf_json *j)
{
	if (j->state == WANT_COLON) {
		if (j->p == j->end || *j->p != ':')
			return stop_here(j, "a colon is missing"), false;
		j->state = WANT_VALUE;
	} else if (j->state == WANT_COMMA && j->p < j->end && *j->p == ',') {
		j->state = j->stack[j->depth - 1] == '{' ? WANT_KEY : WANT_VALUE;
	} else {
		return true;
	}
	j->p++;
	skip_space(j);
	return true;
}

/* Reads one token as the state allows and sets the next state. `at` is set after the separator, so
 * that a sentence names the byte of the token itself and not that of the comma before it. */
static enum shf_json_kind read_token(struct shf_json *j)
{
	bool closes;

	skip_space(j);
	if (!read_separator(j))
		return SHF_JSON_ERROR;
	j->at = (size_t)(j->p - j->bytes);
	if (j->state == WANT_NOTHING)
		return j->p == j->end ? SHF_JSON_END : json_stop(j, "bytes after the end", j->p);
	if (j->p == j->end)
		return stop_here(j, "");
	closes = *j->p == '}' || *j->p == ']';
	if (j->state == WANT_COMMA)
		return closes ? pop(j) : json_stop(j, "a comma is missing", j->p);
	if (closes && (j->state == WANT_KEY_OR_END || j->state == WANT_VALUE_OR_END))
		return pop(j);
	if (j->state == WANT_KEY || j->state == WANT_KEY_OR_END)
		return read_key(j);
	if (*j->p == '{' || *j->p == '[')
		return json_push(j, (char)*j->p);
	return read_scalar(j);
}

/* scratch is reset first, which ends the life of the text of the token before. A NUL is added after
 * every token, so shf_json_text() can return a C string at any time. A failed allocation in scratch
 * becomes an error here, in one place, because the buffer remembers it. */
enum shf_json_kind shf_json_next(struct shf_json *j)
{
	if (j->state == STUCK)
		return SHF_JSON_ERROR;
	shf_buf_reset(&j->scratch);
	j->kind = read_token(j);
	shf_buf_u8(&j->scratch, 0);
	if (j->scratch.oom && j->kind != SHF_JSON_ERROR)
		j->kind = json_stop(j, "out of memory", j->bytes + j->at);
	return j->kind;
}

/* scratch always ends in a NUL that does not belong to the text, hence the - 1. Before the first
 * token and after a failed allocation callers get an empty string. */
const char *shf_json_text(const struct shf_json *j, size_t *n)
{
	if (!j->scratch.len || j->scratch.oom) {
		if (n)
			*n = 0;
		return "";
	}
	if (n)
		*n = j->scratch.len - 1;
	return (const char *)j->scratch.data;
}

/* x * 10 + d fits if and only if x <= (UINT64_MAX - d) / 10. A sign, a point and an e are no
 * digits: as unsigned differences to '0' they are above 9. */
bool shf_json_u64(const struct shf_json *j, uint64_t *v)
{
	uint64_t x = 0;
	const char *s = shf_json_text(j, NULL);

	if (j->kind != SHF_JSON_NUMBER)
		return false;
	for (; *s; s++) {
		unsigned d = (unsigned)*s - '0';

		if (d > 9 || x > (UINT64_MAX - d) / 10)
			return false;
		x = x * 10 + d;
	}
	*v = x;
	return true;
}

bool shf_json_i64(const struct shf_json *j, int64_t *v)
{
	uint64_t x;

	if (!shf_json_u64(j, &x) || x > INT64_MAX)
		return false;
	*v = (int64_t)x;
	return true;
}

/* The first token of an object or array has already raised depth by one, so the value has ended
 * when depth is one less than now. A loop over tokens gets there without recursion. */
bool shf_json_skip(struct shf_json *j, enum shf_json_kind first)
{
	int depth = j->depth - 1;

	if (first == SHF_JSON_ERROR || first == SHF_JSON_END || first == SHF_JSON_KEY)
		return false;
	if (first != SHF_JSON_OBJECT && first != SHF_JSON_ARRAY)
		return true;
	while (j->depth > depth)
		if (shf_json_next(j) == SHF_JSON_ERROR)
			return false;
	return true;
}

/* Escapes as little as JSON allows: the quote, the backslash, and bytes below 0x20. This is the
 * form the format prescribes, so that two writers make the same header. It is also one to one:
 * different texts have different escaped forms. Runs of plain bytes are appended at once, from
 * `from` to the byte that needs an escape. */
void shf_json_put(struct shf_buf *b, const char *s, size_t n)
{
	static const char hex[] = "0123456789abcdef";
	static const char plain[] = "btn?fr";   /* escapes of 8..13; 11 has none */
	size_t from = 0;

	shf_buf_u8(b, '"');
	for (size_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)s[i];
		char esc[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
		size_t len = sizeof(esc);

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		if (c >= 0x20 || (c >= 8 && c <= 13 && c != 11)) {
			esc[1] = c >= 0x20 ? (char)c : plain[c - 8];
			len = 2;
		}
		shf_buf_add(b, s + from, i - from);
		shf_buf_add(b, esc, len);
		from = i + 1;
	}
	shf_buf_add(b, s + from, n - from);
	shf_buf_u8(b, '"');
}
