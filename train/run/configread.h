/* SPDX-License-Identifier: Apache-2.0 */
/* Reads small text files: the options of a job, and the config.json of a model. */
#ifndef CONFIGREAD_H
#define CONFIGREAD_H
#include <stddef.h>

#include "tr_error.h"

/* Reads a file of at most 1 MiB. The caller frees *text, which is NULL after an error. */
int tr_config_read(const char *path, char **text, size_t *n, struct tr_error *err);
/* Returns whether a path names a directory, as that of option `model` may. */
int tr_is_directory(const char *path);
#endif
