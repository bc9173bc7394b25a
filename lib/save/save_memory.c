/* SPDX-License-Identifier: Apache-2.0 */
/* How a save gets into the memory tier: makes the cards of its images, stamps them, and updates in
 * them which step on disk the step follows. */
#include "save_memory.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent_link.h"
#include "aside.h"
#include "crc64.h"
#include "err.h"
#include "image_card.h"
#include "marks.h"
#include "memory_jobs.h"
#include "memory_tier.h"
#include "nodes.h"
#include "opts.h"
#include "replica_send.h"
#include "save.h"
#include "save_gather.h"
#include "save_status.h"
#include "save_record.h"
#include "save_stage.h"
#include "work.h"

/* Names the session of a save that has no stage to name it: the first 16 characters of the job's
 * name, then a hash of the job, its number of saves in memory, and the step. All ranks make the
 * same name, and no other save has it. */
static void name_session(struct sheaf_save *save)
{
	const struct shf_memory_tier *t = save->run->tier;
	char text[80];
	int n = snprintf(text, sizeof(text), "%s:%" PRIu64 ":%" PRId64, t->job, t->commits,
	                 save->id.step);

	if (!save->id.session[0])
		snprintf(save->id.session, sizeof(save->id.session), "%.16s%016" PRIx64, t->job,
		         shf_crc64(text, (size_t)n));
}

/* Adds a small file to a card. The bytes are borrowed. */
static void add_small(struct shf_card *card, const char *name, const void *bytes, size_t n)
{
	card->smalls[card->smalls_n++] = (struct shf_card_small_file){ name, bytes, n };
}

/* Encodes a card without segments that has all small files of the step: manifest, sums, indexes,
 * attached files. [rank 0] */
static int smalls_make(const struct sheaf_save *save, const struct shf_given *given,
                       const struct shf_save_sums_out *sums, struct shf_arena *arena,
                       struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_save_record r = { 0 };
	struct shf_buf text = SHF_BUF_INIT;
	struct shf_card card = { .step = save->id.step, .ranks = 1 };
	int rc = shf_save_record_make(&r, save, given, sums, arena, err);

	if (rc == 0)
		rc = shf_manifest_encode(&text, &r.manifest, err);
	card.smalls = shf_arena_alloc(arena, 2 + given->files_n + r.indexes_n,
	                              sizeof(*card.smalls));
	if (rc == 0 && !card.smalls)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	if (rc == 0) {
		add_small(&card, "sheaf.json", text.data, text.len);
		add_small(&card, "sheaf.sums", sums->table.data, sums->table.len);
		for (size_t i = 0; i < r.indexes_n; i++)
			add_small(&card, r.index_files[i].name, r.indexes[i].data,
			          r.indexes[i].len);
		for (size_t i = 0; i < given->files_n; i++)
			add_small(&card, given->files[i].name, given->data[i],
			          (size_t)given->files[i].bytes);
		memcpy(card.session, save->id.session, sizeof(card.session));
		memcpy(card.run, save->run->store.run, sizeof(card.run));
		shf_card_encode(out, &card);
		if (out->oom)
			rc = shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
	}
	shf_save_record_release(&r);
	shf_buf_release(&text);
	return rc;
}

/* Encodes the body of this rank's card: where its segments lie in its image. smalls: a card made by
 * smalls_make, whose files are included; empty: none. */
static int body_make(const struct sheaf_save *save, const struct shf_buf *smalls,
                     struct shf_buf *body, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_arena arena = { 0 };
	struct shf_card card = { .step = -1 };
	int rc = 0;

	if (smalls->len)
		rc = shf_card_decode_body(&card, &arena, smalls->data, smalls->len);
	card.segs = shf_arena_alloc(&arena, w->segs_n + 1, sizeof(*card.segs));
	if (rc < 0 || !card.segs) {
		shf_arena_release(&arena);
		return shf_fail(err, always(rc != SHEAF_ECORRUPT) ? SHEAF_ENOMEM : SHEAF_EBUG,
		                "step %" PRId64 ": the header of its staging buffer cannot be made",
		                save->id.step);
	}
	for (size_t i = 0; i < w->segs_n; i++)
		card.segs[card.segs_n++] = (struct shf_card_seg){ w->segs[i].file, w->segs[i].lo,
			w->segs[i].hi, w->segs[i].image };
	card.step = save->id.step;
	card.rank = save->run->team.rank;
	card.ranks = save->run->team.ranks;
	card.image_bytes = w->image_bytes;
	memcpy(card.session, save->id.session, sizeof(card.session));
	memcpy(card.run, save->run->store.run, sizeof(card.run));
	shf_card_encode(body, &card);
	rc = body->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for a card") : 0;
	shf_arena_release(&arena);
	return rc;
}

