/* SPDX-License-Identifier: Apache-2.0 */
/* Writes sheaf.json, the commit record.
 *
 * Members stand in the order of doc/format.md, section 6. `self` must be the last member,
 * because it covers every byte before it; a reader checks that sum at a fixed distance from the
 * end, before it parses anything. */
#include "manifest.h"

#include <inttypes.h>
#include <string.h>

#include "crc64.h"
#include "err.h"
#include "json.h"
#include "mf_check.h"

static void put_json_text(struct shf_buf *b, const char *s)
{
	shf_json_put(b, s, strlen(s));
}

/* Writes what separates item i of a list from the one before. */
static void add_comma(struct shf_buf *b, size_t i)
{
	shf_buf_adds(b, i ? ",\n  " : "\n  ");
}

/* Writes the members that are not lists. The strings that go out without escapes (session, run,
 * created) are hex digits and a time, which shf_manifest_check() has proved; all others pass
 * put_json_text().
 *
 * page, block and sum are constants of version 1. They are written all the same, so that a
 * later version can change them and an old reader refuses the step instead of computing other
 * blocks. */
static void put_manifest_head(struct shf_buf *b, const struct shf_manifest *m)
{
	shf_buf_addf(b, "{\"sheaf\": 1,\n \"needs\": [],\n \"step\": %" PRId64 ",\n", m->step);
	shf_buf_addf(b, " \"session\": \"%s\",\n \"run\": \"%s\",\n \"parent\": ", m->session,
		     m->run);
	if (m->has_parent)
		shf_buf_addf(b, "{\"step\": %" PRId64 ", \"session\": \"%s\"", m->parent_step,
			     m->parent_session);
	if (m->has_parent && m->parent_run[0])
		shf_buf_addf(b, ", \"run\": \"%s\"", m->parent_run);
	shf_buf_adds(b, m->has_parent ? "}" : "null");
	shf_buf_addf(b, ",\n \"created\": \"%s\",\n \"writer\": {\"version\": ", m->created);
	put_json_text(b, m->version);
	shf_buf_adds(b, ", \"commit\": ");
	put_json_text(b, m->commit);
	shf_buf_adds(b, ", \"compiler\": ");
	put_json_text(b, m->compiler);
	shf_buf_adds(b, "},\n \"config\": ");
	if (m->config)
		put_json_text(b, m->config);
	else
		shf_buf_adds(b, "null");
	shf_buf_addf(b, ",\n \"flags\": [%s]", m->no_dir_fsync ? "\"no-dir-fsync\"" : "");
	shf_buf_adds(b, ",\n \"page\": 4096,\n \"block\": 1048576,\n \"sum\": \"crc64nvme\"");
	shf_buf_addf(b, ",\n \"file_bytes_max\": %" PRIu64 ",\n \"ranks\": %" PRId64,
		     m->file_bytes_max, m->ranks);
	if (m->mesh) {
		shf_buf_adds(b, ",\n \"mesh\": ");
		put_json_text(b, m->mesh);
	}
	shf_buf_addf(b, ",\n \"plan\": \"%016" PRIx64 "\"", m->plan);
}

/* Writes one file of "files", "attached" or "sums". The three share a form, and mf_decode.c
 * reads them through one table of fields. */
static void put_file_member(struct shf_buf *b, const struct shf_mf_file *f)
{
	shf_buf_adds(b, "{\"name\": ");
	put_json_text(b, f->name);
	shf_buf_addf(b, ", \"bytes\": %" PRIu64 ", \"crc\": \"%016" PRIx64 "\"}", f->bytes, f->crc);
}

/* Writes the list "files" or "attached". */
static void add_files(struct shf_buf *b, const char *name, const struct shf_mf_file *files,
		      size_t n)
{
	shf_buf_addf(b, ",\n \"%s\": [", name);
	for (size_t i = 0; i < n; i++) {
		add_comma(b, i);
		put_file_member(b, &files[i]);
	}
	shf_buf_adds(b, "]");
}

/* Writes the families. Which files belong to a family follows from its count: the first `files`
 * entries of "files" are those of the first family, and so on. */
