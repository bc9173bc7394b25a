/* SPDX-License-Identifier: Apache-2.0 */
/* Reads small text files: the options of a job, and the config.json of a model. */
#ifndef CONFIGREAD_H
#define CONFIGREAD_H
#include <stddef.h>
#include <stdio.h>

#include "tr_error.h"

/* Opens a file that must be a regular one. ENOENT: there is none. */
int tr_open_regular(FILE **f, const char *path, struct tr_error *err);
/* Reads a file of at most 1 MiB, which may be a pipe, such as that of a process substitution of a
 * shell. The caller frees *text, which is NULL after an error. */
int tr_config_read(const char *path, char **text, size_t *n, struct tr_error *err);
/* Does the same with a file that must be a regular one. */
int tr_config_read_regular(const char *path, char **text, size_t *n, struct tr_error *err);
/* Returns whether a path names a directory, as that of option `model` may. */
int tr_is_directory(const char *path);
#endif
