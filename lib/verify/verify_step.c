/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a step: every byte against its checksum, every tensor against its digest, every file
 * against the manifest. Only names are taken from the catalog, because the catalog was built from
 * the headers, which may be what is damaged.
 *
 * Each link proves the next: manifest -> table of sums -> blocks, digests, headers, indexes. The
 * manifest was checked against its own sum when the step was opened. If the table is damaged, the
 * tensor files are checked against the manifest's sums of whole files, which cannot tell where in a
 * file the damage is. */
#include "verify_step.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "crc64.h"
#include "digests.h"
#include "err.h"
#include "foreign.h"
#include "memory_dir.h"
#include "run_env.h"
#include "sheaf-inspect.h"
#include "step.h"
#include "step_files.h"
#include "step_lookup.h"
#include "step_open.h"
#include "verify.h"
#include "verify_blocks.h"
#include "verify_files.h"
#include "verify_findings.h"


/* ---- sizes of the files ---- */

/* Finds the sizes of the tensor files, each on one rank, and shares them with all by XOR: a size is
 * 0 on all ranks but the one that found it. Then numbers the blocks by the sizes in the manifest,
 * or, for a step without a manifest, by the sizes found. [collective] */
static int look_at_files(struct shf_verify *v, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = v->step;
	struct shf_team *team = &step->run->team;
	size_t files_n = step->layout.files_n;
	uint64_t blocks = 0;
	int rc;

	for (size_t f = (size_t)team->rank; f < files_n; f += (size_t)team->ranks) {
		const char *name = step->layout.files[f].name, *base;
		int dir = shf_verify_enter(v, name, &base);

		v->bytes[f] = SHF_GONE;
		(void)shf_verify_plain(v, dir, base, name,
		                       step->sound ? step->manifest.files[f].bytes : UINT64_MAX,
		                       &v->bytes[f]);
		shf_verify_leave(v, dir);
	}
	rc = shf_allreduce(team, v->bytes, files_n, SHEAF_XOR, err);
	for (uint32_t f = 0; f < files_n; f++) {
		uint64_t want = shf_verify_want(v, f);

		v->first[f] = blocks;
		if (want != SHF_GONE)
			blocks += want / SHF_BLOCK + (want % SHF_BLOCK != 0);
	}
	v->first[files_n] = blocks;
	return rc;
}

/* ---- the table of sums ---- */

/* Checks that the manifest still exists, and the table with the right size. If the table cannot be
 * used, reports why. [rank 0] */
static void look_at_sums(struct shf_verify *v)
{
	const struct sheaf_checkpoint *step = v->step;
	struct shf_verify_at at = SHF_AT_FILE("sheaf.sums");
	uint64_t bytes;

	if (!step->sound)
		return;
	(void)shf_verify_plain(v, step->dir, "sheaf.json", "sheaf.json", UINT64_MAX, &bytes);
	if (!shf_verify_plain(v, step->dir, at.file, at.file, step->manifest.sums.bytes, &bytes) ||
	    v->sums)
		return;
	/* The table could not be read or allocated, or is of a newer version: no damage. */
	if (step->sums_err.sys || step->sums_rc != SHEAF_ECORRUPT) {
		shf_verify_blind(v, step->sums_rc, &step->sums_err);
		return;
	}
	if (step->sums.bytes)
		/* The table is valid by itself but does not match the manifest's files. The finding
		 * names the manifest, because the table has proved itself. */
		at.file = "sheaf.json";
	shf_verify_find(v, step->sums.bytes ? SHEAF_FINDING_MANIFEST : SHEAF_FINDING_CHECKSUM, &at,
	                &step->sums_err);
}

/* Compares the manifest's sum of each file with the combined sums of its blocks from the table; no
 * file is read. A difference means that manifest and table are of different saves. */
