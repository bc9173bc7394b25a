/* SPDX-License-Identifier: Apache-2.0 */
/* Of live targets alone: what a sanitizer does beside looking, kept small. Short stacks, and freed
 * blocks held back no longer than a few runs, are several times the speed. */
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
	return "malloc_context_size=3:quarantine_size_mb=4:thread_local_quarantine_size_kb=64:"
	       "detect_stack_use_after_return=0:allocator_may_return_null=1";
}
