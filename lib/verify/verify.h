/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a step. verify_step.c leads and proves what needs the group, verify_blocks.c reads
 * every block, verify_files.c looks at headers and small files, verify_find.c keeps what was found.
 *
 * The room lib/verify owns struct shf_verify. It sees step and all that a step sees, and neither a
 * load nor a save.
 *
 * What is always true: what is found goes to `finding` at once, on the rank that found it, and a
 * rank goes on after it; what cannot be told (a disk that does not answer, no memory) goes to
 * `blind` and only counts where nothing was found. Everything below but what says [collective] is
 * [local].
 */
#ifndef SHF_VERIFY_H
#define SHF_VERIFY_H
#include "step.h"
#include "read_ring.h"

#define SHF_VERIFY_CHUNK (UINT64_C(4) << 20)    /* bytes of a read; whole blocks */
#define SHF_VERIFY_CHUNKS 8                     /* under way at a time */
#define SHF_GONE UINT64_MAX
/* Where what is looked at goes in the same pass, file after file: the copy of a step. [local], of a
 * step that this process alone has open. The first finding, and the first failure of put, small or
 * keep, ends the pass; what is in the directory besides is not looked at. */
struct shf_verify_sink {
	/* A descriptor of what should be the same file elsewhere, to be looked at instead and not
	 * put; -1: the step's own. */
	int (*from)(struct shf_verify_sink *sink, uint32_t f);
	/* It is not the same. Perhaps told more than once. */
	void (*refuse)(struct shf_verify_sink *sink, uint32_t f);
	/* Bytes of file f, by offset and without gaps, whose sums are right. */
	int (*put)(struct shf_verify_sink *sink, uint32_t f, uint64_t off, const uint8_t *bytes,
	           uint64_t n, struct sheaf_error *err);
	/* Bytes of an attached file or an index, the same, at least once, before its sum is known;
	 * keep: which was right. */
	int (*small)(struct shf_verify_sink *sink, const struct shf_mf_file *m, uint64_t off,
	             const uint8_t *bytes, uint64_t n, struct sheaf_error *err);
	int (*keep)(struct shf_verify_sink *sink, const struct shf_mf_file *m,
	            struct sheaf_error *err);
};
/* A verification, on one rank. */
struct shf_verify {
	struct sheaf_step *step;
	struct shf_verify_sink *sink;           /* borrowed; NULL: none */
	bool over;                      /* nothing more is put */
	const struct sheaf_report *report;      /* the caller's; may be NULL */
	bool sums;                      /* the table of sums is whole */
	uint64_t *bytes;                /* owned; by file, as on disk; SHF_GONE: nothing to read */
	uint64_t *first;                /* owned; by file: its first block; one more: all of them */
	uint64_t *raw;                  /* owned; by file: raw sum of what was read (no sums) */
	/* Owned; by tensor of the sums: of its good blocks. got_bytes has a member more. */
	uint64_t *got, *got_bytes;
	int *direct;                    /* owned; by file: descriptor past the cache; 0: none */
	uint8_t *chunk[SHF_VERIFY_CHUNKS];      /* owned; NULL: not needed so far */
	uint64_t chunk_bytes;           /* of each: SHF_VERIFY_CHUNK, or the longest file */
	uint64_t block_ones;            /* shf_crc64_ones of a whole block */
	int rc, blind;                  /* of the first finding; of the first thing not told */
	struct sheaf_error err, blind_err;
	uint64_t findings, disk_bytes, retries;
	uint64_t tensors, tensor_bytes; /* whose digest was compared, at this home */
};
struct shf_verify_at {          /* where a finding is; NULL: does not apply */
	const char *file, *family, *name;
	int64_t block, offset;          /* -1: none */
};
#define SHF_AT_FILE(f) (struct shf_verify_at){ (f), NULL, NULL, -1, -1 }
#endif
