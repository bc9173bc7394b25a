/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files and notes in a commit. Every rank sends what it was given to rank 0. Rank 0 checks
 * that ranks which give the same name give the same contents, and chooses the lowest of them to
 * write the file.
 *
 * Message to rank 0: u32 n, then n times: u8 kind (0 file, 1 note), u16 name bytes, name; of a file
 * u64 bytes, u64 crc and, if files are carried, its bytes; of a note u32 value bytes, value.
 * Message from rank 0: u32 n, then n times u16 name bytes, name, u32 rank. */
#include "save_attach_gather.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "save.h"
#include "small_files.h"
#include "state.h"

/* One attached file or note of one rank, as decoded on rank 0. */
struct shf_save_attach_entry {
	const char *name, *value;       /* in the arena; value: of a note */
	const uint8_t *data;            /* of a file, if files are carried; borrowed from the
	                                 * message */
	uint64_t bytes, crc;            /* bytes: length of the file, or of a note's value; crc: of
	                                 * the file, 0 for a note */
	uint32_t rank;                  /* the rank that gave it */
	bool note;
};

static void put_note(struct shf_buf *b, const char *key, const char *value)
{
	shf_buf_u8(b, 1);
	shf_buf_u16(b, (uint16_t)strlen(key));
	shf_buf_adds(b, key);
	shf_buf_u32(b, (uint32_t)strlen(value));
	shf_buf_adds(b, value);
}

/* How many notes are made from the state: for each stream of rank bytes (sheaf_state_rank_bytes)
 * the rule for another number of ranks. */
static uint32_t rules_n(const struct sheaf_state *state)
{
	uint32_t n = 0;

	for (size_t i = 0; i < state->n; i++)
		n += state->slices[i].stream.stream != NULL;
	return n;
}

void shf_save_attach_put(const struct sheaf_save *save, bool carry, struct shf_buf *b)
{
	uint32_t given = (uint32_t)(save->given.attached_n + save->given.notes_n);

	shf_buf_u32(b, given + rules_n(save->state));
	for (size_t i = 0; i < save->given.attached_n; i++) {
		const struct shf_attached *a = &save->given.attached[i];

		shf_buf_u8(b, 0);
		shf_buf_u16(b, (uint16_t)strlen(a->name));
		shf_buf_adds(b, a->name);
		shf_buf_u64(b, a->n);
		shf_buf_u64(b, shf_crc64(a->bytes, a->n));
		if (carry)
			shf_buf_add(b, a->bytes, a->n);
	}
	for (size_t i = 0; i < save->given.notes_n; i++)
		put_note(b, save->given.notes[i].key, save->given.notes[i].value);
	for (size_t i = 0; i < save->state->n; i++) {
		const struct shf_stream *s = &save->state->slices[i].stream;
		char key[80];

		if (!s->stream)
			continue;
		snprintf(key, sizeof(key), "ranks.%s", s->stream);
		put_note(b, key, s->rule);
	}
}

/* Copies the next n bytes into the arena as a string. NULL: no memory, or the message is too short
 * (c->bad). */
static char *take_text(struct shf_arena *arena, struct shf_cur *c, size_t n)
{
	const uint8_t *p = shf_cur_bytes(c, n);

	return always(p) ? shf_arena_strdup(arena, (const char *)p, n) : NULL;
}

/* Decodes one entry. EBUG, ENOMEM. */
static int take_one_given(struct shf_save_attach_entry *g, bool carry, struct shf_arena *arena,
                    struct shf_cur *c)
{
	g->note = shf_cur_u8(c);
	g->name = take_text(arena, c, shf_cur_u16(c));
	if (!g->note) {
		g->bytes = shf_cur_u64(c);
		g->crc = shf_cur_u64(c);
		g->data = carry ? shf_cur_bytes(c, (size_t)g->bytes) : NULL;
	} else {
		g->bytes = shf_cur_u32(c);
		g->value = take_text(arena, c, (size_t)g->bytes);
	}
	if (!always(!c->bad))
		return SHEAF_EBUG;
	return g->name && (!g->note || g->value) ? 0 : SHEAF_ENOMEM;
}

int shf_save_attach_take(struct shf_save_attach_in *in, uint32_t rank, bool carry,
                         struct shf_arena *arena, struct shf_cur *c)
{
	uint32_t n = shf_cur_u32(c);
	struct shf_save_attach_entry *more = shf_realloc(in->a, in->n + n, sizeof(*more));
	int rc = 0;

