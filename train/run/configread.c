/* SPDX-License-Identifier: Apache-2.0 */
#include "configread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

int tr_open_regular(FILE **f, const char *path, struct tr_error *err)
{
	/* The open of a FIFO would wait for a program that writes to it. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
	struct stat st;

	if (fd < 0)
		return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", path,
			       strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		rc = tr_fail(err, TR_EIO, "%s: it is not a regular file; use one that is, or "
			     "remove it", path);
	*f = rc == 0 ? fdopen(fd, "rb") : NULL;
	if (rc == 0 && !*f)
		rc = tr_fail(err, TR_ENOMEM, "%s: no memory to read it", path);
	if (rc < 0)
		close(fd);
	return rc;
}

/* Reads an open file, and closes it. */
static int read_to_end(FILE *f, const char *path, char **text, size_t *n, struct tr_error *err)
{
	int rc;

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

int tr_config_read(const char *path, char **text, size_t *n, struct tr_error *err)
{
	FILE *f = fopen(path, "rbe");

	*text = NULL;
	if (!f)
		return tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", path,
			       strerror(errno));
	return read_to_end(f, path, text, n, err);
}

int tr_config_read_regular(const char *path, char **text, size_t *n, struct tr_error *err)
{
	FILE *f;
	int rc = tr_open_regular(&f, path, err);

	*text = NULL;
	return rc == 0 ? read_to_end(f, path, text, n, err) : rc;
}

int tr_is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
