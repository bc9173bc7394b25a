/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the manifest and the index files of a step on rank 0, and bounds the size of the manifest
 * in advance, so that a step never fails at its publication because the manifest is too long. */
#include "save_record.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "json.h"
#include "layout_record.h"
#include "run_env.h"
#include "save.h"
#include "state.h"
#include "version.h"

void shf_record_cache_release(struct shf_record_cache *stock)
{
	for (size_t i = 0; i < stock->indexes_n; i++)
		shf_buf_release(&stock->indexes[i].text);
	shf_free(stock->indexes);
	shf_buf_release(&stock->table);
	*stock = (struct shf_record_cache){ .table = SHF_BUF_INIT };
}

/* Appends the index file of family i to out, and computes its CRC. Both are taken from the plan's
 * stock if it has them, else made and put into the stock. */
static int index_of(struct shf_record_cache *stock, const struct shf_layout *l, size_t i,
                    struct shf_buf *out, uint64_t *crc, struct sheaf_error *err)
{
	struct shf_index_cache *kept;
	int rc;

	if (!stock->indexes) {
		stock->indexes = shf_zalloc(l->families_n, sizeof(*stock->indexes));
		stock->indexes_n = stock->indexes ? l->families_n : 0;
	}
	kept = stock->indexes ? &stock->indexes[i] : NULL;
	if (kept && kept->text.len) {
		shf_buf_add(out, kept->text.data, kept->text.len);
		*crc = kept->crc;
		return out->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for the index of %s",
		                           l->families[i].name) : 0;
	}
	rc = shf_layout_index(l, &l->families[i], out, err);
	*crc = rc == 0 ? shf_crc64(out->data, out->len) : 0;
	if (rc == 0 && kept && out->len <= SHF_RECORD_CACHE_MAX) {
		kept->crc = *crc;
		shf_buf_add(&kept->text, out->data, out->len);
		if (kept->text.oom) /* no memory: the next save makes it again */
			shf_buf_release(&kept->text);
	}
	return rc;
}

/* Makes the index file of family i, and its entry for the manifest. indexes_n is incremented first,
 * so that shf_save_record_release frees the text after a failure, too. */
static int index_make(struct shf_save_record *r, struct shf_plan *plan, size_t i,
                      struct shf_arena *arena, struct sheaf_error *err)
{
	const struct shf_lt_family *fam = &plan->layout.families[i];
	struct shf_buf *text = &r->indexes[r->indexes_n];
	uint64_t crc;
	int rc;

	r->indexes_n++;
	rc = index_of(&plan->stock, &plan->layout, i, text, &crc, err);
	r->index_files[r->indexes_n - 1] =
	    (struct shf_mf_file){ shf_layout_index_name(fam, arena), text->len, crc };
	if (rc == 0 && !r->index_files[r->indexes_n - 1].name)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct shf_mf_file *)a)->name, ((const struct shf_mf_file *)b)->name);
}

static const char *note_of(const struct shf_given *given, const char *key)
{
	for (size_t i = 0; i < given->notes_n; i++)
		if (strcmp(given->notes[i].key, key) == 0)
			return given->notes[i].value;
	return NULL;
}

/* Fills the members of the manifest that describe the save itself. Strings are borrowed from the
 * save and the run. */
static void fill_head(const struct sheaf_save *save, const struct shf_given *given,
                      struct shf_manifest *m)
{
	const struct sheaf_run *run = save->run;

	m->step = save->id.step;
	memcpy(m->session, save->id.session, sizeof(m->session));
	memcpy(m->run, run->store.run, sizeof(m->run));
	m->has_parent = save->id.parent >= 0;
	m->parent_step = save->id.parent;
	memcpy(m->parent_session, save->id.parent_session, sizeof(m->parent_session));
	shf_run_time(run, m->created);
	m->version = SHEAF_VERSION_TEXT;
	m->commit = SHEAF_COMMIT_TEXT;
	m->compiler = SHEAF_COMPILER_TEXT;
	m->config = note_of(given, "config.digest");
	m->mesh = note_of(given, "mesh");
	m->no_dir_fsync = run->store.no_dir_fsync;
	m->file_bytes_max = run->opts.file_bytes_max;
	m->ranks = run->team.ranks;
	m->plan = save->plan->hash;
	m->notes = given->notes;
	m->notes_n = given->notes_n;
	m->emas = (struct shf_mf_ema *)(uintptr_t)save->copy.emas;
	m->emas_n = save->copy.emas_n;
}

int shf_save_record_make(struct shf_save_record *r, const struct sheaf_save *save,
                         const struct shf_given *given, const struct shf_save_sums_out *sums,
                         struct shf_arena *arena, struct sheaf_error *err)
{
	const struct shf_layout *l = &save->plan->layout;
	struct shf_manifest *m = &r->manifest;
	size_t n = given->files_n + l->families_n;
	int rc = shf_layout_lists(l, sums->file_crc, arena, m, err);

