/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a save and a load for ranks that do not exist (`sheaf plan`). The states of all ranks are
 * in this process, so the messages that ranks would exchange are built without a group. A single
 * home, instead of one per rank, deals all stripes. What each rank would then write and read comes
 * from the same code that plans a real save and load. */
#include "plan_job.h"
#include <string.h>
#include "box_copy.h"
#include "deal_home.h"
#include "err.h"
#include "match.h"
#include "save_plan.h"
#include "schema.h"
#include "sheaf-plan.h"
#include "state.h"
#include "work.h"
#include "work_file_side.h"

struct round {                  /* message bytes of a rank, by round */
	uint64_t *bytes;                /* owned */
	size_t n;
};
/* A plan of all ranks, in one process. */
struct preview {
	struct sheaf_state *const *states;      /* borrowed */
	uint32_t ranks;
	struct shf_layout layout;
	struct shf_home home;
	struct shf_arena arena;                 /* memory of home */
	struct sheaf_plan_rank *out;            /* owned; by rank */
	struct shf_buf *told;                   /* owned; by rank: the messages that homes would
	                                         * send to it */
	struct round *nets;                     /* owned; by rank */
};

static int nomem(const struct preview *p, struct sheaf_error *err)
{
	return shf_fail(err, SHEAF_ENOMEM, "no memory to plan for %u ranks", p->ranks);
}

/* Adds the boxes that one rank holds to the list that a home would receive. *cap: allocated length
 * of the list. */
static int add_boxes_of_rank(struct preview *p, uint32_t rank, const char *const *ignore,
                             size_t *cap, struct sheaf_error *err)
{
	struct shf_home *h = &p->home;
	struct shf_holds holds = { 0 };
	int rc = shf_holds_state(&holds, &p->layout, p->states[rank], ignore, err);

	if (rc == 0 && holds.n > *cap - h->n) {
		size_t want = holds.n > *cap ? *cap + holds.n : 2 * *cap;
		struct shf_home_box *more = shf_realloc(h->heard, want, sizeof(*more));

		if (more) {
			h->heard = more;
			*cap = want;
		} else {
			rc = nomem(p, err);
		}
	}
	for (size_t i = 0; rc == 0 && i < holds.n; i++)
		h->heard[h->n++] = (struct shf_home_box){ .rank = rank,
			.tensor = holds.a[i].tensor, .box = *holds.a[i].box };
	p->out[rank].holds = holds.bytes;
	shf_holds_release(&holds);
	return rc;
}

/* Adds the boxes of all ranks, and sorts them as a home does. */
static int hear_all(struct preview *p, const char *const *ignore, struct sheaf_error *err)
{
	size_t cap = 0;
	int rc = 0;

	p->home.end = p->layout.stripes_n;
	for (uint32_t r = 0; r < p->ranks && rc == 0; r++)
		rc = add_boxes_of_rank(p, r, ignore, &cap, err);
	if (rc == 0 && shf_home_sort(&p->layout, &p->home, &p->arena) < 0)
		rc = nomem(p, err);
	return rc;
}

/* Adds message bytes that a rank needs buffers for in a round. 0 or ENOMEM. */
static int travels(struct preview *p, uint32_t rank, uint32_t round, uint64_t bytes)
{
	struct round *n = &p->nets[rank];

	if (round >= n->n) {
		size_t want = round < 2 * n->n ? 2 * n->n : (size_t)round + 1;
		uint64_t *more = shf_realloc(n->bytes, want, sizeof(*more));

		if (!more)
			return SHEAF_ENOMEM;
		memset(more + n->n, 0, (want - n->n) * sizeof(*more));
		n->bytes = more;
		n->n = want;
	}
	n->bytes[round] += bytes;
	return 0;
}

/* Counts one move of a segment that `self` writes: which rank sends, which receives, and in which
 * round. */
static int count_move(struct preview *p, const struct shf_match *m, uint32_t self, uint32_t round,
                      const struct shf_seg_move *v)
{
	/* Ranks of one node copy through shared memory, so nothing is sent. */
	bool near = m->nodes[v->rank] == m->nodes[self];
	/* A replica sends an 8-byte digest as a message, even within a node. */
	uint64_t bytes = v->witness ? 8
	               : shf_box_bytes(&p->layout.tensors[v->tensor], &v->box);

	if (near && !v->witness) {
		p->out[v->rank].shares += v->rank == self ? 0 : bytes;
		return 0;
	}
	if (!near) {
		p->out[v->rank].sends += bytes;
		p->out[self].receives += bytes;
	}
	if (travels(p, v->rank, round, bytes) < 0 || travels(p, self, round, bytes) < 0)
		return SHEAF_ENOMEM;
	return 0;
}

/* Counts what one rank writes, and how much staging memory it needs. */
static int count_writer(struct preview *p, const struct shf_match *m, uint32_t self,
                        const struct shf_work *w)
{
	bool *seen = shf_zalloc(p->layout.files_n, sizeof(*seen));
	int rc = seen ? 0 : SHEAF_ENOMEM;

	for (size_t i = 0; i < w->segs_n && rc == 0; i++) {
		const struct shf_seg *g = &w->segs[i];

		p->out[self].files += !seen[g->file];
		seen[g->file] = true;
		p->out[self].collects += g->collected ? g->hi - g->lo : 0;
		for (uint32_t k = 0; k < g->moves_n && rc == 0; k++)
			rc = count_move(p, m, self, g->round, &w->moves[g->first_move + k]);
	}
	shf_free(seen);
	p->out[self].writes = w->bytes;
	p->out[self].staging = w->ctl_at + w->slots * w->slot_bytes;
	return rc;
}

