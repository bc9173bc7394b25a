/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the image of a step to the rank that keeps its replica. First one exchange carries an
 * announcement: u64 step, u64 bytes of the image, u64 bytes of the card's body, and the body. Then
 * the image is sent in pieces of 8 MiB, with the same number of exchanges on all ranks. This
 * happens inside the commit, or in the background by a thread that has a group of its own; no save
 * may overwrite the image meanwhile (shf_replicas_pins).
 *
 * Each rank keeps two slots for each guest. The new replica overwrites the older one (G2), so the
 * newest complete replica stays until the next one is complete. The card of the older one is
 * cleared before its first byte is overwritten (M1), and stamped (made whole) after the last byte
 * has arrived. */
#include "replica_send.h"
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "memory_growth.h"
#include "memory_tier.h"
#include "replica.h"
#include "run.h"
#include "run_env.h"

#define PIECE (UINT64_C(8) << 20)       /* bytes of an image in an exchange */

struct coming {                 /* a guest's announcement of the replica that it sends */
	const uint8_t *body;            /* body of the card; borrowed from
	                                 * shf_replica_transfer.in */
	uint64_t image_bytes, body_bytes;
	int slot;                       /* slot in which the replica is received */
};
/* A replica that this rank sends, and the replicas that it receives at the same time. While the
 * background thread runs, only that thread uses it. */
struct shf_replica_transfer {
	struct sheaf_run *run;          /* borrowed */
	struct shf_team *team;          /* team over which pieces are sent */
	int image;
	int64_t step;
	struct coming *coming;          /* owned; by guest */
	struct shf_buf in;              /* the announcements of the guests */
	size_t *out_bytes, *in_bytes;   /* owned; by rank: bytes of the current piece */
	uint8_t *buf;                   /* owned; receives the pieces of several guests */
	uint64_t bytes, most, at;       /* size of this rank's image, and of the largest of all
	                                 * ranks; offset of the next piece */
	struct announced {
		struct shf_growth growth;       /* what the rank allocates for the replicas that it
		                                 * keeps */
		uint64_t bytes;                 /* size of the rank's image */
	} *all;                         /* owned; by rank */
	int rc;                         /* the result so far; err has the message */
	bool stamped;                   /* the replicas received here are complete */
	struct sheaf_error err;
};

static void sending_free(struct shf_replica_transfer *s)
{
	if (!s)
		return;
	shf_free(s->coming);
	shf_free(s->all);
	shf_free(s->out_bytes);
	shf_free(s->in_bytes);
	shf_free(s->buf);
	shf_buf_release(&s->in);
	shf_free(s);
}

/* Returns whether replicas are sent in the background. While an image is being sent no save can
 * reuse it, which saves with only two images cannot afford. */
static bool goes_behind(const struct sheaf_run *run, const struct shf_replica_step *c)
{
	return run->tier->guests.behind.group && c->images > 2;
}

/* Allocates the state of a replica. *out is set even if this fails; the caller frees it. */
static int sending_new(struct shf_replica_transfer **out, struct sheaf_run *run,
                       const struct shf_replica_step *c, struct sheaf_error *err)
{
	struct shf_replicas *g = &run->tier->guests;
	size_t ranks = (size_t)run->team.ranks;
	struct shf_replica_transfer *s = shf_zalloc(1, sizeof(*s));

	*out = s;
	if (g->failed)
		return shf_fail(err, SHEAF_EFAILED, "the agent on this node refused the replicas "
		                "twice (raise sheaf agent --memory-max)");
	if (!s)
		return shf_fail(err, SHEAF_ENOMEM, "no memory to send a copy");
	*s = (struct shf_replica_transfer){ .run = run, .image = c->image, .step = c->step,
		.team = goes_behind(run, c) ? &g->behind : &run->team, .in = SHF_BUF_INIT,
		.coming = shf_zalloc(g->n + 1, sizeof(*s->coming)),
		.all = shf_zalloc(ranks, sizeof(*s->all)),
		.out_bytes = shf_zalloc(ranks, sizeof(*s->out_bytes)),
		.in_bytes = shf_zalloc(ranks, sizeof(*s->in_bytes)),
		.buf = shf_alloc(g->n > 1 ? g->n : 1, g->n > 1 ? PIECE : 1),
		.bytes = c->bytes };
	return s->coming && s->all && s->out_bytes && s->in_bytes && s->buf
	       ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to send a copy");
}

