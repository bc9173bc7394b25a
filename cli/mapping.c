/* SPDX-License-Identifier: Apache-2.0 */
/* Options that show a checkpoint through a map: --map, --to, --set and --config. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETS_MAX 32

/* Returns the path of a map that is installed with the command: in share/sheaf/maps beside the
 * folder of the command, or in maps in a build folder. The environment variable SHEAF_MAPS names
 * another directory. The caller owns the result. NULL: not found, or no memory. */
static char *map_of_name(const char *name)
{
	static const char *const folders[] = { "share/sheaf/maps", "maps" };
	const char *dir = getenv("SHEAF_MAPS");
	char exe[4096], *path, *end = exe;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (dir && dir[0])
		return asprintf(&path, "%s/%s.map", dir, name) < 0 ? NULL : path;
	exe[n > 0 ? n : 0] = '\0';
	for (int i = 0; end && i < 2; i++) {            /* the command, then its folder */
		end = strrchr(exe, '/');
		if (end)
			*end = '\0';
	}
	for (size_t i = 0; end && i < sizeof(folders) / sizeof(*folders); i++) {
		if (asprintf(&path, "%s/%s/%s.map", exe, folders[i], name) < 0)
			return NULL;
		if (access(path, R_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}

/* Returns the path of a map: of a file, its own path; for another name, the path of the installed
 * map. The caller owns the result. NULL: as above. */
static char *map_path(const char *name)
{
	struct stat st;

	return strchr(name, '/') || (stat(name, &st) == 0 && S_ISREG(st.st_mode)) ?
		strdup(name) : map_of_name(name);
}

/* Splits the value of --set at its commas, in place. */
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

/* Says how many items a map leaves out because they are padding. */
static void say_padding(const char *src, struct sheaf_checkpoint *mapped)
{
	const char *items = sheaf_checkpoint_note(mapped, "map.padding_left_out");

	if (!items)
		return;
	cli_say_of(src);
	fprintf(stderr, "items that the map leaves out as padding: %s\n", items);
}

json_t *cli_config_of(const struct cli_step *s, const char *file)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	const char *slash;
	const void *bytes;
	struct stat st;
	json_t *config;
	char *path;
	size_t n;

	if (!file && sheaf_checkpoint_file(s->step, "config.json", &bytes, &n, NULL) == 0)
		return json_loadb(bytes, n, 0, NULL);
	if (file)
		return json_load_file(file, 0, NULL);
	if (sheaf_checkpoint_get_info(s->step, &info, NULL) < 0)
		return NULL;
	slash = strrchr(info.path, '/');
	if (stat(info.path, &st) == 0 && S_ISDIR(st.st_mode))
		slash = info.path + strlen(info.path);
	if (asprintf(&path, "%.*s/config.json", slash ? (int)(slash - info.path) : 1,
	             slash ? info.path : ".") < 0)
		return NULL;
	config = json_load_file(path, 0, NULL);
	free(path);
	return config;
}

/* Returns the name of the map that --format gguf needs; it depends on model_type in config.json.
 * NULL: another format was requested, the tensors already have llama.cpp's names, or no map for the
 * model is installed. */
static const char *map_for_gguf(const struct cli_step *s, const struct cli_args *a)
{
	static const struct { const char *type, *map; } maps[] = { { "llama", "llama-hf-gguf" },
		{ "mistral", "llama-hf-gguf" }, { "qwen2", "qwen2-hf-gguf" },
		{ "qwen3", "qwen3-hf-gguf" } };
	const char *format = cli_value(a, "format"), *map = NULL, *type;
	struct sheaf_tensor t = { .size = sizeof(t) };
	bool has_names = false;
	json_t *config;

	if (!format || strcmp(format, "gguf"))
		return NULL;
	for (size_t i = 0; sheaf_checkpoint_tensor(s->step, i, &t, NULL) == 0; i++)
		has_names |= strcmp(t.name, "token_embd.weight") == 0;
	config = has_names ? NULL : cli_config_of(s, cli_value(a, "config"));
	type = json_string_value(json_object_get(config, "model_type"));
	for (size_t i = 0; type && i < sizeof(maps) / sizeof(maps[0]); i++)
		if (strcmp(type, maps[i].type) == 0)
			map = maps[i].map;
	json_decref(config);
	return map;
}

int cli_step_map(struct cli_step *s, const struct cli_args *a, const char *family)
{
	const char *given = cli_value(a, "map"), *name = given ? given : map_for_gguf(s, a);
	const char *set = cli_value(a, "set"), *sets[SETS_MAX + 1];
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
	if (!path)
		return cli_usage(a, name, "there is no such file, and no map of this name "
		                 "comes with sheaf", "doc/mapping.md lists them");
	text = set ? strdup(set) : NULL;
	how.file = path;
	rc = text || !set ? split(a, text, sets) : cli_nomem(a);
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
