/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf: inspects, verifies, compares and manages checkpoints. */
#include "cli.h"

#include <errno.h>
#include <string.h>

const struct cli_verb *const cli_verbs[] = {
	&cli_ls, &cli_show, &cli_verify, &cli_diff, &cli_cat, &cli_plan, &cli_prune, &cli_mark,
	&cli_rewind, &cli_aside, &cli_copy, &cli_convert, &cli_export, &cli_import,
	&cli_recover, &cli_repair_index, &cli_agent, &cli_stats, &cli_bench, NULL,
};

const struct cli_verb *cli_verb_find(const char *name)
{
	for (int i = 0; cli_verbs[i]; i++)
		if (strcmp(cli_verbs[i]->name, name) == 0)
			return cli_verbs[i];
	return NULL;
}

static int unknown_verb(const struct cli_args *a, const char *name)
{
	const char *words[20], *near;
	char hint[64];
	size_t n = 0;

	for (; cli_verbs[n] && n < 20; n++)
		words[n] = cli_verbs[n]->name;
	near = cli_near(name, words, n);
	if (near)
		snprintf(hint, sizeof(hint), "did you mean %s?", near);
	return cli_usage(a, name, "no such verb", near ? hint : "sheaf help lists them");
}

static bool is_help(const char *arg)
{
	return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static bool is_version(const char *arg)
{
	return strcmp(arg, "--version") == 0 || strcmp(arg, "-V") == 0;
}

/* Handles help, --help and -h, with or without the name of a verb. */
static int help(const struct cli_args *none, int argc, char **argv)
{
	const struct cli_verb *verb;

	if (argc == 0) {
		cli_help_all(stdout);
		return 0;
	}
	verb = cli_verb_find(argv[0]);
	if (!verb)
		return unknown_verb(none, argv[0]);
	if (argc > 1)
		return cli_usage(none, argv[1], "this argument is one too many",
		                 "sheaf help VERB");
	cli_help_verb(stdout, verb);
	return 0;
}

static int command(int argc, char **argv)
{
	struct cli_args a = { 0 };
	const struct cli_verb *verb;
	int version = sheaf_version(), rc;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--json") == 0)
			a.json = true;
	if (argc < 2)
		return cli_usage(&a, "", "a verb is missing", "sheaf help lists them");
	if (strcmp(argv[1], "help") == 0 || is_help(argv[1]))
		return help(&a, argc - 2, argv + 2);
	if (is_version(argv[1])) {
		if (argc > 2)
			return cli_usage(&a, argv[2], "this argument is one too many", NULL);
		printf("sheaf %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
		return 0;
	}
	verb = cli_verb_find(argv[1]);
	if (!verb)
		return unknown_verb(&a, argv[1]);
	rc = cli_args_parse(&a, verb, argc - 2, argv + 2);
	if (rc)
		return rc;
	if (a.help) {
		cli_help_verb(stdout, verb);
		return 0;
	}
	return verb->run(&a);
}

int main(int argc, char **argv)
{
	int status = command(argc, argv);

	/* If the output could not be written, the verb failed. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "sheaf: stdout: %s\n", strerror(errno));
		return 2;
	}
	return status;
}
