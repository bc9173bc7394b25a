/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the folders of a run's steps: checkpoint-1000, or another prefix that was chosen
 * when the run was made. This is the one place that makes and reads such names. */
#ifndef SHF_STEP_FOLDER_H
#define SHF_STEP_FOLDER_H
#include "store.h"

/* Sets the pattern of a store that was just initialised, such as "step-{n}"; NULL leaves it as it
 * is. It applies until .sheaf/run is read, or for good if there is none. EINVAL: it is not
 * allowed. */
int shf_folder_set(struct shf_store *s, const char *pattern, struct sheaf_error *err);
/* Checks that the run has this pattern; NULL is any. EINVAL names both. */
int shf_folder_is(const struct shf_store *s, const char *pattern, struct sheaf_error *err);
/* Checks a pattern: a prefix of up to SHF_FOLDER_MAX letters, digits, '.', '_' and '-', that
 * neither begins with a dot nor ends in a digit, then "{n}" and the end. EINVAL says what is
 * wrong. */
int shf_folder_check(const char *pattern, struct sheaf_error *err);
/* Writes the pattern of the run, such as "checkpoint-{n}". */
#define SHF_PATTERN (SHF_FOLDER_MAX + 4)        /* bytes of a pattern, with its NUL */
void shf_folder_pattern(const struct shf_store *s, char out[SHF_PATTERN]);
/* Returns whether steps of this run are named as in a run that was made without a pattern. */
bool shf_folder_is_usual(const struct shf_store *s);

/* The largest number of a step. It is one less than the largest int64_t, so that a search for the
 * newest can begin above every step. */
#define SHF_STEP_MAX (INT64_MAX - 1)
/* Reads a decimal number without sign or leading zero, from s to `end`. Returns false if the text
 * is anything else, or if the number is larger than SHF_STEP_MAX. */
bool shf_step_number_get(const char *s, const char *end, int64_t *step);
/* Convert between "checkpoint-12" and 12, by the pattern of the run. shf_step_of_name returns false
 * for any other spelling. */
bool shf_step_of_name(const struct shf_store *s, const char *name, int64_t *step);
void shf_name_of_step(const struct shf_store *s, char out[SHF_STEP_NAME], int64_t step);
#endif
