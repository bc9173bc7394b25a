/* SPDX-License-Identifier: Apache-2.0 */
/* The workload that tests and `sheaf plan` build on: values, names, meshes, and the cut. */
#include "t.h"

#include <math.h>
#include <stdlib.h>
#include "workload.h"

static struct sheaf_error err;

/* --- values ------------------------------------------------------------------------------- */

TEST(crc_is_the_published_one)
{
	CHECK(wl_crc64("123456789", 9) == UINT64_C(0xae8b14860a799888));
	CHECK(wl_crc64("", 0) == 0);
}

TEST(hash_is_of_the_text_with_colons)
{
	const char *text = "7:1000:optimizer:a.weight/moment1_0";

	CHECK(wl_hash(7, 1000, "optimizer", "a.weight/moment1_0") == wl_crc64(text, strlen(text)));
	CHECK(wl_hash_of(SHEAF_BF16, 1, 2, "model", "a") == wl_hash(1, 2, "master_weights", "a"));
	CHECK(wl_hash_of(SHEAF_F32, 1, 2, "model", "a") == wl_hash(1, 2, "model", "a"));
}

TEST(bf16_is_the_master_weight_rounded)
{
	uint16_t half[256];
	float full[256];

	wl_fill(half, SHEAF_BF16, 99, 5, 256);
	wl_fill(full, SHEAF_F32, 99, 5, 256);
	for (int i = 0; i < 256; i++) {
		uint16_t want;

		CHECK(wl_round(&want, SHEAF_BF16, (double)full[i]));
		CHECK_INT(half[i], want);
	}
}

TEST(every_small_float_survives_value_and_round)
{
	static const int types[] = { SHEAF_F16, SHEAF_BF16, SHEAF_F8_E4M3, SHEAF_F8_E5M2,
				     SHEAF_F8_E4M3FNUZ, SHEAF_F8_E5M2FNUZ };

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		uint32_t codes = UINT32_C(1) << sheaf_dtype_bits(types[t]);

		for (uint32_t c = 0; c < codes; c++) {
			uint16_t in = (uint16_t)c, out = 0;
			double v, back;

			CHECK(wl_value(&v, types[t], &in));
			CHECK(wl_round(&out, types[t], v));
			CHECK(wl_value(&back, types[t], &out));
			CHECK(isnan(v) ? isnan(back) : in == out);
		}
	}
}

TEST(rounding_goes_to_even_and_over_the_top)
{
	uint16_t x = 0;
	uint8_t y;

	wl_round(&x, SHEAF_F16, 65519.0);
	CHECK_INT(x, 0x7bff);
	wl_round(&x, SHEAF_F16, 65520.0);
	CHECK_INT(x, 0x7c00);
	wl_round(&x, SHEAF_F16, 0x1p-25);       /* half of the least: to even, zero */
	CHECK_INT(x, 0);
	wl_round(&x, SHEAF_F16, 0x1.8p-25);
	CHECK_INT(x, 1);
	wl_round(&x, SHEAF_BF16, 1.00390625);   /* 1 + 2^-8: to even, 1 */
	CHECK_INT(x, 0x3f80);
	wl_round(&x, SHEAF_BF16, 1.01171875);   /* 1 + 3 * 2^-8: to even, 1 + 2^-6 */
	CHECK_INT(x, 0x3f82);
	wl_round(&y, SHEAF_F8_E4M3, 464.0);
	CHECK_INT(y, 0x7e);
	wl_round(&y, SHEAF_F8_E4M3, 465.0);
	CHECK_INT(y, 0x7f);
}

/* --- names, meshes ------------------------------------------------------------------------ */

TEST(names_are_ordered_by_number)
{
	static const char *const order[] = { "", "1", "01", "2", "10", "a", "a.2", "a.10", "a.10.b",
					     "a.b", "layers.2.x", "layers.10.x", "layers.x" };
	size_t n = sizeof(order) / sizeof(order[0]);

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < n; k++) {
			int d = wl_natural(order[i], order[k]);

			CHECK((d > 0) - (d < 0) == (i > k) - (i < k));
		}
}

TEST(the_last_named_axis_varies_fastest)
{
	struct wl_mesh m;
	int64_t at[WL_AXES];

	CHECK_RC(wl_mesh_parse(&m, "pp=2,dp=3,tp=4", &err), 0, &err);
	CHECK_INT(wl_mesh_ranks(&m), 24);
	wl_mesh_at(&m, 17, at);
	CHECK_INT(at[WL_PP], 1);
	CHECK_INT(at[WL_DP], 1);
	CHECK_INT(at[WL_TP], 1);
	CHECK_INT(at[WL_EP], 0);
}

