/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a run, in one flat struct: the library does not know how the public structs of
 * options are nested. opts.c fills it from the caller's structs, checks it and copies it. */
#ifndef SHF_OPTS_H
#define SHF_OPTS_H
#include "sheaf.h"
#include "sys.h"

#define SHF_TIMEOUT_MS 600000   /* the default of opts.timeout_ms */
#define SHF_LOCK_WAIT_MS 30000  /* most time to wait for another job to release the run's lock */
#define SHF_AGENT_MAX 104       /* most bytes of a socket's path (opts.memory_tier.agent), with
	                         * the NUL */
/* Most images of saves. Each image, and that of a load, is registered with the disk queue. */
#define SHF_IMAGES_MAX (SHF_PINS - 1)

#define SHF_FILE_BYTES UINT64_C(5000000000)      /* default of file_bytes_max */

/* The options of a run; each is described at the public field of its name. 0 or NULL is the
 * default, until shf_opts_take() has filled it in. */
struct shf_opts {
	uint64_t flags;
	int32_t timeout_ms;
	int32_t io_threads;
	int32_t resume_attempts_max;
	uint64_t file_bytes_max;
	const char *folder;
	const char *const *ignore;
	void (*log)(void *arg, int level, const char *line);
	int  (*progress)(void *arg, const struct sheaf_stat *stat);
	void *arg;                      /* passed to log and progress */
	struct sheaf_group *commit_group;
	/* Staging. Inside the library a staging buffer is called an image. */
	uint64_t staging_bytes_max;
	uint64_t copy_rate_max;
	const char *copy_cpus;
	int32_t images_max;
	int32_t copy_threads;
	/* Retention. */
	int32_t keep_last;
	int32_t keep_every;
	int32_t keep_best;
	int32_t best_largest;
	const char *best_note;
	int32_t grace_s;
	/* The memory tier. */
	int32_t copies;
	const char *agent;
	struct sheaf_group *copies_group;
	/* Announcements of commits. */
	void (*committed)(void *arg, int64_t step, const char *path);
	void *committed_arg;            /* passed to committed */
	const char *signal_dir;
};

/* Collects the caller's options from the public structs; NULL: all are the default. Strings are
 * borrowed, values are not checked. EINVAL: a struct has a wrong size, or a field that this version
 * does not know. Then *out has at most the caller's timeout_ms, if it was readable. [local] */
int shf_opts_gather(struct shf_opts *out, const struct sheaf_opts *in, struct sheaf_error *err);
/* Checks and copies options and fills in defaults; NULL: all are the default. Strings are copied,
 * too. EINVAL, ENOMEM. [local] */
int shf_opts_take(struct shf_opts *out, const struct shf_opts *in, struct sheaf_error *err);
/* Frees the copies of strings. */
void shf_opts_release(struct shf_opts *opts);
/* Returns for how many ms a rank may keep the others waiting in an agreement: half their timeout,
 * but at most most_ms. */
int shf_opts_wait_ms(const struct shf_opts *opts, int most_ms);
/* Returns for how many ms a call may delete old files: a quarter of the timeout. */
int shf_opts_clear_ms(const struct shf_opts *opts);
#endif
