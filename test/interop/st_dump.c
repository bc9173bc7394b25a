/* SPDX-License-Identifier: Apache-2.0 */
/* Says of each file named on stdin, one JSON line each, whether its header is taken and what it
 * holds; and writes what was taken anew, as Sheaf would, to OUT/<number of the line>.
 *
 * usage: st_dump OUT < PATHS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "json.h"
#include "safetensors.h"
#include "valid.h"

static bool read_file(const char *path, struct shf_buf *b)
{
	FILE *f = fopen(path, "rb");
	uint8_t chunk[65536];
	size_t n;

	if (!f)
		return false;
	while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
		shf_buf_add(b, chunk, n);
	return !(ferror(f) | fclose(f)) && !b->oom;
}

/* Empty ones first among equals, as the writer wants them. */
static int by_place(const void *a, const void *b)
{
	const struct shf_st_tensor *x = a, *y = b;

	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	if (!x->bytes != !y->bytes)
		return x->bytes ? 1 : -1;
	return strcmp(x->name, y->name);
}

static bool write_again(const char *path, struct shf_st *st, const struct shf_buf *file)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct sheaf_error err;
	bool ok = true;
	FILE *f;

	for (size_t i = 0; i < st->n; i++)
		if (st->tensors[i].ndim > SHEAF_DIMS_MAX ||
		    !shf_name_is_valid(st->tensors[i].name, strlen(st->tensors[i].name)))
			return true;
	qsort(st->tensors, st->n, sizeof(*st->tensors), by_place);
	if (shf_st_write(&b, st->tensors, st->n, &err) < 0) {
		fprintf(stderr, "%s: %s\n", path, err.msg);
		return false;
	}
	shf_buf_add(&b, file->data + st->header_bytes, file->len - (size_t)st->header_bytes);
	f = fopen(path, "wb");
	ok = f && !b.oom && fwrite(b.data, 1, b.len, f) == b.len;
	if (f && fclose(f))
		ok = false;
	shf_buf_release(&b);
	return ok;
}

static void say(struct shf_buf *out, const struct shf_st *st)
{
	shf_buf_adds(out, "{\"ok\":true,\"tensors\":[");
	for (size_t i = 0; i < st->n; i++) {
		const struct shf_st_tensor *t = &st->tensors[i];

		shf_buf_adds(out, i ? ",[" : "[");
		shf_json_put(out, t->name, strlen(t->name));
		shf_buf_addf(out, ",\"%s\",", shf_dtype(t->dtype)->name);
		if (t->ndim > SHEAF_DIMS_MAX)
			shf_buf_addf(out, "%" PRId32, t->ndim);
		for (int d = 0; t->ndim <= SHEAF_DIMS_MAX && d < t->ndim; d++)
			shf_buf_addf(out, "%c%" PRId64, d ? ',' : '[', t->shape[d]);
		if (t->ndim <= SHEAF_DIMS_MAX)
			shf_buf_adds(out, t->ndim ? "]" : "[]");
		shf_buf_addf(out, ",%" PRIu64 ",%" PRIu64 "]", st->header_bytes + t->off, t->bytes);
	}
	shf_buf_adds(out, "],\"format\":");
	if (st->format)
		shf_json_put(out, st->format, strlen(st->format));
	else
		shf_buf_adds(out, "null");
	shf_buf_adds(out, "}");
}

static int parse(struct shf_st *st, struct shf_arena *arena, const struct shf_buf *file,
		 const char *path, struct sheaf_error *err)
{
	uint8_t first[8] = { 0 };
	uint64_t header = 0;
	int rc;

	if (file->len >= 8)
		memcpy(first, file->data, 8);
	rc = shf_st_header_bytes(&header, first, file->len, path, err);
	if (rc == 0)
		rc = shf_st_parse(st, arena, file->data, (size_t)header, file->len, path, err);
	return rc;
}

static bool dump(const char *path, const char *again)
{
	struct shf_buf file = SHF_BUF_INIT, out = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_st st;
	bool ok = read_file(path, &file);
	int rc = ok ? parse(&st, &arena, &file, "x", &err) : 0;

	if (ok && rc == 0) {
		say(&out, &st);
		ok = write_again(again, &st, &file);
	} else if (ok) {
		shf_buf_adds(&out, "{\"ok\":false,\"why\":");
		shf_json_put(&out, err.msg, strlen(err.msg));
		shf_buf_adds(&out, "}");
	}
	ok = ok && !out.oom && printf("%.*s\n", (int)out.len, (char *)out.data) > 0;
	shf_arena_release(&arena);
	shf_buf_release(&file);
	shf_buf_release(&out);
	return ok;
}

int main(int argc, char **argv)
{
	char path[4096], again[4096];
	int line = 0;

	if (argc != 2)
		return 2;
	while (fgets(path, sizeof(path), stdin)) {
		path[strcspn(path, "\n")] = 0;
		snprintf(again, sizeof(again), "%s/%d", argv[1], line++);
		if (!dump(path, again)) {
			fprintf(stderr, "%s: cannot be read or written anew\n", path);
			return 1;
		}
	}
	return 0;
}