TEST(wrong_meshes_are_refused)
{
	static const char *const wrong[] = { "", "dp", "dp=", "dp=0", "dp=x", "dp=-1", "xx=2",
					     "dp=2,", ",dp=2", "dp=2,dp=2", "dp=2 ,tp=2", "dp=1e1",
					     "dp=99999999999999999999", "dp=4096,tp=4096,pp=4096",
					     "dpp=2", "d=2", "dp==2" };
	struct wl_mesh m;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		CHECK_INT(wl_mesh_parse(&m, wrong[i], &err), SHEAF_EINVAL);
		CHECK(err.msg[0]);
	}
}

TEST(an_expert_mesh_has_as_many_ranks)
{
	struct wl_layout l;

	CHECK_RC(wl_layout_parse(&l, "tp=2,dp=4", "ep=4,dp=2", 1, &err), 0, &err);
	CHECK_INT(wl_layout_parse(&l, "tp=2,dp=4", "ep=4", 1, &err), SHEAF_EINVAL);
}

/* --- descriptions ------------------------------------------------------------------------- */

static int parse(struct wl_model *m, const char *text)
{
	int rc = wl_model_parse(m, text, strlen(text), "state", &err);

	if (rc == 0)
		rc = wl_model_seal(m, &err);
	return rc;
}

TEST(wrong_descriptions_are_refused)
{
#define T "{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[2]"
	static const char *const wrong[] = {
		"",
		"[]",
		"{}",
		"{\"tensors\":{}}",
		"{\"tensors\":[1]}",
		"{\"tensors\":[{}]}",
		"{\"tensors\":[],\"adam\":1}",
		"{\"tensors\":[],\"x\":1}",
		"{\"tensors\":[]",
		T ",\"unknown\":1}]}",
		T ",\"tp_axis\":1}]}",
		T ",\"tp_axis\":-1}]}",
		T ",\"tp_axis\":\"0\"}]}",
		T ",\"stage\":-1}]}",
		T ",\"stage\":1.5}]}",
		T ",\"expert\":2,\"experts\":2}]}",
		T ",\"experts\":0}]}",
		T ",\"expert\":2}]}",
		T ",\"family\":\"\"}]}",
		T ",\"tied_to\":\"b\"}]}",
		T ",\"tied_to\":\"a\"}]}",
		T "}," T "}]}",
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[-1]}]}",
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}]}",
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[461168601842738790]}]}",
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"f32\",\"shape\":[2]}]}",
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F4\",\"shape\":[3]}]}",
		"{\"tensors\":[{\"name\":\"a\\u0000b\",\"dtype\":\"F32\",\"shape\":[3]}]}",
		"{\"tensors\":[{\"name\":\"a\",\"name\":\"b\",\"dtype\":\"F32\",\"shape\":[3]}]}",
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct wl_model m = { 0 };

		CHECK_INT(parse(&m, wrong[i]), SHEAF_EINVAL);
		CHECK(err.msg[0]);
		wl_model_release(&m);
	}
#undef T
}

TEST(adam_adds_masters_and_moments)
{
	struct wl_model m = { 0 };

	CHECK_RC(parse(&m, "{\"tensors\":[{\"name\":\"a\",\"dtype\":\"BF16\",\"shape\":[2]},"
			   "{\"name\":\"b\",\"dtype\":\"F32\",\"shape\":[2]},"
			   "{\"name\":\"i\",\"dtype\":\"I64\",\"shape\":[2]},"
			   "{\"name\":\"t\",\"dtype\":\"BF16\",\"shape\":[2],\"tied_to\":\"a\"}]}"),
		 0, &err);
	CHECK_RC(wl_model_adam(&m, &err), 0, &err);
	CHECK_RC(wl_model_seal(&m, &err), 0, &err);
	CHECK(wl_model_find(&m, "master_weights", "a") < m.n);
	CHECK(wl_model_find(&m, "master_weights", "b") == m.n);
	CHECK(wl_model_find(&m, "optimizer", "b/moment1_0") < m.n);
	CHECK(wl_model_find(&m, "optimizer", "i/moment1_0") == m.n);
	CHECK_STR(m.t[wl_model_find(&m, "optimizer", "t/moment2_0")].tied_to, "a/moment2_0");
	CHECK_RC(wl_model_keep(&m, "optimizer,ema", &err), 0, &err);
	CHECK_INT(m.n, 6);
	CHECK_INT(wl_model_keep(&m, "optimiser", &err), SHEAF_EINVAL);
	wl_model_release(&m);
}

