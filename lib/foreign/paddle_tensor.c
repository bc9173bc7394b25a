/* SPDX-License-Identifier: Apache-2.0 */
#include "paddle_tensor.h"
#include <inttypes.h>
#include <string.h>
#include "err.h"

#define LOOK (UINT64_C(64) << 10)       /* bytes in which arrays are looked for */

/* Returns the array of a tuple of a name and an array, or v itself. */
static const struct shf_pk *array_in(const struct shf_pk *v)
{
	const struct shf_pk_call *c = shf_pk_call_of(v, "builtins.tuple");
	const struct shf_pk *names;

	c = c ? c : shf_pk_call_of(v, "__builtin__.tuple");
	if (c && !c->state && c->args->n == 1)
		v = shf_pk_at(c->args, 0);
	if (v && v->kind == SHF_PK_TUPLE && v->n == 2 && shf_pk_at(v, 0)->kind == SHF_PK_STR)
		return shf_pk_at(v, 1);
	c = shf_pk_call_of(v, "builtins.eval");
	c = c ? c : shf_pk_call_of(v, "__builtin__.eval");
	names = c ? shf_pk_at(c->args, 1) : NULL;
	return names && !c->state ? shf_pk_get(names, "data") : v;
}

enum shf_tensor_kind shf_paddle_tensor_of(struct shf_numpy_array *a, const struct shf_pk *v,
                                          const char **why)
{
	enum shf_tensor_kind kind = shf_numpy_array_of(a, array_in(v), why);

	if (a->dtype == SHEAF_U16)
		a->dtype = SHEAF_BF16;
	return kind;
}

int shf_paddle_read(struct shf_pickle *p, const struct shf_region *r,
                    const struct shf_pickle_taker *taker, struct sheaf_error *err)
{
	int rc = shf_pickle_read_file(p, r, taker, err);

	if (rc == 0 && p->bytes != r->bytes)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has %" PRIu64 " bytes after the end of its "
		              "pickle", r->where, r->bytes - p->bytes);
	return rc;
}

static bool has_text(const uint8_t *bytes, size_t n, const char *text)
{
	return memmem(bytes, n, text, strlen(text)) != NULL;
}

int shf_paddle_is_pickle(const struct shf_region *r, struct sheaf_error *err)
{
	size_t n = (size_t)(r->bytes < LOOK ? r->bytes : LOOK);
	uint8_t *head;
	int rc;

	if (n < 10)
		return 0;
	head = shf_alloc(n, 1);
	if (!head)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to look at it", r->where);
	rc = shf_region_read(r, head, n, 0, err);
	/* A safetensors file may begin like a pickle: with the length of its header. */
	if (rc == 0 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5 &&
	    !(shf_get32(head + 4) == 0 && head[8] == '{'))
		rc = has_text(head, n, SHF_PADDLE_NAMES) ||
		     (has_text(head, n, "multiarray") && has_text(head, n, "_reconstruct"));
	shf_free(head);
	return rc;
}
