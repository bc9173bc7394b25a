/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in files of their own: each layer of a pipeline (layer_03-model_states.pt, or of each
 * rank of tensor parallelism layer_03-model_01-model_states.pt), under names within the layer; and
 * each expert (layer_0_expert_5_mp_rank_00_model_states.pt), under those of the model. */
#include <stdlib.h>
#include <string.h>
#include "dspd_save.h"
#include "sort.h"

static int weights_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_dspd_weight *)a)->name,
	              ((const struct shf_dspd_weight *)b)->name);
}

const struct shf_dspd_weight *shf_dspd_weight(const struct shf_dspd *d, const char *name)
{
	const struct shf_dspd_weight want = { .name = name };
	size_t n = d->weights.len / sizeof(want);

	return n ? bsearch(&want, d->weights.data, n, sizeof(want), weights_order) : NULL;
}

/* Adds one tensor of a file. */
static int layer_tensor(struct shf_dspd *d, const struct shf_dspd_file *x,
                        const struct shf_dspd_layer *of, const struct shf_pk *key,
                        const struct shf_pk *v)
{
	struct shf_buf name = SHF_BUF_INIT;
	struct shf_dspd_weight w = { .name = NULL };
	struct shf_torch_tensor t;
	const char *why = NULL;
	int rc = 0;

	if (shf_torch_tensor_of(&t, v, &why) != SHF_TENSOR_READ)
		return why ? shf_foreign_note(d->f, d->err, key->u.s, key->n, "%s", why) : 0;
	if (!of->expert)
		shf_buf_addf(&name, "%d.", of->layer);
	shf_buf_add(&name, key->u.s, key->n);
	if (name.oom)
		rc = shf_dspd_no_memory(d);
	else
		w.name = shf_dspd_keep(d, (const char *)name.data, name.len);
	w.f32 = t.dtype == SHEAF_F32;
	if (rc == 0)
		rc = w.name ? shf_dspd_add(d, x, v, NULL, (const char *)name.data, name.len)
		   : d->err->code;
	if (rc >= 0)
		shf_buf_add(&d->weights, &w, sizeof(w));
	shf_buf_release(&name);
	return rc < 0 ? rc : d->weights.oom ? shf_dspd_no_memory(d) : 0;
}

static int layer_file(struct shf_dspd *d, const char *name, const struct shf_dspd_layer *of)
{
	struct shf_dspd_file x;
	const struct shf_pk *root;
	int rc = shf_dspd_open(d, NULL, name, &x);

	root = rc == 0 ? x.zip.pickle.root : NULL;
	if (rc == 0 && root->kind != SHF_PK_DICT)
		rc = shf_dspd_bad(d, x.where, "is not a dictionary, as DeepSpeed saves it");
	for (uint32_t i = 0; rc == 0 && i < root->n; i++)
		if (root->u.a[2 * i]->kind == SHF_PK_STR)
			rc = layer_tensor(d, &x, of, root->u.a[2 * i], root->u.a[2 * i + 1]);
	shf_dspd_close(d, &x);
	return rc;
}

int shf_dspd_layers(struct shf_dspd *d, const struct shf_listing *l)
{
	struct shf_dspd_layer x;
	int tp_n = 1, rc = 0;

	for (size_t i = 0; i < shf_listing_n(l); i++)
		if (shf_dspd_layer_of(&x, shf_listing_at(l, i)) && !x.expert) {
			d->layers = true;
			tp_n = x.tp >= tp_n ? x.tp + 1 : tp_n;
		}
	if (d->layers)
		d->tp_n = tp_n;
	for (size_t i = 0; rc == 0 && i < shf_listing_n(l); i++)
		if (shf_dspd_layer_of(&x, shf_listing_at(l, i))) {
			d->mp = x.tp;
			rc = layer_file(d, shf_listing_at(l, i), &x);
		}
	d->mp = 0;
	if (rc == 0)
		shf_records_sort(d->weights.data, d->weights.len / sizeof(struct shf_dspd_weight),
		                 sizeof(struct shf_dspd_weight), weights_order);
	return rc;
}