	if (!more)
		return SHEAF_ENOMEM;
	in->a = more;
	for (; n > 0 && rc == 0; n--) {
		in->a[in->n] = (struct shf_save_attach_entry){ .rank = rank };
		rc = take_one_given(&in->a[in->n], carry, arena, c);
		in->n += rc == 0;
	}
	return rc;
}

/* Sorts files before notes, then by name, then by rank, so that the entries of one name lie
 * together with that of the lowest rank first. */
static int given_order(const void *a, const void *b)
{
	const struct shf_save_attach_entry *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	if (x->note != y->note)
		return x->note ? 1 : -1;
	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sorts the entries, and keeps one of each name, that of the lowest rank. EINVAL if ranks give
 * different contents, or if all notes are too long. */
static int unite_given(struct shf_save_attach_entry *g, size_t *n, struct sheaf_error *err)
{
	size_t kept = 0, notes = 0;

	if (*n)
		qsort(g, *n, sizeof(*g), given_order);
	for (size_t i = 0; i < *n; i++) {
		struct shf_save_attach_entry *last = kept ? &g[kept - 1] : NULL;

		if (!last || last->note != g[i].note || strcmp(last->name, g[i].name)) {
			notes += g[i].note ? strlen(g[i].name) + g[i].bytes : 0;
			g[kept++] = g[i];
			continue;
		}
		if (last->bytes != g[i].bytes || last->crc != g[i].crc ||
		    (g[i].note && strcmp(last->value, g[i].value)))
			return shf_fail(err, SHEAF_EINVAL,
					"%s %s: ranks %u and %u give different %s; give it on one "
					"rank, or the same on all",
					g[i].note ? "note" : "attached file", g[i].name, last->rank,
					g[i].rank, g[i].note ? "values" : "bytes");
	}
	*n = kept;
	if (notes > 524288)
		return shf_fail(err, SHEAF_EINVAL, "the notes of all ranks are %zu bytes, at most "
		                "512 KiB", notes);
	return 0;
}

/* Makes the lists for the manifest, and encodes in `owners` which rank writes which file. */
static int name_writers(struct shf_save_attach_entry *g, size_t n, struct shf_arena *arena,
                        struct shf_given *out, struct shf_buf *owners, struct sheaf_error *err)
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

/* Writes one file that this rank was given into the stage. */
static int write_one(struct sheaf_save *save, struct shf_small_files *smalls, const char *name,
                     size_t name_n, struct sheaf_error *err)
{
	for (size_t i = 0; always(i < save->given.attached_n); i++) {
		const struct shf_attached *a = &save->given.attached[i];

		if (strlen(a->name) == name_n && memcmp(a->name, name, name_n) == 0)
			return shf_small_files_put(smalls, save->disk.stage.dir, a->name, a->bytes,
			                           a->n, err);
	}
	return shf_fail(err, SHEAF_EBUG, "asked to write %.*s, which this rank was not given",
			(int)name_n, name);
}

int shf_save_attach_unite(struct shf_save_attach_in *in, struct shf_arena *arena,
                          struct shf_given *out, struct shf_buf *owners, struct sheaf_error *err)
{
	int rc = unite_given(in->a, &in->n, err);

	return rc == 0 ? name_writers(in->a, in->n, arena, out, owners, err) : rc;
}

void shf_save_attach_free(struct shf_save_attach_in *in)
{
	shf_free(in->a);
}

int shf_save_attach_write(struct sheaf_save *save, const struct shf_buf *owners,
                          struct sheaf_error *err)
{
	struct shf_cur c = { owners->data, owners->data + owners->len, false };
	struct shf_small_files smalls = { .run = save->run, .step = save->id.step };
	uint32_t n = shf_cur_u32(&c);
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		size_t len = shf_cur_u16(&c);
		const char *name = (const char *)shf_cur_bytes(&c, len);
		uint32_t rank = shf_cur_u32(&c);

		if (!always(!c.bad))
			rc = shf_fail(err, SHEAF_EBUG, "the list of attached files is incomplete");
		else if (rank == (uint32_t)save->run->team.rank)
			rc = write_one(save, &smalls, name, len, err);
	}
	return shf_small_files_sync(&smalls, rc, err);
}
