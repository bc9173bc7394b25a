/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of a tokenizer beside a checkpoint, and reads them. */
#include <string.h>
#include "err.h"
#include "gguf_vocab.h"
#include "step_beside.h"

#define TOKENIZER "tokenizer.json"

/* Reads the chat template: a member of tokenizer_config.json, or else a file of its own. */
static int read_chat(struct shf_gguf_vocab *v, struct sheaf_checkpoint *step,
                     struct sheaf_error *err)
{
	const char *inside = shf_json_fact_text(&v->config, "chat_template");
	int rc = 0;

	if (inside)
		shf_buf_adds(&v->chat, inside);
	else
		rc = shf_step_beside(step, "chat_template.jinja", &v->chat, err);
	if (v->chat.len)
		shf_buf_u8(&v->chat, 0);
	if (rc >= 0 && v->chat.oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its tokenizer", step->path);
	return rc < 0 ? rc : 0;
}

/* Reads a JSON file beside the step, if there is one. Returns 1 if there is. */
static int read_json(struct sheaf_checkpoint *step, const char *name,
                     int (*leaf)(void *, const struct shf_json_leaf *, struct sheaf_error *),
                     void *arg, struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	int rc = shf_step_beside(step, name, &text, err), walked = 0;

	if (rc > 0)
		walked = shf_json_walk(text.data, text.len, name, leaf, arg, err);
	shf_buf_release(&text);
	return walked < 0 ? walked : rc;
}

int shf_gguf_vocab_read(struct shf_gguf_vocab *v, struct sheaf_checkpoint *step, size_t rows,
                        struct sheaf_error *err)
{
	struct shf_buf spm = SHF_BUF_INIT;
	int rc = shf_step_beside(step, "tokenizer.model", &spm, err), json = 0;

	v->rows = rows;
	v->is_spm = rc > 0;
	v->pre = "default";
	v->tokens = shf_zalloc(rows, sizeof(*v->tokens));
	if (rc >= 0 && !v->tokens)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its tokenizer", step->path);
	if (rc > 0)
		rc = shf_gguf_spm_read(v, spm.data, spm.len, err);
	shf_buf_release(&spm);
	if (rc == 0)
		rc = json = read_json(step, TOKENIZER, shf_gguf_tokenizer_leaf, v, err);
	if (rc >= 0 && !v->is_spm)
		rc = json ? shf_gguf_vocab_check(v, err)
		          : shf_fail(err, SHEAF_EINVAL, "%s: has neither " TOKENIZER " nor "
		                     "tokenizer.model, and a GGUF file needs the tokenizer",
		                     step->path);
	if (rc >= 0 && v->is_spm)
		rc = read_json(step, "added_tokens.json", shf_gguf_added_leaf, v, err);
	if (rc >= 0)
		rc = read_json(step, "tokenizer_config.json", shf_gguf_config_leaf, v, err);
	if (rc >= 0)
		rc = shf_gguf_vocab_end(v, err);
	return rc < 0 ? rc : read_chat(v, step, err);
}
