/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf-admin.h - administration of a run: list its checkpoints, clean up after dead jobs, delete
 * old checkpoints, mark checkpoints, rewind, copy a checkpoint to another run, export and import
 * checkpoints.
 *
 * The rules at the head of sheaf.h apply to these calls, too. These words are used below:
 *
 * Number     The step number of a checkpoint. At most one checkpoint of a run has it.
 * Session    A string of hexadecimal digits that is new for each save. It distinguishes two
 *            checkpoints that were saved under the same number.
 * Parent     The checkpoint that the training had loaded or saved before it saved this one. A
 *            checkpoint descends from its parent and from the ancestors of its parent.
 * Stage      The directory .sheaf/stage of a run. A save is written there, and the commit
 *            publishes it: it renames the finished directory to its place in the run.
 * Set aside  Moved to .sheaf/aside. Such a checkpoint is complete, but no call finds it under its
 *            number any more. It stays until sheaf_run_restore or sheaf_run_discard.
 * Lock       A run that is open for writing is locked against other writers.
 */
#ifndef SHEAF_ADMIN_H
#define SHEAF_ADMIN_H
#include "sheaf.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* The mark of a checkpoint, as sheaf_run_mark sets it. */
enum sheaf_mark {
	SHEAF_MARK_NONE = 0,            /* no mark */
	SHEAF_MARK_KEEP = 1,            /* pruning never removes the checkpoint */
	SHEAF_MARK_BAD = 2,             /* SHEAF_LATEST skips the checkpoint */
	SHEAF_MARK_UNREAD = 3           /* in lists only: the mark could not be read */
};
/* Returns the name of a mark, such as "keep" for SHEAF_MARK_KEEP, or NULL if there is no such
 * mark. The string is static. [any thread] */
const char *sheaf_mark_name(int32_t mark);

/* What an entry of sheaf_run_list is. */
enum sheaf_item_state {
	SHEAF_ITEM_COMMITTED = 1,       /* a checkpoint */
	SHEAF_ITEM_DAMAGED = 2,         /* a checkpoint whose manifest (sheaf.json) is damaged or
	                                 * missing, or with files that are missing or have another
	                                 * size */
	SHEAF_ITEM_FOREIGN = 3,         /* a directory with the name of a checkpoint that another
	                                 * program wrote: not empty, with neither sheaf.json nor
	                                 * sheaf.sums */
	SHEAF_ITEM_ASIDE = 4,           /* a checkpoint that was set aside */
	SHEAF_ITEM_STAGED = 5,          /* a save in the stage that was not committed */
	SHEAF_ITEM_UNREAD = 6           /* unknown, because of an I/O error */
};
/* Returns the name of a state, such as "committed" for SHEAF_ITEM_COMMITTED, or NULL if there is
 * no such state. The string is static. [any thread] */
const char *sheaf_item_state_name(int32_t state);

/* One entry of sheaf_run_list. Strings are valid during the callback only. */
struct sheaf_item {
	uint32_t size;                  /* sizeof(struct sheaf_item) of the library */
	int32_t mark;                   /* enum sheaf_mark */
	int32_t state;                  /* enum sheaf_item_state */
	int32_t tries;                  /* failed resume attempts: jobs that loaded the checkpoint
	                                 * and got no further; -1: unreadable */
	int64_t step;                   /* its number */
	int64_t parent;                 /* number of its parent; -1: none */
	const char *session;            /* its session; "": unknown */
	const char *created;            /* when it was saved, as 2026-01-31T12:00:00Z; "":
	                                 * unknown */
	const char *path;               /* its path relative to the run; "": unknown */
	uint64_t bytes;                 /* total size of all files that its manifest names */
};
/* Lists everything in a run, in order of step numbers: checkpoints, damaged and foreign
 * directories, checkpoints that were set aside, and saves in the stage.
 * item    called for each entry. A result other than 0 ends the list, and the call returns it.
 * arg     passed to item.
 * Returns 0 or an error code. [local] */