#define CARD_STEP (UINT64_C(64) << 10)  /* the size of a card is a multiple of this */

/* Makes sure that the card of the image has room for a body of that size, with a quarter to spare,
 * so that it seldom must grow. A card that grows is new memory, and is handed to the agent. */
static int card_need(struct sheaf_run *run, int image, size_t body, struct sheaf_error *err)
{
	const struct shf_sys *sys = run->sys;
	struct shf_shm *card = &run->tier->cards[image];
	uint64_t want = (sizeof(struct shf_card_head) + body + body / 4 + CARD_STEP - 1) /
	                CARD_STEP * CARD_STEP;
	int rc;

	if (card->base && card->bytes - sizeof(struct shf_card_head) >= body)
		return 0;
	if (card->base)
		shf_sys_shm_free(sys, card);
	*card = (struct shf_shm){ NULL, 0, -1 };
	rc = shf_sys_shm_new(sys, card, (size_t)want, true);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "allocating the header of a staging buffer");
	shf_card_head(card)->magic = SHF_CARD_MAGIC;
	shf_agent_put(run, image, true);
	return 0;
}

/* Writes this rank's card, and makes it complete by storing `whole` last (M1). Fails if no agent
 * keeps the image. */
static int stamp(struct sheaf_save *save, const struct shf_buf *smalls, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_buf body = SHF_BUF_INIT;
	struct shf_card_head *h;
	uint64_t on = shf_card_disk_state(run->tier->base_step, run->tier->base_session,
	                                  run->tier->rewinds);
	int rc = body_make(save, smalls, &body, err);

	if (rc == 0)
		rc = card_need(run, save->copy.image, body.len, err);
	if (rc == 0 && (run->tier->keep < 0 ||
	                shf_sys_keep_lives(run->sys, run->tier->keep) < 0)) {
		if (run->tier->keep >= 0)
			shf_agent_lost(run, EPIPE, "the connection to the agent");
		rc = shf_fail(err, SHEAF_EFAILED, "step %" PRId64 ": the agent was lost or has no "
		              "memory left for it (sheaf agent --memory-max)", save->id.step);
	}
	if (rc == 0) {
		h = shf_memory_tier_card_head(run->tier, save->copy.image);
		memcpy(h + 1, body.data, body.len);
		h->body_bytes = body.len;
		atomic_store(&h->base, on);
		atomic_store(&h->next, run->tier->coming ? run->tier->coming
		                     : run->tier->doubt ? run->tier->doubt : on);
		atomic_store(&h->from, run->tier->from_step < 0 ? 0
		             : shf_card_disk_state(run->tier->from_step, run->tier->from_session,
		                                   run->tier->rewinds));
		atomic_store(&h->due, !(save->id.flags & SHEAF_SAVE_NO_DISK));
		atomic_store(&h->tries, 0);
		atomic_store(&h->turn, run->tier->turn);
		atomic_store_explicit(&h->whole, shf_crc64(body.data, body.len) | 1,
		                      memory_order_seq_cst);
	}
	shf_buf_release(&body);
	return rc;
}

/* Whether that step is being published now. */
static bool is_coming(const struct sheaf_run *run, int64_t step)
{
	const struct sheaf_save *save = shf_save_publish_current(run);

	return save && save->id.step == step;
}

/* Finds the step on disk that this step in memory follows, for its card. As for a save to disk, a
 * step beside a newer one is refused until a rewind. [rank 0] */
