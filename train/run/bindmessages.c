/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the library advise calls, flags and options of its API, which users of sheaf-train do
 * not have. This file replaces such advice by that of the trainer. test/train/refused.py fails if
 * no message of the library has one of the texts any more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

static const struct {
	const char *of_library, *of_trainer;
} words[] = {
	{ " (SHEAF_RUN_CREATE makes one)", "" },
	{ " (SHEAF_RUN_CREATE makes it one)", "" },
	{ "or open with SHEAF_RUN_READONLY", "or use another run" },
	{ ", or set SHEAF_SLICE_OPTIONAL if it may be absent", "" },
	{ ", or sheaf_slice.shape is not that of the whole tensor", "" },
	{ "use sheaf_run_open, or name RUN@STEP", "use RUN@STEP" },
	{ "could not be recorded as a resume attempt", "could not be counted as a resume, so a "
	  "checkpoint that no job can continue is not noticed; the training goes on" },
	{ "opts.timeout_ms", "timeout-ms" },
	{ " (see opts.resume_attempts_max)", "; if this goes on, resume from an earlier one with "
	  "RUN@STEP and rewind" },
	{ "(pruned steps stay in .sheaf/trash for opts.retention.grace_s seconds; with -1 they are "
	  "deleted at once)",
	  "(pruned checkpoints stay in .sheaf/trash for a time; sheaf prune RUN --grace 0 --apply "
	  "deletes them when no job trains there)" },
	{ "; commit again for the result", "" },
	{ "; commit again", "" },
	{ "lower opts.staging.bytes_max, or give", "give" },
	{ "; set opts.memory_tier.copies to 2 to survive the loss of one", "" },
	{ "opts.memory_tier.agent", "agent" },
	{ "call sheaf_run_rewind, or sheaf rewind, to save after an older step",
	  "use rewind with resume RUN@STEP to save after an older step" },
	{ "call sheaf_run_rewind to save after an older step",
	  "use rewind with resume RUN@STEP to save after an older step" },
};

/* Replaces the first `from` in a message by `to`, and cuts what does not fit into `size` bytes. */
static void replace(char *msg, size_t size, const char *from, const char *to)
{
	char *at = strstr(msg, from);
	char *behind = at ? strdup(at + strlen(from)) : NULL;

	if (behind)
		snprintf(at, size - (size_t)(at - msg), "%s%s", to, behind);
	free(behind);
}

void tr_store_words(char *msg, size_t size)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		replace(msg, size, words[i].of_library, words[i].of_trainer);
}
