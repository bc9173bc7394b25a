/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of Megatron-LM in the format that it calls torch: a folder mp_rank_<NN> for each rank
 * of tensor parallelism, or mp_rank_<NN>_<NNN> for those of a pipeline, too, with a torch.save
 * file, model_optim_rng.pt, and with the distributed optimizer another one, distrib_optim.pt.
 * Nothing says how the parts of ranks join, so each is listed by its own name with the rank.
 *
 * Source: training/checkpointing.py of Megatron-LM. The files are made by its state dictionaries:
 * its own writer needs GPUs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "err.h"
#include "megatron_dir.h"
#include "torch_walk.h"
#include "torch_zip.h"
#include "zip_verify.h"

static int is_megatron_ranks(const struct shf_sys *sys, int dir, const char *path,
                             const char **why, struct sheaf_error *err)
{
	struct shf_megatron_dir d;
	int rc = shf_megatron_find(&d, sys, dir, path, err);

	*why = "folders mp_rank_<NN> with files that Megatron-LM names";
	return rc > 0 ? d.ranks : rc;
}

struct megatron_ranks {
	struct shf_foreign *f;
	struct sheaf_error *err;
	struct shf_listing l;           /* names in the directory */
	const char *suffix;             /* of names of the current rank; "": there is one rank */
	const char *folder;             /* of the current rank */
	int64_t iteration;              /* -1: not said yet */
	int most[3];                    /* the largest number of a rank of each kind */
	int kinds;                      /* how many numbers a folder has */
};

/* ---- which ranks there are ---- */

/* Makes the name of the folder of a rank. */
static void rank_folder(char name[64], const int number[3], int kinds)
{
	int n = snprintf(name, 64, "mp_rank_%02d", number[0]);

	for (int k = 1; k < kinds; k++)
		n += snprintf(name + n, 64 - (size_t)n, "_%03d", number[k]);
}

/* Finds the folders of ranks, all of which must have as many numbers, and be there. */
static int find_ranks(struct megatron_ranks *m)
{
	int number[3] = { 0 }, n, at[3];
	size_t folders = 0, want = 1;
	char name[64];

	for (size_t i = 0; i < shf_listing_n(&m->l); i++) {
		n = shf_megatron_rank_of(shf_listing_at(&m->l, i), number);
		if (!n)
			continue;
		if (folders++ && n != m->kinds)
			return shf_fail(m->err, SHEAF_EFORMAT, "%s: has the folders of two saves: "
			                "%s has another form than those before it", m->f->path,
			                shf_listing_at(&m->l, i));
		m->kinds = n;
		for (int k = 0; k < n; k++)
			m->most[k] = number[k] > m->most[k] ? number[k] : m->most[k];
	}
	for (int k = 0; k < m->kinds; k++)
		want *= (size_t)m->most[k] + 1;
	for (size_t i = 0; i < want && i <= folders; i++) {
		size_t left = i;

		for (int k = m->kinds - 1; k >= 0; k--) {
			at[k] = (int)(left % ((size_t)m->most[k] + 1));
			left /= (size_t)m->most[k] + 1;
		}
		rank_folder(name, at, m->kinds);
		if (!shf_listing_has(&m->l, name))
			return shf_fail(m->err, SHEAF_EFORMAT, "%s: the folder %s of a rank is "
			                "missing", m->f->path, name);
	}
	return 0;
}

/* ---- files ---- */

/* Reads a number of the arguments, or of the dictionary itself. */
static bool said_number(const struct shf_pk *root, const char *key, int64_t *n)
{
	const struct shf_pk *args = shf_pk_get(root, "args");
	const struct shf_pk *state = args && args->kind == SHF_PK_CALL ? args->u.call->state : args;

	return shf_pk_int(shf_pk_get(root, key), n) || shf_pk_int(shf_pk_get(state, key), n);
}

/* Compares a file with those before it. */
static int begin_rank(void *arg, const struct shf_pk *root, const char *where,
                      struct sheaf_error *err)
{
	static const char *const sizes[] = { "tensor_model_parallel_size",
		"pipeline_model_parallel_size" };
	struct megatron_ranks *m = arg;
	int64_t n;

	if (root->kind != SHF_PK_DICT)
		return shf_fail(err, SHEAF_EFORMAT, "%s: is not a dictionary, as Megatron-LM saves "
		                "it", where);
	if (said_number(root, "iteration", &n)) {
		if (m->iteration >= 0 && n != m->iteration)
			return shf_fail(err, SHEAF_EFORMAT, "%s: is of another save than the files "
			                "before it: its iteration is %" PRId64 ", not %" PRId64,
			                where, n, m->iteration);
		m->iteration = n;
	}
	for (int k = 0; k < 2; k++)
		if (said_number(root, sizes[k], &n) && n > 1 &&
		    n != (k < m->kinds ? m->most[k] : 0) + 1)
			return shf_fail(err, SHEAF_EFORMAT, "%s: says that %s is %" PRId64 ", but "
			                "there are the folders of %d", where, sizes[k], n,
			                (k < m->kinds ? m->most[k] : 0) + 1);
	return 0;
}

