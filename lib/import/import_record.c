/* SPDX-License-Identifier: Apache-2.0 */
#include "import_record.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "json.h"
#include "layout_record.h"
#include "mf_check.h"
#include "run_env.h"
#include "run_files.h"
#include "step_foreign.h"
#include "valid.h"
#include "version.h"

#define NOTES_MAX (SHF_MANIFEST_MAX / 2)        /* bytes of notes of a foreign source as JSON */

/* ---- the number of the step ---- */

int shf_import_number(int64_t *number, struct sheaf_checkpoint *step, int64_t asked,
                      struct sheaf_error *err)
{
	step = shf_step_behind_maps(step);
	*number = asked >= 0 ? asked : shf_step_said_number(step);
	if (*number < 0 && step->manifest.notes_n)
		return shf_fail(err, SHEAF_EINVAL, "%s: does not say which step it is, because it "
		                "has no number named step, global_step or iteration; name it, as "
		                "in RUN@1000", step->path);
	if (*number < 0)
		*number = 0;
	return 0;
}

/* ---- notes ---- */

/* Returns whether a step can have this note, and whether there is room for it. *left: bytes of room
 * as JSON. */
static bool note_fits(const struct shf_mf_note *note, size_t *left)
{
	struct shf_buf text = SHF_BUF_INIT;
	size_t n;
	bool oom;

	if (!shf_note_key_is_valid(note->key) || strlen(note->value) > SHF_NOTE_MAX ||
	    !shf_utf8_is_valid(note->value, strlen(note->value)))
		return false;
	shf_json_put(&text, note->key, strlen(note->key));
	shf_json_put(&text, note->value, strlen(note->value));
	n = text.len + 24;
	oom = text.oom;
	shf_buf_release(&text);
	if (oom || n > *left)
		return false;
	*left -= n;
	return true;
}

/* Takes over the notes of the source, which are sorted by key. The notes of a Sheaf step are valid
 * in any other step. */
static int take_notes(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_manifest *from = &m->step->manifest;
	struct shf_manifest *to = &m->manifest;
	size_t left = m->step->sound ? SIZE_MAX : NOTES_MAX;

	to->notes = shf_arena_alloc(&m->arena, from->notes_n + 1, sizeof(*to->notes));
	if (!to->notes)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its notes", m->step->path);
	for (size_t i = 0; i < from->notes_n; i++) {
		bool twice = to->notes_n && strcmp(to->notes[to->notes_n - 1].key,
		                                   from->notes[i].key) == 0;

		if (!twice && note_fits(&from->notes[i], &left))
			to->notes[to->notes_n++] = from->notes[i];
	}
	return 0;
}

/* ---- the manifest ---- */

static int import_head(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_manifest *from = &m->step->manifest;
	struct shf_manifest *to = &m->manifest;
	char fresh[17];
	int rc = shf_id_draw(m->dst.sys, fresh, 16);

	if (rc < 0)
		return shf_fail_io(err, -rc, "%s", (char *)m->path.data);
	to->step = m->number;
	snprintf(to->session, sizeof(to->session), "%.16s%s", m->dst.session, fresh);
	memcpy(to->run, m->dst.run, sizeof(to->run));
	shf_run_time(m->step->run, to->created);
	to->version = SHEAF_VERSION_TEXT;
	to->commit = SHEAF_COMMIT_TEXT;
	to->compiler = SHEAF_COMPILER_TEXT;
	to->config = shf_manifest_note(to, "config.digest");
	to->mesh = shf_manifest_note(to, "mesh");
	to->no_dir_fsync = m->dst.no_dir_fsync;
	to->file_bytes_max = m->opts->how.file_bytes_max;
	to->ranks = m->step->sound ? from->ranks : 1;
	to->plan = shf_layout_hash(&m->x.plan.out);
	/* The averages keep their families only if all families are taken over. */
	if (m->step->sound && !m->opts->how.family) {
		to->emas = from->emas;
		to->emas_n = from->emas_n;
	}
	return 0;
}

static int attached_by_name(const void *a, const void *b)
{
	return strcmp(((const struct shf_mf_file *)a)->name, ((const struct shf_mf_file *)b)->name);
}

/* Writes a file into a folder of the stage, and syncs it. */
static int put_file(struct shf_import *m, int dir, const char *name, const struct shf_buf *text,
                    struct sheaf_error *err)
{
	int rc = shf_text_put(m->dst.sys, m->stage.dir, dir, name, text->data, text->len, true);

