/* SPDX-License-Identifier: Apache-2.0 */
/* How entry points check their arguments and return errors and structs; see entry.h. */
#include "entry.h"
#include "err.h"
#include "run.h"
#include "run_env.h"
#include "struct_size.h"

#define REPORT_MIN offsetof(struct sheaf_report, loaded)

int shf_ended(int rc, struct sheaf_error *err)
{
	if (rc >= 0)
		shf_error_clear(err);
	else if (err->code != rc)
		shf_fail(err, rc, "%s", shf_strerror(rc));
	return rc;
}

/* Only the callbacks are taken from the caller's report; its counts are outputs. */
int shf_report_begin(struct shf_reporting *r, const struct sheaf_report *theirs,
                     struct sheaf_error *err)
{
	struct sheaf_report in = { 0 };

	r->own = (struct sheaf_report){ .size = sizeof(r->own) };
	r->was = r->own;
	if (!theirs)
		return 0;
	if (shf_struct_in(&in, theirs, sizeof(in), REPORT_MIN) < 0)
		return shf_fail(err, SHEAF_EINVAL, "report.size is %u, or a field is set that this "
		                "version of sheaf does not know; set size to sizeof(struct "
		                "sheaf_report)",
		                (unsigned)theirs->size);
	r->own.item = in.item;
	r->own.finding = in.finding;
	r->own.arg = in.arg;
	r->was = r->own;
	return 0;
}

void shf_report_end(struct shf_reporting *r, struct sheaf_report *theirs)
{
	r->own.item = r->was.item;
	r->own.finding = r->was.finding;
	r->own.arg = r->was.arg;
	if (theirs)
		(void)shf_struct_out(theirs, &r->own, sizeof(r->own), REPORT_MIN, "report",
		                     NULL);
}

int shf_run_check(const struct sheaf_run *run, struct sheaf_error *err)
{
	if (!run)
		return shf_fail(err, SHEAF_EINVAL, "argument 'run' is NULL");
	if (!shf_run_is_ours(run))
		return shf_fail(err, SHEAF_EINVAL, "the run was opened by another process; after a "
		                "fork, open it again in the child");
	return 0;
}

/* Without a group there are no other ranks that would wait for this one. */
int shf_open_check(const void *out, const char *what, struct shf_opts *opts,
                   const struct sheaf_opts *theirs, struct sheaf_group *group,
                   enum shf_call_kind call, struct sheaf_error *err)
{
	int rc = shf_opts_gather(opts, theirs, err);

	if (!out)
		rc = shf_fail(err, SHEAF_EINVAL, "argument '%s' is NULL", what);
	if (rc == 0 || !group)
		return rc;
	const struct shf_sys *sys = shf_sys_real();
	/* There is no run yet, so the team is made here. The options were not checked yet. */
	struct shf_team team = { group, group->ops.rank, group->ops.ranks,
	                         opts->timeout_ms > 0 ? opts->timeout_ms : SHF_TIMEOUT_MS,
	                         sys->host.ops->mono_ns, sys->host.arg };

	return shf_call_refuse(&team, call, 0, rc, err);
}