/* Reads the guests' announcements, and chooses a slot for each replica. */
static int read_announcements(struct shf_replica_transfer *s, struct sheaf_error *err)
{
	const struct shf_replicas *g = &s->run->tier->guests;
	struct shf_cur c = { s->in.data, s->in.data + s->in.len, false };

	for (size_t i = 0; i < g->n; i++) {
		struct coming *k = &s->coming[i];
		uint64_t step = shf_cur_u64(&c);

		k->image_bytes = shf_cur_u64(&c);
		k->body_bytes = shf_cur_u64(&c);
		k->body = shf_cur_bytes(&c, (size_t)k->body_bytes);
		k->slot = g->of[i].steps[1] < g->of[i].steps[0]; /* the slot with the older replica
		                                                  * is overwritten (G2) */
		if (!k->body || step != (uint64_t)s->step)
			return shf_fail(err, SHEAF_EBUG, "rank %d sent a replica of another "
			                "checkpoint",
			                g->of[i].rank);
	}
	return 0;
}

/* Computes how much memory this rank will allocate for replicas. Cards are too small to count. */
static void measure_replicas(const struct shf_replica_transfer *s, struct shf_growth *mine)
{
	const struct shf_replicas *g = &s->run->tier->guests;
	uint64_t bytes = 0, freed = 0;

	for (size_t i = 0; i < g->n; i++) {
		const struct shf_shm *had = &g->of[i].images[s->coming[i].slot];
		uint64_t want = s->coming[i].image_bytes;

		if (want <= had->bytes)
			continue;
		bytes += shf_growth_bytes(want);
		freed += had->bytes;
	}
	shf_growth_look(s->run, bytes, freed, mine);
}

/* Sends the announcement to the rank that keeps the replica. Then all ranks exchange the sizes of
 * their images, and how much memory they allocate for replicas. [collective] */
static int announce_replica(struct shf_replica_transfer *s, struct sheaf_error *err)
{
	struct sheaf_run *run = s->run;
	const struct shf_card_head *h = shf_card_head(&run->tier->cards[s->image]);
	struct shf_buf *out = shf_zalloc((size_t)run->team.ranks, sizeof(*out));
	struct announced mine = { .bytes = s->bytes };
	int rc = shf_agree(&run->team, out ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory to send a "
	                                                  "copy"), err);

	if (rc == 0) {
		struct shf_buf *to = &out[run->tier->guests.to];

		shf_buf_u64(to, (uint64_t)s->step);
		shf_buf_u64(to, s->bytes);
		shf_buf_u64(to, h->body_bytes);
		shf_buf_add(to, h + 1, (size_t)h->body_bytes);
		rc = shf_exchange(&run->team, 0, out, &s->in, s->in_bytes, err);
	}
	shf_bufs_free(out, run->team.ranks);
	if (rc < 0)
		return rc;
	/* in_bytes had the lengths of the announcements; now it is for pieces. */
	memset(s->in_bytes, 0, (size_t)run->team.ranks * sizeof(*s->in_bytes));
	s->rc = read_announcements(s, &s->err);
	if (s->rc == 0)
		measure_replicas(s, &mine.growth);
	rc = shf_allgather(&run->team, &mine, s->all, sizeof(mine), err);
	for (int r = 0; rc == 0 && r < run->team.ranks; r++)
		s->most = s->all[r].bytes > s->most ? s->all[r].bytes : s->most;
	return rc;
}

/* Makes room for a replica in its slot. The card that was there is cleared before anything is
 * overwritten (M1). */
static int make_place(const struct shf_replica_transfer *s, struct shf_replica_owner *g,
                      const struct coming *c, struct sheaf_error *err)
{
	struct shf_card_head *h = shf_replica_head(g, c->slot);
	int rc = 0;

	if (h)
		atomic_store(&h->whole, 0);
	g->steps[c->slot] = -1;
	if (c->image_bytes)
		rc = shf_replica_reserve(s->run, g, c->slot, false, c->image_bytes, err);
	return rc == 0 ? shf_replica_reserve(s->run, g, c->slot, true,
	                                     sizeof(struct shf_card_head) + c->body_bytes,
	                                             err) : rc;
}

/* Makes room for the replicas of all guests, after a check that there is memory for what all ranks
 * of the node allocate together. */
static int make_places(struct shf_replica_transfer *s, struct sheaf_error *err)
{
	const struct shf_replicas *g = &s->run->tier->guests;
	int rc = s->rc;

	if (rc < 0)
		*err = s->err;
	s->rc = 0;
	if (rc == 0)
		rc = shf_growth_check(s->all, sizeof(*s->all), s->run->team.ranks,
		                      s->run->place.node, err);
	for (size_t i = 0; i < g->n && rc == 0; i++) {
		if (s->coming[i].image_bytes > s->most)
			return shf_fail(err, SHEAF_EBUG, "rank %d sent a replica of another "
			                "checkpoint",
			                g->of[i].rank);
		rc = make_place(s, &g->of[i], &s->coming[i], err);
	}
	return rc;
}

