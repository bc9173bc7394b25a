/* SPDX-License-Identifier: Apache-2.0 */
/* The commit of a save. */
#ifndef SHF_SAVE_COMMIT_H
#define SHF_SAVE_COMMIT_H
#include "save.h"

/* Does what sheaf_save_commit does. [collective] */
int shf_save_commit(struct sheaf_save *save, int timeout_ms, struct sheaf_error *err);
/* Announces a committed step to other programs: writes the done files of opts.notify.signal_dir,
 * and calls opts.notify.committed. Does nothing on ranks other than 0. */
void shf_save_announce(const struct sheaf_save *save);
#endif
