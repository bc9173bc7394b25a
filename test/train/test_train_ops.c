/* SPDX-License-Identifier: Apache-2.0 */
/* Each operation of a model: its values against doubles, its gradients against differences of
 * doubles. */
#include "t.h"

#include <math.h>

#include "backend.h"
#include "philox.h"

enum { N = 9, MAX = 600 };              /* tokens; items of an input */

static struct tr_backend *be;

static void open_backend(void)
{
	const struct tr_isa *isa;
	struct tr_error err;

	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_RC(tr_backend_cpu(&be, isa, &err), 0, &err);
}

static void draw(float *x, int64_t n, uint64_t of)
{
	for (int64_t i = 0; i < n; i++) {
		double pair[2];

		tr_random_normal(5, TR_RANDOM_INIT, of, (uint64_t)i, pair);
		x[i] = (float)pair[0];
	}
}

/* Three sequences, of 4, 1 and 4 tokens; the gradients of the first go to another leaf. */
static float leaf[2][MAX];
static const int64_t begin[] = { 0, 4, 5, 9 };
static const int32_t position[N] = { 0, 1, 2, 3, 0, 0, 1, 2, 3 };
static const int32_t token[N] = { 3, 1, 3, 0, 2, 3, 3, 0, 1 };
static float *const grad[3] = { leaf[0], leaf[1], leaf[1] };
static const float weights[N] = { 1, 0, 1, 0.5f, 1, 1, 0, 1, 1 };
static const struct tr_rows rows = { .n = N, .seqs = 3, .begin = begin, .token = token,
	.target = token, .weight = weights, .position = position, .grad = grad };

/* A function in double of one input of an operation: the sum of c[i] * y[i] over its outputs y. */
struct function {
	double (*value)(const double *x, const void *arg);
	const void *arg;
	int64_t n;
};

/* Compares a gradient with central differences. */
static void check_gradient(const struct function *f, const float *at, const float *got)
{
	double x[MAX], square = 0, size = 0;

	for (int64_t i = 0; i < f->n; i++)
		x[i] = (double)at[i];
	for (int64_t i = 0; i < f->n; i++) {
		double h = 1e-5, up, down, want;

		x[i] = (double)at[i] + h;
		up = f->value(x, f->arg);
		x[i] = (double)at[i] - h;
		down = f->value(x, f->arg);
		x[i] = (double)at[i];
		want = (up - down) / (2 * h);
		square += (want - (double)got[i]) * (want - (double)got[i]);
		size += want * want;
	}
	if (!(sqrt(square) <= 1e-6 * sqrt(size)))
		print_error("relative error %g\n", sqrt(square / size));
	CHECK(sqrt(square) <= 1e-6 * sqrt(size));
}

static void add_leaves(float *to, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = leaf[0][i] + leaf[1][i];
}

/* ---- linear layers ---- */

enum { IN = 7, OUT = 5 };
static float x_lin[N * IN], w_lin[OUT * IN], b_lin[OUT], c_lin[N * OUT];

static double linear_of(const double *x, const double *w, const double *b)
{
	double sum = 0;

	for (int i = 0; i < N; i++) {
		for (int o = 0; o < OUT; o++) {
			double y = b ? b[o] : (double)b_lin[o];

			for (int k = 0; k < IN; k++)
				y += (x ? x[i * IN + k] : (double)x_lin[i * IN + k]) *
					(w ? w[o * IN + k] : (double)w_lin[o * IN + k]);
			sum += y * (double)c_lin[i * OUT + o];
		}
	}
	return sum;
}

static double linear_x(const double *x, const void *arg)
{
	(void)arg;
	return linear_of(x, NULL, NULL);
}

static double linear_w(const double *x, const void *arg)
{
	(void)arg;
	return linear_of(NULL, x, NULL);
}

static double linear_b(const double *x, const void *arg)
{
	(void)arg;
	return linear_of(NULL, NULL, x);
}

