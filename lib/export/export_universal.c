/* SPDX-License-Identifier: Apache-2.0 */
/* A universal checkpoint of DeepSpeed, from which training goes on with ZeRO 1, 2 and 3 and with
 * BF16_Optimizer on any number of ranks. The directory has a file latest_universal, and the folder
 * that it names:
 *   zero/<parameter>/fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt
 *     the weights, the moments and the number of updates of a parameter
 *   zero/optimizer_state.pt
 *     the betas
 *   mp_rank_00_model_states.pt
 *     what is said of the training and of the model, and the weights in the types of the model
 *   zero_pp_rank_0_mp_rank_00_model_states.pt
 *     the same without weights, which ZeRO 3 looks for instead
 * Weights that are trained in F32 without masters are in fp32.pt only.
 *
 * Source: runtime/engine.py, runtime/base_optimizer.py, runtime/zero/stage3.py and checkpoint/
 * of DeepSpeed 0.19.8. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export_adam.h"
#include "export_place.h"
#include "safetensors.h"
#include "step_foreign.h"
#include "torch_write.h"
#include "valid.h"

#define VERSION "0.19.8"        /* whose format this is; DeepSpeed refuses a checkpoint of none */
/* DeepSpeed walks over its groups of parameters and over those of the checkpoint together, and
 * leaves the rest as it was when one list ends. So there are more than any training has. */
#define GROUPS 1000

struct place {                  /* of a tensor */
	size_t param_n;                 /* bytes of the name of its parameter, which its own name
	                                 * begins with */
	const char *file;               /* in the folder of the parameter, without .pt; NULL: it is
	                                 * in the file of the model */
	uint32_t record;                /* its number there */
	bool left_out;
};
struct universal {              /* a checkpoint that is planned */
	struct shf_export_plan *plan;
	struct sheaf_checkpoint *step;
	struct sheaf_error *err;
	struct shf_export_adam adam;
	bool step_is_asked;             /* the number of updates was given, and is that of all */
	int64_t number;                 /* of steps of the training */
	char folder[48];
	struct place *places;           /* by tensor of the plan; in its arena */
	uint32_t files;                 /* how many are made */
};

/* ---- which tensors ---- */

/* Finds <the first n bytes of name><tail> in a family of the plan. */
static const struct shf_lt_tensor *planned_of(const struct universal *u, const char *family,
                                              const char *name, size_t n, const char *tail)
{
	char whole[SHF_NAME_MAX + 32];
	int64_t i;

	if (n > SHF_NAME_MAX)
		return NULL;
	snprintf(whole, sizeof(whole), "%.*s%s", (int)n, name, tail);
	i = shf_layout_find(&u->plan->out, family, whole);
	return i < 0 ? NULL : &u->plan->out.tensors[i];
}

static int unfit(const struct universal *u, const struct shf_lt_tensor *t, const char *why)
{
	return shf_fail(u->err, SHEAF_EINVAL, "tensor %.*s: %s", shf_name_show(t->name), t->name,
	                why);
}

/* Checks that a parameter can have a folder. */
static int check_param_name(const struct universal *u, const struct shf_lt_tensor *t, size_t n)
{
	char name[256];

	if (n < sizeof(name)) {
		memcpy(name, t->name, n);
		name[n] = '\0';
	}
	return n < sizeof(name) && shf_plain_is_valid(name) && strcmp(name, "optimizer_state.pt")
	       ? 0 : unfit(u, t, "DeepSpeed has a folder for each parameter, and no folder can "
	                         "have this name; rename it (--map)");
}

static int place_weight(const struct universal *u, const struct shf_lt_tensor *t, struct place *p)
{
	size_t n = strlen(t->name);

	if (!planned_of(u, "optimizer", t->name, n, SHF_ADAM_MOMENT) ||
	    planned_of(u, "master_weights", t->name, n, ""))
		return 0;
	p->param_n = n;
	p->file = "fp32";
	return t->dtype == SHEAF_F32 ? check_param_name(u, t, n)
	     : unfit(u, t, "has moments, but is not F32 and has no master weights, from which "
	                   "DeepSpeed goes on; use a checkpoint that has them in family "
	                   "master_weights");
}

