/* SPDX-License-Identifier: Apache-2.0 */
/* A file tokenizer.model of SentencePiece: a message of protobuf, with a message for each token.
 *
 * Source: src/sentencepiece_model.proto of SentencePiece 0.2. */
#include <inttypes.h>
#include <string.h>
#include "err.h"
#include "gguf_vocab.h"

#define NAME "tokenizer.model"
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

struct field {                  /* of a message */
	uint64_t number, value;         /* value: of a varint or of 32 bits */
	int wire;
	struct shf_cur bytes;
};

static uint64_t proto_varint(struct shf_cur *c)
{
	uint64_t v = 0;

	for (int shift = 0; shift < 64; shift += 7) {
		uint8_t byte = shf_cur_u8(c);

		v |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return v;
	}
	c->bad = true;
	return 0;
}

/* Reads the next field of a message. Returns false at its end, or if it is bad. */
static bool next_field(struct shf_cur *c, struct field *f)
{
	uint64_t tag, n;
	const uint8_t *p;

	if (c->bad || c->p == c->end)
		return false;
	tag = proto_varint(c);
	*f = (struct field){ .number = tag >> 3, .wire = (int)(tag & 7) };
	if (f->wire == WIRE_VARINT) {
		f->value = proto_varint(c);
	} else if (f->wire == WIRE_32) {
		f->value = shf_cur_u32(c);
	} else if (f->wire == WIRE_64) {
		f->value = shf_cur_u64(c);
	} else if (f->wire == WIRE_BYTES) {
		n = proto_varint(c);
		p = n <= (uint64_t)(c->end - c->p) ? shf_cur_bytes(c, (size_t)n) : NULL;
		c->bad |= !p;
		f->bytes = (struct shf_cur){ p, p ? p + n : NULL, false };
	} else {
		c->bad = true;
	}
	return !c->bad;
}

/* Reads a SentencePiece: its text, its score and its type. */
static bool read_piece(struct shf_cur c, struct shf_gguf_token *t)
{
	struct field f;

	*t = (struct shf_gguf_token){ .text = "", .type = SHF_GGUF_NORMAL };
	while (next_field(&c, &f)) {
		uint32_t bits = (uint32_t)f.value;

		if (f.number == 1 && f.wire == WIRE_BYTES) {
			t->text = (const char *)f.bytes.p;
			t->n = (size_t)(f.bytes.end - f.bytes.p);
		} else if (f.number == 2 && f.wire == WIRE_32) {
			memcpy(&t->score, &bits, 4);
		} else if (f.number == 3 && f.wire == WIRE_VARINT) {
			t->type = (int32_t)f.value;
		}
	}
	return !c.bad && t->type >= SHF_GGUF_NORMAL && t->type <= SHF_GGUF_BYTE;
}

/* Returns the kind of the model that a TrainerSpec names: 2 is BPE. */
static uint64_t trainer_kind(struct shf_cur c)
{
	uint64_t kind = 1;
	struct field f;

	while (next_field(&c, &f))
		if (f.number == 3 && f.wire == WIRE_VARINT)
			kind = f.value;
	return kind;
}

int shf_gguf_spm_read(struct shf_gguf_vocab *v, const void *bytes, size_t n,
                      struct sheaf_error *err)
{
	struct shf_cur c = { bytes, (const uint8_t *)bytes + n, false };
	struct shf_gguf_token t;
	uint64_t id = 0, kind = 1;
	struct field f;
	int rc = 0;

	while (rc == 0 && next_field(&c, &f)) {
		if (f.wire != WIRE_BYTES)
			continue;
		if (f.number == 2)
			kind = trainer_kind(f.bytes);
		if (f.number != 1)
			continue;
		if (!read_piece(f.bytes, &t))
			return shf_fail(err, SHEAF_EFORMAT, NAME ": token %" PRIu64 " is damaged",
			                id);
		rc = shf_gguf_vocab_set(v, id++, t, err);
	}
	if (rc == 0 && (c.bad || id == 0))
		return shf_fail(err, SHEAF_EFORMAT, NAME ": is not a model of SentencePiece, or is "
		                "damaged at byte %zu", (size_t)(c.p - (const uint8_t *)bytes));
	if (rc == 0 && kind != 2)
		return shf_fail(err, SHEAF_EINVAL, NAME ": is a model of SentencePiece that is not "
		                "BPE, which cannot be written as GGUF; use the converter of "
		                "llama.cpp");
	return rc;
}
