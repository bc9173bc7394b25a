/* SPDX-License-Identifier: Apache-2.0 */
/* Filling. A round covers one window of every reader's segments: readers read and check whole
 * blocks, agree; ranks of a node scatter from the readers' images, other nodes are sent what they
 * asked for with its digest; then all agree and the images are free.
 *
 * Proof, move by move: the reader sums each box before it checks the blocks that the box lies in,
 * what is taken from the image or the message must have that sum, and so must what then stands in
 * the caller's memory. So a byte that changes at any moment in between shows. Each tensor that was
 * read whole is compared with its stored digest besides.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "catalog.h"
#include "copy.h"
#include "crc64.h"
#include "err.h"
#include "load.h"

#define READ_TRIES 4
#define FOREIGN "foreign: no sums exist"

static void read_done(struct shf_io_owner *owner, struct shf_io *io)
{
	(void)owner; /* each request keeps its own result */
	(void)io;
}

static const char *family_of(const struct shf_load *ld, const struct shf_lt_tensor *t)
{
	return ld->step->layout.families[t->family].name;
}

static bool shares_memory(const struct shf_load *ld, uint32_t rank)
{
	const struct shf_place_info *p = &ld->step->run->place;

	return p->nodes[rank] == p->node;
}

/* ---- reading ---- */

static int submit(struct shf_load *ld, size_t i, struct sheaf_error *err)
{
	const struct shf_seg *g = &ld->work.segs[i];
	uint8_t *image = ld->step->run->images.own.base;
	int fd = shf_step_fd(ld->step, g->file, err), rc;

	if (fd < 0)
		return fd;
	ld->ios[i] = (struct shf_io){ .op = SHF_IO_READ, .fd = fd, .buf = image + g->image,
		.len = (size_t)(g->hi - g->lo), .off = g->lo };
	rc = shf_io_submit(ld->step->run, &ld->io, &ld->ios[i]);
	return rc < 0 ? shf_fail_sys(err, -rc, "submitting a read") : 0;
}

/* Read the round's segments; what fails is tried again a few times. */
static int read_round(struct shf_load *ld, uint32_t round, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&ld->work, round);
	int rc = 0;

	for (int tries = 0; tries < READ_TRIES && rc == 0; tries++) {
		bool all = true;

		for (size_t i = segs.first; i < segs.end && rc == 0; i++)
			if (tries == 0 || ld->ios[i].result < 0) {
				all = false;
				ld->retries += tries > 0;
				rc = submit(ld, i, err);
			}
		(void)shf_io_drain(ld->step->run, &ld->io, -1);
		if (all)
			break;
	}
	for (size_t i = segs.first; i < segs.end && rc == 0; i++) {
		const struct shf_seg *g = &ld->work.segs[i];
		const char *name = ld->step->layout.files[g->file].name;

		if (ld->ios[i].result < 0)
			rc = shf_fail_sys(err, (int)-ld->ios[i].result,
					  "%s/%s: reading %" PRIu64 " bytes at %" PRIu64,
					  ld->step->path, name, g->hi - g->lo, g->lo);
		else if ((uint64_t)ld->ios[i].result != g->hi - g->lo)
			rc = shf_fail(err, SHEAF_ECORRUPT, "%s/%s: ends at byte %" PRIu64,
				      ld->step->path, name, g->lo + (uint64_t)ld->ios[i].result);
		ld->disk_bytes += g->hi - g->lo;
	}
	return rc;
}

/* Digests of every tensor's bytes in a segment, wanted or not: blocks are read whole. */
static void sum_segment(struct shf_load *ld, const struct shf_seg *g, const uint8_t *p)
{
	const struct shf_layout *l = &ld->step->layout;
	const struct shf_lt_file *file = &l->files[g->file];
	uint32_t end = file->first_tensor + file->tensors_n;

	for (uint32_t i = shf_layout_at(l, g->file, g->lo); i < end; i++) {
		uint32_t n = l->by_place[i];
		const struct shf_lt_tensor *t = &l->tensors[n];
		uint64_t a = t->off > g->lo ? t->off : g->lo, b = t->off + t->bytes;
		uint64_t sum;

		if (t->off >= g->hi)
			break;
		b = b < g->hi ? b : g->hi;
		if (a >= b)
			continue;
		sum = shf_crc64_raw(0, p + (a - g->lo), (size_t)(b - a));
		ld->got[n] ^= shf_crc64_shift(sum, t->off + t->bytes - b);
		ld->got_bytes[n] += b - a;
	}
}

