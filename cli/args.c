/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: a verb's table makes both its parser and its help page. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- similar names ------------------------------------------------------------------------ */

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Returns the edit distance of two short words; a long word is far from every other. */
static size_t distance(const char *a, const char *b)
{
	size_t an = strlen(a), bn = strlen(b), row[32];

	if (an >= 32 || bn >= 32)
		return SIZE_MAX;
	for (size_t j = 0; j <= bn; j++)
		row[j] = j;
	for (size_t i = 1; i <= an; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= bn; j++) {
			size_t up = row[j];

			row[j] = least(least(row[j] + 1, row[j - 1] + 1),
				       diagonal + (a[i - 1] != b[j - 1]));
			diagonal = up;
		}
	}
	return row[bn];
}

const char *cli_near(const char *word, const char *const *words, size_t n)
{
	const char *best = NULL;
	size_t best_d = 3;

	for (size_t i = 0; i < n; i++) {
		size_t d = distance(word, words[i]);

		if (d < best_d && d < strlen(words[i])) {
			best = words[i];
			best_d = d;
		}
	}
	return best;
}

/* --- parsing ------------------------------------------------------------------------------ */

static int opt_index(const struct cli_verb *verb, const char *name, size_t n)
{
	for (int i = 0; verb->opts[i].name; i++)
		if (strlen(verb->opts[i].name) == n && memcmp(verb->opts[i].name, name, n) == 0)
			return i;
	return -1;
}

static int unknown(const struct cli_args *a, const char *arg, size_t n)
{
	const char *words[CLI_OPTS_MAX + 2], *near;
	char name[32], hint[64];
	size_t k = 0;

	for (; a->verb->opts[k].name; k++)
		words[k] = a->verb->opts[k].name;
	words[k++] = "json";
	words[k++] = "help";
	snprintf(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), arg + 2);
	near = arg[1] == '-' ? cli_near(name, words, k) : NULL;
	if (near)
		snprintf(hint, sizeof(hint), "did you mean --%s?", near);
	return cli_usage(a, arg, "unknown option", near ? hint : NULL);
}

/* Parses the option argv[i], and its value if it has one. */
static int take(struct cli_args *a, int argc, char **argv, int *i)
{
	const char *arg = argv[*i];
	size_t n = arg[1] == '-' ? strcspn(arg + 2, "=") : 0;
	bool has = arg[1] == '-' && arg[n + 2] == '=';
	int k = n ? opt_index(a->verb, arg + 2, n) : -1;

	if (strcmp(arg, "--json") == 0) {
		a->json = true;
		return 0;
	}
	if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
		a->help = true;
		return 0;
	}
	if (k < 0)
		return unknown(a, arg, n);
	if (a->value[k])
		return cli_usage(a, arg, "this option is given twice", NULL);
	if (!a->verb->opts[k].arg) {
		a->value[k] = "";
		return has ? cli_usage(a, arg, "this option takes no value", NULL) : 0;
	}
	if (!has && *i + 1 >= argc)
		return cli_usage(a, arg, "this option needs a value", NULL);
	a->value[k] = has ? arg + n + 3 : argv[++*i];
	if (!*a->value[k])
		return cli_usage(a, arg, "its value is empty", NULL);
	return 0;
}

int cli_args_parse(struct cli_args *a, const struct cli_verb *verb, int argc, char **argv)
{
	bool words_only = false;
	int rc;

	*a = (struct cli_args){ .verb = verb };
	/* --json comes first, so that every error message has the requested form. */
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--json") == 0)
			a->json = true;
	for (int i = 0; i < argc; i++) {
		if (!words_only && strcmp(argv[i], "--") == 0) {
			words_only = true;
		} else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
			rc = take(a, argc, argv, &i);
			if (rc)
				return rc;
		} else if (a->pos_n < verb->pos_max) {
			/* A tensor of a foreign checkpoint may have any name. */
			if (!argv[i][0] && !(a->pos_n && verb == &cli_cat))
				return cli_usage(a, "", "an argument is empty", NULL);
			a->pos[a->pos_n++] = argv[i];
		} else {
			return cli_usage(a, argv[i], "this argument is one too many", NULL);
		}
	}
	if (!a->help && a->pos_n < verb->pos_min)
		return cli_usage(a, verb->pos_names, a->pos_n ? "an argument is missing"
		                 : "the argument is missing", NULL);
	return 0;
}

const char *cli_value(const struct cli_args *a, const char *name)
{
	int k = opt_index(a->verb, name, strlen(name));

	return k < 0 ? NULL : a->value[k];
}

