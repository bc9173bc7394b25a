/* SPDX-License-Identifier: Apache-2.0 */
/* Dictionaries of torch.save as trainings write them: state of the optimizer gets the names of its
 * parameters where the file tells them, and keeps its numbers where it does not. */
#include <stdlib.h>
#include "foreign.h"
#include "t.h"
#include "foreign_plays.h"
#include "foreign_starved.h"

/* A training: its weights, in their order, and the groups of parameters of its optimizer. */
struct training {
	const char *weights, *optimizer;        /* the keys; NULL: model, optimizer */
	struct { const char *name; int shape[2]; const char *of; bool whole; } w[8];
	/* By parameter: the shape of its state; 0: it has none. Then -1 at the end. */
	int states[8][2], states_n;
	int groups[3], groups_n;        /* how many parameters each has */
	int first;                      /* number of the first parameter */
	const char *names[8];           /* that the groups have; NULL: they have none */
};

static void put(struct torch_bytes *b, const char *s)
{
	torch_add(b, s, strlen(s));
}

/* Lists the tensors of a training: the weights, and behind them two states of each parameter.
 * Returns how many there are. */
static int tensors_of(const struct training *t, struct torch_tensor all[40])
{
	int n = 0;

	for (; n < 8 && t->w[n].name; n++)
		all[n] = (struct torch_tensor){ .name = t->w[n].name, .of = t->w[n].of,
			.dtype = t->w[n].whole ? SHEAF_I64 : SHEAF_F32, .ndim = 2,
			.shape = { t->w[n].shape[0], t->w[n].shape[1] } };
	for (int i = 0; i < t->states_n; i++) {
		all[n++] = (struct torch_tensor){ .name = "m", .dtype = SHEAF_F32, .ndim = 2,
			.shape = { t->states[i][0], t->states[i][1] } };
		all[n++] = (struct torch_tensor){ .name = "s", .dtype = SHEAF_F32, .ndim = 0 };
	}
	return n;
}

static void put_groups(struct torch_bytes *b, const struct training *t)
{
	int number = t->first, name = 0;

	torch_text(b, "param_groups");
	put(b, "](");
	for (int g = 0; g < t->groups_n; g++) {
		put(b, "}(");
		torch_text(b, "lr");
		torch_int(b, 1);
		torch_text(b, "params");
		put(b, "](");
		for (int i = 0; i < t->groups[g]; i++)
			torch_int(b, number++);
		put(b, "e");
		if (t->names[0]) {
			torch_text(b, "param_names");
			put(b, "](");
			for (int i = 0; i < t->groups[g]; i++)
				torch_text(b, t->names[name++]);
			put(b, "e");
		}
		put(b, "u");
	}
	put(b, "e");
}

/* Makes the pickle of the values. */
static struct torch_bytes pickle_of(const struct training *t, const struct torch_tensor *all, int n)
{
	struct torch_bytes b = { 0 };
	int i;

	torch_add(&b, "\x80\x02}(", 4);
	torch_text(&b, t->weights ? t->weights : "model");
	put(&b, "}(");
	for (i = 0; i < 8 && t->w[i].name; i++) {
		torch_text(&b, t->w[i].name);
		torch_put(&b, all, n, i);
	}
	put(&b, "u");
	torch_text(&b, t->optimizer ? t->optimizer : "optimizer");
	put(&b, "}(");
	torch_text(&b, "state");
	put(&b, "}(");
	for (int k = 0; k < t->states_n; k++, i += 2) {
		if (!t->states[k][0])
			continue;
		torch_int(&b, t->first + k);
		put(&b, "}(");
		torch_text(&b, "exp_avg");
		torch_put(&b, all, n, i);
		torch_text(&b, "step");
		torch_put(&b, all, n, i + 1);
		put(&b, "u");
	}
	put(&b, "u");
	put_groups(&b, t);
	put(&b, "uu.");
	return b;
}

static struct torch_bytes file_of(const struct training *t)
{
	struct torch_tensor all[40];
	struct torch_bytes storages[40], out, b;
	int n = tensors_of(t, all);

	b = pickle_of(t, all, n);
	for (int i = 0; i < n; i++)
		storages[i] = torch_storage(&all[i]);
	out = torch_archive_with("archive", &b, storages, n);
	for (int i = 0; i < n; i++)
		free(storages[i].p);
	free(b.p);
	return out;
}

