/* SPDX-License-Identifier: Apache-2.0 */
/* Attached files, notes and opaque bytes in a commit. Every rank sends what it was given to rank 0.
 * Rank 0 checks that ranks which give the same name give the same contents, and chooses the lowest
 * of them to write the file. Of the opaque bytes of all ranks it makes files (rank_files.h), which
 * it writes itself: the plan was made before their sizes were known, so it has no tensors for them.
 *
 * Message to rank 0: u32 n, then n times: u8 kind, u16 name bytes, name; of a file u64 bytes, u64
 * crc and, if files are carried, its bytes; of a note u32 value bytes, value; of a stream u64
 * bytes, u64 crc, its bytes.
 * Message from rank 0: u32 n, then n times u16 name bytes, name, u32 rank. */
#include "save_attach_gather.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crc64.h"
#include "err.h"
#include "rank_files.h"
#include "save.h"
#include "small_files.h"
#include "state.h"

enum { A_FILE, A_NOTE, A_STREAM };      /* kinds of entries, in the order of the sort */

/* One attached file, note or stream of one rank, as decoded on rank 0. */
struct shf_save_attach_entry {
	const char *name, *value;       /* in the arena; value: of a note */
	const uint8_t *data;            /* of a stream, and of a file if files are carried; borrowed
	                                 * from the message */
	uint64_t bytes, crc;            /* bytes: length of the contents, or of a note's value; crc:
	                                 * of the contents, 0 for a note */
	uint32_t rank;                  /* the rank that gave it */
	uint8_t kind;
};

