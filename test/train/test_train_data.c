/* SPDX-License-Identifier: Apache-2.0 */
/* Token files, the order of samples, and the arithmetic of the optimizer. */
#include "t.h"

#include <math.h>
#include <unistd.h>

#include "adamw.h"
#include "dataprep.h"
#include "sampleorder.h"
#include "schedule.h"
#include "tokenfile.h"

static void write_file(const char *path, const void *bytes, size_t n)
{
	FILE *f = fopen(path, "wb");

	CHECK(f && fwrite(bytes, 1, n, f) == n);
	CHECK_INT(fclose(f), 0);
}

TEST(text_becomes_tokens_that_are_read_back)
{
	static const char *const in[] = { "train-a.txt", "train-b.txt", "train-c.txt" };
	static const char *const none[] = { "train-none.txt" };
	struct tr_tokenfile f;
	struct tr_error err;
	int32_t token[10];
	uint8_t mask[10];
	struct tr_prepare p = { .in = in, .n = 3, .out = "train-t.safetensors" };
	struct tr_prepared made;

	write_file(in[0], "ab\xff", 3);
	write_file(in[1], "", 0);
	write_file(in[2], "xyz", 3);
	CHECK_RC(tr_prepare_bytes(&p, &made, &err), 0, &err);
	CHECK_INT(made.tokens, 9);
	CHECK_INT(made.documents, 3);
	CHECK_RC(tr_tokenfile_open(&f, "train-t.safetensors", &err), 0, &err);
	CHECK_INT(f.n, 9);
	CHECK_RC(tr_tokenfile_read(&f, 1, 8, 257, token, &err), 0, &err);
	CHECK_RC(tr_tokenfile_mask(&f, 1, 8, mask, &err), 0, &err);
	CHECK(token[0] == 'b' && token[1] == 255 && token[2] == 256 && token[3] == 256);
	CHECK(token[4] == 'x' && token[7] == 256 && mask[0] == 1 && mask[7] == 1);
	CHECK_INT(tr_tokenfile_read(&f, 0, 9, 256, token, &err), TR_EINVAL);
	CHECK(strstr(err.msg, "token 3 is 256") && strstr(err.msg, "vocab_size"));
	CHECK(tr_tokenfile_samples(&f, 4) == 2 && tr_tokenfile_samples(&f, 8) == 1);
	CHECK(tr_tokenfile_samples(&f, 3) == 3 && tr_tokenfile_samples(&f, 100) == 1);
	tr_tokenfile_close(&f);
	p = (struct tr_prepare){ .in = none, .n = 1, .out = "train-u" };
	CHECK_INT(tr_prepare_bytes(&p, &made, &err), TR_ENOENT);
	CHECK(access("train-u", F_OK) != 0 && access("train-u.part", F_OK) != 0);
	for (int i = 0; i < 3; i++)
		unlink(in[i]);
	unlink("train-t.safetensors");
}

static int open_text(const char *header, size_t more, struct tr_error *err)
{
	char bytes[1024] = { 0 };
	struct tr_tokenfile f;
	size_t n = strlen(header);
	int rc;

	for (int i = 0; i < 8; i++)
		bytes[i] = (char)(n >> 8 * i);
	memcpy(bytes + 8, header, n);
	write_file("train-x", bytes, 8 + n + more);
	rc = tr_tokenfile_open(&f, "train-x", err);
	tr_tokenfile_close(&f);
	unlink("train-x");
	return rc;
}

TEST(what_is_no_token_file_is_refused_by_what_is_wrong)
{
	static const char *const bad[][2] = {
		{ "{ ", "JSON" },
		{ "{}", "no tensor tokens" },
		{ "{\"tokens\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "F32" },
		{ "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[9],\"data_offsets\":[0,16]}}", "U16" },
		{ "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[99],\"data_offsets\":[0,198]}}",
		  "too short" },
		{ "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
		  "smallest sample" },
		{ "{\"tokens\":{\"dtype\":\"U16\",\"shape\":[8],\"data_offsets\":[0,16]},"
		  "\"mask\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]}}", "mask" },
	};
	struct tr_error err;
	struct tr_tokenfile f;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK(open_text(bad[i][0], 16, &err) < 0);
		CHECK(strstr(err.msg, bad[i][1]) != NULL);
	}
	CHECK_RC(open_text("{\"tokens\":{\"dtype\":\"U16\",\"shape\":[8],"
			   "\"data_offsets\":[0,16]}}", 16, &err), 0, &err);
	write_file("train-x", "abc", 3);
	CHECK_INT(tr_tokenfile_open(&f, "train-x", &err), TR_EFORMAT);
	unlink("train-x");
	CHECK_INT(tr_tokenfile_open(&f, "train-x", &err), TR_ENOENT);
}

