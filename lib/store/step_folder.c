/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the folders of steps. The prefix is fixed for the life of a run, so a name is read
 * by comparing its beginning: no pattern needs to be searched. */
#include "step_folder.h"
#include "decimal.h"
#include "err.h"

#include <stdio.h>
#include <string.h>

#define USUAL "checkpoint-"

/* Returns the length of the prefix, or -1 if the pattern does not end in "{n}". */
static int prefix_length(const char *pattern)
{
	size_t n = strlen(pattern);

	return n >= 3 && n - 3 <= SHF_FOLDER_MAX && strcmp(pattern + n - 3, "{n}") == 0
	       ? (int)(n - 3) : -1;
}

static bool prefix_is_plain(const char *prefix, int n)
{
	for (int i = 0; i < n; i++) {
		char c = prefix[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || shf_is_digit(c) ||
		      c == '.' || c == '_' || c == '-'))
			return false;
	}
	return true;
}

/* A prefix that ends in a digit would run into the number: a person reads step12 as step 12, and
 * the pattern step1{n} would make it step 2. A leading dot is refused because ls hides such
 * folders, and because .sheaf must not be one of them. */
int shf_folder_check(const char *pattern, struct sheaf_error *err)
{
	int n = prefix_length(pattern);
	const char *why = n < 0 || !prefix_is_plain(pattern, n)
			  ? "it must be up to 40 of [A-Za-z0-9._-], then {n}"
			  : pattern[0] == '.' ? "it must not begin with a dot"
			  : n && shf_is_digit(pattern[n - 1])
			  ? "it must not have a digit before {n}" : NULL;

	return why ? shf_fail(err, SHEAF_EINVAL, "opts.folder is '%.60s': %s, as in step-{n}",
			      pattern, why) : 0;
}

int shf_folder_set(struct shf_store *s, const char *pattern, struct sheaf_error *err)
{
	int rc = pattern ? shf_folder_check(pattern, err) : 0;

	if (rc == 0 && pattern)
		snprintf(s->prefix, sizeof(s->prefix), "%.*s", prefix_length(pattern), pattern);
	return rc;
}

int shf_folder_is(const struct shf_store *s, const char *pattern, struct sheaf_error *err)
{
	char has[SHF_PATTERN];

	shf_folder_pattern(s, has);
	if (!pattern || strcmp(pattern, has) == 0)
		return 0;
	return shf_fail(err, SHEAF_EINVAL, "%s: its checkpoints are named %s, and opts.folder is "
			"%.60s: leave it NULL, or name another run", s->path, has, pattern);
}

void shf_folder_pattern(const struct shf_store *s, char out[SHF_PATTERN])
{
	snprintf(out, SHF_PATTERN, "%s{n}", s->prefix);
}

bool shf_folder_is_usual(const struct shf_store *s)
{
	return strcmp(s->prefix, USUAL) == 0;
}

bool shf_step_number_get(const char *s, const char *end, int64_t *step)
{
	int64_t v = 0;

	if (s == end || (*s == '0' && s + 1 != end))
		return false;
	for (; s < end; s++) {
		if (*s < '0' || *s > '9' || v > (SHF_STEP_MAX - (*s - '0')) / 10)
			return false;
		v = v * 10 + (*s - '0');
	}
	*step = v;
	return true;
}

/* Other spellings of the number, such as checkpoint-007, are foreign: two names must never mean one
 * step. */
bool shf_step_of_name(const struct shf_store *s, const char *name, int64_t *step)
{
	size_t n = strlen(s->prefix);

	if (strncmp(name, s->prefix, n) != 0)
		return false;
	name += n;
	return shf_step_number_get(name, name + strlen(name), step);
}

void shf_name_of_step(const struct shf_store *s, char out[SHF_STEP_NAME], int64_t step)
{
	snprintf(out, SHF_STEP_NAME, "%s%lld", s->prefix, (long long)step);
}