static int find_base(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_memory_tier *t = run->tier;
	struct shf_newest n;
	int rc;

	if (t->based && t->base_step >= save->id.step)
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " is not newer than step "
		                "%" PRId64 " on disk; call sheaf_run_rewind to save after an older "
		                "step", save->id.step, t->base_step);
	if (t->based)
		return 0;
	shf_save_publish_finish(run);
	rc = shf_rewind_is_over(&run->store, err);
	if (rc == 0)
		rc = shf_store_newest(&run->store, save->id.step, &n, err);
	if (rc == 0)
		rc = shf_save_check_parent(save, &n, err);
	if (rc < 0)
		return rc;
	if ((n.exists && !n.is_bad) || n.newest > save->id.step ||
	    (save->id.parent >= 0 && n.newest > save->id.parent && n.newest != save->id.doubtful &&
	     !is_coming(run, n.newest)))
		return shf_fail(err, SHEAF_EINVAL, "step %" PRId64 " in memory would not follow "
		                "step %" PRId64 " in %s; call sheaf_run_rewind to save after an "
		                "older step", save->id.step, n.newest,
		                run->store.path);
	t->base_step = save->id.parent;
	memcpy(t->base_session, save->id.parent_session, sizeof(t->base_session));
	/* A step whose commit ended in doubt is there. Nothing in memory that follows a bad step is
	 * taken, so if the parent has been marked bad, the step follows what is left. */
	rc = save->id.parent < 0 || (n.newest == n.known && n.newest == save->id.doubtful) ? 1 :
	     shf_store_is_bad(&run->store, save->id.parent, save->id.parent_session, err);
	if (rc < 0)
		return rc;
	if (rc) {
		t->base_step = n.known;
		memcpy(t->base_session, n.session, sizeof(t->base_session));
	}
	t->rewinds = shf_store_rewinds(&run->store);
	if (t->rewinds == UINT64_MAX)
		return shf_fail(err, SHEAF_EIO, "%s/.sheaf/rewinds cannot be read",
		                run->store.path);
	return 0;
}

/* Returns the state of the disk (shf_card_disk_state) in which this save's step is the newest.
 * Cards of later steps record by it that they follow this step. */
static uint64_t on_of(const struct sheaf_save *save)
{
	return shf_card_disk_state(save->id.step, save->id.session, save->run->tier->rewinds);
}

struct on_disk {                /* the step on disk that steps in memory follow, as rank 0 found
                                 * it */
	int64_t step;
	char session[33];
	uint64_t rewinds;
	uint64_t smalls;                /* bytes of the small files */
};

/* Rank 0 sends at most this many bytes at once to all nodes together, but not less than PORTION_MIN
 * to each. */
#define SEND_BYTES (UINT64_C(16) << 20)
#define PORTION_MIN (UINT64_C(64) << 10)

/* Sends a portion of the small files from rank 0 to the lowest rank of each other node. If `on` is
 * not NULL, sends *on to all ranks, too. rc: the result of this rank's work so far. *in: what this
 * rank received. [collective] */
static int send_portion(struct sheaf_save *save, int rc, const struct on_disk *on,
                        struct shf_buf portion, struct shf_buf *in, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	const struct shf_nodes *place = &save->run->place;
	size_t ranks = (size_t)team->ranks;
	struct shf_buf *to = shf_zalloc(ranks, sizeof(*to));
	bool *sent = shf_zalloc((size_t)place->nodes_n, sizeof(*sent));

	if (rc == 0 && (!to || !sent))
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
	for (size_t r = 0; rc == 0 && team->rank == 0 && r < ranks; r++) {
		if (on)
			shf_buf_add(&to[r], on, sizeof(*on));
		if (r && !sent[place->nodes[r]]) /* rank 0 has the files itself */
			shf_buf_add(&to[r], portion.data, portion.len);
		sent[place->nodes[r]] = true;
	}
	rc = shf_exchange(team, rc, to, in, NULL, err);
	shf_bufs_free(to, team->ranks);
	shf_free(sent);
	return rc;
}

/* Sends from rank 0 to all ranks which step on disk the step follows: the node of rank 0 may be the
 * one that fails. Sends the small files to the lowest rank of each other node, so that each node
 * has them; in portions, because rank 0 makes a copy for each node. rc: the result of this rank's
 * work so far. *in: what this rank received; in->oom is set if it had no memory for it.
 * [collective] */
static int send_from_zero(struct sheaf_save *save, int rc, const struct shf_buf *smalls,
                          struct shf_buf *in, struct sheaf_error *err)
{
	const struct shf_memory_tier *t = save->run->tier;
	struct on_disk on = { .step = t->base_step, .rewinds = t->rewinds,
		.smalls = smalls->len };
	size_t share = SEND_BYTES / (uint64_t)save->run->place.nodes_n, at = 0;
	size_t most = share > PORTION_MIN ? share : PORTION_MIN;

