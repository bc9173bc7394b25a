/* SPDX-License-Identifier: Apache-2.0 */
/* Submits the writes of complete segments, and handles finished requests. A thread that has copied
 * the last part of a segment looks for complete segments afterwards, so each is found. */
#include "save_write.h"
#include <stdatomic.h>
#include "err.h"
#include "run_env.h"
#include "run_io.h"
#include "save_status.h"
#include "save_where.h"
#include "unstaged.h"
#include "work.h"

/* The decrement is a release: it makes the copied bytes visible to the thread that reads 0 with
 * acquire in shf_save_write_some and then writes the segment. */
void shf_ctl_count_part(struct shf_ctl *ctl)
{
	atomic_fetch_sub_explicit(&ctl->left, 1, memory_order_release);
}

/* Records the block sums of a complete segment, and submits its write. The caller holds
 * end.write_lock. */
static int write_segment(struct sheaf_save *save, size_t i, struct sheaf_error *err)
{
	const struct shf_seg *g = &save->plan->work.segs[i];
	const struct shf_lt_file *file = &save->plan->layout.files[g->file];
	struct shf_ctl *ctl = shf_save_own_ctl(save, i);
	struct shf_io *io = &save->disk.ios[i];

	for (uint64_t b = g->lo / SHF_BLOCK, k = 0; b * SHF_BLOCK < g->hi; b++, k++)
		save->copy.blocks[save->copy.blocks_n++] = (struct shf_block_sum){
			file->first_block + b,
			atomic_load_explicit(&ctl->parts[k], memory_order_relaxed) };
	if (save->id.flags & SHEAF_SAVE_NO_DISK) { /* memory only: the image is the destination,
	                                            * nothing is written */
		*io = (struct shf_io){ .op = SHF_IO_WRITE };
		return 0;
	}
	*io = (struct shf_io){ .op = SHF_IO_WRITE, .fd = save->disk.fds[g->file],
		.direct = save->disk.directs[g->file],
		.buf = shf_seg_is_unstaged(g) ? shf_unstaged_slot(save, i)
		                              : shf_save_own_image(save) + g->image,
		.len = (size_t)(g->hi - g->lo), .off = g->lo };
	if (atomic_load(&save->took.write_from_ns) == 0)
		atomic_store(&save->took.write_from_ns, shf_now(save->run));
	int rc = shf_io_submit(save->run, &save->disk.io, io);
	if (rc < 0)
		return shf_submit_fail(err, rc, "step %lld: %s: submitting a write",
		                       (long long)save->id.step, file->name);
	return 0;
}

int shf_save_write_unstaged(struct sheaf_save *save, size_t seg, struct sheaf_error *err)
{
	int rc;

	pthread_mutex_lock(&save->end.write_lock);
	rc = write_segment(save, seg, err);
	pthread_mutex_unlock(&save->end.write_lock);
	return rc;
}

/* Whether the write of a segment was submitted. The caller holds end.write_lock. */
static bool is_submitted(const struct sheaf_save *save, size_t i)
{
	return save->disk.ios[i].op != 0;
}

/* Starts at the first segment that is not submitted. Does nothing without a stage, or if the save
 * has released its image. */
int shf_save_write_some(struct sheaf_save *save, size_t most, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&save->plan->work, save->copy.round);
	int rc = shf_save_rc(save, err);

	pthread_mutex_lock(&save->end.write_lock);
	while (save->copy.open_seg < segs.end && is_submitted(save, save->copy.open_seg))
		save->copy.open_seg++;
	most = save->at.disk >= SHF_DISK_STAGED && save->copy.image >= 0 ? most : 0;
	for (size_t i = save->copy.open_seg; i < segs.end && most > 0 && rc == 0; i++, most--)
		if (!is_submitted(save, i) &&
		    atomic_load_explicit(&shf_save_own_ctl(save, i)->left,
		                         memory_order_acquire) == 0)
			rc = write_segment(save, i, err);
	pthread_mutex_unlock(&save->end.write_lock);
	return rc;
}

