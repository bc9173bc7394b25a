/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a map: it is refused in a sentence, or it is a map, whose plans for a small model
 * have only items that the model has, each made from one. */
#include "fuzz.h"
#include "dtype.h"
#include "map_plan.h"

enum { FUZZ_TENSORS = 7 };
static const struct { const char *name; int32_t ndim; int64_t dims[2]; } small[FUZZ_TENSORS] = {
	{ "a", 2, { 4, 6 } }, { "a/m", 2, { 4, 6 } }, { "a/step", 0, { 0 } }, { "b", 2, { 6, 4 } },
	{ "l.0", 1, { 4 } }, { "l.1", 1, { 4 } }, { "z", 2, { 0, 3 } },
};

static void model_make(struct shf_layout *l, struct shf_lt_tensor *t, struct shf_lt_family *f)
{
	*f = (struct shf_lt_family){ .name = "model", .tensors_n = FUZZ_TENSORS };
	*l = (struct shf_layout){ .families = f, .families_n = 1, .tensors = t,
		.tensors_n = FUZZ_TENSORS };
	for (int i = 0; i < FUZZ_TENSORS; i++) {
		t[i] = (struct shf_lt_tensor){ .name = small[i].name, .dtype = SHEAF_F32,
			.bytes = 4, .items.ndim = small[i].ndim };
		for (int d = 0; d < small[i].ndim; d++)
			t[i].bytes *= (uint64_t)(t[i].items.dim[d] = small[i].dims[d]);
	}
}

static int zeros(void *arg, uint32_t tensor, void *to, uint64_t n, struct sheaf_error *err)
{
	(void)arg;
	(void)tensor;
	(void)err;
	memset(to, 0, n);
	return 0;
}

/* The last items of a piece are in both tensors, and no piece of a small tensor meets another. */
static void piece_check(const struct shf_layout *l, const struct shf_map_made *t,
                        const struct shf_map_piece *p, uint8_t seen[256])
{
	uint64_t src = p->src, dst = p->dst, all = 1;

	MUST(p->from < l->tensors_n);
	for (int i = 0; i < p->box->n; i++) {
		MUST(p->box->axis[i].n > 0);
		src += (p->box->axis[i].n - 1) * p->box->axis[i].src;
		dst += (p->box->axis[i].n - 1) * p->box->axis[i].dst;
		all *= p->box->axis[i].n;
	}
	MUST(src < l->tensors[p->from].bytes / 4 && dst < t->items);
	MUST(dst + 1 == p->dst + p->span);
	for (uint64_t k = 0; k < all && t->items <= 256; k++) {
		uint64_t rest = k, at = p->dst;

		for (int i = p->box->n; i-- > 0; rest /= p->box->axis[i].n)
			at += rest % p->box->axis[i].n * p->box->axis[i].dst;
		MUST(!seen[at]);
		seen[at] = 1;
	}
}

static void plan_check(const struct shf_layout *l, const struct shf_map_plan *plan)
{
	const struct shf_map_made *made = (const void *)plan->made.data;
	const struct shf_map_piece *p = (const void *)plan->pieces.data;

	for (size_t i = 0; i < plan->made.len / sizeof(*made); i++) {
		uint8_t seen[256] = { 0 };

		for (size_t k = made[i].first; k < made[i].first + made[i].n; k++)
			piece_check(l, &made[i], &p[k], seen);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char config[] = "{\"n\": 2, \"h\": {\"x\": 3}}";
	struct shf_lt_tensor tensors[FUZZ_TENSORS];
	struct shf_lt_family family;
	struct shf_layout l;
	struct sheaf_error err;
	struct shf_map m;
	int rc = shf_map_parse(&m, "input", (const char *)data, size, &err);

	MUST(rc == 0 || (rc == SHEAF_EINVAL && !strncmp(err.msg, "input:", 6)));
	model_make(&l, tensors, &family);
	for (int to = 0; rc == 0 && to < 2; to++) {
		struct shf_map_how how = { .to = to, .prefix = "", .read = zeros,
			.work_least = 1 };
		struct shf_map_config c = { 0 };
		struct shf_map_plan plan;
		int made;

		MUST(shf_map_config_read(&c, "config", config, sizeof(config) - 1, &err) == 0);
		made = shf_map_plan_make(&plan, &m, &c, &l, "model", &how, &err);
		MUST(made == 0 || made == SHEAF_EINVAL || made == SHEAF_ELAYOUT);
		if (made == 0)
			plan_check(&l, &plan);
		shf_map_plan_release(&plan);
		shf_map_config_release(&c);
	}
	shf_map_release(&m);
	return 0;
}