int  sheaf_run_list(struct sheaf_run *run, int (*item)(void *arg, const struct sheaf_item *),
                    void *arg, struct sheaf_error *err);
/* Writes the path of a checkpoint's directory to a buffer, whether or not the checkpoint exists.
 * The path is the directory of the run as it was opened, a slash, and a name as sheaf_opts.folder
 * says.
 * step    number of the checkpoint.
 * path    receives the path as a string.
 * bytes   size of that buffer.
 * EINVAL: run is NULL, the number is negative, or the buffer is too small.
 * [local] */
int  sheaf_run_path(struct sheaf_run *run, int64_t step, char *path, size_t bytes,
                    struct sheaf_error *err);

/* The kinds of leftovers that sheaf_run_leftovers lists. */
enum sheaf_leftover_kind {
	SHEAF_LEFTOVER_LOCK = 1,        /* the lock of the run, and which process holds or held
	                                 * it */
	SHEAF_LEFTOVER_DAMAGED = 2,     /* a damaged checkpoint */
	SHEAF_LEFTOVER_UNREAD = 3,      /* a directory that could not be read: I/O error */
	SHEAF_LEFTOVER_REMAINS = 4,     /* what is left of a checkpoint, which sheaf_run_list calls
	                                 * damaged: a directory that is empty, or that has
	                                 * sheaf.sums but no sheaf.json, as after an interrupted
	                                 * rm -r */
	SHEAF_LEFTOVER_STAGED = 5,      /* a save in the stage that was not committed */
	SHEAF_LEFTOVER_COPY = 6,        /* an incomplete copy or import, made by
	                                 * sheaf_checkpoint_copy or sheaf_checkpoint_import */
	SHEAF_LEFTOVER_ASIDE = 7,       /* a checkpoint that was set aside */
	SHEAF_LEFTOVER_TRASH = 8,       /* a pruned checkpoint that is not deleted yet */
	SHEAF_LEFTOVER_REWIND = 9,      /* the journal of a rewind that was interrupted */
	SHEAF_LEFTOVER_FLUSH = 10       /* working files of a sheaf_agent_flush by several nodes
	                                 * (sheaf-agent.h) */
};
/* Returns the name of a kind, such as "staged" for SHEAF_LEFTOVER_STAGED, or NULL if there is no
 * such kind. The string is static. [any thread] */
const char *sheaf_leftover_kind_name(int32_t kind);

/* What the next sheaf_run_open for writing does with a leftover. */
enum sheaf_leftover_action {
	SHEAF_ACTION_NONE = 0,          /* nothing needs to be done */
	SHEAF_ACTION_DELETE = 1,        /* it deletes the leftover */
	SHEAF_ACTION_FINISH = 2,        /* it completes the interrupted operation */
	SHEAF_ACTION_WAIT = 3,          /* nothing yet: the leftover may still be in use */
	SHEAF_ACTION_DECIDE = 4         /* nothing, ever: a person must decide */
};
/* Returns the name of an action, such as "delete" for SHEAF_ACTION_DELETE, or NULL if there is no
 * such action. The string is static. [any thread] */
const char *sheaf_leftover_action_name(int32_t action);

/* One entry of sheaf_run_leftovers. Strings are valid during the callback only. */
struct sheaf_leftover {
	uint32_t size;                  /* sizeof(struct sheaf_leftover) of the library */
	int32_t lives;                  /* the process that wrote it: 0: certainly dead; 1: alive,
	                                 * or possibly alive; -1: none */
	int32_t kind;                   /* enum sheaf_leftover_kind */
	int32_t action;                 /* enum sheaf_leftover_action */
	int64_t step;                   /* number of the checkpoint; -1: belongs to none */
	uint64_t bytes;                 /* total size of the files its manifest names; 0: unknown */
	const char *path;               /* path relative to the run; "": unknown */
	const char *session;            /* session of the save; "": unknown */
	const char *why;                /* human-readable explanation, one line */
	int32_t whole;                  /* of a staged save: 1 if its manifest is correct and all
	                                 * files are there with the right sizes */
	int32_t reserved;
};
/* Lists what needs attention in a run: what dead jobs, interrupted operations and removals by hand
 * have left, the lock first. Nothing is changed. Open the run with SHEAF_RUN_READONLY for it,
 * because an open for writing has cleaned up already. To find out which processes are alive, the
 * call tries to take locks, and releases them at once.
 * item    called for each leftover. A result other than 0 ends the list, and the call returns it.
 * arg     passed to item.
 * Returns 0 or an error code. [local] */
