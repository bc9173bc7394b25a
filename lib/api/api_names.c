/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for error codes, names of item types, and the version. */
#include "sheaf-admin.h"
#include "sheaf-inspect.h"

#include <stdlib.h>
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "export.h"
#include "sheaf-stat.h"
#include "version.h"

SHEAF_API const char *sheaf_strerror(int code)
{
	return shf_strerror(code);
}

SHEAF_API const char *sheaf_code_name(int code)
{
	return shf_code_name(code);
}

/* Parses SHEAF_VERSION_TEXT, "major.minor.patch", into major * 10000 + minor * 100 + patch. */
SHEAF_API int sheaf_version(void)
{
	const char *text = SHEAF_VERSION_TEXT;
	int version = 0;

	for (int part = 0; part < 3; part++) {
		char *end;

		version = version * 100 + (int)strtol(text, &end, 10);
		text = *end == '.' ? end + 1 : end;
	}
	return version;
}

SHEAF_API const char *sheaf_dtype_name(int dtype)
{
	const struct shf_dtype *d = shf_dtype_of_slice(dtype);

	return d ? d->name : NULL;
}

SHEAF_API int sheaf_dtype_bits(int dtype)
{
	const struct shf_dtype *d = shf_dtype_of_slice(dtype);

	return d ? d->bits : 0;
}

SHEAF_API int sheaf_dtype_from_name(const char *name)
{
	if (name && strcmp(name, "C128") == 0)
		return SHEAF_C128;
	return name ? shf_dtype_from(name, strlen(name)) : 0;
}

/* Defines the function that returns names[kind], or NULL if there is none. */
#define KIND_NAME(function, names)                                                                 \
	SHEAF_API const char *function(int32_t kind)                                               \
	{                                                                                          \
		return kind < 0 || (size_t)kind >= sizeof(names) / sizeof(names[0]) ? NULL         \
		                                                                    : names[kind]; \
	}

static const char *const phases[] = { "copying", "writing", "written", "finished", "reading",
	"verifying", "publishing" };
static const char *const reported[] = { NULL, "missing", "unexpected", "converted", "unverified",
	"derived", "ignored", "mismatched", "zeroed", "stream", "passed-over", "set-aside" };
static const char *const findings[] = { NULL, "checksum", "digest", "truncated", "extended",
	"missing", "extra", "manifest", "header", "index", "unverified" };
static const char *const marks[] = { "none", "keep", "bad", "unread" };
static const char *const states[] = { NULL, "committed", "damaged", "foreign", "aside", "staged",
	"unread" };
static const char *const leftovers[] = { NULL, "lock", "damaged", "unread", "remains", "staged",
	"copy", "aside", "trash", "rewind", "flush" };
static const char *const actions[] = { "none", "delete", "finish", "wait", "decide" };
static const char *const prunes[] = { NULL, "keep", "remove" };

KIND_NAME(sheaf_phase_name, phases)
KIND_NAME(sheaf_report_kind_name, reported)
KIND_NAME(sheaf_finding_kind_name, findings)
KIND_NAME(sheaf_mark_name, marks)
KIND_NAME(sheaf_item_state_name, states)
KIND_NAME(sheaf_leftover_kind_name, leftovers)
KIND_NAME(sheaf_leftover_action_name, actions)
KIND_NAME(sheaf_prune_action_name, prunes)
