/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the small files that belong to a checkpoint, such as config.json and the tokenizer, into
 * the directory that an export or an import writes. */
#ifndef SHF_EXPORT_BESIDE_H
#define SHF_EXPORT_BESIDE_H
#include "export_plan.h"

struct shf_export_beside {
	const struct shf_sys *sys;      /* borrowed */
	int dir;                        /* descriptor of the directory that gets them */
	const char *path;               /* its path, for messages */
	const struct shf_export_plan *plan;     /* of an export: files that meet a name of the plan,
	                                         * or one that is in the directory, are not copied.
	                                         * NULL: all are */
	bool weights_alone;             /* one family is written, and not the whole training */
	bool renamed;                   /* tensors get other names than those that documents of the
	                                 * training have: such documents are not copied */
	/* Of an import: the layout of the step that gets them. Files that cannot be attached to
	 * this step are left out. NULL: the directory is no step. */
	const struct shf_layout *step;
	bool rank_files;                /* the opaque bytes of ranks are copied, too */
	struct shf_mf_file source;      /* bytes and CRC of the file that was read last. What is
	                                 * written of a config.json may differ from it: see
	                                 * shf_config_clean */
	uint64_t left_out;              /* how many files were left out because of `step` or
	                                 * `renamed` */
	struct shf_arena arena;         /* of the names in `copied` */
	struct shf_buf copied;          /* owned; struct shf_mf_file of each file, with its CRC */
};
/* Copies the attached files of a step of Sheaf, or the small files that lie in the directory of a
 * foreign one, or beside it if it is a file; and if none is a config.json, that which the map was
 * given through which the step is shown. Each copy is durable, and its name is not yet.
 * ECORRUPT: an attached file is damaged. EAGAIN: a file was changed meanwhile. */
int shf_export_beside_copy(struct shf_export_beside *b, struct sheaf_checkpoint *step,
                           struct sheaf_error *err);
void shf_export_beside_release(struct shf_export_beside *b);
#endif
