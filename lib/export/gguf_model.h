/* SPDX-License-Identifier: Apache-2.0 */
/* What llama.cpp must know of a model: its architecture and sizes, from config.json. */
#ifndef SHF_GGUF_MODEL_H
#define SHF_GGUF_MODEL_H
#include "gguf_write.h"
#include "json_walk.h"
#include "sheaf.h"

struct sheaf_checkpoint;
struct shf_gguf_arch {          /* an architecture of llama.cpp that can be written */
	const char *model_type;         /* as config.json has it */
	const char *name;
	const char *map;                /* the map from the names of Hugging Face */
	/* Tensors that each layer has, without "blk.<N>.", and those that it may have. */
	const char *const *needs, *const *may;
};
struct shf_gguf_model {
	struct shf_json_facts config;   /* config.json */
	const struct shf_gguf_arch *arch;
	uint64_t layers;
	bool tied;                      /* the head has the weights of the embedding */
	struct shf_buf factors;         /* F32: divisors of the frequencies of RoPE, one for each
	                                 * pair of items of a head; empty: there are none */
};
/* Reads config.json of the step. EINVAL: there is none, the architecture is unknown here, or a
 * value is missing or cannot be written. The caller releases *m after a failure, too. */
int shf_gguf_model_read(struct shf_gguf_model *m, struct sheaf_checkpoint *step,
                        struct sheaf_error *err);
/* Puts the metadata. rows: of the embedding, one for each token. */
void shf_gguf_model_put(struct shf_gguf_out *o, const struct shf_gguf_model *m, uint32_t rows);
void shf_gguf_model_release(struct shf_gguf_model *m);
#endif
