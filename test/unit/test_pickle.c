/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that reads pickles: what it makes of sound ones, and what it says of those that would
 * call, that are cut, or that lie. */
#include "rng.h"
#include "t.h"

#include <stdlib.h>

#include "crc32.h"
#include "pickle.h"

static struct sheaf_error err;

/* Reads a pickle from a block of exactly its size. */
static int reads(struct shf_pickle *p, const void *bytes, size_t n, uint8_t **copy)
{
	*copy = malloc(n ? n : 1);
	if (n)
		memcpy(*copy, bytes, n);
	memset(&err, 0, sizeof(err));
	return shf_pickle_read(p, *copy, n, "f", &err);
}

#define P(s) s, sizeof(s) - 1

TEST(values_of_all_protocols_are_read)
{
	static const struct { const char *bytes; size_t n; int kind; int64_t i; } cases[] = {
		{ P("I42\n."), SHF_PK_INT, 42 }, { P("I01\n."), SHF_PK_BOOL, 1 },
		{ P("I00\n."), SHF_PK_BOOL, 0 }, { P("L-7L\n."), SHF_PK_INT, -7 },
		{ P("\x80\x02K\xff."), SHF_PK_INT, 255 }, { P("M\x01\x02."), SHF_PK_INT, 513 },
		{ P("J\xff\xff\xff\xff."), SHF_PK_INT, -1 }, { P("\x8a\x00."), SHF_PK_INT, 0 },
		{ P("\x8a\x02\x00\x80."), SHF_PK_INT, -32768 }, { P("\x88."), SHF_PK_BOOL, 1 },
		{ P("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), SHF_PK_INT, INT64_MAX },
		{ P("\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x00K\x03."), SHF_PK_INT, 3 },
		{ P("K\x01q\x00" "0h\x00."), SHF_PK_INT, 1 }, { P("K\x05\x94" "0h\x00."),
							       SHF_PK_INT, 5 },
		{ P("K\x01" "2\x86" "0K\x09."), SHF_PK_INT, 9 },
		{ P("I9223372036854775807\n."), SHF_PK_INT, INT64_MAX },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shf_pickle p;
		uint8_t *copy;

		CHECK_RC(reads(&p, cases[i].bytes, cases[i].n, &copy), 0, &err);
		CHECK_INT(p.root->kind, cases[i].kind);
		CHECK_INT(p.root->u.i, cases[i].i);
		CHECK_INT(p.bytes, cases[i].n);
		shf_pickle_release(&p);
		free(copy);
	}
}

TEST(containers_hold_what_was_put_into_them)
{
	static const char text[] =
		"\x80\x02}(X\x01\x00\x00\x00" "aK\x01X\x01\x00\x00\x00" "b](K\x02K\x03"
		"eX\x01\x00\x00\x00" "cccollections\nOrderedDict\n)R(X\x01\x00\x00\x00xN\x85" "uu.";
	struct shf_pickle p;
	const struct shf_pk *v;
	uint8_t *copy;
	int64_t i;

	CHECK_RC(reads(&p, text, sizeof(text) - 1, &copy), 0, &err);
	CHECK(shf_pk_int(shf_pk_get(p.root, "a"), &i) && i == 1);
	v = shf_pk_get(p.root, "b");
	CHECK(v && v->n == 2 && shf_pk_int(shf_pk_at(v, 1), &i) && i == 3);
	v = shf_pk_get(p.root, "c");
	CHECK(v && v->kind == SHF_PK_DICT && v->n == 1);
	CHECK(shf_pk_get(v, "x")->kind == SHF_PK_TUPLE);
	CHECK(!shf_pk_get(p.root, "d") && !shf_pk_at(p.root, 0) && !shf_pk_get(NULL, "a"));
	shf_pickle_release(&p);
	free(copy);
}

TEST(a_key_that_is_set_twice_has_the_last_value)
{
	struct shf_pickle p;
	uint8_t *copy;
	int64_t i;

	CHECK_RC(reads(&p, P("}(X\x01\0\0\0" "aK\x01X\x01\0\0\0" "aK\x02u."), &copy), 0, &err);
	CHECK(shf_pk_int(shf_pk_get(p.root, "a"), &i) && i == 2);
	shf_pickle_release(&p);
	free(copy);
}

TEST(a_call_becomes_a_record_of_itself)
{
	static const char text[] =
		"\x80\x04\x8c\x01m\x8c\x01" "C\x93K\x01\x85\x81}\x8c\x01kK\x02sb.";
	const struct shf_pk_call *c;
	struct shf_pickle p;
	uint8_t *copy;

	CHECK_RC(reads(&p, text, sizeof(text) - 1, &copy), 0, &err);
	CHECK_INT(p.root->kind, SHF_PK_CALL);
	c = shf_pk_call_of(p.root, "m.C");
	CHECK(c && c->args->n == 1 && c->state && c->state->n == 1);
	CHECK(!shf_pk_call_of(p.root, "m.D"));
	shf_pickle_release(&p);
	free(copy);
	/* A name with a dot is an attribute of something, and none of the names that are known. */
	CHECK_RC(reads(&p, P("\x8c\x05torch\x8c\x0b_utils.Size\x93)R."), &copy), 0, &err);
	CHECK(!shf_pk_call_of(p.root, "torch._utils.Size"));
	shf_pickle_release(&p);
	free(copy);
}

static const struct { const char *bytes; size_t n; const char *why; } bad[] = {
	{ P("cos\nsystem\n(X\x02\x00\x00\x00idtR."), "would call os.system; nothing of it was "
						     "executed" },
	{ P("cposix\nsystem\n)R."), "would call posix.system" },
	{ P("(ios\nsystem\n."), "would call os.system" },
	{ P("(cos\nsystem\no."), "would call os.system" },
	{ P("\x80\x04\x8c\x02os\x8c\x06system\x93)R."), "would call os.system" },
	{ P("\x80\x04\x8c\x05torch\x8c\tos.system\x93)R."), "would call torch.os.system" },
	{ P("\x80\x04\x8c\x08" "builtins\x8c\x04" "eval\x93)}\x92."), "would call builtins.eval" },
	{ P("c__builtin__\neval\n)\x81."), "would call __builtin__.eval" },
	{ P("cbuiltins\ngetattr\n(cm\nE\nX\x01\x00\x00\x00" "atR."),
	 "would call builtins.getattr" },
	{ P("csubprocess\nPopen\n)R."), "would call subprocess.Popen" },
	{ P("cm\nf\n)R)R."), "would call something that is not a global" },
	{ P("K\x01)R."), "would call something that is not a global" },
	{ P("cm\nf\nK\x01R."), "arguments are not a tuple" },
	{ P("\x82\x01."), "extension code" }, { P("\x84\x01\x00\x00\x00."), "extension code" },
	{ P("\x97."), "outside the pickle" }, { P("N\x98."), "outside the pickle" },
	{ P("\x80\x06N."), "protocol above 5" }, { P("\xffN."), "unknown opcode ff" },
	{ P(""), "ends without its STOP" }, { P("N"), "ends without its STOP" },
	{ P("."), "does not end with one value" }, { P("NN."), "does not end with one value" },
	{ P("(N."), "does not end with one value" }, { P("0."),
						      "more from the stack than there is" },
	{ P("(a."), "more from the stack than there is" }, { P("N(s."), "more from the stack" },
	{ P("R."), "more from the stack" }, { P("Nt."), "no mark" }, { P("NNa."),
								      "adds items to what" },
	{ P("}(Nu."), "a key without a value" }, { P("(Nd."), "a key without a value" },
	{ P("]N" "b."), "set the state of something that is not an object" },
	{ P("cm\nC\n)R}b}b."), "set the state of an object twice" },
	{ P("X\xff\xff\xff\xffx."), "a length beyond its end" },
	{ P("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."), "a length beyond its end" },
	{ P("\x8e\x00\x00\x00\x00\x00\x00\x00\x80x."), "a length beyond its end" },
	{ P("\x8b\xff\xff\xff\xff."), "a length beyond its end" },
	{ P("h\x05."), "asks the memo for what is not in it" },
	{ P("Nr\xff\xff\xff\xff."), "a memo that is larger than the pickle" },
	{ P("Np99999999999\n."), "a memo index that is not a number" },
	{ P("Np-1\n."), "a memo index that is not a number" },
	{ P("c\nx\n."), "a global whose name is empty" }, { P("c\0m\nx\n."), "has a NUL" },
	{ P("N)\x93."), "a global whose name is not a text" }, { P("Ix\n."),
								"a number that is malformed" },
	{ P("F1.5x\n."), "a number that is malformed" },
	{ P("Sabc\n."), "a text without quotes" },
	{ P("I1\0\n."), "a number that is malformed" },
	{ P("F1.5\0z\n."), "a number that is malformed" },
	{ P("ccode\ninteract\n)R."), "would call code.interact" },
	{ P("\x80\x04\x8c\x05torch\x8c\x0d" "code.interact\x93)R."), "would call torch.code.int" },
	{ P("I\n."), "an empty number" }, { P("I1"), "ends in the middle of an opcode" },
};

TEST(what_would_call_or_lies_is_refused_by_what_is_wrong)
{
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct shf_pickle p;
		uint8_t *copy;
		int rc = reads(&p, bad[i].bytes, bad[i].n, &copy);

		if (rc != SHEAF_EFORMAT || !strstr(err.msg, bad[i].why) ||
		    strncmp(err.msg, "f: pickle, byte ", 16))
			fail_msg("case %zu: want '%s', got %d: %s", i, bad[i].why, rc, err.msg);
		shf_pickle_release(&p);
		free(copy);
	}
}

TEST(a_number_that_does_not_fit_is_no_other_number)
{
	static const char *const texts[] = { "I9223372036854775808\n.", "L-9223372036854775809L\n.",
		"I99999999999999999999999\n." };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct shf_pickle p;
		uint8_t *copy;

		CHECK_RC(reads(&p, texts[i], strlen(texts[i]), &copy), 0, &err);
		CHECK_INT(p.root->kind, SHF_PK_STR);
		shf_pickle_release(&p);
		free(copy);
	}
}

