/* SPDX-License-Identifier: Apache-2.0 */
/* Checks headers, attached files and indexes, and finds names that do not belong in the directory.
 * Ranks check different files, by number. Only rank 0 lists directories, because each rank would
 * find the same names. */
#include "verify_files.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "index.h"
#include "json.h"
#include "safetensors.h"
#include "sheaf-inspect.h"
#include "step.h"
#include "step_blocks.h"
#include "step_files.h"
#include "verify.h"
#include "verify_findings.h"

/* ---- headers ---- */

/* Returns the number of items of a tensor, as the header gives its shape. */
static uint64_t header_items(const struct shf_st_tensor *t)
{
	uint64_t n = 1;

	for (int32_t d = 0; d < t->ndim && d < SHEAF_DIMS_MAX; d++)
		n *= (uint64_t)t->shape[d];
	return n;
}

/* Checks that each tensor of the header is in the table with the same place, size and type. The
 * counts are compared first, so that no tensor of the table can be missing in the header. */
static int match_header(const struct shf_verify *v, uint32_t f, const struct shf_st *st,
                        struct shf_verify_at *at, struct sheaf_error *err)
{
	const struct shf_layout *l = &v->step->layout;
	const struct shf_sums *s = &v->step->sums;
	struct shf_sums_file sf = shf_sums_file(s, f);
	const char *family = l->families[l->files[f].family].name;

	/* Other readers of safetensors need {"format":"pt"}, and every save writes it. */
	if (!st->format || strcmp(st->format, "pt"))
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: its header lacks {\"format\":\"pt\"}",
		                v->step->path, at->file);
	if (st->n != sf.tensors_n || !always(st->header_bytes == sf.header_bytes))
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: its header has %" PRIu64 " bytes and "
		                "%zu tensors, sheaf.sums says %" PRIu32 " and %" PRIu32,
		                v->step->path, at->file, st->header_bytes, st->n, sf.header_bytes,
		                sf.tensors_n);
	for (size_t i = 0; i < st->n; i++) {
		const struct shf_st_tensor *t = &st->tensors[i];
		int64_t n = shf_sums_find(s, family, t->name);
		struct shf_sums_tensor r = { 0 };

		if (n >= 0)
			r = shf_sums_tensor(s, (uint64_t)n);
		if (n >= 0 && r.file == f && r.off == st->header_bytes + t->off &&
		    r.bytes == t->bytes && r.dtype == t->dtype && r.ndim == t->ndim &&
		    r.items == header_items(t))
			continue;
		if (n >= 0) {
			at->family = shf_sums_family(s, &r);
			at->name = shf_sums_name(s, &r);
		}
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: tensor %.140s is not as sheaf.sums "
		                "describes it", v->step->path, at->file, t->name);
	}
	return 0;
}

/* The length field is checked first, because it decides how many bytes are parsed. */
int shf_verify_header(const struct shf_verify *v, uint32_t f, const uint8_t *bytes, size_t n,
                      struct shf_verify_at *at, struct sheaf_error *err)
{
	const char *name = v->step->layout.files[f].name;
	uint64_t file_bytes = v->bytes[f], header;
	struct shf_arena arena = { 0 };
	struct shf_st st;
	int rc;

	*at = SHF_AT_FILE(name);
	rc = n < 8 ? shf_fail(err, SHEAF_EFORMAT, "%s: %zu bytes are not a header", name, n)
	           : shf_st_header_bytes(&header, bytes, file_bytes, name, err);
	if (rc == 0 && header != n)
		rc = shf_fail(err, SHEAF_ECORRUPT, "%s/%s: says that its header has %" PRIu64 " "
		              "bytes, sheaf.sums says %zu", v->step->path, name, header, n);
	if (rc == 0)
		rc = shf_st_parse(&st, &arena, bytes, n, file_bytes, name, err);
	if (rc == 0 && v->sums)
		rc = match_header(v, f, &st, at, err);
	shf_arena_release(&arena);
	return rc;
}

/* Returns the largest number under a key data_offsets, which is where the last tensor ends, counted
 * from the start of the data; 0 if there is no such number. The header may be invalid, so nothing
 * else in it is used. */
static uint64_t data_end(const uint8_t *bytes, size_t n)
{
	struct shf_json j;
	enum shf_json_kind kind;
	uint64_t end = 0, x;
	bool offsets = false;

	shf_json_init(&j, bytes + 8, n - 8);
	j.depth_max = SHF_JSON_DEPTH_MAX;
	while ((kind = shf_json_next(&j)) > SHF_JSON_END) {
		if (kind == SHF_JSON_KEY) {
			size_t len;
			const char *key = shf_json_text(&j, &len);

			offsets = len == 12 && memcmp(key, "data_offsets", 12) == 0;
		} else if (offsets && kind == SHF_JSON_NUMBER && shf_json_u64(&j, &x) && x > end) {
			end = x;
		}
	}
	shf_json_release(&j);
	return end;
}

