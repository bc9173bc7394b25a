/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what a program compiled against sheaf.h relies on: sizes and offsets of the structs,
 * values of the constants. tools/abi compares the lines with test/abi.txt. */
#include <stdio.h>
#include "sheaf.h"
#include "sheaf-admin.h"
#include "sheaf-plan.h"

#define STRUCT(s) printf("struct %s %zu\n", #s, sizeof(struct s))
#define FIELD(s, f) printf("field %s.%s %zu\n", #s, #f, offsetof(struct s, f))
#define VALUE(v) printf("value %s %lld\n", #v, (long long)(v))

static void slices(void)
{
	STRUCT(sheaf_slice);
	FIELD(sheaf_slice, family);
	FIELD(sheaf_slice, name);
	FIELD(sheaf_slice, tied_to);
	FIELD(sheaf_slice, dtype);
	FIELD(sheaf_slice, ndim);
	FIELD(sheaf_slice, shape);
	FIELD(sheaf_slice, start);
	FIELD(sheaf_slice, count);
	FIELD(sheaf_slice, stride);
	FIELD(sheaf_slice, origin);
	FIELD(sheaf_slice, flat_start);
	FIELD(sheaf_slice, flat_count);
	FIELD(sheaf_slice, data);
}

static void others(void)
{
	STRUCT(sheaf_error);
	FIELD(sheaf_error, msg);
	STRUCT(sheaf_group_ops);
	FIELD(sheaf_group_ops, node);
	FIELD(sheaf_group_ops, allgather);
	FIELD(sheaf_group_ops, arg);
	STRUCT(sheaf_stat);
	FIELD(sheaf_stat, begin_ns);
	FIELD(sheaf_stat, image_ns);
	FIELD(sheaf_stat, images_busy);
	FIELD(sheaf_stat, gates);
	FIELD(sheaf_stat, over_ns);
	STRUCT(sheaf_run_stat);
	FIELD(sheaf_run_stat, begun);
	FIELD(sheaf_run_stat, commit_ns);
	STRUCT(sheaf_opts);
	FIELD(sheaf_opts, staging_bytes_max);
	FIELD(sheaf_opts, timeout_ms);
	FIELD(sheaf_opts, ignore);
	FIELD(sheaf_opts, log);
	FIELD(sheaf_opts, arg);
	FIELD(sheaf_opts, keep_best);
	FIELD(sheaf_opts, best_note);
	FIELD(sheaf_opts, copy_threads);
	FIELD(sheaf_opts, committed);
	FIELD(sheaf_opts, signal_dir);
	FIELD(sheaf_opts, copy_cpus);
	FIELD(sheaf_opts, copy_rate_max);
	STRUCT(sheaf_item);
	FIELD(sheaf_item, state);
	FIELD(sheaf_item, tries);
	STRUCT(sheaf_save_opts);
	STRUCT(sheaf_ema);
	FIELD(sheaf_ema, coef);
	FIELD(sheaf_ema, interval);
	STRUCT(sheaf_ema_info);
	FIELD(sheaf_ema_info, updates);
	STRUCT(sheaf_checkpoint_info);
	FIELD(sheaf_checkpoint_info, format);
	FIELD(sheaf_checkpoint_info, bytes);
	STRUCT(sheaf_tensor);
	FIELD(sheaf_tensor, family);
	FIELD(sheaf_tensor, shape);
	FIELD(sheaf_tensor, digest);
	FIELD(sheaf_tensor, dims);
	STRUCT(sheaf_finding);
	FIELD(sheaf_finding, offset);
	STRUCT(sheaf_report);
	FIELD(sheaf_report, item);
	FIELD(sheaf_report, loaded);
	FIELD(sheaf_report, verify_ns);
	FIELD(sheaf_report, step);
	STRUCT(sheaf_leftover);
	FIELD(sheaf_leftover, what);
	FIELD(sheaf_leftover, whole);
	STRUCT(sheaf_plan_rank);
	FIELD(sheaf_plan_rank, staging);
	FIELD(sheaf_plan_rank, collects);
}

static void codes(void)
{
	VALUE(SHEAF_EINVAL);
	VALUE(SHEAF_ENOMEM);
	VALUE(SHEAF_EIO);
	VALUE(SHEAF_ENOENT);
	VALUE(SHEAF_EEXIST);
	VALUE(SHEAF_EBUSY);
	VALUE(SHEAF_EAGAIN);
	VALUE(SHEAF_ELAYOUT);
	VALUE(SHEAF_ECORRUPT);
	VALUE(SHEAF_EFORMAT);
	VALUE(SHEAF_EINDOUBT);
	VALUE(SHEAF_EBUG);
	VALUE(SHEAF_ELOST);
	VALUE(SHEAF_EDIVERGED);
	VALUE(SHEAF_EFAILED);
	VALUE(SHEAF_EEND);
	VALUE(SHEAF_SUM);
	VALUE(SHEAF_MAX);
	VALUE(SHEAF_XOR);
	VALUE(SHEAF_DIMS_MAX);
	VALUE(SHEAF_LATEST);
}

static void flags(void)
{
	VALUE(SHEAF_SLICE_FLAT);
	VALUE(SHEAF_SLICE_OPTIONAL);
	VALUE(SHEAF_SLICE_IN_PLACE);
	VALUE(SHEAF_SLICE_STRIDED);
	VALUE(SHEAF_SLICE_SAVE_ONLY);
	VALUE(SHEAF_RUN_CREATE);
	VALUE(SHEAF_RUN_READONLY);
	VALUE(SHEAF_RUN_REPLICAS);
	VALUE(SHEAF_RUN_BUFFERED);
	VALUE(SHEAF_RUN_UNVERIFIED);
	VALUE(SHEAF_RUN_METRICS);
	VALUE(SHEAF_SAVE_MAY_DROP);
	VALUE(SHEAF_SAVE_LATER);
	VALUE(SHEAF_ALL_SLICES);
	VALUE(SHEAF_SAVE_LAZY);
	VALUE(SHEAF_SAVE_CHECK);
	VALUE(SHEAF_LOAD_STRICT);
	VALUE(SHEAF_LOAD_CONVERT);
	VALUE(SHEAF_LOAD_DRY);
	VALUE(SHEAF_LOAD_DERIVE);
	VALUE(SHEAF_LOAD_ZERO);
	VALUE(SHEAF_LOAD_LENIENT);
}

static void dtypes(void)
{
	for (int d = SHEAF_BOOL; d <= SHEAF_F6_E3M2; d++)
		printf("dtype %d %s %d\n", d, sheaf_dtype_name(d), sheaf_dtype_bits(d));
}

int main(void)
{
	slices();
	others();
	codes();
	flags();
	dtypes();
	return 0;
}
