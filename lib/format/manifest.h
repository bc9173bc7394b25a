/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf.json, the commit record (doc/format.md). It is smaller than 1 MiB, has its members in a
 * fixed order, and ends exactly in ,\n "self": "<16 lower-case hex>"}\n where self is the standard
 * CRC-64/NVME of every byte before that comma. */
#ifndef SHF_MANIFEST_H
#define SHF_MANIFEST_H
#include "mem.h"
#include "sheaf.h"

/* A manifest is smaller than this. So a reader can hold all of it in memory before anything in it
 * was verified. */
#define SHF_MANIFEST_MAX (UINT64_C(1) << 20)
struct shf_mf_family { const char *name, *dir; uint64_t files, tensors, bytes; };
struct shf_mf_file { const char *name; uint64_t bytes, crc; };  /* name: path within the step */
/* The tensor `name` of a family has the bytes of the tensor `to`. */
struct shf_mf_tied { const char *family, *name, *to; };
struct shf_mf_note { const char *key, *value; };
/* A moving average: its family `name`, the family that it averages, and how. coef is a C hex
 * float. */
struct shf_mf_ema { const char *name, *of; char coef[32]; int64_t interval, updates; };
struct shf_manifest {           /* strings and arrays borrowed (encode) or in the arena (decode) */
	int64_t step;
	char session[33], run[33];      /* 32 lower-case hex */
	bool has_parent;
	int64_t parent_step;
	char parent_session[33];
	char parent_run[33];            /* empty: this run */
	char created[32];               /* 2026-01-31T12:00:00Z */
	const char *version, *commit, *compiler;        /* of the sheaf that wrote it */
	const char *config;             /* the note config.digest, or NULL */
	bool no_dir_fsync;              /* flag: the file system could not sync directories */
	uint64_t file_bytes_max;
	int64_t ranks;
	const char *mesh;               /* the note mesh, or NULL */
	uint64_t plan;                  /* hash of the plan; for people only */
	struct shf_mf_family *families; size_t families_n;
	struct shf_mf_file *files; size_t files_n;      /* tensor files, family by family */
	struct shf_mf_file *attached; size_t attached_n; /* attached and index files; by name */
	struct shf_mf_tied *tied; size_t tied_n;
	struct shf_mf_note *notes; size_t notes_n;      /* by key */
	struct shf_mf_ema *emas; size_t emas_n;         /* averages. If the member `of` is "", it is
							 * the average of the masters, and of those
							 * fp32 weights that have no master */
	struct shf_mf_file sums;        /* name "sheaf.sums"; crc: of its header and page table */
};
/* Appends the manifest to out. Returns 0, SHEAF_ENOMEM, or SHEAF_EINVAL if *m breaks a rule
 * (mf_check.h) or the text is too large. */
int shf_manifest_encode(struct shf_buf *out, const struct shf_manifest *m, struct sheaf_error *err);
/* Decodes n bytes; `where` names them in sentences. ECORRUPT: self does not match, the tail is not
 * exactly as above, or a member is missing, occurs twice or has a wrong kind of value. EFORMAT:
 * "sheaf" is above 1, or "needs" has a member. Unknown members are ignored. */
int shf_manifest_decode(struct shf_manifest *m, struct shf_arena *arena, const uint8_t *bytes,
                        size_t n, const char *where, struct sheaf_error *err);
/* Returns the text of the note of this key, or NULL. */
const char *shf_manifest_note(const struct shf_manifest *m, const char *key);
#endif
