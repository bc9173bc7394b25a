/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that Hugging Face's Trainer (checkpoint-<N>) and accelerate (save_state) write: weights
 * in safetensors files or torch.save files, and beside them optimizer.pt or optimizer.bin, a
 * torch.save file with the state_dict of the optimizer, whose parameters are numbers there.
 *
 * accelerate saves several models and optimizers, if it was given them: model_1.safetensors or
 * pytorch_model_1.bin, optimizer_1.bin and so on, in the order in which it was given them. Nothing
 * says which optimizer updates which model. If there are as many optimizers as models, optimizer i
 * is read as that of model i, which accelerate itself assumes with FSDP.
 *
 * Source: trainer.py of transformers 5.24, checkpointing.py of accelerate 1.15, and folders that
 * they wrote. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "foreign_json.h"
#include "torch_folder.h"
#include "torch_states.h"
#include "torch_zip.h"
#include "zip_verify.h"

#define MOST 16                 /* how many models and how many optimizers are read */

/* Makes the name of number i: <stem><tail> for 0, <stem>_1<tail> for 1, and so on. */
static void numbered_name(char name[40], const char *stem, int i, const char *tail)
{
	if (i)
		snprintf(name, 40, "%s_%d%s", stem, i, tail);
	else
		snprintf(name, 40, "%s%s", stem, tail);
}

/* Returns the name of the file of number i, which ends in .pt or .bin. NULL: there is none. */
static const char *numbered_file(const struct shf_listing *l, const char *stem, int i,
                                 char name[40])
{
	numbered_name(name, stem, i, ".pt");
	if (!shf_listing_has(l, name))
		numbered_name(name, stem, i, ".bin");
	return shf_listing_has(l, name) ? name : NULL;
}

static int is_hf_trainer(const struct shf_sys *sys, int dir, const char *path, const char **why,
                         struct sheaf_error *err)
{
	struct shf_arena arena = { 0 };
	struct shf_listing l;
	const char *file = NULL;
	char name[40];
	int rc = shf_listing_read(&l, &arena, sys, dir, path, err);

	if (rc == 0 && shf_torch_folder_has_weights(&l))
		file = numbered_file(&l, "optimizer", 0, name);
	if (file)
		rc = shf_torch_file_kind(sys, dir, path, file, err);
	*why = "weights of Hugging Face, and a torch.save file that is named as that of an "
	       "optimizer";
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	return rc > 0 ? 1 : rc;
}

struct hf_trainer {
	struct shf_foreign *f;
	const struct shf_listing *l;
	size_t ends[MOST];              /* by model: number + 1 of its last weight in the list */
	int models, optimizers;
	/* Of the current optimizer. */
	struct shf_buf names;           /* owned; of const char *: names of parameters by number */
	char own[40];                   /* what the names in its file are listed under */
	char prefix[24];                /* what its parameters are listed under */
	bool has_names;                 /* names in its file are read: it is known of which model
	                                 * they are */
};

/* Refuses a file <stem>_<i><tail> with i >= n. n: how many were read, so that either there is no
 * file of number n, or n is MOST. */
static int check_numbers(const struct hf_trainer *t, const char *stem, const char *tail, int n,
                         struct sheaf_error *err)
{
	size_t m = strlen(stem);

	for (size_t i = 0; i < shf_listing_n(t->l); i++) {
		const char *name = shf_listing_at(t->l, i);
		int number, digits;

		if (strncmp(name, stem, m) || sscanf(name + m, "_%9d%n", &number, &digits) != 1 ||
		    number < n || strcmp(name + m + digits, tail))
			continue;
		return shf_fail(err, SHEAF_EFORMAT, "%s: has %s, but %s_%d%s is missing, or it is "
		                "beyond the first %d, which are read", t->f->path, name, stem, n,
		                tail, MOST);
	}
	return 0;
}

/* ---- the models ---- */

static int add_models(struct hf_trainer *t, struct sheaf_error *err)
{
	int rc = shf_torch_folder_weights(t->f, t->l, err);

	for (rc = rc < 0 ? rc : 1; rc > 0;) {
		t->ends[t->models++] = t->f->tensors.len / sizeof(struct shf_foreign_tensor);
		rc = t->models < MOST ? shf_torch_folder_more(t->f, t->l, t->models, err) : 0;
	}
	if (rc == 0)
		rc = check_numbers(t, "model", ".safetensors", t->models, err);
	return rc == 0 ? check_numbers(t, "pytorch_model", ".bin", t->models, err) : rc;
}

/* ---- the optimizers ---- */

static int begin_optimizer(void *arg, const struct shf_pk *root, const char *where,
                           struct sheaf_error *err)
{
	struct hf_trainer *t = arg;

	if (t->has_names && !shf_torch_states_read_names(t->f, root, &t->names))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its names", where);
	return 0;
}

static void show_optimizer(void *arg, const char *name, size_t n, const char **family,
                           struct shf_buf *shown)
{
	const struct hf_trainer *t = arg;
	const size_t head = strlen(t->own) + 1;

	if (n > head && shf_torch_states_show(name + head, n - head, t->prefix, family, shown))
		return;
	*family = "optimizer";
	shf_buf_add(shown, name, n);
}