/* Whether a name begins with this word and a dot; moves *name past it. */
static bool begins_with(const char **name, size_t *n, const char *word)
{
	size_t bytes = strlen(word);

	if (*n <= bytes || memcmp(*name, word, bytes))
		return false;
	*name += bytes;
	*n -= bytes;
	return true;
}

/* Shows a tensor by its own name with the rank. What is of the model has the key model; model0,
 * model1 and so on are stages of a rank that has several, and stay in the name. */
static void show_rank(void *arg, const char *name, size_t n, const char **family,
                      struct shf_buf *shown)
{
	const struct megatron_ranks *m = arg;

	if (begins_with(&name, &n, "rng_state."))
		*family = "rng";
	else if (!begins_with(&name, &n, "model.") &&
	         !(n > 6 && memcmp(name, "model", 5) == 0 && name[5] >= '0' && name[5] <= '9')) {
		*family = "optimizer";
		(void)begins_with(&name, &n, "optimizer.");
	}
	shf_buf_add(shown, name, n);
	shf_buf_adds(shown, m->suffix);
}

/* Adds a file of the current rank. Notes are those of the first rank: all have the same. */
static int add_rank_save(struct megatron_ranks *m, const char *name, bool first)
{
	const struct shf_torch_show show = { .begin = begin_rank, .show = show_rank, .arg = m };
	struct shf_foreign *f = m->f;
	size_t notes = f->notes.len;
	uint64_t left = f->notes_left;
	uint32_t file;
	int rc = shf_foreign_add_file_in(f, m->folder, name, strlen(name), &file, m->err);

	if (rc == 0)
		rc = shf_torch_save_add(f, file, &show, m->err);
	if (!first) {
		f->notes.len = notes;
		f->notes_left = left;
	}
	return rc;
}

/* Adds the files of the current rank. */
static int add_rank(struct megatron_ranks *m, bool first)
{
	static const char *const names[] = { "model_optim_rng.pt", "model_rng.pt",
		"distrib_optim.pt", "optim.pt" };
	struct shf_listing l = { .arena = NULL };
	int fd = shf_foreign_folder(m->f, m->folder), rc;
	bool model = false;

	if (fd < 0)
		return shf_fail_sys(m->err, -fd, "%s/%s", m->f->path, m->folder);
	rc = shf_listing_read(&l, &m->f->arena, m->f->in, fd, m->f->path, m->err);
	shf_sys_close(m->f->in, fd);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && rc == 0; i++) {
		if (!shf_listing_has(&l, names[i]))
			continue;
		model |= i < 2;
		rc = add_rank_save(m, names[i], first);
	}
	shf_buf_release(&l.a);
	return rc || model ? rc
	     : shf_fail(m->err, SHEAF_EFORMAT, "%s/%s: has no model_optim_rng.pt, the file of the "
	                "model", m->f->path, m->folder);
}

static int open_megatron_ranks(struct shf_foreign *f, struct sheaf_error *err)
{
	struct megatron_ranks m = { .f = f, .err = err, .iteration = -1, .suffix = "" };
	struct shf_megatron_dir d;
	int number[3], rc = shf_megatron_find(&d, f->in, f->dir, f->path, err);
	bool first = true;

	if (rc == 0 || (rc > 0 && !d.ranks))
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has changed while it was being opened",
		              f->path);
	if (rc > 0)
		rc = d.folder[0] ? shf_foreign_enter(f, d.folder, err) : 0;
	if (rc == 0)
		rc = shf_listing_read(&m.l, &f->arena, f->in, f->dir, f->path, err);
	if (rc == 0)
		rc = find_ranks(&m);
	for (size_t i = 0; rc == 0 && i < shf_listing_n(&m.l); i++) {
		char suffix[64];

		m.folder = shf_listing_at(&m.l, i);
		if (!shf_megatron_rank_of(m.folder, number))
			continue;
		snprintf(suffix, sizeof(suffix), "@mp%s", m.folder + strlen("mp_rank_"));
		m.suffix = m.most[0] + m.most[1] + m.most[2] ? suffix : "";
		rc = add_rank(&m, first);
		first = false;
	}
	shf_buf_release(&m.l.a);
	return rc;
}

const struct shf_foreign_format shf_megatron_ranks = {
	.name = "megatron.torch",
	.is_dir = is_megatron_ranks,
	.open = open_megatron_ranks,
	.verify = shf_zip_verify_files,
};
