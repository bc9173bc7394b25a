/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that reads pickles. The first byte, modulo 4, says how the rest of the input is read:
 * 0: from memory;
 * 1: from a file, in which bytes and long texts stay;
 * 2: from a file, while every other pair of all dictionaries is taken;
 * 3: the same, and the memory of the texts of those is used for others.
 * A pickle that is accepted can be walked through, and has no more records than bytes. */
#include "memfile.h"
#include "pickle.h"

#define DEPTH 30

struct look {
	const uint8_t *bytes;           /* of the pickle */
	size_t n, steps;                /* steps: how many records may still be looked at */
	uint64_t sum;                   /* of all texts */
};

static void look_at_text(struct look *l, const struct shf_pk *v)
{
	uint64_t at, bytes;

	for (uint32_t i = 0; i < v->n; i++)
		l->sum += (uint8_t)v->u.s[i];
	if (shf_pk_text_place(v, &at, &bytes)) {
		MUST(at <= l->n && bytes == v->n && bytes <= l->n - at);
		MUST(memcmp(l->bytes + at, v->u.s, v->n) == 0);
	}
}

/* Touches all that a record leads to. */
static void look_at(struct look *l, const struct shf_pk *v, int depth)
{
	if (!v || depth == DEPTH || !l->steps)
		return;
	l->steps--;
	MUST(v->kind <= SHF_PK_FEW);
	if (v->kind == SHF_PK_CALL) {
		MUST(v->u.call->func->kind == SHF_PK_GLOBAL);
		MUST(v->u.call->args->kind == SHF_PK_TUPLE);
		look_at(l, v->u.call->func, depth + 1);
		look_at(l, v->u.call->args, depth + 1);
		look_at(l, v->u.call->kwargs, depth + 1);
		look_at(l, v->u.call->state, depth + 1);
		look_at(l, v->u.call->list, depth + 1);
		look_at(l, v->u.call->dict, depth + 1);
	} else if (v->kind >= SHF_PK_TUPLE && v->kind <= SHF_PK_DICT) {
		for (uint32_t i = 0; i < v->n * (v->kind == SHF_PK_DICT ? 2 : 1); i++)
			look_at(l, v->u.a[i], depth + 1);
	} else if (v->kind == SHF_PK_GLOBAL) {
		l->sum += strlen(v->u.s);
		MUST(v->u.s[v->n] == '.');
	} else if (v->kind == SHF_PK_PERSID) {
		look_at(l, v->u.of, depth + 1);
	} else if (v->kind == SHF_PK_STORED) {
		MUST(v->u.stored->at <= l->n && v->u.stored->bytes <= l->n - v->u.stored->at);
	} else if (v->kind == SHF_PK_FEW) {
		uint64_t at = shf_pk_few_place(v);

		MUST(v->n <= 8 && at <= l->n && v->n <= l->n - at);
		MUST(memcmp(&v->u.i, l->bytes + at, v->n) == 0);
	} else if (v->kind == SHF_PK_STR || v->kind == SHF_PK_BYTES || v->kind == SHF_PK_LONG) {
		look_at_text(l, v);
	}
}

static bool take(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct look *l = arg;

	look_at(l, key, DEPTH - 4);
	look_at(l, value, DEPTH - 4);
	return ++l->sum % 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sheaf_error err = { .msg = "" };
	struct shf_pickle p = { 0 };
	struct memfile file;
	struct shf_region r;
	struct look l;
	struct shf_pickle_taker taker = { .take = take, .arg = &l };
	int rc;

	if (!size)
		return 0;
	l = (struct look){ data + 1, size - 1, 10 * size + 1000, 0 };
	r = memfile_region(&file, data + 1, size - 1);
	taker.texts_go = data[0] % 4 == 3;
	rc = data[0] % 4 == 0 ? shf_pickle_read(&p, data + 1, size - 1, "f", &err)
	   : shf_pickle_read_file(&p, &r, data[0] % 4 >= 2 ? &taker : NULL, &err);
	MUST(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
	MUST(p.records <= size);
	if (rc == 0) {
		MUST(p.bytes < size && data[p.bytes] == '.');
		look_at(&l, p.root, 0);
	}
	shf_pickle_release(&p);
	return 0;
}
