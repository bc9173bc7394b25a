/* SPDX-License-Identifier: Apache-2.0 */
/* Filling memory that was never written costs as much time as reading the disk: the kernel has to
 * find and zero each page. A thread touches the memory, and so takes these page faults, ahead of
 * the copies, many pages at a time, in the order in which the files are read. The copies take the
 * faults of pages that the thread has not reached yet. The thread changes no byte, so it needs no
 * lock. */
#include "load_prefault.h"
#include <stdlib.h>
#include "background.h"
#include "load.h"
#include "load_common.h"
#include "state.h"

#define STRETCH (UINT64_C(4) << 20)     /* bytes touched in one turn; a load waits for the end of a
                                         * turn when it ends */
#define SLICE_MIN (UINT64_C(1) << 20)   /* bytes; the page faults of smaller slices are left to the
	                                 * copies */
#define ALL_MIN (UINT64_C(64) << 20)    /* bytes of new memory in total; with less, a thread costs
	                                 * as much time as it saves */

struct stretch {                /* memory of one slice */
	uint8_t *base;
	uint64_t bytes;
	uint32_t file;
	uint64_t off;                   /* file and offset of the slice's tensor */
};
/* What the thread touches, in the order of the files. Until the thread is stopped, only the thread
 * uses this struct. */
struct shf_load_prefault {
	const struct shf_sys *sys;
	struct shf_background task;
	struct stretch *a;              /* owned */
	size_t n, next;                 /* number of items in a; a[next] is being touched */
	uint64_t at;                    /* bytes of a[next] that were touched */
};

/* Returns whether the slice's memory has no gaps; if so, sets *out to that memory. Memory with gaps
 * is not touched: the pages in the gaps may be no business of the load, and touching would allocate
 * them. */
static bool slice_is_dense(const struct shf_slice *s, struct stretch *out)
{
	const struct shf_mem *m = &s->mem;
	int64_t by = 1, lo, hi;

	for (int d = m->box.ndim - 1; d >= 0; d--) {
		if (m->box.count[d] > 1 && m->stride[d] != by)
			return false;
		by *= m->box.count[d];
	}
	lo = m->origin > m->lo ? m->origin : m->lo;
	hi = m->origin + by < m->hi ? m->origin + by : m->hi;
	if (lo >= hi)
		return false;
	out->base = m->base + (uint64_t)(lo - m->lo) * s->mem_unit;
	out->bytes = (uint64_t)(hi - lo) * s->mem_unit;
	return true;
}

/* Makes one turn (background.h): touches the next STRETCH bytes. A turn is short because the end of
 * a load waits for it. */
static bool touch_stretch(void *work)
{
	struct shf_load_prefault *w = work;
	struct stretch *s = &w->a[w->next];
	uint64_t n = s->bytes - w->at < STRETCH ? s->bytes - w->at : STRETCH;

	shf_sys_touch(w->sys, s->base + w->at, n, true);
	w->at += n;
	if (w->at == s->bytes) {
		w->next++;
		w->at = 0;
	}
	return w->next < w->n;
}

/* Orders by file and offset, as the load reads them. */
static int order_by_file(const void *pa, const void *pb)
{
	const struct stretch *a = pa, *b = pb;

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return a->off < b->off ? -1 : a->off > b->off;
}

/* Lists the slices that are filled from the step and whose memory is new. Only the page in the
 * middle of a slice is tested: if it was never touched, the others probably were not either.
 * Returns how many bytes the slices have in all. */
static uint64_t find_new_memory(struct shf_load_prefault *w, const struct shf_load *ld)
{
	const struct shf_layout *l = &ld->step->layout;
	uint64_t bytes = 0;

	for (size_t i = 0; i < ld->state->n; i++) {
		const struct shf_slice *s = &ld->state->slices[i];
		const struct shf_target *t = &ld->targets[i];
		struct stretch *to = &w->a[w->n];

		/* shf_sys_touched asks the kernel whether the page exists, and does not fault it
		 * in. */
		if (t->source != SHF_FROM_STEP || s->empty || !slice_is_dense(s, to) ||
		    to->bytes < SLICE_MIN ||
		    shf_sys_touched(w->sys, to->base + to->bytes / 2))
			continue;
		to->file = l->tensors[t->tensor].file;
		to->off = l->tensors[t->tensor].off;
		bytes += to->bytes;
		w->n++;
	}
	return bytes;
}

/* Returns NULL if there is too little new memory, or no thread can be created. */
static struct shf_load_prefault *load_prefault_new(const struct shf_load *ld)
{
	struct shf_load_prefault *w = shf_zalloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->sys = ld->step->run->sys;
	w->a = shf_alloc(ld->state->n, sizeof(*w->a));
	if (w->a && find_new_memory(w, ld) >= ALL_MIN) {
		qsort(w->a, w->n, sizeof(*w->a), order_by_file);
		if (shf_background_start(&w->task, w->sys, touch_stretch, w) == 0)
			return w;
	}
	shf_free(w->a);
	shf_free(w);
	return NULL;
}

/* A rank with one processor gets no thread, which would take its time from the copies. */
struct shf_load_prefault *shf_load_prefault_start(const struct shf_load *ld)
{
	return shf_load_threads(ld->step->run) > 1 ? load_prefault_new(ld) : NULL;
}

void shf_load_prefault_end(struct shf_load_prefault *w)
{
	if (!w)
		return;
	shf_background_stop(&w->task);
	shf_free(w->a);
	shf_free(w);
}
