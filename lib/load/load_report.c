/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a report: number of tensors by kind, bytes by kind, then single sums from OTHER on,
 * and at the end a word for each set of averages: how many slices of it were filled from the
 * step. */
#include "load_report.h"
#include <string.h>
#include "memory_dir.h"
#include "state.h"

enum { COUNTS, BYTES = SHF_COUNT_KINDS, OTHER = 2 * SHF_COUNT_KINDS };
enum { DISK = OTHER, NODE, NET, HELD, RETRIES, MEMORY, EMAS };
_Static_assert(EMAS + SHF_EMAS_MAX == SHF_LOAD_REPORT_WORDS, "each word has a name");

void shf_load_report_put(const struct shf_load *ld, uint64_t x[SHF_LOAD_REPORT_WORDS])
{
	const struct shf_view *view = ld->step->view;
	/* A load counts what it reads from a view like what it reads from files (disk_bytes). The
	 * view knows how much of that came from disk; the rest came from memory. */
	uint64_t disk = view ? shf_view_disk_bytes(view) - ld->disk_from : ld->disk_bytes;

	memcpy(x + COUNTS, ld->tally.counts, sizeof(ld->tally.counts));
	memcpy(x + BYTES, ld->tally.bytes, sizeof(ld->tally.bytes));
	x[DISK] = disk;
	x[NODE] = ld->node_bytes;
	x[NET] = ld->net_bytes;
	x[HELD] = ld->holds.bytes;
	x[RETRIES] = ld->retries;
	x[MEMORY] = ld->disk_bytes > disk ? ld->disk_bytes - disk : 0;
	memset(x + EMAS, 0, SHF_EMAS_MAX * sizeof(*x));
	for (size_t k = 0; k < ld->state->emas_n; k++) {
		const struct shf_ema *e = &ld->state->emas[k];

		for (size_t i = 0; i < e->n; i++)
			x[EMAS + k] += ld->targets[e->first + i].source == SHF_FROM_STEP;
	}
}

void shf_load_report_take(struct shf_load *ld, const uint64_t x[SHF_LOAD_REPORT_WORDS])
{
	const struct shf_view *view = ld->step->view;
	struct sheaf_report *r = &ld->report;

	r->loaded = x[COUNTS + SHF_COUNT_LOADED];
	r->missing = x[COUNTS + SHF_COUNT_MISSING];
	r->unexpected = x[COUNTS + SHF_COUNT_UNEXPECTED];
	r->converted = x[COUNTS + SHF_COUNT_CONVERTED];
	r->derived = x[COUNTS + SHF_COUNT_DERIVED];
	r->ignored = x[COUNTS + SHF_COUNT_IGNORED];
	r->mismatched = x[COUNTS + SHF_COUNT_MISMATCHED];
	r->zeroed = x[COUNTS + SHF_COUNT_ZEROED];
	r->unverified = x[COUNTS + SHF_COUNT_UNVERIFIED]; /* only loose tensors;
	                                                   * shf_load_digests_check() adds others */
	r->bytes = x[BYTES + SHF_COUNT_LOADED];
	r->files = ld->step->layout.files_n;
	r->disk_bytes = x[DISK];
	r->memory_bytes = x[MEMORY];
	r->peers = view && shf_view_has_replicas(view);
	r->step = ld->step->number;
	r->memory = view != NULL;
	r->node_bytes = x[NODE];
	r->net_bytes = x[NET];
	r->held = x[HELD];
	r->retries = x[RETRIES];
	r->read_ns = (uint64_t)ld->read_ns;
	r->verify_ns = (uint64_t)ld->verify_ns;
	for (size_t k = 0; k < ld->state->emas_n; k++)
		ld->emas_filled[k] = x[EMAS + k] > 0;
}
