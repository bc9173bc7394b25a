/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json of a model, as it is written beside converted weights. */
#ifndef SHF_EXPORT_CONFIG_H
#define SHF_EXPORT_CONFIG_H
#include "mem.h"

#define SHF_CONFIG_MAX (UINT64_C(4) << 20)      /* a longer config.json is copied as it is */
/* Appends a config.json that describes whole weights to *out. The classes in `architectures` lose
 * the suffixes of Paddle's pipelines and helpers, because other programs know only the plain class
 * (Qwen2ForCausalLMPipe becomes Qwen2ForCausalLM), and `tensor_parallel_degree` becomes 1. All else
 * stays byte for byte, as does a text that is not a JSON object. out->oom: no memory. */
void shf_config_clean(struct shf_buf *out, const void *bytes, size_t n);
#endif
