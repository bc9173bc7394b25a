/* SPDX-License-Identifier: Apache-2.0 */
/* Saves, and the gates of the memory that they read. */
#include "bindstore.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static void add_notes(const struct tr_store *s, struct sheaf_save *save,
		      const struct tr_progress *p)
{
	const uint64_t x[TR_NOTES] = { (uint64_t)p->consumed, (uint64_t)p->tokens, p->seed,
		(uint64_t)p->virtual_dp, (uint64_t)p->adam_step, (uint64_t)p->data_tokens,
		p->data_hash, (uint64_t)p->virtual_tp };
	char text[32];

	/* All ranks add the same notes, because otherwise the commit fails. It also fails if one of
	 * these calls did, so their results are not checked. */
	for (int i = 0; i < TR_NOTES; i++) {
		snprintf(text, sizeof(text), "%" PRIu64, x[i]);
		sheaf_save_note(save, tr_store_keys[i], text, NULL);
	}
	if (*p->isa)
		sheaf_save_note(save, tr_store_isa_key, p->isa, NULL);
	if (p->evaluated) {
		snprintf(text, sizeof(text), "%.17g", p->eval_loss);
		sheaf_save_note(save, tr_store_loss_key, text, NULL);
		if (*s->loss_key)
			sheaf_save_note(save, s->loss_key, text, NULL);
	}
	if (*s->loss_key)
		sheaf_save_note(save, tr_store_best_key, s->loss_key, NULL);
}

/* Returns the code of a save that has failed: ENOSPC if the disk is full for one of the ranks, or
 * files may not become so large, which a person may change while the job runs (prlimit). All
 * ranks have the same code of the library, but not the same errno. */
static int save_failed(struct tr_store *s, struct tr_error *err, const struct sheaf_error *e,
		       int code)
{
	uint64_t full = e->sys == ENOSPC || e->sys == EDQUOT || e->sys == EFBIG;
	int rc;

	if (code != SHEAF_EIO)
		return tr_store_pass(err, e, code);
	rc = tr_allreduce(s->ranks, &full, 1, TR_MAX, err);
	if (rc < 0)
		return rc;
	code = tr_store_pass(err, e, code);
	if (full && err)
		err->code = TR_ENOSPC;
	return full ? TR_ENOSPC : code;
}

int tr_store_begin(struct tr_store *s, enum tr_place to, const struct tr_progress *p,
		   const struct tr_attachment *files, int files_n, struct tr_error *err)
{
	struct sheaf_save_opts opts = { .size = sizeof(opts), .flags = SHEAF_SAVE_LAZY |
		(to == TR_TO_MEMORY ? SHEAF_SAVE_NO_DISK : 0) };
	struct sheaf_save **save = &s->save[to];
	struct sheaf_error e;
	int rc = 0;

	if (*save)
		return tr_fail(err, TR_EBUG, "a save began before the last one was committed");
	rc = sheaf_save_begin(save, s->run, p->step, s->state, &opts, &e);
	if (rc < 0)
		return save_failed(s, err, &e, rc);
	s->save_step[to] = p->step;
	add_notes(s, *save, p);
	for (int i = 0; rc == 0 && i < files_n; i++)
		rc = tr_store_pass(err, &e, sheaf_save_attach(*save, files[i].file,
							      files[i].bytes, files[i].n, &e));
	rc = tr_agree(s->ranks, rc, err);
	/* A file could not be attached, so the save must not be committed. */
	if (rc < 0) {
		sheaf_save_free(*save);
		*save = NULL;
	}
	return rc;
}

static int wait_gate(void *arg, int param, struct tr_error *err)
{
	struct tr_store *s = arg;
	struct sheaf_error e;
	int rc = 0;

	for (int to = 0; to < TR_PLACES; to++) {
		struct sheaf_save *save = s->save[to];

		for (int kind = 0; save && rc == 0 && kind < KINDS; kind++) {
			int slice = s->slice[param * KINDS + kind];

			/* Slices in place are read until they are on the disk, which may take
			 * longer than the ranks wait for each other. */
			do
				rc = slice < 0 ? 0 : sheaf_save_wait_copied(save, slice, -1, &e);
			while (rc == SHEAF_EAGAIN);
			rc = tr_store_pass(err, &e, rc);
		}
		/* A save that has failed does not read the memory any more, so the update goes on.
		 * All ranks learn of the failure when they continue the save. */
		rc = rc == TR_EINVAL || rc == TR_EBUG || rc == TR_ELOST ? rc : 0;
	}
	return rc;
}

struct tr_gate tr_store_gate(struct tr_store *s)
{
	return (struct tr_gate){ wait_gate, s };
}

int tr_store_advance(struct tr_store *s, enum tr_place to, int wait_ms, int64_t *step,
		     struct tr_error *err)
{
	struct sheaf_save **save = &s->save[to];
	struct sheaf_error e;
	int rc;

	*step = 0;
	if (!*save)
		return 0;
	rc = wait_ms ? sheaf_save_commit(*save, wait_ms, &e) : sheaf_save_advance(*save, 0, &e);
	if (rc == SHEAF_EAGAIN)
		return wait_ms ? tr_store_pass(err, &e, rc) : 0;
	if (rc == 0)
		*step = s->save_step[to];
	sheaf_save_free(*save);
	*save = NULL;
	return rc < 0 ? save_failed(s, err, &e, rc) : 0;
}