	memcpy(on.session, t->base_session, sizeof(on.session));
	do {
		struct shf_buf part = SHF_BUF_INIT, mine = SHF_BUF_INIT;

		if (at < smalls->len) {
			mine.data = smalls->data + at;
			mine.len = smalls->len - at < most ? smalls->len - at : most;
		}
		rc = send_portion(save, rc, at ? NULL : &on, mine, at ? &part : in, err);
		if (rc == 0 && at)
			shf_buf_add(in, part.data, part.len);
		else if (rc == 0 && always(in->len >= sizeof(on)))
			memcpy(&on, in->data, sizeof(on));
		shf_buf_release(&part);
		at += most;
	} while (rc == 0 && at < on.smalls);
	return rc;
}

/* Notes which step on disk this one follows, from what rank 0 sent, unless an earlier save has
 * noted it already. before: this save was begun before the last load. Saves begun after that load
 * follow another step, so they must look it up again. */
static int take_base(struct sheaf_save *save, const struct shf_buf *in, bool before,
                     struct sheaf_error *err)
{
	struct shf_memory_tier *t = save->run->tier;
	const struct sheaf_save *coming = shf_save_publish_current(save->run);
	struct on_disk on;

	if (!always(in->len >= sizeof(on)))
		return shf_fail(err, SHEAF_EBUG, "rank 0 did not send which step %" PRId64 " "
		                "follows", save->id.step);
	memcpy(&on, in->data, sizeof(on));
	if (t->based)
		return 0;
	t->base_step = on.step;
	t->rewinds = on.rewinds;
	memcpy(t->base_session, on.session, sizeof(t->base_session));
	t->based = !before;
	t->doubt = 0;           /* rank 0 has just looked at what is on disk */
	t->coming = coming ? on_of(coming) : 0;
	return 0;
}

/* Whether the step in that image was abandoned before the save began, because this handle had
 * loaded an older step. */
static bool was_left(const struct shf_memory_tier *t, int image, const struct sheaf_save *save)
{
	return t->left[image] && t->left[image] <= save->id.loads;
}

/* How far a save has come. */
enum reached { STAMPED, KEPT, PUBLISHED };

/* Clears the cards of steps that were abandoned in memory before the save began. When the save is
 * only stamped, it may still fail and go from memory, so the older ones stay until it is KEPT or
 * PUBLISHED: one of them may be the newest that was acknowledged. Those that are not older go at
 * once, because they would be found before it.
 * If the save is published, also clears a step that is on disk and not older than the save: it must
 * be damaged or have been in doubt, or the save would have been refused. Until then memory may have
 * all there is of it. */
static void forget_left(struct sheaf_save *save, enum reached reached)
{
	struct shf_memory_tier *t = save->run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		bool newer = t->steps[i] >= save->id.step;

		if ((was_left(t, i, save) && (newer || reached != STAMPED)) ||
		    (reached == PUBLISHED && t->on_disk[i] && newer))
			shf_memory_tier_card_clear(t, i);
	}
	if (t->newest >= 0 && t->steps[t->newest] < 0)
		t->newest = -1;
}

/* Stamps this rank's card. smalls: the small files on rank 0; in: what rank 0 sent to this rank. */
static int stamp_with(struct sheaf_save *save, const struct shf_buf *smalls,
                      const struct shf_buf *in, bool before, struct sheaf_error *err)
{
	struct shf_buf mine = *smalls;
	int rc = take_base(save, in, before, err);

	if (rc == 0 && in->oom)
		rc = shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
	if (rc == 0 && save->run->team.rank) {
		mine.data = in->data + sizeof(struct on_disk);
		mine.len = in->len - sizeof(struct on_disk);
	}
	return rc == 0 ? stamp(save, &mine, err) : rc;
}