TEST(linear_layers_have_their_values_and_gradients)
{
	struct tr_linear l = { IN, OUT, w_lin, b_lin };
	float y[N * OUT], dx[N * IN], sum[MAX];
	double value = 0;

	open_backend();
	draw(x_lin, N * IN, 1);
	draw(w_lin, OUT * IN, 2);
	draw(b_lin, OUT, 3);
	draw(c_lin, N * OUT, 4);
	be->linear(be, &l, (struct tr_span){ 0, IN }, x_lin, y, N, 0);
	for (int i = 0; i < N * OUT; i++)
		value += (double)y[i] * (double)c_lin[i];
	CHECK(fabs(value - linear_of(NULL, NULL, NULL)) < 1e-4);
	be->linear_input(be, &l, (struct tr_span){ 0, OUT }, c_lin, dx, N, 0);
	check_gradient(&(struct function){ linear_x, NULL, N * IN }, x_lin, dx);
	memset(leaf, 0, sizeof(leaf));
	/* Two calls: the last sequence has one of its own. */
	be->linear_weight(be, &rows, 0, 5, c_lin, OUT, x_lin, IN, 3);
	be->linear_weight(be, &rows, 5, N, c_lin + 5 * OUT, OUT, x_lin + 5 * IN, IN, 3);
	be->linear_bias(be, &rows, c_lin, OUT, 100);
	add_leaves(sum, MAX);
	check_gradient(&(struct function){ linear_w, NULL, OUT * IN }, w_lin, sum + 3);
	check_gradient(&(struct function){ linear_b, NULL, OUT }, b_lin, sum + 100);
	CHECK(leaf[0][3] != 0 && leaf[1][3] != 0 && sum[0] == 0 && sum[99] == 0);
	tr_backend_free(be);
}

/* ---- norms ---- */

enum { SIZE = 19 };
static float x_norm[N * SIZE], w_norm[SIZE], c_norm[N * SIZE];

static double norm_of(const double *x, const double *w)
{
	double sum = 0;

	for (int i = 0; i < N; i++) {
		double squares = 0;

		for (int j = 0; j < SIZE; j++) {
			double v = x ? x[i * SIZE + j] : (double)x_norm[i * SIZE + j];

			squares += v * v;
		}
		for (int j = 0; j < SIZE; j++)
			sum += (x ? x[i * SIZE + j] : (double)x_norm[i * SIZE + j]) /
				sqrt(squares / SIZE + 1e-6) * (w ? w[j] : (double)w_norm[j]) *
				(double)c_norm[i * SIZE + j];
	}
	return sum;
}

static double norm_x(const double *x, const void *arg)
{
	(void)arg;
	return norm_of(x, NULL);
}

static double norm_w(const double *x, const void *arg)
{
	(void)arg;
	return norm_of(NULL, x);
}

TEST(norms_have_their_values_and_gradients)
{
	static const struct tr_pieces two = { 2, 0, 2 };
	float y[N * SIZE], again[N * SIZE], root[N], dx[N * SIZE], sum[MAX];
	double value = 0;

	open_backend();
	draw(x_norm, N * SIZE, 1);
	draw(w_norm, SIZE, 2);
	draw(c_norm, N * SIZE, 3);
	be->norm(be, y, root, x_norm, w_norm, N, SIZE, 1e-6);
	be->norm_again(be, again, root, x_norm, w_norm, N, SIZE);
	CHECK(memcmp(y, again, sizeof(y)) == 0);
	for (int i = 0; i < N * SIZE; i++)
		value += (double)y[i] * (double)c_norm[i];
	CHECK(fabs(value - norm_of(NULL, NULL)) < 1e-5);
	memset(leaf, 0, sizeof(leaf));
	memset(dx, 0, sizeof(dx));
	/* In two pieces of the tokens of each sequence. */
	be->norm_bwd(be, &rows, &two, dx, c_norm, x_norm, root, w_norm, SIZE, 7, 50);
	add_leaves(sum, MAX);
	CHECK(leaf[0][7] != 0 && leaf[0][57] != 0 && leaf[1][57] != 0);
	for (int i = 0; i < SIZE; i++)
		sum[7 + i] += sum[57 + i];
	check_gradient(&(struct function){ norm_x, NULL, N * SIZE }, x_norm, dx);
	check_gradient(&(struct function){ norm_w, NULL, SIZE }, w_norm, sum + 7);
	tr_backend_free(be);
}

/* ---- attention, with rotations ---- */

enum { HEADS = 4, KV = 2, HEAD = 6, Q = HEADS * HEAD, KVS = KV * HEAD };
static float q_at[N * Q], k_at[N * KVS], v_at[N * KVS], c_at[N * Q];

/* Dropout of the attention of layer 2, whose heads begin with number 5. */
static const struct tr_dropout *drop_at;
static const int64_t sample_at[3] = { 700, 701, (int64_t)1 << 40 };