static void match_files(struct shf_verify *v)
{
	const struct sheaf_checkpoint *step = v->step;
	const struct shf_team *team = &step->run->team;
	struct shf_crc64_by *by = shf_alloc(1, sizeof(*by));

	if (by)
		shf_crc64_by_init(by, SHF_BLOCK);
	for (size_t f = (size_t)team->rank; f < step->layout.files_n; f += (size_t)team->ranks) {
		const struct shf_mf_file *m = &step->manifest.files[f];
		uint64_t block = shf_sums_file(&step->sums, f).first_block;
		uint64_t crc = shf_crc64(NULL, 0);

		for (uint64_t at = 0; at < m->bytes; at += SHF_BLOCK) {
			uint64_t n = m->bytes - at < SHF_BLOCK ? m->bytes - at : SHF_BLOCK;

			/* A shift by whole blocks is looked up in a table; only the last block has
			 * another length. */
			crc = by && n == SHF_BLOCK ? shf_crc64_by(by, crc)
			                           : shf_crc64_shift(crc, n);
			crc ^= shf_sums_block(&step->sums, block++);
		}
		if (crc != m->crc) {
			struct shf_verify_at at = SHF_AT_FILE("sheaf.json");
			struct sheaf_error e;

			shf_fail(&e, SHEAF_ECORRUPT, "%s/sheaf.json: says checksum %016" PRIx64 " "
			         "of %s, its blocks in sheaf.sums make %016" PRIx64, step->path,
			         m->crc, m->name, crc);
			shf_verify_find(v, SHEAF_FINDING_MANIFEST, &at, &e);
		}
	}
	shf_free(by);
}

/* Checks that the manifest names the index of each family. [rank 0] */
static void match_indexes(struct shf_verify *v)
{
	const struct shf_manifest *m = &v->step->manifest;
	struct shf_verify_at at = SHF_AT_FILE("sheaf.json");
	char name[120];
	struct sheaf_error e;

	for (size_t i = 0; i < m->families_n; i++) {
		const struct shf_mf_family *f = &m->families[i];
		bool top = strcmp(f->dir, ".") == 0;
		size_t k = 0;

		snprintf(name, sizeof(name), "%s%s%s.safetensors.index.json", top ? "" : f->dir,
		         top ? "" : "/", f->name);
		while (k < m->attached_n && strcmp(m->attached[k].name, name))
			k++;
		if (k < m->attached_n)
			continue;
		at.family = f->name;
		shf_fail(&e, SHEAF_ECORRUPT, "%s/sheaf.json: does not name %s", v->step->path,
		         name);
		shf_verify_find(v, SHEAF_FINDING_MANIFEST, &at, &e);
	}
}

/* Checks the families and ties of the manifest against the table. [rank 0] */
static void match_families(struct shf_verify *v)
{
	const struct sheaf_checkpoint *step = v->step;
	const struct shf_manifest *m = &step->manifest;
	const struct shf_sums *s = &step->sums;
	struct shf_verify_at at = SHF_AT_FILE("sheaf.json");
	struct sheaf_error e;

	for (size_t i = 0; i < m->families_n; i++) {
		const struct shf_lt_family *fam = &step->layout.families[i];
		uint64_t tensors = 0, bytes = 0;

		for (uint32_t f = fam->first_file; f < fam->first_file + fam->files_n; f++) {
			struct shf_sums_file sf = shf_sums_file(s, f);

			tensors += sf.tensors_n;
			bytes += sf.bytes - sf.header_bytes;
		}
		if (tensors == m->families[i].tensors && bytes == m->families[i].bytes)
			continue;
		at.family = fam->name;
		shf_fail(&e, SHEAF_ECORRUPT, "%s/sheaf.json: says that family %s has %" PRIu64 " "
		         "tensors, %" PRIu64 " bytes; sheaf.sums has %" PRIu64 ", %" PRIu64,
		         step->path, fam->name, m->families[i].tensors, m->families[i].bytes,
		         tensors, bytes);
		shf_verify_find(v, SHEAF_FINDING_MANIFEST, &at, &e);
	}
	for (size_t i = 0; i < m->tied_n; i++) {
		const struct shf_mf_tied *t = &m->tied[i];
		bool stored = shf_sums_find(s, t->family, t->name) >= 0;

		if (!stored && shf_sums_find(s, t->family, t->to) >= 0)
			continue;
		at.family = t->family;
		at.name = t->name;
		shf_fail(&e, SHEAF_ECORRUPT, "%s/sheaf.json: %s/%.140s is tied to %.140s, %s",
		         step->path, t->family, t->name, t->to,
		         stored ? "but stored" : "which is not stored");
		shf_verify_find(v, SHEAF_FINDING_MANIFEST, &at, &e);
	}
}

