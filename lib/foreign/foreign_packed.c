/* SPDX-License-Identifier: Apache-2.0 */
/* f->unpacking is the list of parts that are kept, the one that was read last first. Threads that
 * read the same part wait for each other; threads that read different ones do not. */
#include "foreign_packed.h"
#include "err.h"
#include "mem.h"

struct shf_unpacking {
	struct shf_unpacking *next;     /* guarded by f->lock */
	uint32_t users;                 /* guarded by f->lock; threads that read it or wait */
	pthread_mutex_t lock;
	struct shf_unpacker unpacker;   /* guarded by lock */
};

static void unpacking_free(struct shf_unpacking *x)
{
	shf_unpacker_release(&x->unpacker);
	pthread_mutex_destroy(&x->lock);
	shf_free(x);
}

/* Takes those that no thread reads, beyond the limit, out of the list. Returns the list of them.
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

int shf_foreign_packed_read(struct shf_foreign *f, const struct shf_packed *p,
                            const struct shf_region *r, uint8_t *to, uint64_t n, uint64_t at,
                            struct sheaf_error *err)
{
	struct shf_unpacking *x = unpacking_get(f, p);
	int rc;

	if (!x)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to decode a part of it",
		                r->where);
	pthread_mutex_lock(&x->lock);
	rc = shf_unpacker_read(&x->unpacker, r, to, n, at, err);
	pthread_mutex_unlock(&x->lock);
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
