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
	{ P("h\x05."), "reads a memo entry that was never written" },
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

/* torch.distributed.checkpoint has the first in each of its files, Megatron-Core the second in the
 * metadata, and Megatron-LM the others in common.pt. */
TEST(the_getattr_that_is_an_enum_is_data)
{
	static const char *const members[] = {
		("ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
		 "VTORCH_CONTIGUOUS_FORMAT\n"),
		"ctorch.distributed.checkpoint.planner\nWriteItemType\nVSHARD\n",
		"cmegatron.core.transformer.enums\nAttnBackend\nVauto\n",
		"cmegatron.core.enums\nModelType\nVencoder_or_decoder\n",
		"cmegatron.core.rerun_state_machine\nRerunMode\nVDISABLED\n" };

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		char text[200];
		int n = snprintf(text, sizeof(text), "cbuiltins\ngetattr\n(%stR.", members[i]);
		struct shf_pickle p;
		uint8_t *copy;

		CHECK_RC(reads(&p, text, (size_t)n, &copy), 0, &err);
		CHECK_INT(p.root->kind, SHF_PK_CALL);
		shf_pickle_release(&p);
		free(copy);
	}
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

/* ---- a pickle in a file, of which pairs are taken ---- */

struct text { const uint8_t *bytes; size_t n, reads; };

static int64_t pread_text(void *arg, int fd, void *buf, size_t n, uint64_t off)
{
	struct text *t = arg;

	CHECK_INT(fd, 7);
	t->reads++;
	n = off >= t->n ? 0 : n < t->n - off ? n : (size_t)(t->n - off);
	if (n)
		memcpy(buf, t->bytes + off, n);
	return (int64_t)n;
}

static int reads_file(struct shf_pickle *p, struct text *t, const struct shf_pickle_taker *taker)
{
	static const struct shf_file_ops ops = { .pread = pread_text };
	const struct shf_sys sys = { .file = { &ops, t } };
	const struct shf_region r = { .sys = &sys, .fd = 7, .bytes = t->n, .where = "f" };

	memset(&err, 0, sizeof(err));
	return shf_pickle_read_file(p, &r, taker, &err);
}

struct taken { int n; int64_t sum; const char *name; uint32_t name_n; };

/* Takes pairs whose value is a tuple of two numbers. */
static bool take_twos(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct taken *t = arg;
	int64_t a, b;

	if (key->kind != SHF_PK_STR || value->kind != SHF_PK_TUPLE || value->n != 2 ||
	    !shf_pk_int(shf_pk_at(value, 0), &a) || !shf_pk_int(shf_pk_at(value, 1), &b))
		return false;
	t->n++;
	t->sum += a + b;
	t->name = key->u.s;
	t->name_n = key->n;
	return true;
}

static int takes(struct shf_pickle *p, const void *bytes, size_t n, struct taken *t)
{
	const struct shf_pickle_taker taker = { .take = take_twos, .arg = t };
	struct text text = { bytes, n, 0 };

	*t = (struct taken){ 0 };
	return reads_file(p, &text, &taker);
}