static void put_note(struct shf_buf *b, const char *key, const char *value)
{
	shf_buf_u8(b, A_NOTE);
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
	uint32_t given = (uint32_t)(save->given.attached_n + save->given.notes_n +
	                            save->given.ranks_n);

	shf_buf_u32(b, given + rules_n(save->state));
	for (size_t i = 0; i < save->given.attached_n; i++) {
		const struct shf_attached *a = &save->given.attached[i];

		shf_buf_u8(b, A_FILE);
		shf_buf_u16(b, (uint16_t)strlen(a->name));
		shf_buf_adds(b, a->name);
		shf_buf_u64(b, a->n);
		shf_buf_u64(b, shf_crc64(a->bytes, a->n));
		if (carry)
			shf_buf_add(b, a->bytes, a->n);
	}
	for (size_t i = 0; i < save->given.notes_n; i++)
		put_note(b, save->given.notes[i].key, save->given.notes[i].value);
	for (size_t i = 0; i < save->given.ranks_n; i++) {
		const struct shf_rank_given *r = &save->given.ranks[i];

		shf_buf_u8(b, A_STREAM);
		shf_buf_u16(b, (uint16_t)strlen(r->stream));
		shf_buf_adds(b, r->stream);
		shf_buf_u64(b, r->n);
		shf_buf_u64(b, r->crc);
		shf_buf_add(b, r->bytes, r->n);
	}
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
	g->kind = shf_cur_u8(c);
	g->name = take_text(arena, c, shf_cur_u16(c));
	if (g->kind != A_NOTE) {
		g->bytes = shf_cur_u64(c);
		g->crc = shf_cur_u64(c);
		g->data = carry || g->kind == A_STREAM ? shf_cur_bytes(c, (size_t)g->bytes) : NULL;
	} else {
		g->bytes = shf_cur_u32(c);
		g->value = take_text(arena, c, (size_t)g->bytes);
	}
	if (!always(!c->bad))
		return SHEAF_EBUG;
	return g->name && (g->kind != A_NOTE || g->value) ? 0 : SHEAF_ENOMEM;
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

/* Sorts by kind, then by name, then by rank, so that the entries of one name lie together with that
 * of the lowest rank first. */
static int given_order(const void *a, const void *b)
{
	const struct shf_save_attach_entry *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	if (x->kind != y->kind)
		return x->kind > y->kind ? 1 : -1;
	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sorts the entries, and keeps one of each name, that of the lowest rank; of streams it keeps all.
 * EINVAL if ranks give different contents, or if all notes are too long. */
static int unite_given(struct shf_save_attach_entry *g, size_t *n, struct sheaf_error *err)
{
	size_t kept = 0, notes = 0;

	if (*n)
		qsort(g, *n, sizeof(*g), given_order);
	for (size_t i = 0; i < *n; i++) {
		struct shf_save_attach_entry *last = kept ? &g[kept - 1] : NULL;

		if (!last || g[i].kind == A_STREAM || last->kind != g[i].kind ||
		    strcmp(last->name, g[i].name)) {
			notes += g[i].kind == A_NOTE ? strlen(g[i].name) + g[i].bytes : 0;
			g[kept++] = g[i];
			continue;
		}
		if (last->bytes != g[i].bytes || last->crc != g[i].crc ||
		    (g[i].kind == A_NOTE && strcmp(last->value, g[i].value)))
			return shf_fail(err, SHEAF_EINVAL,
					"%s %s: ranks %u and %u give different %s; give it on one "
					"rank, or the same on all",
					g[i].kind == A_NOTE ? "note" : "attached file", g[i].name,
					last->rank, g[i].rank,
					g[i].kind == A_NOTE ? "values" : "bytes");
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
		files += g[i].kind == A_FILE;
	shf_buf_u32(owners, files);
	for (size_t i = 0; i < n && g[i].kind != A_STREAM; i++) {
		if (g[i].kind == A_NOTE) {
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
	out->attached_n = out->files_n;
	return owners->oom ? shf_fail(err, SHEAF_ENOMEM, "no memory for attached files") : 0;
}

/* Makes one file of n entries of a stream, and adds it to the lists. */
static int add_rank_file(const struct shf_save_attach_entry *g, const struct shf_rank_part *parts,
                         size_t n, struct shf_arena *arena, struct shf_given *out,
                         struct sheaf_error *err)
{
	struct shf_buf text = SHF_BUF_INIT;
	char name[SHF_RANK_FILE_NAME], *kept;
	uint8_t *data = NULL;
	uint64_t crc;
	int rc = shf_rank_file_make(&text, &crc, g->name, parts, n, err);

	shf_rank_file_name(name, g->name, g->rank);
	kept = shf_arena_strdup(arena, name, strlen(name));
	if (rc == 0)
		data = shf_arena_alloc(arena, text.len, 1);
	if (rc == 0 && data && kept) {
		memcpy(data, text.data, text.len);
		out->data[out->files_n] = data;
		out->files[out->files_n++] = (struct shf_mf_file){ kept, text.len, crc };
	} else if (rc == 0) {
		rc = shf_fail(err, SHEAF_ENOMEM, "stream %s: no memory", g->name);
	}
	shf_buf_release(&text);
	return rc;
}

/* Makes the files of all streams. Entries of a stream lie together, in order of ranks. The lists
 * have room for a file of each entry. */
static int make_rank_files(const struct shf_save_attach_entry *g, size_t n,
                           struct shf_arena *arena, struct shf_given *out, struct sheaf_error *err)
{
	struct shf_rank_part *parts;
	size_t i = 0;
	int rc = 0;

	while (i < n && g[i].kind != A_STREAM)
		i++;
	if (i == n)
		return 0;
	parts = shf_alloc(n - i, sizeof(*parts));
	if (!parts)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for the streams of ranks");
	while (rc == 0 && i < n) {
		size_t same = 0;

		while (i + same < n && strcmp(g[i + same].name, g[i].name) == 0) {
			const struct shf_save_attach_entry *e = &g[i + same];

			parts[same++] = (struct shf_rank_part){ e->rank, e->data, e->bytes,
				e->crc };
		}
		same = shf_rank_file_takes(parts, same);
		rc = add_rank_file(&g[i], parts, same, arena, out, err);
		i += same;
	}
	shf_free(parts);
	return rc;
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

	if (rc == 0)
		rc = name_writers(in->a, in->n, arena, out, owners, err);
	return rc == 0 ? make_rank_files(in->a, in->n, arena, out, err) : rc;
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
