/* SPDX-License-Identifier: Apache-2.0 */
/* sheaf plan: reports what each rank and node would write and read, without running anything. The
 * states are those of sheaf-bench, but without memory. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "sheaf-opts.h"
#include "sheaf-plan.h"
#include "workload.h"

#define RANKS_MAX (1 << 20)

struct plan {
	const struct cli_args *a;
	struct wl_model model;
	struct wl_layout layout;
	struct sheaf_state **states;    /* owned */
	int32_t *node;                  /* owned */
	int64_t ranks, nodes;
	struct sheaf_plan_rank total, most;
	struct sheaf_plan_rank *of_node;        /* owned; sums over the node's ranks */
	double mb_per_s;                /* of a node; 0: not given */
	bool header;
};

static void row(const char *who, const char *node, const struct sheaf_plan_rank *r)
{
	char t[7][32];

	printf("%8s  %4s  %10s %10s %10s %10s %10s %10s %10s %6d\n", who, node,
	       wl_size(t[0], r->holds), wl_size(t[1], r->writes), wl_size(t[2], r->reads),
	       wl_size(t[3], r->sends), wl_size(t[4], r->receives), wl_size(t[5], r->shares),
	       wl_size(t[6], r->staging), (int)r->files);
}

static void fold(uint64_t v, uint64_t *total, uint64_t *most)
{
	*total += v;
	if (v > *most)
		*most = v;
}

static void count(struct plan *p, const struct sheaf_plan_rank *r)
{
	fold(r->holds, &p->total.holds, &p->most.holds);
	fold(r->writes, &p->total.writes, &p->most.writes);
	fold(r->reads, &p->total.reads, &p->most.reads);
	fold(r->sends, &p->total.sends, &p->most.sends);
	fold(r->receives, &p->total.receives, &p->most.receives);
	fold(r->shares, &p->total.shares, &p->most.shares);
	fold(r->staging, &p->total.staging, &p->most.staging);
	p->total.files += r->files;
	if (r->files > p->most.files)
		p->most.files = r->files;
	p->total.collects += r->collects;
	p->total.checkpoint_files = r->checkpoint_files;
	p->of_node[r->node].writes += r->writes;
	p->of_node[r->node].reads += r->reads;
	p->of_node[r->node].files += r->files;
	p->of_node[r->node].sends += r->sends;
	p->of_node[r->node].receives += r->receives;
}

/* Returns the largest value of each member over all nodes. */
static struct sheaf_plan_rank most_of_nodes(const struct plan *p)
{
	struct sheaf_plan_rank most = { 0 };

	for (int64_t n = 0; n < p->nodes; n++) {
		const struct sheaf_plan_rank *r = &p->of_node[n];

		most.files = r->files > most.files ? r->files : most.files;
		most.writes = r->writes > most.writes ? r->writes : most.writes;
		most.reads = r->reads > most.reads ? r->reads : most.reads;
		most.sends = r->sends > most.sends ? r->sends : most.sends;
		most.receives = r->receives > most.receives ? r->receives : most.receives;
	}
	return most;
}

/* Returns how many seconds a node takes for so many bytes. */
static double seconds(const struct plan *p, uint64_t bytes)
{
	return (double)bytes / 1e6 / p->mb_per_s;
}

/* Prints the last line of --json. It has times only if a speed was given. */
static void tell_json(const struct plan *p, const struct sheaf_plan_rank *most)
{
	json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "way",
	                      p->total.collects ? "two-phase" : "one-phase", "collects",
	                      (json_int_t)p->total.collects, "nodes", (json_int_t)p->nodes,
	                      "node_files_most", (json_int_t)most->files, "files",
	                      (json_int_t)p->total.files, "node_sends_most",
	                      (json_int_t)most->sends, "node_receives_most",
	                      (json_int_t)most->receives, "sends", (json_int_t)p->total.sends,
	                      "node_writes_most", (json_int_t)most->writes, "node_reads_most",
	                      (json_int_t)most->reads, "checkpoint_files",
	                      (json_int_t)p->total.checkpoint_files);

	if (p->mb_per_s > 0) {
		json_object_set_new(o, "write_s", json_real(seconds(p, most->writes)));
		json_object_set_new(o, "read_s", json_real(seconds(p, most->reads)));
	}
	cli_line(o);
}

/* Prints how the checkpoint is written and why, and what that costs the nodes. */
static void tell(const struct plan *p)
{
	struct sheaf_plan_rank most = most_of_nodes(p);
	char t[4][32];

	if (p->a->json) {
		tell_json(p, &most);
		return;
	}
	printf("\nThe checkpoint has %llu safetensors files, %s in all.\n",
	       (unsigned long long)p->total.checkpoint_files, wl_size(t[0], p->total.writes));
	if (p->mb_per_s > 0)
		printf("At %g MB/s a node, it is written in %.3g s and read in %.3g s, at best: a "
		       "node writes\nat most %s and reads at most %s.\n", p->mb_per_s,
		       seconds(p, most.writes), seconds(p, most.reads), wl_size(t[0], most.writes),
		       wl_size(t[1], most.reads));
	if (p->nodes < 2)
		return;
	printf("\nA node opens at most %d files, sends at most %s and receives at most %s;\n"
	       "%s travel between nodes.\n", (int)most.files, wl_size(t[0], most.sends),
	       wl_size(t[1], most.receives), wl_size(t[2], p->total.sends));
	if (p->total.collects)
		printf("%s of %s are written in two phases: a node holds less than 4 MiB of each\n"
		       "16 MiB there, on average, and of many files.\n",
		       wl_size(t[0], p->total.collects), wl_size(t[1], p->total.writes));
	else
		printf("All is written in one phase, by ranks of the nodes that hold it.\n");
}