int  sheaf_run_leftovers(struct sheaf_run *run,
                         int (*item)(void *arg, const struct sheaf_leftover *),
                         void *arg, struct sheaf_error *err);
/* Publishes a complete save that a dead job left in the stage. The next sheaf_run_open for writing
 * would delete it, because the commit may have reported a failure to that job. So a person must
 * decide to publish it. The call takes the lock of the run, verifies every byte, and publishes the
 * save as a commit does.
 * dir     directory of the run.
 * step    number of the save.
 * opts    as for sheaf_run_open; NULL: defaults.
 * report  receives what verification found; may be NULL.
 * ENOENT: the stage has no save of that number.
 * EBUSY: the job that wrote the save may be alive, or a process has the run open for writing.
 * ECORRUPT: the save is not complete; report->finding is called with the reasons.
 * EEXIST: the run already has a checkpoint of that number.
 * [local] */
int  sheaf_run_salvage(const char *dir, int64_t step, const struct sheaf_opts *opts,
                       struct sheaf_report *report, struct sheaf_error *err);

/* Sets all checkpoints after `step` aside, so that training can continue from that one. A job that
 * goes back calls it, and then loads that checkpoint. Without it the next save is EINVAL if the
 * loaded checkpoint is older than the newest one on disk that is not marked bad. A load of
 * SHEAF_LATEST needs no rewind. To go back to the newest checkpoint on disk, past newer ones that
 * are in memory only (sheaf-agent.h), no rewind is needed: open it by its number. SHEAF_LATEST
 * finds those in memory until the next checkpoint exists.
 * step    number of the checkpoint to continue from.
 * EINVAL: the checkpoint is marked bad, so no job would resume from it. Set SHEAF_MARK_NONE first.
 * Returns 0 or an error code. [collective] */
int  sheaf_run_rewind(struct sheaf_run *run, int64_t step, struct sheaf_error *err);
/* Moves a checkpoint that was set aside back to its place, for example to undo a rewind. The call
 * holds the lock of the run meanwhile. The checkpoint gets back the mark that it had. If that is
 * not SHEAF_MARK_BAD and no checkpoint is newer, SHEAF_LATEST means this one from then on.
 *
 * A job must not continue from a branch of the training that nobody chose. So the call is refused
 * unless one of these is true:
 * - The newest checkpoint that is not marked bad is the parent of this one. If several checkpoints
 *   were set aside, restore the oldest first.
 * - A checkpoint of the run has this one as its parent.
 * - The run has no checkpoint.
 * - All checkpoints of the run are marked bad, and the parent of this one is not among them.
 *
 * The manifest and the sizes of the files are checked. The bytes are not: call
 * sheaf_checkpoint_verify for that. After a power loss the checkpoint is complete in one of the two
 * places.
 * dir     directory of the run.
 * aside   path of the checkpoint: sheaf_item.path of an item whose state is SHEAF_ITEM_ASIDE.
 * opts    as for sheaf_run_open; NULL: defaults.
 * ENOENT: there is no checkpoint of that path.
 * EEXIST: its number is taken; sheaf_run_rewind frees the number.
 * EINVAL: refused as above; the message names the two checkpoints.
 * ECORRUPT: the checkpoint is damaged.
 * EBUSY: a job has the run open for writing.
 * EINDOUBT: the checkpoint is back, but a power loss may set it aside again.
 * [local] */
int  sheaf_run_restore(const char *dir, const char *aside, const struct sheaf_opts *opts,
                       struct sheaf_error *err);