/* Used if there is no valid table: compares the sums of whole files with those in the manifest. A
 * wrong file is marked SHF_GONE, so that its header is not parsed. If some rank could not read its
 * share, nothing is compared, because every file with a missing part would look damaged.
 * [collective] */
static int match_raw(struct shf_verify *v, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = v->step;
	struct shf_team *team = &step->run->team;
	uint64_t blind = v->blind != 0;
	int rc = shf_allreduce(team, v->raw, step->layout.files_n, SHEAF_XOR, err);

	if (rc == 0)
		rc = shf_allreduce(team, &blind, 1, SHEAF_MAX, err);
	if (rc < 0 || blind)
		return rc; /* sums are incomplete */
	for (size_t f = 0; f < step->layout.files_n; f++) {
		const struct shf_mf_file *m = &step->manifest.files[f];
		uint64_t crc = v->raw[f] ^ shf_crc64_ones(m->bytes);
		struct shf_verify_at at = SHF_AT_FILE(m->name);
		struct sheaf_error e;

		/* A file of another length was reported already. */
		if (v->bytes[f] != m->bytes || crc == m->crc)
			continue;
		v->bytes[f] = SHF_GONE;
		if (f % (size_t)team->ranks != (size_t)team->rank)
			continue;
		shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: the file has checksum %016" PRIx64 ", want "
		         "%016" PRIx64 "; sheaf.sums is damaged, so the place is not known",
		         step->path,
		         m->name, crc, m->crc);
		shf_verify_find(v, SHEAF_FINDING_CHECKSUM, &at, &e);
	}
	return 0;
}

/* ---- digests of whole tensors ---- */

/* Compares the digest of one tensor. If not all of its bytes were summed, some block could not be
 * read or was wrong, which has been reported. */
static void compare_digest(struct shf_verify *v, uint64_t n)
{
	const struct shf_sums *s = &v->step->sums;
	struct shf_sums_tensor t = shf_sums_tensor(s, n);
	struct shf_verify_at at = { v->step->layout.files[t.file].name, shf_sums_family(s, &t),
		shf_sums_name(s, &t), -1, (int64_t)t.off };
	struct sheaf_error e;

	if (v->got_bytes[n] != t.bytes)
		return;
	/* The tensor counts as compared, whether its digest is right or not. */
	v->tensors++;
	v->tensor_bytes += t.bytes;
	if (v->got[n] == t.digest)
		return;
	shf_fail(&e, SHEAF_ECORRUPT, "%s: %s/%.200s has digest %016" PRIx64 ", want %016" PRIx64,
	         v->step->path, at.family, at.name, v->got[n], t.digest);
	shf_verify_find(v, SHEAF_FINDING_DIGEST, &at, &e);
}

/* Combines the parts of each tensor's digest over all ranks, and compares the results. The sums of
 * blocks prove bytes in a file; only the digest proves that they are the bytes of the tensor that
 * the table names. [collective] */
static int match_digests(struct shf_verify *v, struct sheaf_error *err)
{
	struct shf_team *team = &v->step->run->team;
	size_t n = (size_t)v->step->sums.head.tensors_n;
	struct shf_share own = shf_digests_share(team, n);
	int rc = shf_digests_add_up(team, 0, v->got, v->got_bytes, n, 0, err);

	for (uint64_t t = own.first; rc == 0 && t < own.end; t++)
		compare_digest(v, t);
	return rc;
}