TEST(a_preset_has_its_published_size)
{
	struct wl_model m = { 0 };
	int64_t items = 0;
	uint64_t bytes = 0;

	CHECK_RC(wl_model_preset(&m, "qwen2-0.5b", 0, false, &err), 0, &err);
	for (size_t i = 0; i < m.n; i++)
		items += wl_items(&m.t[i]);
	CHECK_INT(items, 494032768);
	wl_model_release(&m);
	CHECK_RC(wl_model_preset(&m, "llama-7b", 2, false, &err), 0, &err);
	for (size_t i = 0; i < m.n; i++)
		bytes += wl_bytes(m.t[i].dtype, wl_items(&m.t[i]));
	CHECK(bytes > 1700000000 && bytes < 2300000000);
	wl_model_release(&m);
	CHECK_INT(wl_model_preset(&m, "gpt-5", 0, false, &err), SHEAF_EINVAL);
	wl_model_release(&m);
}

/* --- the cut ------------------------------------------------------------------------------ */

static const char described[] =
    "{\"tensors\":["
    "{\"name\":\"emb\",\"dtype\":\"BF16\",\"shape\":[13,7],\"tp_axis\":0,\"stage\":0},"
    "{\"name\":\"l.0.w\",\"dtype\":\"F32\",\"shape\":[7,5,3],\"tp_axis\":1,\"stage\":0},"
    "{\"name\":\"l.1.w\",\"dtype\":\"F32\",\"shape\":[7,5,3],\"tp_axis\":2,\"stage\":1},"
    "{\"name\":\"l.2.w\",\"dtype\":\"F64\",\"shape\":[2,11],\"tp_axis\":0,\"stage\":2},"
    "{\"name\":\"scalar\",\"dtype\":\"F32\",\"shape\":[]},"
    "{\"name\":\"none\",\"dtype\":\"F32\",\"shape\":[0,4],\"tp_axis\":0},"
    "{\"name\":\"small\",\"dtype\":\"F4\",\"shape\":[6,4],\"tp_axis\":0},"
    "{\"name\":\"six\",\"dtype\":\"F6_E2M3\",\"shape\":[5,4],\"tp_axis\":1},"
    "{\"name\":\"flag\",\"dtype\":\"BOOL\",\"shape\":[9]},"
    "{\"name\":\"head\",\"dtype\":\"BF16\",\"shape\":[13,7],\"tp_axis\":0,\"stage\":2,"
    "\"tied_to\":\"emb\"},"
    "{\"name\":\"e.0\",\"dtype\":\"BF16\",\"shape\":[3,5],\"tp_axis\":0,\"expert\":0,\"experts\":3}"
    ","
    "{\"name\":\"e.1\",\"dtype\":\"BF16\",\"shape\":[3,5],\"tp_axis\":0,\"expert\":1,\"experts\":3}"
    ","
    "{\"name\":\"e.2\",\"dtype\":\"BF16\",\"shape\":[3,5],\"tp_axis\":0,\"expert\":2,\"experts\":3}"
    "],"
    "\"adam\":true}";

/* Item i of the box by the header's rule alone: its byte in memory, or NULL outside the window. */
static const char *item_by_rule(const struct sheaf_slice *s, const int64_t *i)
{
	int64_t at = s->origin, dense = 1;
	int64_t bits = sheaf_dtype_bits(s->dtype);

	for (int d = s->ndim; d-- > 0;) {
		at += i[d] * dense;
		dense *= s->count[d];
	}
	if (s->flags & SHEAF_SLICE_FLAT) {
		if (at < s->flat_start || at >= s->flat_start + s->flat_count)
			return NULL;
		at -= s->flat_start;
	}
	return (const char *)s->data + at * bits / 8;
}

/* Each item of the slice against the whole tensor's bytes; seen counts holders. */
static void paint(const struct sheaf_slice *s, const char *whole, int *seen)
{
	int64_t i[SHEAF_DIMS_MAX] = { 0 }, bits = sheaf_dtype_bits(s->dtype);

	for (int d = 0; d < s->ndim; d++)
		if (s->count[d] == 0)
			return;
	for (;;) {
		const char *at = item_by_rule(s, i);
		int64_t g = 0;
		int d = s->ndim;

		for (int k = 0; k < s->ndim; k++)
			g = g * s->shape[k] + s->start[k] + i[k];
		if (at) {
			seen[g]++;
			/* Items smaller than a byte: the byte they begin in. */
			CHECK(memcmp(at, whole + g * bits / 8, wl_unit_bytes(s->dtype)) == 0);
		}
		while (d-- > 0 && ++i[d] == s->count[d])
			i[d] = 0;
		if (d < 0)
			return;
	}
}

