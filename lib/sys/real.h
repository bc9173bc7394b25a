/* SPDX-License-Identifier: Apache-2.0 */
/* The real machine, in parts. Only lib/sys sees this; real.c binds the parts into the vtable. */
#ifndef SHF_REAL_H
#define SHF_REAL_H
#include <signal.h>
#include "sys.h"

/* Around what makes a file longer: EFBIG without SIGXFSZ (mute.c). end passes the result on. */
struct shf_mute {
	sigset_t was;
	bool done, pending;
};
void shf_mute_begin(struct shf_mute *m);
int64_t shf_mute_end(struct shf_mute *m, int64_t result);

/* Files (posix.c). */
int shf_real_open(void *arg, int dir, const char *name, int flags, unsigned mode);
int shf_real_close(void *arg, int fd);
int shf_real_mkdir(void *arg, int dir, const char *name, unsigned mode);
int shf_real_rename(void *arg, int from_dir, const char *from, int to_dir, const char *to,
                    bool noreplace);
int shf_real_unlink(void *arg, int dir, const char *name, bool is_dir);
int shf_real_fsync(void *arg, int fd);
int shf_real_resize(void *arg, int fd, uint64_t bytes);
int64_t shf_real_pread(void *arg, int fd, void *buf, size_t n, uint64_t off);
int64_t shf_real_pwrite(void *arg, int fd, const void *buf, size_t n, uint64_t off);
int shf_real_stat(void *arg, int dir, const char *name, bool follow, struct shf_stat *st);
int shf_real_fstat(void *arg, int fd, struct shf_stat *st);
int shf_real_list(void *arg, int fd, int (*item)(void *arg, const char *name), void *item_arg);
int shf_real_readlink(void *arg, int dir, const char *name, char *buf, size_t n);
int shf_real_lock(void *arg, int fd, bool exclusive);
int shf_real_unlock(void *arg, int fd);
int shf_real_free_bytes(void *arg, int fd, uint64_t *bytes);
int shf_real_fs_id(void *arg, int fd, uint64_t *id);

/* What the page cache has, and what of memory is there (resident.c). */
int64_t shf_real_resident(void *arg, int fd, uint64_t off, uint64_t n);
bool shf_real_touched(void *arg, const void *at);
void shf_real_touch(void *arg, const void *at, uint64_t n, bool write);
void shf_real_forget(void *arg, int fd, uint64_t off, uint64_t n);

/* Time, chance and who we are (ident.c). */
int shf_real_random(void *arg, void *buf, size_t n);
int64_t shf_real_mono_ns(void *arg);
int64_t shf_real_wall_s(void *arg);
void shf_real_sleep_ms(void *arg, int ms);
int shf_real_owner(void *arg, struct shf_owner *self);
bool shf_real_owner_is_dead(void *arg, const struct shf_owner *owner);
uint64_t shf_real_pid(void *arg);
/* The beginning of a small file of the kernel's as text; false: not there or not ours to read. */
bool shf_real_text(const char *path, char *buf, size_t n);

/* The queue (queue.c). */
int shf_real_queue_new(void *arg, struct shf_queue **queue, int threads);
void shf_real_queue_free(void *arg, struct shf_queue *queue);
int shf_real_submit(void *arg, struct shf_queue *queue, struct shf_io *io);
int shf_real_complete(void *arg, struct shf_queue *queue, struct shf_io **io, int timeout_ms);
void shf_real_queue_pin(void *arg, struct shf_queue *queue, int i, void *base, size_t bytes);
void shf_real_queue_stat(void *arg, struct shf_queue *queue, struct shf_queue_stat *stat);
/* What queue_new leaves to the queue, for tests and measurements. Zero: as queue_new does. */
enum { SHF_CARRY_BEST, SHF_CARRY_POOL, SHF_CARRY_BUFFERED };
struct shf_queue_how {
	int carrier;                    /* the ring where there is one; threads; threads, and
	                                 * nothing direct */
	int depth;                      /* pieces in the ring at a time */
	size_t piece_bytes;             /* a multiple of SHF_ALIGN */
};
int shf_real_queue_make(struct shf_queue **queue, int threads, const struct shf_queue_how *how);

/* Work behind the caller's back (task.c). */
int shf_real_cpus(void *arg);
int shf_real_task_new(void *arg, struct shf_task **task, bool (*step)(void *work), void *work,
                      const char *cpus);
bool shf_real_task_over(void *arg, struct shf_task *task);
void shf_real_task_again(void *arg, struct shf_task *task);
void shf_real_task_free(void *arg, struct shf_task *task);

/* Bytes that can still be had without the kernel killing somebody for them (room.c). */
uint64_t shf_real_memory_left(void);
int shf_real_rooms(void *arg, struct shf_room rooms[SHF_ROOMS]);

/* Memory shared by ranks of a node (shm.c). */
int shf_real_shm_new(void *arg, struct shf_shm *shm, size_t bytes, bool shared);
void shf_real_shm_free(void *arg, struct shf_shm *shm);
int shf_real_shm_offer(void *arg, uint8_t token[16], int *handle);
int shf_real_shm_connect(void *arg, const uint8_t token[16], int *handle);
int shf_real_shm_serve(void *arg, int offer, const struct shf_shm *shm, int n, int timeout_ms);
int shf_real_shm_take(void *arg, int connection, struct shf_shm *shm, int timeout_ms);
void shf_real_shm_drop(void *arg, int handle);

/* The agent of this node (keep.c). */
int shf_real_keep_open(void *arg, const char *socket, const char *run, const char *job,
                       int *keep, int *steps);
int shf_real_keep_put(void *arg, int keep, const char *name, const struct shf_shm *shm);
int shf_real_keep_get(void *arg, int keep, const char *name, struct shf_shm *shm);
int shf_real_keep_drop(void *arg, int keep, const char *name);
int shf_real_keep_tell(void *arg, int keep, const char *text);
int shf_real_keep_at(void *arg, int keep, int dir);
int shf_real_keep_list(void *arg, int keep, int (*item)(void *arg, const char *name),
                       void *item_arg);
int shf_real_keep_lives(void *arg, int keep);
void shf_real_keep_close(void *arg, int keep, bool bye);
#endif
