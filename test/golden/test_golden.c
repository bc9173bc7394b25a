/* SPDX-License-Identifier: Apache-2.0 */
/* Today's library on a golden run: exit 0 good, 1 wrong or refused.
 *
 *   test_golden RUN                 the run: its steps, and each of them
 *   test_golden STEP-DIRECTORY N    one step, by path, that is (a copy of) step N
 */
#include "golden.h"
#include "sheaf-inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(x)                                                               \
	do {                                                                  \
		if (!(x)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			return 1;                                             \
		}                                                             \
	} while (0)

static int fails(int rc, const struct sheaf_error *err, const char *what)
{
	if (rc < 0)
		fprintf(stderr, "%s: %d: %s\n", what, rc, err->msg);
	return rc < 0;
}

static int same_bytes(const uint8_t *got, size_t n, int64_t step, const char *family,
                      const char *name, int boolean)
{
	uint8_t want[GOLDEN_BYTES];

	golden_fill(want, n, step, family, name, boolean);
	if (memcmp(got, want, n) == 0)
		return 1;
	fprintf(stderr, "step %lld: %s/%s: other values\n", (long long)step, family, name);
	return 0;
}

static struct sheaf_slice whole(const struct golden_tensor *t, const char *name, uint8_t *bytes)
{
	struct sheaf_slice s = { .size = sizeof(s), .family = t->family, .name = name,
		.dtype = t->dtype, .ndim = t->ndim, .data = bytes };

	memcpy(s.shape, t->shape, sizeof(s.shape));
	memcpy(s.count, t->shape, sizeof(s.count));
	return s;
}

/* ---- what is listed ---- */

static int check_listed(struct sheaf_checkpoint *step)
{
	struct sheaf_tensor got = { .size = sizeof(got) };
	size_t n = 0;

	for (size_t i = 0; i < golden_tensors_n; i++) {
		const struct golden_tensor *t = &golden_tensors[i];

		WANT(sheaf_checkpoint_find(step, t->family, t->name, &got, NULL) == 0);
		WANT(got.dtype == t->dtype && got.ndim == t->ndim && got.verified == 1);
		WANT(memcmp(got.shape, t->shape, sizeof(got.shape[0]) * (size_t)t->ndim) == 0);
		WANT(got.bytes == golden_bytes(t) && !got.tied_to);
	}
	WANT(sheaf_checkpoint_find(step, NULL, GOLDEN_TIED, &got, NULL) == 0);
	WANT(got.tied_to && strcmp(got.tied_to, GOLDEN_TIED_TO) == 0);
	while (sheaf_checkpoint_tensor(step, n, &got, NULL) == 0)
		n++;
	WANT(n == golden_tensors_n + GOLDEN_RANKS + 1);
	return 0;
}

static int check_beside(struct sheaf_checkpoint *step)
{
	const char *key, *value;
	const void *bytes;
	size_t n;

	for (size_t i = 0; i < golden_notes_n; i++) {
		value = sheaf_checkpoint_note(step, golden_notes[i].name);
		WANT(value && strcmp(value, golden_notes[i].text) == 0);
	}
	value = sheaf_checkpoint_note(step, "ranks." GOLDEN_STREAM_NAME);
	WANT(value && strcmp(value, "modulo") == 0);
	WANT(sheaf_checkpoint_note_at(step, golden_notes_n + 1, &key, &value,
	                              NULL) == SHEAF_EEND);
	for (size_t i = 0; i < golden_files_n; i++) {
		WANT(sheaf_checkpoint_file(step, golden_files[i].name, &bytes, &n, NULL) == 0);
		WANT(n == strlen(golden_files[i].text));
		WANT(n == 0 || memcmp(bytes, golden_files[i].text, n) == 0);
	}
	return 0;
}

static int check_info(struct sheaf_checkpoint *step, int64_t number)
{
	struct sheaf_checkpoint_info info = { .size = sizeof(info) };

	WANT(sheaf_checkpoint_get_info(step, &info, NULL) == 0);
	WANT(strcmp(info.format, "sheaf") == 0);
	WANT(info.step == number && info.ranks == GOLDEN_RANKS);
	WANT(info.parent == (number == golden_steps[0] ? -1 : golden_steps[0]));
	WANT(strlen(info.session) == 32 && strlen(info.run) == 32 && strlen(info.created) == 20);
	WANT(strcmp(info.writer, "0.1.0") == 0);
	WANT(info.tensors == golden_tensors_n + GOLDEN_RANKS && info.files > 5);
	return 0;
}

/* ---- what is stored ---- */

static int check_reads(struct sheaf_checkpoint *step, int64_t number)
{
	uint8_t bytes[GOLDEN_BYTES];
	struct sheaf_error err;

	for (size_t i = 0; i < golden_tensors_n; i++) {
		const struct golden_tensor *t = &golden_tensors[i];
		struct sheaf_slice s = whole(t, t->name, bytes);

		memset(bytes, 0xA5, sizeof(bytes));
		if (fails(sheaf_checkpoint_read(step, &s, &err), &err, t->name))
			return 1;
		WANT(same_bytes(bytes, golden_bytes(t), number, t->family, t->name,
		                t->dtype == SHEAF_BOOL));
	}
	return 0;
}

