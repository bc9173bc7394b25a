/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that are made are those of a struct shf_foreign, whose format reads them through the
 * plan of the map. So foreign_dir.c shows them as a directory of safetensors files, and everything
 * above opens that. */
#include "map_step.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "foreign.h"
#include "foreign_dir.h"
#include "map_read.h"
#include "step_beside.h"
#include "step_files.h"
#include "step_find.h"
#include "step_open.h"

struct mapped {                 /* what shf_foreign.own points to */
	struct shf_map map;
	struct shf_map_plan plan;
	struct shf_map_reading reading;
};

static const struct mapped *mapped_of(const struct shf_foreign *f)
{
	return f->own;
}

/* The tensors of f are in the order of plan.made (check_made in map_plan.c). */
static int mapped_items(struct shf_foreign *f, const struct shf_foreign_tensor *t, uint8_t *to,
                        uint64_t lo, uint64_t hi, struct sheaf_error *err)
{
	const struct shf_map_made *made = (const void *)mapped_of(f)->plan.made.data;
	size_t n;
	const struct shf_foreign_tensor *all = shf_foreign_tensors(f, &n);

	made += t - all;
	if (!always(strcmp(made->name, t->name) == 0))
		return shf_fail(err, SHEAF_EBUG, "%s: is not in the order of the map", t->name);
	return shf_map_read(&((struct mapped *)f->own)->reading, made, to, lo, hi, err);
}

static int mapped_check_unchanged(struct shf_foreign *f, struct sheaf_error *err)
{
	struct sheaf_checkpoint *source = mapped_of(f)->reading.source;

	return source->sound ? 0 : shf_step_check_unchanged(source, err);
}

static void mapped_free(struct mapped *m)
{
	if (!m)
		return;
	shf_step_put(m->reading.source);
	shf_map_reading_release(&m->reading);
	shf_map_plan_release(&m->plan);
	shf_map_release(&m->map);
	shf_free(m);
}

static void mapped_close(struct shf_foreign *f)
{
	mapped_free(f->own);
}

static const struct shf_foreign_format map_format = {
	.name = "map",
	.items = mapped_items,
	.check_unchanged = mapped_check_unchanged,
	.close = mapped_close,
};

/* ---- texts ---- */

static int map_read_file(struct shf_map *m, const struct shf_sys *sys, const char *path,
                         struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	int rc = shf_file_slurp(sys, SHF_CWD, path, 0, SHF_MAP_BYTES_MAX, &text);

	rc = rc < 0 ? shf_fail_sys(err, -rc, "%s", path)
	            : shf_map_parse(m, path, (const char *)text.data, text.len, err);
	shf_buf_release(&text);
	return rc;
}

/* Reads the config.json of the step, or that which the caller names. */
static int read_config(struct shf_map_config *c, struct sheaf_checkpoint *step,
                       const struct shf_map_opts *opts, struct sheaf_error *err)
{
	const char *name = opts->config ? opts->config : "config.json";
	struct shf_buf text = SHF_BUF_INIT;
	int rc;

	if (opts->config) {
		rc = shf_file_slurp(step->run->sys, SHF_CWD, name, 0, SHF_MAP_BYTES_MAX, &text);
		rc = rc < 0 ? shf_fail_sys(err, -rc, "%s", name) : 1;
	} else {
		rc = shf_step_beside(step, name, &text, err);
	}
	if (rc == 1)
		rc = shf_map_config_read(c, name, text.data, text.len, err);
	shf_buf_release(&text);
	return rc;
}

/* ---- the step ---- */

/* Checks that this process can read the whole step, and opens all its files, because threads must
 * not open files of a step. */
static int look_at_source(struct sheaf_checkpoint *step, struct sheaf_error *err)
{
	int rc;

	if (step->run->team.ranks != 1)
		return shf_fail(err, SHEAF_EINVAL, "%s: is open on %d ranks; open it in one "
		                "process alone to map it", step->path, step->run->team.ranks);
	rc = shf_step_wake(step, err);
	if (rc == 0 && step->cat_rc < 0) {
		*err = step->cat_err;
		rc = step->cat_rc;
	}
	if (rc == 0 && step->sound && step->sums_rc < 0) {
		*err = step->sums_err;
		rc = step->sums_rc;
	}
	for (uint32_t f = 0; f < step->layout.files_n && rc == 0; f++) {
		int fd = shf_step_fd(step, f, err);

		rc = fd < 0 ? fd : 0;
	}
	return rc;
}

static int source_value(void *arg, uint32_t tensor, void *to, uint64_t n, struct sheaf_error *err)
{
	return shf_map_read_source(arg, tensor, to, n, err);
}