/* Deletes a checkpoint that was set aside, for good. If the call is interrupted, part of the
 * checkpoint without a manifest remains in .sheaf/aside; another call deletes that part.
 * dir     directory of the run.
 * aside   path of the checkpoint: sheaf_item.path of an item whose state is SHEAF_ITEM_ASIDE.
 * opts    as for sheaf_run_open; NULL: defaults.
 * ENOENT: there is no checkpoint of that path.
 * EBUSY: a job has the run open for writing, or a process has the checkpoint open.
 * [local] */
int  sheaf_run_discard(const char *dir, const char *aside, const struct sheaf_opts *opts,
                       struct sheaf_error *err);
/* Sets the mark of a checkpoint, in place of the mark that it had.
 * step    number of the checkpoint.
 * mark    one of these:
 * - SHEAF_MARK_KEEP: pruning never removes the checkpoint.
 * - SHEAF_MARK_BAD: SHEAF_LATEST skips the checkpoint, and also a checkpoint that descends from it
 *   and is in memory only. Its number is free: a save of that number sets it aside.
 * - SHEAF_MARK_NONE: removes the mark, and resets the count of failed resume attempts to 0.
 *
 * Returns 0 or an error code. [collective] */
int  sheaf_run_mark(struct sheaf_run *run, int64_t step, int32_t mark, struct sheaf_error *err);

/* What sheaf_run_prune does with a checkpoint. */
enum sheaf_prune_action {
	SHEAF_PRUNE_KEEP = 1,           /* the checkpoint stays */
	SHEAF_PRUNE_REMOVE = 2          /* the checkpoint is removed */
};
/* Returns the name of an action, "keep" or "remove", or NULL if there is no such action. The string
 * is static. [any thread] */
const char *sheaf_prune_action_name(int32_t action);
/* Removes old checkpoints by the retention options of the run (sheaf_opts.retention; struct
 * sheaf_retention is in sheaf-opts.h). A checkpoint is removed only if a newer one descends from it
 * and is verified. Its line of descent must be known: each checkpoint between the two is in the run
 * or was pruned. If one was removed by hand, or never copied to this run, all older ones stay, and
 * their reason names the missing one.
 *
 * The newest checkpoint is verified first, unless that was done since its commit. For this its data
 * is dropped from the page cache and read from the disk again. Files that other programs have put
 * into its directory do not count.
 *
 * Removed checkpoints are moved to .sheaf/trash and deleted after sheaf_retention.grace_s. A call
 * spends at most a quarter of sheaf_opts.timeout_ms on deleting. The next prune, commit or open
 * deletes the rest.
 * dry     not 0: removes nothing, but reports what would be removed.
 * item    called on rank 0 for each checkpoint; may be NULL. action: enum sheaf_prune_action; why:
 *         the reason, one line.
 * arg     passed to item.
 * Returns how many checkpoints were removed (dry: would be removed), or an error code.
 * [collective] */
int  sheaf_run_prune(struct sheaf_run *run, int dry,
                     void (*item)(void *arg, int64_t step, int32_t action, const char *why),
                     void *arg, struct sheaf_error *err);

/* Copies a checkpoint to another run, under the same number, and verifies it on the way. This
 * process does all the work alone. Each block is compared with its checksum and each tensor with
 * its digest. The manifest is copied byte for byte, and the copy is published by the same steps as
 * a save. The call holds the lock of the destination. A copy that was interrupted is continued by
 * the next call.
 * checkpoint  the checkpoint to copy.
 * dir         directory of the destination run, which is created if need be, with the same run id
 *             as the source.
 * report      receives what was found; report->held is the number of bytes written. May be NULL.
 * 0: The destination has the checkpoint, durable, with every byte verified now. If it had the same
 *    save already, that one was verified instead; files that other programs have put into its
 *    directory do not count.
 * ECORRUPT: this checkpoint is damaged, or the same one in the destination is. Nothing is
 *    published.
 * EEXIST: another save has this number in the destination.
 * EFORMAT: the checkpoint was written by another program and has no manifest.
 * EBUSY: a process has the destination open for writing.
 * EINDOUBT: as for sheaf_save_commit.
 * EINVAL: the run at dir has another run id, or several ranks opened this checkpoint together.
 * [local] */
