/* SPDX-License-Identifier: Apache-2.0 */
/* Records and reports the findings of a verification, and opens and reads files so that a missing
 * or short file becomes a finding. */
#include "verify_findings.h"
#include <errno.h>
#include <inttypes.h>
#include "err.h"
#include "name_in_step.h"
#include "sheaf-inspect.h"
#include "step_files.h"
#include "verify.h"

/* The first finding decides what the verification returns. With a sink it also stops the copy,
 * because a copy of a damaged step is of no use. */
void shf_verify_find(struct shf_verify *v, int32_t kind, const struct shf_verify_at *at,
                     const struct sheaf_error *e)
{
	struct sheaf_finding f = { .size = sizeof(f), .kind = kind,
		.file = at->file ? at->file : "", .family = at->family ? at->family : "",
		.name = at->name ? at->name : "", .msg = e->msg, .block = at->block,
		.offset = at->offset };

	if (v->findings++ == 0) {
		v->err = *e;
		v->err.code = v->rc = SHEAF_ECORRUPT;
	}
	v->over |= v->sink != NULL;
	if (v->report && v->report->finding)
		v->report->finding(v->report->arg, &f);
}

/* Only the first failure is kept, because later ones usually have the same cause. */
void shf_verify_blind(struct shf_verify *v, int rc, const struct sheaf_error *e)
{
	if (v->blind)
		return;
	v->blind = rc;
	v->blind_err = *e;
	v->blind_err.code = rc;
}

int shf_verify_follow(const struct shf_verify *v)
{
	return shf_step_follow(v->step);
}

int shf_verify_enter(const struct shf_verify *v, const char *name, const char **base)
{
	return shf_in_step_enter(v->step->run->sys, v->step->dir, name, shf_verify_follow(v), base);
}

void shf_verify_leave(const struct shf_verify *v, int dir)
{
	shf_in_step_leave(v->step->run->sys, v->step->dir, dir);
}

int64_t shf_verify_read(struct shf_verify *v, int fd, void *buf, uint64_t n, uint64_t off)
{
	int64_t got = shf_read_now(v->step->run->sys, fd, buf, n, off, false, &v->retries);

	if (got > 0)
		v->disk_bytes += (uint64_t)got;
	return got;
}

/* A file that is missing, is not a regular file or has another length is a finding. An I/O error is
 * not, because it proves nothing about the step. */
bool shf_verify_plain(struct shf_verify *v, int dir, const char *base, const char *name,
                      uint64_t want, uint64_t *bytes)
{
	const struct shf_sys *sys = v->step->run->sys;
	struct shf_verify_at at = SHF_AT_FILE(name);
	struct shf_stat st = { 0 };
	struct sheaf_error e;
	int rc = dir < 0 ? dir : shf_sys_stat(sys, dir, base, !shf_verify_follow(v), &st);

	if (rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP) {
		shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: missing", v->step->path, name);
		shf_verify_find(v, SHEAF_FINDING_MISSING, &at, &e);
		return false;
	}
	if (rc < 0) {
		rc = shf_fail_sys(&e, -rc, "%s/%s", v->step->path, name);
		shf_verify_blind(v, rc, &e);
		return false;
	}
	if (st.type != SHF_T_FILE) {
		shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: missing: its name belongs to something that "
		         "is not a regular file", v->step->path, name);
		shf_verify_find(v, SHEAF_FINDING_MISSING, &at, &e);
		return false;
	}
	*bytes = st.bytes;
	if (want == UINT64_MAX || st.bytes == want)
		return true;
	/* The damage begins where the shorter of the two ends. */
	at.offset = (int64_t)(st.bytes < want ? st.bytes : want);
	shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: %" PRIu64 " bytes, the manifest says %" PRIu64,
	         v->step->path, name, st.bytes, want);
	shf_verify_find(v, st.bytes < want ? SHEAF_FINDING_TRUNCATED : SHEAF_FINDING_EXTENDED, &at,
	                &e);
	return false;
}

uint64_t shf_verify_want(const struct shf_verify *v, uint32_t f)
{
	return v->step->sound ? v->step->manifest.files[f].bytes : v->bytes[f];
}
