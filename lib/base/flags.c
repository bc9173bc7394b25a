/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses flags that a call does not take. Every flag of sheaf.h has a bit of its own, so one that
 * was meant for another call is recognised. */
#include "flags.h"
#include <inttypes.h>
#include "err.h"
#include "sheaf-load.h"

#define FLAG(name) { name, #name }

static const struct {
	uint64_t bit;
	const char *name;
} all[] = {
	FLAG(SHEAF_SLICE_FLAT), FLAG(SHEAF_SLICE_OPTIONAL), FLAG(SHEAF_SLICE_IN_PLACE),
	FLAG(SHEAF_SLICE_STRIDED), FLAG(SHEAF_SLICE_SAVE_ONLY), FLAG(SHEAF_SLICE_COPY),
	FLAG(SHEAF_RUN_CREATE),
	FLAG(SHEAF_RUN_READONLY), FLAG(SHEAF_RUN_REPLICAS), FLAG(SHEAF_RUN_BUFFERED),
	FLAG(SHEAF_RUN_UNVERIFIED), FLAG(SHEAF_RUN_METRICS), FLAG(SHEAF_SAVE_LAZY),
	FLAG(SHEAF_SAVE_NO_DISK), FLAG(SHEAF_SAVE_MAY_DROP), FLAG(SHEAF_SAVE_CHECK),
	FLAG(SHEAF_SAVE_LATER), FLAG(SHEAF_LOAD_STRICT),
	FLAG(SHEAF_LOAD_CONVERT), FLAG(SHEAF_LOAD_DRY), FLAG(SHEAF_LOAD_DERIVE),
	FLAG(SHEAF_LOAD_ZERO), FLAG(SHEAF_LOAD_LENIENT), FLAG(SHEAF_LOAD_FALLBACK),
};

enum { FLAGS = sizeof(all) / sizeof(all[0]) };

static const char *taken_by(uint64_t bit)
{
	if (bit & SHF_SLICE_FLAGS)
		return "sheaf_slice.flags";
	if (bit & SHF_RUN_FLAGS)
		return "sheaf_opts.flags";
	if (bit & SHF_SAVE_FLAGS)
		return "sheaf_save_opts.flags";
	return bit == SHEAF_LOAD_FALLBACK ? "sheaf_run_resume alone"
	                                  : "sheaf_checkpoint_load, sheaf_load_begin and "
	                                    "sheaf_run_resume";
}

static size_t flag_index(uint64_t flags)
{
	size_t i = 0;

	while (i < FLAGS && !(flags & all[i].bit))
		i++;
	return i;
}

const char *shf_flag_name(uint64_t flags)
{
	size_t i = flag_index(flags);

	return i < FLAGS ? all[i].name : "";
}

int shf_flags_check(uint64_t flags, uint64_t known, const char *what, struct sheaf_error *err)
{
	uint64_t other = flags & ~known;
	size_t i;

	if (!other)
		return 0;
	i = flag_index(other);
	if (i < FLAGS)
		return shf_fail(err, SHEAF_EINVAL, "%s: %s belongs to %s", what, all[i].name,
		                taken_by(all[i].bit));
	return shf_fail(err, SHEAF_EINVAL, "%s: flags 0x%" PRIx64 " are unknown to this version of "
	                "sheaf; clear them, or use a newer sheaf", what, other);
}
