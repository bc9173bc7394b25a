/* SPDX-License-Identifier: Apache-2.0 */
/* Images: a rank's staged bytes in file order, in memory that the ranks of its node can write.
 * They grow when a save needs more and are kept, because a first touch costs far more than a
 * copy. */
#include <string.h>
#include "err.h"
#include "run.h"

#define HUGE (UINT64_C(2) << 20)

struct grown {                  /* what ranks tell each other */
	uint8_t token[16];
	int32_t grew, node;
};

uint8_t *shf_image_of(const struct sheaf_run *run, uint32_t rank)
{
	if (rank == (uint32_t)run->team.rank)
		return run->images.own.base;
	return run->images.peers ? run->images.peers[rank].base : NULL;
}

void shf_images_release(struct shf_images *images, const struct shf_sys *sys, int ranks)
{
	for (int r = 0; images->peers && r < ranks; r++)
		if (images->peers[r].base)
			sys->ops->shm_free(sys->arg, &images->peers[r]);
	if (images->own.base)
		sys->ops->shm_free(sys->arg, &images->own);
	shf_free(images->peers);
	*images = (struct shf_images){ .own = { .fd = -1 } };
}

static int grow(struct sheaf_run *run, uint64_t bytes, bool shared, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct shf_shm fresh = { .fd = -1 };
	uint64_t want =
	    bytes > HUGE / 4 ? (bytes + HUGE - 1) / HUGE * HUGE : (bytes + 4095) / 4096 * 4096;

	if (want > SIZE_MAX / 2)
		return shf_fail(err, SHEAF_ENOMEM, "an image of %llu bytes",
				(unsigned long long)want);
	/* The old one goes first: two at once may be more than there is. */
	if (run->images.own.base) {
		if (run->queue)
			sys->ops->queue_pin(sys->arg, run->queue, 0, NULL, 0);
		sys->ops->shm_free(sys->arg, &run->images.own);
	}
	run->images.own = (struct shf_shm){ .fd = -1 };
	int rc = sys->ops->shm_new(sys->arg, &fresh, (size_t)want, shared);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "an image of %llu MiB of memory",
		                    (unsigned long long)(want >> 20));
	run->images.own = fresh;
	if (run->queue && want >= SHF_DIRECT_MIN)
		sys->ops->queue_pin(sys->arg, run->queue, 0, fresh.base, fresh.bytes);
	return 0;
}

struct sharing {
	struct grown *all;
	int *connections;               /* by rank; -1 */
	int offer, grew;
	bool shared;
};

static int connect_all(struct sheaf_run *run, struct sharing *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;

	for (int r = 0; r < run->team.ranks; r++) {
		if (r == run->team.rank || !s->all[r].grew ||
		    run->place.nodes[r] != run->place.node)
			continue;
		if (run->images.peers[r].base)
			sys->ops->shm_free(sys->arg, &run->images.peers[r]);
		run->images.peers[r] = (struct shf_shm){ .fd = -1 };
		int rc = sys->ops->shm_connect(sys->arg, s->all[r].token, &s->connections[r]);
		if (rc < 0)
			return shf_fail_sys(err, -rc, "rank %d's image", r);
	}
	return 0;
}

static int serve_all(struct sheaf_run *run, struct sharing *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	int rc = 0;

	if (s->grew && s->shared)
		rc = sys->ops->shm_serve(sys->arg, s->offer, &run->images.own,
		                         run->place.node_ranks - 1, run->team.timeout_ms);
	return rc < 0 ? shf_fail_sys(err, -rc, "handing the image to the ranks of this node") : 0;
}

static int take_all(struct sheaf_run *run, struct sharing *s, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	int rc = 0;

	for (int r = 0; r < run->team.ranks; r++) {
		if (s->connections[r] < 0)
			continue;
		rc = sys->ops->shm_take(sys->arg, s->connections[r], &run->images.peers[r],
		                        run->team.timeout_ms);
		if (rc < 0)
			return shf_fail_sys(err, -rc, "taking rank %d's image", r);
	}
	return 0;
}

static int share(struct sheaf_run *run, struct sharing *s, int rc, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct grown mine = { .grew = s->grew, .node = run->place.node };

	if (rc == 0 && s->grew && s->shared) {
		rc = sys->ops->shm_offer(sys->arg, &run->images.own, mine.token, &s->offer);
		if (rc < 0)
			rc = shf_fail_sys(err, -rc, "offering the image to the ranks of this node");
	}
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_allgather(&run->team, &mine, s->all, sizeof(mine), err);
	if (rc == 0)
		rc = shf_agree(&run->team, s->shared ? connect_all(run, s, err) : 0, err);
	if (rc == 0)
		rc = shf_agree(&run->team, serve_all(run, s, err), err);
	if (rc == 0)
		rc = shf_agree(&run->team, s->shared ? take_all(run, s, err) : 0, err);
	return rc;
}

int shf_images_need(struct sheaf_run *run, uint64_t bytes, struct sheaf_error *err)
{
	size_t ranks = (size_t)run->team.ranks;
	uint64_t any = bytes > run->images.own.bytes;
	struct sharing s = { .offer = -1, .grew = any != 0, .shared = run->place.node_ranks > 1 };
	int rc = shf_allreduce(&run->team, &any, 1, SHEAF_MAX, err);

	if (rc < 0 || any == 0)
		return rc;
	s.all = shf_zalloc(ranks, sizeof(*s.all));
	s.connections = shf_zalloc(ranks, sizeof(*s.connections));
	if (!run->images.peers)
		run->images.peers = shf_zalloc(ranks, sizeof(*run->images.peers));
	for (size_t r = 0; s.connections && r < ranks; r++)
		s.connections[r] = -1;
	if (!s.all || !s.connections || !run->images.peers)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for images of %zu ranks", ranks);
	if (rc == 0 && s.grew)
		rc = grow(run, bytes, s.shared, err);
	rc = share(run, &s, rc, err);
	run->sys->ops->shm_drop(run->sys->arg, s.offer);
	for (size_t r = 0; s.connections && s.all && r < ranks; r++)
		if (s.connections[r] >= 0)
			run->sys->ops->shm_drop(run->sys->arg, s.connections[r]);
	/* Half a set of images is none: the next save begins afresh. */
	if (rc < 0) {
		if (run->queue)
			run->sys->ops->queue_pin(run->sys->arg, run->queue, 0, NULL, 0);
		shf_images_release(&run->images, run->sys, run->team.ranks);
	}
	shf_free(s.all);
	shf_free(s.connections);
	return rc;
}