int shf_save_write_complete(struct sheaf_save *save, struct sheaf_error *err)
{
	return shf_save_write_some(save, SIZE_MAX, err);
}

bool shf_save_write_is_partial(struct sheaf_save *save)
{
	size_t end = shf_work_segs(&save->plan->work, save->copy.round).end, i;

	pthread_mutex_lock(&save->end.write_lock);
	for (i = save->copy.open_seg; i < end && is_submitted(save, i); i++)
		;
	pthread_mutex_unlock(&save->end.write_lock);
	return i < end;
}

int shf_save_write_arrived(struct sheaf_save *save, uint32_t round, struct sheaf_error *err)
{
	struct shf_span segs = shf_work_segs(&save->plan->work, round);
	struct sheaf_error own;
	int rc;

	for (size_t i = segs.first; i < segs.end; i++)
		if (shf_save_waits_for_net(save, &save->plan->work.segs[i]))
			shf_ctl_count_part(shf_save_own_ctl(save, i));
	rc = shf_save_write_complete(save, &own);
	/* All segments must be submitted now. If one is not, something else has changed its
	 * counter: the counters lie in the image, which other processes can write. */
	pthread_mutex_lock(&save->end.write_lock);
	for (size_t i = save->copy.open_seg; i < segs.end && rc == 0; i++)
		if (!is_submitted(save, i))
			rc = shf_fail(&own, SHEAF_ECORRUPT, "step %lld: a segment of %s is "
			              "incomplete: its staging buffer was modified by another "
			              "process", (long long)save->id.step,
			              save->plan->layout.files[save->plan->work.segs[i].file].name);
	pthread_mutex_unlock(&save->end.write_lock);
	if (rc < 0)
		shf_save_stick(save, rc, &own);
	if (rc < 0 && err)
		*err = own;
	return rc;
}

/* Makes the sentence for a request that has failed. */
static int refused(const struct sheaf_save *save, const struct shf_io *io,
                   const struct shf_lt_file *file, struct sheaf_error *err)
{
	int sys = (int)-io->result;

	if (io->op == SHF_IO_RESIZE)
		return shf_stage_fail(err, sys, "step %lld: %s: preallocating %zu bytes",
		                      (long long)save->id.step, file->name, io->len);
	return shf_stage_fail(err, sys, "step %lld: %s: %s", (long long)save->id.step, file->name,
	                      io->op == SHF_IO_FSYNC ? "fsync" : "write");
}

void shf_save_io_done(struct shf_io_owner *owner, struct shf_io *io)
{
	bool sync = io->op == SHF_IO_FSYNC, wrote = io->op == SHF_IO_WRITE;
	size_t at = sync ? offsetof(struct sheaf_save, disk.syncs.io)
	                 : offsetof(struct sheaf_save, disk.io);
	struct sheaf_save *save = (struct sheaf_save *)(void *)((char *)owner - at);
	const struct shf_seg *g = wrote ? &save->plan->work.segs[io - save->disk.ios] : NULL;
	size_t file = wrote ? g->file : (size_t)io->off;
	const struct shf_lt_file *f = &save->plan->layout.files[file];
	struct sheaf_error err;
	int rc = 0;

	if (io->result < 0)
		rc = refused(save, io, f, &err);
	else if (wrote && (uint64_t)io->result != io->len)
		rc = shf_fail(&err, SHEAF_EIO, "step %lld: %s: only %lld of %zu bytes were "
		              "written; check the free space",
		              (long long)save->id.step, f->name, (long long)io->result, io->len);
	if (rc < 0)
		shf_save_stick(save, rc, &err);
	if (!wrote)
		return;
	if (io->done_ns > atomic_load(&save->took.write_to_ns))
		atomic_store(&save->took.write_to_ns, io->done_ns); /* no race: the callback runs
		                                                     * with io.lock held */
	atomic_fetch_add_explicit(&save->took.written, io->len, memory_order_relaxed);
	if (shf_seg_is_unstaged(g))
		shf_unstaged_written(save, (size_t)(io - save->disk.ios));
}
