/* SPDX-License-Identifier: Apache-2.0 */
/* What a config.json of Hugging Face says of a model of Qwen2 or Llama. */
#ifndef MODELCONFIG_H
#define MODELCONFIG_H
#include <stddef.h>
#include <stdint.h>

#include "tr_error.h"

struct tr_model_config {
	int64_t vocab, hidden, layers, heads, kv_heads, head_size, ffn, positions_max;
	double norm_eps, rope_theta, init_range;
	int tied;                       /* the head is the embedding */
	int qkv_bias;
};
/* Reads the text of a config.json. `name` stands in messages. What changes the arithmetic and is
 * not known here is refused: EFORMAT. */
int tr_model_config_read(struct tr_model_config *c, const char *text, size_t n, const char *name,
			 struct tr_error *err);
/* Key of a property that changes the arithmetic and is not equal, or NULL. Static. */
const char *tr_model_config_differ(const struct tr_model_config *a,
				   const struct tr_model_config *b);
#endif
