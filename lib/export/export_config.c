/* SPDX-License-Identifier: Apache-2.0 */
#include "export_config.h"
#include <string.h>
#include "json.h"

/* The names of some classes of PaddleNLP 3.0 and PaddleFormers 1.2 end in these: classes for
 * pipelines (Pipe), for auto-parallel training (Net, 3DAuto), for the newer core (Fleet), and
 * replaced classes (Deprecated). */
static const char *const suffixes[] = { "Pipe", "Net", "3DAuto", "Fleet", "Deprecated" };

/* Returns the length of the name of a class without such suffixes. Only a class <model>For<task>
 * has them: ModifiedResNet, for example, keeps its name. */
static size_t plain_class(const char *name, size_t n)
{
	const char *task = memmem(name, n, "For", 3);
	size_t least = task ? (size_t)(task - name) + 4 : n;

	if (!task || task == name)
		return n;
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		size_t m = strlen(suffixes[i]);

		if (n >= least + m && memcmp(name + n - m, suffixes[i], m) == 0) {
			n -= m;
			i = SIZE_MAX;           /* there may be another one */
		}
	}
	return n;
}

/* Appends the text that replaces the last token, which is [j->at, j->p) of the input. in_classes:
 * the token is in the array `architectures`. degree: it is the value of tensor_parallel_degree. */
static void put_token(struct shf_buf *out, const struct shf_json *j, bool in_classes, bool degree)
{
	size_t n, plain;
	const char *text = shf_json_text(j, &n);
	uint64_t v;

	plain = in_classes && j->kind == SHF_JSON_STRING ? plain_class(text, n) : n;
	if (plain < n)
		shf_json_put(out, text, plain);
	else if (degree && j->kind == SHF_JSON_NUMBER && shf_json_u64(j, &v) && v > 1)
		shf_buf_adds(out, "1");
	else
		shf_buf_add(out, j->bytes + j->at, (size_t)(j->p - j->bytes) - j->at);
}

void shf_config_clean(struct shf_buf *out, const void *bytes, size_t n)
{
	bool in_classes = false, degree = false;
	size_t from = 0, whole = out->len;
	struct shf_json j;

	shf_json_init(&j, bytes, n);
	while (shf_json_next(&j) > SHF_JSON_END) {
		shf_buf_add(out, (const uint8_t *)bytes + from, j.at - from);
		put_token(out, &j, in_classes && j.depth == 2, degree && j.depth == 1);
		from = (size_t)(j.p - j.bytes);
		if (j.depth == 1 && j.kind == SHF_JSON_KEY) {
			in_classes = strcmp(shf_json_text(&j, NULL), "architectures") == 0;
			degree = strcmp(shf_json_text(&j, NULL), "tensor_parallel_degree") == 0;
		}
	}
	if (j.kind == SHF_JSON_ERROR) {
		out->oom |= j.scratch.oom;
		out->len = whole;
		from = 0;
	}
	shf_buf_add(out, (const uint8_t *)bytes + from, n - from);
	shf_json_release(&j);
}