	return rc < 0 ? shf_fail_io(err, -rc, "%s/%s", (char *)m->where.data, name) : 0;
}

/* Writes the index file of each family, and lists them with the other attached files. */
static int put_indexes(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	struct shf_manifest *to = &m->manifest;
	size_t n = m->beside.copied.len / sizeof(*to->attached);
	int rc = 0;

	to->attached = shf_arena_alloc(&m->arena, n + l->families_n, sizeof(*to->attached));
	if (!to->attached)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its manifest",
		                (char *)m->path.data);
	if (n)
		memcpy(to->attached, m->beside.copied.data, m->beside.copied.len);
	for (size_t i = 0; i < l->families_n && rc == 0; i++) {
		struct shf_mf_file *f = &to->attached[n + i];
		struct shf_buf text = SHF_BUF_INIT;
		const char *slash;

		rc = shf_layout_index(l, &l->families[i], &text, err);
		f->name = shf_layout_index_name(&l->families[i], &m->arena);
		if (rc == 0 && !f->name)
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its manifest",
			              (char *)m->path.data);
		if (rc == 0) {
			slash = strrchr(f->name, '/');
			f->bytes = text.len;
			f->crc = shf_crc64(text.data, text.len);
			rc = put_file(m, m->dirs[i], slash ? slash + 1 : f->name, &text, err);
		}
		shf_buf_release(&text);
	}
	to->attached_n = n + l->families_n;
	if (rc == 0)
		qsort(to->attached, to->attached_n, sizeof(*to->attached), attached_by_name);
	return rc;
}

/* ---- checksums ---- */

/* Compares the digests with those of the source, unless the values were converted. */
static int check_digests(const struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_export_plan *plan = &m->x.plan;

	for (size_t i = 0; i < plan->out.tensors_n && m->step->sound; i++) {
		const struct shf_lt_tensor *t = &m->step->layout.tensors[plan->from[i]];

		if (plan->out.tensors[i].dtype == t->dtype && m->x.digests[i] != t->digest)
			return shf_fail(err, SHEAF_ECORRUPT, "%s: tensor %.*s: the digest of what "
			                "was read is not that in sheaf.sums", m->step->path,
			                shf_name_show(t->name), t->name);
	}
	return 0;
}

/* Makes the table of checksums, and writes it into the stage. */
static int put_sums(struct shf_import *m, uint64_t *file_crc, struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	struct shf_layout_sums sums = { .blocks = m->x.sums, .digests = m->x.digests };
	struct shf_buf table = SHF_BUF_INIT;
	struct shf_sums_head head;
	uint32_t bad;
	int rc = 0;

	sums.headers = shf_arena_alloc(&m->arena, l->files_n, sizeof(*sums.headers));
	if (!sums.headers || shf_layout_table(l, &head, &table) < 0)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its checksums",
		              (char *)m->path.data);
	for (size_t f = 0; f < l->files_n && rc == 0; f++)
		sums.headers[f] = shf_crc64_raw(0, m->x.plan.files[f].header.data,
		                                m->x.plan.files[f].header.len);
	if (rc == 0 && shf_layout_sums_end(l, &sums, file_crc, &bad) < 0)
		rc = shf_fail(err, SHEAF_EIO, "%s: %s: the checksums of its tensors and of its "
		              "blocks do not match: the memory of this machine is faulty",
		              (char *)m->path.data, l->files[bad].name);
	if (rc == 0) {
		uint64_t crc = shf_layout_table_end(l, &head, table.data, &sums);

		m->manifest.sums = (struct shf_mf_file){ "sheaf.sums", table.len, crc };
		rc = put_file(m, m->stage.dir, "sheaf.sums", &table, err);
	}
	shf_buf_release(&table);
	return rc;
}

int shf_import_record(struct shf_import *m, struct sheaf_error *err)
{
	const struct shf_layout *l = &m->x.plan.out;
	uint64_t *file_crc = shf_arena_alloc(&m->arena, l->files_n, sizeof(*file_crc));
	int rc = file_crc ? check_digests(m, err)
	       : shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its checksums",
	                  (char *)m->path.data);

	if (rc == 0)
		rc = put_sums(m, file_crc, err);
	if (rc == 0)
		rc = shf_layout_lists(l, file_crc, &m->arena, &m->manifest, err);
	if (rc == 0)
		rc = put_indexes(m, err);
	if (rc == 0)
		rc = take_notes(m, err);
	return rc == 0 ? import_head(m, err) : rc;
}