/* Plans the save of one rank: the segments that it writes, and which of them are staged. */
static int plan_writer(struct preview *p, const struct shf_match *m, uint32_t rank,
                       const struct shf_opts *opts, struct shf_work *w, struct sheaf_error *err)
{
	struct shf_holds holds = { 0 };
	const struct shf_plan_slices held = { &holds, p->states[rank] };
	struct shf_match own = *m;
	int rc;

	shf_plan_set_unstaged(&own, &held, m->window);
	rc = own.in_place ? shf_holds_state(&holds, &p->layout, held.state, opts->ignore, err) : 0;
	if (rc == 0)
		rc = shf_work_decode(&own, rank, &p->told[rank], w);
	shf_holds_release(&holds);
	return rc < 0 ? rc : count_writer(p, m, rank, w);
}

/* Deals the stripes, and counts what each rank does with its share. */
static int count_all(struct preview *p, const struct shf_match *m, const struct shf_opts *opts,
                     struct sheaf_error *err)
{
	int rc = shf_home_deal(m, p->ranks, &p->home, p->told, err);

	for (uint32_t r = 0; r < p->ranks && rc == 0; r++) {
		struct shf_work w = { 0 };

		rc = p->told[r].oom ? SHEAF_ENOMEM
		     : m->way == SHF_SAVE ? plan_writer(p, m, r, opts, &w, err)
		                          : shf_work_decode(m, r, &p->told[r], &w);
		if (rc == 0 && m->way == SHF_LOAD)
			p->out[r].reads = w.bytes;
		if (rc < 0)
			shf_fail(err, rc, "planning rank %u: %s", r, shf_strerror(rc));
		shf_work_release(&w);
		shf_buf_release(&p->told[r]);
	}
	return rc;
}

/* Plans a save, then a load. The staging memory of a rank is its image and the message buffers of
 * its largest round. */
static int plan_all(struct preview *p, const struct shf_opts *opts, const int32_t *nodes,
                    struct sheaf_error *err)
{
	struct shf_match m = { .layout = &p->layout, .nodes = nodes, .way = SHF_SAVE,
		.witness = opts->flags & SHEAF_RUN_REPLICAS, .window = shf_plan_window(opts) };
	int rc = shf_schema_preview(p->states, (int)p->ranks, opts->ignore, &p->layout, err);

	if (rc == 0)
		rc = shf_layout_place(&p->layout, opts->file_bytes_max, err);
	if (rc == 0)
		rc = hear_all(p, opts->ignore, err);
	if (rc == 0)
		rc = count_all(p, &m, opts, err);
	/* A load has no digests of replicas, and its rounds take a stripe each. */
	m.way = SHF_LOAD;
	m.witness = false;
	m.window = m.net_window = SHF_STRIPE;
	if (rc == 0)
		rc = count_all(p, &m, opts, err);
	for (uint32_t r = 0; rc == 0 && r < p->ranks; r++) {
		uint64_t most = 0;

		for (size_t i = 0; i < p->nets[r].n; i++)
			most = p->nets[r].bytes[i] > most ? p->nets[r].bytes[i] : most;
		p->out[r].staging += most;
	}
	return rc;
}

/* Checks that each state can be saved. */
static int check_states(struct sheaf_state *const *states, int32_t ranks, struct sheaf_error *err)
{
	int rc = 0;

	for (int32_t r = 0; r < ranks && rc == 0; r++) {
		rc = shf_state_ready(states[r], false, err);
		if (rc < 0 && err)
			err->rank = r;
	}
	return rc;
}

/* Communicates with nobody. If a failure concerns one rank, err->rank names it. */
int shf_plan_job(struct sheaf_state *const *states, const int32_t *node, int32_t ranks,
                 const struct shf_opts *opts,
                 void (*item)(void *arg, const struct sheaf_plan_rank *rank), void *arg,
                 struct sheaf_error *err)
{
	struct preview p = { .states = states, .ranks = (uint32_t)ranks };
	int32_t *nodes = shf_zalloc((size_t)ranks, sizeof(*nodes));
	struct shf_opts own = { 0 };
	int rc = check_states(states, ranks, err);

	p.out = shf_zalloc(p.ranks, sizeof(*p.out));
	p.told = shf_zalloc(p.ranks, sizeof(*p.told));
	p.nets = shf_zalloc(p.ranks, sizeof(*p.nets));
	if (rc == 0 && (!nodes || !p.out || !p.told || !p.nets))
		rc = nomem(&p, err);
	if (rc == 0)
		rc = shf_opts_take(&own, opts, err);
	for (int32_t r = 0; rc == 0 && r < ranks; r++) {
		nodes[r] = node ? node[r] : 0;
		p.out[r].size = sizeof(p.out[r]);
		p.out[r].rank = r;
		p.out[r].node = nodes[r];
	}
	if (rc == 0)
		rc = plan_all(&p, &own, nodes, err);
	for (int32_t r = 0; rc == 0 && r < ranks; r++) {
		p.out[r].checkpoint_files = p.layout.files_n;
		item(arg, &p.out[r]);
	}
	for (uint32_t r = 0; r < p.ranks; r++) {
		if (p.told)
			shf_buf_release(&p.told[r]);
		if (p.nets)
			shf_free(p.nets[r].bytes);
	}
	shf_free(p.home.heard);
	shf_arena_release(&p.arena);
	shf_layout_release(&p.layout);
	shf_opts_release(&own);
	shf_free(nodes);
	shf_free(p.out);
	shf_free(p.told);
	shf_free(p.nets);
	return rc;
}
