/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates how long a save will still take. */
#ifndef SHF_SAVE_ETA_H
#define SHF_SAVE_ETA_H
#include "save.h"

/* Returns what sheaf_save_eta_ms returns: milliseconds; 0 if the save is committed; -1 if it has
 * failed or nothing is known. [any thread] */
int64_t shf_save_eta_ms(struct sheaf_save *save);
#endif
