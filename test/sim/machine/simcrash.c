/* SPDX-License-Identifier: Apache-2.0 */
/* Power cuts: finds the items of the log that are durable at a cut, and makes the disk that results
 * from a choice of the others. Only this file implements the rules of simdisk.h. */
#include <stdlib.h>
#include <string.h>
#include "simcore.h"

struct item {
	size_t rec;
	unsigned parts;
};
/* A cut, computed once for all choices */
struct simcut {
	size_t cut;
	uint8_t *durable;               /* for each record before the cut: its durable parts */
	struct item *items;             /* unsynced, in order */
	size_t item_n, item_cap;
	struct simtree prefix;          /* base with all records before `first` */
	size_t first;
};
/* What later fsyncs cover of an inode, going backwards from the cut */
struct cover {
	uint64_t nodes;                 /* bit mask: the data of these nodes is covered */
	bool any;                       /* size and entries are covered */
	bool ordered;                   /* EXT4: entries of this directory */
	bool named;                     /* EXT4: entries that name this inode */
};

void sim_cut_forget(struct simdisk *d)
{
	if (!d->cut)
		return;
	simtree_release(&d->cut->prefix);
	free(d->cut->durable);
	free(d->cut->items);
	free(d->cut);
	d->cut = NULL;
}

static uint64_t node_bit(int node)
{
	return UINT64_C(1) << ((unsigned)node % 64);
}

static void cover_sync(struct cover *c, const struct simrec *r)
{
	struct cover *i = &c[r->ino];

	if (r->failed) {
		/* The data is marked clean, but not written: nothing will write the changes before
		 * it. The journal of EXT4 keeps its entries, and writes them with the next
		 * commit. */
		i->nodes &= ~node_bit(r->node);
		i->any = false;
		return;
	}
	i->nodes |= node_bit(r->node);
	i->any = i->ordered = i->named = true;
}

static unsigned durable_strict(const struct cover *c, const struct simrec *r)
{
	unsigned parts = 0;

	parts |= c[r->ino].nodes & node_bit(r->node) ? PART_DATA : 0;
	parts |= c[r->ino].any ? PART_SIZE : 0;
	parts |= c[r->dir].any ? PART_DEL : 0;
	parts |= c[r->kind == REC_RENAME ? r->to_dir : r->dir].any ? PART_ADD : 0;
	return parts & r->parts;
}

static unsigned durable_ext4(struct cover *c, const struct simrec *r)
{
	uint32_t other = r->kind == REC_RENAME ? r->to_dir : r->dir;

	if (!(r->parts & (PART_ADD | PART_DEL)))
		return c[r->ino].any ? r->parts : 0;
	if (!c[r->dir].ordered && !c[other].ordered && !c[r->ino].named)
		return 0;
	/* Entries persist in order, so earlier ones in these directories are durable, too. */
	c[r->dir].ordered = c[other].ordered = true;
	return r->parts;
}

static unsigned durable_nfs(const struct cover *c, const struct simrec *r)
{
	if (r->kind != REC_WRITE)
		return r->parts;
	return durable_strict(c, r);
}

static void durable_fill(const struct simdisk *d, struct simcut *k)
{
	struct cover *c = sim_alloc(d->next_ino, sizeof(*c));

	for (size_t i = k->cut; i-- > 0;) {
		const struct simrec *r = &d->log[i];

		if (r->kind == REC_SYNC)
			cover_sync(c, r);
		else if (d->model == SIMDISK_EXT4)
			k->durable[i] = (uint8_t)durable_ext4(c, r);
		else if (d->model == SIMDISK_NFS)
			k->durable[i] = (uint8_t)durable_nfs(c, r);
		else
			k->durable[i] = (uint8_t)durable_strict(c, r);
	}
	free(c);
}

static void item_add(struct simcut *k, size_t rec, unsigned parts)
{
	if (!parts)
		return;
	k->items = sim_grow(k->items, &k->item_cap, k->item_n + 1, sizeof(*k->items));
	k->items[k->item_n++] = (struct item){ rec, parts };
}

static void items_fill(const struct simdisk *d, struct simcut *k)
{
	for (size_t i = 0; i < k->cut; i++) {
		unsigned left = d->log[i].parts & ~(unsigned)k->durable[i];

		if (d->model == SIMDISK_EXT4) {
			item_add(k, i, left);
			continue;
		}
		for (unsigned bit = PART_DATA; bit <= PART_DEL; bit <<= 1)
			item_add(k, i, left & bit);
	}
}

/* The caller holds the lock. */
static const struct simcut *cut_of(struct simdisk *d, size_t cut)
{
	struct simcut *k = d->cut;

	if (cut > d->log_n)
		abort();
	if (k && k->cut == cut)
		return k;
	sim_cut_forget(d);
	k = d->cut = sim_alloc(1, sizeof(*k));
	k->cut = cut;
	k->durable = sim_alloc(cut, 1);
	durable_fill(d, k);
	items_fill(d, k);
	simtree_copy(&k->prefix, d->base.n ? &d->base : &d->now);
	k->first = k->item_n ? k->items[0].rec : cut;
	for (size_t i = 0; i < k->first; i++)
		simtree_apply(&k->prefix, &d->log[i], d->log[i].parts, NULL);
	return k;
}