/* Writes a token file of 1000 tokens with these n documents, of which begin[n] is the end. */
static void write_tokens(const int64_t *begin, int n)
{
	static char bytes[8 * 10001];
	char header[300], tokens[2000] = { 0 };
	FILE *f = fopen("train-d", "wb");
	int length = snprintf(header, sizeof(header), "{\"documents\":{\"dtype\":\"I64\","
			  "\"shape\":[%d],\"data_offsets\":[0,%d]},\"tokens\":{\"dtype\":"
			  "\"U16\",\"shape\":[1000],\"data_offsets\":[%d,%d]}}", n + 1,
			  8 * (n + 1), 8 * (n + 1), 8 * (n + 1) + 2000);
	for (int i = 0; i <= n; i++)
		for (int b = 0; b < 8; b++)
			bytes[8 * i + b] = (char)(begin[i] >> 8 * b);
	CHECK(f && fputc(length & 255, f) != EOF && fputc(length >> 8, f) != EOF);
	CHECK(fwrite("\0\0\0\0\0", 1, 6, f) == 6 && fputs(header, f) >= 0);
	CHECK(fwrite(bytes, 8, (size_t)n + 1, f) == (size_t)n + 1);
	CHECK(fwrite(tokens, 1, sizeof(tokens), f) == sizeof(tokens) && fclose(f) == 0);
}

/* The same with documents of 0 to 6 tokens. Returns their number. */
static int write_documents(int64_t *begin)
{
	int n = 0;

	for (int64_t at = 0; at < 1000; at += n * 5 % 7)
		begin[n++] = at;
	begin[n] = 1000;
	write_tokens(begin, n);
	return n;
}

TEST(the_documents_that_begin_in_a_range_are_found)
{
	int64_t begin[1001], got[1000], found;
	struct tr_tokenfile f;
	struct tr_error err;
	int n = write_documents(begin);

	CHECK(n > 300);                 /* more than are read at once */
	CHECK_RC(tr_tokenfile_open(&f, "train-d", &err), 0, &err);
	CHECK_INT(f.documents, n);
	for (int64_t first = 0; first < 1000; first += 3) {
		for (int64_t size = 1; first + size <= 1000; size = size * 2 + 1) {
			int64_t want = 0, last = first;

			CHECK_RC(tr_tokenfile_documents(&f, first, size, got, &found, &err), 0,
				 &err);
			for (int i = 0; i < n; i++) {
				if (begin[i] <= last || begin[i] >= first + size)
					continue;
				last = begin[i];
				CHECK(want < found && got[want] == last);
				want++;
			}
			CHECK_INT(found, want);
		}
	}
	tr_tokenfile_close(&f);
	unlink("train-d");
}

TEST(documents_that_are_not_in_order_are_refused_where_they_are_read)
{
	static const unsigned char far[8] = { 0xe9, 3 }, back[8] = { 1 };
	int64_t begin[1001], got[1000], found;
	struct tr_tokenfile f;
	struct tr_error err;
	FILE *to;

	for (int bad = 0; bad < 2; bad++) {
		write_documents(begin);
		CHECK_RC(tr_tokenfile_open(&f, "train-d", &err), 0, &err);
		to = fopen("train-d", "r+b");
		CHECK(to && fseek(to, (long)f.documents_at + 8 * 9, SEEK_SET) == 0);
		CHECK(fwrite(bad ? back : far, 1, 8, to) == 8 && fclose(to) == 0);
		CHECK_INT(tr_tokenfile_documents(&f, 0, 900, got, &found, &err), TR_EFORMAT);
		CHECK(strstr(err.msg, bad ? "documents[9] is 1," : "documents[9] is 1001") != NULL);
		tr_tokenfile_close(&f);
	}
	CHECK_RC(open_text("{\"tokens\":{\"dtype\":\"U16\",\"shape\":[8],"
			   "\"data_offsets\":[0,16]},\"documents\":{\"dtype\":\"I64\","
			   "\"shape\":[2],\"data_offsets\":[0,8]}}", 32, &err), TR_EFORMAT, &err);
	CHECK(strstr(err.msg, "documents must be I64") != NULL);
	unlink("train-d");
}