/* Returns how many bytes of an image of `bytes` bytes are in the piece at offset `at`. */
static size_t piece_bytes(uint64_t bytes, uint64_t at)
{
	return bytes <= at ? 0 : bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
}

/* Exchanges bytes [at, at + PIECE) of all images. With one guest, the common case, its piece is
 * received directly into the replica; the pieces of several guests are received into a buffer and
 * copied. [collective] */
static int exchange_pieces(struct shf_replica_transfer *s, struct sheaf_error *err)
{
	const struct shf_replicas *g = &s->run->tier->guests;
	/* A rank whose image is empty sends 0 bytes, for which any valid address will do. */
	const uint8_t *from = s->bytes ? s->run->image.all[s->image].own.base : s->buf;
	uint8_t *to = s->buf, *p = s->buf;
	int rc;

	s->out_bytes[g->to] = piece_bytes(s->bytes, s->at);
	for (size_t i = 0; i < g->n; i++)
		s->in_bytes[g->of[i].rank] = piece_bytes(s->coming[i].image_bytes, s->at);
	if (g->n == 1 && s->in_bytes[g->of[0].rank])
		to = (uint8_t *)g->of[0].images[s->coming[0].slot].base + s->at;
	rc = shf_alltoallv(s->team, from + (s->out_bytes[g->to] ? s->at : 0), s->out_bytes, to,
	                   s->in_bytes, err);
	for (size_t i = 0; i < g->n && g->n > 1 && rc == 0; i++) {
		size_t n = s->in_bytes[g->of[i].rank];

		if (n)
			memcpy((uint8_t *)g->of[i].images[s->coming[i].slot].base + s->at, p, n);
		p += n;
	}
	return rc;
}

/* Completes the cards of the replicas. The head is copied from this rank's own card of the same
 * step. Other code changes that card first, and then, with the lock held, the cards of replicas
 * (G3). This function holds the lock, so it misses no such change. If the step was cleared
 * meanwhile (`coming` is another step), nothing is stamped. */
static void stamp_replicas(struct shf_replica_transfer *s)
{
	struct shf_memory_tier *t = s->run->tier;
	struct shf_replicas *all = &t->guests;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < all->n && all->coming == s->step; i++) {
		struct shf_card_head *own = shf_card_head(&t->cards[s->image]);
		struct shf_replica_owner *g = &all->of[i];
		const struct coming *c = &s->coming[i];
		struct shf_card_head *h = shf_replica_head(g, c->slot);

		memcpy(h + 1, c->body, (size_t)c->body_bytes);
		h->body_bytes = c->body_bytes;
		atomic_store(&h->base, atomic_load(&own->base));
		atomic_store(&h->next, atomic_load(&own->next));
		atomic_store(&h->from, atomic_load(&own->from));
		atomic_store(&h->due, atomic_load(&own->due));
		atomic_store(&h->tries, 0);
		atomic_store(&h->turn, atomic_load(&own->turn));
		atomic_store_explicit(&h->whole, shf_crc64(c->body, (size_t)c->body_bytes) | 1,
		                      memory_order_seq_cst);
		g->steps[c->slot] = s->step;
	}
	s->stamped = all->coming == s->step;
	all->coming = -1;
	pthread_mutex_unlock(&all->lock);
}

/* A turn of the background thread: sends one piece, and stamps the cards after the last. Returns
 * false at the end, or after a failure. */
static bool send_piece(void *work)
{
	struct shf_replica_transfer *s = work;

	if (s->at < s->most) {
		s->rc = exchange_pieces(s, &s->err);
		s->at += PIECE;
	}
	if (s->rc == 0 && s->at < s->most)
		return true;
	if (s->rc == 0)
		stamp_replicas(s);
	return false;
}

/* Does all that may fail for lack of memory, on all ranks, before the first piece is sent.
 * [collective] */
static int prepare_sending(struct shf_replica_transfer **s, struct sheaf_run *run,
                           const struct shf_replica_step *c, struct sheaf_error *err)
{
	struct shf_team *team = &run->team;
	int rc = shf_agree(team, sending_new(s, run, c, err), err);

	if (rc == 0)
		rc = announce_replica(*s, err);
	if (rc == 0)
		rc = shf_agree(team, make_places(*s, err), err);
	if (rc == 0)
		run->tier->guests.coming = c->step;
	return rc;
}

/* Sends inside the commit. The last agreement is G1: a commit returns only when the replica is
 * complete everywhere. [collective] */