static int place_master(const struct universal *u, const struct shf_lt_tensor *t, struct place *p)
{
	size_t n = strlen(t->name);

	p->param_n = n;
	p->file = "fp32";
	if (t->dtype != SHEAF_F32)
		return unfit(u, t, "is a master weight, but not F32");
	if (!planned_of(u, "optimizer", t->name, n, SHF_ADAM_MOMENT))
		return unfit(u, t, "is a master weight without moments, and DeepSpeed reads both "
		                   "together");
	return check_param_name(u, t, n);
}

/* Moments become F32, as DeepSpeed has them. */
static int place_moment(const struct universal *u, struct shf_lt_tensor *t, const struct place *p)
{
	const struct shf_lt_tensor *w = planned_of(u, "master_weights", t->name, p->param_n, "");

	w = w ? w : planned_of(u, "model", t->name, p->param_n, "");
	if (!w || w->items.ndim != t->items.ndim ||
	    memcmp(w->items.dim, t->items.dim, (size_t)t->items.ndim * sizeof(t->items.dim[0])))
		return unfit(u, t, "is a state of the optimizer for a parameter that has no "
		                   "weights, or weights of another shape");
	if (!planned_of(u, "optimizer", t->name, p->param_n, SHF_ADAM_MOMENT) ||
	    !planned_of(u, "optimizer", t->name, p->param_n, "/moment2_0"))
		return unfit(u, t, "is a state of a parameter that has not both moments of Adam");
	if (t->dtype == SHEAF_BF16 || t->dtype == SHEAF_F16) {
		t->dtype = SHEAF_F32;
		t->bytes *= 2;
	}
	return t->dtype == SHEAF_F32 ? 0
	     : unfit(u, t, "is a state of the optimizer, but not F32, BF16 or F16");
}

/* The powers of the betas, which Paddle has, follow from the betas and the number of updates. */
static int place_state(const struct universal *u, struct shf_lt_tensor *t, struct place *p)
{
	static const struct { const char *ours, *theirs; } names[] = {
		{ "moment1_0", "exp_avg" }, { "moment2_0", "exp_avg_sq" }, { "step", "step" },
		{ "beta1_pow_acc_0", "" }, { "beta2_pow_acc_0", "" } };
	const char *slash = strrchr(t->name, '/'), *kind = slash ? slash + 1 : "";

	p->param_n = slash ? (size_t)(slash - t->name) : 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(kind, names[i].ours) == 0)
			p->file = names[i].theirs;
	if (!p->file)
		return unfit(u, t, "is a state of the optimizer that DeepSpeed's Adam does not "
		                   "have");
	p->left_out = !*p->file || (u->step_is_asked && strcmp(kind, "step") == 0);
	if (p->left_out)
		return 0;
	if (strcmp(kind, "step"))
		return place_moment(u, t, p) < 0 ? SHEAF_EINVAL
		                                 : check_param_name(u, t, p->param_n);
	return t->dtype == SHEAF_F32 && t->bytes == 4 ? 0
	     : unfit(u, t, "is the number of updates of a parameter, but not one F32");
}

/* Takes the tensors that go nowhere out of the plan. */
static void leave_out(struct universal *u)
{
	struct shf_layout *l = &u->plan->out;
	uint32_t records = 0;
	size_t n = 0;

	for (size_t i = 0; i < l->tensors_n; i++) {
		struct place p = u->places[i];

		if (p.left_out)
			continue;
		p.record = p.file ? 0 : records++;
		u->places[n] = p;
		u->plan->from[n] = u->plan->from[i];
		l->tensors[n++] = l->tensors[i];
	}
	l->tensors_n = n;
}