bool cli_flag(const struct cli_args *a, const char *name)
{
	return cli_value(a, name) != NULL;
}

static int bad_number(const struct cli_args *a, const char *name, const char *why)
{
	char where[64];

	snprintf(where, sizeof(where), "--%.50s", name);
	return cli_usage(a, where, why, NULL);
}

int cli_int(const struct cli_args *a, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
	const char *s = cli_value(a, name);
	char why[160], *end;
	long long v;

	if (!s)
		return 0;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (*s < '0' || *s > '9' || *end || errno || v < lo || v > hi) {
		snprintf(why, sizeof(why), "'%.40s' is not a whole number from %lld to %lld", s,
			 (long long)lo, (long long)hi);
		return bad_number(a, name, why);
	}
	*out = v;
	return 0;
}

int cli_bytes(const struct cli_args *a, const char *name, int64_t lo, int64_t hi, int64_t *out)
{
	static const char letters[] = "KMGT";
	const char *s = cli_value(a, name), *letter = NULL;
	char why[160], *end;
	int shift = 0;
	long long v;

	if (!s)
		return 0;
	errno = 0;
	v = strtoll(s, &end, 10);
	if (*end)
		letter = strchr(letters, *end == 'k' ? 'K' : *end);
	if (letter) {
		shift = 10 * (int)(letter - letters + 1);
		end++;
	}
	if (*s < '0' || *s > '9' || *end || errno || v > hi >> shift || v << shift < lo) {
		snprintf(why, sizeof(why), "'%.40s' is not a number of bytes from %lld to %lld, "
			 "alone or with K, M, G or T", s, (long long)lo, (long long)hi);
		return bad_number(a, name, why);
	}
	*out = (int64_t)((uint64_t)v << shift);
	return 0;
}

int cli_real(const struct cli_args *a, const char *name, double *out)
{
	const char *s = cli_value(a, name);
	char why[160], *end;
	double v;

	if (!s)
		return 0;
	v = strtod(s, &end);
	if (!((*s >= '0' && *s <= '9') || *s == '.') || *end || !isfinite(v)) {
		snprintf(why, sizeof(why), "'%.40s' is not a number from 0 up", s);
		return bad_number(a, name, why);
	}
	*out = v;
	return 0;
}

/* --- help pages --------------------------------------------------------------------------- */

static void option_line(FILE *f, const char *name, const char *arg, const char *help)
{
	int n;

	if (!help)
		return; /* known, but refused */
	n = fprintf(f, "  --%s%s%s", name, arg ? " " : "", arg ? arg : "");
	/* Further lines of the help are indented under the first. */
	fprintf(f, "%*s", n < 26 ? 26 - n : 2, "");
	for (; *help; help++) {
		fputc(*help, f);
		if (*help == '\n')
			fprintf(f, "%26s", "");
	}
	fputc('\n', f);
}

void cli_help_verb(FILE *f, const struct cli_verb *verb)
{
	fprintf(f, "sheaf %s - %s\n\nusage: %s\n\n%s\n\noptions\n", verb->name, verb->brief,
		verb->synopsis, verb->text);
	for (int i = 0; verb->opts[i].name; i++)
		option_line(f, verb->opts[i].name, verb->opts[i].arg, verb->opts[i].help);
	option_line(f, "json", NULL, "one JSON object a line, on stdout and in errors");
	option_line(f, "help", NULL, "this page");
	fprintf(f, "\nexit status\n%s\n\nexamples\n%s\n", verb->exits, verb->examples);
}

void cli_help_all(FILE *f)
{
	fputs("usage: sheaf VERB [arguments] [--json]\n\n", f);
	for (int i = 0; cli_verbs[i]; i++)
		fprintf(f, "  %-13s%s\n", cli_verbs[i]->name, cli_verbs[i]->brief);
	fputs("\nA PATH is a run, a step of it (RUN@1000, RUN@latest), a checkpoint directory,\n"
	      "any Hugging Face directory, a directory of PyTorch DCP, of DeepSpeed, of Megatron,\n"
	      "of Orbax or of a trainer with Paddle, a torch.save, paddle.save, NumPy or GGUF\n"
	      "file, or one safetensors file.\n\n"
	      "Exit 0: fine, or yes. 1: no (corrupt, differs). 2: could not tell.\n"
	      "`sheaf help VERB` is its page; `sheaf --version` says which sheaf this is.\n"
	      "-h is --help, and -V is --version.\n", f);
}
