/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is open for reading.
 *
 * The room lib/step owns struct sheaf_step: its manifest, its sums, its files and where every
 * tensor lies in them; and the pass that checks and copies bytes of its files (block_pass.h). It
 * sees memory, retain and all that those see, and neither a load nor a save. */
#ifndef SHF_STEP_H
#define SHF_STEP_H
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
/* Is it the step that is at fault, and not the machine? EFORMAT is no damage, though: a newer sheaf
 * wrote the step. */
static inline bool shf_is_of_step(int rc)
{
	return rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT;
}
#endif
