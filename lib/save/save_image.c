/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns images to saves, and chooses which one the next save takes.
 *
 * Invariant: an image belongs to one save at most, the same one on all ranks, until on no rank any
 * byte of that save is left to exchange or to write (I10). */
#include "save_image.h"
#include <inttypes.h>
#include "agent_link.h"
#include "err.h"
#include "memory_tier.h"
#include "save.h"
#include "save_gates.h"
#include "save_status.h"
#include "save_net.h"
#include "save_stage.h"

/* Chooses the image for a new save: one that is not in use; else one that is not in use but has the
 * newest replica's step; else that of the oldest save in flight, which is waited for. *of: the save
 * that still has it, or NULL.
 *
 * The choice depends only on the saves in flight, the newest step in memory and the replicas, so
 * ranks that have these in common choose the same image. */
int shf_save_image_choose(const struct sheaf_run *run, int below, struct sheaf_save **of)
{
	unsigned stay = 0, older = 0, used;

	/* `stay`: the image of the newest step in memory stays until a newer step is complete (M3),
	 * and one whose replica is being sent stays until it is sent. `older`: the image of the
	 * newest replica that was sent is taken only if the save would have to wait otherwise
	 * (G2). */
	if (below > 1) {
		stay = run->tier->newest >= 0 ? 1u << run->tier->newest : 0;
		stay |= shf_replicas_pins(&run->tier->guests, false);
		older = shf_replicas_pins(&run->tier->guests, true);
	}
	*of = NULL;
	used = stay;
	for (const struct sheaf_save *s = run->saves.first; s; s = s->next)
		used |= s->copy.image >= 0 ? 1u << s->copy.image : 0;
	for (int i = 0; i < below; i++)
		if (!((used | older) & 1u << i))
			return i;
	for (int i = 0; i < below; i++)
		if (!(used & 1u << i))
			return i;
	for (struct sheaf_save *s = run->saves.first; s; s = s->next)
		if (s->copy.image >= 0 && s->copy.image < below && !(stay & 1u << s->copy.image)) {
			*of = s;
			return s->copy.image;
		}
	/* Every image must stay, because it has the newest step or its replica is being sent.
	 * Choose the first that does not have the newest step; it is free once its replica was
	 * sent. */
	int other = run->tier->newest == 0 ? 1 : 0;

	for (struct sheaf_save *s = run->saves.first; s; s = s->next)
		if (s->copy.image == other)
			*of = s;
	return other;
}

/* Whether this rank still has something of the save to copy, exchange or write, so that its image
 * is in use. */
static bool is_busy(struct sheaf_save *save)
{
	if (save->id.flags & SHEAF_SAVE_NO_DISK)
		return true;    /* the image is the only copy of the step */
	if (!save->copy.exchanged && (!shf_save_is_async(save) || save->plan->most ||
	                         shf_save_gates_finish(save, 0) == SHEAF_EAGAIN))
		return true;
	if (!save->copy.exchanged && shf_save_rc(save, NULL) == 0 &&
	    shf_save_gates_is_partial(save))
		return true;
	return shf_save_drain(save, 0) == SHEAF_EAGAIN;
}

/* Finishes the copy of a lazy save on all ranks, with the calling threads if need be. If a rank has
 * failed, its failure is recorded on all ranks and no rank copies any more. Returns 0 or ELOST.
 * [collective] */
static int finish_copies(struct sheaf_save *save, struct sheaf_error *err)
{
	bool behind = shf_save_is_async(save) && save->at.copy == SHF_COPYING;
	int rc = behind && save->plan->slotted ? shf_save_gates_finish_all(save, err) : 0;

	if (rc == 0 && behind)
		rc = shf_save_gates_finish(save, -1);
	if (rc < 0)
		(void)shf_save_failure(save, err);
	rc = shf_agree(&save->run->team, rc, err);
	if (rc == 0) {
		save->at.copy = behind ? SHF_COPIED : save->at.copy;
	} else if (rc != SHEAF_ELOST) { /* all ranks know of the failure now, so none uses the image
	                                 * any more */
		shf_save_stick(save, rc, err);
		shf_save_net_drop(save);
	}
	return rc == SHEAF_ELOST ? rc : 0;
}

/* Waits until the save is written on all ranks, so that its image is free. A failure is recorded in
 * the save, and its commit reports it. Returns 0 or ELOST. [collective] */
static int finish_owner(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_error own;
	int rc = shf_save_is_async(save) ? finish_copies(save, &own) : 0;

	if (rc == 0 && !save->copy.exchanged && shf_save_stage(save, &own) < 0) {
		rc = own.code == SHEAF_ELOST ? SHEAF_ELOST : 0;
		shf_save_net_drop(save);
	}
	while (rc == 0 && (rc = shf_save_net_finish(save, 0, &own)) == SHEAF_EAGAIN)
		rc = 0;
	if (rc != SHEAF_ELOST)
		rc = shf_save_drain_together(save, &own);
	if (rc != SHEAF_ELOST)
		return 0;
	if (err)
		*err = own;
	return rc;
}