int shf_save_memory_stamp(struct sheaf_save *save, int *stamped, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	struct shf_save_publish *p = &save->publishing;
	struct shf_buf smalls = SHF_BUF_INIT, in = SHF_BUF_INIT;
	bool before = save->id.loads != save->run->lineage.loads;
	int rc;

	name_session(save);
	if (before)
		save->run->tier->based = false;
	rc = team->rank ? 0 : find_base(save, err);
	if (rc == 0)
		rc = shf_save_failure(save, err);
	rc = shf_save_gather(save, rc, true, err);
	if (rc < 0)
		return rc;
	if (team->rank == 0) {
		rc = p->rc;
		if (rc < 0)
			*err = p->err;
		else
			rc = smalls_make(save, &p->given, &p->sums, &p->arena, &smalls, err);
	}
	rc = send_from_zero(save, rc, &smalls, &in, err);
	if (rc == 0)
		*stamped = stamp_with(save, &smalls, &in, before, err);
	shf_buf_release(&smalls);
	shf_buf_release(&in);
	return rc;
}

/* Sends the replica of this rank's image to the next node, if replicas are wanted. [collective] */
static int copy_to_neighbour(struct sheaf_save *save, struct sheaf_error *err)
{
	const struct shf_work *w = &save->plan->work;
	struct shf_replica_step c = { save->id.step, save->copy.image, shf_save_images(save),
		w->segs_n ? w->image_bytes : 0 };

	return shf_replicas_send(save->run, &c, err);
}

int shf_save_memory_stamp_end(struct sheaf_save *save, int rc, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_memory_tier *t = run->tier;

	if (rc == 0) {
		/* Cards are cleared here and not earlier, because a save that is refused must not
		 * remove steps from memory; and not later, because replicas are cleared by step
		 * number, and an abandoned step may have the same number as this one. */
		forget_left(save, save->id.flags & SHEAF_SAVE_NO_DISK ? KEPT : STAMPED);
		rc = copy_to_neighbour(save, err);
	}
	if (rc == SHEAF_ELOST)  /* other ranks may have found the step complete, so this rank keeps
	                         * its part (M2) */
		return rc;
	if (rc < 0) {
		shf_memory_tier_card_clear(t, save->copy.image);
		return rc;
	}
	t->commits++;
	t->said = false;
	t->steps[save->copy.image] = save->id.step;
	t->left[save->copy.image] = save->id.loads < t->went_back ? t->went_back : 0;
	save->copy.card = save->copy.image;
	/* A save to disk keeps its image until it ends, and may still be abandoned. A memory-only
	 * save is complete now. */
	if (save->id.flags & SHEAF_SAVE_NO_DISK) {
		shf_memory_tier_set_newest(t, save->copy.image);
		if (shf_replicas_have_some(&t->guests))
			shf_memory_jobs_drop_others(run);
	}
	return 0;
}

/* Whether the card that this save stamped still belongs to its step. */
static bool has_card(const struct sheaf_save *save)
{
	return save->copy.card >= 0 && save->run->tier->steps[save->copy.card] == save->id.step;
}

bool shf_save_memory_is_here(const struct sheaf_save *save)
{
	const struct sheaf_run *run = save->run;
	const struct shf_memory_tier *t = run->tier;

	return save->at.memory == SHF_MEMORY_KEPT && has_card(save) && t->keep >= 0 &&
	       shf_sys_keep_lives(run->sys, t->keep) >= 0;
}

bool shf_save_memory_is_whole(struct sheaf_save *save)
{
	uint64_t gone = !shf_save_memory_is_here(save);
	struct sheaf_error err;

	return shf_allreduce(&save->run->team, &gone, 1, SHEAF_MAX, &err) == 0 && !gone;
}

void shf_save_memory_remove(struct sheaf_save *save)
{
	if (has_card(save))
		shf_memory_tier_card_clear(save->run->tier, save->copy.card);
	save->copy.card = -1;
	if (save->at.disk >= SHF_DISK_PUBLISHING)
		save->run->tier->coming = 0;
}

void shf_save_memory_abandon(struct sheaf_save *save)
{
	/* A failure on the way to the disk does not remove the step from memory, where it is
	 * complete. */
	if (save->at.memory != SHF_MEMORY_KEPT || atomic_load(&save->end.failed))
		shf_save_memory_remove(save);
	else if (has_card(save)) {
		forget_left(save, KEPT);
		shf_memory_tier_set_newest(save->run->tier, save->copy.card);
	}
}

/* Writes into the cards of all later steps in memory that the state of the disk which they follow
 * is `on`: certainly if the step is published, else possibly. Steps that were abandoned before the
 * save began are left out, because they follow an older step. */
