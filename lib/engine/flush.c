/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step that a dead job left in agents' memory to disk: opens it in memory, and copies it
 * into its run as a step of another run is copied. The step is chosen without the run's lock, and
 * checked again when the lock is held, because another job may have opened and closed the run
 * meanwhile.
 *
 * The manifest in memory names the parent that the step had when it came to memory. If an older
 * step was in flight to the disk then, and was published since, that one lies between. So the
 * parent is set here, with the lock held: it is the newest step on disk, which the step has just
 * been found to follow (shf_memory_step_follows), as for a save to disk. The manifest is changed in
 * the view alone. It cannot be changed in the card: the card would have to be cleared meanwhile
 * (M1 in image_card.h), and a job that is killed then would lose its newest step. A flush that is
 * killed leaves no manifest but one in a stage, which the next flush writes anew. */
#include "flush.h"
#include <inttypes.h>
#include <string.h>
#include "agent_link.h"
#include "aside.h"
#include "err.h"
#include "flush_nodes.h"
#include "memory_dir_fill.h"
#include "step.h"
#include "step_copy.h"
#include "step_open.h"

/* The state of a flush, and of its search for the step. */
struct flushing {
	struct shf_store *store;
	const struct shf_sys *sys;
	int keep;                       /* connection to the agent */
	bool due;                       /* write only a step whose save was to go to disk */
	bool found, apart;              /* found: `which` is set, a step that is complete here;
	                                 * apart: `part` is set, a step whose rest other nodes
	                                 * have */
	struct shf_memory_step which, part;
	struct shf_memory_step latest;  /* the first step that could be written if all of it is
	                                 * somewhere; ranks 0: none yet */
	struct shf_view *view;          /* borrowed; `which`, while it is copied */
	int rc;
	struct sheaf_error *err;
};

/* Callback of shf_memory_steps_list, for each step in memory: the latest job's first, of each job
 * the newest first. Sets `which` to the first step that can be written and is complete here. If a
 * step that comes before it is here only in part, sets `part` to that step; to write it, other
 * nodes are needed. */
static int consider_for_flush(void *arg, const struct shf_memory_step *r)
{
	struct flushing *f = arg;
	struct shf_newest disk;
	bool whole = r->here == r->ranks;
	/* Of the incomplete steps only the first is written, because another would be out of date
	 * once that is written. */
	bool wanted = (!f->due || r->due) && (whole || !f->apart);

	if (f->found || shf_memory_step_is_passed(f->store, r, &f->latest) ||
	    (f->latest.ranks && !wanted))
		return 0;
	f->rc = shf_memory_step_state(f->store, r, &disk, f->err);
	if (f->rc == SHF_MEMORY_UNWRITTEN && !f->latest.ranks)
		f->latest = *r;
	if (f->rc == SHF_MEMORY_UNWRITTEN && wanted) {
		f->found = whole;
		f->apart = f->apart || !whole;
		*(whole ? &f->which : &f->part) = *r;
	}
	f->rc = f->rc < 0 ? f->rc : 0;
	return f->rc;
}

/* Callback of shf_step_copy_if, with the run's lock held. Checks that the step can still be
 * written, and sets its parent. Then makes later steps of the same job in memory follow it, before
 * it appears on disk: otherwise a restart in between would pass over those steps. */
static int check_still_wanted(void *arg, struct shf_store *dst, struct sheaf_error *err)
{
	struct flushing *f = arg;
	struct shf_newest disk;
	uint64_t rewinds = shf_store_rewinds(dst);
	int rc = shf_memory_step_state(dst, &f->which, &disk, err);

	if (rc == SHF_MEMORY_LOST || rc == SHF_MEMORY_OVERTAKEN)
		rc = shf_fail(err, SHEAF_EBUSY, "step %" PRId64 " in memory: it is not written, "
		              "because a later job has saved meanwhile", f->which.step);
	if (rc >= 0 && !disk.exists)
		rc = shf_memory_step_check_passed(f->sys, f->keep, dst, &f->which, err);
	if (rc >= 0 && !disk.exists) {
		int told = shf_memory_steps_rebase(f->sys, f->keep, dst->run, &f->which,
		                                   shf_card_disk_state(disk.known, disk.session,
		                                                       rewinds),
		                                   shf_card_disk_state(f->which.step,
		                                                       f->which.session, rewinds));

		rc = told < 0 ? shf_fail_sys(err, -told, "sending a request to the agent")
		     : shf_view_set_parent(f->view, disk.known, disk.session, err);
	}
	return rc < 0 ? rc : 0;
}

/* Opens the step in memory and copies it into the run. Takes over the view. */
static int publish_from_memory(struct flushing *f, struct shf_view *view, const char *dir,
                               struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_opts opts = { 0 };
	struct sheaf_checkpoint *step = NULL;
	char name[SHF_STEP_NAME];
	int rc;

	f->view = view;
	/* The store is closed, but still knows how its steps are named. */
	shf_name_of_step(f->store, name, f->which.step);
	rc = shf_step_open_view(&step, view, NULL, NULL, &opts, dir, name, err);
	if (rc == 0)
		rc = shf_step_copy_if(step, dir, check_still_wanted, f, report, err);
	if (rc == 0)
		shf_view_set_written(view);
	shf_step_put(step);
	return rc;
}

/* Writes a step of which this node has only a part (f->part names its job), together with the
 * agents of other nodes. If those do not join within wait_ms, the flush still succeeds if f->which,
 * a step that is complete here, was written before. */
static int flush_with_others(const struct flushing *f, const char *dir, int wait_ms, int64_t *step,
                             struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_flush_request m = { .dir = dir, .sys = f->sys, .keep = f->keep, .due = f->due,
		.step = f->part.step, .wait_ms = wait_ms };
	int64_t newer;
	int rc;

	memcpy(m.job, f->part.job, sizeof(m.job));
	rc = shf_flush_nodes(&m, &newer, report, err);
	if (rc == 0 && newer >= 0)
		*step = newer;
	return rc == SHEAF_EAGAIN && f->found ? 0 : rc;
}

/* The run is opened to choose the step and closed before the copy, which opens it again with the
 * lock. */
int shf_flush_newest(const char *dir, const char *agent, bool due, int wait_ms,
                     const struct shf_sys *sys, int64_t *step, struct sheaf_report *report,
                     struct sheaf_error *err)
{
	struct shf_store store = { .dir = -1, .dot = -1, .stage = -1, .lock = -1 };
	struct flushing f = { .store = &store, .sys = sys, .keep = -1, .due = due, .err = err };
	struct shf_view *view = NULL;
	int rc = shf_store_open(&store, sys, dir, err);

	*step = -1;
	if (rc < 0)
		return rc;
	rc = shf_agent_connect(&store, agent, &f.keep, NULL, err);
	if (rc == 0) {
		int asked = shf_memory_steps_list(sys, f.keep, store.run, consider_for_flush, &f);

		rc = f.rc;
		if (rc == 0 && asked < 0)
			rc = shf_fail_sys(err, -asked, "%s: sending a request to the agent", dir);
	}
	if (rc == 0 && f.found)
		rc = shf_memory_step_open(sys, f.keep, &f.which, &view, err);
	shf_store_close(&store);
	if (rc == 0 && f.found)
		rc = publish_from_memory(&f, view, dir, report, err);
	if (rc == 0 && f.found)
		*step = f.which.step;
	if (rc == 0 && f.apart)
		rc = flush_with_others(&f, dir, wait_ms, step, report, err);
	shf_sys_keep_close(sys, f.keep, true);
	return rc;
}
