/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of the simulated disk: sparse files of shared pages, directories, and simtree_apply, the
 * only function that changes them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "simcore.h"
#include "rng.h"

void *sim_alloc(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		abort();
	return p;
}

void *sim_grow(void *p, size_t *cap, size_t want, size_t size)
{
	size_t n = *cap ? *cap : 8;

	if (want <= *cap)
		return p;
	while (n < want)
		n *= 2;
	p = realloc(p, n * size);
	if (!p)
		abort();
	*cap = n;
	return p;
}

uint64_t sim_mix(uint64_t x)
{
	return rng_next(&x);
}

static struct sim_page *page_get(struct sim_page *p)
{
	if (p)
		atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
	return p;
}

static void page_put(struct sim_page *p)
{
	if (p && atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1)
		free(p);
}

/* Makes a page with these bytes. It is NULL for zeros, so that a file of zeros costs nothing. */
static struct sim_page *page_new(const uint8_t *bytes)
{
	struct sim_page *p;

	if (!bytes[0] && !memcmp(bytes, bytes + 1, SIM_PAGE - 1))
		return NULL;
	p = malloc(sizeof(*p));
	if (!p)
		abort();
	atomic_init(&p->refs, 1);
	memcpy(p->bytes, bytes, SIM_PAGE);
	return p;
}

struct sim_name *sim_name_new(const char *text)
{
	size_t n = strlen(text) + 1;
	struct sim_name *name = malloc(sizeof(*name) + n);

	if (!name)
		abort();
	atomic_init(&name->refs, 1);
	memcpy(name->text, text, n);
	return name;
}

struct sim_name *sim_name_get(struct sim_name *name)
{
	if (name)
		atomic_fetch_add_explicit(&name->refs, 1, memory_order_relaxed);
	return name;
}

void sim_name_put(struct sim_name *name)
{
	if (name && atomic_fetch_sub_explicit(&name->refs, 1, memory_order_acq_rel) == 1)
		free(name);
}

static uint64_t page_first(const struct simrec *r)
{
	return r->off / SIM_PAGE;
}

static size_t page_count(const struct simrec *r)
{
	if (!r->len)
		return 0;
	return (size_t)((r->off + r->len - 1) / SIM_PAGE - page_first(r) + 1);
}

void simrec_release(struct simrec *r)
{
	if (r->pages)
		for (size_t i = 0; i < page_count(r); i++)
			page_put(r->pages[i]);
	free(r->pages);
	sim_name_put(r->name);
	sim_name_put(r->to_name);
}

static struct sim_inode *inode_new(int type)
{
	struct sim_inode *f = sim_alloc(1, sizeof(*f));

	f->type = type;
	return f;
}

static void leaf_free(struct sim_leaf *leaf)
{
	if (leaf)
		for (size_t i = 0; i < SIM_LEAF; i++)
			page_put(leaf->pages[i]);
	free(leaf);
}

static void inode_free(struct sim_inode *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->leaf_n; i++)
		leaf_free(f->leafs[i]);
	for (size_t i = 0; i < f->entry_n; i++)
		sim_name_put(f->entries[i].name);
	free(f->leafs);
	free(f->entries);
	sim_name_put(f->target);
	sim_name_put(f->label);
	free(f);
}

static struct sim_inode *inode_copy(const struct sim_inode *from)
{
	struct sim_inode *f = sim_alloc(1, sizeof(*f));

	*f = *from;
	f->opens = 0;
	f->leafs = f->leaf_n ? sim_alloc(f->leaf_n, sizeof(struct sim_leaf *)) : NULL;
	for (size_t i = 0; i < f->leaf_n; i++) {
		if (!from->leafs[i])
			continue;
		f->leafs[i] = malloc(sizeof(struct sim_leaf));
		if (!f->leafs[i])
			abort();
		*f->leafs[i] = *from->leafs[i];
		for (size_t k = 0; k < SIM_LEAF; k++)
			page_get(f->leafs[i]->pages[k]);
	}
	f->entries = f->entry_n ? sim_alloc(f->entry_n, sizeof(struct sim_entry)) : NULL;
	f->entry_cap = f->entry_n;
	for (size_t i = 0; i < f->entry_n; i++) {
		f->entries[i] = from->entries[i];
		sim_name_get(f->entries[i].name);
	}
	sim_name_get(f->target);
	sim_name_get(f->label);
	return f;
}