static int check_streams(struct sheaf_checkpoint *step, int64_t number)
{
	uint8_t bytes[GOLDEN_STREAM];
	struct sheaf_error err;
	char name[32];

	for (int r = 0; r < GOLDEN_RANKS; r++) {
		struct golden_tensor t = { "ranks", name, SHEAF_U8, 1, { GOLDEN_STREAM - r }, 0 };
		struct sheaf_slice s = whole(&t, name, bytes);

		snprintf(name, sizeof(name), "%s/%d", GOLDEN_STREAM_NAME, r);
		if (fails(sheaf_checkpoint_read(step, &s, &err), &err, name))
			return 1;
		WANT(same_bytes(bytes, (size_t)(GOLDEN_STREAM - r), number, "ranks", name, 0));
	}
	return 0;
}

static int check_loaded(struct sheaf_checkpoint *step, int64_t number,
                        uint8_t (*bytes)[GOLDEN_BYTES])
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_state *state = sheaf_state_new();
	struct sheaf_error err;
	int rc;

	for (size_t i = 0; i < golden_tensors_n; i++) {
		struct sheaf_slice s = whole(&golden_tensors[i], golden_tensors[i].name, bytes[i]);

		(void)sheaf_state_add(state, &s, NULL);
	}
	/* One rank where there were three, so it takes the first one's. */
	(void)sheaf_state_rank_bytes(state, GOLDEN_STREAM_NAME, "modulo", 0, 1,
	                             bytes[golden_tensors_n], GOLDEN_STREAM, NULL);
	struct sheaf_slice tied = whole(&golden_tensors[0], GOLDEN_TIED,
	                                bytes[golden_tensors_n + 1]);

	tied.tied_to = GOLDEN_TIED_TO;
	(void)sheaf_state_add(state, &tied, NULL);
	rc = sheaf_checkpoint_load(step, state, SHEAF_LOAD_STRICT, &report, &err);
	sheaf_state_free(state);
	if (fails(rc, &err, "load"))
		return 1;
	for (size_t i = 0; i < golden_tensors_n; i++)
		WANT(same_bytes(bytes[i], golden_bytes(&golden_tensors[i]), number,
		                golden_tensors[i].family, golden_tensors[i].name,
		                golden_tensors[i].dtype == SHEAF_BOOL));
	WANT(same_bytes(bytes[golden_tensors_n], GOLDEN_STREAM, number, "ranks",
	                GOLDEN_STREAM_NAME "/0", 0));
	WANT(same_bytes(bytes[golden_tensors_n + 1], golden_bytes(&golden_tensors[0]), number,
	                "model", GOLDEN_TIED_TO, 0));
	WANT(report.missing == 0 && report.unverified == 0);
	return 0;
}

/* Proved first: bytes of a damaged step are looked at only to see that they are refused. */
static int check_step(struct sheaf_checkpoint *step, int64_t number)
{
	struct sheaf_report report = { .size = sizeof(report) };
	struct sheaf_error err;
	uint8_t (*bytes)[GOLDEN_BYTES] = calloc(64, sizeof(*bytes));
	int bad = !bytes || fails(sheaf_checkpoint_verify(step, &report, &err), &err, "verify");

	bad = bad || report.findings != 0 || report.files == 0;
	bad = bad || check_info(step, number) || check_listed(step) || check_beside(step);
	bad = bad || check_reads(step, number) || check_streams(step, number);
	bad = bad || check_loaded(step, number, bytes);
	free(bytes);
	return bad;
}

static int open_path(const char *path, int64_t number)
{
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int bad = fails(sheaf_checkpoint_open_path(&step, path, NULL, NULL, &err), &err, path) ||
	          check_step(step, number);

	sheaf_checkpoint_close(step);
	return bad;
}

static int open_run(const char *path)
{
	struct sheaf_opts opts = { .size = sizeof(opts), .flags = SHEAF_RUN_READONLY };
	struct sheaf_run *run = NULL;
	struct sheaf_checkpoint *step = NULL;
	struct sheaf_error err;
	int64_t steps[3] = { 0 };
	int bad = fails(sheaf_run_open(&run, path, NULL, &opts, &err), &err, path);

	bad = bad || sheaf_run_steps(run, steps, 3, &err) != 2 ||
	      memcmp(steps, golden_steps, sizeof(golden_steps)) != 0;
	for (int i = 0; i < 2 && !bad; i++) {
		int rc = sheaf_checkpoint_open(&step, run, i ? SHEAF_LATEST : golden_steps[0],
		                               &err);

		bad = fails(rc, &err, "open") || check_step(step, golden_steps[i]);
		sheaf_checkpoint_close(step);
		step = NULL;
	}
	sheaf_run_close(run);
	return bad;
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 3)
		return 2;
	return argc == 2 ? open_run(argv[1]) : open_path(argv[1], strtoll(argv[2], NULL, 10));
}