/* Decides where each tensor goes, and takes those out of the plan that go nowhere. */
static int choose_places(struct universal *u)
{
	struct shf_layout *l = &u->plan->out;
	int rc = 0;

	u->places = shf_arena_alloc(&l->arena, l->tensors_n, sizeof(*u->places));
	if (!u->places)
		return shf_fail(u->err, SHEAF_ENOMEM, "no memory to place %zu tensors",
		                l->tensors_n);
	shf_export_count(l);
	for (size_t i = 0; i < l->tensors_n && rc == 0; i++) {
		struct shf_lt_tensor *t = &l->tensors[i];
		const char *family = l->families[t->family].name;
		struct place *p = &u->places[i];

		*p = (struct place){ .file = NULL };
		if (strcmp(family, "model") == 0)
			rc = place_weight(u, t, p);
		else if (strcmp(family, "master_weights") == 0)
			rc = place_master(u, t, p);
		else if (strcmp(family, "optimizer") == 0)
			rc = place_state(u, t, p);
		else
			p->left_out = true;
	}
	if (rc == 0)
		leave_out(u);
	return rc;
}

/* ---- files ---- */

static void dict_begin(struct shf_pkw *w)
{
	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	shf_pkw_op(w, SHF_PKW_MARK);
}

static void put_member(struct shf_pkw *w, const char *key, int64_t v)
{
	shf_pkw_known_text(w, key);
	shf_pkw_int(w, (uint64_t)v);
}

/* Ends an archive, which is the next file. name NULL: no memory. */
static int archive_end(struct universal *u, struct shf_zip_out *z, const char *name)
{
	return shf_export_file_end(u->plan, u->files++, name, shf_zip_end(z), u->err);
}

/* Makes a name of a file in the folder of the checkpoint. */
static const char *name_of(struct universal *u, const char *folder, const char *param, size_t n,
                           const char *file)
{
	struct shf_buf text = SHF_BUF_INIT;
	const char *name;

	shf_buf_addf(&text, "%s/%s", u->folder, folder);
	shf_buf_add(&text, param, n);
	shf_buf_addf(&text, "%s%s.pt", n ? "/" : "", file);
	name = text.oom ? NULL : shf_arena_strdup(&u->plan->out.arena, (const char *)text.data,
	                                          text.len);
	shf_buf_release(&text);
	return name;
}

/* Makes the file of tensor i: a dictionary with it, or the tensor itself if it is a number of
 * updates. */
static int tensor_file(struct universal *u, uint32_t i)
{
	const struct shf_lt_tensor *t = &u->plan->out.tensors[i];
	const struct place *p = &u->places[i];
	bool bare = strcmp(p->file, "step") == 0;
	struct shf_zip_out z;
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	if (!bare) {
		dict_begin(&w);
		put_member(&w, "cat_dim", 0);
		shf_pkw_known_text(&w, "param");
	}
	shf_torch_put_tensor(&w, t, 0);
	if (!bare)
		shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_torch_begin(&z, u->plan, &u->plan->files[u->files], 0, &w);
	shf_zip_add_tensor(&z, SHF_TORCH_ARCHIVE "data/0", NULL, 0, i);
	u->plan->out.tensors[i].file = u->files;
	return archive_end(u, &z, name_of(u, "zero/", t->name, p->param_n, p->file));
}

/* Makes step.pt of the parameter that tensor i is of: the number of updates, as torch has it. */
static int step_file(struct universal *u, uint32_t i)
{
	const struct shf_lt_tensor t = { .dtype = SHEAF_F32, .bytes = 4 };
	float updates = (float)u->adam.step;
	struct shf_zip_out z;
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	shf_torch_put_tensor(&w, &t, 0);
	shf_torch_begin(&z, u->plan, &u->plan->files[u->files], 0, &w);
	shf_zip_add_aligned(&z, SHF_TORCH_ARCHIVE "data/0", &updates, sizeof(updates));
	return archive_end(u, &z, name_of(u, "zero/", u->plan->out.tensors[i].name,
	                               u->places[i].param_n, "step"));
}

