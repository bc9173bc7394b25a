/* SPDX-License-Identifier: Apache-2.0 */
#include "modelfiles.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "configread.h"

static const char tokenizer[] = "tokenizer.json";
static const char *const known[] = { tokenizer, "tokenizer_config.json", "tokenizer.model",
	"special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
	"chat_template.jinja", "generation_config.json" };
enum { KNOWN = sizeof(known) / sizeof(known[0]) };
_Static_assert((int)KNOWN <= (int)TR_MODEL_FILES_MAX, "there is room for all");
static const size_t bytes_max = (size_t)64 << 20;       /* of a file that libsheaf attaches */

/* Reads an open file of `size` bytes. */
static int read_file(struct tr_modelfiles *m, FILE *f, const char *path, const char *name,
		     size_t size, struct tr_error *err)
{
	char *bytes = malloc(size + 1);

	if (!bytes)
		return tr_fail(err, TR_ENOMEM, "%s: no memory to read it", path);
	m->file[m->n++] = (struct tr_attachment){ name, bytes, size };
	if (fread(bytes, 1, size, f) == size)
		return 0;
	return tr_fail(err, TR_EIO, "%s: %s", path, ferror(f) ? strerror(errno) :
		       "it became shorter while it was read");
}

/* Reads a file of a directory, if it is there. */
static int read_known(struct tr_modelfiles *m, const char *dir, const char *name,
		      struct tr_error *err)
{
	char path[4300];
	struct stat st;
	FILE *f;
	int rc;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	rc = tr_open_regular(&f, path, err);
	if (rc < 0)
		return rc == TR_ENOENT ? 0 : rc;
	if (fstat(fileno(f), &st) < 0)
		rc = tr_fail(err, TR_EIO, "%s: %s", path, strerror(errno));
	else if ((size_t)st.st_size > bytes_max)
		rc = tr_fail(err, TR_EINVAL, "%s: a file of a checkpoint has at most 64 MiB; use a "
			     "directory of model without it", path);
	else
		rc = read_file(m, f, path, name, (size_t)st.st_size, err);
	fclose(f);
	return rc;
}

/* Writes the directory of a path. */
static void directory_of(const char *path, char *dir, size_t n)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		snprintf(dir, n, ".");
	else
		snprintf(dir, n, "%.*s", (int)(slash - path), path);
}

int tr_modelfiles_read(struct tr_modelfiles *m, const struct tr_opts *o, struct tr_error *err)
{
	char dir[4200];
	int rc = 0;

	m->n = 0;
	if (tr_is_directory(o->model))
		snprintf(dir, sizeof(dir), "%s", o->model);
	else
		directory_of(o->model, dir, sizeof(dir));
	for (int i = 0; rc == 0 && i < KNOWN; i++)
		rc = read_known(m, dir, known[i], err);
	if (rc == 0 && (!m->n || strcmp(m->file[0].file, tokenizer) != 0)) {
		directory_of(o->data, dir, sizeof(dir));
		rc = read_known(m, dir, tokenizer, err);
	}
	return rc;
}

void tr_modelfiles_release(struct tr_modelfiles *m)
{
	for (int i = 0; i < m->n; i++)
		free((void *)(uintptr_t)m->file[i].bytes);
	m->n = 0;
}
