/* SPDX-License-Identifier: Apache-2.0 */
#include "foreign_st.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "valid.h"

#define LOOK (UINT64_C(64) << 10)

static int st_no_memory(const struct shf_foreign *f, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of tensors", f->path);
}

/* Reads the header of a safetensors file into *bytes. */
static int st_read_head(struct shf_foreign *f, uint32_t file, struct shf_buf *bytes, uint64_t *size,
                        struct sheaf_error *err)
{
	struct shf_region r;
	uint64_t n = 0;
	uint8_t first[8];
	int rc = shf_foreign_region(f, file, &r, err);

	if (rc < 0)
		return rc;
	*size = r.bytes;
	rc = r.bytes < 8 ? 0 : shf_region_read(&r, first, 8, 0, err);
	if (rc == 0)
		rc = shf_st_header_bytes(&n, first, r.bytes, r.where, err);
	if (rc == 0 && !shf_buf_room(bytes, (size_t)n))
		rc = st_no_memory(f, err);
	if (rc == 0)
		rc = shf_region_read(&r, bytes->data, n, 0, err);
	shf_foreign_region_end(f, file);
	return rc;
}

int shf_foreign_st_head(struct shf_foreign *f, uint32_t file, struct shf_arena *arena,
                        struct shf_st *st, struct sheaf_error *err)
{
	struct shf_buf bytes = SHF_BUF_INIT;
	uint64_t size = 0;
	int rc = st_read_head(f, file, &bytes, &size, err);

	*st = (struct shf_st){ 0 };
	if (rc == 0)
		rc = shf_st_parse(st, arena, bytes.data, bytes.len, size,
		                  shf_foreign_file(f, file)->where, err);
	shf_buf_release(&bytes);
	return rc;
}

int shf_foreign_st_read(struct shf_foreign *f, const char *name, uint32_t *file, struct shf_st *st,
                        struct sheaf_error *err)
{
	int rc = shf_foreign_add_file(f, name, strlen(name), file, err);

	*st = (struct shf_st){ 0 };
	return rc < 0 ? rc : shf_foreign_st_head(f, *file, &f->arena, st, err);
}

int shf_foreign_slurp(struct shf_foreign *f, const char *folder, const char *name, uint64_t most,
                      struct shf_buf *out, struct sheaf_error *err)
{
	struct shf_region r;
	uint32_t file;
	int rc = shf_foreign_add_file_in(f, folder, name, strlen(name), &file, err);

	if (rc == 0)
		rc = shf_foreign_region(f, file, &r, err);
	if (rc < 0)
		return rc;
	if (r.bytes > most)
		rc = shf_fail(err, SHEAF_EFORMAT, "%s: has %" PRIu64 " bytes, at most %" PRIu64
		              " are read", r.where, r.bytes, most);
	else if (r.bytes && !shf_buf_room(out, (size_t)r.bytes))
		rc = st_no_memory(f, err);
	else if (r.bytes)
		rc = shf_region_read(&r, out->data, r.bytes, 0, err);
	shf_foreign_region_end(f, file);
	return rc;
}

/* ---- names ---- */

static int names_add(void *arg, const char *name)
{
	struct shf_listing *l = arg;
	char *own;

	if (!shf_plain_is_valid(name))
		return 0;
	own = shf_arena_strdup(l->arena, name, strlen(name));
	if (own)
		shf_buf_add(&l->a, &own, sizeof(own));
	l->oom |= !own || l->a.oom;
	return 0;
}

static int names_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int shf_listing_read(struct shf_listing *l, struct shf_arena *arena, const struct shf_sys *sys,
                     int dir, const char *path, struct sheaf_error *err)
{
	int rc;

	*l = (struct shf_listing){ .arena = arena };
	rc = shf_sys_list(sys, dir, names_add, l);
	if (rc < 0)
		return shf_fail_sys(err, -rc, "%s", path);
	if (l->oom)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory for its list of files", path);
	if (l->a.len)
		qsort(l->a.data, shf_listing_n(l), sizeof(char *), names_order);
	return 0;
}

size_t shf_listing_n(const struct shf_listing *l)
{
	return l->a.len / sizeof(char *);
}

const char *shf_listing_at(const struct shf_listing *l, size_t i)
{
	return ((char **)(void *)l->a.data)[i];
}

bool shf_listing_has(const struct shf_listing *l, const char *name)
{
	return l->a.len && bsearch(&name, l->a.data, shf_listing_n(l), sizeof(char *), names_order);
}

int shf_begins_with_any(const struct shf_sys *sys, int dir, const char *name,
                        const char *const *texts, size_t texts_n, struct sheaf_error *err)
{
	uint8_t *head = shf_alloc(LOOK, 1);
	int64_t n = 0;
	int fd, rc = 0;

	if (!head)
		return shf_fail(err, SHEAF_ENOMEM, "%s: no memory to look at it", name);
	fd = shf_sys_open(sys, dir, name, 0, 0);
	if (fd >= 0) {
		n = shf_sys_pread(sys, fd, head, LOOK, 0);
		shf_sys_close(sys, fd);
	}
	for (size_t i = 0; i < texts_n && n > 0; i++)
		rc |= memmem(head, (size_t)n, texts[i], strlen(texts[i])) != NULL;
	shf_free(head);
	return rc;
}
