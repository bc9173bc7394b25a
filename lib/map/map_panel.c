/* SPDX-License-Identifier: Apache-2.0 */
/* Threads mostly read a tensor from its beginning to its end, all of them near the same place. So a
 * thread that needs a panel which another thread is making makes the next one meanwhile. */
#include "map_panel.h"
#include <string.h>
#include "dtype.h"
#include "err.h"
#include "mem.h"

struct panel_read {             /* one call of shf_map_panels_read */
	struct shf_map_panels *p;
	const struct shf_map_made *t;
	uint64_t items, item, each;     /* item: bytes of one; each: items in a panel */
	shf_panel_fill *fill;
	void *arg;
	struct sheaf_error *err;
};

void shf_map_panels_init(struct shf_map_panels *p, uint64_t memory_bytes)
{
	uint64_t n = memory_bytes / SHF_PANEL;

	*p = (struct shf_map_panels){ .n = n < SHF_PANELS_MAX ? (int)n : SHF_PANELS_MAX };
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->made, NULL);
}

void shf_map_panels_release(struct shf_map_panels *p)
{
	for (int i = 0; i < p->n; i++)
		shf_free(p->panels[i].bytes);
	pthread_cond_destroy(&p->made);
	pthread_mutex_destroy(&p->lock);
}

/* Returns the panel of that number, ready or not; NULL: there is none. Locked. */
static struct shf_map_panel *panel_find(const struct panel_read *r, uint64_t number)
{
	for (int i = 0; i < r->p->n; i++) {
		struct shf_map_panel *x = &r->p->panels[i];

		if (x->t == r->t && x->number == number)
			return x;
	}
	return NULL;
}

/* Takes the panel that was not used for the longest time; NULL: all are in use. Locked. */
static struct shf_map_panel *panel_take(struct panel_read *r, uint64_t number)
{
	struct shf_map_panel *x = NULL;

	for (int i = 0; i < r->p->n; i++)
		if (!r->p->panels[i].users && (!x || r->p->panels[i].used < x->used))
			x = &r->p->panels[i];
	if (x) {
		x->t = r->t;
		x->number = number;
		x->ready = false;
		x->users = 1;
		x->used = ++r->p->clock;
	}
	return x;
}

/* Makes a panel that was taken. Locked, except while it is read. */
static int panel_make(struct panel_read *r, struct shf_map_panel *x)
{
	uint64_t lo = x->number * r->each, hi = lo + r->each < r->items ? lo + r->each : r->items;
	int rc;

	pthread_mutex_unlock(&r->p->lock);
	x->bytes = x->bytes ? x->bytes : shf_alloc(SHF_PANEL, 1);
	rc = x->bytes ? r->fill(r->arg, r->t, x->bytes, lo, hi, r->err) : 1;
	pthread_mutex_lock(&r->p->lock);
	x->users--;
	x->ready = rc == 0;
	if (rc)
		x->t = NULL;
	pthread_cond_broadcast(&r->p->made);
	return rc;
}

/* Makes the panel of that number, or waits until another thread has. Locked. Returns 0 if it may be
 * ready now. */
static int panel_await(struct panel_read *r, uint64_t number)
{
	struct shf_map_panel *x = panel_find(r, number);
	uint64_t next = number + 1;
	int rc;

	if (!x) {
		x = panel_take(r, number);
		return x ? panel_make(r, x) : 1;
	}
	if (next * r->each < r->items && !panel_find(r, next)) {
		x = panel_take(r, next);
		rc = x ? panel_make(r, x) : 0;
		if (x)
			return rc < 0 ? 0 : rc; /* the thread that needs it finds the failure */
	}
	pthread_cond_wait(&r->p->made, &r->p->lock);
	return 0;
}

/* Copies items [lo, hi), which are all in one panel. */
static int panel_copy(struct panel_read *r, uint8_t *to, uint64_t lo, uint64_t hi)
{
	uint64_t number = lo / r->each;
	struct shf_map_panel *x;
	int rc = 0;

	pthread_mutex_lock(&r->p->lock);
	while (rc == 0 && (!(x = panel_find(r, number)) || !x->ready))
		rc = panel_await(r, number);
	if (rc == 0) {
		x->users++;
		x->used = ++r->p->clock;
		pthread_mutex_unlock(&r->p->lock);
		memcpy(to, x->bytes + (lo - number * r->each) * r->item, (hi - lo) * r->item);
		pthread_mutex_lock(&r->p->lock);
		x->users--;
	}
	pthread_mutex_unlock(&r->p->lock);
	return rc;
}

int shf_map_panels_read(struct shf_map_panels *p, const struct shf_map_made *t, uint64_t items,
                        uint8_t *to, uint64_t lo, uint64_t hi, shf_panel_fill *fill, void *arg,
                        struct sheaf_error *err)
{
	struct panel_read r = { .p = p, .t = t, .items = items, .fill = fill, .arg = arg,
		.err = err, .item = shf_dtype(t->dtype)->bits / 8u };
	int rc = 0;

	r.each = SHF_PANEL / r.item;
	while (lo < hi && rc == 0) {
		uint64_t end = (lo / r.each + 1) * r.each;

		end = end < hi ? end : hi;
		rc = panel_copy(&r, to, lo, end);
		to += (end - lo) * r.item;
		lo = end;
	}
	return rc;
}