/* Puts a list of groups of parameters. */
static void put_groups(struct shf_pkw *w, const struct universal *u, int n)
{
	shf_pkw_op(w, SHF_PKW_EMPTY_LIST);
	for (int i = 0; i < n; i++) {
		dict_begin(w);
		shf_pkw_known_text(w, "betas");
		shf_pkw_float(w, u->adam.beta[0]);
		shf_pkw_float(w, u->adam.beta[1]);
		shf_pkw_op(w, SHF_PKW_TUPLE2);
		shf_pkw_known_text(w, "params");
		shf_pkw_op(w, SHF_PKW_EMPTY_LIST);
		shf_pkw_int(w, (uint64_t)i);
		shf_pkw_op(w, SHF_PKW_APPEND);
		shf_pkw_op(w, SHF_PKW_SETITEMS);
		shf_pkw_op(w, SHF_PKW_APPEND);
	}
}

/* ZeRO 1 and 2 read the groups of parameters, and ZeRO 3 reads those of optimizer_state_dict. Its
 * number of updates is no tensor, because ZeRO 3 would give the same tensor to all parts of the
 * optimizer, and each of them would count in it. */
static int optimizer_state_file(struct universal *u)
{
	struct shf_zip_out z;
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	dict_begin(&w);
	shf_pkw_known_text(&w, "ds_version");
	shf_pkw_known_text(&w, VERSION);
	shf_pkw_known_text(&w, "param_groups");
	put_groups(&w, u, GROUPS);
	shf_pkw_known_text(&w, "optimizer_state_dict");
	dict_begin(&w);
	shf_pkw_known_text(&w, "state");
	dict_begin(&w);
	shf_pkw_int(&w, 0);
	dict_begin(&w);
	put_member(&w, "step", u->adam.step);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_pkw_known_text(&w, "param_groups");
	put_groups(&w, u, 1);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_torch_begin(&z, u->plan, &u->plan->files[u->files], 0, &w);
	return archive_end(u, &z, name_of(u, "zero/", NULL, 0, "optimizer_state"));
}

/* ---- the files of the model ---- */

/* Puts a dictionary of the weights that are in this file. Tied names have the same storage. */
static void put_module(struct shf_pkw *w, const struct universal *u)
{
	const struct shf_layout *l = &u->plan->out, *from = &u->step->layout;
	size_t n = 0;

	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (size_t i = 0; i < l->tensors_n; i++) {
		const char *name = l->tensors[i].name;

		if (u->places[i].file)
			continue;
		shf_pkw_next_item(w, n++);
		shf_pkw_text(w, name, strlen(name));
		shf_torch_put_tensor(w, &l->tensors[i], u->places[i].record);
	}
	for (size_t k = 0; k < from->tied_n; k++) {
		const struct shf_lt_tied *t = &from->tied[k];
		int64_t i = strcmp(from->families[t->family].name, "model") ? -1
		          : shf_layout_find(l, "model", t->to);

		if (i < 0 || u->places[i].file)
			continue;
		shf_pkw_next_item(w, n++);
		shf_pkw_text(w, t->name, strlen(t->name));
		shf_torch_put_tensor(w, &l->tensors[i], u->places[i].record);
	}
	if (n)
		shf_pkw_op(w, SHF_PKW_SETITEMS);
}

/* Puts the names of the parameters with their shapes. */
static void put_shapes(struct shf_pkw *w, const struct universal *u)
{
	const struct shf_layout *l = &u->plan->out;
	size_t n = 0;

	shf_pkw_op(w, SHF_PKW_EMPTY_LIST);
	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (size_t i = 0; i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &l->tensors[i];

		if (!u->places[i].file || strcmp(u->places[i].file, "exp_avg"))
			continue;
		shf_pkw_next_item(w, n++);
		shf_pkw_text(w, t->name, u->places[i].param_n);
		shf_torch_put_size(w, t->items.dim, t->items.ndim);
	}
	shf_pkw_op(w, SHF_PKW_SETITEMS);
	shf_pkw_op(w, SHF_PKW_APPEND);
}

