/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files and notes: every rank says what it was given, rank 0 checks that ranks that give
 * the same name mean the same, names the lowest one as its writer, and everyone writes his own.
 *
 * Wire to rank 0: u8 kind (0 file, 1 note), u16 name bytes, name; file: u64 bytes, u64 crc; note:
 * u32 value bytes, value; carried: then the file's bytes. From rank 0: u32 n, then u16 name bytes,
 * name, u32 rank each.
 */
#include "save_attach.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "save.h"
#include "small_files.h"
#include "state.h"

struct given {
	const char *name, *value;       /* value: notes */
	const uint8_t *data;            /* of files that are carried */
	uint64_t bytes, crc;
	uint32_t rank;
	bool note;
};

static void say_note(struct shf_buf *b, const char *key, const char *value)
{
	shf_buf_u8(b, 1);
	shf_buf_u16(b, (uint16_t)strlen(key));
	shf_buf_adds(b, key);
	shf_buf_u32(b, (uint32_t)strlen(value));
	shf_buf_adds(b, value);
}

static void say(const struct sheaf_save *save, bool carry, struct shf_buf *b)
{
	for (size_t i = 0; i < save->attached_n; i++) {
		const struct shf_attached *a = &save->attached[i];

		shf_buf_u8(b, 0);
		shf_buf_u16(b, (uint16_t)strlen(a->name));
		shf_buf_adds(b, a->name);
		shf_buf_u64(b, a->n);
		shf_buf_u64(b, shf_crc64(a->bytes, a->n));
		if (carry)
			shf_buf_add(b, a->bytes, a->n);
	}
	for (size_t i = 0; i < save->notes_n; i++)
		say_note(b, save->notes[i].key, save->notes[i].value);
	for (size_t i = 0; i < save->state->n; i++) {
		const struct shf_stream *s = &save->state->slices[i].stream;
		char key[80];

		if (!s->stream)
			continue;
		snprintf(key, sizeof(key), "ranks.%s", s->stream);
		say_note(b, key, s->rule);
	}
}

static char *text(struct shf_arena *arena, struct shf_cur *c, size_t n)
{
	const uint8_t *p = shf_cur_bytes(c, n);

	return always(p) ? shf_arena_strdup(arena, (const char *)p, n) : NULL;
}

static int hear(const struct shf_buf *in, const size_t *in_bytes, int ranks, bool carry,
                struct shf_arena *arena, struct given **out, size_t *n)
{
	struct shf_cur c = { in->data, in->data, false };
	size_t cap = 0;

	for (int r = 0; r < ranks; r++) {
		c.end = c.p + in_bytes[r];
		while (c.p < c.end) {
			struct given g = { .note = shf_cur_u8(&c), .rank = (uint32_t)r };

			g.name = text(arena, &c, shf_cur_u16(&c));
			if (!g.note) {
				g.bytes = shf_cur_u64(&c);
				g.crc = shf_cur_u64(&c);
				g.data = carry ? shf_cur_bytes(&c, (size_t)g.bytes) : NULL;
			} else {
				g.bytes = shf_cur_u32(&c);
				g.value = text(arena, &c, (size_t)g.bytes);
			}
			if (!always(!c.bad))
				return SHEAF_EBUG;
			if (!g.name || (g.note && !g.value))
				return SHEAF_ENOMEM;
			if (*n == cap) {
				struct given *more =
				    shf_realloc(*out, cap = cap ? 2 * cap : 16, sizeof(g));

				if (!more)
					return SHEAF_ENOMEM;
				*out = more;
			}
			(*out)[(*n)++] = g;
		}
	}
	return 0;
}