/* Sets factor[j] to that of the probability of key j, of those up to query i. */
static void factors_of(int s, int64_t i, int h, float *factor)
{
	struct tr_dropmask m;

	for (int j = 0; j < N; j++)
		factor[j] = 1;
	if (!drop_at)
		return;
	m = tr_dropmask_of(drop_at, TR_RANDOM_PROBABILITIES, drop_at->attention_rate, 2, 5 + h);
	tr_drop(&m, sample_at[s], i - begin[s], factor, factor, i - begin[s] + 1);
}

/* One query: probabilities of the keys up to it, and what they mix. */
static double attend(const double *q, const double *k, const double *v, int s, int i, int h)
{
	int64_t from = begin[s], kv = h / (HEADS / KV);
	double score[N], max = -INFINITY, total = 0, sum = 0;
	float factor[N];

	factors_of(s, i, h, factor);
	for (int64_t j = from; j <= i; j++) {
		score[j] = 0;
		for (int d = 0; d < HEAD; d++)
			score[j] += q[i * Q + h * HEAD + d] * k[j * KVS + kv * HEAD + d];
		score[j] /= sqrt(HEAD);
		max = fmax(max, score[j]);
	}
	for (int64_t j = from; j <= i; j++)
		total += exp(score[j] - max);
	for (int64_t j = from; j <= i; j++)
		for (int d = 0; d < HEAD; d++)
			sum += exp(score[j] - max) / total * v[j * KVS + kv * HEAD + d] *
				(double)(c_at[i * Q + h * HEAD + d] * factor[j - from]);
	return sum;
}

static void widen(double *to, const double *x, const float *y, int n)
{
	for (int i = 0; i < n; i++)
		to[i] = x ? x[i] : (double)y[i];
}

static double attention_of(const double *q, const double *k, const double *v)
{
	double a[N * Q], b[N * KVS], c[N * KVS], sum = 0;

	widen(a, q, q_at, N * Q);
	widen(b, k, k_at, N * KVS);
	widen(c, v, v_at, N * KVS);
	for (int s = 0; s < 3; s++)
		for (int64_t i = begin[s]; i < begin[s + 1]; i++)
			for (int h = 0; h < HEADS; h++)
				sum += attend(a, b, c, s, (int)i, h);
	return sum;
}

static double attention_q(const double *x, const void *arg)
{
	(void)arg;
	return attention_of(x, NULL, NULL);
}

static double attention_k(const double *x, const void *arg)
{
	(void)arg;
	return attention_of(NULL, x, NULL);
}

static double attention_v(const double *x, const void *arg)
{
	(void)arg;
	return attention_of(NULL, NULL, x);
}

static void check_attention(const struct tr_dropout *d)
{
	float o[N * Q], dq[N * Q], dk[N * KVS], dv[N * KVS], stat[N * HEADS * 2];
	struct tr_attention a = { HEADS, KV, HEAD, q_at, k_at, v_at, stat, NULL, 2, 5 };
	struct tr_rows drops = rows;
	double value = 0;

	drop_at = drops.drop = d;
	drops.sample = sample_at;
	open_backend();
	a.scratch = be->alloc(be, (size_t)tr_attention_scratch(4, HEAD));
	draw(q_at, N * Q, 1);
	draw(k_at, N * KVS, 2);
	draw(v_at, N * KVS, 3);
	draw(c_at, N * Q, 4);
	be->attention(be, &drops, &a, o);
	for (int i = 0; i < N * Q; i++)
		value += (double)o[i] * (double)c_at[i];
	CHECK(fabs(value - attention_of(NULL, NULL, NULL)) < 1e-5);
	be->attention_bwd(be, &drops, &a, o, c_at, dq, dk, dv);
	check_gradient(&(struct function){ attention_q, NULL, N * Q }, q_at, dq);
	check_gradient(&(struct function){ attention_k, NULL, N * KVS }, k_at, dk);
	check_gradient(&(struct function){ attention_v, NULL, N * KVS }, v_at, dv);
	be->release(be, a.scratch);
	tr_backend_free(be);
}

TEST(attention_has_its_values_and_gradients)
{
	check_attention(NULL);
}

/* The reference draws the same masks. */
TEST(attention_with_dropout_has_its_values_and_gradients)
{
	static const struct tr_dropout d = { .seed = 9, .step = 4, .attention_rate = 0.3 };

	check_attention(&d);
}

