/* SPDX-License-Identifier: Apache-2.0 */
/* Images are the staging buffers of a run: each rank's bytes in file order, in memory that all
 * ranks of its node have mapped. An image grows when a save needs more and is then kept, because
 * touching memory for the first time costs far more than copying into it. Another image is made
 * only when all others are in use.
 *
 * Growing is collective and happens in phases that all ranks of the run finish together: every rank
 * announces what it will free and allocate, the sum is compared with what the machine has left, all
 * old memory is freed, all new memory is allocated, and then the ranks of a node map each other's.
 * No phase begins before the one before it has ended everywhere. Otherwise old and new memory would
 * exist at the same time, and the kernel might kill a rank that had been promised enough. */
#include "image.h"
#include <errno.h>
#include <string.h>
#include "err.h"
#include "memory_growth.h"
#include "opts.h"

#define SHARE_TRIES 3           /* attempts to share an image; see shf_image_sharing_allocate() */

struct grown {                  /* what ranks send each other before they grow an image */
	struct shf_growth growth;       /* first: shf_growth_check() reads it */
	uint8_t token[16];
	int32_t grew, failed;           /* grew: this rank will allocate new memory; failed: this
	                                 * rank has failed before the exchange, so no rank
	                                 * allocates */
};

uint8_t *shf_image_of(const struct sheaf_run *run, int image, uint32_t rank)
{
	const struct shf_image *m = &run->image.all[image];

	if (rank == (uint32_t)run->team.rank)
		return m->own.base;
	return m->peers ? m->peers[rank].base : NULL;
}

/* Frees this rank's memory and its mappings of the other ranks' memory. */
static void free_image(struct sheaf_run *run, struct shf_image *m)
{
	const struct shf_sys *sys = run->sys;

	for (int r = 0; m->peers && r < run->team.ranks; r++)
		if (m->peers[r].base)
			shf_sys_shm_free(sys, &m->peers[r]);
	if (m->own.base)
		shf_sys_shm_free(sys, &m->own);
	shf_free(m->peers);
	*m = (struct shf_image){ .own = { .fd = -1 } };
}

void shf_images_release(struct sheaf_run *run)
{
	for (int i = 0; i <= SHF_IMAGE_OF_LOAD; i++)
		free_image(run, &run->image.all[i]);
}

uint64_t shf_images_bytes(const struct sheaf_run *run)
{
	uint64_t bytes = 0;

	for (int i = 0; i < SHF_IMAGES_MAX; i++)
		bytes += run->image.all[i].own.bytes;
	return bytes;
}

/* Registers the memory with the disk queue (as an io_uring buffer), so that the kernel need not map
 * its pages again for every request. base NULL: removes the registration. */
static void pin_image(struct sheaf_run *run, const struct shf_image *m, void *base, size_t bytes)
{
	const struct shf_sys *sys = run->sys;

	shf_sys_queue_pin(sys, run->io.queue, (int)(m - run->image.all), base, bytes);
}

void shf_image_release(struct sheaf_run *run, int image)
{
	struct shf_image *m = &run->image.all[image];

	if (m->own.base)
		pin_image(run, m, NULL, 0);
	free_image(run, m);
}

/* Notifies the memory tier, if there is one, that the image has new memory or, with `goes`, is
 * about to be freed: the agent keeps a reference to the memory. */
static void moves(struct sheaf_run *run, const struct shf_image *m, bool goes)
{
	if (run->image.moves)
		run->image.moves(run, (int)(m - run->image.all), goes);
}

/* Frees the old memory, here and at the agent, before the new one is allocated, because there may
 * not be room for both. */
static void free_before_growth(struct sheaf_run *run, struct shf_image *m)
{
	const struct shf_sys *sys = run->sys;

	if (m->own.base) {
		pin_image(run, m, NULL, 0);
		moves(run, m, true);
		shf_sys_shm_free(sys, &m->own);
	}
	m->own = (struct shf_shm){ .fd = -1 };
}