/* The table is read in blocks, and the first entry of one may be less than the last of another. */
TEST(documents_that_are_not_in_order_are_found_wherever_they_are)
{
	enum { DOCUMENTS = 10000 };
	static const int bad[] = { 1, 2, 63, 64, 65, 4094, 4095, 4096, 8189, 8190, 8191, 9998,
				   9999 };
	static int64_t begin[DOCUMENTS + 1];
	struct tr_tokenfile f;
	struct tr_error err;
	char words[60];

	for (int i = 0; i <= DOCUMENTS; i++)
		begin[i] = i / 10;
	write_tokens(begin, DOCUMENTS);
	CHECK_RC(tr_tokenfile_open(&f, "train-d", &err), 0, &err);
	CHECK_RC(tr_tokenfile_check_documents(&f, &err), 0, &err);
	tr_tokenfile_close(&f);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int64_t good = begin[bad[i] - 1], after = begin[bad[i]];

		begin[bad[i] - 1] = after + 1;
		write_tokens(begin, DOCUMENTS);
		CHECK_RC(tr_tokenfile_open(&f, "train-d", &err), bad[i] == 1 ? TR_EFORMAT : 0,
			 &err);
		if (bad[i] > 1)
			CHECK_INT(tr_tokenfile_check_documents(&f, &err), TR_EFORMAT);
		tr_tokenfile_close(&f);
		snprintf(words, sizeof(words), "documents[%d] is ", bad[i] - (bad[i] == 1));
		CHECK(strstr(err.msg, words) != NULL);
		begin[bad[i] - 1] = good;
	}
	unlink("train-d");
}

TEST(a_file_with_other_documents_has_another_hash)
{
	static const unsigned char other[8] = { 4 };
	int64_t begin[1001];
	uint64_t hash[2];
	struct tr_tokenfile f;
	struct tr_error err;
	FILE *to;

	write_documents(begin);
	CHECK_RC(tr_tokenfile_open(&f, "train-d", &err), 0, &err);
	CHECK_RC(tr_tokenfile_hash(&f, &hash[0], &err), 0, &err);
	to = fopen("train-d", "r+b");
	CHECK(to && fseek(to, (long)f.documents_at + 8, SEEK_SET) == 0);
	CHECK(begin[1] != 4 && fwrite(other, 1, 8, to) == 8 && fclose(to) == 0);
	CHECK_RC(tr_tokenfile_hash(&f, &hash[1], &err), 0, &err);
	CHECK(hash[0] != hash[1]);
	tr_tokenfile_close(&f);
	unlink("train-d");
}

TEST(each_epoch_has_each_sample_once_in_an_order_of_its_own)
{
	static const int64_t sizes[] = { 1, 2, 3, 5, 64, 65, 1000 };

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		int64_t n = sizes[s], same = 0;

		for (int64_t epoch = 0; epoch < 3; epoch++) {
			char seen[1000] = { 0 };

			for (int64_t i = 0; i < n; i++) {
				int64_t at = tr_sample_at(9, 1, n, epoch * n + i);

				CHECK(at >= 0 && at < n && !seen[at]);
				seen[at] = 1;
				same += epoch == 1 && at == tr_sample_at(9, 1, n, i);
				CHECK(tr_sample_at(9, 0, n, epoch * n + i) == i);
			}
		}
		CHECK(n < 64 || same < n / 4);
	}
}

TEST(positions_of_more_epochs_than_can_be_counted_are_as_many_as_can)
{
	CHECK(tr_epochs_positions(3, 7) == 21);
	CHECK(tr_epochs_positions(0, 7) == 0);
	CHECK(tr_epochs_positions(1 << 24, (int64_t)1 << 39) == INT64_MAX);
	CHECK(tr_epochs_positions(1 << 24, ((int64_t)1 << 39) - 1) == INT64_MAX - (1 << 24) + 1);
}

TEST(rates_rise_and_fall_as_the_schedule_says)
{
	struct tr_schedule s = { 1, 0.1, 10, 110, TR_DECAY_COSINE };

	CHECK(tr_schedule_lr(&s, 0) == 0.1 && tr_schedule_lr(&s, 9) == 1);
	CHECK(tr_schedule_lr(&s, 10) == 1 && tr_schedule_lr(&s, 110) == 0.1);
	CHECK(fabs(tr_schedule_lr(&s, 60) - 0.55) < 1e-12);
	CHECK(fabs(tr_schedule_lr(&s, 35) - (0.1 + 0.9 * (0.5 + sqrt(0.125)))) < 1e-12);
	s.decay = TR_DECAY_LINEAR;
	CHECK(fabs(tr_schedule_lr(&s, 35) - 0.775) < 1e-12);
	s.decay = TR_DECAY_CONSTANT;
	CHECK(tr_schedule_lr(&s, 1000) == 1);
}

