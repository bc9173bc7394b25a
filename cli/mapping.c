/* SPDX-License-Identifier: Apache-2.0 */
/* Options that show a checkpoint through a map: --map, --to, --set and --config. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SETS_MAX 32

/* Returns the path of a map: a path as it is, a plain name as that of a map which is installed.
 * Owned by the caller; NULL: no memory. */
static char *map_path(const char *name)
{
	const char *dir = getenv("SHEAF_MAPS");
	char *path = NULL;
	struct stat st;

	if (strchr(name, '/') || (stat(name, &st) == 0 && S_ISREG(st.st_mode)))
		return strdup(name);
	return asprintf(&path, "%s/%s.map", dir && dir[0] ? dir : SHEAF_MAPS_DIR, name) < 0 ? NULL
	                                                                                 : path;
}

/* Splits --set at its commas, in place. */
static int split(const struct cli_args *a, char *text, const char *sets[SETS_MAX + 1])
{
	size_t n = 0;

	for (char *p = text ? strtok(text, ",") : NULL; p; p = strtok(NULL, ",")) {
		if (n == SETS_MAX)
			return cli_usage(a, "--set", "has too many numbers", NULL);
		sets[n++] = p;
	}
	sets[n] = NULL;
	return 0;
}

/* Says how many items a map leaves out as padding. */
static void say_padding(const char *src, struct sheaf_checkpoint *mapped)
{
	const char *items = sheaf_checkpoint_note(mapped, "map.padding_left_out");

	if (!items)
		return;
	fputs("sheaf: ", stderr);
	cli_put(stderr, src);
	fprintf(stderr, ": items that the map leaves out as padding: %s\n", items);
}

int cli_step_map(struct cli_step *s, const struct cli_args *a, const char *family)
{
	const char *name = cli_value(a, "map"), *set = cli_value(a, "set"), *sets[SETS_MAX + 1];
	struct sheaf_map how = { .size = sizeof(how), .to = cli_value(a, "to"), .set = sets,
		.config = cli_value(a, "config"), .family = family,
		.prefix = cli_value(a, "prefix") };
	static const char *const others[] = { "to", "set", "config" };
	struct sheaf_error err = { .msg = "" };
	struct sheaf_checkpoint *mapped;
	char *path, *text;
	int64_t mem = 0;
	int rc = cli_bytes(a, "mem", 1, INT64_MAX, &mem);

	if (rc)
		return rc;
	how.memory_bytes = (uint64_t)(mem + 1) / 2;     /* see cli_writing_options */
	for (size_t i = 0; !name && i < sizeof(others) / sizeof(others[0]); i++)
		if (cli_value(a, others[i]))
			return cli_usage(a, others[i], "this option needs --map", NULL);
	if (!name)
		return 0;
	path = map_path(name);
	text = set ? strdup(set) : NULL;
	how.file = path;
	rc = path && (text || !set) ? split(a, text, sets) : cli_nomem(a);
	if (rc == 0) {
		rc = sheaf_checkpoint_map(&mapped, s->step, &how, &err);
		if (rc < 0)
			rc = cli_error(a, rc, a->pos[0], err.msg, NULL);
		else {
			sheaf_checkpoint_close(s->step);
			s->step = mapped;
			say_padding(a->pos[0], mapped);
		}
	}
	free(path);
	free(text);
	return rc;
}
