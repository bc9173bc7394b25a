/* SPDX-License-Identifier: Apache-2.0 */
/* Fills a view with the cards and images of this node, and with small files and bytes that other
 * nodes have sent.
 *
 * A card is memory that another process wrote, and may be corrupt. It is decoded into the view's
 * own arena, and its offsets are checked against the size of the mapped image before they are
 * used. */
#include "memory_dir_fill.h"
#include "memory_dir_in.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "err.h"
#include "lease.h"
#include "match.h"
#include "run_files.h"

/* Appends a stretch. ENOMEM. */
static int add_stretch(struct shf_view *v, const struct shf_view_range *s)
{
	if (v->stretches_n == v->stretches_cap) {
		size_t cap = v->stretches_cap ? 2 * v->stretches_cap : 64;
		struct shf_view_range *more = shf_realloc(v->stretches, cap, sizeof(*more));

		if (!more)
			return SHEAF_ENOMEM;
		v->stretches = more;
		v->stretches_cap = cap;
	}
	v->stretches[v->stretches_n++] = *s;
	return 0;
}

/* The current value of `whole` is noted: if it changes later, the memory has been reused for
 * another step (shf_view_check_unchanged). */
int shf_view_add(struct shf_view *v, const struct shf_view_part *part, struct sheaf_error *err)
{
	struct shf_view_part *parts = shf_realloc(v->parts, v->parts_n + 1, sizeof(*parts));
	struct shf_card card;
	int rc;

	if (!parts) {
		struct shf_view_part p = *part;

		shf_sys_shm_free(v->in, &p.card);
		if (p.image.base)
			shf_sys_shm_free(v->in, &p.image);
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
	}
	v->parts = parts;
	parts[v->parts_n] = *part;
	parts[v->parts_n++].whole = atomic_load(&shf_card_head(&part->card)->whole);
	rc = shf_card_decode(&card, &v->arena, &part->card);
	if (rc == 0 && card.segs_n && card.image_bytes > part->image.bytes)
		rc = SHEAF_ECORRUPT;
	for (size_t i = 0; rc == 0 && i < card.segs_n; i++) {
		struct shf_view_range g = { card.segs[i].file, card.segs[i].lo, card.segs[i].hi,
			(const uint8_t *)part->image.base + card.segs[i].image };

		rc = add_stretch(v, &g);
	}
	if (rc < 0)
		return shf_fail(err, rc, "a checkpoint in memory: the header of a staging buffer: "
		                "%s",
		                shf_strerror(rc));
	if (card.smalls_n) {
		v->smalls = card.smalls;
		v->smalls_n = card.smalls_n;
	}
	return 0;
}

