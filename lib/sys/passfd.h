/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of memory over Unix sockets, inside one machine. Sockets are SOCK_SEQPACKET and do
 * not block; every wait has its end in ns of the monotonic clock. */
#ifndef SHF_PASSFD_H
#define SHF_PASSFD_H
#include <stdbool.h>
#include "sys_shm.h"

int shf_unix_new(void);                 /* a descriptor, or a negative errno */
/* Memory goes to nobody but ourselves, and is taken from nobody else. */
bool shf_peer_is_us(int fd);
int64_t shf_until_ns(int timeout_ms);
/* 0 when fd is ready; -ETIMEDOUT at the end. */
int shf_wait_for(int fd, short events, int64_t until);
/* One message, with a descriptor unless memfd is -1. */
int shf_pass(int fd, const void *message, size_t n, int memfd, int64_t until);
/* One message of exactly n bytes; *memfd: what came with it, or -1. -EAGAIN: none yet; -ECONNRESET:
 * none any more; -EPROTO: it is of another length. */
int shf_passed(int fd, void *message, size_t n, int *memfd);
/* Bytes that are mapped for so many; 0: too many. */
size_t shf_mapped_bytes(size_t bytes);
/* Sealed and as long as it says: reading it cannot end in SIGBUS. 0 or -EPROTO. */
int shf_memory_check(int memfd, uint64_t bytes);
int shf_memory_map(struct shf_shm *shm, int fd, size_t bytes);
#endif
