/* SPDX-License-Identifier: Apache-2.0 */
/* f->unpacking is the list of parts that are kept; the one that was read last comes first. Threads
 * that read the same part wait for each other, and the one that reads the lowest byte goes first.
 * In any other order a thread could find that another one has decoded so far past its bytes that
 * the decoding must begin again: threads that convert a tensor read pieces of 4 MiB in ascending
 * order. Threads that read different parts do not wait. */
#include "foreign_packed.h"
#include "err.h"
#include "mem.h"

struct waiting { uint64_t at; struct waiting *next; };  /* a thread */
struct shf_unpacking {
	struct shf_unpacking *next;     /* guarded by f->lock */
	uint32_t users;                 /* guarded by f->lock; threads that read it or wait */
	pthread_mutex_t lock;
	pthread_cond_t turn;            /* busy has become false */
	bool busy;                      /* guarded by lock; a thread reads */
	struct waiting *waiting;        /* guarded by lock */
	struct shf_unpacker unpacker;   /* of the thread that has set busy */
};

static void unpacking_free(struct shf_unpacking *x)
{
	shf_unpacker_release(&x->unpacker);
	pthread_cond_destroy(&x->turn);
	pthread_mutex_destroy(&x->lock);
	shf_free(x);
}

/* Removes parts from the list, beginning with the one that was read longest ago, until the rest
 * fits SHF_UNPACKING_BYTES. Parts that a thread reads stay. Returns the list of the removed parts.
 * [with f->lock] */
static struct shf_unpacking *take_old(struct shf_foreign *f)
{
	struct shf_unpacking *old = NULL, **at = &f->unpacking;
	uint64_t bytes = 0;

	while (*at) {
		struct shf_unpacking *x = *at;

		bytes += shf_unpacker_bytes(&x->unpacker);
		if (bytes <= SHF_UNPACKING_BYTES || x->users) {
			at = &x->next;
			continue;
		}
		*at = x->next;
		x->next = old;
		old = x;
	}
	return old;
}

/* Finds the part among those that are kept, or adds it, and moves it to the beginning of the list.
 * NULL: out of memory. */
static struct shf_unpacking *unpacking_get(struct shf_foreign *f, const struct shf_packed *p)
{
	struct shf_unpacking *x = NULL, *old, **at = &f->unpacking;

	pthread_mutex_lock(&f->lock);
	while (*at && (*at)->unpacker.of != p)
		at = &(*at)->next;
	if (*at) {
		x = *at;
		*at = x->next;
	} else {
		x = shf_zalloc(1, sizeof(*x));
		if (x) {
			pthread_mutex_init(&x->lock, NULL);
			pthread_cond_init(&x->turn, NULL);
			shf_unpacker_init(&x->unpacker, p, SHF_UNPACK_ROOM);
		}
	}
	if (x) {
		x->next = f->unpacking;
		f->unpacking = x;
		x->users++;
	}
	old = take_old(f);
	pthread_mutex_unlock(&f->lock);
	while (old) {
		struct shf_unpacking *next = old->next;

		unpacking_free(old);
		old = next;
	}
	return x;
}

/* Whether no other thread waits for a lower byte. */
static bool is_lowest(const struct shf_unpacking *x, uint64_t at)
{
	for (const struct waiting *w = x->waiting; w; w = w->next)
		if (w->at < at)
			return false;
	return true;
}

/* Waits for the turn of a thread that reads from byte `at` on. */
static void turn_take(struct shf_unpacking *x, uint64_t at)
{
	struct waiting me = { .at = at }, **of;

	pthread_mutex_lock(&x->lock);
	me.next = x->waiting;
	x->waiting = &me;
	while (x->busy || !is_lowest(x, at))
		pthread_cond_wait(&x->turn, &x->lock);
	for (of = &x->waiting; *of != &me;)
		of = &(*of)->next;
	*of = me.next;
	x->busy = true;
	pthread_mutex_unlock(&x->lock);
}

static void turn_end(struct shf_unpacking *x)
{
	pthread_mutex_lock(&x->lock);
	x->busy = false;
	pthread_cond_broadcast(&x->turn);
	pthread_mutex_unlock(&x->lock);
}

int shf_foreign_packed_read(struct shf_foreign *f, const struct shf_packed *p,
                            const struct shf_region *r, uint8_t *to, uint64_t n, uint64_t at,
                            struct sheaf_error *err)
{
	struct shf_unpacking *x = unpacking_get(f, p);
	int rc;

	if (!x)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to decode a part of it",
		                r->where);
	turn_take(x, at);
	rc = shf_unpacker_read(&x->unpacker, r, to, n, at, err);
	turn_end(x);
	pthread_mutex_lock(&f->lock);
	x->users--;
	pthread_mutex_unlock(&f->lock);
	return rc;
}

void shf_foreign_packed_release(struct shf_foreign *f)
{
	while (f->unpacking) {
		struct shf_unpacking *x = f->unpacking;

		f->unpacking = x->next;
		unpacking_free(x);
	}
}