/* Puts which names are tied, and to which. */
static void put_ties(struct shf_pkw *w, const struct universal *u)
{
	const struct shf_layout *from = &u->step->layout;
	size_t n = 0;

	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	for (size_t k = 0; k < from->tied_n; k++) {
		const struct shf_lt_tied *t = &from->tied[k];

		if (strcmp(from->families[t->family].name, "model"))
			continue;
		shf_pkw_next_item(w, n++);
		shf_pkw_text(w, t->name, strlen(t->name));
		shf_pkw_text(w, t->to, strlen(t->to));
	}
	if (n)
		shf_pkw_op(w, SHF_PKW_SETITEMS);
}

/* Returns whether DeepSpeed gives a member of this name a meaning of its own. */
static bool is_of_deepspeed(const char *key)
{
	static const char *const own[] = { "module", "buffer_names", "optimizer", "param_shapes",
		"frozen_param_shapes", "frozen_param_fragments", "shared_params", "lr_scheduler",
		"data_sampler", "random_ltd", "sparse_tensor_module_names", "skipped_steps",
		"global_step", "global_steps", "global_samples", "dp_world_size", "mp_world_size",
		"ds_config", "ds_version", "adam", "universal_checkpoint_info" };

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (strncmp(key, own[i], strlen(own[i])) == 0 &&
		    (key[strlen(own[i])] == '\0' || key[strlen(own[i])] == '.'))
			return true;
	return false;
}

/* Puts the notes of the step, which load_checkpoint returns as the state of the client. */
static void put_notes(struct shf_pkw *w, const struct universal *u)
{
	const struct shf_manifest *m = &u->step->manifest;

	for (size_t i = 0; i < m->notes_n; i++)
		if (!is_of_deepspeed(m->notes[i].key)) {
			shf_pkw_text(w, m->notes[i].key, strlen(m->notes[i].key));
			shf_pkw_text(w, m->notes[i].value, strlen(m->notes[i].value));
		}
}

/* Makes a file of the model. order: in which its tensors follow; NULL: it has none. */
static int module_file(struct universal *u, const uint32_t *order, const char *name)
{
	struct shf_layout *l = &u->plan->out;
	struct shf_zip_out z;
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	dict_begin(&w);
	shf_pkw_known_text(&w, "module");
	if (order)
		put_module(&w, u);
	else
		shf_pkw_op(&w, SHF_PKW_EMPTY_DICT);
	shf_pkw_known_text(&w, "param_shapes");
	put_shapes(&w, u);
	shf_pkw_known_text(&w, "shared_params");
	put_ties(&w, u);
	shf_pkw_known_text(&w, "optimizer");
	shf_pkw_op(&w, SHF_PKW_NONE);
	shf_pkw_known_text(&w, "lr_scheduler");
	shf_pkw_op(&w, SHF_PKW_NONE);
	put_member(&w, "global_steps", u->number);
	put_member(&w, "skipped_steps", 0);
	put_member(&w, "dp_world_size", 1);
	put_member(&w, "mp_world_size", 1);
	shf_pkw_known_text(&w, "ds_version");
	shf_pkw_known_text(&w, VERSION);
	put_notes(&w, u);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_torch_begin(&z, u->plan, &u->plan->files[u->files], 0, &w);
	for (size_t k = 0; order && k < l->tensors_n; k++) {
		char record[40];

		if (u->places[order[k]].file)
			continue;
		snprintf(record, sizeof(record), SHF_TORCH_ARCHIVE "data/%" PRIu32,
		         u->places[order[k]].record);
		shf_zip_add_tensor(&z, record, NULL, 0, order[k]);
		l->tensors[order[k]].file = u->files;
	}
	return archive_end(u, &z, name_of(u, "", NULL, 0, name));
}

/* ---- the checkpoint ---- */

