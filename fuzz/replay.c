/* SPDX-License-Identifier: Apache-2.0 */
/* Runs files, and the files of folders, through a target: a corpus is a test with any compiler.
 * With -m N each input is also tried with N seeded mutations, so that a corpus of a few dozen
 * files reaches further than its own bytes.
 *
 * usage: fuzz_TARGET [-m N] FILE-OR-FOLDER...
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "fuzz.h"

#define INPUT_MAX ((size_t)64 << 20)

static uint64_t next(uint64_t *seed)
{
	uint64_t z = *seed += UINT64_C(0x9E3779B97F4A7C15);

	z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
	return z ^ z >> 31;
}

/* In a block of exactly its size, so that a sanitizer sees the first byte too many. */
static void run(const uint8_t *bytes, size_t n)
{
	uint8_t *copy = malloc(n ? n : 1);

	MUST(copy);
	if (n)
		memcpy(copy, bytes, n);
	LLVMFuzzerTestOneInput(copy, n);
	free(copy);
}

/* One to four changes: a bit, a byte, a byte of JSON's own alphabet, a cut, a piece copied. */
static size_t mutate(uint8_t *bytes, size_t n, uint64_t *seed)
{
	static const char alphabet[] = "{}[]\",:0123456789.-eE\\u truefalsn";
	int changes = 1 + (int)(next(seed) % 4);

	while (changes-- && n) {
		size_t at = next(seed) % n, len = 1 + next(seed) % 16, to = next(seed) % n;

		switch (next(seed) % 5) {
		case 0:
			bytes[at] ^= (uint8_t)(1U << next(seed) % 8);
			break;
		case 1:
			bytes[at] = (uint8_t)next(seed);
			break;
		case 2:
			bytes[at] = (uint8_t)alphabet[next(seed) % (sizeof(alphabet) - 1)];
			break;
		case 3:
			n = next(seed) % 4 ? n : at;
			break;
		default:
			if (len <= n - at && len <= n - to)
				memmove(bytes + to, bytes + at, len);
		}
	}
	return n;
}

static void run_all(uint8_t *bytes, size_t n, long mutations)
{
	uint8_t *work = malloc(n ? n : 1);
	uint64_t seed = n;

	MUST(work);
	run(bytes, n);
	for (long i = 0; i < mutations; i++) {
		if (n)
			memcpy(work, bytes, n);
		run(work, mutate(work, n, &seed));
	}
	free(work);
}

static int replay_file(const char *path, long mutations)
{
	FILE *f = fopen(path, "rb");
	uint8_t *bytes = NULL;
	struct stat st;
	int rc = -1;

	if (!f || fstat(fileno(f), &st) < 0 || (uint64_t)st.st_size > INPUT_MAX)
		goto out;
	bytes = malloc((size_t)st.st_size + 1);
	if (!bytes || fread(bytes, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
		goto out;
	run_all(bytes, (size_t)st.st_size, mutations);
	rc = 1;
out:
	if (rc < 0)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	if (f)
		fclose(f);
	free(bytes);
	return rc;
}

/* How many files were run, or -1. */
static int replay(const char *path, long mutations)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	char name[4096];
	int n = 0, rc = 0;

	if (!dir)
		return replay_file(path, mutations);
	while (rc >= 0 && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		rc = -1;
		if ((size_t)snprintf(name, sizeof(name), "%s/%s", path,
				     entry->d_name) < sizeof(name))
			rc = replay_file(name, mutations);
		n += rc;
	}
	closedir(dir);
	return rc < 0 ? -1 : n;
}

int main(int argc, char **argv)
{
	long mutations = 0;
	int first = 1, n = 0;

	if (argc > 2 && !strcmp(argv[1], "-m")) {
		mutations = strtol(argv[2], NULL, 10);
		first = 3;
	}
	for (int i = first; i < argc; i++) {
		int rc = replay(argv[i], mutations);

		if (rc < 0)
			return 1;
		n += rc;
	}
	if (!n)
		fprintf(stderr, "no input\n");
	return n ? 0 : 1;
}
