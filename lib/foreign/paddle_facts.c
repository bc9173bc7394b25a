/* SPDX-License-Identifier: Apache-2.0 */
/* Source: trainer/trainer.py, trainer_callback.py and plugins/unified_checkpoint of PaddleNLP
 * 3.0.0b4 and PaddleFormers 1.2, and checkpoints that both wrote. */
#include "paddle_facts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "foreign_json.h"
#include "json.h"
#include "paddle_tensor.h"

#define SMALL_MAX (UINT64_C(16) << 20)  /* bytes of a small file that is read */
#define TEXT_MAX 1024

/* Notes the plain values of a dictionary as <prefix>.<key>. */
static int dict_facts(struct shf_foreign *f, const struct shf_pk *v, const char *prefix,
                      struct sheaf_error *err)
{
	struct shf_buf key = SHF_BUF_INIT, text = SHF_BUF_INIT;
	int rc = 0;

	for (uint32_t i = 0; i < v->n && rc == 0; i++) {
		const struct shf_pk *k = v->u.a[2 * i];

		shf_buf_reset(&key);
		shf_buf_reset(&text);
		if (k->kind != SHF_PK_STR || k->n > TEXT_MAX ||
		    !shf_walk_scalar(&text, v->u.a[2 * i + 1]))
			continue;
		shf_buf_addf(&key, "%s.%.*s", prefix, (int)k->n, k->u.s);
		shf_buf_u8(&text, 0);
		rc = key.oom || text.oom
		   ? shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a note", f->path)
		   : shf_foreign_note(f, err, (const char *)key.data, key.len, "%.*s", TEXT_MAX,
		                      (const char *)text.data);
	}
	shf_buf_release(&key);
	shf_buf_release(&text);
	return rc;
}

/* Notes the plain values of a pickle: of a dictionary, or of an object with one as its state. */
static int pickle_facts(struct shf_foreign *f, const char *file, const char *prefix,
                        struct sheaf_error *err)
{
	const struct shf_pk *v = NULL;
	struct shf_pickle p = { 0 };
	struct shf_region r;
	uint32_t number;
	int rc = shf_foreign_add_file(f, file, strlen(file), &number, err);

	if (rc == 0)
		rc = shf_foreign_region(f, number, &r, err);
	if (rc < 0)
		return rc;
	rc = shf_paddle_read(&p, &r, NULL, err);
	if (rc == 0)
		v = p.root->kind == SHF_PK_CALL ? p.root->u.call->state : p.root;
	if (rc == 0 && v && v->kind == SHF_PK_DICT)
		rc = dict_facts(f, v, prefix, err);
	shf_pickle_release(&p);
	shf_foreign_region_end(f, number);
	return rc;
}

/* ---- whether the save has finished ---- */

/* Counts the names <start><number>. */
static uint64_t count_names(const struct shf_listing *l, const char *start)
{
	size_t n = strlen(start);
	uint64_t count = 0;

	for (size_t i = 0; i < shf_listing_n(l); i++) {
		const char *name = shf_listing_at(l, i);

		count += strncmp(name, start, n) == 0 && name[n] >= '0' && name[n] <= '9';
	}
	return count;
}

struct async_info { uint64_t ranks; bool no_model, no_master, no_optimizer; };

/* Reads async_save_info.json. Returns 1, or 0 if it has another form. */
static int read_async(struct shf_foreign *f, struct async_info *a, struct sheaf_error *err)
{
	struct shf_buf bytes = SHF_BUF_INIT;
	enum shf_json_kind kind = SHF_JSON_ERROR;
	struct shf_json j;
	int rc = shf_foreign_slurp(f, NULL, "async_save_info.json", SMALL_MAX, &bytes, err);

	*a = (struct async_info){ 0 };
	if (rc < 0) {
		shf_buf_release(&bytes);
		return rc;
	}
	shf_json_init(&j, bytes.data, bytes.len);
	if (shf_json_next(&j) == SHF_JSON_OBJECT)
		kind = shf_json_next(&j);
	for (; kind == SHF_JSON_KEY; kind = shf_json_next(&j)) {
		char key[40];

		strncpy(key, shf_json_text(&j, NULL), sizeof(key) - 1);
		key[sizeof(key) - 1] = '\0';
		kind = shf_json_next(&j);
		if (strcmp(key, "world_size") == 0 && !shf_json_u64(&j, &a->ranks))
			break;
		a->no_model |= strcmp(key, "skip_save_model_weight") == 0 && kind == SHF_JSON_TRUE;
		a->no_master |= strcmp(key, "remove_master_weight") == 0 && kind == SHF_JSON_TRUE;
		if (strcmp(key, "ignore_save_lr_and_optim") == 0 && kind == SHF_JSON_TRUE)
			a->no_master = a->no_optimizer = true;
		if (!shf_json_skip(&j, kind))
			break;
	}
	shf_json_release(&j);
	shf_buf_release(&bytes);
	return kind == SHF_JSON_OBJECT_END && a->ranks;
}

