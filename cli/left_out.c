/* SPDX-License-Identifier: Apache-2.0 */
/* Prints which files, and how many notes, of the source are not in DST, for sheaf convert and sheaf
 * export. */
#include "cli.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define NAMES_SAID 10           /* maximum number of names printed */

/* Prints names of files on one line of stderr. n counts those that are not printed, too. */
struct names { const char *dst; int n; };

static void names_add(struct names *x, const char *name)
{
	if (x->n++ >= NAMES_SAID)
		return;
	if (x->n == 1) {
		cli_say_of(x->dst);
		fputs("these were not copied: ", stderr);
	}
	fputs(x->n > 1 ? ", " : "", stderr);
	cli_put(stderr, name);
}

static void names_end(const struct names *x)
{
	if (x->n > NAMES_SAID)
		fprintf(stderr, " and %d more", x->n - NAMES_SAID);
	if (x->n)
		fputc('\n', stderr);
}

/* Returns whether a file or folder of this name has tensors or an index of them: these are
 * converted, not copied. */
static bool has_tensors(const char *name)
{
	static const char *const tails[] = { ".safetensors", ".index.json", ".distcp", ".bin",
		".pt", ".pth", ".metadata", ".sheaf-export", ".pdparams", ".pdopt", ".pdema",
		"model_meta.json", "metadata.pkl", "model_state", "optimizer_state",
		"master_weight", "ema_state", "latest", "latest_universal", "zero",
		"zero_to_fp32.py", "zero_to_torch.py" };
	size_t n = strlen(name);

	if (strstr(name, ".safetensors_shard_") || strncmp(name, "global_step", 11) == 0 ||
	    strncmp(name, "manifest.", 9) == 0)
		return true;
	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		if (n >= strlen(tails[i]) && strcmp(name + n - strlen(tails[i]), tails[i]) == 0)
			return true;
	return false;
}

/* Names the files and folders of a foreign checkpoint's directory that were not copied. DST may be
 * one of these folders itself. */
static void name_others(struct names *x, const char *src)
{
	struct stat dst, st;
	struct dirent *e;
	DIR *d = opendir(src);

	if (stat(x->dst, &dst) < 0)
		dst = (struct stat){ 0 };
	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !has_tensors(e->d_name) &&
		    !cli_has(x->dst, e->d_name) &&
		    !(fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_ino == dst.st_ino &&
		      st.st_dev == dst.st_dev))
			names_add(x, e->d_name);
	if (d)
		closedir(d);
}

static FILE *open_in(const char *dir, const char *file)
{
	char path[4300];

	return snprintf(path, sizeof(path), "%s/%s", dir, file) < (int)sizeof(path)
	       ? fopen(path, "rb") : NULL;
}

/* Returns whether a file in DST has the bytes of the file of the same name in src, or the latter
 * cannot be read. DST may have a file of its own under this name, or a folder. */
static bool is_same(const char *src, const char *dst, const char *file)
{
	FILE *a = open_in(src, file), *b = open_in(dst, file);
	bool same = a == NULL || b != NULL;
	char of_a[4096], of_b[4096];
	size_t n = 1;

	while (a && same && n > 0) {
		n = fread(of_a, 1, sizeof(of_a), a);
		same = fread(of_b, 1, sizeof(of_b), b) == n && memcmp(of_a, of_b, n) == 0;
	}
	if (a)
		fclose(a);
	if (b)
		fclose(b);
	return same;
}

/* Names the attached files of a step, which lies at src, that are not in DST. The copy of
 * config.json may have other bytes. */
static void name_attached(struct names *x, struct sheaf_checkpoint *step, const char *src)
{
	const char *file;
	uint64_t bytes;

	for (size_t i = 0; sheaf_checkpoint_file_at(step, i, &file, &bytes, NULL) == 0; i++)
		if (!cli_has(x->dst, file) ||
		    (strcmp(file, "config.json") && !is_same(src, x->dst, file)))
			names_add(x, file);
}

/* Returns whether this format can store the value of this note. */
static bool has_place(const char *format, bool all, const char *key)
{
	static const char *const trainers[] = { "trainer_state.", "scheduler.last_", "adam.step" };

	if (!all || !cli_is_for_paddle(format))
		return strcmp(format, "deepspeed-universal") == 0;
	for (size_t i = 0; i < sizeof(trainers) / sizeof(trainers[0]); i++)
		if (strncmp(key, trainers[i], strlen(trainers[i])) == 0)
			return true;
	return false;
}

static void say_notes(const struct cli_args *a, struct sheaf_checkpoint *step, const char *dst)
{
	const char *format = cli_value(a, "format"), *key, *value;
	int n = 0;

	for (size_t i = 0; sheaf_checkpoint_note_at(step, i, &key, &value, NULL) == 0; i++)
		n += !has_place(format ? format : "hf", cli_flag(a, "all"), key);
	if (!n)
		return;
	cli_say_of(dst);
	fprintf(stderr, "notes of the source that it has no place for: %d; sheaf show lists "
	        "them\n", n);
}

void cli_say_left_out(const struct cli_args *a, const struct cli_step *s, const char *dst)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };
	const char *format = cli_value(a, "format");
	bool is_gguf = format && strcmp(format, "gguf") == 0;
	struct names x = { dst, 0 };

	if (sheaf_checkpoint_get_info(s->step, &info, NULL) < 0)
		return;
	/* A GGUF file stores the configuration and the tokenizer of these files itself. */
	if (!is_gguf && s->place.kind == CLI_DIR && !cli_has(info.path, "sheaf.json") &&
	    cli_has(dst, "."))
		name_others(&x, info.path);
	else if (!is_gguf)
		name_attached(&x, s->step, info.path);
	names_end(&x);
	say_notes(a, s->step, dst);
}
