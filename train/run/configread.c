/* SPDX-License-Identifier: Apache-2.0 */
#include "configread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_MAX = 1 << 20 };

static int read_open(FILE *f, const char *path, char *text, size_t *n, struct tr_error *err)
{
	*n = fread(text, 1, CONFIG_MAX + 1, f);
	if (ferror(f))
		return tr_fail(err, TR_EIO, "%s: %s", path, strerror(errno));
	if (*n > CONFIG_MAX)
		return tr_fail(err, TR_EINVAL, "%s: it must be at most 1 MiB long", path);
	return 0;
}

int tr_config_read(const char *path, char **text, size_t *n, struct tr_error *err)
{
	FILE *f = fopen(path, "rbe");
	int rc;

	*text = NULL;
	if (!f)
		return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", path,
			       strerror(errno));
	*text = malloc(CONFIG_MAX + 1);
	rc = *text ? read_open(f, path, *text, n, err) :
		tr_fail(err, TR_ENOMEM, "%s: no memory to read it", path);
	fclose(f);
	if (rc < 0) {
		free(*text);
		*text = NULL;
	}
	return rc;
}

int tr_is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
