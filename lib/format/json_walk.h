/* SPDX-License-Identifier: Apache-2.0 */
/* The scalars of a JSON document, each with the keys that lead to it; for files of other software,
 * such as config.json and tokenizer.json, of which a few values are needed. */
#ifndef SHF_JSON_WALK_H
#define SHF_JSON_WALK_H
#include "json.h"

/* A text, a number, true, false or null. All strings are valid until the callback returns. */
struct shf_json_leaf {
	/* The keys of the objects and the numbers of the items of the arrays that it is in, joined
	 * by dots. */
	const char *path;
	size_t path_n, in_n;            /* lengths of the path, and of the path of the object or
	                                 * array that contains it */
	bool in_array;                  /* it is in an array, at any depth */
	bool is_plain;                  /* no key in the path has a dot or a NUL */
	enum shf_json_kind kind;
	const char *text;               /* of a text or a number, NUL-ended; else "" */
	size_t text_n;
};
/* Calls leaf for each scalar of a document that is an object. name: of the file, for messages. Ends
 * with the code of the first call that fails. EFORMAT: it is not a JSON object. ENOMEM. */
int shf_json_walk(const void *bytes, size_t n, const char *name,
                  int (*leaf)(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err),
                  void *arg, struct sheaf_error *err);

struct shf_json_fact { const char *path, *text; enum shf_json_kind kind; };
/* Scalars that are kept: those with is_plain. */
struct shf_json_facts { struct shf_buf list; struct shf_arena arena; };
/* Keeps a scalar, if it is plain. ENOMEM. */
int shf_json_facts_add(struct shf_json_facts *facts, const struct shf_json_leaf *leaf,
                       struct sheaf_error *err);
/* Keeps all plain scalars of a document. Fails as shf_json_walk does. */
int shf_json_facts_read(struct shf_json_facts *facts, const void *bytes, size_t n, const char *name,
                        struct sheaf_error *err);
/* Returns the scalar of that path. If there are several it is the last one, as in Python. NULL:
 * there is none, or it is null. */
const struct shf_json_fact *shf_json_fact(const struct shf_json_facts *facts, const char *path);
/* Returns the text of that path; NULL: there is none. */
const char *shf_json_fact_text(const struct shf_json_facts *facts, const char *path);
void shf_json_facts_release(struct shf_json_facts *facts);
#endif
