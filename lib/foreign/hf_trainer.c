/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that Hugging Face's Trainer (checkpoint-<N>) and accelerate (save_state) write: weights
 * in safetensors files or files of torch.save, and beside them optimizer.pt or optimizer.bin, a
 * file of torch.save with the state_dict of the optimizer, whose parameters are numbers there.
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

#define OPTIMIZERS_MAX 16

/* Returns the name of the file with the state of optimizer `number`: optimizer.pt or optimizer.bin
 * for 0, optimizer_1.pt or optimizer_1.bin for 1, and so on. NULL: there is none. */
static const char *optimizer_file(const struct shf_listing *l, int number, char name[40])
{
	static const char *const tails[] = { ".pt", ".bin" };

	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		if (number)
			snprintf(name, 40, "optimizer_%d%s", number, tails[i]);
		else
			snprintf(name, 40, "optimizer%s", tails[i]);
		if (shf_listing_has(l, name))
			return name;
	}
	return NULL;
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
		file = optimizer_file(&l, 0, name);
	if (file)
		rc = shf_torch_file_kind(sys, dir, path, file, err);
	*why = "weights of Hugging Face, and a file of torch.save that is named as that of an "
	       "optimizer";
	shf_buf_release(&l.a);
	shf_arena_release(&arena);
	return rc > 0 ? 1 : rc;
}

struct hf_trainer {
	struct shf_foreign *f;
	struct shf_buf names;           /* owned; of const char *: names of parameters by number */
	char prefix[16];                /* of the parameters of the present optimizer */
};

/* ---- the optimizer ---- */

static int begin_optimizer(void *arg, const struct shf_pk *root, const char *where,
                           struct sheaf_error *err)
{
	struct hf_trainer *t = arg;

	if (!t->prefix[0] && !shf_torch_states_read_names(t->f, root, &t->names))
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its names", where);
	return 0;
}

static void show_optimizer(void *arg, const char *name, size_t n, const char **family,
                           struct shf_buf *shown)
{
	const struct hf_trainer *t = arg;
	const size_t head = strlen("optimizer.");

	if (n > head && shf_torch_states_show(name + head, n - head, t->prefix, family, shown))
		return;
	*family = "optimizer";
	shf_buf_add(shown, name, n);
}

/* Refuses the file of an optimizer whose number is n or above. n: how many optimizers were read,
 * which is the first number without a file, or OPTIMIZERS_MAX. */
static int check_optimizers(const struct hf_trainer *t, const struct shf_listing *l, int n,
                            struct sheaf_error *err)
{
	for (size_t i = 0; i < shf_listing_n(l); i++) {
		const char *name = shf_listing_at(l, i);
		int number, digits;

		if (sscanf(name, "optimizer_%9d%n", &number, &digits) != 1 || number < n ||
		    (strcmp(name + digits, ".pt") && strcmp(name + digits, ".bin")))
			continue;
		return shf_fail(err, SHEAF_EFORMAT, "%s: has %s, but that of optimizer %d is "
		                "missing, or it is beyond the first %d, which are read", t->f->path,
		                name, n, OPTIMIZERS_MAX);
	}
	return 0;
}

static int add_optimizers(struct hf_trainer *t, const struct shf_listing *l,
                          struct sheaf_error *err)
{
	const struct shf_torch_show show = { .begin = begin_optimizer, .show = show_optimizer,
		.arg = t, .prefix = "optimizer" };
	char name[40];
	int rc = 0, i;

	for (i = 0; i < OPTIMIZERS_MAX && optimizer_file(l, i, name) && rc == 0; i++) {
		uint32_t file;

		if (i)
			snprintf(t->prefix, sizeof(t->prefix), "%d.", i);
		rc = shf_foreign_add_file(t->f, name, strlen(name), &file, err);
		if (rc == 0)
			rc = shf_torch_file_add(t->f, file, &show, err);
	}
	if (rc == 0)
		rc = check_optimizers(t, l, i, err);
	return rc == 0 ? shf_torch_states_rename(t->f, &t->names, err) : rc;
}

/* ---- other files ---- */

/* Adds notes of the values of a file of torch.save. One that is none is noted, and not refused: no
 * tensor depends on it. */
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
	static const char *const files[][2] = { { "scheduler.pt", "scheduler" },
		{ "scheduler.bin", "scheduler" }, { "scaler.pt", "scaler" } };
	static const char *const random[] = { "rng_state", "random_states_" };
	static const char *const other[] = { "custom_checkpoint_", "sampler", "dl_state_dict",
		"training_args.bin", "model_1.", "pytorch_model_1." };
	uint64_t n;
	int rc = 0;

	if (shf_listing_has(l, "trainer_state.json"))
		rc = shf_foreign_json_notes(f, NULL, "trainer_state.json", "trainer_state", err);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && rc == 0; i++)
		if (shf_listing_has(l, files[i][0]))
			rc = add_torch_notes(f, files[i][0], files[i][1], err);
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
	struct hf_trainer t = { .f = f };
	struct shf_listing l;
	int rc = shf_listing_read(&l, &f->arena, f->in, f->dir, f->path, err);

	if (rc == 0)
		rc = shf_torch_folder_weights(f, &l, err);
	if (rc == 0)
		rc = add_optimizers(&t, &l, err);
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