static void add_families(struct shf_buf *b, const struct shf_manifest *m)
{
	shf_buf_adds(b, ",\n \"families\": [");
	for (size_t i = 0; i < m->families_n; i++) {
		const struct shf_mf_family *f = &m->families[i];

		add_comma(b, i);
		shf_buf_adds(b, "{\"name\": ");
		put_json_text(b, f->name);
		shf_buf_adds(b, ", \"dir\": ");
		put_json_text(b, f->dir);
		shf_buf_addf(b, ", \"files\": %" PRIu64 ", \"tensors\": %" PRIu64 ", \"bytes\": %"
			     PRIu64 "}", f->files, f->tensors, f->bytes);
	}
	shf_buf_adds(b, "]");
}

/* Writes the ties, each as an array of family, name and the name that it is tied to. */
static void add_tied(struct shf_buf *b, const struct shf_manifest *m)
{
	shf_buf_adds(b, ",\n \"tied\": [");
	for (size_t i = 0; i < m->tied_n; i++) {
		add_comma(b, i);
		shf_buf_adds(b, "[");
		put_json_text(b, m->tied[i].family);
		shf_buf_adds(b, ", ");
		put_json_text(b, m->tied[i].name);
		shf_buf_adds(b, ", ");
		put_json_text(b, m->tied[i].to);
		shf_buf_adds(b, "]");
	}
	shf_buf_adds(b, "]");
}

/* Writes the notes, an object with a member for each. shf_manifest_check() has refused equal
 * keys. */
static void add_notes(struct shf_buf *b, const struct shf_manifest *m)
{
	shf_buf_adds(b, ",\n \"notes\": {");
	for (size_t i = 0; i < m->notes_n; i++) {
		add_comma(b, i);
		put_json_text(b, m->notes[i].key);
		shf_buf_adds(b, ": ");
		put_json_text(b, m->notes[i].value);
	}
	shf_buf_adds(b, "}");
}

/* Writes the averages. The member is optional: the caller leaves it out if the step has no
 * averages. coef is a C hex float in a string, which gives the double exactly. */
static void add_emas(struct shf_buf *b, const struct shf_manifest *m)
{
	shf_buf_adds(b, ",\n \"ema\": [");
	for (size_t i = 0; i < m->emas_n; i++) {
		const struct shf_mf_ema *e = &m->emas[i];

		add_comma(b, i);
		shf_buf_adds(b, "{\"name\": ");
		put_json_text(b, e->name);
		shf_buf_adds(b, ", \"of\": ");
		put_json_text(b, e->of);
		shf_buf_adds(b, ", \"coef\": ");
		put_json_text(b, e->coef);
		shf_buf_addf(b, ", \"interval\": %" PRId64 ", \"updates\": %" PRId64 "}",
			     e->interval, e->updates);
	}
	shf_buf_adds(b, "]");
}

/* Everything is checked before it is written, so nothing that the decoder would refuse reaches the
 * disk. `start` is where this manifest begins in out, which may have other bytes before it; the sum
 * covers only the manifest.
 *
 * The limit of SHF_MANIFEST_MAX is checked on the finished bytes, because escapes make the size
 * unpredictable. A manifest that is too large is removed from out again, so the caller cannot write
 * it by mistake. */
int shf_manifest_encode(struct shf_buf *out, const struct shf_manifest *m, struct sheaf_error *err)
{
	size_t start = out->len;
	int rc = shf_manifest_check(m, SHEAF_EINVAL, "manifest", err);

	if (rc < 0)
		return rc;
	put_manifest_head(out, m);
	add_families(out, m);
	add_files(out, "files", m->files, m->files_n);
	add_files(out, "attached", m->attached, m->attached_n);
	add_tied(out, m);
	add_notes(out, m);
	if (m->emas_n)
		add_emas(out, m);
	shf_buf_adds(out, ",\n \"sums\": ");
	put_file_member(out, &m->sums);
	if (!out->oom)
		shf_buf_addf(out, ",\n \"self\": \"%016" PRIx64 "\"}\n",
			     shf_crc64(out->data + start, out->len - start));
	if (out->oom)
		return shf_fail(err, SHEAF_ENOMEM, "out of memory for the manifest");
	if (out->len - start >= SHF_MANIFEST_MAX) {
		rc = shf_fail(err, SHEAF_EINVAL,
			      "manifest of %zu bytes, must be less than %" PRIu64,
			      out->len - start, SHF_MANIFEST_MAX);
		out->len = start;
	}
	return rc;
}

const char *shf_manifest_note(const struct shf_manifest *m, const char *key)
{
	for (size_t i = 0; i < m->notes_n; i++)
		if (strcmp(m->notes[i].key, key) == 0)
			return m->notes[i].value;
	return NULL;
}