TEST(a_rotation_is_undone_by_the_one_back)
{
	float cosine[4 * 3], sine[4 * 3], x[N * Q], y[N * Q];

	open_backend();
	for (int i = 0; i < 12; i++) {
		cosine[i] = (float)cos(i * 0.3);
		sine[i] = (float)sin(i * 0.3);
	}
	draw(x, N * Q, 1);
	memcpy(y, x, sizeof(x));
	be->rope(be, &rows, y, HEADS, HEAD, cosine, sine, 1);
	/* Token 1, head 0: its first pair is (0, HEAD / 2), turned by the angle of position 1. */
	CHECK(fabsf(y[Q] - (x[Q] * cosine[3] - x[Q + 3] * sine[3])) < 1e-6f);
	CHECK(fabsf(y[Q + 3] - (x[Q + 3] * cosine[3] + x[Q] * sine[3])) < 1e-6f);
	be->rope(be, &rows, y, HEADS, HEAD, cosine, sine, -1);
	for (int i = 0; i < N * Q; i++)
		CHECK(fabsf(x[i] - y[i]) < 1e-6f);
	tr_backend_free(be);
}

/* A long sequence goes through several panels and blocks. Each 13th token is compared. */
TEST(attention_over_several_panels_agrees_with_doubles)
{
	enum { LONG = 530, D = 4 };
	static float q[LONG * D], k[LONG * D], v[LONG * D], o[LONG * D], stat[LONG * 2];
	static float c[LONG * D];
	static float dq[LONG * D], dk[LONG * D], dv[LONG * D];
	static double p[LONG][LONG], dp[LONG][LONG];
	const int64_t one[] = { 0, LONG };
	struct tr_rows r = { .n = LONG, .seqs = 1, .begin = one };
	struct tr_attention a = { 1, 1, D, q, k, v, stat, NULL, 0, 0 };
	double worst = 0;

	open_backend();
	a.scratch = be->alloc(be, (size_t)tr_attention_scratch(LONG, D));
	draw(q, LONG * D, 1);
	draw(k, LONG * D, 2);
	draw(v, LONG * D, 3);
	draw(c, LONG * D, 4);
	be->attention(be, &r, &a, o);
	be->attention_bwd(be, &r, &a, o, c, dq, dk, dv);
	for (int i = 0; i < LONG; i++) {
		double total = 0, delta = 0;

		for (int j = 0; j <= i; j++) {
			for (int d = 0; d < D; d++) {
				p[i][j] += (double)q[i * D + d] * (double)k[j * D + d] / 2;
				dp[i][j] += (double)c[i * D + d] * (double)v[j * D + d];
			}
			p[i][j] = exp(p[i][j]);
			total += p[i][j];
		}
		for (int j = 0; j <= i; j++) {
			p[i][j] /= total;
			delta += p[i][j] * dp[i][j];
		}
		for (int j = 0; j <= i; j++)
			dp[i][j] = p[i][j] * (dp[i][j] - delta) / 2;
	}
	for (int j = 0; j < LONG; j += 13) {
		for (int d = 0; d < D; d++) {
			double wo = 0, wq = 0, wk = 0, wv = 0;

			for (int i = 0; i < LONG; i++) {
				wo += p[j][i] * (double)v[i * D + d];
				wq += dp[j][i] * (double)k[i * D + d];
				wk += dp[i][j] * (double)q[i * D + d];
				wv += p[i][j] * (double)c[i * D + d];
			}
			worst = fmax(worst, fabs(wo - (double)o[j * D + d]));
			worst = fmax(worst, fabs(wq - (double)dq[j * D + d]));
			worst = fmax(worst, fabs(wk - (double)dk[j * D + d]));
			worst = fmax(worst, fabs(wv - (double)dv[j * D + d]));
		}
	}
	CHECK(worst < 2e-5);
	be->release(be, a.scratch);
	tr_backend_free(be);
}

/* ---- gates, loss, embedding ---- */

static float g_sw[40], u_sw[40], c_sw[40];

static double swiglu_of(const double *g, const double *u)
{
	double sum = 0;

	for (int i = 0; i < 40; i++) {
		double a = g ? g[i] : (double)g_sw[i];

		sum += a / (1 + exp(-a)) * (u ? u[i] : (double)u_sw[i]) * (double)c_sw[i];
	}
	return sum;
}