static struct sim_page *page_at(const struct sim_inode *f, uint64_t i)
{
	const struct sim_leaf *leaf = i / SIM_LEAF < f->leaf_n ? f->leafs[i / SIM_LEAF] : NULL;

	return leaf ? leaf->pages[i % SIM_LEAF] : NULL;
}

static void page_set(struct sim_inode *f, uint64_t i, struct sim_page *p) /* takes ownership of p */
{
	size_t l = (size_t)(i / SIM_LEAF);

	if (l >= f->leaf_n) {
		size_t n = l + 1 + f->leaf_n / 2;

		if (!p)
			return;
		f->leafs = realloc(f->leafs, n * sizeof(*f->leafs));
		if (!f->leafs)
			abort();
		memset(f->leafs + f->leaf_n, 0, (n - f->leaf_n) * sizeof(*f->leafs));
		f->leaf_n = n;
	}
	if (!f->leafs[l]) {
		if (!p)
			return;
		f->leafs[l] = sim_alloc(1, sizeof(struct sim_leaf));
	}
	page_put(f->leafs[l]->pages[i % SIM_LEAF]);
	f->leafs[l]->pages[i % SIM_LEAF] = p;
}

/* Zeros everything from `size` on. */
static void file_trim(struct sim_inode *f, uint64_t size)
{
	uint64_t first = (size + SIM_PAGE - 1) / SIM_PAGE;
	struct sim_page *last = size % SIM_PAGE ? page_at(f, size / SIM_PAGE) : NULL;
	uint8_t bytes[SIM_PAGE];

	for (size_t l = (size_t)(first / SIM_LEAF); l < f->leaf_n; l++) {
		if (!f->leafs[l])
			continue;
		for (size_t i = l * SIM_LEAF < first ? (size_t)(first % SIM_LEAF) : 0;
		     i < SIM_LEAF; i++) {
			page_put(f->leafs[l]->pages[i]);
			f->leafs[l]->pages[i] = NULL;
		}
	}
	if (!last)
		return;
	memset(bytes, 0, sizeof(bytes));
	memcpy(bytes, last->bytes, (size_t)(size % SIM_PAGE));
	if (memcmp(bytes, last->bytes, SIM_PAGE) != 0)
		page_set(f, size / SIM_PAGE, page_new(bytes));
}

void simtree_init(struct simtree *t)
{
	*t = (struct simtree){ .inodes = sim_alloc(SIM_ROOT + 1, sizeof(struct sim_inode *)),
	                       .n = SIM_ROOT + 1 };
	t->inodes[SIM_ROOT] = inode_new(SHF_T_DIR);
	t->inodes[SIM_ROOT]->parent = SIM_ROOT;
	t->inodes[SIM_ROOT]->links = 1;
}

void simtree_copy(struct simtree *t, const struct simtree *from)
{
	*t = *from;
	t->inodes = sim_alloc(from->n, sizeof(struct sim_inode *));
	for (size_t i = 0; i < from->n; i++)
		t->inodes[i] = from->inodes[i] ? inode_copy(from->inodes[i]) : NULL;
}

void simtree_release(struct simtree *t)
{
	for (size_t i = 0; i < t->n; i++)
		inode_free(t->inodes[i]);
	free(t->inodes);
	*t = (struct simtree){ NULL, 0, false };
}

struct sim_inode *simtree_inode(const struct simtree *t, uint32_t ino)
{
	return ino < t->n ? t->inodes[ino] : NULL;
}

static struct sim_entry *entry_of(const struct sim_inode *dir, const char *name)
{
	for (size_t i = 0; dir && i < dir->entry_n; i++)
		if (!strcmp(dir->entries[i].name->text, name))
			return &dir->entries[i];
	return NULL;
}

uint32_t simtree_find(const struct simtree *t, uint32_t dir, const char *name)
{
	const struct sim_entry *e = entry_of(simtree_inode(t, dir), name);

	return e ? e->ino : 0;
}

static void links_add(struct simtree *t, uint32_t ino, int n)
{
	struct sim_inode *f = simtree_inode(t, ino);

	if (f)
		f->links = n < 0 && !f->links ? 0 : f->links + (uint32_t)n;
}

static void entry_remove(struct simtree *t, uint32_t dir_ino, const char *name)
{
	struct sim_inode *dir = simtree_inode(t, dir_ino);
	struct sim_entry *e = entry_of(dir, name);

	if (!e)
		return;
	links_add(t, e->ino, -1);
	sim_name_put(e->name);
	*e = dir->entries[--dir->entry_n];
}

