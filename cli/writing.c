/* SPDX-License-Identifier: Apache-2.0 */
/* Options and the progress line of the verbs that write a checkpoint. */
#include "cli.h"

#include <string.h>
#include <time.h>
#include <unistd.h>
#include "workload.h"

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void cli_progress_begin(struct cli_progress *p, const struct cli_args *a)
{
	*p = (struct cli_progress){ .began = now_s(), .on = !a->json && isatty(STDERR_FILENO) };
}

void cli_say_unread(const char *src, struct sheaf_checkpoint *step)
{
	const char *n = sheaf_checkpoint_note(step, "tensors_not_read");

	if (!n)
		return;
	cli_say_of(src);
	fprintf(stderr, "tensors that are not read, and so not written: %s; sheaf show names "
	        "them\n", n);
}

void cli_say_assumed(const char *src, struct sheaf_checkpoint *step)
{
	const char *names = sheaf_checkpoint_note(step, "optimizer.names");

	if (!names || strncmp(names, "assumed", 7))
		return;
	cli_say_of(src);
	fprintf(stderr, "the names in the state of the optimizer are %s\n", names);
}

bool cli_is_for_paddle(const char *format)
{
	return strcmp(format, "paddle-uc") == 0 || strcmp(format, "paddle-fc") == 0 ||
	       strcmp(format, "sharding-io") == 0;
}

int cli_progress_show(void *arg, uint64_t done, uint64_t total)
{
	struct cli_progress *p = arg;
	double now = now_s(), spent = now - p->began, left;
	char a[32], b[32];

	if (!p->on || !done || now - p->shown < 0.2)
		return 0;
	p->shown = now;
	left = spent * (double)(total - done) / (double)done;
	/* Each byte counts twice, because it is read back to be verified. */
	fprintf(stderr, "\r%3.0f %%  %s of %s  %.0f s left\033[K", 100.0 * (double)done /
	        (double)total, wl_size(a, done / 2), wl_size(b, total / 2), left);
	fflush(stderr);
	return 0;
}

void cli_progress_end(struct cli_progress *p)
{
	p->seconds = now_s() - p->began;
	if (p->shown > 0)
		fputs("\r\033[K", stderr);
}

int cli_writing_options(const struct cli_args *a, int32_t *dtype, uint64_t *file_bytes_max,
                        uint64_t *memory_bytes)
{
	static const char *const types[] = { "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2" };
	const char *name = cli_value(a, "dtype");
	int64_t bytes = 0, mem = 0;
	int rc = cli_bytes(a, "max-shard-size", 1, INT64_MAX, &bytes);

	if (rc == 0)
		rc = cli_bytes(a, "mem", 1, INT64_MAX, &mem);
	if (rc)
		return rc;
	for (size_t i = 0; name && i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(types[i], name) == 0)
			*dtype = sheaf_dtype_from_name(name);
	if (name && !*dtype)
		return cli_usage(a, "--dtype", "no such type", "F64, F32, F16, BF16, F8_E4M3, "
		                 "F8_E5M2");
	*file_bytes_max = (uint64_t)bytes;
	/* The other half is for tensors that a map reorders. */
	*memory_bytes = (uint64_t)mem;
	if (cli_value(a, "map"))
		*memory_bytes = mem ? (uint64_t)(mem + 1) / 2 : UINT64_C(128) << 20;
	return 0;
}