/* Classifies the damage of a foreign file whose header is not valid for the length of the file. If
 * the header would be valid for another length, the file was cut or has grown ("truncated",
 * "extended"); otherwise the header itself is damaged. */
static int32_t foreign_kind(uint64_t file_bytes, const uint8_t *bytes, size_t n)
{
	struct shf_arena arena = { 0 };
	struct shf_st st;
	uint64_t end;
	int rc;

	if (file_bytes < 8 || n < 8)
		return SHEAF_FINDING_TRUNCATED;
	if (file_bytes - 8 < shf_get64(bytes))
		return shf_get64(bytes) <= SHF_ST_HEADER_MAX ? SHEAF_FINDING_TRUNCATED
		                                                : SHEAF_FINDING_HEADER;
	/* The file has the whole header. Its offsets show how long the file should be. */
	end = data_end(bytes, n);
	if (end > UINT64_MAX - n || end + n == file_bytes)
		return SHEAF_FINDING_HEADER;
	rc = shf_st_parse(&st, &arena, bytes, n, end + n, "", NULL);
	shf_arena_release(&arena);
	return rc < 0 ? SHEAF_FINDING_HEADER
	     : end + n > file_bytes ? SHEAF_FINDING_TRUNCATED : SHEAF_FINDING_EXTENDED;
}

/* Finds the length of the header of file f, and how many bytes to read for it. If there are sums,
 * *take is a number of whole blocks, so that the header is parsed only if its blocks are right.
 * Returns 0 or a negative errno. */
static int header_extent(struct shf_verify *v, uint32_t f, int fd, uint64_t *header, uint64_t *take)
{
	uint64_t bytes = v->bytes[f];
	uint8_t first[8];
	int64_t got;

	if (v->sums) {
		*header = shf_sums_file(&v->step->sums, f).header_bytes;
		*take = (*header + SHF_BLOCK - 1) / SHF_BLOCK * SHF_BLOCK;
		*take = *take < bytes ? *take : bytes;
		return 0;
	}
	got = shf_verify_read(v, fd, first, 8, 0);
	if (got < 0)
		return (int)got;
	*header = 8;    /* if the length field is missing or invalid */
	if (got == 8 && shf_st_header_bytes(header, first, bytes, "", NULL) < 0)
		*header = 8;
	*header = *header < bytes ? *header : bytes;
	*take = *header;
	return 0;
}

/* Checks one header, if its blocks are right. Wrong blocks and short files were reported when the
 * data was read; a second finding for the same damage would only confuse. */
static void check_header(struct shf_verify *v, uint32_t f)
{
	const struct sheaf_checkpoint *step = v->step;
	uint64_t header = 0, take = 0;
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_verify_at at;
	struct sheaf_error e;
	int fd = shf_step_fd(v->step, f, &e), rc = fd;
	int64_t got;

	if (rc >= 0) {
		rc = header_extent(v, f, fd, &header, &take);
		if (rc < 0)
			rc = shf_fail_sys(&e, -rc, "%s/%s: reading its header", step->path,
			                  step->layout.files[f].name);
	}
	if (rc == 0 && take && !shf_buf_extend(&b, (size_t)take))
		rc = shf_fail(&e, SHEAF_ENOMEM, "%s: no memory for a header of %" PRIu64 " bytes",
		              step->layout.files[f].name, take);
	if (rc == 0) {
		got = shf_verify_read(v, fd, b.data, take, 0);
		if (got < 0)
			rc = shf_fail_sys(&e, (int)-got, "%s/%s: reading its header", step->path,
			                  step->layout.files[f].name);
		else if ((uint64_t)got < take)
			goto out; /* reported when the blocks were read */
	}
	if (rc < 0) {
		shf_verify_blind(v, rc, &e);
		goto out;
	}
	if (v->sums && shf_blocks_check(step, f, 0, b.data, take, NULL, &e) < 0)
		goto out; /* reported by shf_verify_data */
	/* If there are sums, the blocks are right now, so an invalid header was written like
	 * that. */
	rc = shf_verify_header(v, f, b.data, (size_t)header, &at, &e);
	if (rc == SHEAF_ENOMEM)
		shf_verify_blind(v, rc, &e);
	else if (rc < 0 && step->sound)
		shf_verify_find(v, SHEAF_FINDING_HEADER, &at, &e);
	else if (rc < 0)
		shf_verify_find(v, foreign_kind(v->bytes[f], b.data, (size_t)header), &at, &e);
out:
	shf_buf_release(&b);
}