static void item(void *arg, const struct sheaf_plan_rank *r)
{
	struct plan *p = arg;
	char who[16], node[16];

	count(p, r);
	if (p->a->json) {
		cli_line(json_pack("{s:i,s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:I}", "rank",
				   (int)r->rank, "node", (int)r->node, "holds",
				   (json_int_t)r->holds, "writes", (json_int_t)r->writes, "reads",
				   (json_int_t)r->reads, "sends", (json_int_t)r->sends, "receives",
				   (json_int_t)r->receives, "staging", (json_int_t)r->staging,
				   "shares", (json_int_t)r->shares, "files", (int)r->files,
				   "collects", (json_int_t)r->collects));
		return;
	}
	if (!p->header)
		printf("%8s  %4s  %10s %10s %10s %10s %10s %10s %10s %6s\n", "RANK", "NODE",
		       "HOLDS", "WRITES", "READS", "SENDS", "RECEIVES", "SHARES", "STAGING",
		       "FILES");
	p->header = true;
	snprintf(who, sizeof(who), "%d", (int)r->rank);
	snprintf(node, sizeof(node), "%d", (int)r->node);
	row(who, node, r);
}

/* Reads a description in JSON, or the tensors of an existing checkpoint. */
static int read_source(struct plan *p)
{
	const char *path = p->a->pos[0], *dot = strrchr(path, '.');
	struct sheaf_error err = { .msg = "" };
	struct cli_step s = { 0 };
	struct stat st;
	int rc;

	if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode) &&
	    !(dot && strcmp(dot, ".safetensors") == 0)) {
		rc = wl_model_read(&p->model, path, &err);
	} else {
		rc = cli_step_open(&s, p->a, path, false);
		if (rc)
			return rc;
		rc = wl_model_like(&p->model, s.step, true, &err);
		cli_step_close(&s);
	}
	if (rc < 0)
		cli_error(p->a, rc, path, err.msg, NULL);
	return rc < 0 ? 2 : 0;
}

static int read_model(struct plan *p)
{
	const char *families = cli_value(p->a, "families");
	struct sheaf_error err = { .msg = "" };
	int rc = read_source(p);

	if (rc)
		return rc;
	if (cli_flag(p->a, "adam") || p->model.adam)
		rc = wl_model_adam(&p->model, &err);
	if (rc == 0)
		rc = wl_model_seal(&p->model, &err);
	if (rc == 0 && families)
		rc = wl_model_keep(&p->model, families, &err);
	if (rc < 0)
		cli_error(p->a, rc, p->a->pos[0], err.msg, NULL);
	return rc < 0 ? 2 : 0;
}

static int read_layout(struct plan *p)
{
	const struct cli_args *a = p->a;
	struct sheaf_error err = { .msg = "" };
	int64_t zero = 0;
	int rc = cli_int(a, "zero", 0, 3, &zero);

	p->nodes = 1;
	if (!rc)
		rc = cli_int(a, "nodes", 1, RANKS_MAX, &p->nodes);
	if (rc)
		return rc;
	if (wl_layout_parse(&p->layout, cli_value(a, "mesh"), cli_value(a, "expert-mesh"),
			    (int)zero, &err) < 0)
		return cli_usage(a, "", err.msg, NULL);
	p->ranks = wl_mesh_ranks(&p->layout.mesh);
	if (p->ranks > RANKS_MAX)
		return cli_usage(a, "--mesh", "this mesh has more than 1048576 ranks", NULL);
	if (p->ranks % p->nodes)
		return cli_usage(a, "--nodes", "must divide the number of ranks", NULL);
	return 0;
}

static int build(struct plan *p)
{
	struct sheaf_error err = { .msg = "" };

	p->states = calloc((size_t)p->ranks, sizeof(*p->states));
	p->node = calloc((size_t)p->ranks, sizeof(*p->node));
	p->of_node = calloc((size_t)p->nodes, sizeof(*p->of_node));
	if (!p->states || !p->node || !p->of_node)
		return cli_nomem(p->a);
	for (int64_t r = 0; r < p->ranks; r++) {
		struct wl_held held = { 0 };
		int rc = wl_held_init(&held, &p->model, &p->layout, r, false, &err);

		if (rc == 0)
			rc = wl_held_state(&held, &p->states[r], &err);
		wl_held_release(&held);
		if (rc < 0)
			return cli_error(p->a, rc, p->a->pos[0], err.msg, NULL);
		p->node[r] = (int32_t)(r * p->nodes / p->ranks);
	}
	return 0;
}