/* Removes a directory's older name, if it may have only one. */
static void entry_remove_older(struct simtree *t, const struct sim_inode *f, uint32_t ino)
{
	const struct sim_inode *dir = simtree_inode(t, f->parent);

	for (size_t i = 0; dir && i < dir->entry_n; i++)
		if (dir->entries[i].ino == ino) {
			entry_remove(t, f->parent, dir->entries[i].name->text);
			return;
		}
}

static void entry_add(struct simtree *t, uint32_t dir_ino, struct sim_name *name, uint32_t ino)
{
	struct sim_inode *dir = simtree_inode(t, dir_ino), *f = simtree_inode(t, ino);
	struct sim_entry *e;

	if (!dir || !f)
		return;
	if (f->type == SHF_T_DIR) {
		if (t->dir_once)
			entry_remove_older(t, f, ino);
		f->parent = dir_ino;
	}
	f->links++;
	sim_name_put(f->label);
	f->label = sim_name_get(name);
	e = entry_of(dir, name->text);
	if (e) {
		links_add(t, e->ino, -1);
		e->ino = ino;
		return;
	}
	dir->entries = sim_grow(dir->entries, &dir->entry_cap, dir->entry_n + 1,
	                        sizeof(*dir->entries));
	dir->entries[dir->entry_n++] = (struct sim_entry){ sim_name_get(name), ino };
}

/* Returns whether unit u of a write of n units persists. */
static bool unit_kept(const struct sim_tear *tear, uint64_t u, uint64_t n)
{
	uint64_t how = sim_mix(tear->seed), at = n ? sim_mix(how) % (n + 1) : 0;

	switch (how % 3) {
	case 0:
		return u < at;
	case 1:
		return u >= at;
	default:
		return sim_mix(tear->seed ^ (u * 2 + 1)) & 1;
	}
}

/* Copies bytes [from, to) of page i from the record. */
static void page_patch(struct sim_inode *f, uint64_t i, const struct sim_page *with, size_t from,
                       size_t to)
{
	const struct sim_page *old = page_at(f, i);
	uint8_t bytes[SIM_PAGE];

	if (old)
		memcpy(bytes, old->bytes, SIM_PAGE);
	else
		memset(bytes, 0, SIM_PAGE);
	if (with)
		memcpy(bytes + from, with->bytes + from, to - from);
	else
		memset(bytes + from, 0, to - from);
	page_set(f, i, page_new(bytes));
}

static void data_apply(struct sim_inode *f, const struct simrec *r, const struct sim_tear *tear)
{
	uint64_t end = r->off + r->len, first = page_first(r);
	uint64_t unit0 = tear->unit ? r->off / tear->unit : 0;
	uint64_t units = tear->unit && r->len ? (end - 1) / tear->unit - unit0 + 1 : 0;

	for (size_t i = 0; i < page_count(r); i++) {
		uint64_t at = (first + i) * SIM_PAGE;
		size_t from = r->off > at ? (size_t)(r->off - at) : 0;
		size_t to = end < at + SIM_PAGE ? (size_t)(end - at) : SIM_PAGE;

		if (!tear->unit && !from && to == SIM_PAGE) {
			page_set(f, first + i, page_get(r->pages[i]));
			continue;
		}
		if (!tear->unit) {
			page_patch(f, first + i, r->pages[i], from, to);
			continue;
		}
		for (size_t a = from, b; a < to; a = b) {
			b = (a / tear->unit + 1) * tear->unit;
			b = b < to ? b : to;
			if (unit_kept(tear, (at + a) / tear->unit - unit0, units))
				page_patch(f, first + i, r->pages[i], a, b);
		}
	}
}

static void create_apply(struct simtree *t, const struct simrec *r)
{
	if (r->ino >= t->n) {
		size_t n = r->ino + 1 + t->n / 2;

		t->inodes = realloc(t->inodes, n * sizeof(*t->inodes));
		if (!t->inodes)
			abort();
		memset(t->inodes + t->n, 0, (n - t->n) * sizeof(*t->inodes));
		t->n = n;
	}
	/* The inode exists even if its name is lost: a later name may be kept. */
	t->inodes[r->ino] = inode_new(r->type);
	t->inodes[r->ino]->mtime = r->mtime;
	t->inodes[r->ino]->target = sim_name_get(r->to_name);
}

static void touch(struct simtree *t, uint32_t ino, int64_t mtime)
{
	struct sim_inode *f = simtree_inode(t, ino);

	if (f)
		f->mtime = mtime;
}