static int check_round(struct shf_load *ld, uint32_t round, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&ld->work, round);
	const struct sheaf_step *step = ld->step;
	int rc = 0;

	if (!step->sound)
		return 0;
	for (size_t i = segs.first; i < segs.end && rc == 0; i++) {
		const struct shf_seg *g = &ld->work.segs[i];
		const uint8_t *image = step->run->images.own.base;

		if (!(step->run->opts.flags & SHEAF_UNVERIFIED))
			rc = shf_blocks_check(step, g->file, g->lo, image + g->image, g->hi - g->lo,
					      NULL, err);
		sum_segment(ld, g, image + g->image);
	}
	return rc;
}

/* An earlier move of the segment with the same box, as replicas ask for: its distance, or 0. */
static uint32_t same_before(const struct shf_work *w, const struct shf_seg *g, uint32_t k)
{
	const struct shf_mv *v = &w->moves[g->first_move + k];

	for (uint32_t back = 1; back <= k && back <= 16; back++) {
		const struct shf_mv *x = v - back;

		if (x->tensor == v->tensor && shf_box_equal(&x->box, &v->box))
			return back;
	}
	return 0;
}

/* Before the blocks are checked: the sums then hold for what was checked. */
static void sum_boxes(struct shf_load *ld, uint32_t round)
{
	const struct shf_work *w = &ld->work;
	uint8_t *image = ld->step->run->images.own.base;
	struct shf_span segs = shf_work_segs(w, round);

	for (size_t i = segs.first; i < segs.end; i++) {
		const struct shf_seg *g = &w->segs[i];

		for (uint32_t k = 0; k < g->moves_n; k++) {
			const struct shf_mv *v = &w->moves[g->first_move + k];
			const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
			uint64_t *sum = &ld->sums[g->first_move + k];
			uint32_t back = same_before(w, g, k);

			struct shf_sums_to sums = { 0 };

			*sum = back ? sum[-(ptrdiff_t)back] : 0;
			if (!back)
				shf_copy_pack(t, &v->box, shf_place_in(image, g->image, g->lo, t),
					      NULL, &sums);
			*sum ^= sums.digest;
		}
	}
}

/* ---- what travels, per move: 8 bytes of digest, then to another node the box ---- */

struct net {
	uint8_t *out, *in;
	size_t *out_bytes, *in_bytes;   /* by rank */
};

static void net_release(struct net *n)
{
	shf_free(n->out);
	shf_free(n->in);
	shf_free(n->out_bytes);
	shf_free(n->in_bytes);
}

static size_t total(const size_t *bytes, int ranks)
{
	size_t n = 0;

	for (int r = 0; r < ranks; r++)
		n += bytes[r];
	return n;
}

static size_t message_bytes(const struct shf_load *ld, uint32_t peer, uint32_t tensor,
                            const struct shf_box *box)
{
	return 8 + (shares_memory(ld, peer)
	            ? 0 : (size_t)shf_box_bytes(&ld->step->layout.tensors[tensor], box));
}

static int net_size(struct shf_load *ld, uint32_t round, struct net *net, struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	int ranks = ld->step->run->team.ranks;
	struct shf_span segs = shf_work_segs(w, round), serves = shf_work_serves(w, round);

	net->out_bytes = shf_zalloc((size_t)ranks, sizeof(size_t));
	net->in_bytes = shf_zalloc((size_t)ranks, sizeof(size_t));
	if (!net->out_bytes || !net->in_bytes)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %d ranks", ranks);
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_mv *v = &w->moves[w->segs[i].first_move + k];

			net->out_bytes[v->rank] += message_bytes(ld, v->rank, v->tensor, &v->box);
		}
	for (size_t i = serves.first; i < serves.end; i++) {
		const struct shf_serve *v = &w->serves[i];

		net->in_bytes[v->rank] += message_bytes(ld, v->rank, v->tensor, &v->box);
	}
	net->out = shf_alloc(total(net->out_bytes, ranks), 1);
	net->in = shf_alloc(total(net->in_bytes, ranks), 1);
	if (!net->out || !net->in)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for bytes that travel");
	return 0;
}