TEST(the_norm_of_a_gradient_is_right_at_any_scale_and_not_a_number_if_an_item_is)
{
	static float g[5000];
	struct tr_registry reg = { .weights = 5000, .embedding = -1, .head = -1 };
	struct tr_ranks alone;
	struct tr_mesh mesh;
	const struct tr_isa *isa;
	struct tr_error err;
	double norm, want;

	tr_ranks_alone(&alone);
	CHECK_RC(tr_mesh_make(&mesh, &alone, 1, 1, 1, &err), 0, &err);
	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	for (int e = -120; e <= 120; e += 40) {
		want = 0;
		for (int i = 0; i < 5000; i++) {
			g[i] = ldexpf((float)(i * 7919 % 1000 - 500), e - 10);
			want += (double)g[i] * (double)g[i];
		}
		CHECK_RC(tr_gradient_norm(&reg, isa, &mesh, NULL, g, &norm, &err), 0, &err);
		CHECK(fabs(norm / sqrt(want) - 1) < 1e-14);
	}
	g[4321] = NAN;
	CHECK_RC(tr_gradient_norm(&reg, isa, &mesh, NULL, g, &norm, &err), 0, &err);
	CHECK(isnan(norm));
	memset(g, 0, sizeof(g));
	CHECK_RC(tr_gradient_norm(&reg, isa, &mesh, NULL, g, &norm, &err), 0, &err);
	CHECK(norm == 0);
}

TEST(adamw_makes_the_updates_of_its_formula)
{
	struct tr_param p[2] = { { .items = 30, .tied_to = -1, .decay = 1 },
				 { .items = 20, .offset = 32, .tied_to = -1 } };
	struct tr_registry reg = { .param = p, .n = 2, .weights = 64 };
	float w[64] = { 0 }, m[64] = { 0 }, v[64] = { 0 }, g[64] = { 0 };
	struct tr_adamw a = { .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .decay = 0.1, .m = m,
			      .v = v };
	double wd[64] = { 0 }, md[64] = { 0 }, vd[64] = { 0 }, worst = 0;
	const struct tr_isa *isa;
	struct tr_error err;

	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	for (int i = 0; i < 52; i++)
		wd[i] = (double)(w[i] = (float)(i - 20) * 0.1f);
	for (int step = 1; step <= 5; step++) {
		for (int i = 0; i < 52; i++) {
			double x;

			g[i] = sinf((float)(i * step));
			x = (double)g[i] * 0.5;
			md[i] = 0.9 * md[i] + 0.1 * x;
			vd[i] = 0.99 * vd[i] + 0.01 * x * x;
			wd[i] *= i < 30 ? 1 - 0.01 * 0.1 : 1;
			wd[i] -= 0.01 * (md[i] / (1 - pow(0.9, step))) /
				(sqrt(vd[i] / (1 - pow(0.99, step))) + 1e-8);
		}
		CHECK_RC(tr_adamw_update(&a, &reg, isa, w, g, 0.01, 0.5, NULL, &err), 0, &err);
	}
	for (int i = 0; i < 52; i++)
		if (i != 30 && i != 31)         /* between the parameters */
			worst = fmax(worst, fabs(wd[i] - (double)w[i]));
	CHECK(worst < 1e-6);
	CHECK(w[30] == 10 * 0.1f && w[31] == 11 * 0.1f);
	CHECK_INT(a.step, 5);
}

static int closed_gate(void *arg, int param, struct tr_error *err)
{
	*(int *)arg += 1;
	return param == 1 ? tr_fail(err, TR_EFAILED, "not yet") : 0;
}

TEST(a_parameter_is_not_changed_before_its_gate)
{
	struct tr_param p[2] = { { .items = 4, .tied_to = -1 },
				 { .items = 4, .offset = 16, .tied_to = -1 } };
	struct tr_registry reg = { .param = p, .n = 2, .weights = 32 };
	float w[32] = { 0 }, m[32] = { 0 }, v[32] = { 0 }, g[32];
	struct tr_adamw a = { .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .m = m, .v = v };
	const struct tr_isa *isa;
	struct tr_error err;
	int calls = 0;
	struct tr_gate gate = { closed_gate, &calls };

	for (int i = 0; i < 32; i++)
		g[i] = 1;
	CHECK_RC(tr_isa_find(&isa, "auto", &err), 0, &err);
	CHECK_INT(tr_adamw_update(&a, &reg, isa, w, g, 0.01, 1, &gate, &err), TR_EFAILED);
	CHECK(w[0] != 0 && w[16] == 0 && m[16] == 0 && calls == 2 && a.step == 0);
}