/* Skips files that are missing or have a wrong length: these were reported already. */
void shf_verify_headers(struct shf_verify *v)
{
	const struct shf_team *team = &v->step->run->team;

	for (uint32_t f = (uint32_t)team->rank; f < v->step->layout.files_n;
	     f += (uint32_t)team->ranks)
		if (v->bytes[f] != SHF_GONE && v->bytes[f] == shf_verify_want(v, f))
			check_header(v, f);
}

/* ---- indexes ---- */

#define INDEX_TAIL ".safetensors.index.json"
#define INDEX_MAX (UINT64_C(256) << 20) /* larger indexes are not parsed, only summed */

/* Returns the family whose index has this name, or NULL if the file is no index. */
static const struct shf_lt_family *index_family(const struct shf_verify *v, const char *name)
{
	const struct shf_layout *l = &v->step->layout;
	const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
	size_t n = strlen(base), tail = sizeof(INDEX_TAIL) - 1;

	if (n <= tail || strcmp(base + n - tail, INDEX_TAIL))
		return NULL;
	for (size_t i = 0; i < l->families_n; i++)
		if (strlen(l->families[i].name) == n - tail &&
		    memcmp(l->families[i].name, base, n - tail) == 0)
			return &l->families[i];
	return NULL;
}

/* Checks that the index lists each tensor of the family in the right file, and no other tensor. The
 * totals are compared last, because any of the other faults would make them wrong as well. */
static int match_family_index(const struct shf_verify *v, const struct shf_lt_family *fam,
                              const struct shf_index *ix, struct shf_verify_at *at,
                              struct sheaf_error *err)
{
	const struct shf_layout *l = &v->step->layout;
	const struct shf_sums *s = &v->step->sums;
	uint64_t tensors = 0, bytes = 0;

	for (uint32_t f = fam->first_file; f < fam->first_file + fam->files_n; f++) {
		struct shf_sums_file sf = shf_sums_file(s, f);

		tensors += sf.tensors_n;
		bytes += sf.bytes - sf.header_bytes;
	}
	for (size_t i = 0; i < ix->n; i++) {
		int64_t n = shf_sums_find(s, fam->name, ix->entries[i].name);
		const char *file, *slash;

		at->name = ix->entries[i].name;
		if (n < 0)
			return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: lists tensor %.140s, which is "
			                "not stored", v->step->path, at->file, at->name);
		file = l->files[shf_sums_tensor(s, (uint64_t)n).file].name;
		slash = strrchr(file, '/');
		if (strcmp(slash ? slash + 1 : file, ix->entries[i].file))
			return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: says that %.140s is in "
			                "%.100s, but it is in %s", v->step->path, at->file,
			                at->name,
			                ix->entries[i].file, file);
	}
	at->name = NULL;
	if (ix->n != tensors)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: lists %zu tensors, but %" PRIu64 " "
		                "are stored",
		                v->step->path, at->file, ix->n, tensors);
	if (ix->total_size != UINT64_MAX && ix->total_size != bytes)
		return shf_fail(err, SHEAF_ECORRUPT, "%s/%s: total_size is %" PRIu64 ", the "
		                "tensors have %" PRIu64 " bytes", v->step->path, at->file,
		                ix->total_size, bytes);
	return 0;
}

/* Parses the index of a family and compares it with the sums. */
static void check_index(struct shf_verify *v, const struct shf_lt_family *fam, const char *name,
                        const struct shf_buf *text)
{
	struct shf_verify_at at = { name, fam->name, NULL, -1, -1 };
	struct shf_arena arena = { 0 };
	struct shf_index ix = { 0 };
	struct sheaf_error e;
	int rc = shf_index_parse(&ix, &arena, text->data, text->len, name, &e);

	if (rc == 0)
		rc = match_family_index(v, fam, &ix, &at, &e);
	at.family = at.name ? fam->name : NULL;
	if (rc == SHEAF_ENOMEM)
		shf_verify_blind(v, rc, &e);
	else if (rc < 0)
		shf_verify_find(v, SHEAF_FINDING_INDEX, &at, &e);
	shf_arena_release(&arena);
}

/* ---- small files ---- */

/* Whether there is a sink and it still gets bytes: there is no finding and no failure so far. */
static bool is_for_the_sink(const struct shf_verify *v)
{
	return v->sink && !v->over && !v->findings && !v->blind;
}