/* Notes whether the save has finished, by what the trainer left in the directory for that. */
static int complete_fact(struct shf_foreign *f, const struct shf_listing *l,
                         struct sheaf_error *err)
{
	struct { const char *start; bool off; } kinds[] = { { ".model_weight.done.", false },
		{ ".master_weight.done.", false }, { ".optimizer_weight.done.", false } };
	struct async_info a;
	int rc;

	if (shf_listing_has(l, ".checkpoint_done"))
		return shf_foreign_note(f, err, "complete", 8, "yes: .checkpoint_done is there");
	if (!shf_listing_has(l, "async_save_info.json")) {
		uint64_t saved = count_names(l, "saved_signal_");
		uint64_t pending = count_names(l, "save_signal_TMP_");

		if (pending)
			return shf_foreign_note(f, err, "complete", 8, "no: %" PRIu64 " ranks have "
			                        "not assembled their averages "
			                        "(save_signal_TMP_)", pending);
		return saved ? shf_foreign_note(f, err, "complete", 8, "%" PRIu64 " ranks say so "
		                                "(saved_signal_); how many there were is not said",
		                                saved)
		             : shf_foreign_note(f, err, "complete", 8, "not said: there is neither "
		                                ".checkpoint_done nor async_save_info.json");
	}
	rc = read_async(f, &a, err);
	if (rc <= 0)
		return rc < 0 ? rc : shf_foreign_note(f, err, "complete", 8, "not said: "
		                                      "async_save_info.json is of unknown "
		                                      "structure");
	kinds[0].off = a.no_model;
	kinds[1].off = a.no_master;
	kinds[2].off = a.no_optimizer;
	for (int i = 0; i < 3; i++) {
		uint64_t n = count_names(l, kinds[i].start);

		if (!kinds[i].off && n < a.ranks)
			return shf_foreign_note(f, err, "complete", 8, "no: %s<rank> is there for "
			                        "%" PRIu64 " of %" PRIu64 " ranks; the rest may "
			                        "be in output_signal_dir",
			                        kinds[i].start, n, a.ranks);
	}
	return shf_foreign_note(f, err, "complete", 8, "yes: all %" PRIu64 " ranks say so",
	                        a.ranks);
}

int shf_paddle_facts(struct shf_foreign *f, const struct shf_listing *l, struct sheaf_error *err)
{
	static const struct { const char *file, *prefix; } files[] = {
		{ "scheduler.pdparams", "scheduler" }, { "scaler.pdparams", "scaler" } };
	uint64_t n = count_names(l, "rng_state_");
	int rc = complete_fact(f, l, err);

	/* sheaf export writes both of them, with the same values. */
	if (rc == 0 && shf_listing_has(l, "trainer_state.json"))
		rc = shf_foreign_json_notes(f, NULL, "trainer_state.json", "trainer_state", err);
	else if (rc == 0 && shf_listing_has(l, "trainer_state.bin"))
		rc = pickle_facts(f, "trainer_state.bin", "trainer_state", err);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && rc == 0; i++)
		if (shf_listing_has(l, files[i].file))
			rc = pickle_facts(f, files[i].file, files[i].prefix, err);
	if (rc == 0 && (n || shf_listing_has(l, "rng_state.pth")))
		rc = shf_foreign_note(f, err, "rng_state", 9, "%" PRIu64 " file%s of random "
		                      "generators, which are not read", n ? n : 1,
		                      n > 1 ? "s" : "");
	return rc;
}
