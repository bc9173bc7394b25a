/* SPDX-License-Identifier: Apache-2.0 */
/* The properties of a Qwen2 or Llama model, from a config.json of Hugging Face. */
#ifndef MODELCONFIG_H
#define MODELCONFIG_H
#include <stddef.h>
#include <stdint.h>

#include "bf16.h"
#include "tr_error.h"

struct tr_model_config {
	int64_t vocab, hidden, layers, heads, kv_heads, head_size, ffn, positions_max;
	double norm_eps, rope_theta, init_range;
	int tied;                       /* the head is the embedding */
	int qkv_bias;
};
/* Reads the text of a config.json. `name` is the name of the file for messages. EFORMAT: the text
 * is not such a file, or the model needs arithmetic that the trainer does not have. */
int tr_model_config_read(struct tr_model_config *c, const char *text, size_t n, const char *name,
			 struct tr_error *err);
/* Returns the key of a property that changes the arithmetic and is different in a and b, or NULL if
 * there is none. The text is static. */
const char *tr_model_config_differ(const struct tr_model_config *a,
				   const struct tr_model_config *b);
/* Returns the text of a config.json that has this type, in which the weights are saved. If the text
 * has no type, fp32 is not added. The caller frees the result. NULL: no memory. */
char *tr_model_config_typed(const char *text, size_t n, enum tr_type type);
#endif