static int net_pack(struct shf_load *ld, uint32_t round, struct net *net, struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	int ranks = ld->step->run->team.ranks;
	size_t *at = shf_zalloc((size_t)ranks + 1, sizeof(*at));
	struct shf_span segs = shf_work_segs(w, round);

	if (!at)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to pack");
	for (int r = 0; r < ranks; r++)
		at[r + 1] = at[r] + net->out_bytes[r];
	for (size_t i = segs.first; i < segs.end; i++)
		for (uint32_t k = 0; k < w->segs[i].moves_n; k++) {
			const struct shf_seg *g = &w->segs[i];
			const struct shf_mv *v = &w->moves[g->first_move + k];
			const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
			/* The digest that was taken before the check goes along. */
			struct shf_sums_to unused = { 0 };

			shf_put64(net->out + at[v->rank], ld->sums[g->first_move + k]);
			at[v->rank] += 8;
			if (shares_memory(ld, v->rank))
				continue;
			shf_copy_pack(
			    t, &v->box,
			    shf_place_in(ld->step->run->images.own.base, g->image, g->lo, t),
			    net->out + at[v->rank], &unused);
			at[v->rank] += (size_t)shf_box_bytes(t, &v->box);
			ld->net_bytes += 8 + shf_box_bytes(t, &v->box);
		}
	shf_free(at);
	return 0;
}

/* ---- into memory ---- */

static int disagree(const struct shf_load *ld, const struct shf_lt_tensor *t,
                    const struct shf_box *box, const char *what, struct sheaf_error *err)
{
	char text[160];

	return shf_fail(err, SHEAF_ECORRUPT, "%s: %s/%s %s: %s", ld->step->path, family_of(ld, t),
	                t->name, shf_box_print(box, text, sizeof(text)), what);
}

/* One box, into every slice of this rank that holds all of it. sum: as it was read. */
static int scatter(struct shf_load *ld, const struct shf_serve *v, struct shf_place_at from,
                   uint64_t sum, struct sheaf_error *err)
{
	const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
	const struct shf_holds *h = &ld->holds;
	bool found = false;

	for (size_t i = shf_holds_first(h, v->tensor); i < h->n && h->a[i].tensor == v->tensor;
	     i++) {
		const struct shf_slice *s = &ld->targets[h->a[i].slice].slice;
		struct shf_sums_to taken = { 0 };
		uint64_t stands = 0;

		if (!shf_box_contains(&h->a[i].box, &v->box))
			continue;
		found = true;
		shf_copy_out(t, s, &v->box, from, &taken);
		if (taken.digest != sum)
			return disagree(ld, t, &v->box,
					from.packed ? "changed on the way between nodes"
						    : "changed in the image after it was checked",
					err);
		if (shf_copy_check(t, s, &v->box, &stands) && taken.digest != stands)
			return disagree(ld, t, &v->box, "memory does not hold what was put there",
					err);
	}
	if (!always(found))
		return shf_fail(err, SHEAF_EBUG, "%s: a box came that nobody asked for", t->name);
	return 0;
}

static int scatter_round(struct shf_load *ld, uint32_t round, const struct net *net,
                         struct sheaf_error *err)
{
	const struct shf_work *w = &ld->work;
	struct sheaf_run *run = ld->step->run;
	struct shf_span serves = shf_work_serves(w, round);
	size_t at = 0;
	int rc = 0;

