/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded JSON reader, for headers, indexes and manifests. It uses no recursion, allocates
 * nothing for the document, and accepts strict RFC 8259 only. It does not refuse duplicate keys;
 * the caller, which gets every key, must do that.
 *
 * It is a pull reader: each call returns the next token. Strings are returned decoded, as UTF-8 in
 * scratch memory that is valid until the next call. Bad UTF-8, lone surrogates, raw control bytes,
 * a depth above depth_max and trailing bytes are errors with a sentence that names the byte. */
#ifndef SHF_JSON_H
#define SHF_JSON_H
#include "mem.h"
#include "sheaf.h"
#include "valid.h"

enum shf_json_kind {
	SHF_JSON_ERROR = -1, SHF_JSON_END = 0,  /* END: the document has ended */
	SHF_JSON_OBJECT, SHF_JSON_OBJECT_END, SHF_JSON_ARRAY, SHF_JSON_ARRAY_END,
	SHF_JSON_KEY, SHF_JSON_STRING, SHF_JSON_NUMBER, SHF_JSON_TRUE, SHF_JSON_FALSE, SHF_JSON_NULL
};
#define SHF_JSON_DEPTH 64       /* of our own documents */
#define SHF_JSON_DEPTH_MAX 127  /* of the headers of safetensors files: as much as the reference
                                 * library reads */
/* A reader in progress. It borrows `bytes`, which must outlive it. shf_json_init() allocates
 * nothing, but scratch grows with the longest text, so shf_json_release() must follow, also after
 * an error.
 *
 * Only json.c uses `state`. stack[i] is the bracket that opened level i. A caller may read p to see
 * what follows the value that has just ended (safetensors.c does so for padding). */
struct shf_json {
	const uint8_t *bytes, *p, *end;
	struct shf_buf scratch;         /* text of the last key, string or number, NUL-ended */
	char stack[SHF_JSON_DEPTH_MAX];
	int depth, state;
	int depth_max;                  /* SHF_JSON_DEPTH; a caller may set up to
	                                 * SHF_JSON_DEPTH_MAX before the first token */
	enum shf_json_kind kind;        /* of the last token */
	size_t at;                      /* offset of the last token */
	char why[120];                  /* set on ERROR; ends in "at byte N" */
};
void shf_json_init(struct shf_json *j, const void *bytes, size_t n);
void shf_json_release(struct shf_json *j);
/* Returns the next token, SHF_JSON_END after the whole document, or SHF_JSON_ERROR. After
 * SHF_JSON_END or SHF_JSON_ERROR, later calls return it again. */
enum shf_json_kind shf_json_next(struct shf_json *j);
/* Returns the text of the last key, string or number, valid until the next token, and sets *n (n
 * may be NULL) to its length. Strings may contain NUL. */
const char *shf_json_text(const struct shf_json *j, size_t *n);
/* Read the last number as an integer. Return false if it has a sign, a fraction or an exponent, or
 * is out of range. */
bool shf_json_u64(const struct shf_json *j, uint64_t *v);
bool shf_json_i64(const struct shf_json *j, int64_t *v);
/* Skips the rest of the value whose first token was just returned. Returns false on an error. */
bool shf_json_skip(struct shf_json *j, enum shf_json_kind first);

/* Appends a string with minimal escapes: quote, backslash, \b \f \n \r \t, and \u00XX for other
 * control bytes. */
void shf_json_put(struct shf_buf *b, const char *s, size_t n);  /* with quotes */
bool shf_utf8_is_valid(const void *s, size_t n);
#endif
