/* SPDX-License-Identifier: Apache-2.0 */
/* Accessors for the records of a pickle. */
#include <string.h>
#include "pickle.h"

/* A name with a dot, as STACK_GLOBAL may have it, is an attribute of something in the module. It is
 * none of the globals that this library knows, even if it is spelt like one. */
bool shf_pk_is_global(const struct shf_pk *v, const char *name)
{
	return v && v->kind == SHF_PK_GLOBAL && strcmp(v->u.s, name) == 0 &&
	       !strchr(v->u.s + v->n + 1, '.');
}

const struct shf_pk_call *shf_pk_call_of(const struct shf_pk *v, const char *name)
{
	const struct shf_pk_call *c = v && v->kind == SHF_PK_CALL ? v->u.call : NULL;

	return c && shf_pk_is_global(c->func, name) && !c->kwargs && !c->list && !c->dict ? c :
		NULL;
}

bool shf_pk_text_is(const struct shf_pk *v, const char *text)
{
	size_t n = strlen(text);

	return v && v->kind == SHF_PK_STR && v->n == n && memcmp(v->u.s, text, n) == 0;
}

bool shf_pk_text_place(const struct shf_pk *v, uint64_t *at, uint64_t *bytes)
{
	if (v && v->kind == SHF_PK_STORED && v->u.stored->text) {
		*at = v->u.stored->at;
		*bytes = v->u.stored->bytes;
		return true;
	}
	if (!v || v->kind != SHF_PK_STR || !v->cap)
		return false;
	*at = shf_get64((const uint8_t *)v->u.s - 8);
	*bytes = v->n;
	return true;
}

bool shf_pk_is_row(const struct shf_pk *v)
{
	return v && (v->kind == SHF_PK_TUPLE || v->kind == SHF_PK_LIST);
}

const struct shf_pk *shf_pk_at(const struct shf_pk *v, uint32_t i)
{
	return shf_pk_is_row(v) && i < v->n ? v->u.a[i] : NULL;
}

const struct shf_pk *shf_pk_get(const struct shf_pk *v, const char *key)
{
	size_t n = strlen(key);

	for (uint32_t i = v && v->kind == SHF_PK_DICT ? v->n : 0; i-- > 0;) {
		const struct shf_pk *k = v->u.a[2 * i];

		if (k->kind == SHF_PK_STR && k->n == n && memcmp(k->u.s, key, n) == 0)
			return v->u.a[2 * i + 1];
	}
	return NULL;
}

bool shf_pk_int(const struct shf_pk *v, int64_t *out)
{
	if (!v || v->kind != SHF_PK_INT)
		return false;
	*out = v->u.i;
	return true;
}

bool shf_pk_counts(int64_t *to, const struct shf_pk *v, uint32_t n,
                   bool (*get)(const struct shf_pk *item, int64_t *out))
{
	if (!shf_pk_is_row(v) || v->n != n)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!get(v->u.a[i], &to[i]) || to[i] < 0)
			return false;
	return true;
}