/* Adds the state of optimizer i, and names its parameters. */
static int add_optimizer(struct hf_trainer *t, const char *name, int i, struct sheaf_error *err)
{
	const struct shf_torch_show show = { .begin = begin_optimizer, .show = show_optimizer,
		.arg = t, .prefix = t->own };
	struct shf_torch_states states = { .prefix = t->prefix, .weights = t->prefix,
		.names = &t->names, .checked = t->models > 1 };
	bool paired = t->models == t->optimizers;
	uint32_t file;
	int rc = shf_foreign_add_file(t->f, name, strlen(name), &file, err);

	numbered_name(t->own, "optimizer", i, "");
	t->prefix[0] = '\0';
	if (i)
		snprintf(t->prefix, sizeof(t->prefix), paired ? "model_%d." : "%d.", i);
	t->has_names = paired || (i == 0 && t->models == 1);
	shf_buf_reset(&t->names);
	if (rc == 0)
		rc = shf_torch_file_add(t->f, file, &show, err);
	if (rc < 0 || (i > 0 && !paired))
		return rc;
	/* An optimizer that may be of any model is compared with the weights of all. */
	states.first = paired && i ? t->ends[i - 1] : 0;
	states.end = t->ends[paired ? i : t->models - 1];
	return shf_torch_states_rename(t->f, &states, err);
}

static int add_optimizers(struct hf_trainer *t, struct sheaf_error *err)
{
	char name[40];
	int rc;

	while (t->optimizers < MOST && numbered_file(t->l, "optimizer", t->optimizers, name))
		t->optimizers++;
	rc = check_numbers(t, "optimizer", ".bin", t->optimizers, err);
	if (rc == 0)
		rc = check_numbers(t, "optimizer", ".pt", t->optimizers, err);
	for (int i = 0; i < t->optimizers && rc == 0; i++) {
		if (!numbered_file(t->l, "optimizer", i, name))
			break;
		rc = add_optimizer(t, name, i, err);
	}
	return rc;
}

/* ---- other files ---- */

/* Adds notes of the values in a torch.save file. If the file cannot be read, a note says why: no
 * tensor depends on it, so it is not refused. */
static int add_torch_notes(struct shf_foreign *f, const char *name, const char *prefix,
                           struct sheaf_error *err)
{
	struct shf_torch_zip zip = { 0 };
	struct sheaf_error own;
	struct shf_region r;
	uint32_t file;
	int rc = shf_foreign_add_file(f, name, strlen(name), &file, err);

	if (rc == 0)
		rc = shf_foreign_region(f, file, &r, err);
	if (rc < 0)
		return rc;
	rc = shf_torch_zip_open(&zip, &r, &own);
	if (rc == 0)
		rc = shf_torch_walk_notes(f, &zip.pickle, zip.pickle.root, prefix, err);
	else if (rc == SHEAF_EFORMAT)
		rc = shf_foreign_note(f, err, prefix, strlen(prefix), "%s", own.msg);
	else
		*err = own;
	shf_torch_zip_release(&zip);
	shf_foreign_region_end(f, file);
	return rc;
}

/* Counts the files whose names begin with one of these texts. */
static uint64_t count_files(const struct shf_listing *l, const char *const *heads, size_t n)
{
	uint64_t count = 0;

	for (size_t i = 0; i < shf_listing_n(l); i++)
		for (size_t k = 0; k < n; k++)
			count += strncmp(shf_listing_at(l, i), heads[k], strlen(heads[k])) == 0;
	return count;
}

static int add_trainer_notes(struct shf_foreign *f, const struct shf_listing *l,
                             struct sheaf_error *err)
{
	static const char *const stems[] = { "scheduler", "scaler" };
	static const char *const random[] = { "rng_state", "random_states_" };
	static const char *const other[] = { "custom_checkpoint_", "sampler", "dl_state_dict",
		"training_args.bin" };
	char name[40], prefix[40];
	uint64_t n;
	int rc = 0;

	if (shf_listing_has(l, "trainer_state.json"))
		rc = shf_foreign_json_notes(f, NULL, "trainer_state.json", "trainer_state", err);
	for (size_t k = 0; k < sizeof(stems) / sizeof(stems[0]); k++)
		for (int i = 0; i < MOST && rc == 0 && numbered_file(l, stems[k], i, name); i++) {
			numbered_name(prefix, stems[k], i, "");
			rc = add_torch_notes(f, name, prefix, err);
		}
	n = count_files(l, random, sizeof(random) / sizeof(random[0]));
	if (rc == 0 && n)
		rc = shf_foreign_note(f, err, "rng_state", 9, "%" PRIu64 " file%s of random "
		                      "generators, which are not read", n, n > 1 ? "s" : "");
	n = count_files(l, other, sizeof(other) / sizeof(other[0]));
	if (rc == 0 && n)
		rc = shf_foreign_note(f, err, "other_files", 11, "%" PRIu64 " file%s of the "
		                      "trainer that are not read, such as its arguments", n,
		                      n > 1 ? "s" : "");
	return rc;
}

static int open_hf_trainer(struct shf_foreign *f, struct sheaf_error *err)
{
	struct shf_listing l;
	struct hf_trainer t = { .f = f, .l = &l };
	int rc = shf_listing_read(&l, &f->arena, f->in, f->dir, f->path, err);

	if (rc == 0)
		rc = add_models(&t, err);
	if (rc == 0)
		rc = add_optimizers(&t, err);
	if (rc == 0)
		rc = add_trainer_notes(f, &l, err);
	shf_buf_release(&t.names);
	shf_buf_release(&l.a);
	return rc;
}

const struct shf_foreign_format shf_hf_trainer = {
	.name = "hf.trainer",
	.is_dir = is_hf_trainer,
	.open = open_hf_trainer,
	.verify = shf_zip_verify_files,
};