	/* Serves are by rank, as the streams are packed: one cursor goes over both. */
	for (size_t i = serves.first; i < serves.end && rc == 0; i++) {
		const struct shf_serve *v = &w->serves[i];
		const struct shf_lt_tensor *t = &ld->step->layout.tensors[v->tensor];
		uint64_t bytes = shf_box_bytes(t, &v->box), sum = shf_get64(net->in + at);
		struct shf_place_at from;

		at += 8;
		if (shares_memory(ld, v->rank)) {
			from = shf_place_in(shf_image_of(run, v->rank), v->image, v->seg_lo, t);
			ld->node_bytes += v->rank == (uint32_t)run->team.rank ? 0 : bytes;
		} else {
			from = (struct shf_place_at){ .data = net->in + at, .packed = true };
			at += (size_t)bytes;
		}
		rc = scatter(ld, v, from, sum, err);
	}
	return rc;
}

static int one_round(struct shf_load *ld, uint32_t round, struct sheaf_error *err)
{
	struct shf_team *team = &ld->step->run->team;
	struct net net = { 0 };
	int64_t from = shf_now(ld->step->run);
	int rc = read_round(ld, round, err);

	ld->read_ns += shf_now(ld->step->run) - from;
	from = shf_now(ld->step->run);
	if (rc == 0)
		sum_boxes(ld, round);
	if (rc == 0)
		rc = check_round(ld, round, err);
	ld->verify_ns += shf_now(ld->step->run) - from;
	if (rc == 0)
		rc = net_size(ld, round, &net, err);
	if (rc == 0)
		rc = net_pack(ld, round, &net, err);
	rc = shf_agree(team, rc, err); /* images are whole and checked on all ranks */
	if (rc == 0)
		rc = shf_alltoallv(team, net.out, net.out_bytes, net.in, net.in_bytes, err);
	if (rc == 0)
		rc = shf_agree(team, scatter_round(ld, round, &net, err), err);
	net_release(&net);
	return rc;
}

/* ---- whole tensors ---- */

/* u32 tensor | asked << 31, u64 digest, u64 bytes to the tensor's home. */
static void tell_homes(struct shf_load *ld, struct shf_buf *out)
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

struct whole {
	uint64_t got, bytes;
	bool asked;
};

static int compare(struct shf_load *ld, const struct shf_buf *in, uint64_t first, uint64_t end,
                   struct whole *w, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	struct shf_cur c = { in->data, in->data + in->len, false };
	bool check = ld->step->sound && !(ld->step->run->opts.flags & SHEAF_UNVERIFIED);

	while (c.p < c.end) {
		uint32_t t = shf_cur_u32(&c), n = t & ~(UINT32_C(1) << 31);

		if (n < first || n >= end)
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
					ld->step->path, family_of(ld, lt), lt->name, x->got,
					lt->digest);
		if (x->asked && (!check || x->bytes != lt->bytes)) {
			shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, family_of(ld, lt), lt->name, 0);
			shf_report_item(&ld->report, 'V', family_of(ld, lt), lt->name,
			                ld->step->sound ? "read in part: its blocks were checked"
			                                : FOREIGN);
		}
	}
	return 0;
}

static int prove(struct shf_load *ld, struct sheaf_error *err)
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
		tell_homes(ld, to);
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_exchange(team, to, &in, in_bytes, err);
	if (rc == 0)
		rc = shf_agree(team, compare(ld, &in, first, end, w, err), err);
	for (uint64_t r = 0; to && r < ranks; r++)
		shf_buf_release(&to[r]);
	shf_free(to);
	shf_free(in_bytes);
	shf_free(w);
	shf_buf_release(&in);
	return rc;
}

/* ---- all of it ---- */

static int hold_all(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	int rc = 0;

	for (size_t i = 0; i < ld->state->n && rc == 0; i++) {
		const struct shf_target *t = &ld->targets[i];

		if (t->source == SHF_FROM_STEP && !l->tensors[t->tensor].loose)
			rc = shf_holds_add(&ld->holds, l, t->tensor, (uint32_t)i, &t->slice, err);
	}
	shf_holds_sort(&ld->holds);
	return rc;
}

static int zero_box(void *arg, const struct shf_box *box)
{
	const struct shf_slice *s = arg;
	struct shf_runs runs;
	uint64_t at;
	int64_t mem;

	shf_runs_init(&runs, &s->shape, &s->mem, box);
	while (shf_runs_next(&runs, &at, &mem))
		for (uint64_t i = 0; i < runs.units; i++)
			memset(s->mem.base + (mem + (int64_t)i * runs.step) * (int64_t)s->mem_unit,
			       0, s->mem_unit);
	return 0;
}