/* ---- the whole verification ---- */

/* Allocates everything before the first agreement, so that a lack of memory on one rank ends the
 * call on all. Buffers are no larger than the longest file, because small steps are verified often,
 * and a new page costs more to fault in than to sum. */
static int verify_setup(struct shf_verify *v, struct sheaf_error *err)
{
	size_t files = v->step->layout.files_n;
	size_t tensors = v->sums ? (size_t)v->step->sums.head.tensors_n : 0;

	v->bytes = shf_zalloc(files, sizeof(*v->bytes));
	v->first = shf_zalloc(files + 1, sizeof(*v->first));
	v->raw = shf_zalloc(files, sizeof(*v->raw));
	v->got = shf_zalloc(tensors, sizeof(*v->got));
	v->got_bytes = shf_zalloc(tensors + 1, sizeof(*v->got_bytes));
	v->direct = shf_zalloc(files, sizeof(*v->direct));
	/* The sizes of a foreign step are still unknown. */
	v->chunk_bytes = v->step->sound ? SHF_PAGE : SHF_VERIFY_CHUNK;
	for (uint32_t f = 0; f < files && v->step->sound; f++)
		if (shf_verify_want(v, f) > v->chunk_bytes)
			v->chunk_bytes = shf_verify_want(v, f);
	v->chunk_bytes = v->chunk_bytes < SHF_VERIFY_CHUNK ? v->chunk_bytes : SHF_VERIFY_CHUNK;
	v->chunk[0] = shf_alloc(v->chunk_bytes + SHF_ALIGN, 1);
	v->block_ones = shf_crc64_ones(SHF_BLOCK);
	if (v->bytes && v->first && v->raw && v->got && v->got_bytes && v->direct && v->chunk[0])
		return 0;
	return shf_fail(err, SHEAF_ENOMEM, "no memory to verify %zu files, %zu tensors", files,
	                tensors);
}

static void verify_release(struct shf_verify *v)
{
	shf_free(v->bytes);
	shf_free(v->first);
	shf_free(v->raw);
	shf_free(v->got);
	shf_free(v->got_bytes);
	shf_free(v->direct);
	for (int i = 0; i < SHF_VERIFY_CHUNKS; i++)
		shf_free(v->chunk[i]);
}

/* Records what a format of other software found. */
static void note_foreign(void *arg, bool is_sum, const char *file, int64_t offset,
                         const struct sheaf_error *e)
{
	struct shf_verify_at at = { file, NULL, NULL, -1, offset };

	shf_verify_find(arg, is_sum ? SHEAF_FINDING_CHECKSUM : SHEAF_FINDING_HEADER, &at, e);
}

/* Checks the files of other software by the checksums that their format has. They are read, and not
 * the tensors that are made of them: one byte may be part of several tensors. [rank 0] */
static void look_at_foreign(struct shf_verify *v)
{
	struct sheaf_checkpoint *step = v->step;
	struct shf_foreign_findings to = { .found = note_foreign, .arg = v };
	struct sheaf_error e = { 0 };
	int rc = 0;

	if (step->foreign->format->verify)
		rc = step->foreign->format->verify(step->foreign, &to, &e);
	if (rc == SHEAF_EFORMAT)
		note_foreign(v, false, "", -1, &e);
	else if (rc < 0)
		shf_verify_blind(v, rc, &e);
	v->disk_bytes += to.bytes;
	v->unproved = to.unproved || !step->foreign->format->verify;
	v->unproved_item = to.item;
	v->tensors = step->layout.tensors_n;
	for (size_t i = 0; i < step->layout.families_n; i++)
		v->tensor_bytes += step->layout.families[i].bytes;
}