static int send_now(struct sheaf_run *run, const struct shf_replica_step *c,
                    struct sheaf_error *err)
{
	struct shf_replica_transfer *s;
	int rc;

	shf_replicas_stop(run, true); /* ends a replica that is still being sent for a save that had
	                             * more images */
	rc = prepare_sending(&s, run, c, err);
	if (rc == 0) {
		while (send_piece(s))
			;
		rc = s->rc;
		if (rc < 0)
			*err = s->err;
	}
	sending_free(s);
	return rc == 0 ? shf_agree(&run->team, 0, err) : rc;
}

/* ---- in the background ---- */

/* Ends the thread and frees the state of the replica that it has sent. come: that replica is
 * complete on all ranks. */
static void settle_sending(struct sheaf_run *run, bool come)
{
	struct shf_replicas *g = &run->tier->guests;

	shf_background_stop(&g->task);
	/* A step may be dropped after its replica has arrived. */
	if (come && run->tier->steps[g->image] == g->moving->step)
		g->copied = g->image;
	sending_free(g->moving);
	g->moving = NULL;
	g->image = -1;
}

/* Starts to send the replica of this step, if the last one is sent on all ranks. If it is still
 * being sent, this step gets no replica. [collective] */
static int send_behind(struct sheaf_run *run, const struct shf_replica_step *c,
                       struct sheaf_error *err)
{
	struct shf_replicas *g = &run->tier->guests;
	bool over = !shf_background_runs(&g->task);
	uint64_t x[2] = { !over, !(over && g->moving && g->moving->stamped) };
	int rc = over && g->moving ? g->moving->rc : 0;

	if (rc < 0)             /* EFAILED: the loss of the other group must not end this one */
		rc = shf_fail(err, SHEAF_EFAILED, "%s", g->moving->err.msg);
	rc = shf_agree(&run->team, rc, err);
	if (rc == 0)
		rc = shf_allreduce(&run->team, x, 2, SHEAF_MAX, err);
	if (rc < 0 || x[0])
		return rc;      /* the last replica is still being sent */
	settle_sending(run, !x[1]);
	rc = prepare_sending(&g->moving, run, c, err);
	if (rc < 0)
		return rc;
	g->image = c->image;
	if (shf_background_start(&g->task, run->sys, send_piece, g->moving) < 0)
		shf_background_finish(&g->task); /* threads of other ranks wait for this rank */
	return 0;
}

void shf_replicas_stop(struct sheaf_run *run, bool finish)
{
	struct shf_replicas *g = &run->tier->guests;

	if (!g->moving)
		return;
	if (finish && g->wanted)
		shf_background_finish(&g->task);
	settle_sending(run, false);
}

/* After a failure no more replicas are sent. All ranks get the failure in the same call, so
 * `wanted` stays equal on all ranks. [collective] */
int shf_replicas_send(struct sheaf_run *run, const struct shf_replica_step *c,
                      struct sheaf_error *err)
{
	struct shf_replicas *g = &run->tier->guests;
	struct sheaf_error own = { .rank = -1 };
	int rc;

	if (!g->wanted)
		return 0;
	rc = goes_behind(run, c) ? send_behind(run, c, &own) : send_now(run, c, &own);
	if (rc == 0)
		return 0;
	if (rc == SHEAF_ELOST) {
		*err = own;
		return rc;
	}
	g->wanted = false;
	if (run->team.rank == 0)
		shf_log(run, 1, "%s: checkpoints in memory have no second copy from now on: %s, "
		        "rank %d",
		        run->store.path, own.msg, own.rank);
	return 0;
}

/* Unmaps a replica; the agent keeps the memory. */
static void free_replica(const struct sheaf_run *run, struct shf_replica_owner *g, int slot)
{
	const struct shf_sys *sys = run->sys;

	if (g->cards[slot].base)
		shf_sys_shm_free(sys, &g->cards[slot]);
	if (g->images[slot].base)
		shf_sys_shm_free(sys, &g->images[slot]);
	g->cards[slot] = g->images[slot] = (struct shf_shm){ .fd = -1 };
	g->steps[slot] = -1;
}

/* A replica that is being sent is aborted. What agents keep stays with them. */
void shf_replicas_close(struct sheaf_run *run)
{
	struct shf_replicas *g = &run->tier->guests;

	shf_replicas_stop(run, false);
	for (size_t i = 0; i < g->n; i++)
		for (int k = 0; k < SHF_REPLICA_SLOTS; k++)
			free_replica(run, &g->of[i], k);
	shf_free(g->of);
	g->of = NULL;
	g->n = 0;
	if (g->behind.group)
		shf_group_put(g->behind.group);
	g->behind.group = NULL;
	g->wanted = false;
}
