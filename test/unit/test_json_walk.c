/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"

#include "err.h"
#include "json_walk.h"

/* Writes "path=text" of each scalar, with [ before those that are in an array and ! before those
 * whose path is not plain. */
static int leaf(void *arg, const struct shf_json_leaf *x, struct sheaf_error *err)
{
	struct shf_buf *out = arg;

	CHECK_INT(x->path_n, strlen(x->path));
	CHECK(x->in_n < x->path_n || x->path_n == 0);
	shf_buf_addf(out, "%s%s%s=%d%s;", x->in_array ? "[" : "", x->is_plain ? "" : "!", x->path,
	             (int)x->kind, x->text);
	return strcmp(x->text, "stop") == 0 ? shf_fail(err, SHEAF_EINVAL, "stopped") : 0;
}

static int walk(const char *text, char out[300], struct sheaf_error *err)
{
	struct shf_buf all = SHF_BUF_INIT;
	int rc = shf_json_walk(text, strlen(text), "a.json", leaf, &all, err);

	snprintf(out, 300, "%.*s", (int)all.len, all.data ? (char *)all.data : "");
	shf_buf_release(&all);
	return rc;
}

TEST(each_scalar_has_the_path_to_it)
{
	struct sheaf_error err;
	char out[300];

	CHECK_INT(walk("{\"a\": 1, \"b\": {\"c\": \"x\", \"d\": [true, {\"e\": null}, [2]]},"
	               " \"f\": [], \"g\": {}, \"h\": false}", out, &err), 0);
	CHECK_STR(out, "a=71;b.c=6x;[b.d.0=8;[b.d.1.e=10;[b.d.2.0=72;h=9;");
}

TEST(keys_that_make_a_path_ambiguous_are_said)
{
	struct sheaf_error err;
	char out[300];

	CHECK_INT(walk("{\"a.b\": {\"c\": 1, \"d.e\": 2, \"f\": 3}, \"g\": {\"\": 4}, \"h\": 5}",
	               out, &err), 0);
	CHECK_STR(out, "!a.b.c=71;!a.b.d.e=72;!a.b.f=73;g.=74;h=75;");
	CHECK_INT(walk("{\"a\": {\"b.c\": 1, \"d\": 2}}", out, &err), 0);
	CHECK_STR(out, "!a.b.c=71;a.d=72;");
	CHECK_INT(walk("{\"\": {\"a\": 1, \"\": 2}, \"a\": 3}", out, &err), 0);
	CHECK_STR(out, ".a=71;.=72;a=73;");
}

TEST(documents_of_another_form_are_refused)
{
	struct sheaf_error err;
	char out[300];

	CHECK_INT(walk("[1]", out, &err), SHEAF_EFORMAT);
	CHECK_STR(err.msg, "a.json: is not a JSON object");
	CHECK_INT(walk("{\"a\": 1", out, &err), SHEAF_EFORMAT);
	CHECK(strstr(err.msg, "a.json: is not JSON: ") != NULL);
	CHECK_INT(walk("", out, &err), SHEAF_EFORMAT);
	CHECK_INT(walk("{\"a\": \"stop\", \"b\": 2}", out, &err), SHEAF_EINVAL);
	CHECK_STR(out, "a=6stop;");
}

TEST(facts_are_found_by_their_paths)
{
	static const char text[] = "{\"a\": {\"b\": \"x\"}, \"n\": null, \"i\": [7, 8], \"i.1\": 9,"
	                           " \"a\": {\"b\": \"y\"}}";
	struct shf_json_facts facts = { 0 };
	struct sheaf_error err;

	CHECK_INT(shf_json_facts_read(&facts, text, strlen(text), "a.json", &err), 0);
	CHECK_STR(shf_json_fact_text(&facts, "a.b"), "y");
	CHECK(shf_json_fact(&facts, "n") == NULL);
	CHECK(shf_json_fact(&facts, "a") == NULL);
	CHECK_STR(shf_json_fact(&facts, "i.1")->text, "8");
	CHECK(shf_json_fact_text(&facts, "i.1") == NULL);
	shf_json_facts_release(&facts);
}