/* Reports what is wrong with the index of a directory without a manifest. [rank 0] */
static void find_index_flaw(struct shf_verify *v)
{
	const struct sheaf_checkpoint *step = v->step;
	struct shf_verify_at at = { step->index_name, NULL, NULL, -1, -1 };
	struct sheaf_error e;

	shf_fail(&e, SHEAF_EFORMAT, "%s/%s", step->path, step->index_flaw);
	shf_verify_find(v, SHEAF_FINDING_INDEX, &at, &e);
}

/* The order matters: sizes come first, because shares and findings depend on them; headers come
 * after the blocks that contain them. Returns failures of the group; findings and other failures
 * are in v. [collective] */
static int look_at_everything(struct shf_verify *v, struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = v->step;
	bool zero = step->run->team.rank == 0;
	int rc = 0;

	if (step->foreign && zero)
		look_at_foreign(v);
	if (step->foreign)
		return 0;
	rc = look_at_files(v, err);
	if (rc < 0)
		return rc;
	if (zero)
		look_at_sums(v);
	shf_verify_data(v);
	if (v->sums) {
		match_files(v);
		if (zero) {
			match_families(v);
			match_indexes(v);
		}
		rc = match_digests(v, err);
	} else if (step->sound) {
		rc = match_raw(v, err);
	}
	if (rc < 0)
		return rc;
	if (zero && step->index_flaw)
		find_index_flaw(v);
	if (step->cat_rc < 0) /* else the headers were checked when the step was opened */
		shf_verify_headers(v);
	shf_verify_small(v);
	if (zero && step->sound && v->extra)
		shf_verify_extra(v);
	return 0;
}

enum { FINDINGS, BLIND, DISK_BYTES, RETRIES, TENSORS, TENSOR_BYTES, UNPROVED, SUMS_N };

/* Adds up the counts of all ranks. If no rank found anything although the catalog could not be
 * built, the error of the catalog becomes the finding. [collective] */
static int sum_up(struct shf_verify *v, uint64_t x[SUMS_N], struct sheaf_error *err)
{
	const struct sheaf_checkpoint *step = v->step;
	struct shf_team *team = &step->run->team;
	uint64_t own[SUMS_N] = { v->findings, v->blind != 0, v->disk_bytes, v->retries, v->tensors,
		v->tensor_bytes, v->unproved };
	int rc;

	memcpy(x, own, sizeof(own));
	rc = shf_allreduce(team, x, SUMS_N, SHEAF_SUM, err);
	if (rc < 0 || x[FINDINGS] || x[BLIND] || step->cat_rc == 0 || step->cat_rc == SHEAF_EIO)
		return rc;
	x[FINDINGS] = 1;
	if (team->rank == 0) {
		struct shf_verify_at at = { NULL, NULL, NULL, -1, -1 };

		shf_verify_find(v, step->cat_index ? SHEAF_FINDING_INDEX : SHEAF_FINDING_HEADER,
		                &at, &step->cat_err);
	}
	return 0;
}

/* Fills in the caller's report. x: counts over all ranks; ns: duration. */
static void fill_verify_report(const struct shf_verify *v, const uint64_t x[SUMS_N], int64_t ns,
                               struct sheaf_report *r)
{
	const struct sheaf_checkpoint *step = v->step;

	r->findings = x[FINDINGS];
	r->disk_bytes = x[DISK_BYTES];
	r->retries = x[RETRIES];
	r->loaded = x[TENSORS];
	r->bytes = x[TENSOR_BYTES];
	r->unverified = x[UNPROVED] ? step->layout.tensors_n : 0;
	r->files = (step->foreign ? shf_foreign_files(step->foreign) : step->layout.files_n) +
	           step->plain_n + (step->sound ? 2 : 0);
	r->verify_ns = (uint64_t)ns;
}

/* Reports that a step without checksums is well formed, but that its values cannot be verified.
 * Returns EFORMAT. */