/* Stops the copy if a call of the sink returned a failure. The failure is recorded as blind,
 * because it proves nothing about the step. */
static void note_sink_result(struct shf_verify *v, int rc, const struct sheaf_error *e)
{
	if (rc < 0)
		shf_verify_blind(v, rc, e);
	v->over |= rc < 0;
}

/* Reads a small file in chunks: sums it, passes it to the sink, and appends it to `text` if that is
 * not NULL. Stops at the length in the manifest, so that a file that grows meanwhile is not read
 * for ever. */
static int read_small_file(struct shf_verify *v, int fd, const struct shf_mf_file *m,
                           struct shf_buf *text, uint64_t *crc, struct sheaf_error *err)
{
	uint64_t at = 0, n;
	struct sheaf_error e;
	int64_t got;

	*crc = shf_crc64(NULL, 0);
	if (text)
		(void)shf_buf_reserve(text, (size_t)m->bytes);
	do {
		/* An empty file is read once, too: the sink must get one call for each file. */
		n = m->bytes - at < v->chunk_bytes ? m->bytes - at : v->chunk_bytes;
		got = shf_verify_read(v, fd, v->chunk[0], n, at);
		if (got < 0)
			return shf_fail_sys(err, (int)-got, "%s/%s: reading %" PRIu64 " bytes at %"
			                    PRIu64, v->step->path, m->name, n, at);
		*crc = shf_crc64_more(*crc, v->chunk[0], (size_t)got);
		if (text)
			shf_buf_add(text, v->chunk[0], (size_t)got);
		if (is_for_the_sink(v))
			note_sink_result(v, v->sink->small(v->sink, m, at, v->chunk[0],
			                                   (uint64_t)got, &e), &e);
		at += (uint64_t)got;
	} while ((uint64_t)got == n && at < m->bytes);
	if (text && text->oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for %" PRIu64 " bytes", m->name,
		                m->bytes);
	return 0;
}

/* Checks the sum of one attached file, and compares an index with the table of sums. The sink gets
 * the bytes while the file is read, but keep() is called only if the sum was right. */
static void check_small(struct shf_verify *v, const struct shf_mf_file *m)
{
	const struct sheaf_checkpoint *step = v->step;
	const struct shf_sys *sys = step->run->sys;
	bool keep = v->sums && m->bytes <= INDEX_MAX;
	const struct shf_lt_family *fam = keep ? index_family(v, m->name) : NULL;
	struct shf_verify_at at = SHF_AT_FILE(m->name);
	struct shf_buf text = SHF_BUF_INIT;
	struct sheaf_error e;
	const char *base;
	uint64_t crc = 0, bytes;
	int dir = shf_verify_enter(v, m->name, &base), fd, rc;

	if (shf_verify_plain(v, dir, base, m->name, step->sound ? m->bytes : UINT64_MAX, &bytes)) {
		fd = shf_sys_open(sys, dir, base, shf_verify_follow(v), 0);
		/* The file may have just been deleted. The code must not be ENOENT, which would
		 * mean that there is no such step. */
		rc = fd < 0 ? shf_fail_io(&e, -fd, "%s/%s", step->path, m->name)
		            : read_small_file(v, fd, m, fam ? &text : NULL, &crc, &e);
		if (fd >= 0)
			shf_sys_close(sys, fd);
		if (rc < 0) {
			shf_verify_blind(v, rc, &e);
		} else if (step->sound && crc != m->crc) {
			shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: checksum %016" PRIx64 ", want %016"
			         PRIx64, step->path, m->name, crc, m->crc);
			shf_verify_find(v, SHEAF_FINDING_CHECKSUM, &at, &e);
		} else if (fam) {
			check_index(v, fam, m->name, &text);
		}
	}
	if (is_for_the_sink(v))
		note_sink_result(v, v->sink->keep(v->sink, m, &e), &e);
	shf_verify_leave(v, dir);
	shf_buf_release(&text);
}

/* Small files are dealt to the ranks round robin. */
void shf_verify_small(struct shf_verify *v)
{
	const struct shf_team *team = &v->step->run->team;

	for (size_t i = (size_t)team->rank; i < v->step->plain_n; i += (size_t)team->ranks)
		check_small(v, &v->step->plain[i]);
}

/* ---- files that do not belong to the step ---- */

/* A list of names, sorted once it is complete. */
struct names {
	const char **a;                 /* owned array */
	size_t n, cap;
	bool own;                       /* the strings are owned, too */
};