/* A package may have the name of a module that is none. */
TEST(a_class_of_a_package_that_is_called_code_is_data)
{
	static const char *const texts[] = { "ccode.model\nConfig\n)\x81.",
		"cprofile.a.b\nC\n)R.", "cm\nprofile\n)R." };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct shf_pickle p;
		uint8_t *copy;

		CHECK_RC(reads(&p, texts[i], strlen(texts[i]), &copy), 0, &err);
		CHECK_INT(p.root->kind, SHF_PK_CALL);
		shf_pickle_release(&p);
		free(copy);
	}
}

/* torch.distributed.checkpoint has this one in each of its files. */
TEST(the_getattr_that_is_an_enum_is_data)
{
	static const char text[] = "\x80\x04" "cbuiltins\ngetattr\n("
		"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nX\x17\x00\x00\x00"
		"TORCH_CONTIGUOUS_FORMATtR.";
	struct shf_pickle p;
	uint8_t *copy;

	CHECK_RC(reads(&p, text, sizeof(text) - 1, &copy), 0, &err);
	shf_pickle_release(&p);
	free(copy);
}

/* Memory is linear in the pickle, whatever refers to what. */
TEST(a_bomb_makes_no_more_records_than_it_has_bytes)
{
	uint8_t bomb[4000], *copy;
	struct shf_pickle p;
	size_t n = 0;

	bomb[n++] = ']';
	bomb[n++] = 'q';
	bomb[n++] = 0;
	for (uint8_t i = 0; i < 100; i++) {
		bomb[n++] = ']';
		bomb[n++] = '(';
		for (int k = 0; k < 9; k++) {
			bomb[n++] = 'h';
			bomb[n++] = i;
		}
		bomb[n++] = 'e';
		bomb[n++] = 'q';
		bomb[n++] = (uint8_t)(i + 1);
		bomb[n++] = 'a';        /* into the list before, which so grows */
	}
	bomb[n++] = '.';
	CHECK_RC(reads(&p, bomb, n, &copy), 0, &err);
	CHECK(p.records < n);
	shf_pickle_release(&p);
	free(copy);
}

