/* SPDX-License-Identifier: Apache-2.0 */
#include "export_adam.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "json.h"
#include "step_attached.h"

bool shf_adam_is_moment(const struct shf_lt_tensor *t)
{
	size_t n = strlen(t->name), m = strlen(SHF_ADAM_MOMENT);

	return n > m && strcmp(t->name + n - m, SHF_ADAM_MOMENT) == 0;
}

struct betas {                  /* of the groups of parameters that were read */
	double of[2];                   /* of the first one; 0: there was none */
	bool differ;
};

static void add_betas(struct betas *b, double beta1, double beta2)
{
	b->differ |= b->of[0] > 0 && (b->of[0] != beta1 || b->of[1] != beta2);
	if (b->of[0] == 0) {
		b->of[0] = beta1;
		b->of[1] = beta2;
	}
}

/* Reads the betas of groups as the notes of other programs have them: "[0.9, 0.999]". */
static void betas_of_notes(struct betas *b, const struct shf_manifest *m)
{
	for (size_t i = 0; i < m->notes_n; i++) {
		const char *key = m->notes[i].key;
		size_t n = strlen(key);
		double beta[2];

		if (strncmp(key, "optimizer.param_groups.", 23) || strcmp(key + n - 6, ".betas"))
			continue;
		b->differ |= sscanf(m->notes[i].value, "[%lf, %lf]", &beta[0], &beta[1]) != 2;
		if (!b->differ)
			add_betas(b, beta[0], beta[1]);
	}
}

/* Reads the betas of groups in a file param_groups.json (doc/format.md). */
static int betas_of_file(struct betas *b, struct sheaf_checkpoint *step, const char *name,
                         struct sheaf_error *err)
{
	struct shf_json j;
	const void *bytes;
	size_t n;
	int rc = shf_step_attached(step, name, &bytes, &n, err);

	if (rc < 0)
		return rc;
	shf_json_init(&j, bytes, n);
	while (shf_json_next(&j) > SHF_JSON_END) {
		double beta[2] = { 0 };

		if (j.kind != SHF_JSON_KEY || strcmp(shf_json_text(&j, NULL), "betas") ||
		    shf_json_next(&j) != SHF_JSON_ARRAY)
			continue;
		for (int i = 0; i < 2 && shf_json_next(&j) == SHF_JSON_NUMBER; i++)
			beta[i] = strtod(shf_json_text(&j, NULL), NULL);
		add_betas(b, beta[0], beta[1]);
	}
	if (j.kind == SHF_JSON_ERROR)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s/%s: %s", step->path, name, j.why);
	shf_json_release(&j);
	return rc;
}

/* Finds the betas that all groups of parameters have. Leaves *beta as it is if there are none, or
 * if groups differ. */
static int find_betas(double beta[2], struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	struct betas b = { .differ = false };
	int rc = 0;

	step = shf_step_behind_maps(step);
	betas_of_notes(&b, &step->manifest);
	for (size_t i = 0; step->sound && i < step->plain_n && rc == 0; i++)
		if (strncmp(step->plain[i].name, "param_groups", 12) == 0)
			rc = betas_of_file(&b, step, step->plain[i].name, err);
	if (rc == 0 && !b.differ)
		memcpy(beta, b.of, sizeof(b.of));
	return rc;
}

int shf_export_adam_find(struct shf_export_adam *adam, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const char *noted = shf_manifest_note(&step->manifest, "adam.step");
	double *beta = adam->beta;
	int rc = 0;

	*adam = (struct shf_export_adam){ opts->adam_step, { opts->beta1, opts->beta2 } };
	if (!adam->step && noted)
		adam->step = strtoll(noted, NULL, 10);
	if (beta[0] == 0 && beta[1] == 0)
		rc = find_betas(beta, step, err);
	if (rc < 0)
		return rc;
	if (adam->step <= 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the number of updates, "
		                "and it has no note adam.step; give it (how.adam_step, --step)",
		                step->path);
	if (!(beta[0] > 0 && beta[0] < 1 && beta[1] > 0 && beta[1] < 1))
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the betas of AdamW; give "
		                "them (how.beta1 and how.beta2, --betas)", step->path);
	return 0;
}