void shf_save_image_give_up(struct sheaf_save *save)
{
	pthread_mutex_lock(&save->end.write_lock);
	if (save->copy.image >= 0 && save->end.listed)
		atomic_fetch_sub(&save->run->image.busy, 1);
	save->copy.image = -1;
	pthread_mutex_unlock(&save->end.write_lock);
}

bool shf_save_image_is_free(struct sheaf_run *run, int image, struct sheaf_save *of, uint64_t bytes)
{
	const struct shf_image *m = &run->image.all[image];

	return !m->dirty && m->own.bytes >= bytes && !(of && is_busy(of));
}

void shf_save_image_leave(struct sheaf_save *of)
{
	shf_save_net_drop(of);
	shf_save_image_give_up(of);
}

uint64_t shf_saves_hash(const struct sheaf_run *run)
{
	uint64_t n = 0, steps = 0;

	for (const struct sheaf_save *s = run->saves.first; s; s = s->next, n++)
		steps = steps * 31 + (uint64_t)s->id.step;
	return n << 56 | (steps & (UINT64_MAX >> 8));
}

/* What ranks compare when they choose an image: x of this rank; lo and hi: the smallest and the
 * largest of all ranks. */
enum { SAVES, IMAGE, BUSY, NEWEST, CHOICE_WORDS };
struct choice {
	uint64_t x[CHOICE_WORDS], lo[CHOICE_WORDS], hi[CHOICE_WORDS];
};

/* Compares on all ranks the saves in flight, the image chosen, whether the save that has it is
 * still busy, and the newest step in memory. If the saves are equal and the newest steps are not,
 * some ranks have dropped a step that others still have. Such a step is no longer complete, so all
 * ranks go back to the newest step that every rank may have, and choose again, once.
 * [collective] */
static int choose_together(struct sheaf_run *run, int below, struct sheaf_save **of,
                           struct choice *c, struct sheaf_error *err)
{
	for (int tries = 0;; tries++) {
		uint64_t same;
		int rc;

		c->x[SAVES] = shf_saves_hash(run);
		c->x[IMAGE] = (uint64_t)shf_save_image_choose(run, below, of);
		c->x[BUSY] = *of ? is_busy(*of) : 0;
		c->x[NEWEST] = (uint64_t)(shf_memory_tier_newest(run) + 1);
		rc = shf_same(&run->team, 0, c->x, CHOICE_WORDS, &same, c->lo, c->hi, err);
		if (rc < 0 || c->lo[SAVES] != c->hi[SAVES] || c->lo[NEWEST] == c->hi[NEWEST] ||
		    tries)
			return rc;
		shf_memory_tier_newest_until(run, (int64_t)c->lo[NEWEST] - 1);
	}
}

int shf_save_image_take(struct sheaf_run *run, int below, uint64_t flags, int *image,
                        struct sheaf_error *err)
{
	struct sheaf_save *of;
	struct choice c;
	int rc = choose_together(run, below, &of, &c, err);

	if (rc < 0)
		return rc;
	/* If a save was freed on one rank only, the others cannot finish it without that rank. */
	if (c.lo[SAVES] != c.hi[SAVES] || c.lo[IMAGE] != c.hi[IMAGE])
		return shf_fail(err, SHEAF_EINVAL, "ranks have different numbers of saves in "
		                "flight (%" PRIu64 " to %" PRIu64 "); free each save on all ranks",
		                c.lo[SAVES] >> 56, c.hi[SAVES] >> 56);
	if (c.hi[BUSY] && of->id.flags & SHEAF_SAVE_NO_DISK)
		return shf_fail(err, SHEAF_EAGAIN, "no staging buffer is free: step %" PRId64 " is "
		                "in memory and not committed; commit it, or raise "
		                "opts.staging.buffers_max",
		                of->id.step);
	if (c.hi[BUSY] && flags & SHEAF_SAVE_MAY_DROP)
		return shf_fail(err, SHEAF_EAGAIN, "no staging buffer is free: step %" PRId64 " is "
		                "still being written; save less often, or raise "
		                "opts.staging.buffers_max",
		                of->id.step);
	rc = c.hi[BUSY] ? finish_owner(of, err) : 0;
	if (rc < 0)
		return rc;
	if (of)
		shf_save_image_leave(of);
	*image = (int)c.x[IMAGE];
	run->image.all[*image].dirty = false; /* every rank that may have copied into it for an
	                                       * earlier save took part in the agreement above, so
	                                       * no copy is left */
	return 0;
}