int  sheaf_checkpoint_copy(struct sheaf_checkpoint *checkpoint, const char *dir,
                           struct sheaf_report *report, struct sheaf_error *err);

/* How sheaf_checkpoint_export writes. 0 in a field is its default. */
struct sheaf_export {
	uint32_t size;
	int32_t dtype;                  /* enum sheaf_dtype: tensors of floating-point numbers are
	                                 * converted to this type; 0: they keep theirs */
	const char *family;             /* the family to write; NULL: "model" */
	const char *prefix;             /* only tensors whose names begin with this are written, and
	                                 * it is removed from the names; NULL: all tensors. If only
	                                 * a second (tied) name of a tensor begins with it, the
	                                 * tensor is written under that name. Each family that is
	                                 * written must have such a tensor. Files in which
	                                 * sheaf.Checkpointer of Python names tensors are then left
	                                 * out */
	uint64_t file_bytes_max;        /* largest size of a file with several tensors; 0: 5 GB. A
	                                 * tensor is never divided among files */
	uint64_t memory_bytes;          /* limit of the memory for buffers, which determines the
	                                 * number of threads; 0: 256 MiB. A thread needs 10 MiB */
	/* Called on the thread of the caller, every few MiB; may be NULL. `total` counts each byte
	 * twice, because all bytes are read back. If the function returns non-zero, the export ends
	 * with EFAILED. */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;                      /* passed to progress */
	/* What is written; NULL: "hf". For "paddle", "paddle-uc", "paddle-fc" and "sharding-io"
	 * Paddle must support the types.
	 * - "hf": a directory that Hugging Face software opens: model.safetensors, or several files
	 *   and an index, and the attached files. If another program wrote the checkpoint,
	 *   config.json, the tokenizer and similar files are copied from its directory.
	 * - "torch": one file that torch.load(weights_only=True) opens, with the dictionary of a
	 *   model's state. file_bytes_max must be 0.
	 * - "dcp": a directory that torch.distributed.checkpoint loads, with the same
	 *   dictionary.
	 * - "npz": one file that numpy.load opens. file_bytes_max must be 0.
	 * - "paddle": one file that paddle.load opens, with the dictionary of a model's state.
	 *   file_bytes_max must be 0.
	 * - "paddle-uc": a unified checkpoint of PaddleNLP and PaddleFormers: a directory with
	 *   safetensors files and an index for each family, and what "hf" copies. Names and shapes
	 *   stay as they are; sheaf_checkpoint_map gives those of Paddle.
	 * - "paddle-fc": a flex checkpoint that paddle.distributed.load_state_dict loads, and what
	 *   "hf" copies. With all_families it has the folders and the names that the trainer of
	 *   PaddleFormers has for the model, the optimizer, master weights and averages (model,
	 *   optimizer, master_weights and ema), and there must be no other family.
	 * - "sharding-io": a directory that the trainers of PaddleNLP and PaddleFormers load with
	 *   load_sharded_model on any number of ranks that share the optimizer, and what "hf"
	 *   copies. all_families must not be 0: families "model", "master_weights", "optimizer" and
	 *   "ema" are written, and others are refused. There must be moments of AdamW.
	 *   file_bytes_max limits what a rank has.
	 * - "deepspeed-universal": a directory that DeepSpeed resumes from with load_universal,
	 *   with any stage of ZeRO on any number of ranks. all_families must not be 0: families
	 *   "model", "master_weights" and "optimizer" are written, and others are not. Weights that
	 *   are not F32 must have masters, and there must be moments of AdamW. file_bytes_max must
	 *   be 0.
	 * - "gguf": one file for llama.cpp, of the types F32, F16 and BF16; norms and biases become
	 *   F32. Its metadata come from config.json and the tokenizer, which are attached to the
	 *   checkpoint or lie beside it. The tensors must have the names of llama.cpp, as
	 *   sheaf_checkpoint_map gives them with the map llama-hf-gguf, qwen2-hf-gguf or
	 *   qwen3-hf-gguf. file_bytes_max must be 0.
	 * - "megatron": a directory of Megatron-LM with one checkpoint of Megatron-Core in
	 *   torch_dist, in the folder iter_<number of the step>, or release without one.
	 *   Families "model", "master_weights" and "optimizer" get the names that Megatron-Core has
	 *   for them; others are refused.
	 * What "hf" copies is also copied by "dcp", "deepspeed-universal" and "megatron". */
	const char *format;
	int32_t all_families;           /* not 0: all families that the format can have are written:
	                                 * each as a dictionary of its own under its name, or as
	                                 * said above. family must be NULL, dtype must be 0 unless
	                                 * there is only one, and the format must not be "hf" */
	/* For moments of AdamW in "deepspeed-universal", and in "paddle-uc", "paddle-fc" and
	 * "sharding-io", since Paddle keeps powers of the betas, unless the checkpoint has these
	 * powers. */
	int64_t adam_step;              /* how many updates there were; 0: the note adam.step, or
	                                 * else the number that all tensors <parameter>/step have */
	double beta1, beta2;            /* between 0 and 1; 0: those that all groups of parameters
	                                 * have in the checkpoint */
};
/* Writes a family of a checkpoint, of Sheaf or of another program, in a format that other software
 * opens, as a new directory or file. This process does all the work alone. Blocks are compared with
 * their checksums if there are any, and everything that was written is read back and compared.
 *
 * The files are written in <dir>.partial, which is renamed when all of it is durable; if the format
 * has one file, that is renamed. If the call fails or is interrupted, <dir>.partial stays, and the
 * next call for the same dir continues from it: finished files in it are compared with the
 * checkpoint, and written again only if they differ.
 * checkpoint  the checkpoint.
 * dir         the directory or file, which must not exist. Its parent directory must.
 * how         the options; NULL: defaults.
 * report      receives files, loaded (the number of tensors), bytes, and held, the number of bytes
 *             that this call wrote; and ignored, how many tensors <parameter>/step of the optimizer
 *             were not written, because the format has the number of updates in another place. May
 *             be NULL.
 * EEXIST: <dir> exists, or <dir>.partial was not left by this call.
 * ELAYOUT: the checkpoint has no such family, no tensor whose name begins with how->prefix, or no
 *         tensor that can be read, such as a pickled model.
 * ECORRUPT: the checkpoint is damaged.
 * EIO: a file could not be read or written, or what was written reads back differently.
 * EAGAIN: one of these:
 * - A file of a checkpoint that another program wrote was changed after it was opened. Open the
 *   checkpoint again when it is complete.
 * - The checkpoint is in memory, and a job that goes on saving has replaced it by a newer one. Open
 *   SHEAF_LATEST again.
 * EBUSY: another process is writing <dir>.partial.
 * EFAILED: how->progress ended it.
 * EINDOUBT: <dir> exists, but after a power loss it may have its former name, which is
 *         <dir>.partial or lies in it.
 * EINVAL: one of these:
 * - Several ranks opened the checkpoint together, or it is spread over the memory of several nodes.
 * - A tensor has a name or a number of dimensions that Sheaf does not write, or a type that the
 *   format does not have.
 * - how->dtype is not a floating-point type that Sheaf converts to.
 * - There is no such format, or an option does not go with it.
 * [local] */