static int unverified(struct shf_verify *v, struct sheaf_error *err)
{
	struct sheaf_finding f = { .size = sizeof(f), .kind = SHEAF_FINDING_UNVERIFIED, .file = "",
		.family = "", .name = "", .block = -1, .offset = -1 };
	struct sheaf_error e;
	int rc = shf_fail(&e, SHEAF_EFORMAT, "%s: well formed, but without checksums: its values "
	                  "cannot be checked", v->step->path);

	if (v->unproved_item)
		shf_fail(&e, SHEAF_EFORMAT, "%s: item %.*s is not a zip archive, so it has no "
		         "checksum and cannot be checked", v->step->path,
		         shf_name_show(v->unproved_item), v->unproved_item);
	f.msg = e.msg;
	*err = e;
	if (v->step->run->team.rank == 0 && v->report && v->report->finding)
		v->report->finding(v->report->arg, &f);
	return rc;
}

struct shf_saved shf_step_saved(const struct sheaf_checkpoint *step)
{
	struct shf_saved saved = { .step = step->number };

	memcpy(saved.session, step->manifest.session, sizeof(saved.session));
	return saved;
}

/* A finding on any rank takes precedence over a failure to read on another, because an I/O error
 * may go away and damage does not.
 *
 * A step that is found whole here is no reason to delete older ones: what was read may have come
 * from the page cache or, in a copy, from files of the other run. Only callers that made sure that
 * every byte came from disk set lineage.verified. */
static int verify(struct shf_verify *v, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = v->step;
	struct shf_call m = { .kind = SHF_CALL_VERIFY, .handle = step->made };
	struct sheaf_run *run = step->run;
	int64_t from = shf_now(run);
	struct sheaf_error own;
	uint64_t x[SUMS_N];
	int rc;

	err = err ? err : &own;
	rc = shf_step_wake(step, err);
	v->sums = step->sound && step->sums_rc == 0;
	v->unproved = !step->sound;
	rc = shf_call_enter(&run->team, &m, rc == 0 ? verify_setup(v, err) : rc, err);
	if (rc == 0)
		rc = look_at_everything(v, err);
	if (rc == 0)
		rc = sum_up(v, x, err);
	if (rc == 0) {
		if (v->report)
			fill_verify_report(v, x, shf_now(run) - from, v->report);
		*err = x[FINDINGS] ? v->err : v->blind_err;
		rc = shf_agree(&run->team, x[FINDINGS] ? v->rc : v->blind, err);
		if (rc == 0 && x[UNPROVED])
			rc = unverified(v, err);
	}
	rc = shf_step_exclude_reuse(step, rc, err);
	verify_release(v);
	return rc;
}

/* Verifies, unless the step lies in the memory of several nodes: no rank can read all of it, so all
 * ranks refuse it. */
static int verify_unless_spread(struct shf_verify *v, struct sheaf_error *err)
{
	struct sheaf_checkpoint *step = v->step;

	if (step->view && shf_view_access(step->view))
		return shf_call_refuse(&step->run->team, SHF_CALL_VERIFY, step->made,
		                       shf_fail(err, SHEAF_EINVAL, "%s: is spread over the memory "
		                                "of several nodes, so it cannot be verified here; "
		                                "load it there, which checks it", step->path), err);
	return verify(v, err);
}

int shf_step_verify(struct sheaf_checkpoint *step, struct sheaf_report *report,
                    struct sheaf_error *err)
{
	struct shf_verify v = { .step = step, .report = report, .extra = true };

	return verify_unless_spread(&v, err);
}

int shf_step_verify_named(struct sheaf_checkpoint *step, struct sheaf_report *report,
                          struct sheaf_error *err)
{
	struct shf_verify v = { .step = step, .report = report };

	return verify_unless_spread(&v, err);
}

int shf_step_verify_into(struct sheaf_checkpoint *step, struct shf_verify_sink *sink,
                         struct sheaf_report *report, struct sheaf_error *err)
{
	struct shf_verify v = { .step = step, .sink = sink, .report = report };

	return verify(&v, err);
}