/* Appends a name to the list, as a copy if l->own. */
static int add_step_name(struct names *l, const char *name)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 32;
		const char **more = shf_realloc(l->a, cap, sizeof(*more));

		if (!more)
			return -ENOMEM;
		l->a = more;
		l->cap = cap;
	}
	l->a[l->n] = l->own ? shf_strdup(name) : name;
	return l->a[l->n] ? (l->n++, 0) : -ENOMEM;
}

/* Callback of shf_sys_list. Skips ".nfs" names: an NFS client makes such a file when a file is
 * deleted that a process still has open, and removes it by itself. */
static int add_entry_of_step(void *arg, const char *name)
{
	return strncmp(name, ".nfs", 4) == 0 ? 0 : add_step_name(arg, name);
}

static void names_release(struct names *l)
{
	for (size_t i = 0; l->own && i < l->n; i++)
		shf_free((void *)(uintptr_t)l->a[i]);
	shf_free(l->a);
}

static int order_step_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Collects all names that may be in the step's directory, folders included, and sorts them. */
static int known_names(const struct sheaf_checkpoint *step, struct names *known)
{
	const struct shf_layout *l = &step->layout;
	int rc = add_step_name(known, "sheaf.json");

	rc = rc == 0 ? add_step_name(known, "sheaf.sums") : rc;
	/* It is in a checkpoint that was taken back from the trash. */
	rc = rc == 0 ? add_step_name(known, "sheaf.pruned") : rc;
	for (size_t i = 0; i < l->files_n && rc == 0; i++)
		rc = add_step_name(known, l->files[i].name);
	for (size_t i = 0; i < step->plain_n && rc == 0; i++)
		rc = add_step_name(known, step->plain[i].name);
	for (size_t i = 0; i < l->families_n && rc == 0; i++)
		if (strcmp(l->families[i].dir, "."))
			rc = add_step_name(known, l->families[i].dir);
	if (rc == 0)
		qsort(known->a, known->n, sizeof(*known->a), order_step_names);
	return rc;
}

/* Reports the names in directory dir that are not in `known`. folder: prefix of these names in the
 * step, "" or for example "optimizer/". Returns 0 or a negative errno. */
static int find_extra_in(struct shf_verify *v, int dir, const char *folder,
                         const struct names *known)
{
	const struct shf_sys *sys = v->step->run->sys;
	struct names here = { .own = true };
	int rc = shf_sys_list(sys, dir, add_entry_of_step, &here);

	if (rc >= 0 && here.n)
		qsort(here.a, here.n, sizeof(*here.a), order_step_names);
	for (size_t i = 0; i < here.n && rc >= 0; i++) {
		size_t n = strlen(folder) + strlen(here.a[i]) + 1;
		char *name = shf_alloc(n, 1);
		struct shf_verify_at at = SHF_AT_FILE(name);
		const char *key = name;
		struct sheaf_error e;

		if (!name) {
			rc = -ENOMEM;
			break;
		}
		snprintf(name, n, "%s%s", folder, here.a[i]);
		if (!bsearch(&key, known->a, known->n, sizeof(*known->a), order_step_names)) {
			shf_fail(&e, SHEAF_ECORRUPT, "%s/%s: the manifest does not name it",
			         v->step->path, name);
			shf_verify_find(v, SHEAF_FINDING_EXTRA, &at, &e);
		}
		shf_free(name);
	}
	names_release(&here);
	return rc < 0 ? rc : 0;
}

/* Missing folders are skipped: their files were reported as missing already. */
void shf_verify_extra(struct shf_verify *v)
{
	const struct sheaf_checkpoint *step = v->step;
	const struct shf_sys *sys = step->run->sys;
	const struct shf_layout *l = &step->layout;
	struct names known = { .own = false };
	struct sheaf_error e;
	int rc = known_names(step, &known);

	if (rc == 0)
		rc = find_extra_in(v, step->dir, "", &known);
	for (size_t i = 0; i < l->families_n && rc == 0; i++) {
		char folder[64];
		int dir;

		if (strcmp(l->families[i].dir, ".") == 0)
			continue;
		dir = shf_sys_open(sys, step->dir, l->families[i].dir,
				   SHF_O_DIR | shf_verify_follow(v), 0);
		if (dir == -ENOENT || dir == -ENOTDIR || dir == -ELOOP)
			continue; /* its files were reported as missing */
		if (dir < 0) {
			rc = dir;
			break;
		}
		snprintf(folder, sizeof(folder), "%s/", l->families[i].dir);
		rc = find_extra_in(v, dir, folder, &known);
		shf_sys_close(sys, dir);
	}
	if (rc < 0) {
		rc = shf_fail_sys(&e, -rc, "%s: listing it", step->path);
		shf_verify_blind(v, rc, &e);
	}
	names_release(&known);
}
