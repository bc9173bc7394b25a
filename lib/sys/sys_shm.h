/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: how much there is, which pages are present, and regions that ranks of a node share. */
#ifndef SHF_SYS_SHM_H
#define SHF_SYS_SHM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A limit on the memory that this process may take: the machine's, or a control group's. */
struct shf_memory_limit {
	uint64_t of;                    /* identity of the limit, the same in all processes of a
	                                 * node that share it */
	uint64_t left;                  /* bytes, at this moment */
};
#define SHF_MEMORY_LIMITS 6

/* Memory that ranks of one node share. */
struct shf_shm {
	void *base;
	size_t bytes;
	int fd;                         /* of the memfd; -1: not shared */
};

struct shf_shm_ops {
	/* Fills in the tightest limits on memory and returns how many; 0: unknown. shm_new checks
	 * them too, but for this process only: if several processes allocate at the same moment,
	 * they may exceed a limit together, and then the kernel kills one of them. */
	int (*rooms)(void *arg, struct shf_memory_limit rooms[SHF_MEMORY_LIMITS]);
	/* Returns whether the page with this byte of memory is present; true if unknown. */
	bool (*touched)(void *arg, const void *at);
	/* Hint: faults the pages in, for reading or writing. Changes no byte, even if another
	 * thread writes to them meanwhile. */
	void (*touch)(void *arg, const void *at, uint64_t n, bool write);

	/* Allocates page-aligned zeroed memory, all of it reserved (-ENOSPC or -ENOMEM now instead
	 * of SIGBUS later), not inherited by forked children. shared: another process may map
	 * it. */
	int (*shm_new)(void *arg, struct shf_shm *shm, size_t bytes, bool shared);
	void (*shm_free)(void *arg, struct shf_shm *shm);
	/* Pass shm to other ranks of the node. They know it by a token of 16 random bytes.
	 *   1. The owner calls offer, which chooses the token, and sends the token over the group.
	 *   2. The others call connect.
	 *   3. The owner calls serve for the n ranks that have connected; shm may be allocated as
	 *      late as this.
	 *   4. The others call take.
	 * If the group agrees between these steps, no call blocks longer than timeout_ms. */
	int (*shm_offer)(void *arg, uint8_t token[16], int *handle);
	/* -ECONNREFUSED: the owner of the token is not on this node, or is another user. */
	int (*shm_connect)(void *arg, const uint8_t token[16], int *handle);
	int (*shm_serve)(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms);
	int (*shm_take)(void *arg, int connection, struct shf_shm *shm, int timeout_ms);
	/* Closes an offer or a connection; -1 does nothing. */
	void (*shm_drop)(void *arg, int handle);
};
#endif