static int run(const struct cli_args *a)
{
	struct plan p = { .a = a };
	struct sheaf_staging memory = { .size = sizeof(memory) };
	struct sheaf_opts opts = { .size = sizeof(opts) };
	struct sheaf_error err = { .msg = "" };
	int64_t file_bytes = 0, staging = 0;
	int rc = read_layout(&p);

	if (!rc)
		rc = cli_bytes(a, "file-bytes", 1, INT64_MAX, &file_bytes);
	if (!rc)
		rc = cli_bytes(a, "staging-bytes", 1, INT64_MAX, &staging);
	if (!rc)
		rc = cli_real(a, "mb-per-s", &p.mb_per_s);
	if (!rc && cli_value(a, "mb-per-s") && p.mb_per_s <= 0)
		rc = cli_usage(a, "--mb-per-s", "must be more than 0", NULL);
	if (!rc)
		rc = read_model(&p);
	if (!rc)
		rc = build(&p);
	opts.file_bytes_max = (uint64_t)file_bytes;
	memory.bytes_max = (uint64_t)staging;
	opts.staging = &memory;
	if (!rc) {
		rc = sheaf_plan(p.states, p.node, (int32_t)p.ranks, &opts, item, &p, &err);
		if (rc < 0)
			rc = cli_error(a, rc, a->pos[0], err.msg, NULL);
	}
	if (!rc && p.header) {
		row("total", "", &p.total);
		row("most", "", &p.most);
	}
	if (!rc)
		tell(&p);
	for (int64_t r = 0; p.states && r < p.ranks; r++)
		sheaf_state_free(p.states[r]);
	free(p.states);
	free(p.node);
	free(p.of_node);
	wl_model_release(&p.model);
	return rc;
}

static const struct cli_opt opts[] = {
	{ "mesh", "dp=2,tp=2", "axes dp, tp, pp, ep; those not named are 1, the last one\n"
			       "named varies fastest with the rank" },
	{ "expert-mesh", "ep=4", "experts on a mesh of their own over the same ranks" },
	{ "zero", "Z", "0 to 3: flat ranges over dp, of the optimizer (1, 2) or of\n"
		       "the model too (3)" },
	{ "adam", NULL, "also master weights and two moments" },
	{ "families", "A,B", "only these families" },
	{ "nodes", "N", "ranks split evenly over N nodes that share no memory" },
	{ "file-bytes", "BYTES", "largest file (5000000000)" },
	{ "staging-bytes", "BYTES", "bound of a rank's host copies" },
	{ "mb-per-s", "MB", "how long writing and reading take where a node moves so many\n"
			    "megabytes (10^6 bytes) a second to and from the disk" },
	{ 0 },
};
const struct cli_verb cli_plan = {
	.name = "plan",
	.brief = "who would write and read what, without running it",
	.synopsis = "sheaf plan STATE.json|PATH [--mesh M] [--expert-mesh M] [--nodes N]\n"
		    "                  [--zero Z] [--adam] [--families A,B] [--mb-per-s MB]\n"
		    "                  [--json]",
	.text = "Prints for each rank of a mesh how many bytes it holds, writes to disk,\n"
		"reads back, sends to and receives from other nodes, passes on through node\n"
		"memory, and keeps in staging. Nothing is run and no tensor is read. Then, of\n"
		"several nodes, how many files a node opens, what it moves, and how much is\n"
		"written in two phases: where a stripe of 16 MiB has bytes of more than four\n"
		"nodes, and there are more than 16 files, one rank collects and writes it.\n\n"
		"--mb-per-s estimates the time from the node that moves most: `sheaf bench DIR`\n"
		"measures the speed of a disk. Where nodes share a file system, give what it\n"
		"takes from all of them, divided by their number.\n\n"
		"STATE.json is {\"tensors\": [{name, dtype, shape, tp_axis, stage, expert,\n"
		"experts, family, tied_to}], \"adam\": bool}; name, dtype and shape are\n"
		"required. It is the file that sheaf-bench reads, and cut by the same rules:\n"
		"tp along tp_axis in pieces of ceil(n / tp); stages spread evenly over pp,\n"
		"null on all; expert e of E to ep rank floor(e * ep / E). Of a PATH the\n"
		"tensors are taken as they stand there; those of two or more dimensions are\n"
		"cut on axis 0 and 1 in turn.",
	.exits = "  0  planned\n"
		 "  1  the pieces leave a gap or do not match\n"
		 "  2  wrong arguments, or a description that cannot be read",
	.examples = "  sheaf plan state.json --mesh dp=8,tp=8 --nodes 8 --adam --zero 1\n"
		    "  sheaf plan runs/gpt@latest --mesh tp=4 --json",
	.opts = opts,
	.pos_min = 1,
	.pos_max = 1,
	.pos_names = "STATE.json",
	.run = run,
};