/* Slices that are not planned by stripes: zeros, and foreign tensors at odd offsets. */
static int fill_rest(struct shf_load *ld, struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	int rc = 0;

	for (size_t i = 0; i < ld->state->n && rc == 0; i++) {
		struct shf_target *t = &ld->targets[i];

		if (t->slice.empty)
			continue;
		if (t->source == SHF_FROM_ZERO)
			(void)shf_mem_boxes(&t->slice.mem, zero_box, &t->slice);
		if (t->source != SHF_FROM_STEP || !l->tensors[t->tensor].loose)
			continue;
		rc = shf_direct_read(ld->step, &l->tensors[t->tensor], &t->slice, &ld->disk_bytes,
				     err);
		shf_tally_add(&ld->tally, SHF_T_UNVERIFIED, family_of(ld, &l->tensors[t->tensor]),
		              l->tensors[t->tensor].name, 0);
		shf_report_item(&ld->report, 'V', family_of(ld, &l->tensors[t->tensor]),
		                l->tensors[t->tensor].name, FOREIGN);
	}
	return rc;
}

static int window_of(struct sheaf_run *run, uint64_t *window, struct sheaf_error *err)
{
	uint64_t w =
	    run->opts.staging_bytes_max ? run->opts.staging_bytes_max / 2 : UINT64_C(256) << 20;
	uint64_t inv = ~(w < SHF_BLOCK ? SHF_BLOCK : w / SHF_BLOCK * SHF_BLOCK);
	int rc = shf_allreduce(&run->team, &inv, 1, SHEAF_MAX, err);

	*window = ~inv;
	return rc;
}

static int make_plan(struct shf_load *ld, struct sheaf_error *err)
{
	struct sheaf_run *run = ld->step->run;
	size_t n = ld->step->layout.tensors_n;
	struct shf_match m = { .layout = &ld->step->layout, .holds = &ld->holds,
		.nodes = run->place.nodes, .way = SHF_LOAD };
	int rc = shf_agree(&run->team, hold_all(ld, err), err);

	if (rc == 0)
		rc = window_of(run, &m.window, err);
	if (rc == 0)
		rc = shf_match(&run->team, &m, &ld->work, err);
	if (rc == 0) {
		ld->ios = shf_zalloc(ld->work.segs_n, sizeof(*ld->ios));
		ld->sums = shf_zalloc(ld->work.moves_n, sizeof(*ld->sums));
		ld->got = shf_zalloc(n, sizeof(*ld->got));
		ld->got_bytes = shf_zalloc(n, sizeof(*ld->got_bytes));
		rc = shf_agree(&run->team, ld->ios && ld->sums && ld->got && ld->got_bytes ? 0
		               : shf_fail(err, SHEAF_ENOMEM, "no memory for %zu tensors", n), err);
	}
	if (rc == 0)
		rc = shf_images_free(run, 0, err);
	if (rc == 0)
		rc = shf_images_need(run, ld->work.image_bytes, err);
	return rc;
}

static void tell_progress(const struct shf_load *ld)
{
	const struct sheaf_opts *o = &ld->step->run->opts;
	struct sheaf_stat stat = { .size = sizeof(stat), .phase = 4, .held = ld->work.bytes,
		.copied = ld->disk_bytes };

	if (o->progress)
		o->progress(o->arg, &stat);
}

int shf_fill(struct shf_load *ld, struct sheaf_error *err)
{
	int rc;

	ld->io.done = read_done;
	rc = make_plan(ld, err);
	for (uint32_t k = 0; k < ld->work.rounds && rc == 0; k++) {
		rc = one_round(ld, k, err);
		tell_progress(ld);
	}
	if (rc == 0)
		rc = shf_agree(&ld->step->run->team, fill_rest(ld, err), err);
	if (rc == 0)
		rc = prove(ld, err);
	shf_free(ld->ios);
	shf_free(ld->sums);
	shf_free(ld->got);
	shf_free(ld->got_bytes);
	return rc;
}