	m->sums = (struct shf_mf_file){ "sheaf.sums", sums->table.len, sums->crc };
	fill_head(save, given, m);
	m->attached = shf_arena_alloc(arena, n + 1, sizeof(*m->attached));
	r->index_files = shf_arena_alloc(arena, l->families_n + 1, sizeof(*r->index_files));
	r->indexes = shf_arena_alloc(arena, l->families_n + 1, sizeof(*r->indexes));
	if (rc == 0 && (!m->attached || !r->index_files || !r->indexes))
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	for (size_t i = 0; rc == 0 && i < given->files_n; i++)
		m->attached[m->attached_n++] = given->files[i];
	for (size_t i = 0; rc == 0 && i < l->families_n; i++) {
		rc = index_make(r, save->plan, i, arena, err);
		m->attached[m->attached_n++] = r->index_files[i];
	}
	if (rc == 0 && n)
		qsort(m->attached, n, sizeof(*m->attached), by_name);
	return rc;
}

#define NOTE_BYTES 24                   /* bytes of JSON around a note */
#define EMA_BYTES 400                   /* bytes of JSON for an average */

/* Returns how many bytes averages, and the notes for streams of rank bytes, add to the manifest. */
static size_t state_bytes(const struct sheaf_state *state)
{
	size_t n = state->emas_n * EMA_BYTES;

	for (size_t i = 0; i < state->n; i++) {
		const struct shf_stream *s = &state->slices[i].stream;

		n += s->stream ? strlen(s->stream) + strlen(s->rule) + NOTE_BYTES : 0;
	}
	return n;
}

/* Encodes a manifest without notes and attached files, with all numbers as long as they can be. */
int shf_save_record_bound(const struct sheaf_run *run, const struct shf_layout *l,
                          const struct sheaf_state *state, size_t *bytes, struct sheaf_error *err)
{
	static const char id[33] = "00000000000000000000000000000000";
	struct shf_manifest m = { .step = INT64_MAX, .has_parent = true, .parent_step = INT64_MAX,
		.created = "9999-12-31T23:59:59Z", .version = SHEAF_VERSION_TEXT,
		.commit = SHEAF_COMMIT_TEXT, .compiler = SHEAF_COMPILER_TEXT, .no_dir_fsync = true,
		.file_bytes_max = run->opts.file_bytes_max, .ranks = run->team.ranks,
		.sums = { "sheaf.sums", INT64_MAX, 0 } };
	struct shf_arena arena = { NULL, 0 };
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error why;
	int rc;

	memcpy(m.session, id, sizeof(id));
	memcpy(m.run, id, sizeof(id));
	memcpy(m.parent_session, id, sizeof(id));
	rc = shf_layout_lists(l, NULL, &arena, &m, err);
	m.attached = shf_arena_alloc(&arena, l->families_n + 1, sizeof(*m.attached));
	if (rc == 0 && !m.attached)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	for (size_t i = 0; rc == 0 && i < l->families_n; i++) {
		m.attached[i].name = shf_layout_index_name(&l->families[i], &arena);
		m.attached[i].bytes = INT64_MAX;
		m.attached_n++;
		if (!m.attached[i].name)
			rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	}
	if (rc == 0) {
		qsort(m.attached, m.attached_n, sizeof(*m.attached), by_name);
		rc = shf_manifest_encode(&text, &m, &why);
		if (rc == SHEAF_EINVAL)
			shf_fail(err, rc, "the manifest of %zu files and %zu tied names is too "
			         "large: %.300s (raise opts.file_bytes_max for fewer files)",
			         l->files_n, l->tied_n,
			         why.msg);
		else if (rc < 0 && err)
			*err = why;
	}
	*bytes = text.len + state_bytes(state);
	shf_buf_release(&text);
	shf_arena_release(&arena);
	return rc;
}

/* Returns how many bytes the string has in JSON; 0: no memory. */
static size_t text_bytes(const char *s)
{
	struct shf_buf b = SHF_BUF_INIT;
	size_t n;

	shf_json_put(&b, s, strlen(s));
	n = b.oom ? 0 : b.len;
	shf_buf_release(&b);
	return n;
}

int shf_save_record_takes(const struct sheaf_save *save, size_t n, const char *key,
                          const char *value, size_t *bytes, struct sheaf_error *err)
{
	/* These two notes are also members of the manifest's head. */
	bool twice = strcmp(key, "config.digest") == 0 || strcmp(key, "mesh") == 0;
	size_t text = text_bytes(value);

	*bytes = n * (strlen(key) + NOTE_BYTES + (twice ? 2 * text : text));
	if (text == 0)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory", key);
	if (save->plan->manifest_bytes + save->given.given_bytes + *bytes < SHF_MANIFEST_MAX)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s: with it the manifest would have %zu bytes, must "
	                "have less than %" PRIu64 "; shorten notes (a control character takes 6 "
	                "bytes)",
	                key, save->plan->manifest_bytes + save->given.given_bytes + *bytes,
	                SHF_MANIFEST_MAX);
}

void shf_save_record_release(struct shf_save_record *r)
{
	for (size_t i = 0; i < r->indexes_n; i++)
		shf_buf_release(&r->indexes[i]);
	r->indexes_n = 0;
}
