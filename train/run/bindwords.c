/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the library advise calls, flags and options of its API. Here they get the words of
 * sheaf-train. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

static const struct {
	const char *of_library, *of_trainer;
} words[] = {
	{ " (SHEAF_RUN_CREATE makes one)", "" },
	{ " (SHEAF_RUN_CREATE makes it one)", "" },
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

/* Replaces a part of a message, if it has it. What is too long then is cut at the end. */
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
