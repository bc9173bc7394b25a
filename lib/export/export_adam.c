/* SPDX-License-Identifier: Apache-2.0 */
#include "export_adam.h"
#include <stdlib.h>
#include <string.h>
#include "block_pass.h"
#include "decimal.h"
#include "err.h"
#include "json.h"
#include "step_attached.h"
#include "step_checked.h"
#include "step_files.h"

bool shf_adam_is_moment(const struct shf_lt_tensor *t)
{
	size_t n = strlen(t->name), m = strlen(SHF_ADAM_MOMENT);

	return n > m && strcmp(t->name + n - m, SHF_ADAM_MOMENT) == 0;
}

struct settings {               /* of the groups of parameters that were read */
	double beta[2], rate;           /* of the first group that has them; 0: no group has */
	bool betas_differ, rates_differ;
};

static void add_betas(struct settings *s, const double beta[2])
{
	s->betas_differ |= s->beta[0] > 0 && (s->beta[0] != beta[0] || s->beta[1] != beta[1]);
	if (s->beta[0] == 0)
		memcpy(s->beta, beta, sizeof(s->beta));
}

static void add_rate(struct settings *s, double rate)
{
	s->rates_differ |= s->rate > 0 && s->rate != rate;
	if (s->rate == 0)
		s->rate = rate;
}

static bool ends_in(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && strcmp(text + n - m, end) == 0;
}

/* Reads "[0.9, 0.999]". Returns false if the text is something else. */
static bool read_pair(double beta[2], const char *text)
{
	char *end;

	if (*text != '[')
		return false;
	beta[0] = shf_decimal_strtod(text + 1, &end);
	if (strncmp(end, ", ", 2))
		return false;
	beta[1] = shf_decimal_strtod(end + 2, &end);
	return strcmp(end, "]") == 0;
}

/* Reads the settings of groups from notes that show the file of another program. Their keys are
 * those of `optimizer`, `optim`, optimizer_states in a file of Lightning and so on, and their
 * values are texts: "[0.9, 0.999]" for betas, "0.01" for a rate. */
static void settings_of_notes(struct settings *s, const struct shf_manifest *m)
{
	for (size_t i = 0; i < m->notes_n; i++) {
		const char *key = m->notes[i].key, *value = m->notes[i].value;
		double beta[2];

		if (!strstr(key, ".param_groups."))
			continue;
		if (ends_in(key, ".lr"))
			add_rate(s, shf_decimal_strtod(value, NULL));
		if (!ends_in(key, ".betas"))
			continue;
		if (read_pair(beta, value))
			add_betas(s, beta);
		else
			s->betas_differ = true;
	}
}

/* Reads the settings of groups in a file param_groups.json (doc/format.md). */
static int settings_of_file(struct settings *s, struct sheaf_checkpoint *step, const char *name,
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
		bool is_rate = j.kind == SHF_JSON_KEY && !strcmp(shf_json_text(&j, NULL), "lr");
		double beta[2] = { 0 };

		if (is_rate && shf_json_next(&j) == SHF_JSON_NUMBER)
			add_rate(s, shf_decimal_strtod(shf_json_text(&j, NULL), NULL));
		if (is_rate || j.kind != SHF_JSON_KEY || strcmp(shf_json_text(&j, NULL), "betas") ||
		    shf_json_next(&j) != SHF_JSON_ARRAY)
			continue;
		for (int i = 0; i < 2 && shf_json_next(&j) == SHF_JSON_NUMBER; i++)
			beta[i] = shf_decimal_strtod(shf_json_text(&j, NULL), NULL);
		add_betas(s, beta);
	}
	if (j.kind == SHF_JSON_ERROR)
		rc = shf_fail(err, j.scratch.oom ? SHEAF_ENOMEM : SHEAF_EFORMAT, "%s/%s: %s",
		              step->path, name, j.why);
	shf_json_release(&j);
	return rc;
}

/* Reads the settings of all groups of parameters. */
static int read_group_settings(struct settings *s, struct sheaf_checkpoint *step,
                               struct sheaf_error *err)
{
	int rc = 0;

	*s = (struct settings){ 0 };
	step = shf_step_behind_maps(step);
	settings_of_notes(s, &step->manifest);
	for (size_t i = 0; step->sound && i < step->plain_n && rc == 0; i++)
		if (strncmp(step->plain[i].name, "param_groups", 12) == 0)
			rc = settings_of_file(s, step, step->plain[i].name, err);
	return rc;
}

