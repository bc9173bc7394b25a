/* SPDX-License-Identifier: Apache-2.0 */
/* A thin coat over cmocka: TEST(claim) registers itself, one main per program.
 * The program's arguments select tests by substring. Include once, in the test's only file. */
#ifndef T_H
#define T_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define T_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define T_SANITIZED 1
#endif
#endif
#ifndef T_SANITIZED
#define T_SANITIZED 0
#endif

/* For loops that are quick in the optimised build: all cases there, each fifth elsewhere. */
#define T_FEWER (T_SANITIZED ? 5 : 1)

/* Before a function of a test that takes the place of libc's, also in shared libraries. */
#define T_REPLACES __attribute__((visibility("default")))

/* Loops over thousands of cases take each T_STRIDE-th. The environment may set the number: with
 * T_STRIDE=1, as in ./check --long, they take all cases. */
#define T_STRIDE t_stride()
static inline int t_stride(void)
{
	static int stride;

	if (!stride) {
		const char *said = getenv("T_STRIDE");

		stride = said ? atoi(said) : 0;
		stride = stride > 0 ? stride : 5;
	}
	return stride;
}

/* Where such a loop starts: 0 to n - 1. The starts differ from loop to loop and from claim to
 * claim, but each run of a claim has the same. */
static unsigned t_turn;

static inline int t_from(int n)
{
	return (int)(t_turn++ % (unsigned)n);
}

static inline int t_begin(void **claim)
{
	t_turn = 0;
	for (const char *c = *claim; *c; c++)
		t_turn = t_turn * 31 + (unsigned char)*c;
	t_turn %= 1000;
	return 0;
}

#define T_MAX 256
static struct CMUnitTest t_tests[T_MAX];
static size_t t_n;

static inline void t_add(const char *name, CMUnitTestFunction fn)
{
	if (t_n < T_MAX)
		t_tests[t_n++] = (struct CMUnitTest){ name, fn, t_begin, NULL,
			(void *)(uintptr_t)name };
}

#define TEST(claim)                                                           \
	static void t_##claim(void **state);                                  \
	__attribute__((constructor)) static void t_reg_##claim(void)          \
	{                                                                     \
		t_add(#claim, t_##claim);                                     \
	}                                                                     \
	static void t_##claim(void **state __attribute__((unused)))

#define CHECK(x) assert_true(x)
#define CHECK_INT(got, want) assert_int_equal((got), (want))
#define CHECK_STR(got, want) assert_string_equal((got), (want))
/* A code and its sentence in one: prints the sentence when the code is not the one wanted. */
#define CHECK_RC(rc, want, err)                                               \
	do {                                                                  \
		int rc_ = (rc);                                               \
		if (rc_ != (want))                                            \
			print_error("%s:%d: %d: %s\n", __FILE__, __LINE__, rc_, (err)->msg); \
		assert_int_equal(rc_, (want));                                \
	} while (0)

/* Is the word among the arguments? It is taken out of them. */
static inline int t_takes(int *argc, char **argv, const char *word)
{
	int n = 1, found = 0;

	for (int i = 1; i < *argc; i++) {
		if (strcmp(argv[i], word) == 0)
			found = 1;
		else
			argv[n++] = argv[i];
	}
	argv[n] = NULL;
	*argc = n;
	return found;
}

/* What T_PART says of this program: "NAME:WORD,-WORD NAME:WORD" has test_NAME run only the claims
 * with one of its words in them, and none with a word behind a minus. NULL: nothing. */
static inline const char *t_part(const char *program)
{
	const char *said = getenv("T_PART"), *name = strrchr(program, '/');
	size_t n;

	name = name ? name + 1 : program;
	name += strncmp(name, "test_", 5) == 0 ? 5 : 0;
	n = strlen(name);
	while (said && *said) {
		said += strspn(said, " ");
		if (strncmp(said, name, n) == 0 && said[n] == ':')
			return said + n + 1;
		said += strcspn(said, " ");
	}
	return NULL;
}

/* Whether the part has the claim. A word that is in no claim ends the program: the list is old. */
static inline int t_in_part(const char *part, const char *claim)
{
	int only = 0, in = 0, out = 0;

	while (part && *part && *part != ' ') {
		size_t n = strcspn(part, ", "), i = 0;
		int but = *part == '-';
		char word[128];

		snprintf(word, sizeof(word), "%.*s", (int)n - but, part + but);
		while (i < t_n && !strstr(t_tests[i].name, word))
			i++;
		if (i == t_n) {
			printf("Bail out! T_PART: no claim has %s\n", word);
			exit(1);
		}
		only |= !but;
		in |= !but && strstr(claim, word);
		out |= but && strstr(claim, word);
		part += n + (part[n] == ',');
	}
	return !out && (in || !only);
}

int main(int argc, char **argv)
{
	const char *part = t_part(argv[0]);
	struct CMUnitTest wants[T_MAX];
	size_t n = 0;

	for (size_t i = 0; i < t_n; i++) {
		int wanted = argc < 2;

		for (int a = 1; a < argc; a++)
			wanted |= strstr(t_tests[i].name, argv[a]) != NULL;
		wanted = wanted && t_in_part(part, t_tests[i].name);
		if (wanted)
			wants[n++] = t_tests[i];
	}
#ifdef T_STDIN_CLOSED   /* the next descriptor is 0, which is one like others */
	fclose(stdin);
#endif
	return _cmocka_run_group_tests(argv[0], wants, n, NULL, NULL);
}
#endif
