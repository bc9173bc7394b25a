/* SPDX-License-Identifier: Apache-2.0 */
/* Compares whole tensors with their digests. Each rank has summed what it read, whoever wanted it.
 * The home of a tensor, one rank for each, adds these sums up. If they cover all bytes of the
 * tensor, the result is its digest. Tensors that were read only in part are reported as unverified;
 * their blocks were checked all the same. */
#include "load_digests.h"
#include <inttypes.h>
#include "err.h"
#include "load.h"
#include "load_base.h"

/* To the home of each tensor that this rank read some of, or asked for: u32 tensor | asked << 31,
 * u64 digest, u64 bytes. */
static void write_load_digests(struct shf_load *ld, struct shf_buf *out)
{
	uint64_t tensors = ld->step->layout.tensors_n, ranks = (uint64_t)ld->step->run->team.ranks;

	for (uint64_t t = 0; t < tensors; t++) {
		bool asked = shf_holds_first(&ld->holds, (uint32_t)t) < ld->holds.n;
		struct shf_buf *b = &out[t * ranks / tensors];

		if (!asked && ld->got_bytes[t] == 0)
			continue;
		shf_buf_u32(b, (uint32_t)t | (asked ? UINT32_C(1) << 31 : 0));
		shf_buf_u64(b, ld->got[t]);
		shf_buf_u64(b, ld->got_bytes[t]);
	}
}

/* The reason that is reported for a tensor whose digest was not compared. */
static const char *why_unverified(const struct shf_load *ld)
{
	if (!ld->step->sound)
		return SHF_FOREIGN_MSG;
	return shf_pass_sums(ld->step) ? "read in part: its blocks were checked"
	                               : "read without a look at any sum, as the run was opened";
}

/* What all ranks have of one tensor. */
struct whole {
	uint64_t got, bytes;
	bool asked;
};

/* Adds up what all ranks sent, and compares. A tensor that nobody asked for, and that was not read
 * whole, is no news: its bytes lay between others. */
static int compare_whole_tensors(struct shf_load *ld, const struct shf_buf *in, uint64_t first,
                                 uint64_t end, struct whole *w, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	struct shf_cur c = { in->data, in->data + in->len, false };
	bool check = shf_pass_sums(ld->step);

	while (c.p < c.end) {
		uint32_t t = shf_cur_u32(&c), n = t & ~(UINT32_C(1) << 31);

		if (!always(n >= first && n < end))
			return shf_fail(err, SHEAF_EBUG,
					"digests of tensor %u came to the wrong rank", n);
		w[n - first].asked |= t != n;
		w[n - first].got ^= shf_cur_u64(&c);
		w[n - first].bytes += shf_cur_u64(&c);
	}
	for (uint64_t t = first; t < end; t++) {
		const struct shf_lt_tensor *lt = &l->tensors[t];
		const struct whole *x = &w[t - first];

		if (!x->asked && x->bytes != lt->bytes)
			continue;
		if (check && x->bytes == lt->bytes && x->got != lt->digest)
			return shf_fail(err, SHEAF_ECORRUPT,
					"%s: %s/%s has digest %016" PRIx64 ", want %016" PRIx64,
					ld->step->path, shf_load_family(ld, lt), lt->name, x->got,
					lt->digest);
		if (x->asked && (!check || x->bytes != lt->bytes)) {
			shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, shf_load_family(ld, lt),
			              lt->name, 0);
			shf_report_item(&ld->report, 'V', shf_load_family(ld, lt), lt->name,
			                why_unverified(ld));
		}
	}
	return 0;
}

/* The homes are ranges of tensor numbers: tensor t belongs to rank t * ranks / n, so rank r is home
 * of [first, end). */
int shf_prove(struct shf_load *ld, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	uint64_t ranks = (uint64_t)team->ranks, n = ld->step->layout.tensors_n;
	uint64_t first = ((uint64_t)team->rank * n + ranks - 1) / ranks;
	uint64_t end = (((uint64_t)team->rank + 1) * n + ranks - 1) / ranks;
	struct shf_buf *to = shf_zalloc((size_t)ranks, sizeof(*to)), in = SHF_BUF_INIT;
	size_t *in_bytes = shf_zalloc((size_t)ranks, sizeof(*in_bytes));
	struct whole *w = shf_zalloc((size_t)(end - first), sizeof(*w));
	int rc =
	    to && in_bytes && w ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to compare digests");

	if (rc == 0)
		write_load_digests(ld, to);
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_exchange(team, 0, to, &in, in_bytes, err);
	if (rc == 0)
		rc = shf_agree(team, compare_whole_tensors(ld, &in, first, end, w, err), err);
	for (uint64_t r = 0; to && r < ranks; r++)
		shf_buf_release(&to[r]);
	shf_free(to);
	shf_free(in_bytes);
	shf_free(w);
	shf_buf_release(&in);
	return rc;
}
