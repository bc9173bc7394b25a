/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a step. verify_step.c drives the verification and does the parts that need the group,
 * verify_blocks.c reads and checks every block, verify_files.c checks headers and small files,
 * verify_findings.c records and reports findings.
 *
 * The room lib/verify owns struct shf_verify. It may include lib/step and all that lib/step
 * includes, but neither load nor save.
 *
 * Invariant: a finding (damage of the step) is reported to the caller's `finding` callback at once,
 * on the rank that found it, and that rank then continues. A failure that proves nothing about the
 * step (an I/O error, no memory) goes to `blind`, and decides the result only if no rank has a
 * finding. Everything below is [local] unless it is marked [collective]. */
#ifndef SHF_VERIFY_H
#define SHF_VERIFY_H
#include "step.h"
#include "read_ring.h"

#define SHF_VERIFY_CHUNK (UINT64_C(4) << 20)    /* bytes per read, a multiple of SHF_BLOCK */
#define SHF_VERIFY_CHUNKS 8                     /* reads in flight at a time */
/* in place of the size of a file that does not exist or cannot be used */
#define SHF_GONE UINT64_MAX
/* A consumer of the verified bytes, file by file, for copying a step in the pass that verifies it.
 * [local], for a step that only this process has open. The first finding, and the first failure of
 * put, small or keep, stops the reading of blocks and all further calls. */
struct shf_verify_sink {
	/* Returns a descriptor of a file elsewhere that should be equal to file f, or -1 if there
	 * is none. If there is one, it is verified in place of the step's own file, and put() is
	 * not called for it. */
	int (*from)(struct shf_verify_sink *sink, uint32_t f);
	/* Called if the file that `from` returned is not equal to file f; perhaps more than once
	 * for a file. */
	void (*refuse)(struct shf_verify_sink *sink, uint32_t f);
	/* Receives verified bytes of file f, in order of offset and without gaps. */
	int (*put)(struct shf_verify_sink *sink, uint32_t f, uint64_t off, const uint8_t *bytes,
	           uint64_t n, struct sheaf_error *err);
	/* small: receives bytes of an attached file or an index, in order of offset, before the
	 * file's sum is known; called at least once for each file. keep: called if the sum of the
	 * file was right. */
	int (*small)(struct shf_verify_sink *sink, const struct shf_mf_file *m, uint64_t off,
	             const uint8_t *bytes, uint64_t n, struct sheaf_error *err);
	int (*keep)(struct shf_verify_sink *sink, const struct shf_mf_file *m,
	            struct sheaf_error *err);
};
/* The state of a verification, on one rank. */
struct shf_verify {
	struct sheaf_checkpoint *step;
	struct shf_verify_sink *sink;           /* borrowed; NULL: nothing is copied */
	bool over;                      /* set once the sink is to get no more bytes */
	bool extra;                     /* files that the manifest does not name are findings */
	struct sheaf_report *report;    /* the caller's; may be NULL */
	bool sums;                      /* the table of sums is valid and is used */
	uint64_t *bytes;                /* owned; size by file, as on disk; SHF_GONE: not to be
	                                 * read */
	uint64_t *first;                /* owned; by file: number of its first block, counted over
	                                 * all files; files_n + 1 entries, the last is the number of
	                                 * all blocks */
	uint64_t *raw;                  /* owned; by file: raw CRC of this rank's part, if the table
	                                 * cannot be used */
	/* Owned; by record of the table: digest and number of bytes of the good blocks so far.
	 * got_bytes has one entry more, which shf_digests_add_up needs. */
	uint64_t *got, *got_bytes;
	int *direct;                    /* owned; by file: descriptor for direct I/O; 0: not open */
	uint8_t *chunk[SHF_VERIFY_CHUNKS];      /* owned; read buffers; NULL: not needed so far */
	uint64_t chunk_bytes;           /* size of each buffer: what the longest file needs, at most
	                                 * SHF_VERIFY_CHUNK */
	uint64_t block_ones;            /* shf_crc64_ones of a whole block */
	bool unproved;                  /* there is nothing to compare the values with */
	const char *unproved_item;      /* borrowed; of a foreign step the item that is meant; NULL:
	                                 * all of it */
	int rc, blind;                  /* rc: SHEAF_ECORRUPT after a finding; blind: code of the
	                                 * first failure that is no finding; 0: there was none */
	struct sheaf_error err, blind_err;
	uint64_t findings, disk_bytes, retries;
	uint64_t tensors, tensor_bytes; /* number and bytes of the tensors whose digest this rank
	                                 * compared */
};
struct shf_verify_at {          /* location of a finding. file, family, name: NULL if they do not
	                         * apply */
	const char *file, *family, *name;
	int64_t block, offset;          /* -1: does not apply */
};
#define SHF_AT_FILE(f) (struct shf_verify_at){ (f), NULL, NULL, -1, -1 }
#endif