/* Finds the side that is made. */
static int side_of(const struct shf_map *m, const char *to, int *side, struct sheaf_error *err)
{
	*side = to && strcmp(to, m->sides[0]) == 0 ? 0 : 1;
	if (!to || strcmp(to, m->sides[*side]) == 0)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s: has no side %.60s; use %s or %s",
	                m->path, to, m->sides[0], m->sides[1]);
}

static int plan_it(struct mapped *m, struct sheaf_checkpoint *step, const struct shf_map_opts *opts,
                   struct sheaf_error *err)
{
	struct shf_map_how how = { .family = opts->family, .prefix = opts->prefix,
		.read = source_value, .arg = &m->reading };
	struct shf_map_config config = { 0 };
	int rc = map_read_file(&m->map, step->run->sys, opts->file, err);

	if (rc == 0)
		rc = side_of(&m->map, opts->to, &how.to, err);
	if (rc == 0)
		rc = read_config(&config, step, opts, err);
	for (size_t i = 0; rc == 0 && opts->set && opts->set[i]; i++)
		rc = shf_map_config_give(&config, opts->set[i], err);
	if (rc == 0)
		rc = shf_map_plan_make(&m->plan, &m->map, &config, &step->layout, step->path, &how,
		                       err);
	shf_map_config_release(&config);
	return rc;
}

/* Lists the tensors that are made. */
static int list_made(struct shf_foreign *f, const struct mapped *m, struct sheaf_error *err)
{
	const struct shf_map_made *made = (const void *)m->plan.made.data;
	int rc = 0;

	for (size_t i = 0; i < m->plan.made.len / sizeof(*made) && rc == 0; i++) {
		struct shf_foreign_tensor t = { .family = made[i].family, .dtype = made[i].dtype,
			.ndim = made[i].ndim, .dims = made[i].dims };

		rc = shf_foreign_add_tensor(f, &t, made[i].name, strlen(made[i].name), err);
	}
	return rc == 0 ? shf_foreign_dir_make(f, err) : rc;
}

static int note_order(const void *a, const void *b)
{
	return strcmp(((const struct shf_mf_note *)a)->key, ((const struct shf_mf_note *)b)->key);
}

/* Gives the step the notes of its source, and one that says how many items of padding the map
 * leaves out, if any. */
static int take_over_notes(struct sheaf_checkpoint *step, const struct sheaf_checkpoint *source,
                           uint64_t padding, struct sheaf_error *err)
{
	struct shf_manifest *to = &step->manifest;
	const struct shf_manifest *from = &source->manifest;
	char text[24];

	to->notes = shf_arena_alloc(&step->arena, from->notes_n + 1, sizeof(*to->notes));
	snprintf(text, sizeof(text), "%" PRIu64, padding);
	to->notes_n = 0;
	for (size_t i = 0; to->notes && i < from->notes_n; i++)
		if (strcmp(from->notes[i].key, SHF_MAP_PADDING))
			to->notes[to->notes_n++] = from->notes[i];
	if (to->notes && padding) {
		to->notes[to->notes_n].key = SHF_MAP_PADDING;
		to->notes[to->notes_n].value = shf_arena_strdup(&step->arena, text, strlen(text));
		if (to->notes[to->notes_n++].value)
			qsort(to->notes, to->notes_n, sizeof(*to->notes), note_order);
		else
			to->notes = NULL;
	}
	if (to->notes)
		return 0;
	to->notes_n = 0;
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its notes", source->path);
}

int shf_map_step(struct sheaf_checkpoint **out, struct sheaf_checkpoint *step,
                 const struct shf_map_opts *opts, struct sheaf_error *err)
{
	struct mapped *m = shf_zalloc(1, sizeof(*m));
	struct shf_foreign *f = NULL;
	int rc;

	if (!m)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to map it", step->path);
	shf_map_reading_init(&m->reading, step, &m->plan, opts->memory_bytes);
	shf_step_get(step);
	rc = look_at_source(step, err);
	if (rc == 0)
		rc = plan_it(m, step, opts, err);
	if (rc == 0)
		rc = shf_foreign_new(&f, step->run->sys, step->path, err);
	if (rc < 0) {
		mapped_free(m);
		return rc;
	}
	f->own = m;
	f->format = &map_format;
	f->why = m->map.path;
	rc = list_made(f, m, err);
	if (rc < 0) {
		shf_foreign_free(f);
		return rc;
	}
	rc = shf_step_open_shown(out, f, &step->run->opts, err);
	if (rc < 0)
		return rc;
	(*out)->source = step;
	rc = take_over_notes(*out, step, m->plan.padding, err);
	if (rc == 0 && opts->config) {
		(*out)->config = shf_arena_strdup(&(*out)->arena, opts->config,
		                                  strlen(opts->config));
		if (!(*out)->config)
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory to map it", step->path);
	}
	if (rc < 0) {
		shf_step_put(*out);
		*out = NULL;
	}
	return rc;
}