int shf_export_rate_find(double *rate, struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	const char *noted = shf_manifest_note(&step->manifest, "scheduler.last_lr");
	struct settings s;
	int rc = read_group_settings(&s, step, err);

	if (rc == 0)
		*rate = noted ? shf_decimal_strtod(noted, NULL) : s.rates_differ ? 0 : s.rate;
	return rc;
}

/* ---- the number of updates ---- */

bool shf_adam_is_step(const struct shf_layout *l, const struct shf_lt_tensor *t)
{
	static const char tail[] = "/step";
	size_t n = strlen(t->name), m = sizeof(tail) - 1;

	return n > m && strcmp(t->name + n - m, tail) == 0 &&
	       strcmp(l->families[t->family].name, "optimizer") == 0 &&
	       ((t->dtype == SHEAF_F32 && t->bytes == 4) ||
	        (t->dtype == SHEAF_I64 && t->bytes == 8));
}

/* Reads the number in such a tensor. Sets *v to 0 if it is not a whole number above 0. */
static int read_step(struct sheaf_checkpoint *step, struct shf_checked *c,
                     const struct shf_lt_tensor *t, int64_t *v, struct sheaf_error *err)
{
	uint8_t bytes[8];
	uint64_t retries = 0;
	float f = 0;
	int rc = shf_step_fd(step, t->file, err);

	if (rc >= 0)
		rc = shf_block_pass_sums(step)
		   ? shf_checked_read(c, t->file, t->off, bytes, t->bytes, err)
		   : shf_step_file_read(step, t->file, bytes, t->bytes, t->off, &retries, err);
	if (rc < 0)
		return rc;
	*v = t->dtype == SHEAF_I64 ? (int64_t)shf_get64(bytes) : 0;
	if (t->dtype == SHEAF_F32)
		memcpy(&f, bytes, sizeof(f));
	if (f >= 1 && f <= 16777216)    /* whole numbers up to 2^24 are exact */
		*v = (int64_t)f;
	if (*v < 0 || (f != 0 && (float)*v != f))
		*v = 0;
	return 0;
}

/* Finds the number of updates that all parameters have made, by their own tensors. Leaves *found as
 * it is if there are none, or if they differ. */
static int find_step(int64_t *found, struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	const struct shf_layout *l = &step->layout;
	struct shf_checked c = { .step = step };
	int64_t first = -1, v = -1;
	int rc = shf_block_pass_sums(step) ? shf_checked_init(&c, step, err) : 0;

	for (size_t i = 0; i < l->tensors_n && rc == 0 && v == first; i++) {
		if (!shf_adam_is_step(l, &l->tensors[i]))
			continue;
		rc = read_step(step, &c, &l->tensors[i], &v, err);
		first = first < 0 ? v : first;
	}
	shf_checked_release(&c);
	if (rc == 0 && v == first && v > 0)
		*found = v;
	return rc;
}

int shf_export_updates_find(int64_t *updates, struct sheaf_checkpoint *step,
                            const struct shf_export_opts *opts, struct sheaf_error *err)
{
	const char *noted = shf_manifest_note(&step->manifest, "adam.step");

	*updates = opts->adam_step ? opts->adam_step : noted ? strtoll(noted, NULL, 10) : 0;
	return *updates ? 0 : find_step(updates, shf_step_behind_maps(step), err);
}

int shf_export_adam_find(struct shf_export_adam *adam, struct sheaf_checkpoint *step,
                         const struct shf_export_opts *opts, struct sheaf_error *err)
{
	double *beta = adam->beta;
	struct settings s;
	int rc;

	*adam = (struct shf_export_adam){ 0, { opts->beta1, opts->beta2 } };
	rc = shf_export_updates_find(&adam->step, step, opts, err);
	if (rc == 0 && beta[0] == 0 && beta[1] == 0) {
		rc = read_group_settings(&s, step, err);
		if (rc == 0 && !s.betas_differ)
			memcpy(beta, s.beta, sizeof(s.beta));
	}
	if (rc < 0)
		return rc;
	if (adam->step <= 0)
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the number of updates, "
		                "and it has neither a note adam.step nor one number that all "
		                "tensors <parameter>/step have; give it (how.adam_step, --step)",
		                step->path);
	if (!(beta[0] > 0 && beta[0] < 1 && beta[1] > 0 && beta[1] < 1))
		return shf_fail(err, SHEAF_EINVAL, "%s: its moments need the betas of AdamW; give "
		                "them (how.beta1 and how.beta2, --betas)", step->path);
	return 0;
}
