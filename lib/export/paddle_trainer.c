/* SPDX-License-Identifier: Apache-2.0 */
/* Source: trainer/trainer_callback.py and trainer.py of PaddleNLP 3.0.0b4 and PaddleFormers 1.2,
 * and optimizer/lr.py of Paddle 3.3. */
#include "paddle_trainer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "decimal.h"
#include "err.h"
#include "export_adam.h"
#include "paddle_powers.h"
#include "pickle_write.h"
#include "step_foreign.h"

struct trainer {
	struct sheaf_checkpoint *step;
	int64_t number;                 /* of steps of the training */
};

#define NUMBER_MAX 1e15         /* all whole numbers up to it are numbers of F64, too */

/* Returns the value of the note trainer_state.<key>, or 0 if there is no such note, or its value is
 * not a number from 0 to NUMBER_MAX. */
static double noted(const struct trainer *t, const char *key)
{
	struct shf_buf name = SHF_BUF_INIT;
	const char *text;
	char *end;
	double x = 0;

	shf_buf_addf(&name, "trainer_state.%s", key);
	shf_buf_u8(&name, 0);
	text = name.oom ? NULL : shf_manifest_note(&t->step->manifest, (const char *)name.data);
	if (text)
		x = shf_decimal_strtod(text, &end);
	shf_buf_release(&name);
	return x > 0 && x <= NUMBER_MAX && !*end ? x : 0;
}

/* The members of the state of both trainers. json: the value, as in a training that has not logged
 * anything. NULL: the value is a number, that of a note or 0. */
static const struct member { const char *key; bool is_integer; const char *json; } members[] = {
	{ "epoch", false, NULL }, { "global_step", true, NULL }, { "consumed_samples", true, NULL },
	{ "max_steps", true, NULL }, { "num_train_epochs", true, NULL },
	{ "total_flos", false, NULL }, { "log_history", false, "[]" },
	{ "best_metric", false, "null" }, { "best_model_checkpoint", false, "null" },
	{ "is_local_process_zero", false, "true" }, { "is_world_process_zero", false, "true" },
	{ "trial_name", false, "null" }, { "trial_params", false, "null" },
};
#define MEMBERS_N (sizeof(members) / sizeof(members[0]))

static double value_of(const struct trainer *t, const struct member *m)
{
	return strcmp(m->key, "global_step") == 0 ? (double)t->number : noted(t, m->key);
}

static int put_json(struct shf_export_plan *plan, const struct trainer *t, struct sheaf_error *err)
{
	struct shf_buf out = SHF_BUF_INIT;

	for (size_t i = 0; i < MEMBERS_N; i++) {
		const struct member *m = &members[i];

		shf_buf_addf(&out, "%s\n  \"%s\": ", i ? "," : "{", m->key);
		if (m->json)
			shf_buf_adds(&out, m->json);
		else
			shf_buf_addf(&out, "%.17g", value_of(t, m));
	}
	shf_buf_adds(&out, "\n}\n");
	return shf_export_small_add(plan, "trainer_state.json", &out, err);
}

static void put_state_member(struct shf_pkw *w, const struct trainer *t, const struct member *m)
{
	shf_pkw_known_text(w, m->key);
	if (!m->json && m->is_integer)
		shf_pkw_int(w, (uint64_t)value_of(t, m));
	else if (!m->json)
		shf_pkw_float(w, value_of(t, m));
	else
		shf_pkw_op(w, m->json[0] == '[' ? SHF_PKW_EMPTY_LIST :
		              m->json[0] == 't' ? SHF_PKW_NEWTRUE : SHF_PKW_NONE);
}

static int put_pickle(struct shf_export_plan *plan, const struct trainer *t,
                      struct sheaf_error *err)
{
	struct shf_pkw w;

	shf_pkw_begin(&w, 4);
	shf_pkw_object_begin(&w, "paddleformers.trainer.trainer_callback", "TrainerState");
	for (size_t i = 0; i < MEMBERS_N; i++)
		put_state_member(&w, t, &members[i]);
	shf_pkw_object_end(&w);
	shf_pkw_end(&w);
	return shf_export_small_add(plan, "trainer_state.bin", &w.out, err);
}

/* Adds the file from which a schedule of Paddle is restored: the number of its last step, and the
 * learning rate of that step. */
static int put_schedule(struct shf_export_plan *plan, const struct trainer *t, double rate,
                        struct sheaf_error *err)
{
	const char *said = shf_manifest_note(&t->step->manifest, "scheduler.last_epoch");
	int64_t last = said ? strtoll(said, NULL, 10) : t->number;
	struct shf_pkw w;

	shf_pkw_begin(&w, 4);
	shf_pkw_op(&w, SHF_PKW_EMPTY_DICT);
	shf_pkw_op(&w, SHF_PKW_MARK);
	shf_pkw_known_text(&w, "last_epoch");
	shf_pkw_int(&w, last < 0 ? 0 : (uint64_t)last);
	shf_pkw_known_text(&w, "last_lr");
	shf_pkw_float(&w, rate);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_pkw_end(&w);
	return shf_export_small_add(plan, "scheduler.pdparams", &w.out, err);
}

static bool has_moments(const struct shf_layout *l)
{
	for (size_t i = 0; i < l->tensors_n; i++)
		if (shf_adam_is_moment(&l->tensors[i]) &&
		    shf_paddle_is_optimizer(&l->families[l->tensors[i].family]))
			return true;
	return false;
}

int shf_paddle_trainer_add(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct trainer t = { step, shf_step_said_number(step) };
	double rate = 0;
	int rc = 0;

	if (opts->family || !has_moments(&plan->out))
		return 0;
	if (t.number < 0)
		rc = shf_export_updates_find(&t.number, step, opts, err);
	if (t.number < 0)
		t.number = 0;
	if (rc == 0)
		rc = shf_export_rate_find(&rate, step, err);
	if (rc == 0)
		rc = put_json(plan, &t, err);
	if (rc == 0)
		rc = put_pickle(plan, &t, err);
	return rc == 0 && rate > 0 ? put_schedule(plan, &t, rate, err) : rc;
}