static int order(const void *a, const void *b)
{
	const struct given *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	if (x->note != y->note)
		return x->note ? 1 : -1;
	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

static int unite(struct given *g, size_t *n, struct sheaf_error *err)
{
	size_t kept = 0, notes = 0;

	if (*n)
		qsort(g, *n, sizeof(*g), order);
	for (size_t i = 0; i < *n; i++) {
		struct given *last = kept ? &g[kept - 1] : NULL;

		if (!last || last->note != g[i].note || strcmp(last->name, g[i].name)) {
			notes += g[i].note ? strlen(g[i].name) + g[i].bytes : 0;
			g[kept++] = g[i];
			continue;
		}
		if (last->bytes != g[i].bytes || last->crc != g[i].crc ||
		    (g[i].note && strcmp(last->value, g[i].value)))
			return shf_fail(err, SHEAF_EINVAL,
					"%s %s: ranks %u and %u give different %s",
					g[i].note ? "note" : "attached file", g[i].name, last->rank,
					g[i].rank, g[i].note ? "values" : "bytes");
	}
	*n = kept;
	if (notes > 524288)
		return shf_fail(err, SHEAF_EINVAL, "the notes of all ranks are %zu bytes, at most "
		                "512 KiB", notes);
	return 0;
}

/* Rank 0: the lists for the manifest, and who writes which file. */
static int decide(struct given *g, size_t n, struct shf_arena *arena, struct shf_given *out,
                  struct shf_buf *owners, struct sheaf_error *err)
{
	uint32_t files = 0;

	out->files = shf_arena_alloc(arena, n + 1, sizeof(*out->files));
	out->notes = shf_arena_alloc(arena, n + 1, sizeof(*out->notes));
	out->data = shf_arena_alloc(arena, n + 1, sizeof(*out->data));
	if (!out->files || !out->notes || !out->data)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu attached files", n);
	for (size_t i = 0; i < n; i++)
		files += !g[i].note;
	shf_buf_u32(owners, files);
	for (size_t i = 0; i < n; i++) {
		if (g[i].note) {
			out->notes[out->notes_n++] = (struct shf_mf_note){ g[i].name, g[i].value };
			continue;
		}
		out->data[out->files_n] = g[i].data;
		out->files[out->files_n++] =
		    (struct shf_mf_file){ g[i].name, g[i].bytes, g[i].crc };
		shf_buf_u16(owners, (uint16_t)strlen(g[i].name));
		shf_buf_adds(owners, g[i].name);
		shf_buf_u32(owners, g[i].rank);
	}
	return owners->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for attached files") : 0;
}

static int write_one(struct sheaf_save *save, struct shf_smalls *smalls, const char *name,
                     size_t name_n, struct sheaf_error *err)
{
	for (size_t i = 0; always(i < save->attached_n); i++) {
		const struct shf_attached *a = &save->attached[i];

		if (strlen(a->name) == name_n && memcmp(a->name, name, name_n) == 0)
			return shf_small_put(smalls, save->stage.dir, a->name, a->bytes, a->n, err);
	}
	return shf_fail(err, SHEAF_EBUG, "asked to write %.*s, which was not given here",
			(int)name_n, name);
}

static int write_mine(struct sheaf_save *save, const struct shf_buf *owners,
                      struct sheaf_error *err)
{
	struct shf_cur c = { owners->data, owners->data + owners->len, false };
	struct shf_smalls smalls = { .run = save->run, .step = save->step };
	uint32_t n = shf_cur_u32(&c);
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		size_t len = shf_cur_u16(&c);
		const char *name = (const char *)shf_cur_bytes(&c, len);
		uint32_t rank = shf_cur_u32(&c);

		if (!always(!c.bad))
			rc = shf_fail(err, SHEAF_EBUG, "the list of attached files is torn");
		else if (rank == (uint32_t)save->run->team.rank)
			rc = write_one(save, &smalls, name, len, err);
	}
	return shf_smalls_sync(&smalls, rc, err);
}

static int gather(struct sheaf_save *save, bool carry, struct shf_arena *arena,
                  struct shf_given *out, struct shf_buf *in, struct sheaf_error *err)
{
	struct shf_team *team = &save->run->team;
	struct shf_buf *to = shf_zalloc((size_t)team->ranks, sizeof(*to));
	size_t *in_bytes = shf_zalloc((size_t)team->ranks, sizeof(*in_bytes)), n = 0;
	struct shf_buf owners = SHF_BUF_INIT;
	struct given *g = NULL;
	int rc = to && in_bytes ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for attached files");

	if (rc == 0)
		say(save, carry, &to[0]);
	rc = shf_agree(team, rc, err);
	if (rc == 0)
		rc = shf_exchange(team, 0, to, in, in_bytes, err);
	if (rc == 0 && team->rank == 0) {
		rc = hear(in, in_bytes, team->ranks, carry, arena, &g, &n);
		if (rc < 0)
			shf_fail(err, rc, "attached files: %s", shf_strerror(rc));
		if (rc == 0)
			rc = unite(g, &n, err);
		if (rc == 0)
			rc = decide(g, n, arena, out, &owners, err);
		rc = shf_agree(team, rc, err);
	} else if (rc == 0) {
		rc = shf_agree(team, 0, err);
	}
	if (rc == 0 && !carry)
		rc = shf_bcast_buf(team, 0, &owners, err);
	if (rc == 0 && !carry)
		rc = shf_agree(team, write_mine(save, &owners, err), err);
	for (int r = 0; to && r < team->ranks; r++)
		shf_buf_release(&to[r]);
	shf_free(to);
	shf_free(in_bytes);
	shf_free(g);
	shf_buf_release(&owners);
	return rc;
}

int shf_attach_gather(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *out,
                      struct sheaf_error *err)
{
	struct shf_buf in = SHF_BUF_INIT;
	int rc = gather(save, false, arena, out, &in, err);

	shf_buf_release(&in);
	return rc;
}

int shf_attach_carry(struct sheaf_save *save, struct shf_arena *arena, struct shf_given *out,
                     struct shf_buf *in, struct sheaf_error *err)
{
	return gather(save, true, arena, out, in, err);
}