static bool is_kept(const struct simdisk_choice *c, size_t i)
{
	return c->kept && c->kept[i / 64] >> (i % 64) & 1;
}

/* EXT4: the size of an extending write is that of the data that was written. */
static void apply_short(struct simtree *t, const struct simrec *r, const struct sim_tear *tear)
{
	uint64_t unit = tear->unit, units = (r->off + r->len - 1) / unit - r->off / unit + 1;
	uint64_t end = (r->off / unit + sim_mix(tear->seed) % (units + 1)) * unit;
	const struct sim_inode *f = simtree_inode(t, r->ino);
	struct simrec part = *r;

	if (!f || end <= r->off)
		return;
	part.len = end < r->off + r->len ? end - r->off : r->len;
	part.size = r->off + part.len > f->size ? r->off + part.len : f->size;
	simtree_apply(t, &part, part.parts, NULL);
}

static void apply_torn(const struct simdisk *d, struct simtree *t, size_t i, unsigned parts,
                       const struct simdisk_choice *choice)
{
	const struct simrec *r = &d->log[i];
	struct sim_tear tear = { choice->tear, sim_mix(choice->seed ^ sim_mix(i)) };

	if (d->model == SIMDISK_EXT4 && (parts & PART_DATA) && (parts & PART_SIZE))
		apply_short(t, r, &tear);
	else
		simtree_apply(t, r, parts, &tear);
}

/* EXT4: an entry is lost if an earlier one in its directories is lost. */
static unsigned ordered_parts(bool *broken, const struct simrec *r, unsigned durable, unsigned kept)
{
	uint32_t other = r->kind == REC_RENAME ? r->to_dir : r->dir;

	if (!(r->parts & (PART_ADD | PART_DEL)) || durable)
		return durable | kept;
	if (kept && !broken[r->dir] && !broken[other])
		return kept;
	broken[r->dir] = broken[other] = true;
	return 0;
}

static void replay(const struct simdisk *d, const struct simcut *k, struct simtree *t,
                   const struct simdisk_choice *choice)
{
	bool *broken = d->model == SIMDISK_EXT4 ? sim_alloc(d->next_ino, sizeof(bool)) : NULL;
	size_t next = 0;

	for (size_t i = k->first; i < k->cut; i++) {
		const struct simrec *r = &d->log[i];
		unsigned parts = k->durable[i], kept = 0;

		for (; next < k->item_n && k->items[next].rec == i; next++)
			kept |= is_kept(choice, next) ? k->items[next].parts : 0;
		parts = broken ? ordered_parts(broken, r, parts, kept) : parts | kept;
		if (choice->tear && (kept & PART_DATA))
			apply_torn(d, t, i, parts, choice);
		else
			simtree_apply(t, r, parts, NULL);
	}
	free(broken);
}

struct simdisk *simdisk_crash(struct simdisk *d, size_t cut, const struct simdisk_choice *choice)
{
	static const struct simdisk_choice none = { NULL, 0, 0 };
	const struct simcut *k;
	struct simdisk *left;
	struct simtree t;

	pthread_mutex_lock(&d->lock);
	k = cut_of(d, cut);
	simtree_copy(&t, &k->prefix);
	t.dir_once = d->model == SIMDISK_STRICT && !d->dir_twice;
	replay(d, k, &t, choice ? choice : &none);
	simtree_sweep(&t);
	left = sim_disk_like(d, &t);
	pthread_mutex_unlock(&d->lock);
	return left;
}

size_t simdisk_cut_n(const struct simdisk *d)
{
	return d->log_n + 1;
}

size_t simdisk_cut_call(const struct simdisk *d, size_t cut)
{
	return cut && cut <= d->log_n ? d->log[cut - 1].call : 0;
}

size_t simdisk_unsynced(struct simdisk *d, size_t cut)
{
	size_t n;

	pthread_mutex_lock(&d->lock);
	n = cut_of(d, cut)->item_n;
	pthread_mutex_unlock(&d->lock);
	return n;
}

/* Returns the name of an inode at record i. */
static const char *name_at(const struct simdisk *d, uint32_t ino, size_t i)
{
	const struct sim_inode *f = d->base.n ? simtree_inode(&d->base, ino) : NULL;

	if (ino == SIM_ROOT)
		return "/";
	while (i-- > 0) {
		const struct simrec *r = &d->log[i];

		if (r->ino == ino && r->kind == REC_CREATE)
			return r->name->text;
		if (r->ino == ino && r->kind == REC_RENAME)
			return r->to_name->text;
	}
	return f && f->label ? f->label->text : "?";
}

