/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a state from a step. load.c decides for every slice what it is filled from, before a
 * byte is touched; fill.c carries the bytes and proves them. */
#ifndef SHF_LOAD_H
#define SHF_LOAD_H
#include "engine.h"
#include "match.h"
#include "tally.h"

enum shf_source { SHF_FROM_STEP, SHF_FROM_ZERO, SHF_KEEP };
struct shf_target {             /* one slice of the state */
	struct shf_slice slice;         /* its memory, in the stored tensor's units and type */
	uint32_t tensor;
	enum shf_source source;
};
struct shf_load {
	struct shf_io_owner io;
	struct sheaf_step *step;
	const struct sheaf_state *state;
	uint32_t flags;
	struct sheaf_report report;     /* ours; the caller's gets a copy */
	struct shf_target *targets;     /* owned; by slice */
	struct shf_holds holds;
	struct shf_work work;
	struct shf_tally tally;
	uint64_t *got, *got_bytes;      /* by tensor: digest and bytes of it that were read here */
	struct shf_io *ios;             /* by segment */
	uint64_t *sums;                 /* by move of ours: digest of its box as it was read */
	uint64_t disk_bytes, node_bytes, net_bytes, retries;
	int64_t read_ns, verify_ns;
};
/* Plan, read, check, scatter. [collective] */
int shf_fill(struct shf_load *load, struct sheaf_error *err);
/* direct.c: a slice by this process alone. unverified: read past damage. [local] */
int shf_direct_read(struct sheaf_step *step, const struct shf_lt_tensor *t,
                    const struct shf_slice *s, uint64_t *disk_bytes, struct sheaf_error *err);
/* slice as the stored tensor t wants it: units and types. ELAYOUT. convert: types may differ. */
int shf_slice_adapt(struct shf_slice *out, const struct shf_slice *in,
                    const struct shf_lt_tensor *t, const char *family, bool convert,
                    struct sheaf_error *err);
void shf_report_item(const struct sheaf_report *report, char what, const char *family,
                     const char *name, const char *msg);
#endif