static double swiglu_g(const double *x, const void *arg)
{
	(void)arg;
	return swiglu_of(x, NULL);
}

static double swiglu_u(const double *x, const void *arg)
{
	(void)arg;
	return swiglu_of(NULL, x);
}

TEST(gates_have_their_gradients)
{
	float dh[40], du[40];

	open_backend();
	draw(g_sw, 40, 1);
	draw(u_sw, 40, 2);
	draw(c_sw, 40, 3);
	memcpy(dh, c_sw, sizeof(dh));
	be->swiglu_bwd(be, dh, du, g_sw, u_sw, 40);
	check_gradient(&(struct function){ swiglu_g, NULL, 40 }, g_sw, dh);
	check_gradient(&(struct function){ swiglu_u, NULL, 40 }, u_sw, du);
	tr_backend_free(be);
}

enum { VOCAB = 23 };

static double xent_of(const double *x, const void *arg)
{
	double sum = 0;

	(void)arg;
	for (int i = 0; i < N; i++) {
		double total = 0;

		for (int j = 0; j < VOCAB; j++)
			total += exp(x[i * VOCAB + j]);
		sum += (double)weights[i] * 0.25 * (log(total) - x[i * VOCAB + token[i]]);
	}
	return sum;
}

/* The loss of rows [first, last), with the vocabulary in two pieces. */
static void loss_of(int64_t first, int64_t last, float *logits, float *loss)
{
	static const struct tr_span all = { 0, VOCAB }, pieces[2] = { { 0, 10 }, { 10, VOCAB } };
	float max[N], sum[2][N], hit[N];

	be->xent_max(be, &rows, first, last, logits, all, max);
	for (int i = 0; i < 2; i++)
		be->xent_sum(be, &rows, first, last, logits, all, pieces[i], max, sum[i]);
	be->add(be, sum[0], sum[1], last - first);
	be->xent_hit(be, &rows, first, last, logits, all, hit);
	be->xent_loss(be, &rows, first, last, max, sum[0], hit, loss);
	be->xent_bwd(be, &rows, first, last, logits, all, max, sum[0], 0.25);
}

TEST(the_loss_has_its_gradient_and_masked_targets_have_none)
{
	float logits[N * VOCAB], given[N * VOCAB], loss[N];
	double wide[N * VOCAB], sum = 0;

	open_backend();
	draw(logits, N * VOCAB, 1);
	memcpy(given, logits, sizeof(given));
	loss_of(0, 4, logits, loss);
	loss_of(4, N, logits + 4 * VOCAB, loss);
	check_gradient(&(struct function){ xent_of, NULL, N * VOCAB }, given, logits);
	widen(wide, NULL, given, N * VOCAB);
	for (int i = 0; i < N; i++)
		sum += (double)(weights[i] * 0.25f * loss[i]);
	CHECK(fabs(sum - xent_of(wide, NULL)) < 1e-6);
	CHECK(loss[1] == 0 && loss[6] == 0);
	for (int j = 0; j < VOCAB; j++)
		CHECK(logits[VOCAB + j] == 0);
	tr_backend_free(be);
}

TEST(a_token_that_occurs_twice_is_added_twice)
{
	float w[4 * 3], x[N * 3], d[N * 3];

	open_backend();
	draw(w, 12, 1);
	draw(d, N * 3, 2);
	be->embed(be, &rows, (struct tr_span){ 0, 4 }, x, w, 3);
	for (int i = 0; i < N; i++)
		CHECK(memcmp(x + i * 3, w + token[i] * 3, 3 * sizeof(float)) == 0);
	/* A rank that has tokens 1 and 2 has zeros for the others. */
	be->embed(be, &rows, (struct tr_span){ 1, 3 }, x, w + 3, 3);
	for (int i = 0; i < N; i++)
		CHECK(x[i * 3] == (token[i] == 1 || token[i] == 2 ? w[token[i] * 3] : 0));
	memset(leaf, 0, sizeof(leaf));
	be->embed_bwd(be, &rows, (struct tr_span){ 0, 4 }, d, 3, 6);
	CHECK(leaf[0][6 + 9] == d[0] + d[6]);           /* token 3 of the first sequence */
	CHECK(leaf[1][6 + 9] == d[15] + d[18]);
	CHECK(leaf[0][6 + 6] == 0 && leaf[1][6 + 6] == d[12]);
	tr_backend_free(be);
}