/* Orders stretches by file and offset. */
static int order_stretches(const void *a, const void *b)
{
	const struct shf_view_range *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Adds the folder of a file's name, if it has one that is not listed yet. */
static int add_folder(struct shf_view *v, const char *name)
{
	const char *slash = strchr(name, '/');
	size_t n = slash ? (size_t)(slash - name) : 0;

	if (!slash)
		return 0;
	if (n == 0 || n >= sizeof(*v->folders))
		return SHEAF_ECORRUPT;
	for (size_t i = 0; i < v->folders_n; i++)
		if (strncmp(v->folders[i], name, n) == 0 && !v->folders[i][n])
			return 0;
	memcpy(v->folders[v->folders_n++], name, n);
	return 0;
}

/* Lists the files that the view shows: the tensor files of the manifest, then the small files,
 * whose bytes are in a card. */
static int name_files(struct shf_view *v)
{
	const struct shf_manifest *m = &v->manifest;
	size_t n = m->files_n + v->smalls_n;
	int rc = 0;

	v->files = shf_arena_alloc(&v->arena, n + 1, sizeof(*v->files));
	v->folders = shf_arena_alloc(&v->arena, n + 1, sizeof(*v->folders));
	if (!v->files || !v->folders)
		return SHEAF_ENOMEM;
	for (size_t i = 0; i < m->files_n; i++) {
		v->files[v->files_n++] = (struct shf_view_file){ .name = m->files[i].name,
			.bytes = m->files[i].bytes };
		if (!always(add_folder(v, m->files[i].name) == 0)) /* names of families are short */
			return SHEAF_EBUG;
	}
	for (size_t i = 0; i < v->smalls_n && rc == 0; i++) {
		const struct shf_card_small_file *s = &v->smalls[i];

		v->files[v->files_n++] = (struct shf_view_file){ .name = s->name, .bytes = s->n,
			.whole = s->bytes };
		rc = add_folder(v, s->name);
	}
	return rc;
}

/* Sorts the stretches, and notes for each tensor file which stretches belong to it. ECORRUPT if two
 * of them overlap, or one ends beyond its file or is of no file. Sets *whole to whether the
 * stretches cover every byte of every tensor file. */
static int find_stretches(struct shf_view *v, bool *whole)
{
	size_t at = 0;

	*whole = true;
	if (v->stretches_n)
		qsort(v->stretches, v->stretches_n, sizeof(*v->stretches), order_stretches);
	for (size_t i = 0; i < v->manifest.files_n; i++) {
		struct shf_view_file *f = &v->files[i];
		uint64_t to = 0;

		f->first = at;
		for (; at < v->stretches_n && v->stretches[at].file == i; at++) {
			if (v->stretches[at].lo < to)
				return SHEAF_ECORRUPT;
			*whole = *whole && v->stretches[at].lo == to;
			to = v->stretches[at].hi;
		}
		f->end = at;
		if (to > f->bytes)
			return SHEAF_ECORRUPT;
		*whole = *whole && to == f->bytes;
	}
	return at == v->stretches_n ? 0 : SHEAF_ECORRUPT;
}

bool shf_view_has_small_files(const struct shf_view *v)
{
	return v->smalls_n > 0;
}

/* The message is the body of a card without segments, so that no second format is needed. */
void shf_view_pack_small_files(const struct shf_view *v, struct shf_buf *out)
{
	struct shf_card card = { .step = 0, .ranks = 1, .smalls_n = v->smalls_n,
		.smalls = (struct shf_card_small_file *)(uintptr_t)v->smalls };

	shf_card_encode(out, &card);
}

/* The message is copied, because the view's small files point into it. */
int shf_view_unpack_small_files(struct shf_view *v, const struct shf_buf *told,
                                struct sheaf_error *err)
{
	uint8_t *own = shf_arena_alloc(&v->arena, told->len + 1, 1);
	struct shf_card card;
	int rc = own ? 0 : SHEAF_ENOMEM;

	if (rc == 0) {
		memcpy(own, told->data, told->len);
		rc = shf_card_decode_body(&card, &v->arena, own, told->len);
	}
	if (rc < 0)
		return shf_fail(err, rc, "a checkpoint in memory: its description from another "
		                "node: %s",
		                shf_strerror(rc));
	v->smalls = card.smalls;
	v->smalls_n = card.smalls_n;
	return 0;
}

/* The manifest is the first small file, because rank 0 lists it first when it makes the card. */
int shf_view_finish(struct shf_view *v, bool whole, struct sheaf_error *err)
{
	const uint8_t *text;
	bool all = false;
	size_t n;
	int rc;

	if (!v->smalls_n || strcmp(v->smalls[0].name, "sheaf.json"))
		return shf_fail(err, SHEAF_EFORMAT, "a checkpoint in memory: its manifest is not "
		                "on this node");
	shf_view_manifest_bytes(v, &text, &n);
	rc = shf_manifest_decode(&v->manifest, &v->arena, text, n, "sheaf.json in memory", err);
	if (rc < 0)
		return rc;
	rc = name_files(v);
	if (rc == 0)
		rc = find_stretches(v, &all);
	if (rc == 0 && whole && !all)
		rc = SHEAF_EFORMAT;
	return rc < 0 ? shf_fail(err, rc, "step %" PRId64 " in memory: %s", v->manifest.step,
	                         rc == SHEAF_EFORMAT ? "not all of it is on this node"
	                                             : shf_strerror(rc)) : 0;
}

/* ---- another parent ---- */

static bool names_parent(const struct shf_manifest *m, int64_t step, const char *session)
{
	return m->has_parent ? m->parent_step == step && strcmp(m->parent_session, session) == 0
	                     : step < 0;
}

/* Encodes a manifest that was decoded from `was`, with another parent. Returns 1; 0: a later
 * version made it, and encoding it would drop members that this version does not know; or
 * ENOMEM. */
static int encode_with_parent(struct shf_manifest *m, int64_t step, const char *session,
                              const struct shf_card_small_file *was, struct shf_buf *text,
                              struct sheaf_error *err)
{
	int rc = shf_manifest_encode(text, m, err);

	if (rc == 0 && (text->len != was->n || memcmp(text->data, was->bytes, text->len)))
		return 0;
	shf_buf_reset(text);
	m->has_parent = step >= 0;
	m->parent_step = step;
	memcpy(m->parent_session, session, sizeof(m->parent_session));
	m->parent_run[0] = '\0';
	if (rc == 0)
		rc = shf_manifest_encode(text, m, err);
	return rc == SHEAF_ENOMEM ? rc : rc == 0;
}

/* The text in the card does not change: the view gets a text of its own. A view lists the tensor
 * files first, and then the small files, of which the manifest is the first. */
int shf_view_set_parent(struct shf_view *v, int64_t step, const char *session,
                        struct sheaf_error *err)
{
	struct shf_manifest m = v->manifest;
	struct shf_buf text = SHF_BUF_INIT;
	uint8_t *own;
	int rc = names_parent(&m, step, session) ? 0
	         : encode_with_parent(&m, step, session, v->smalls, &text, err);

	if (rc == 1) {
		own = shf_arena_alloc(&v->arena, text.len, 1);
		rc = own ? 0 : shf_fail(err, SHEAF_ENOMEM, "no memory for the manifest");
		if (own) {
			memcpy(own, text.data, text.len);
			v->smalls[0].bytes = v->files[m.files_n].whole = own;
			v->smalls[0].n = v->files[m.files_n].bytes = text.len;
			v->manifest = m;
		}
	}
	shf_buf_release(&text);
	return rc;
}

/* ---- between nodes ---- */

/* Adjacent stretches are joined, so that the lists that nodes send each other are short. */
int shf_view_each_range(const struct shf_view *v,
                        int (*item)(void *arg, uint32_t file, uint64_t lo, uint64_t hi), void *arg)
{
	int rc = 0;

	for (size_t i = 0; i < v->stretches_n && rc == 0;) {
		const struct shf_view_range *s = &v->stretches[i];
		uint64_t hi = s->hi;

		for (i++; i < v->stretches_n && v->stretches[i].file == s->file &&
		          v->stretches[i].lo == hi; i++)
			hi = v->stretches[i].hi;
		rc = item(arg, s->file, s->lo, hi);
	}
	return rc;
}

int shf_view_get_bytes(const struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                       struct shf_buf *out)
{
	for (uint64_t at = lo, n; at < hi; at += n) {
		const uint8_t *p;

		n = hi - at;
		p = shf_view_at(v, file, at, &n);
		if (!p)
			return SHEAF_ECORRUPT;
		shf_buf_add(out, p, (size_t)n);
	}
	return out->oom ? SHEAF_ENOMEM : 0;
}

/* The copy lies in the view's arena. */
int shf_view_add_bytes(struct shf_view *v, uint32_t file, uint64_t lo, uint64_t hi,
                       const uint8_t *bytes)
{
	uint8_t *own = shf_arena_alloc(&v->arena, (size_t)(hi - lo), 1);
	struct shf_view_range s = { file, lo, hi, own };

	if (!own)
		return SHEAF_ENOMEM;
	memcpy(own, bytes, (size_t)(hi - lo));
	return add_stretch(v, &s);
}

int shf_view_finish_bytes(struct shf_view *v)
{
	bool whole;

	return find_stretches(v, &whole);
}

/* The lease is the same as for a step that is opened on disk. */
int shf_view_open_disk(struct shf_view *v, int dir, const char *name, struct sheaf_error *err)
{
	const struct shf_sys *in = v->in;
	struct shf_leased of = { .at = dir, .name = name };

	v->disk_files = shf_arena_alloc(&v->arena, v->manifest.files_n, sizeof(*v->disk_files));
	if (!v->disk_files)
		return shf_fail(err, SHEAF_ENOMEM, "no memory for a step in memory");
	for (size_t i = 0; i < v->manifest.files_n; i++)
		v->disk_files[i] = -1;
	v->disk = shf_sys_open(in, dir, name, SHF_O_DIR | SHF_O_NOFOLLOW, 0);
	if (v->disk < 0)
		return shf_fail_sys(err, -v->disk, "%s", name);
	v->pid = shf_sys_pid(in);
	of.dir = v->disk;
	if (shf_lease_take(in, &of, &v->lease) < 0) {
		shf_sys_close(in, v->disk);
		v->disk = -1;
		return shf_fail_io(err, ENOENT, "%s: was deleted or moved while it was being "
		                   "opened", name);
	}
	return 0;
}

/* Makes the index hads.first from the list, which is sorted by file. ECORRUPT if the list is not
 * sorted. */
int shf_view_set_access(struct shf_view *v, const struct shf_block_access *a, const uint32_t *files,
                        size_t n)
{
	struct shf_block_access_map h = {
		.a = shf_arena_alloc(&v->arena, n + 1, sizeof(*h.a)),
		.first = shf_arena_alloc(&v->arena, v->manifest.files_n + 2, sizeof(*h.first)) };
	size_t at = 0;

	if (!h.a || !h.first)
		return SHEAF_ENOMEM;
	memcpy(h.a, a, n * sizeof(*a));
	for (size_t f = 0; f <= v->manifest.files_n; f++) {
		h.first[f] = at;
		while (at < n && files[at] == f)
			at++;
	}
	if (at != n)
		return SHEAF_ECORRUPT;
	v->hads = h;
	return 0;
}
