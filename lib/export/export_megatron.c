/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of Megatron-LM with one checkpoint of Megatron-Core in torch_dist: a file with the
 * number of the iteration, and its folder, a directory of torch.distributed.checkpoint with
 * metadata.json and common.pt. Tensors have the names that the optimizer and the model of
 * Megatron-Core give them, which maps make (qwen2-hf-megatron).
 *
 * Source: core/dist_checkpointing and core/optimizer/distrib_optimizer.py of Megatron-Core 0.16.1,
 * training/checkpointing.py of Megatron-LM, and checkpoints that it wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "dcp_write.h"
#include "err.h"
#include "export_place.h"
#include "step_foreign.h"
#include "torch_write.h"
#include "valid.h"

#define STATE "optimizer.state."

/* ---- names ---- */

/* Returns the name of a state of a parameter, <parameter>/<key>, in the arena: those of Adam are
 * called exp_avg and exp_avg_sq. NULL: no memory. */
static char *state_name(struct shf_arena *arena, const char *name)
{
	const char *slash = strrchr(name, '/'), *key = shf_torch_state_key(slash + 1);
	size_t n = strlen(STATE) + strlen(name) + 20;
	char *made = shf_arena_alloc(arena, n, 1);

	if (made)
		snprintf(made, n, STATE "%s.%.*s", key, (int)(slash - name), name);
	return made;
}

/* Returns the name of a master weight, in the arena. Megatron-Core before 0.14 called it
 * fp32_param. */
static char *master_name(struct shf_arena *arena, const char *name)
{
	static const char old[] = STATE "fp32_param.", now[] = STATE "param.";
	size_t n = sizeof(now) + strlen(name);
	char *made = shf_arena_alloc(arena, n, 1);

	if (strncmp(name, old, sizeof(old) - 1) == 0)
		name += sizeof(old) - 1;
	else if (strncmp(name, now, sizeof(now) - 1) == 0)
		name += sizeof(now) - 1;
	if (made)
		snprintf(made, n, "%s%s", now, name);
	return made;
}

/* Gives a tensor the name that Megatron-Core has for it. */
static int name_tensor(struct shf_layout *l, struct shf_lt_tensor *t, struct sheaf_error *err)
{
	const char *family = l->families[t->family].name;
	bool is_state = strncmp(t->name, STATE, strlen(STATE)) == 0;

	if (strcmp(family, "model") == 0 && !is_state)
		return 0;
	if (strcmp(family, "master_weights") == 0)
		t->name = master_name(&l->arena, t->name);
	else if (strcmp(family, "optimizer") == 0 && !is_state && strchr(t->name, '/'))
		t->name = state_name(&l->arena, t->name);
	else if (strcmp(family, "optimizer") || !is_state)
		return shf_fail(err, SHEAF_EINVAL, "family %.60s, tensor %.*s: has no place in a "
		                "checkpoint of Megatron; use --family to write one family that has "
		                "(model, master_weights, optimizer)", family,
		                shf_name_show(t->name), t->name);
	return t->name ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for the name of a tensor");
}

/* Gives all tensors their names in Megatron-Core. The tensors are placed before this is called:
 * placing needs them in the order of the layout, which is that of their names in the step. */
static int name_tensors(struct shf_layout *l, struct sheaf_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < l->tensors_n && rc == 0; i++)
		rc = name_tensor(l, &l->tensors[i], err);
	return rc == 0 ? shf_dcp_check_names(l, false, err) : rc;
}

/* ---- files ---- */

static const char *iteration_folder(char folder[40], struct sheaf_checkpoint *step)
{
	int64_t n = shf_step_said_number(step);

	if (n < 0)
		snprintf(folder, 40, "release/");
	else
		snprintf(folder, 40, "iter_%07" PRId64 "/", n);
	return folder;
}

static int megatron_place(struct shf_export_plan *plan, struct sheaf_checkpoint *step,
                          const struct shf_export_opts *opts, struct sheaf_error *err)
{
	char folder[40];
	int rc = shf_dcp_place(plan, step, opts, iteration_folder(folder, step), err);

	return rc == 0 ? name_tensors(&plan->out, err) : rc;
}

/* Makes common.pt, the values that are no tensors: here the number of the iteration. */
static int common_file(struct shf_export_plan *plan, int64_t iteration, struct shf_buf *out,
                       struct sheaf_error *err)
{
	struct shf_export_file file = { .name = "common.pt" };
	struct shf_zip_out z;
	struct shf_pkw w;

	shf_pkw_begin(&w, 2);
	shf_pkw_op(&w, SHF_PKW_EMPTY_DICT);
	shf_pkw_op(&w, SHF_PKW_MARK);
	shf_pkw_known_text(&w, "iteration");
	shf_pkw_int(&w, (uint64_t)iteration);
	shf_pkw_known_text(&w, "checkpoint_version");
	shf_pkw_float(&w, 3);
	shf_pkw_op(&w, SHF_PKW_SETITEMS);
	shf_torch_begin(&z, plan, &file, 0, &w);
	shf_zip_end(&z);
	*out = file.header;
	out->oom |= file.holes.oom;
	shf_buf_release(&file.holes);
	return !out->oom ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for common.pt");
}

/* Returns the number of the iteration, which the folder of the files names; 0 of a release. */
static int64_t iteration_of(const struct shf_export_plan *plan)
{
	int64_t n = 0;

	if (sscanf(plan->files[0].name, "iter_%" SCNd64, &n) != 1)
		n = 0;
	return n;
}

static const char *megatron_index(struct shf_export_plan *plan, const struct shf_export_opts *opts,
                                  size_t i, struct shf_buf *out, int *rc, struct sheaf_error *err)
{
	static const char *const names[] = { ".metadata", "metadata.json", "common.pt" };
	const char *file = plan->files[0].name;
	size_t folder = (size_t)(strchr(file, '/') - file), n = folder + 20;
	char *path = shf_arena_alloc(&plan->out.arena, n, 1);

	(void)opts;
	if (i > 3)
		return NULL;
	if (!path) {
		*rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the name of a file");
		return "";
	}
	if (i < 3)
		snprintf(path, n, "%.*s/%s", (int)folder, file, names[i]);
	if (i == 0)
		*rc = shf_dcp_metadata(plan, false, out, err);
	else if (i == 1)
		shf_buf_adds(out, "{\"sharded_backend\": \"torch_dist\", "
		             "\"sharded_backend_version\": 1, \"common_backend\": \"torch\", "
		             "\"common_backend_version\": 1}");
	else if (i == 2)
		*rc = common_file(plan, iteration_of(plan), out, err);
	else if (strncmp(file, "release/", 8) == 0)
		shf_buf_adds(out, "release");
	else
		shf_buf_addf(out, "%" PRId64, iteration_of(plan));
	if (*rc == 0 && out->oom)
		*rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the small files of a checkpoint");
	return i < 3 ? path : "latest_checkpointed_iteration.txt";
}

const struct shf_export_format shf_export_megatron = {
	.name = "megatron",
	.copies_files = true,
	.families = true,
	.copies_tied = true,
	.has_type = shf_torch_has_type,
	.place = megatron_place,
	.index = megatron_index,
};