/* Makes the same file as torch did before 1.6, and still does if it is asked to. All tensors must
 * be F32, and have storages of their own. */
static struct torch_bytes legacy_of(const struct training *t)
{
	static const char head[] = "\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2M\xe9\3."
		"\x80\2}X\x0d\0\0\0little_endian\x88s.";
	struct torch_tensor all[40];
	struct torch_bytes b = { 0 }, values;
	int n = tensors_of(t, all);

	values = pickle_of(t, all, n);
	torch_add(&b, head, sizeof(head) - 1);
	torch_add(&b, values.p, values.n);
	free(values.p);
	torch_add(&b, "\x80\2](", 4);
	for (int i = 0; i < n; i++) {
		char key[12];

		snprintf(key, sizeof(key), "%d", i);
		torch_text(&b, key);
	}
	torch_add(&b, "e.", 2);
	for (int i = 0; i < n; i++) {
		struct torch_bytes storage = torch_storage(&all[i]);

		torch_add(&b, &(uint64_t){ storage.n / 4 }, 8);
		torch_add(&b, storage.p, storage.n);
		free(storage.p);
	}
	return b;
}

/* Compares the names of all states in a file, with a blank behind each, and the note on them. */
static void states_in(struct torch_bytes file, const char *format, const char *want,
                      const char *note)
{
	struct simdisk *disk = disk_with("t.pt", file);
	const struct shf_foreign_note *notes;
	const struct shf_foreign_tensor *x;
	char got[600] = "", found[300] = "";
	struct sheaf_error err;
	struct shf_foreign *f;
	size_t n;

	CHECK_RC(shf_foreign_open(&f, simdisk_process(disk, 82, 0), "t.pt", &err), 0, &err);
	CHECK_STR(f->format->name, format);
	x = shf_foreign_tensors(f, &n);
	for (size_t i = 0; i < n; i++)
		if (x[i].family || strstr(x[i].name, ".state."))
			snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s ",
			         x[i].family ? "" : "model:", x[i].name);
	notes = (const void *)f->notes.data;
	for (size_t i = 0; i < f->notes.len / sizeof(*notes); i++)
		if (strcmp(notes[i].key, "optimizer.names") == 0)
			snprintf(found, sizeof(found), "%s", notes[i].text);
	CHECK_STR(got, want);
	CHECK(note ? strstr(found, note) != NULL : !found[0]);
	shf_foreign_free(f);
	simdisk_free(disk);
}

static void states_are(const struct training *t, const char *want, const char *note)
{
	states_in(file_of(t), "torch.save", want, note);
}

#define ORDER "the order of the weights in "
#define W(name, rows, columns) { name, { rows, columns }, NULL, false }

TEST(parameters_have_the_names_of_the_weights_in_their_order)
{
	static const struct training plain = {
		.w = { W("a.w", 3, 5), W("a.b", 1, 3), W("b.w", 3, 5) },
		.states = { { 3, 5 }, { 1, 3 }, { 3, 5 } }, .states_n = 3,
		.groups = { 3 }, .groups_n = 1,
	}, buffers = {
		.weights = "model_state_dict", .optimizer = "optimizer_state_dict",
		.w = { W("a.w", 3, 5), { "a.count", { 1, 1 }, NULL, true },
		       W("a.running_mean", 3, 5), W("b.w", 3, 5),
		       { "tied", { 3, 5 }, "a.w", false } },
		.states = { { 3, 5 }, { 0 } }, .states_n = 2, .groups = { 2 }, .groups_n = 1,
	};

	states_are(&plain, "model.a.w/moment1_0 model.a.w/step model.a.b/moment1_0 model.a.b/step "
	           "model.b.w/moment1_0 model.b.w/step ", ORDER "model: ");
	states_are(&buffers, "model_state_dict.a.w/moment1_0 model_state_dict.a.w/step ",
	           ORDER "model_state_dict: ");
}