/* Allocates the new memory and hands it to the memory tier. Small images are not registered with
 * the disk queue: that is not worth a system call. */
static int grow_image(struct sheaf_run *run, struct shf_image *m, uint64_t want, bool shared,
                      struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct shf_shm fresh = { .fd = -1 };
	int rc;

	if (want > SIZE_MAX / 2)
		return shf_fail(err, SHEAF_ENOMEM, "a staging buffer of %llu bytes is larger than "
		                "any memory; lower opts.staging.bytes_max",
				(unsigned long long)want);
	rc = shf_sys_shm_new(sys, &fresh, (size_t)want, shared);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "allocating a staging buffer of %llu MiB",
		                    (unsigned long long)(want >> 20));
	m->own = fresh;
	moves(run, m, false);
	if (want >= SHF_DIRECT_MIN)
		pin_image(run, m, fresh.base, fresh.bytes);
	return 0;
}

/* An image that is being made larger, on all ranks together. */
struct shf_image_sharing {
	struct sheaf_run *run;
	struct shf_image *image;
	struct grown *all;              /* owned; by rank */
	int *connections;               /* owned; by rank: connection to the rank's socket, if its
	                                 * part grows; -1: none */
	uint64_t bytes;                 /* size that the caller needs this rank's part to have */
	uint64_t want;                  /* bytes to allocate here; 0: the part is large enough */
	uint8_t token[16];              /* names this rank's socket */
	int offer;                      /* this rank's socket; -1: none */
	bool shared, taken;             /* shared: the node has several ranks; taken:
	                                 * shf_image_sharing_map has succeeded */
};

/* Frees the mappings of memory that other ranks of the node are about to replace, and connects to
 * the sockets on which those ranks will hand over the new memory.
 *
 * ECONNREFUSED means that the backlog of a socket is full, which another user of the machine can
 * cause. It becomes EAGAIN, and shf_image_sharing_allocate tries again with sockets of other
 * names. */
static int connect_all(struct shf_image_sharing *s, struct sheaf_error *err)
{
	const struct sheaf_run *run = s->run;
	const struct shf_sys *sys = run->sys;

	for (int r = 0; r < run->team.ranks; r++) {
		if (r == run->team.rank || !s->all[r].grew ||
		    run->place.nodes[r] != run->place.node)
			continue;
		if (s->image->peers[r].base)
			shf_sys_shm_free(sys, &s->image->peers[r]);
		s->image->peers[r] = (struct shf_shm){ .fd = -1 };
		int rc = shf_sys_shm_connect(sys, s->all[r].token, &s->connections[r]);
		if (rc == -ECONNREFUSED)
			return shf_fail(err, SHEAF_EAGAIN, "staging buffer of rank %d: its socket "
			                "accepts no connection: other users' processes keep it "
			                "busy, or that rank has moved to another network namespace",
			                r);
		if (rc < 0)
			return shf_fail_sys(err, -rc, "connecting to rank %d for its staging "
			                    "buffer", r);
	}
	return 0;
}

/* Hands this rank's new memory to the other ranks of its node, which have all connected already. */
static int serve_all(struct shf_image_sharing *s, struct sheaf_error *err)
{
	const struct sheaf_run *run = s->run;
	const struct shf_sys *sys = run->sys;
	int rc = 0;

	if (s->want && s->shared)
		rc = shf_sys_shm_serve(sys, s->offer, &s->image->own,
				       run->place.node_ranks - 1, run->team.timeout_ms);
	return rc < 0 ? shf_fail_sys(err, -rc, "sharing the staging buffer with the ranks of this "
	                             "node") : 0;
}

/* Decides whether this rank's part must grow. If it must, opens the socket on which the new memory
 * will be handed over, under a new name. The memory itself is allocated when all ranks of the node
 * have connected. */
