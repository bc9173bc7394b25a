/* SPDX-License-Identifier: Apache-2.0 */
/* Passes descriptors of memory over Unix sockets, inside one machine. The sockets are
 * SOCK_SEQPACKET and do not block. A wait ends at `until`, in ns of the monotonic clock. Functions
 * that return int return 0 or a negative errno. */
#ifndef SHF_PASSFD_H
#define SHF_PASSFD_H
#include <stdbool.h>
#include "sys_shm.h"

int shf_passfd_socket(void);                 /* makes a socket; returns its descriptor or a negative
                                         * errno */
/* Returns whether the process at the other end of the socket is one of this user. Memory is neither
 * passed to processes of other users nor taken from them. */
bool shf_passfd_peer_is_us(int fd);
/* Returns the time that is timeout_ms from now, in ns of the monotonic clock. */
int64_t shf_passfd_until_ns(int timeout_ms);
/* Waits until fd is ready for events (POLLIN, POLLOUT) or hung up. -ETIMEDOUT at `until`. */
int shf_passfd_wait(int fd, short events, int64_t until);
/* Sends one message, and with it the descriptor memfd unless that is -1. Waits while the socket is
 * full. */
int shf_pass(int fd, const void *message, size_t n, int memfd, int64_t until);
/* Receives one message of exactly n bytes, without waiting. *memfd becomes the descriptor that came
 * with it, even with a bad message, or -1; the caller closes it. -EAGAIN: no message yet;
 * -ECONNRESET: the peer has closed; -EPROTO: the message is of another length. */
int shf_passfd_receive(int fd, void *message, size_t n, int *memfd);
/* Returns the size rounded up to whole pages, at least one page; 0: the size is too large. */
size_t shf_memfd_bytes(size_t bytes);
/* Checks that memfd is sealed against shrinking and has at least `bytes` bytes, so that reading it
 * cannot end in SIGBUS. -EPROTO if not. */
int shf_memfd_check(int memfd, uint64_t bytes);
/* Maps the memory of fd, or private anonymous memory if fd is -1, and fills in *shm. On failure fd
 * stays with the caller. */
int shf_memfd_map(struct shf_shm *shm, int fd, size_t bytes);
#endif