/* As trainers divide them into those that decay, and those that do not. */
TEST(groups_are_told_apart_by_their_shapes)
{
	static const struct training two = {
		.w = { W("a.w", 3, 5), W("a.b", 1, 3), W("b.w", 5, 3),
		       W("b.b", 1, 5) },
		.states = { { 3, 5 }, { 5, 3 }, { 1, 3 }, { 1, 5 } }, .states_n = 4,
		.groups = { 2, 2 }, .groups_n = 2,
	};
	struct training other = two;

	states_are(&two, "model.a.w/moment1_0 model.a.w/step model.b.w/moment1_0 model.b.w/step "
	           "model.a.b/moment1_0 model.a.b/step model.b.b/moment1_0 model.b.b/step ",
	           ORDER "model: ");
	/* Two groups have the same shape: which weight is in which is not known. */
	other.states[1][0] = 1;
	other.w[2].shape[0] = 1;
	states_are(&other, "model:optimizer.state.0.exp_avg model:optimizer.state.0.step "
	           "model:optimizer.state.1.exp_avg model:optimizer.state.1.step "
	           "model:optimizer.state.2.exp_avg model:optimizer.state.2.step "
	           "model:optimizer.state.3.exp_avg model:optimizer.state.3.step ", NULL);
}

TEST(what_does_not_fit_keeps_its_numbers)
{
	static const struct training plain = {
		.w = { W("a.w", 3, 5), W("b.w", 5, 3) },
		.states = { { 3, 5 }, { 5, 3 } }, .states_n = 2, .groups = { 2 }, .groups_n = 1,
	};
	static const char numbers[] = "model:optimizer.state.0.exp_avg "
		"model:optimizer.state.0.step model:optimizer.state.1.exp_avg "
		"model:optimizer.state.1.step ";
	struct training t = plain;

	states_are(&t, "model.a.w/moment1_0 model.a.w/step model.b.w/moment1_0 model.b.w/step ",
	           ORDER);
	t.states[1][0] = 4;                     /* another shape */
	states_are(&t, numbers, NULL);
	t = plain;
	t.w[2].name = "c.w";                    /* a weight that the optimizer has not */
	t.w[2].shape[0] = t.w[2].shape[1] = 1;
	states_are(&t, numbers, NULL);
	t = plain;
	t.groups[0] = 1;                        /* a state of no group */
	states_are(&t, numbers, NULL);
	t = plain;
	t.weights = "weights_of_mine";
	states_are(&t, numbers, NULL);
	t = plain;
	t.first = 1;                            /* numbers that no optimizer gives */
	states_are(&t, "model:optimizer.state.1.exp_avg model:optimizer.state.1.step "
	           "model:optimizer.state.2.exp_avg model:optimizer.state.2.step ", NULL);
}

TEST(names_that_groups_have_come_before_the_order)
{
	static const struct training plain = {
		.w = { W("a.w", 3, 5), W("b.w", 3, 5) },
		.states = { { 3, 5 }, { 3, 5 } }, .states_n = 2, .groups = { 1, 1 }, .groups_n = 2,
		.names = { "b.w", "a.w" },
	};
	struct training t = plain;

	states_are(&t, "model.b.w/moment1_0 model.b.w/step model.a.w/moment1_0 model.a.w/step ",
	           NULL);
	t.names[0] = "c.w";                     /* no weight */
	states_are(&t, "model:optimizer.state.0.exp_avg model:optimizer.state.0.step "
	           "model:optimizer.state.1.exp_avg model:optimizer.state.1.step ", NULL);
}

TEST(a_legacy_file_is_read_as_an_archive_is)
{
	static const struct training plain = {
		.w = { W("a.w", 3, 5), W("a.b", 1, 3), W("b.w", 3, 5) },
		.states = { { 3, 5 }, { 1, 3 }, { 3, 5 } }, .states_n = 3,
		.groups = { 3 }, .groups_n = 1,
	};

	states_in(legacy_of(&plain), "torch.save (legacy)", "model.a.w/moment1_0 model.a.w/step "
	          "model.a.b/moment1_0 model.a.b/step model.b.w/moment1_0 model.b.w/step ",
	          ORDER "model: ");
}

static const struct training starving = {
	.w = { W("a.w", 3, 5), W("b.b", 1, 3) },
	.states = { { 3, 5 }, { 1, 3 } }, .states_n = 2, .groups = { 1, 1 }, .groups_n = 2,
};

TEST(each_allocation_may_fail)
{
	struct simdisk *disk = disk_with("t.pt", file_of(&starving));

	foreign_survives(disk, "t.pt", 1, 20);
	simdisk_free(disk);
}
