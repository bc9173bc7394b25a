/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.json, the commit record (doc/format.md). < 1 MiB, members in a fixed order, ends
 * exactly in  ,\n "self": "<16 lower-case hex>"}\n  where self is the standard CRC-64/NVME of
 * every byte before that comma. */
#ifndef SHF_MANIFEST_H
#define SHF_MANIFEST_H
#include "mem.h"
#include "sheaf.h"

/* A manifest is shorter than this. The bound lets a reader take the whole of it into memory
 * before it trusts anything in it. */
#define SHF_MANIFEST_MAX (UINT64_C(1) << 20)
struct shf_mf_family { const char *name, *dir; uint64_t files, tensors, bytes; };
struct shf_mf_file { const char *name; uint64_t bytes, crc; };  /* name with the family's folder */
struct shf_mf_tied { const char *family, *name, *to; };
struct shf_mf_note { const char *key, *value; };
struct shf_mf_ema { const char *name, *of; char coef[32]; int64_t interval, updates; };
struct shf_manifest {           /* strings and arrays borrowed (encode) or in the arena (decode) */
	int64_t step;
	char session[33], run[33];      /* 32 lower-case hex */
	bool has_parent;
	int64_t parent_step;
	char parent_session[33];
	char parent_run[33];            /* "": this run */
	char created[32];               /* 2026-01-31T12:00:00Z */
	const char *version, *commit, *compiler;        /* writer */
	const char *config;             /* note config.digest, or NULL */
	bool no_dir_fsync;              /* flags */
	uint64_t file_bytes_max;
	int64_t ranks;
	const char *mesh;               /* note mesh, or NULL */
	uint64_t plan;                  /* hash of the plan, informative */
	struct shf_mf_family *families; size_t families_n;
	struct shf_mf_file *files; size_t files_n;      /* tensor files, family by family */
	struct shf_mf_file *attached; size_t attached_n; /* index files too; by name */
	struct shf_mf_tied *tied; size_t tied_n;
	struct shf_mf_note *notes; size_t notes_n;      /* by key */
	struct shf_mf_ema *emas; size_t emas_n;         /* averages; of "": masters, and fp32
	                                                 * weights that have none */
	struct shf_mf_file sums;        /* name "sheaf.sums"; crc: of its header and page table */
};
/* SHEAF_EINVAL when it would not fit; appends to out. */
int shf_manifest_encode(struct shf_buf *out, const struct shf_manifest *m, struct sheaf_error *err);
/* ECORRUPT: self does not match, or the tail is not exactly as above, or members are missing,
 * doubled or of a wrong kind; EFORMAT: "sheaf" above 1 or an unknown member of "needs". Unknown
 * members are ignored. */
int shf_manifest_decode(struct shf_manifest *m, struct shf_arena *arena, const uint8_t *bytes,
                        size_t n, const char *where, struct sheaf_error *err);
#endif
