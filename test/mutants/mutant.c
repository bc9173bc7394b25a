/* SPDX-License-Identifier: Apache-2.0 */
/* SHEAF_MUTANT=NAME wakes one planted bug; without it all sleep. SHEAF_MUTANT_REACHED=FILE wakes
 * none and sets a byte of FILE for each whose place is reached: byte i is that of the i-th name.
 * The file is mapped, so what a process has reached is kept however the process ends, and what its
 * children reach is added. */
#include "mutant.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int shf_mutant;

static const char *const names[] = { MUTANT_NAMES };
#define NAMES_N (sizeof(names) / sizeof(names[0]))

static volatile unsigned char *reached;

_Bool shf_mutant_reached(int mutant)
{
	if (!reached[mutant])
		reached[mutant] = 1;
	return 0;
}

#ifdef MUTANT_CLOSER
#undef pthread_mutex_unlock
int shf_mutant_unlock(pthread_mutex_t *lock)
{
	if (pthread_mutex_trylock(lock) == 0) {
		fprintf(stderr, "a lock is let go that nobody has\n");
		abort();
	}
	return pthread_mutex_unlock(lock);
}
#endif

static void write_down(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

	if (fd >= 0 && ftruncate(fd, NAMES_N) == 0)
		reached = mmap(NULL, NAMES_N, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!reached || reached == MAP_FAILED) {
		perror(path);
		exit(99);
	}
	close(fd);
	shf_mutant = -1;
}

__attribute__((constructor)) static void choose(void)
{
	const char *want = getenv("SHEAF_MUTANT"), *path = getenv("SHEAF_MUTANT_REACHED");

	if (path)
		write_down(path);
	if (!want || path)
		return;
	for (size_t i = 0; i < NAMES_N; i++)
		if (strcmp(names[i], want) == 0) {
			shf_mutant = (int)i;
			return;
		}
	fprintf(stderr, "no mutant '%s'\n", want);
	exit(99);
}
