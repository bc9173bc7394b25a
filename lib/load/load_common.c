/* SPDX-License-Identifier: Apache-2.0 */
/* What several files of a load need: the pass over bytes that were read, the image, the report. */
#include "load_common.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "load.h"
#include "run_env.h"
#include "sheaf-stat.h"
#include "state.h"
#include "work.h"

const char *shf_load_family(const struct shf_load *ld, const struct shf_lt_tensor *t)
{
	return ld->step->layout.families[t->family].name;
}

/* Appends a box to ld->wants, as number n. The array is filled anew for every piece that is read,
 * so it is kept for the whole load; it grows by doubling. */
static int want_add(struct shf_load *ld, size_t n, const struct shf_want *want,
                    struct sheaf_error *err)
{
	if (n == ld->wants_cap) {
		size_t cap = n ? 2 * n : 64;
		struct shf_want *more = shf_realloc(ld->wants, cap, sizeof(*more));

		if (!more)
			return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu boxes", cap);
		ld->wants = more;
		ld->wants_cap = cap;
	}
	ld->wants[n] = *want;
	return 0;
}

/* Lists all boxes that this rank wants of all tensors in these bytes, in the order of the file,
 * because the pass walks through the file and the list side by side. */
int shf_load_pass_begin(struct shf_load *ld, const struct shf_seg *g, uint64_t lo, uint64_t bytes,
                        struct sheaf_error *err)
{
	const struct shf_layout *l = &ld->step->layout;
	const struct shf_lt_file *file = &l->files[g->file];
	const struct shf_holds *h = &ld->holds;
	size_t n = 0;
	int rc = 0;

	for (uint32_t i = shf_layout_at(l, g->file, lo);
	     i < file->first_tensor + file->tensors_n && rc == 0; i++) {
		uint32_t t = l->by_place[i];

		if (l->tensors[t].off >= lo + bytes)
			break;
		for (size_t x = shf_holds_first(h, t); x < h->n && h->a[x].tensor == t && rc == 0;
		     x++) {
			struct shf_want want = { .tensor = t, .box = *h->a[x].box,
				.slice = &ld->targets[h->a[x].slice].slice };

			rc = want_add(ld, n++, &want, err);
		}
	}
	/* A block in memory may be read by several ranks; only one of them has to prove it, and add
	 * it to the digest. */
	ld->pass.quiet = g->collected;
	ld->pass.sums = !g->collected && shf_block_pass_sums(ld->step);
	if (rc == 0)
		shf_block_pass_begin(&ld->pass, g->file, lo, ld->wants, n);
	return rc;
}

/* Whether non-temporal stores are faster depends on the machine. So the first pieces are copied in
 * both ways, and timed here (streaming_stores.h). */
int shf_load_pass_feed(struct shf_load *ld, const uint8_t *p, uint64_t n, struct sheaf_error *err)
{
	int64_t from = shf_now(ld->step->run), ns;
	int rc;

	ld->pass.past = shf_nt_stores_next(&ld->stores);
	rc = shf_block_pass_feed(&ld->pass, p, n, err);
	ns = shf_now(ld->step->run) - from;
	shf_nt_stores_took(&ld->stores, n, ns);
	ld->verify_ns += ns;
	return rc;
}

uint8_t *shf_load_image(const struct shf_load *ld)
{
	return ld->step->run->image.all[SHF_IMAGE_OF_LOAD].own.base;
}

int shf_load_progress(const struct shf_load *ld, struct sheaf_error *err)
{
	struct sheaf_stat stat = { .size = sizeof(stat), .phase = SHEAF_PHASE_READING,
	                           .held = ld->work.bytes,
		.copied = ld->disk_bytes };

	if (shf_run_reports(ld->step->run, &stat))
		return 0;
	return shf_fail(err, SHEAF_EFAILED, "%s: opts.progress ended the load", ld->step->path);
}

int shf_load_threads(const struct sheaf_run *run)
{
	int each = shf_sys_cpus(run->sys) / run->place.node_ranks;

	return run->opts.io_threads < each ? run->opts.io_threads : each;
}

void shf_load_report_item(const struct sheaf_report *report, int32_t kind, const char *family,
                          const char *name, const char *msg)
{
	if (report->item)
		report->item(report->arg, kind, family, name, msg);
}

/* The result has the stored type and units, because all copying is done in units of the stored
 * tensor. */
int shf_load_slice_adapt(struct shf_slice *out, const struct shf_slice *in,
                         const struct shf_lt_tensor *t, const char *family, bool convert,
                         struct sheaf_error *err)
{
	char want[200], have[200];

	if (t->wide)
		return shf_fail(err, SHEAF_EFORMAT,
				"%s/%s: %d dimensions, at most %d can be loaded", family, t->name,
				t->wide, SHEAF_DIMS_MAX);
	if (in->items.ndim != t->items.ndim ||
	    memcmp(in->items.dim, t->items.dim, sizeof(int64_t) * (size_t)t->items.ndim))
		return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: shape %s is stored, %s was asked for; "
		                "the state describes another model, or sheaf_slice.shape is not "
		                "that of the whole tensor",
		                family, t->name, shf_shape_print(&t->items, have, sizeof(have)),
		                shf_shape_print(&in->items, want, sizeof(want)));
	*out = *in;
	if (in->dtype == t->dtype)
		return 0;
	if (!convert)
		return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: %s is stored, %s was asked for "
		                "(SHEAF_LOAD_CONVERT converts)", family, t->name,
		                shf_dtype(t->dtype)->name,
		                shf_dtype(in->dtype)->name);
	/* The memory may have the stored type already, although the slice is declared with another
	 * one. */
	if (in->data_dtype != t->dtype && !shf_can_convert(in->data_dtype, t->dtype))
		return shf_fail(err, SHEAF_ELAYOUT, "%s/%s: %s is stored and cannot be converted "
		                "to %s",
				family, t->name, shf_dtype(t->dtype)->name,
				shf_dtype(in->data_dtype)->name);
	out->dtype = t->dtype;
	out->mem.unit = t->unit;
	out->shape = t->shape;
	return 0;
}

/* The slice's own name is looked up last. It is needed if two jobs tie the same weights the other
 * way round: here the slice is tied to another one, in the step the other one is tied to it. */
int64_t shf_load_find_stored(const struct shf_layout *l, const char *family, const char *name,
                             const struct shf_slice *s)
{
	int64_t i = shf_layout_find(l, family, name);
	const char *tied;

	if (i < 0 && (tied = shf_layout_tied_to(l, family, name)))
		i = shf_layout_find(l, family, tied);
	if (i < 0 && strcmp(s->name, s->stored)) /* the slice is tied in the state */
		i = shf_layout_find(l, family, s->name);
	return i;
}

/* For each step `passed` has two strings, the step's name and the reason, each with its NUL. */
void shf_load_report_passed(const struct shf_buf *passed, const struct sheaf_report *report)
{
	const char *p = (const char *)passed->data, *end = p + passed->len;

	for (const char *why; !passed->oom && p < end; p = why + strlen(why) + 1) {
		why = p + strlen(p) + 1;
		shf_load_report_item(report, SHEAF_REPORT_PASSED_OVER, "", p, why);
	}
}