static void check_layout(const char *mesh, const char *expert, int zero)
{
	const struct wl_source src = { .seed = 3, .step = 11 };
	const struct wl_said said = { 0 };
	struct wl_model m = { 0 };
	struct wl_layout l;
	int *seen[64];
	char *whole[64];
	uint64_t items = 0;
	int64_t ranks;

	CHECK_RC(parse(&m, described), 0, &err);
	CHECK_RC(wl_model_adam(&m, &err), 0, &err);
	CHECK_RC(wl_model_seal(&m, &err), 0, &err);
	CHECK_RC(wl_layout_parse(&l, mesh, expert, zero, &err), 0, &err);
	CHECK(m.n <= 64);
	for (size_t i = 0; i < m.n; i++) {
		const struct wl_tensor *t = &m.t[i];
		uint64_t bytes = wl_bytes(t->dtype, wl_items(t));
		const char *name = t->tied_to ? t->tied_to : t->name;

		seen[i] = calloc((size_t)wl_items(t) + 1, sizeof(int));
		whole[i] = malloc(bytes + 1);
		wl_fill(whole[i], t->dtype, wl_hash_of(t->dtype, 3, 11, t->family, name), 0,
			bytes / wl_unit_bytes(t->dtype));
	}
	ranks = wl_mesh_ranks(&l.mesh);
	for (int64_t r = 0; r < ranks; r++) {
		struct wl_held h;

		CHECK_RC(wl_held_init(&h, &m, &l, r, true, &err), 0, &err);
		wl_held_poison(&h);
		CHECK_RC(wl_held_fill(&h, &m, &src, &err), 0, &err);
		for (size_t p = 0; p < h.n; p++)
			paint(&h.p[p].slice, whole[h.p[p].tensor], seen[h.p[p].tensor]);
		CHECK_RC(wl_held_check(&h, &m, &src, &said, &items, &err), 0, &err);
		/* A flipped bit anywhere is found. */
		if (h.n && h.p[0].items) {
			((char *)h.p[h.n / 2].slice.data)[0] ^= 1;
			CHECK(wl_held_check(&h, &m, &src, &said, &items, &err) == 1 ||
			      !h.p[h.n / 2].items || h.p[h.n / 2].slice.flags & SHEAF_SLICE_FLAT);
		}
		wl_held_release(&h);
	}
	for (size_t i = 0; i < m.n; i++) {
		bool flat = zero && strcmp(m.t[i].family, "optimizer") == 0 && !m.t[i].tied_to;

		for (int64_t g = 0; g < wl_items(&m.t[i]); g++) {
			CHECK(seen[i][g] >= 1);
			/* A flat range is in one dp rank of each (tp, pp, ep); tp may replicate. */
			CHECK(!flat || expert || seen[i][g] <= ranks / l.mesh.size[WL_DP]);
		}
		free(seen[i]);
		free(whole[i]);
	}
	wl_model_release(&m);
}

TEST(every_layout_holds_every_item)
{
	static const char *const meshes[] = {
		"dp=1", "dp=2", "dp=3", "tp=2", "tp=4", "pp=2", "pp=3", "pp=5", "dp=2,tp=2,pp=2",
		"dp=2,ep=2", "dp=4,ep=4", "ep=3,tp=3", "tp=9,dp=2",
	};

	for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
		for (int zero = 0; zero < 4; zero++)
			check_layout(meshes[i], NULL, zero);
}

TEST(experts_on_a_mesh_of_their_own_are_all_held)
{
	for (int zero = 0; zero < 4; zero++) {
		check_layout("tp=2,dp=2", "ep=4", zero);
		check_layout("tp=2,dp=3", "ep=3,dp=2", zero);
		check_layout("pp=2,tp=2,dp=2", "dp=4,ep=2", zero);
	}
}

TEST(what_a_step_attaches_is_small_and_no_weight)
{
	CHECK(wl_attachable("config.json", 10));
	CHECK(wl_attachable("tokenizer.model", 64 << 20));
	CHECK(!wl_attachable("tokenizer.model", (64 << 20) + 1));
	CHECK(!wl_attachable("pytorch_model.bin", 10));
	CHECK(!wl_attachable("model.safetensors", 10));
	CHECK(!wl_attachable("model.safetensors.index.json", 10));
	CHECK(!wl_attachable("sheaf.json", 10));
	CHECK(!wl_attachable(".gitattributes", 10));
	CHECK(!wl_attachable("a b", 10));
}