static int offer_new(struct shf_image_sharing *s, struct sheaf_error *err)
{
	struct sheaf_run *run = s->run;
	const struct shf_sys *sys = run->sys;
	size_t ranks = (size_t)run->team.ranks;
	int rc = 0;

	s->want = s->bytes > s->image->own.bytes ? shf_growth_bytes(s->bytes) : 0;
	if (!s->image->peers)
		s->image->peers = shf_zalloc(ranks, sizeof(*s->image->peers));
	if (!s->image->peers)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for images of %d ranks",
		                run->team.ranks);
	if (s->want && s->shared)
		rc = shf_sys_shm_offer(sys, s->token, &s->offer);
	return rc < 0 ? shf_fail_sys(err, -rc, "opening a socket to share the staging buffer on "
	                             "this node") : 0;
}

int shf_image_sharing_new(struct shf_image_sharing **sharing, struct sheaf_run *run, int image,
                          uint64_t bytes, struct sheaf_error *err)
{
	size_t ranks = (size_t)run->team.ranks;
	struct shf_image_sharing *s = shf_zalloc(1, sizeof(*s));

	*sharing = s;
	if (!s)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to share an image");
	*s = (struct shf_image_sharing){ .run = run, .image = &run->image.all[image],
	        .bytes = bytes, .all = shf_zalloc(ranks, sizeof(*s->all)),
		.connections = shf_alloc(ranks, sizeof(*s->connections)),
		.offer = -1, .shared = run->place.node_ranks > 1 };
	for (size_t r = 0; s->connections && r < ranks; r++)
		s->connections[r] = -1;
	if (!s->all || !s->connections)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for images of %d ranks",
		                run->team.ranks);
	return offer_new(s, err);
}

bool shf_image_sharing_grows(const struct shf_image_sharing *s)
{
	return s->want != 0;
}

/* Closes this rank's socket, and its connections to the sockets of other ranks. */
static void close_all(struct shf_image_sharing *s)
{
	const struct shf_sys *sys = s->run->sys;

	shf_sys_shm_drop(sys, s->offer);
	s->offer = -1;
	for (int r = 0; s->connections && r < s->run->team.ranks; r++) {
		if (s->connections[r] >= 0)
			shf_sys_shm_drop(sys, s->connections[r]);
		s->connections[r] = -1;
	}
}

void shf_image_sharing_free(struct shf_image_sharing *s)
{
	if (!s)
		return;
	close_all(s);
	shf_free(s->all);
	shf_free(s->connections);
	shf_free(s);
}

/* Exchanges what every rank is about to free and to allocate, and how much its machine has left. No
 * rank frees or allocates anything before this function has returned, so if the sum is too large,
 * the call fails before any rank has taken memory that another one needs. Returns the same on all
 * ranks: a failure of one (rc) is sent along, and then agreed on. */
static int exchange_growth(struct shf_image_sharing *s, int rc, struct sheaf_error *err)
{
	struct grown mine = { .grew = s->want != 0, .failed = rc < 0 };
	struct shf_team *team = &s->run->team;
	bool failed = false;
	int lost;

	memcpy(mine.token, s->token, sizeof(mine.token));
	shf_growth_look(s->run, s->want, s->want ? s->image->own.bytes : 0, &mine.growth);
	lost = shf_allgather(team, &mine, s->all, sizeof(mine), err);
	if (lost < 0)
		return lost;
	for (int r = 0; r < team->ranks; r++)
		failed = failed || s->all[r].failed;
	return !failed ? 0 : shf_agree(team, rc, err);
}

/* Frees this rank's old memory and its mappings of memory that other ranks replace: the kernel gets
 * memory back only when no rank maps it any more. If the new memory of the node's ranks does not
 * fit, returns ENOMEM before any rank of this node has freed something. */
