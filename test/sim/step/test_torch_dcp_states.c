/* SPDX-License-Identifier: Apache-2.0 */
/* State of the optimizer in directories of torch.distributed.checkpoint: it gets the names of the
 * weights where each state is that of a weight, and keeps its own name everywhere else. */
#include <stdio.h>
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"
#include "torchfile.h"

#define MOST 12

struct tensor { const char *name; int rows, columns; };

static int tensors_of(const struct tensor *of, struct torch_tensor all[MOST])
{
	int n = 0;

	for (; n < MOST && of[n].name; n++)
		all[n] = (struct torch_tensor){ .name = of[n].name, .dtype = SHEAF_F32, .ndim = 2,
			.shape = { of[n].rows, of[n].columns } };
	return n;
}

static struct simdisk *disk_of(const struct tensor *of)
{
	struct simdisk *disk = disk_new();
	struct torch_tensor all[MOST];

	torch_dcp(disk, "dcp", all, tensors_of(of, all), 1, 1, DCP_SOUND);
	return disk;
}

/* Compares the names of all tensors outside the family "model". */
static void states_are(const struct tensor *of, const char *want)
{
	struct simdisk *disk = disk_of(of);
	const struct shf_foreign_tensor *x;
	struct sheaf_error err;
	struct shf_foreign *f;
	char got[600] = "";
	size_t n;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 82, 0), "dcp", &err), 0, &err);
	x = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		if (x[i].family)
			snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s:%s ",
			         x[i].family, x[i].name);
	CHECK_STR(got, want);
	shf_foreign_free(f);
	simdisk_free(disk);
}

static const struct tensor plain[MOST] = {
	{ "model.a.weight", 3, 5 }, { "model.a.bias", 1, 5 },
	{ "optim.state.a.bias.exp_avg", 1, 5 }, { "optim.state.a.bias.step", 1, 1 },
	{ "optim.state.a.weight.exp_avg", 3, 5 }, { "optim.state.a.weight.exp_avg_sq", 3, 5 },
};
#define PLAIN "optimizer:model.a.bias/moment1_0 optimizer:model.a.bias/step " \
	"optimizer:model.a.weight/moment1_0 optimizer:model.a.weight/moment2_0 "

TEST(states_have_the_names_of_their_weights)
{
	/* Weights beside the optimizer without a key, as torchtitan has them. */
	static const struct tensor root[MOST] = {
		{ "a.weight", 3, 5 }, { "optimizer.state.a.weight.exp_avg", 3, 5 },
	}, nested[MOST] = {
		{ "app.model.a.weight", 3, 5 }, { "app.optim.state.a.weight.exp_avg", 3, 5 },
		{ "model.a.weight", 5, 3 },
	}, listed[MOST] = {
		{ "model.a.weight", 3, 5 }, { "optimizers.0.state.a.weight.exp_avg", 3, 5 },
	}, state_in_a_name[MOST] = {
		{ "model.a.state.w", 3, 5 }, { "optim.state.a.state.w.exp_avg", 3, 5 },
	};

	states_are(plain, PLAIN);
	states_are(root, "optimizer:a.weight/moment1_0 ");
	states_are(nested, "optimizer:app.model.a.weight/moment1_0 ");
	states_are(listed, "optimizer:model.a.weight/moment1_0 ");
	states_are(state_in_a_name, "optimizer:model.a.state.w/moment1_0 ");
}

/* Two optimizers share the parameters of a model. The names of the first are changed before those
 * of the second are looked for. */
TEST(each_of_several_optimizers_has_its_weights)
{
	static const struct tensor two[MOST] = {
		{ "adam.state.a.bias.exp_avg", 1, 5 }, { "model.a.bias", 1, 5 },
		{ "model.a.weight", 3, 5 }, { "muon.state.a.weight.momentum_buffer", 3, 5 },
	}, twice[MOST] = {
		{ "model.a.bias", 1, 5 }, { "optim.state.a.bias.exp_avg", 1, 5 },
		{ "optim_of_yesterday.state.a.bias.exp_avg", 1, 5 },
	};

	states_are(two, "optimizer:model.a.bias/moment1_0 "
	                "optimizer:model.a.weight/momentum_buffer ");
	states_are(twice, "optimizer:model.a.bias/moment1_0 ");
}

TEST(what_is_not_surely_the_state_of_weights_keeps_its_name)
{
	static const struct tensor numbers[MOST] = {
		{ "model.a.weight", 3, 5 }, { "optimizer.state.0.exp_avg", 3, 5 },
	}, unshaped[MOST] = {           /* the names alone prove nothing */
		{ "model.a", 3, 5 }, { "model.state.a.weight", 3, 5 },
	}, ours[MOST] = {               /* both kinds would get one name */
		{ "model.a", 3, 5 }, { "optim.state.a.exp_avg", 3, 5 },
		{ "optim.state.a.moment1_0", 3, 5 },
	}, strange[MOST] = {
		{ "model.a", 3, 5 }, { "optim.state.a.exp avg", 3, 5 },
	};
	struct tensor x[MOST];

	states_are(numbers, "");
	states_are(unshaped, "");
	states_are(ours, "optimizer:model.a/moment1_0 ");
	states_are(strange, "");
	memcpy(x, plain, sizeof(x));
	x[4].rows = 5;                          /* a moment of another shape */
	x[4].columns = 3;
	states_are(x, "");
	memcpy(x, plain, sizeof(x));
	x[3].rows = 7;                          /* the shape of another state does not count */
	states_are(x, PLAIN);
	x[1].name = "model.b.bias";             /* a state without a weight */
	states_are(x, "");
}

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_of(plain);

	foreign_survives(disk, "dcp", 1, 8);
	simdisk_free(disk);
}