static void follow(const struct sheaf_save *save, uint64_t on, bool published)
{
	struct shf_memory_tier *t = save->run->tier;

	for (int i = 0; i < SHF_IMAGES_MAX; i++) {
		struct shf_card_head *h = t->steps[i] > save->id.step
		                          ? shf_memory_tier_card_head(t, i) : NULL;

		if (!h || was_left(t, i, save))
			continue;
		atomic_store(published ? &h->base : &h->next, on);
		shf_replicas_follow(&t->guests, t->steps[i], on, published);
	}
}

/* Ends the doubt about an earlier publication. Rank 0 found out whether that step is on disk when
 * it made the stage of this save, and sends the answer to all ranks. [collective] */
static int end_doubt(struct sheaf_save *save, struct sheaf_error *err)
{
	struct sheaf_run *run = save->run;
	struct shf_memory_tier *t = run->tier;
	struct on_disk on = { .step = save->id.parent };
	int rc;

	memcpy(on.session, save->id.parent_session, sizeof(on.session));
	rc = shf_bcast(&run->team, 0, &on, sizeof(on), err);
	if (rc < 0 || !t->based || !t->doubt)
		return rc;
	if (on.step >= 0) {
		t->base_step = on.step;
		memcpy(t->base_session, on.session, sizeof(t->base_session));
		follow(save, shf_card_disk_state(on.step, on.session, t->rewinds), true);
	}
	t->doubt = 0;
	return 0;
}

int shf_save_memory_publishing(struct sheaf_save *save, bool doubt, struct sheaf_error *err)
{
	struct shf_memory_tier *t = save->run->tier;
	int rc = doubt ? end_doubt(save, err) : 0;

	if (rc < 0)
		return rc;
	t->coming = on_of(save);
	follow(save, t->coming, false);
	return 0;
}

void shf_save_memory_doubt(struct sheaf_save *save)
{
	struct shf_memory_tier *t = save->run->tier;

	t->doubt = on_of(save);
	t->coming = 0;
	/* Its copy in memory may be all there is of the step, so later saves take other images
	 * first. */
	if (save->at.memory == SHF_MEMORY_KEPT && has_card(save)) {
		t->on_disk[save->copy.card] = true;
		shf_memory_tier_set_newest(t, save->copy.card);
	}
}

/* Sends to the agents the directory of the run, because it may have been renamed while the job
 * runs. Rank 0 also sends the step to its agent. */
static void send_path_to_agents(struct sheaf_run *run, int64_t step)
{
	const struct shf_sys *sys = run->sys;
	struct shf_memory_tier *t = run->tier;
	char text[32];
	int rc = 0;

	if (t->keep >= 0 && run->place.node_first == run->team.rank)
		rc = shf_sys_keep_at(sys, t->keep, run->store.dir);
	snprintf(text, sizeof(text), "%" PRId64, step);
	if (rc >= 0 && t->keep >= 0 && run->team.rank == 0)
		rc = shf_sys_keep_message(sys, t->keep, text);
	if (rc < 0)
		shf_agent_lost(run, -rc, "sending a message to the agent");
}

void shf_save_memory_published(struct sheaf_save *save)
{
	struct sheaf_run *run = save->run;
	struct shf_memory_tier *t = run->tier;
	uint64_t on = on_of(save);

	if (!t->wanted)
		return;
	t->doubt = t->coming = 0;
	t->base_step = save->id.step;
	t->from_step = -1;
	memcpy(t->base_session, save->id.session, sizeof(t->base_session));
	forget_left(save, PUBLISHED);
	follow(save, on, true);
	if (has_card(save)) {
		atomic_store(&shf_memory_tier_card_head(t, save->copy.card)->due, 0);
		shf_replicas_written(&t->guests, save->id.step);
		t->on_disk[save->copy.card] = true;
		shf_memory_tier_set_newest(t, save->copy.card);
	}
	if (t->keep < 0 && !t->alone) { /* the agent may have refused for lack of room; memory of
	                                 * earlier jobs is freed now */
		(void)shf_agent_reconnect(run, NULL);
		shf_memory_jobs_drop_others(run);
		shf_agent_put_all(run);
	}
	shf_memory_jobs_drop_others(run);
	send_path_to_agents(run, save->id.step);
}
