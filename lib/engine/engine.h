/* SPDX-License-Identifier: Apache-2.0 */
/* What the entry points call: runs, steps, loads, verification, plans. Saves are in save.h. */
#ifndef SHF_ENGINE_H
#define SHF_ENGINE_H
#include "latest_search.h"
#include "layout.h"
#include "manifest.h"
#include "run.h"
#include "safetensors.h"
#include "state.h"
#include "sums.h"

struct shf_view;
struct shf_peek {               /* of a step that is asleep, see step_lookup.h */
	int fd;                         /* sheaf.sums; -1 */
	uint8_t *have;                  /* owned; by page of the table: is it here, checked? */
	uint32_t file, headers_n;       /* whose header st is; how many were parsed */
	struct shf_st st;
	struct shf_arena arena;         /* of st */
};
/* A step that is open: its manifest, its sums, where every tensor lies. The catalog may be broken
 * (cat_rc): then verify can still say what is wrong, and everything else returns cat_rc. */
struct sheaf_step {
	struct sheaf_run *run;          /* counted; bare for steps opened by path */
	struct shf_view *view;          /* owned; of a step in memory, whose run uses its machine;
	                                 * or NULL */
	uint64_t pid;
	uint64_t made;                  /* number of the call that opened it, see shf_call_enter */
	int64_t number;                 /* -1: foreign */
	const char *format;             /* "sheaf", "hf", "safetensors" */
	char *path;                     /* owned */
	int dir;                        /* descriptor of the directory */
	int lease;                      /* of sheaf.json, shared lock; -1 */
	unsigned rewinds;               /* of the run when it was opened */
	bool sound;                     /* has a manifest, so also sums */
	bool renamed;                   /* opened by path under another name than its step's */
	struct shf_arena arena;
	struct shf_manifest manifest;
	struct shf_layout layout;
	uint8_t *sums_bytes;            /* owned */
	struct shf_sums sums;
	int sums_rc, cat_rc;
	bool asleep;                    /* table and headers are not read: shf_step_wake */
	struct shf_peek peek;
	uint8_t *peeked;                /* owned; the table as it was peeked at, for its names */
	bool cat_index;                 /* cat_rc: the index of a foreign directory is at fault */
	struct sheaf_error sums_err, cat_err;
	int *fds;                       /* by file; -1: not open yet; -2: gone */
	int *direct;                    /* the same, past the page cache; 0: cannot be had */
	uint64_t *file_bytes;           /* as on disk; UINT64_MAX: gone */
	struct shf_step_file { char *name; uint8_t *bytes; size_t n; } *files; /* attached, read */
	size_t files_n;
	struct shf_mf_file *plain;      /* attached or, foreign, plain files beside the weights */
	size_t plain_n;
	size_t told_i, told_k;          /* sheaf_step_file_at: file told_i is plain[told_k] */
	bool latest;                    /* it was opened as the latest one */
	int64_t *filled_by;             /* borrowed; by slice of the state that is loaded: the
	                                 * damaged step that has begun to fill it; -1: none.
	                                 * NULL: nobody asks */
	struct shf_buf passed;          /* owned; as in struct shf_sought */
};
int shf_step_open(struct sheaf_step **step, struct sheaf_run *run, int64_t n,
                  struct sheaf_error *err);
/* Opens the step on disk, even if memory has it too, so that the caller can check the disk's. */
int shf_step_open_disk(struct sheaf_step **step, struct sheaf_run *run, int64_t n,
                       struct sheaf_error *err);
int shf_step_open_latest(struct sheaf_step **step, struct sheaf_run *run,
                         struct shf_sought *sought, struct sheaf_error *err);
/* From memory: the view is the step's from here on, also where it fails. `run`: its path, for
 * sentences. [collective] */
struct shf_view;
int shf_step_open_view(struct sheaf_step **step, struct shf_view *view, struct sheaf_group *group,
                       const struct shf_place_info *place, const struct sheaf_opts *opts,
                       const char *run, struct sheaf_error *err);
int shf_step_open_path(struct sheaf_step **step, const char *path, struct sheaf_group *group,
                       const struct sheaf_opts *opts, const struct shf_sys *sys,
                       struct sheaf_error *err);
void shf_step_put(struct sheaf_step *step);
int shf_step_load(struct sheaf_step *step, struct sheaf_state *state, uint32_t flags,
                  struct sheaf_report *report, struct sheaf_error *err);
/* Is it the step that is at fault, and not the machine? EFORMAT is no damage, though: a newer sheaf
 * wrote the step. */
static inline bool shf_is_of_step(int rc)
{
	return rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT;
}
/* Reads all of a step on disk past the page cache. 0: it is whole; ECORRUPT: it is damaged, and err
 * names where; EFORMAT: a newer sheaf wrote it; any other code: it could not be read.
 * [collective] */
int shf_step_confirm(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
int shf_run_resume(struct sheaf_run *run, struct sheaf_state *state, uint32_t flags,
                   struct sheaf_report *report, struct sheaf_error *err);
int shf_step_read(struct sheaf_step *step, const struct sheaf_slice *slice,
                  struct sheaf_error *err);
int shf_step_verify(struct sheaf_step *step, struct sheaf_report *report,
                    struct sheaf_error *err);
struct shf_saved shf_step_saved(const struct sheaf_step *step);
int shf_step_attached(struct sheaf_step *step, const char *file, const void **bytes, size_t *n,
                      struct sheaf_error *err);

/* [local] */
/* The same if `wanted`, asked when the run there is locked, returns 0. */
int shf_step_copy_if(struct sheaf_step *step, const char *path,
                     int (*wanted)(void *arg, struct shf_store *dst, struct sheaf_error *err),
                     void *arg, struct sheaf_report *report, struct sheaf_error *err);
int shf_step_copy(struct sheaf_step *step, const char *path, struct sheaf_report *report,
                  struct sheaf_error *err);

int shf_run_prune(struct sheaf_run *run, bool dry,
                  void (*item)(void *arg, int64_t step, char what, const char *why), void *arg,
                  struct sheaf_error *err);
int shf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* The same. loaded: the step was read from memory, and its copy there stays, because nobody has
 * read the one on disk. */
int shf_run_go_back(struct sheaf_run *run, int64_t step, bool loaded, struct sheaf_error *err);
int shf_run_mark(struct sheaf_run *run, int64_t step, char mark, struct sheaf_error *err);
/* [local] */
int shf_run_salvage(const char *dir, int64_t step, const struct sheaf_opts *opts,
                    const struct shf_sys *sys, struct sheaf_report *report,
                    struct sheaf_error *err);
void shf_run_close(struct sheaf_run *run);

int shf_plan_preview(struct sheaf_state *const *states, const int32_t *node, int32_t ranks,
                     const struct sheaf_opts *opts,
                     void (*item)(void *arg, const struct sheaf_plan_rank *rank), void *arg,
                     struct sheaf_error *err);
#endif
