/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a state that `sheaf plan` and sheaf-bench read: what is taken can be cut over
 * a mesh, and what each rank then holds adds up to it. */
#include "fuzz.h"
#include "workload.h"

#define ITEMS_MAX (INT64_C(1) << 40)    /* of one tensor that is cut */

/* Ranks of tp=2 that hold the whole tensor: both, unless an axis is cut, and between bytes. */
static int copies(const struct wl_tensor *t)
{
	int64_t first = t->tp_axis < 0 ? 0 : (t->shape[t->tp_axis] + 1) / 2;

	if (wl_items(t) == 0)
		return 1;
	for (int d = t->tp_axis + 1; d < t->ndim; d++)
		first *= t->shape[d];
	return t->tp_axis < 0 || first * sheaf_dtype_bits(t->dtype) % 8 != 0 ? 2 : 1;
}

static void cut(const struct wl_model *m)
{
	struct sheaf_error err = { .msg = "" };
	struct wl_layout l;
	int64_t items = 0, want = 0;

	MUST(wl_layout_parse(&l, "tp=2", NULL, 0, &err) == 0);
	for (size_t i = 0; i < m->n; i++) {
		if (wl_items(&m->t[i]) > ITEMS_MAX || m->t[i].experts > 1 || m->stages > 1)
			return;
		want += m->t[i].tied_to ? 0 : wl_items(&m->t[i]) * copies(&m->t[i]);
	}
	for (int64_t rank = 0; rank < 2; rank++) {
		struct wl_held held = { 0 };

		if (wl_held_init(&held, m, &l, rank, false, &err) < 0) {
			MUST(err.msg[0]);
			return;
		}
		for (size_t i = 0; i < held.n; i++)
			items += m->t[held.p[i].tensor].tied_to ? 0 : held.p[i].items;
		wl_held_release(&held);
	}
	MUST(items == want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sheaf_error err = { .msg = "" };
	struct wl_model m = { 0 };
	int rc = wl_model_parse(&m, (const char *)data, size, "input", &err);

	if (rc == 0)
		rc = wl_model_seal(&m, &err);
	MUST(rc == 0 || (rc < 0 && err.msg[0]));
	if (rc == 0)
		cut(&m);
	wl_model_release(&m);
	return 0;
}