static void entry_text(const struct simdisk *d, size_t i, const struct simrec *r, unsigned parts,
                       char *buf, size_t n)
{
	const char *from = name_at(d, r->dir, i);
	const char *to = r->kind == REC_RENAME ? name_at(d, r->to_dir, i) : from;

	if (parts == (PART_ADD | PART_DEL))
		snprintf(buf, n, "rename %s/%s to %s/%s", from, r->name->text, to,
		         r->to_name->text);
	else if (parts & PART_ADD)
		snprintf(buf, n, "entry + %s/%s", to,
		         r->kind == REC_RENAME ? r->to_name->text : r->name->text);
	else
		snprintf(buf, n, "entry - %s/%s", from, r->name->text);
}

void simdisk_item_text(struct simdisk *d, size_t cut, size_t i, char *buf, size_t n)
{
	const struct simcut *k;

	pthread_mutex_lock(&d->lock);
	k = cut_of(d, cut);
	if (i >= k->item_n) {
		snprintf(buf, n, "none");
	} else {
		size_t rec = k->items[i].rec;
		unsigned parts = k->items[i].parts;
		const struct simrec *r = &d->log[rec];

		if (parts & (PART_ADD | PART_DEL))
			entry_text(d, rec, r, parts, buf, n);
		else if (parts & PART_DATA)
			snprintf(buf, n, "data %s %llu at %llu%s", name_at(d, r->ino, rec),
			         (unsigned long long)r->len, (unsigned long long)r->off,
			         parts & PART_SIZE ? ", extends" : "");
		else
			snprintf(buf, n, "size %s %llu", name_at(d, r->ino, rec),
			         (unsigned long long)r->size);
	}
	pthread_mutex_unlock(&d->lock);
}

enum { SETS_ALL, SETS_SMALL, SETS_DRAWN, SETS_DONE };

void simdisk_sets_begin(struct simdisk_sets *s, size_t n, uint64_t seed)
{
	*s = (struct simdisk_sets){ .all_max = 12, .small_max = 3, .seeded = 2000, .n = n,
	                            .seed = seed };
	s->kept = sim_alloc(n / 64 + 1, sizeof(uint64_t));
}

void simdisk_sets_end(struct simdisk_sets *s)
{
	free(s->kept);
	s->kept = NULL;
}

static void sets_write(struct simdisk_sets *s)
{
	memset(s->kept, s->complement ? 0xff : 0, (s->n / 64 + 1) * sizeof(uint64_t));
	for (unsigned i = 0; i < s->k; i++)
		s->kept[s->pick[i] / 64] ^= UINT64_C(1) << (s->pick[i] % 64);
}

/* Advances to the next combination of k of n. Returns false after the last one. */
static bool sets_advance(struct simdisk_sets *s)
{
	unsigned i = s->k;

	while (i > 0 && s->pick[i - 1] == s->n - s->k + (i - 1))
		i--;
	if (!i)
		return false;
	s->pick[i - 1]++;
	for (; i < s->k; i++)
		s->pick[i] = s->pick[i - 1] + 1;
	return true;
}

static bool sets_small(struct simdisk_sets *s)
{
	if (!s->count) {
		sets_write(s);
		return true;
	}
	if (!s->complement) {
		s->complement = true;
		sets_write(s);
		return true;
	}
	s->complement = false;
	if (!sets_advance(s)) {
		if (++s->k > s->small_max || s->k > s->n ||
		    s->k > sizeof(s->pick) / sizeof(s->pick[0]))
			return false;
		for (unsigned i = 0; i < s->k; i++)
			s->pick[i] = i;
	}
	sets_write(s);
	return true;
}

/* Random sets are dense, sparse and even in turn. */
static bool sets_drawn(struct simdisk_sets *s)
{
	if (s->drawn >= s->seeded)
		return false;
	for (size_t w = 0; w <= s->n / 64; w++) {
		uint64_t at = sim_mix(s->seed ^ s->drawn) + w * 3;
		uint64_t a = sim_mix(at), b = sim_mix(at + 1), c = sim_mix(at + 2);

		s->kept[w] = s->drawn % 3 == 0 ? a : s->drawn % 3 == 1 ? a | b | c : a & b & c;
	}
	s->drawn++;
	return true;
}

bool simdisk_sets_next(struct simdisk_sets *s)
{
	bool more = false;

	if (!s->count)
		s->phase = s->n <= s->all_max && s->n < 64 ? SETS_ALL : SETS_SMALL;
	if (s->phase == SETS_ALL) {
		s->kept[0] = s->count;
		more = s->count < UINT64_C(1) << s->n;
		s->phase = more ? SETS_ALL : SETS_DONE;
	}
	if (s->phase == SETS_SMALL) {
		more = sets_small(s);
		s->phase = more ? SETS_SMALL : SETS_DRAWN;
	}
	if (s->phase == SETS_DRAWN) {
		more = sets_drawn(s);
		s->phase = more ? SETS_DRAWN : SETS_DONE;
	}
	s->count += more;
	return more;
}

struct simdisk *simdisk_twin(struct simdisk *d)
{
	size_t last = simdisk_cut_n(d) - 1;
	uint64_t all[64];

	memset(all, 255, sizeof(all));
	return simdisk_unsynced(d, last) > 64 * 64 ? NULL
	       : simdisk_crash(d, last, &(struct simdisk_choice){ .kept = all });
}