TEST(bytes_of_all_kinds_are_read_or_refused)
{
	uint64_t r = 23;

	for (int k = 0; k < 200000 / T_STRIDE; k++) {
		uint8_t bytes[64], *copy;
		size_t n = (size_t)(1 + rng_below(&r, sizeof(bytes)));
		struct shf_pickle p;
		int rc;

		for (size_t i = 0; i < n; i++)
			bytes[i] = (uint8_t)rng_below(&r, 256);
		rc = reads(&p, bytes, n, &copy);
		CHECK(rc == 0 || (rc == SHEAF_EFORMAT && err.msg[0]));
		shf_pickle_release(&p);
		free(copy);
	}
}

TEST(crc32_is_that_of_zip)
{
	struct shf_crc32 *c = malloc(sizeof(*c));
	uint8_t some[1000];
	uint32_t all;

	shf_crc32_init(c);
	CHECK_INT(shf_crc32_more(c, 0, "123456789", 9), 0xcbf43926);
	CHECK_INT(shf_crc32_more(c, 0, "", 0), 0);
	for (size_t i = 0; i < sizeof(some); i++)
		some[i] = (uint8_t)(i * i);
	all = shf_crc32_more(c, 0, some, sizeof(some));
	for (size_t i = 0; i < sizeof(some); i += 7)
		CHECK_INT(shf_crc32_more(c, shf_crc32_more(c, 0, some, i), some + i,
		                         sizeof(some) - i), all);
	free(c);
}
