/* SPDX-License-Identifier: Apache-2.0 */
#include "foreign_json.h"
#include <string.h>
#include "err.h"
#include "foreign_st.h"
#include "json.h"

#define SMALL_MAX (UINT64_C(16) << 20)  /* bytes of a small file that is read */
#define TEXT_MAX 1024

/* Notes one value, whose first token is `kind`. Returns false if the text is not JSON. */
static bool note_value(struct shf_foreign *f, struct shf_json *j, enum shf_json_kind kind,
                       const struct shf_buf *key, int *rc, struct sheaf_error *err)
{
	const char *text = kind == SHF_JSON_TRUE ? "true" : kind == SHF_JSON_FALSE ? "false" : NULL;

	if (kind == SHF_JSON_NUMBER || kind == SHF_JSON_STRING)
		text = shf_json_text(j, NULL);
	if (!text)
		return shf_json_skip(j, kind);
	*rc = shf_foreign_note(f, err, (const char *)key->data, key->len, "%.*s", TEXT_MAX, text);
	return true;
}

int shf_foreign_json_notes(struct shf_foreign *f, const char *folder, const char *file,
                           const char *prefix, struct sheaf_error *err)
{
	struct shf_buf bytes = SHF_BUF_INIT, key = SHF_BUF_INIT;
	enum shf_json_kind kind = SHF_JSON_ERROR;
	struct shf_json j;
	int rc = shf_foreign_slurp(f, folder, file, SMALL_MAX, &bytes, err);

	shf_json_init(&j, bytes.data, bytes.len);
	if (rc == 0 && shf_json_next(&j) == SHF_JSON_OBJECT)
		kind = shf_json_next(&j);
	for (; rc == 0 && kind == SHF_JSON_KEY; kind = shf_json_next(&j)) {
		size_t n;
		const char *text = shf_json_text(&j, &n);

		shf_buf_reset(&key);
		shf_buf_addf(&key, "%s.", prefix);
		shf_buf_add(&key, text, n);
		if (key.oom)
			rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a note", f->path);
		else if (!note_value(f, &j, shf_json_next(&j), &key, &rc, err))
			break;
	}
	if (rc == 0 && j.scratch.oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "%s: no memory for a note", f->path);
	else if (rc == 0 && kind != SHF_JSON_OBJECT_END)
		rc = shf_foreign_note(f, err, prefix, strlen(prefix), "%s is not a JSON object, "
		                      "and was not read", file);
	shf_json_release(&j);
	shf_buf_release(&bytes);
	shf_buf_release(&key);
	return rc;
}