int  sheaf_checkpoint_export(struct sheaf_checkpoint *checkpoint, const char *dir,
                             const struct sheaf_export *how, struct sheaf_report *report,
                             struct sheaf_error *err);

/* How sheaf_checkpoint_import writes. 0 in a field is its default. */
struct sheaf_import {
	uint32_t size;
	int32_t dtype;                  /* enum sheaf_dtype: tensors of floating-point numbers are
	                                 * converted to this type; 0: they keep theirs */
	const char *family;             /* the family to read; NULL: all families. Checkpoints of
	                                 * DeepSpeed, Megatron and trainers have several. Those of
	                                 * other programs have "model", and "optimizer" if the
	                                 * parameters of an optimizer's state are known */
	const char *as;                 /* the family that its tensors become; NULL: it keeps its
	                                 * name */
	const char *prefix;             /* as sheaf_export.prefix */
	uint64_t file_bytes_max;        /* as sheaf_opts.file_bytes_max; 0: 5 GB */
	uint64_t memory_bytes;          /* as sheaf_export.memory_bytes; 0: 256 MiB */
	/* As sheaf_export.progress. If the function returns non-zero, the import ends with
	 * EFAILED. */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;                      /* passed to progress */
};
/* Writes a checkpoint, of another program or of another run, as a new checkpoint of a run, from
 * which a job in any layout can load it. This process does all the work alone. The new checkpoint
 * has a session of its own and no parent. Its notes are those of the source, if their names and
 * lengths allow it, and its attached files are those that sheaf_checkpoint_export would copy. Those
 * of more than 64 MiB, or with a name that no attached file can have, are left out. Blocks of the
 * source are compared with their checksums if there are any. All that is written gets checksums and
 * digests, is read back and compared, and is published by the same steps as a save.
 *
 * The call holds the lock of the run. If it fails or is interrupted, what it has written stays in
 * the stage for a week, and the next import of the same tensors under the same number continues
 * from it: finished files are compared with the source, and written again only if they differ.
 * checkpoint  the checkpoint to import.
 * dir         directory of the run, which is created if need be.
 * number      number of the new checkpoint. -1: the number that the source has. That of a
 *             checkpoint of another program is its note "step", "global_step", "iteration" or
 *             "trainer_state.global_step"; one that has only tensors gets 0.
 * how         the options; NULL: defaults. dtype and as need a source with one family, or
 *             how->family.
 * report      receives files, loaded (the number of tensors), bytes, step (the number of the new
 *             checkpoint), ignored (how many notes of the source the new checkpoint cannot have),
 *             unexpected (how many attached files were left out), and held, the number of bytes
 *             that this call wrote. May be NULL.
 * EEXIST: the run has a checkpoint of that number which is not marked bad.
 * ELAYOUT: the source has no such family, or a family without a tensor whose name begins with
 * how->prefix.
 * ECORRUPT: the source is damaged.
 * EIO: a file could not be read or written, or what was written reads back differently.
 * EAGAIN: as for sheaf_checkpoint_export.
 * EBUSY: a process has the run open for writing.
 * EFAILED: how->progress ended it.
 * EINDOUBT: as for sheaf_save_commit.
 * EINVAL: one of these:
 * - number is -1, and the source does not say which step it is.
 * - dir is a checkpoint.
 * - Several ranks opened the source together, or it is spread over the memory of several nodes.
 * - A tensor has a name or a number of dimensions that Sheaf does not write.
 * - how->dtype is not a floating-point type that Sheaf converts to.
 * - how->as is not a valid family name, or an option for one family was given for several.
 * [local] */
int  sheaf_checkpoint_import(struct sheaf_checkpoint *checkpoint, const char *dir, int64_t number,
                             const struct sheaf_import *how, struct sheaf_report *report,
                             struct sheaf_error *err);

/* Rebuilds the index of a checkpoint from its files (model.safetensors.index.json, or
 * pytorch_model.bin.index.json for torch.save files), if it is missing or damaged, or does not
 * match the files. Other software finds the tensors by this file; Sheaf opens the checkpoint
 * without it, too. The file is replaced by one rename, and is durable when the call returns.
 * checkpoint  the checkpoint: a Hugging Face directory, or a checkpoint of a run, whose indexes
 *             must then have the checksums that its manifest says.
 * Returns how many indexes were written, 0 if there is nothing to repair, or an error code.
 * ECORRUPT: the checkpoint is damaged.
 * EFORMAT: a tensor that the index lists is in no file, so that a file may be missing.
 * EIO: the directory could not be written.
 * EINVAL: several ranks opened the checkpoint together, or it is not a directory on disk whose
 *         files have an index.
 * [local] */
int  sheaf_checkpoint_repair_index(struct sheaf_checkpoint *checkpoint, struct sheaf_error *err);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