/* Finds the number of steps of the training. If the source does not say it, it is the number of
 * updates. */
static void find_number(struct universal *u)
{
	u->number = shf_step_said_number(u->step);
	if (u->number < 0)
		u->number = u->adam.step;
	snprintf(u->folder, sizeof(u->folder), "global_step%" PRId64 "_universal", u->number);
}

/* Whether step.pt is made for the parameter of tensor i, which is its first moment, because the
 * source has no such tensor that is taken. */
static bool needs_step(const struct universal *u, size_t i)
{
	const struct place *p = &u->places[i];

	return p->file && strcmp(p->file, "exp_avg") == 0 &&
	       (u->step_is_asked || !planned_of(u, "optimizer", u->plan->out.tensors[i].name,
	                                        p->param_n, "/step"));
}

static int make_files(struct universal *u)
{
	struct shf_layout *l = &u->plan->out;
	uint32_t *order = shf_export_by_source(u->plan, u->step, u->err), f;
	size_t n = 4;
	int rc;

	for (size_t i = 0; i < l->tensors_n; i++)
		n += (size_t)(u->places[i].file != NULL) + (size_t)needs_step(u, i);
	rc = order ? shf_export_files_make(u->plan, n, true, u->err) : SHEAF_ENOMEM;
	for (size_t k = 0; k < l->tensors_n && rc == 0; k++)
		if (u->places[order[k]].file)
			rc = tensor_file(u, order[k]);
	for (size_t i = 0; i < l->tensors_n && rc == 0; i++)
		if (needs_step(u, i))
			rc = step_file(u, (uint32_t)i);
	if (rc == 0)
		rc = optimizer_state_file(u);
	if (rc == 0)
		rc = module_file(u, order, "mp_rank_00_model_states");
	if (rc == 0)
		rc = module_file(u, NULL, "zero_pp_rank_0_mp_rank_00_model_states");
	if (rc < 0)
		return rc;
	f = u->files++;
	shf_buf_adds(&u->plan->files[f].header, u->folder);
	rc = shf_export_file_end(u->plan, f, "latest_universal", strlen(u->folder), u->err);
	return rc == 0 ? shf_layout_number(l, u->err) : rc;
}

/* Checks that there is something to go on from. */
static int check_moments(const struct universal *u)
{
	const struct shf_layout *l = &u->plan->out;
	bool has = false;

	for (size_t i = 0; i < l->tensors_n; i++)
		has |= shf_adam_is_moment(&l->tensors[i]) &&
		       strcmp(l->families[l->tensors[i].family].name, "optimizer") == 0;
	return has ? 0 : shf_fail(u->err, SHEAF_EINVAL, "%s: has no moments of Adam "
	                          "(<parameter>/moment1_0 in family optimizer), from which "
	                          "DeepSpeed would go on; use another format for the weights "
	                          "alone, such as hf", u->step->path);
}

static int universal_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                           const struct shf_export_opts *opts, struct sheaf_error *err)
{
	struct universal u = { .plan = plan, .step = step, .err = err,
		.step_is_asked = opts->adam_step > 0 };
	int rc;

	if (opts->family)
		return shf_fail(err, SHEAF_EINVAL, "%s: a universal checkpoint of DeepSpeed has "
		                "the weights and the moments; write all families "
		                "(how.all_families, --all)", step->path);
	/* This names the states of another optimizer, such as the momentum of SGD, which has no
	 * moments of Adam. */
	rc = choose_places(&u);
	if (rc == 0)
		rc = check_moments(&u);
	if (rc == 0)
		rc = shf_export_adam_find(&u.adam, step, opts, err);
	if (rc < 0)
		return rc;
	find_number(&u);
	return make_files(&u);
}

const struct shf_export_format shf_export_universal = {
	.name = "deepspeed-universal",
	.is_divided = true,
	.copies_files = true,
	.families = true,
	.ties_states = true,
	.has_type = shf_torch_has_type,
	.place = universal_place,
};
