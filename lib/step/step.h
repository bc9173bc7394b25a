/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is open for reading.
 *
 * The room lib/step owns struct sheaf_checkpoint: its manifest, its sums, its files and where every
 * tensor lies in them. It also has the pass that checks and copies bytes of the files
 * (block_pass.h). It may include memory, retain and all that those include, but neither load nor
 * save. */
#ifndef SHF_STEP_H
#define SHF_STEP_H
#include "latest_search.h"
#include "layout.h"
#include "manifest.h"
#include "run.h"
#include "safetensors.h"
#include "state.h"
#include "sums.h"

struct shf_foreign;
struct shf_view;
struct shf_step_lookup {               /* state for lookups in a step that is asleep
                                        * (step_lookup.h) */
	int fd;                         /* descriptor of sheaf.sums; -1: not open */
	uint8_t *have;                  /* owned; by page of the table: 1 if the page is read and
	                                 * checked */
	uint32_t file, headers_n;       /* file: the file whose header is in st; headers_n: how many
	                                 * headers were parsed so far */
	struct shf_st st;
	struct shf_arena arena;         /* memory of st */
};
/* An open step: its manifest, its sums, and where every tensor lies. If the catalog is broken
 * (cat_rc < 0), only verify works, to report what is wrong; every other call returns cat_rc. */
struct sheaf_checkpoint {
	struct sheaf_run *run;          /* a reference is held; a bare run (no run directory) for
	                                 * steps opened by path */
	struct shf_view *view;          /* owned; shows a step in agents' memory as a directory,
	                                 * through the sys of `run`; NULL for a step on disk */
	struct shf_foreign *foreign;    /* owned by `run`, whose sys shows it as a directory; a
	                                 * checkpoint in a format of other software; NULL: none */
	struct sheaf_checkpoint *source;        /* a reference is held by `foreign`; the step that a
	                                 * map (lib/map) shows as this one; NULL: none */
	int refs;                       /* references: one for the caller's handle, one for each
	                                 * load by slices */
	uint64_t pid;                   /* process that opened it; a forked child does not release
	                                 * the lease */
	uint64_t made;                  /* number of the call that opened it, see shf_call_enter;
	                                 * identifies the handle on all ranks */
	int64_t number;                 /* number of the step; -1: foreign */
	const char *format;             /* "sheaf", "hf", "safetensors", or that of `foreign` */
	char *path;                     /* owned */
	int dir;                        /* descriptor of the directory */
	int lease;                      /* descriptor of sheaf.json with a shared lock; -1: none */
	unsigned rewinds;               /* run->lineage.rewinds at open; a later rewind may have set
	                                 * the step aside */
	bool sound;                     /* the directory has a manifest; false: foreign */
	struct shf_arena arena;
	struct shf_manifest manifest;
	struct shf_layout layout;
	uint8_t *sums_bytes;            /* owned */
	struct shf_sums sums;
	int sums_rc, cat_rc;            /* 0, or why the table of sums or the catalog cannot be
	                                 * used */
	bool asleep;                    /* table and headers are not read yet: shf_step_wake */
	struct shf_step_lookup peek;
	uint8_t *peeked;                /* owned; the table as it was before shf_step_wake: callers
	                                 * may still hold names that point into it */
	bool cat_index;                 /* cat_rc is due to the index of a foreign directory */
	/* In the arena; of a directory of safetensors files without a manifest, else NULL. name: of
	 * its index, or the one it would have; NULL: it needs none. flaw: "<name>: <what is wrong
	 * with it>"; NULL: it is right, or missing. evidence: for a person, if the headers were
	 * read instead. */
	const char *index_name, *index_flaw, *index_evidence;
	struct sheaf_error sums_err, cat_err;
	int *fds;                       /* descriptor by file; -1: not open */
	int *direct;                    /* descriptor for direct I/O by file; -1: not open; 0:
	                                 * direct I/O is not used for this file */
	uint64_t *file_bytes;           /* size by file, as on disk; UINT64_MAX: could not be
	                                 * read */
	struct shf_stat *seen;          /* owned; by file, as it was when its header was read; type
	                                 * 0: it was not */
	/* Attached files that were read; kept until the step is closed. */
	struct shf_step_file { char *name; uint8_t *bytes; size_t n; } *files;
	size_t files_n;
	bool reads_once;                /* shf_step_read_once */
	const char *config;             /* in the arena; of a step shown through a map: path of the
	                                 * config.json that it was given; NULL: none was given */
	struct shf_mf_file *plain;      /* manifest's attached files; in a foreign step, small files
	                                 * beside the weights */
	size_t plain_n;
	size_t told_i, told_k;          /* cursor of sheaf_checkpoint_file_at: its file number
	                                 * told_i is plain[told_k] */
	bool latest;                    /* opened as SHEAF_LATEST, not by its number */
	int64_t *filled_by;             /* borrowed from a resume with SHEAF_LOAD_FALLBACK; by slice
	                                 * of the state: the last step from which a load began to
	                                 * fill the slice; -1: no load did. NULL: no such resume */
	struct shf_buf passed;          /* owned; the candidates that the search for the latest step
	                                 * passed over before this one, as in struct
	                                 * shf_latest_search */
};
/* Returns the step that was opened: the one behind all maps that show it. A map shows tensors, but
 * no files and no number. */
static inline struct sheaf_checkpoint *shf_step_behind_maps(struct sheaf_checkpoint *step)
{
	while (step->source)
		step = step->source;
	return step;
}
/* Whether the code blames the bytes of the step and not the machine. EFORMAT counts as well: a
 * newer version of the library may have written the step, which is no damage. */
static inline bool shf_is_of_step(int rc)
{
	return rc == SHEAF_ECORRUPT || rc == SHEAF_EFORMAT;
}
#endif