TEST(pairs_are_taken_and_what_else_refers_to_their_records_keeps_them)
{
	/* {"a": (1000, 1001), "b": 1, "c": (2000, <the 1000 of a>), "d": <the tuple of a>, "e":
	 * 3000, "f": (4000, 4001)}: d is the pair of a again, and the records of a were not used
	 * for what came later, because the memo has them. */
	static const char text[] = "\x80\x02}(U\x01" "aM\xe8\x03q\x01M\xe9\x03\x86q\x02U"
		"\x01" "bK\x01" "uU\x01" "cM\xd0\x07h\x01\x86sU\x01" "dh\x02sU\x01" "eM\xb8\x0bs"
		"U\x01" "fM\xa0\x0f"
		"M\xa1\x0f\x86s.";
	struct shf_pickle p;
	struct taken t;
	int64_t i;

	CHECK_RC(takes(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 4);
	CHECK_INT(t.sum, 2001 + 3000 + 2001 + 8001);
	CHECK(t.name_n == 1 && *t.name == 'f');
	CHECK_INT(p.root->kind, SHF_PK_DICT);
	CHECK_INT(p.root->taken, 4);
	CHECK_INT(p.root->n, 2);
	CHECK(shf_pk_int(shf_pk_get(p.root, "b"), &i) && i == 1);
	CHECK(shf_pk_int(shf_pk_get(p.root, "e"), &i) && i == 3000);
	shf_pickle_release(&p);
}

/* Takes pairs whose value is a text, and keeps where the last one was. */
static bool take_texts(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct taken *t = arg;

	if (value->kind != SHF_PK_STR)
		return false;
	t->sum += key->u.s == t->name;
	t->name = key->u.s;
	t->n++;
	return true;
}

/* {<40 letters>: "x"} and so on, each third one with the value 1, which is not taken. */
TEST(the_memory_of_texts_that_were_taken_is_used_for_others_of_their_size)
{
	struct taken t = { 0 };
	const struct shf_pickle_taker taker = { .take = take_texts, .arg = &t, .texts_go = true };
	struct text text = { 0 };
	struct shf_pickle p;
	char bytes[2000] = "\x80\2}", key[60];
	size_t n = 3;

	for (int i = 0; i < 20; i++) {
		int len = 33 + i % 3;

		memset(key, 'a' + i, (size_t)len);
		n += (size_t)snprintf(bytes + n, sizeof(bytes) - n, "U%c%.*s%s", len, len, key,
		                      i % 3 == 2 ? "K\1s" : "U\1xs");
	}
	bytes[n++] = '.';
	text = (struct text){ (const uint8_t *)bytes, n, 0 };
	CHECK_RC(reads_file(&p, &text, &taker), 0, &err);
	CHECK_INT(t.n, 14);
	CHECK(t.sum > 0);
	CHECK_INT(p.root->n, 6);
	for (int i = 2; i < 20; i += 3) {
		const struct shf_pk *have = p.root->u.a[(i - 2) / 3 * 2];

		CHECK_INT(have->n, 33 + i % 3);
		for (uint32_t k = 0; k < have->n; k++)
			CHECK_INT(have->u.s[k], 'a' + i);
	}
	shf_pickle_release(&p);
}

TEST(a_record_that_was_doubled_on_the_stack_is_not_used_again)
{
	/* [{"a": (1000, 1001)}, the same tuple, 5000, 5001], by DUP. */
	static const char text[] = "\x80\x02](M\xe8\x03M\xe9\x03\x86" "2}U\x01" "a1(M\xe8\x03M"
		"\xe9\x03\x86" "2q\x01" "0}U\x01" "ah\x01sM\x88\x13M\x89\x13" "e.";
	struct shf_pickle p;
	struct taken t;
	int64_t i;

	CHECK_RC(takes(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 1);
	CHECK_INT(p.root->n, 4);
	CHECK(shf_pk_int(shf_pk_at(shf_pk_at(p.root, 0), 1), &i) && i == 1001);
	CHECK(shf_pk_int(shf_pk_at(p.root, 3), &i) && i == 5001);
	shf_pickle_release(&p);
}

TEST(a_size_that_two_have_is_not_used_again)
{
	/* {"a": torch.Size((1000, 1001)), "b": torch.Size(<the arguments of a>), "c": (2000,
	 * 2001), "d": <the dimensions of a>} */
	static const char text[] = "\x80\x02}U\x01" "actorch\nSize\nq\x01M\xe8\x03M\xe9"
		"\x03\x86\x85q\x02RsU\x01" "bh\x01h\x02RsU\x01" "cM\xd0\x07M\xd1\x07\x86sU\x01"
		"dh\x01h"
		"\x02R\x85s.";
	struct shf_pickle p;
	struct taken t;
	int64_t i;

	CHECK_RC(takes(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 3);
	CHECK_INT(t.sum, 2001 + 2001 + 4001);
	CHECK(shf_pk_int(shf_pk_at(shf_pk_at(shf_pk_get(p.root, "d"), 0), 1), &i) && i == 1001);
	shf_pickle_release(&p);
}

TEST(a_long_pickle_of_taken_pairs_needs_few_records)
{
	struct shf_pickle p;
	struct taken t;
	uint8_t *bytes = malloc(4000000), *at = bytes;
	int64_t sum = 0;

	at = (uint8_t *)memcpy(at, "\x80\x02}", 3) + 3;
	for (int i = 0; i < 200000; i++) {      /* numbers above 255 have records of their own */
		memcpy(at, "U\x03xyzM\x00\x00J\x00\x00\x00\x01\x86s", 15);
		at[6] = (uint8_t)i;
		at[7] = 1;
		sum += 256 + (i & 255) + (1 << 24);
		at += 15;
	}
	*at++ = '.';
	CHECK_RC(takes(&p, bytes, (size_t)(at - bytes), &t), 0, &err);
	CHECK_INT(t.n, 200000);
	CHECK_INT(t.sum, sum);
	CHECK_INT(p.root->taken, 200000);
	CHECK_INT(p.root->n, 0);
	shf_pickle_release(&p);
	free(bytes);
}

/* OBJECT pushes an object with an empty state. Its class is entry 0 of the memo, which CLASS, at
 * the beginning of the pickle, makes. */
#define OBJECT "h\0)\x81}b"
#define CLASS "\x80\x02" "cx\nY\nq\0" "0"

/* Takes pairs whose value is an object with a state. sum counts the values that are in the same
 * memory as the value taken before. */
static bool take_objects(void *arg, const struct shf_pk *key, const struct shf_pk *value)
{
	struct taken *t = arg;

	if (key->kind != SHF_PK_STR || value->kind != SHF_PK_CALL || !value->u.call->state)
		return false;
	t->sum += t->name == (const char *)(const void *)value->u.call;
	t->name = (const char *)(const void *)value->u.call;
	t->n++;
	return true;
}

static int takes_objects(struct shf_pickle *p, const void *bytes, size_t n, struct taken *t)
{
	const struct shf_pickle_taker taker = { .take = take_objects, .arg = t };
	struct text text = { bytes, n, 0 };

	*t = (struct taken){ 0 };
	return reads_file(p, &text, &taker);
}

TEST(of_a_dictionary_with_taken_pairs_the_next_ones_are_taken_when_they_are_complete)
{
	/* A dictionary of one pair gets five more at once. The value of "d" is 1; the others are
	 * objects. */
	static const char text[] = CLASS "}(X\1\0\0\0a" OBJECT "u(X\1\0\0\0b" OBJECT
		"X\1\0\0\0c" OBJECT "X\1\0\0\0dK\1X\1\0\0\0e" OBJECT "X\1\0\0\0f" OBJECT "u.";
	struct shf_pickle p;
	struct taken t;
	int64_t i;

	CHECK_RC(takes_objects(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 5);
	CHECK(t.sum > 0);
	CHECK_INT(p.root->taken, 5);
	CHECK_INT(p.root->n, 1);
	CHECK(shf_pk_int(shf_pk_get(p.root, "d"), &i) && i == 1);
	shf_pickle_release(&p);
}

TEST(a_value_that_goes_on_is_not_taken_before_it_is_complete)
{
	/* The dictionary {"a": (1, 2)} gets three pairs at once: "b" is ((1, 2), "k"); "c" is
	 * [1, 2, "k"], of which "k" is appended later; "d" is (1, 2). */
	static const char text[] = "\x80\x02}(X\1\0\0\0aK\1K\2\x86u(X\1\0\0\0bK\1K\2\x86"
		"X\1\0\0\0k\x86X\1\0\0\0c](K\1K\2eX\1\0\0\0kaX\1\0\0\0dK\1K\2\x86u.";
	struct shf_pickle p;
	struct taken t;

	CHECK_RC(takes(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 2);
	CHECK_INT(p.root->taken, 2);
	CHECK_INT(p.root->n, 2);
	CHECK(shf_pk_text_is(shf_pk_at(shf_pk_get(p.root, "b"), 1), "k"));
	CHECK(shf_pk_text_is(shf_pk_at(shf_pk_get(p.root, "c"), 2), "k"));
	shf_pickle_release(&p);
}

TEST(a_mark_above_a_dictionary_may_be_of_something_else)
{
	/* [{"a": OBJECT, ("k", 1, 2, 3): 7}, ["b", OBJECT, "c"]]: the items of the second key, and
	 * those of the inner list, lie above a mark where pairs of the dictionary could lie. */
	static const char text[] = CLASS "](}(X\1\0\0\0a" OBJECT "u(X\1\0\0\0kK\1K\2K\3tK\7s"
		"e(](X\1\0\0\0b" OBJECT "X\1\0\0\0cee.";
	struct shf_pickle p;
	struct taken t;

	CHECK_RC(takes_objects(&p, text, sizeof(text) - 1, &t), 0, &err);
	CHECK_INT(t.n, 1);
	CHECK_INT(shf_pk_at(p.root, 0)->taken, 1);
	CHECK_INT(shf_pk_at(p.root, 0)->n, 1);
	CHECK_INT(shf_pk_at(p.root, 1)->n, 3);
	shf_pickle_release(&p);
}

TEST(pairs_that_were_taken_early_belong_to_their_dictionary_and_to_nothing_else)
{
	/* Instead of SETITEMS, after two pairs of a dictionary that were taken, and a name that
	 * made the second one complete and is gone. */
	static const struct { const char *op; size_t n; } ends[] = {
		{ "t", 1 }, { "l", 1 }, { "d", 1 }, { "1", 1 }, { "e", 1 }, { "\x90", 1 },
		{ "\x91", 1 }, { "o", 1 }, { "0", 1 }, { "00", 2 }, { "0000", 4 }, { "2", 1 },
		{ "q\7", 2 }, { "\x94", 1 }, { "\x85", 1 }, { "\x86", 1 }, { "\x87", 1 },
		{ "s", 1 }, { "a", 1 }, { "R", 1 }, { "b", 1 }, { "Q", 1 }, { "u\x86", 2 },
		{ ".", 1 } };
	static const char first[] = CLASS "}(X\1\0\0\0a" OBJECT "u(X\1\0\0\0b" OBJECT
		"X\1\0\0\0c" OBJECT "X\1\0\0\0d0";
	char bytes[120];

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		size_t n = sizeof(first) - 1;
		struct shf_pickle p;
		struct taken t;

		memcpy(bytes, first, n);
		memcpy(bytes + n, ends[i].op, ends[i].n);
		n += ends[i].n;
		bytes[n++] = '.';
		CHECK_RC(takes_objects(&p, bytes, n, &t), SHEAF_EFORMAT, &err);
		CHECK_INT(t.n, 3);
		shf_pickle_release(&p);
	}
}

/* The number of bytes of the file before the texts varies, so that each opcode lies across the end
 * of what was read at once. */
TEST(a_pickle_in_a_file_is_the_pickle_in_memory)
{
	static const char values[] = "(X\x03\x00\x00\x00" "onecbuiltins\nobject\nq\x05M\x10"
		"\x20G\x40\x09\x21\xfb\x54\x44\x2d\x18I77\nh\x05\x8a\x08\x01\x02\x03\x04\x05"
		"\x06\x07"
		"\x08t.";
	const size_t block = (size_t)4 << 10;

	for (size_t pad = 1; pad < sizeof(values) + 20; pad++) {
		size_t n = block - pad, all = n + 7 + sizeof(values);
		uint8_t *bytes = calloc(1, all), *copy;
		struct text t = { bytes, all - 1, 0 };
		struct shf_pickle a, b;

		bytes[0] = 0x80;
		bytes[1] = 2;
		bytes[2] = 'X';                 /* a text of n - 1 bytes, which POP drops */
		bytes[3] = (uint8_t)(n - 1);
		bytes[4] = (uint8_t)((n - 1) >> 8);
		bytes[7 + n - 1] = '0';
		memcpy(bytes + 7 + n, values, sizeof(values));
		CHECK_RC(reads(&a, bytes, t.n, &copy), 0, &err);
		CHECK_RC(reads_file(&b, &t, NULL), 0, &err);
		CHECK_INT(b.bytes, a.bytes);
		CHECK_INT(b.root->n, 7);
		for (uint32_t i = 0; i < 7; i++) {
			const struct shf_pk *x = shf_pk_at(a.root, i), *y = shf_pk_at(b.root, i);

			CHECK_INT(x->kind, y->kind);
			CHECK(x->kind == SHF_PK_GLOBAL ? strcmp(x->u.s, y->u.s) == 0
			    : x->kind == SHF_PK_STR ? memcmp(x->u.s, y->u.s, x->n) == 0
			                            : x->u.i == y->u.i);
		}
		CHECK(shf_pk_at(b.root, 1) == shf_pk_at(b.root, 5));
		for (size_t cut = 0; cut < all - 1; cut += cut + 64 < n ? 997 : 1) {
			struct text short_t = { bytes, cut, 0 };
			struct shf_pickle c;

			CHECK_RC(reads_file(&c, &short_t, NULL), SHEAF_EFORMAT, &err);
			CHECK(c.cut);
			shf_pickle_release(&c);
		}
		shf_pickle_release(&a);
		shf_pickle_release(&b);
		free(bytes);
		free(copy);
	}
}

TEST(the_memo_keeps_what_is_asked_for_wherever_it_was_entered)
{
	static const struct { const char *bytes; size_t n; int64_t i; } cases[] = {
		{ P("M\x00\x10" "p300\n0."), -1 },
		{ P("K\x01r\x00\x00\x00\x00" "0j\x00\x00\x00\x00."), 1 },
		{ P("M\x00\x10q\x01" "0M\x01\x10q\x01" "0h\x01."), 0x1001 },    /* entered twice */
		{ P("M\x00\x10p2\n0g2\n."), 0x1000 },
		{ P("M\x00\x10q\x03" "0M\x07\x10\x94" "0h\x04."), 0x1007 },
		{ P("h\x00."), -1 }, { P("K\x01j\x05\x00\x00\x00."), -1 },
		{ P("K\x01q\x02" "0h\x01."), -1 }, { P("K\x01j\xff\xff\xff\xff."), -1 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shf_pickle p;
		uint8_t *copy;
		int rc = reads(&p, cases[i].bytes, cases[i].n, &copy);

		CHECK_RC(rc, cases[i].i < 0 ? SHEAF_EFORMAT : 0, &err);
		if (rc == 0)
			CHECK_INT(p.root->u.i, cases[i].i);
		shf_pickle_release(&p);
		free(copy);
	}
}

/* The pass that looks for such opcodes follows the lengths of all others. */
TEST(what_the_memo_is_asked_for_is_found_after_each_opcode)
{
	static const struct { const char *bytes; size_t n; } between[] = {
		{ P("I1\n0") }, { P("L1\n0") }, { P("F1\n0") }, { P("S'j'\n0") }, { P("Vj\n0") },
		{ P("Pj\n0") }, { P("cj\nj\n0") }, { P("(ij\nj\n0") }, { P("G@\x09!jjjjj0") },
		{ P("Kj0") }, { P("Mjj0") }, { P("Jjjjj0") }, { P("\x8a\x01j0") },
		{ P("\x8b\x01\x00\x00\x00j0") }, { P("T\x01\x00\x00\x00j0") }, { P("U\x01j0") },
		{ P("X\x01\x00\x00\x00j0") }, { P("\x8c\x01j0") },
		{ P("\x8d\x01\x00\x00\x00\x00\x00\x00\x00j0") }, { P("B\x01\x00\x00\x00j0") },
		{ P("C\x01j0") }, { P("\x8e\x01\x00\x00\x00\x00\x00\x00\x00j0") },
		{ P("\x96\x01\x00\x00\x00\x00\x00\x00\x00j0") },
		{ P("\x95jjjjjjjj") }, { P("\x80\x05") }, { P("N0") }, { P("\x88" "0\x89" "0") },
		{ P("K\x01q\x02" "0h\x02" "0") }, { P("K\x01r\x03\x00\x00\x00" "0") },
		{ P("Np2\n0") },
		{ P("N\x94" "0") }, { P("N2" "00") }, { P("(N1") }, { P("()t0") },
		{ P(")]}\x8f" "0000") },
		{ P("(l(d00") }, { P("(N\x91" "0") }, { P("N\x85N\x86NNN\x87" "00") },
		{ P("]Na(Ne0") }, { P("}KjNs(KjNu0") }, { P("\x8f(N\x90" "0") },
		{ P("U\x01jU\x01j\x93" "0") }, { P("cj\nj\n)R0") }, { P("cj\nj\n)\x81" "0") },
		{ P("cj\nj\n)}\x92" "0") }, { P("(cj\nj\no0") }, { P("cj\nj\n)RNb0") },
		{ P("NQ0") },
	};

	/* The entry has number 300, and so must lie behind as many bytes. */
	for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++) {
		uint8_t bytes[400], *at = bytes, *copy;
		struct shf_pickle p;

		memset(at, 'N', 300);
		for (int k = 1; k < 300; k += 2)
			at[k] = '0';
		at = (uint8_t *)memcpy(at + 300, "M\x00\x10r,\x01\x00\x00" "0", 9) + 9;
		at = (uint8_t *)memcpy(at, between[i].bytes, between[i].n) + between[i].n;
		at = (uint8_t *)memcpy(at, "j,\x01\x00\x00.", 6) + 6;
		CHECK_RC(reads(&p, bytes, (size_t)(at - bytes), &copy), 0, &err);
		CHECK_INT(p.root->u.i, 0x1000);
		shf_pickle_release(&p);
		free(copy);
	}
}

/* An entry above those that are always kept. */
TEST(the_memo_finds_one_entry_of_thousands)
{
	uint8_t *bytes = malloc(200000), *copy;

	for (int want = 0; want < 10000; want += 97) {
		uint8_t *at = bytes;
		struct shf_pickle p;

		for (int i = 0; i < 10000; i++) {
			at = (uint8_t *)memcpy(at, "M\x00\x00\x94" "0", 5) + 5;
			at[-4] = (uint8_t)i;
			at[-3] = (uint8_t)(i >> 8);
		}
		*at++ = 'j';
		for (int k = 0; k < 4; k++)
			*at++ = (uint8_t)(want >> 8 * k);
		*at++ = '.';
		CHECK_RC(reads(&p, bytes, (size_t)(at - bytes), &copy), 0, &err);
		CHECK_INT(p.root->u.i, want);
		shf_pickle_release(&p);
		free(copy);
	}
	free(bytes);
}

/* By definition: bit by bit. */
static uint32_t crc32_of(uint32_t polynomial, const uint8_t *bytes, size_t n)
{
	uint32_t sum = UINT32_MAX;

	for (; n; n--) {
		sum ^= *bytes++;
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? polynomial : 0);
	}
	return ~sum;
}

TEST(crc32_is_that_of_zip_and_crc32c_that_of_zarr)
{
	static const struct { void (*init)(struct shf_crc32 *c); uint32_t of, check; } all[] = {
		{ shf_crc32_init, 0xedb88320, 0xcbf43926 },
		{ shf_crc32c_init, 0x82f63b78, 0xe3069283 } };
	struct shf_crc32 *c = malloc(sizeof(*c));
	uint8_t some[1000];

	for (size_t i = 0; i < sizeof(some); i++)
		some[i] = (uint8_t)(i * i + i / 100);
	for (size_t k = 0; k < 2; k++) {
		all[k].init(c);
		CHECK_INT(shf_crc32_more(c, 0, "123456789", 9), all[k].check);
		CHECK_INT(shf_crc32_more(c, 0, "", 0), 0);
		for (size_t n = 0; n < 300; n++)
			CHECK_INT(shf_crc32_more(c, 0, some + n % 17, n),
			          crc32_of(all[k].of, some + n % 17, n));
		for (size_t i = 0; i < sizeof(some); i += 7)
			CHECK_INT(shf_crc32_more(c, shf_crc32_more(c, 0, some, i), some + i,
			                         sizeof(some) - i),
			          crc32_of(all[k].of, some, sizeof(some)));
	}
	free(c);
}
