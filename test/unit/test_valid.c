/* SPDX-License-Identifier: Apache-2.0 */
#include "t.h"

#include "safetensors.h"
#include "valid.h"

static bool name_ok(const char *s)
{
	return shf_name_is_valid(s, strlen(s));
}

static char *repeat(char c, size_t n)
{
	static char s[2048];

	memset(s, c, n);
	s[n] = 0;
	return s;
}

TEST(tensor_names_are_text_without_controls)
{
	CHECK(name_ok("a") && name_ok("model.layers.0/x y") && name_ok("\xc3\xa9\xf0\x9f\x98\x80"));
	CHECK(name_ok("\"\\") && name_ok("..") && name_ok("\xc2\xa0") && name_ok("__metadata") &&
	      name_ok("__metadata__x"));
	CHECK(name_ok(repeat('a', 1024)));
	CHECK(!name_ok(repeat('a', 1025)));
	CHECK(!name_ok("") && !name_ok("__metadata__") && !name_ok("a\nb") && !name_ok("\x1f"));
	CHECK(!name_ok("a\x7f") && !name_ok("\xff") && !name_ok("\xc2\x80") &&
	      !name_ok("\xc2\x9f"));
	CHECK(!name_ok("\xc2") && !shf_name_is_valid("a\0b", 3));
}

TEST(families_are_short_lower_case_words)
{
	CHECK(shf_family_is_valid("model") && shf_family_is_valid("master_weights"));
	CHECK(shf_family_is_valid("a") && shf_family_is_valid("e2"));
	CHECK(shf_family_is_valid(repeat('a', 32)));
	CHECK(!shf_family_is_valid(repeat('a', 33)));
	CHECK(!shf_family_is_valid(NULL) && !shf_family_is_valid("") && !shf_family_is_valid("A"));
	CHECK(!shf_family_is_valid("1a") && !shf_family_is_valid("_a") &&
	      !shf_family_is_valid("a-b"));
	CHECK(!shf_family_is_valid("a/b") && !shf_family_is_valid(".") &&
	      !shf_family_is_valid("a."));
}

TEST(attached_files_cannot_be_ours_or_elsewhere)
{
	CHECK(shf_attached_is_valid("config.json") && shf_attached_is_valid("a_B-9"));
	CHECK(shf_attached_is_valid(".hidden") && shf_attached_is_valid("...") &&
	      shf_attached_is_valid("sheaf"));
	CHECK(shf_attached_is_valid(repeat('a', 128)));
	CHECK(!shf_attached_is_valid(repeat('a', 129)));
	CHECK(!shf_attached_is_valid(NULL) && !shf_attached_is_valid(""));
	CHECK(!shf_attached_is_valid(".") && !shf_attached_is_valid(".."));
	CHECK(!shf_attached_is_valid("a/b") && !shf_attached_is_valid("../b") &&
	      !shf_attached_is_valid("a b") && !shf_attached_is_valid("\xc3\xa9"));
	CHECK(!shf_attached_is_valid("sheaf.json") && !shf_attached_is_valid("sheaf.x"));
	CHECK(!shf_attached_is_valid("x.safetensors") &&
	      !shf_attached_is_valid("model.safetensors.index.json"));
	CHECK(!shf_attached_is_valid("alive-0"));
}

TEST(note_keys_and_plain_names)
{
	CHECK(shf_note_key_is_valid("a.b-c_0") && shf_note_key_is_valid(repeat('a', 64)));
	CHECK(!shf_note_key_is_valid(repeat('a', 65)) && !shf_note_key_is_valid("") &&
	      !shf_note_key_is_valid("a:b") && !shf_note_key_is_valid("a b") &&
	      !shf_note_key_is_valid(NULL));
	CHECK(shf_note_key_is_valid("train/Loss"));
	CHECK(shf_stream_is_valid("a.b-c_0") && shf_stream_is_valid(repeat('a', 57)));
	CHECK(!shf_stream_is_valid(repeat('a', 58)) && !shf_stream_is_valid("") &&
	      !shf_stream_is_valid("A") && !shf_stream_is_valid("a/b") &&
	      !shf_stream_is_valid(NULL));
	CHECK(shf_plain_is_valid("model-00001-of-00002.safetensors") && shf_plain_is_valid("a b") &&
	      shf_plain_is_valid("...") && shf_plain_is_valid(repeat('a', 255)));
	CHECK(!shf_plain_is_valid(repeat('a', 256)) && !shf_plain_is_valid("") &&
	      !shf_plain_is_valid(".") && !shf_plain_is_valid("..") && !shf_plain_is_valid("a/b") &&
	      !shf_plain_is_valid("/a") && !shf_plain_is_valid("a\n") &&
	      !shf_plain_is_valid(NULL) && !shf_plain_is_valid("\xff"));
}

TEST(a_shown_name_ends_between_characters)
{
	char s[200];

	CHECK_INT(shf_name_show("abc"), 3);
	memset(s, 'a', sizeof(s));
	s[sizeof(s) - 1] = 0;
	CHECK_INT(shf_name_show(s), 120);
	memcpy(s + 119, "\xc3\xa9", 2);
	CHECK_INT(shf_name_show(s), 119);
}

TEST(a_name_that_is_there_twice_is_found)
{
	const char *names[] = { "c", "a", "b", "a" };

	CHECK_STR(shf_names_twice(names, 4), "a");
	CHECK(shf_names_twice(names + 1, 3) == NULL);
	CHECK(shf_names_twice(NULL, 0) == NULL);
}

/* Each byte in the middle of a word, where the words of this project allow it. */
TEST(the_letters_of_each_kind_of_name_are_these)
{
	for (int c = 1; c < 256; c++) {
		const char s[] = { 'a', (char)c, 'z', '\0' }, first[] = { (char)c, 'z', '\0' };
		bool lower = c >= 'a' && c <= 'z', digit = c >= '0' && c <= '9';
		bool word = lower || digit || c == '.' || c == '_' || c == '-';
		bool upper = c >= 'A' && c <= 'Z', shown = c >= 0x20 && c < 0x7f;

		CHECK_INT(name_ok(s), shown);
		CHECK_INT(shf_family_is_valid(s), lower || digit || c == '_');
		CHECK_INT(shf_family_is_valid(first), lower);
		CHECK_INT(shf_attached_is_valid(s), word || upper);
		CHECK_INT(shf_note_key_is_valid(s), word || upper || c == '/');
		CHECK_INT(shf_stream_is_valid(s), word);
		CHECK_INT(shf_plain_is_valid(s), shown && c != '/');
	}
}