void simtree_apply(struct simtree *t, const struct simrec *r, unsigned parts,
                   const struct sim_tear *tear)
{
	static const struct sim_tear whole = { 0, 0 };
	struct sim_inode *f;

	if (r->kind == REC_CREATE)
		create_apply(t, r);
	f = simtree_inode(t, r->ino);
	if (!f || !parts)
		return;
	if (parts & PART_DATA) {
		data_apply(f, r, tear ? tear : &whole);
		f->mtime = r->mtime;
	}
	if (parts & PART_SIZE) {
		if (r->shrinks)
			file_trim(f, r->size);
		f->size = r->size;
		f->mtime = r->mtime;
	}
	if (parts & PART_DEL) {
		entry_remove(t, r->dir, r->name->text);
		touch(t, r->dir, r->mtime);
	}
	if (parts & PART_ADD) {
		bool moves = r->kind == REC_RENAME;
		uint32_t dir = moves ? r->to_dir : r->dir;

		entry_add(t, dir, moves ? r->to_name : r->name, r->ino);
		touch(t, dir, r->mtime);
	}
}

void simtree_pages(const struct simtree *t, struct simrec *r, const uint8_t *bytes)
{
	const struct sim_inode *f = simtree_inode(t, r->ino);
	uint64_t end = r->off + r->len, first = page_first(r);
	uint8_t merged[SIM_PAGE];

	r->pages = sim_alloc(page_count(r), sizeof(*r->pages));
	for (size_t i = 0; i < page_count(r); i++) {
		uint64_t at = (first + i) * SIM_PAGE;
		size_t from = r->off > at ? (size_t)(r->off - at) : 0;
		size_t to = end < at + SIM_PAGE ? (size_t)(end - at) : SIM_PAGE;
		const uint8_t *src = bytes + (at + from - r->off);
		const struct sim_page *old = page_at(f, first + i);

		if (from || to != SIM_PAGE) {
			if (old)
				memcpy(merged, old->bytes, SIM_PAGE);
			else
				memset(merged, 0, SIM_PAGE);
			memcpy(merged + from, src, to - from);
			src = merged;
		}
		r->pages[i] = page_new(src);
	}
}

size_t simtree_read(const struct sim_inode *f, void *buf, size_t n, uint64_t off)
{
	uint8_t *p = buf;
	size_t done = 0;

	if (off >= f->size)
		return 0;
	n = f->size - off < n ? (size_t)(f->size - off) : n;
	while (done < n) {
		const struct sim_page *page = page_at(f, (off + done) / SIM_PAGE);
		size_t in = (size_t)((off + done) % SIM_PAGE);
		size_t m = SIM_PAGE - in < n - done ? SIM_PAGE - in : n - done;

		if (page)
			memcpy(p + done, page->bytes + in, m);
		else
			memset(p + done, 0, m);
		done += m;
	}
	return n;
}

void simtree_drop(struct simtree *t, uint32_t ino)
{
	if (ino < t->n) {
		inode_free(t->inodes[ino]);
		t->inodes[ino] = NULL;
	}
}

/* Marks what paths reach, and counts links again. Half a rename may leave two names, even a
 * cycle. */
static void mark(struct simtree *t, uint32_t ino)
{
	struct sim_inode *f = simtree_inode(t, ino);

	if (f->seen)
		return;
	f->seen = true;
	for (size_t i = f->entry_n; i-- > 0;) {
		struct sim_inode *child = simtree_inode(t, f->entries[i].ino);

		if (!child) {
			sim_name_put(f->entries[i].name);
			f->entries[i] = f->entries[--f->entry_n];
			continue;
		}
		child->links++;
		mark(t, f->entries[i].ino);
	}
}

void simtree_sweep(struct simtree *t)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->inodes[i]) {
			t->inodes[i]->seen = false;
			t->inodes[i]->links = 0;
		}
	t->inodes[SIM_ROOT]->links = 1;
	mark(t, SIM_ROOT);
	for (uint32_t i = 0; i < t->n; i++) {
		struct sim_inode *f = t->inodes[i];

		if (f && !f->seen)
			simtree_drop(t, i);
		else if (f && f->type == SHF_T_FILE)
			file_trim(f, f->size);
	}
}

uint64_t simtree_used(const struct simtree *t)
{
	uint64_t used = 0;

	for (size_t i = 0; i < t->n; i++)
		if (t->inodes[i] && t->inodes[i]->type == SHF_T_FILE)
			used += (t->inodes[i]->size + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
	return used;
}