static int free_all(struct shf_image_sharing *s, struct sheaf_error *err)
{
	struct sheaf_run *run = s->run;
	int rc = shf_growth_check(s->all, sizeof(*s->all), run->team.ranks, run->place.node, err);

	if (rc == 0 && s->want)
		free_before_growth(run, s->image);
	if (rc == 0 && s->shared)
		rc = connect_all(s, err);
	return rc;
}

/* Allocates this rank's new memory and serves it to the other ranks. All ranks must have freed
 * their old memory: the check of what the machine has left relies on that. */
static int grow_all(struct shf_image_sharing *s, struct sheaf_error *err)
{
	struct sheaf_run *run = s->run;
	int rc = 0;

	if (s->want)
		rc = grow_image(run, s->image, s->want, s->shared || run->image.moves, err);
	return rc == 0 ? serve_all(s, err) : rc;
}

/* Closes the sockets and frees the image on this rank, so that the next attempt, or the next save,
 * starts from the same state on all ranks. */
static void undo(struct shf_image_sharing *s)
{
	close_all(s);
	pin_image(s->run, s->image, NULL, 0);
	moves(s->run, s->image, true);
	free_image(s->run, s->image);
}

/* Any user of the machine can read a socket's name and connect to it until its backlog is full;
 * then the ranks of this job cannot connect. So they try again with another name: ranks that have
 * just agreed connect sooner than another process can fill the backlog. Only this
 * failure, EAGAIN from connect_all(), is tried again, SHARE_TRIES times in all; an EAGAIN that the
 * caller passes in rc is returned at once.
 *
 * The agreements make all ranks finish a phase of growing before any begins the next (see the head
 * of this file). */
int shf_image_sharing_allocate(struct shf_image_sharing *s, int rc, struct sheaf_error *err)
{
	struct sheaf_error own;

	err = err ? err : &own;
	for (int tries = 1;; tries++) {
		rc = exchange_growth(s, rc, err);
		if (rc < 0)
			return rc;
		rc = shf_agree(&s->run->team, free_all(s, err), err);
		if (rc != SHEAF_EAGAIN)
			return rc == 0 ? grow_all(s, err) : rc;
		if (tries == SHARE_TRIES)
			return err->code = SHEAF_EIO;
		undo(s);
		rc = offer_new(s, err);
	}
}

int shf_image_sharing_map(struct shf_image_sharing *s, struct sheaf_error *err)
{
	const struct sheaf_run *run = s->run;
	const struct shf_sys *sys = run->sys;
	int rc = 0;

	for (int r = 0; r < run->team.ranks && !s->taken; r++) {
		if (s->connections[r] < 0)
			continue;
		rc = shf_sys_shm_take(sys, s->connections[r], &s->image->peers[r],
				      run->team.timeout_ms);
		if (rc < 0)
			return shf_fail_sys(err, -rc, "receiving the staging buffer of rank %d", r);
	}
	s->taken = true;
	return 0;
}

/* Makes the image on all ranks, or on no rank: if one rank fails, all release what they have, so
 * that the next save starts from the same state everywhere. */
int shf_image_reserve(struct sheaf_run *run, int rc, int image, uint64_t bytes,
                      struct sheaf_error *err)
{
	struct shf_image_sharing *s = NULL;
	uint64_t any = 0;

	if (rc == 0) {
		rc = shf_image_sharing_new(&s, run, image, bytes, err);
		any = rc == 0 && shf_image_sharing_grows(s);
	}
	/* If the part of any rank must grow, all ranks go through the exchanges: these are
	 * collective. */
	rc = shf_agree_max(&run->team, rc, &any, 1, err);
	if (rc == 0 && any) {
		rc = shf_agree(&run->team, shf_image_sharing_allocate(s, 0, err), err);
		if (rc == 0)
			rc = shf_agree(&run->team, shf_image_sharing_map(s, err), err);
		if (rc < 0)
			undo(s);
	}
	shf_image_sharing_free(s);
	return rc;
}
