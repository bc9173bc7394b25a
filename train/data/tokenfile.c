/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "itemhash.h"

enum { HEADER_MAX = 1 << 20, HASHED = 1 << 20, TOKENS_AT_ONCE = 4096, DOCUMENTS_AT_ONCE = 64,
       CHECKED_AT_ONCE = 4096 };

static int read_all(const struct tr_tokenfile *f, void *to, size_t n, int64_t at,
		    struct tr_error *err)
{
	char *p = to;

	while (n > 0) {
		ssize_t got = pread(f->fd, p, n, at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return tr_fail(err, TR_EIO, "%s: %s", f->path, strerror(errno));
		if (got == 0)
			return tr_fail(err, TR_EFORMAT, "%s: it ends at byte %" PRId64
				       ", before its last token; make it again", f->path, at);
		p += got;
		at += got;
		n -= (size_t)got;
	}
	return 0;
}

/* Looks up a tensor of one dimension in the header: its type, its items, and its bytes
 * [begin, end) in the data. Returns 0 if there is none. */
static int find_tensor(const json_t *header, const char *name, const char **type, int64_t *items,
		       int64_t *begin, int64_t *end)
{
	const json_t *t = json_object_get(header, name), *shape, *offsets;

	shape = json_object_get(t, "shape");
	offsets = json_object_get(t, "data_offsets");
	*type = json_string_value(json_object_get(t, "dtype"));
	if (!*type || json_array_size(shape) != 1 || json_array_size(offsets) != 2)
		return 0;
	*items = (int64_t)json_integer_value(json_array_get(shape, 0));
	*begin = (int64_t)json_integer_value(json_array_get(offsets, 0));
	*end = (int64_t)json_integer_value(json_array_get(offsets, 1));
	return *items >= 0 && *begin >= 0 && *end >= *begin;
}

static int read_tensors(struct tr_tokenfile *f, const json_t *header, int64_t data, int64_t size,
			struct tr_error *err)
{
	int64_t begin, end;
	const char *type;

	if (!find_tensor(header, "tokens", &type, &f->n, &begin, &end))
		return tr_fail(err, TR_EFORMAT, "%s: it has no tensor tokens [n]; make it with "
			       "sheaf-train data", f->path);
	f->item_bytes = strcmp(type, "U16") == 0 ? 2 : strcmp(type, "U32") == 0 ? 4 : 0;
	if (!f->item_bytes || (end - begin) / f->item_bytes != f->n ||
	    (end - begin) % f->item_bytes)
		return tr_fail(err, TR_EFORMAT, "%s: tokens must be U16 or U32, not %s of %" PRId64
			       " bytes", f->path, type, end - begin);
	if (end > size - data)
		return tr_fail(err, TR_EFORMAT, "%s: it is too short for its %" PRId64 " tokens; "
			       "make it again", f->path, f->n);
	f->tokens_at = data + begin;
	return 0;
}

/* Looks up the tensors that a file need not have. */
static int read_others(struct tr_tokenfile *f, const json_t *header, int64_t data, int64_t size,
		       struct tr_error *err)
{
	int64_t items, begin, end;
	const char *type;

	f->mask_at = f->documents_at = -1;
	if (json_object_get(header, "documents")) {
		if (!find_tensor(header, "documents", &type, &items, &begin, &end) ||
		    strcmp(type, "I64") != 0 || items < 1 || (end - begin) / 8 != items ||
		    (end - begin) % 8 || end > size - data)
			return tr_fail(err, TR_EFORMAT, "%s: documents must be I64 with an item "
				       "for each document and one for the end", f->path);
		f->documents = items - 1;
		f->documents_at = data + begin;
	}
	if (!json_object_get(header, "mask"))
		return 0;
	if (!find_tensor(header, "mask", &type, &items, &begin, &end) ||
	    strcmp(type, "U8") != 0 || items != f->n || end - begin != f->n || end > size - data)
		return tr_fail(err, TR_EFORMAT, "%s: mask must be U8 with an item for each token",
			       f->path);
	f->mask_at = data + begin;
	return 0;
}

static int read_header(struct tr_tokenfile *f, struct tr_error *err)
{
	unsigned char count[8];
	json_error_t why;
	json_t *header = NULL;
	uint64_t n = 0;
	struct stat st;
	char *text = NULL;
	int rc;

	if (fstat(f->fd, &st) < 0)
		return tr_fail(err, TR_EIO, "%s: %s", f->path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return tr_fail(err, TR_EFORMAT, "%s: not a file; make a token file with "
			       "sheaf-train data", f->path);
	f->bytes = st.st_size;
	if (st.st_size >= 8) {
		rc = read_all(f, count, sizeof(count), 0, err);
		if (rc < 0)
			return rc;
		for (int i = 7; i >= 0; i--)
			n = n << 8 | count[i];
	}
	if (n < 2 || n > HEADER_MAX || (int64_t)n > st.st_size - 8)
		return tr_fail(err, TR_EFORMAT, "%s: not a safetensors file; make a token file "
			       "with sheaf-train data", f->path);
	text = malloc(n);
	if (!text)
		return tr_fail(err, TR_ENOMEM, "%s: no memory for its header", f->path);
	rc = read_all(f, text, n, 8, err);
	if (rc < 0)
		goto out;
	f->header = 8 + (int64_t)n;
	header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
	rc = header ? read_tensors(f, header, f->header, st.st_size, err) :
		tr_fail(err, TR_EFORMAT, "%s: its header is not JSON: %s; make it again", f->path,
			why.text);
	if (rc == 0)
		rc = read_others(f, header, f->header, st.st_size, err);
out:
	json_decref(header);
	free(text);
	return rc;
}

/* Reads where documents [first, first + n) begin. The number of documents stands for the end. */
static int read_documents(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t *begin,
			  struct tr_error *err)
{
	unsigned char bytes[8 * CHECKED_AT_ONCE];
	int rc = read_all(f, bytes, (size_t)n * 8, f->documents_at + first * 8, err);

	for (int64_t i = 0; rc == 0 && i < n; i++) {
		uint64_t x = 0;

		for (int b = 7; b >= 0; b--)
			x = x << 8 | bytes[8 * i + b];
		begin[i] = (int64_t)x;
		if (x > (uint64_t)f->n || (first + i == 0 && x) || (i && begin[i] < begin[i - 1]))
			return tr_fail(err, TR_EFORMAT, "%s: documents[%" PRId64 "] is %" PRIu64
				       ", which is not in order from 0 to %" PRId64 "; make it "
				       "again", f->path, first + i, x, f->n);
	}
	return rc;
}

/* Checks that the documents begin with the first token and end with the last. */
static int check_documents(const struct tr_tokenfile *f, struct tr_error *err)
{
	int64_t begin;
	int rc = f->documents_at < 0 ? 0 : read_documents(f, 0, 1, &begin, err);

	if (rc == 0 && f->documents_at >= 0)
		rc = read_documents(f, f->documents, 1, &begin, err);
	if (rc == 0 && f->documents_at >= 0 && begin != f->n)
		rc = tr_fail(err, TR_EFORMAT, "%s: documents end with token %" PRId64 ", and the "
			     "file has %" PRId64 "; make it again", f->path, begin, f->n);
	return rc;
}

int tr_tokenfile_open(struct tr_tokenfile *f, const char *path, struct tr_error *err)
{
	int rc;

	*f = (struct tr_tokenfile){ .path = strdup(path), .fd = -1 };
	if (!f->path)
		return tr_fail(err, TR_ENOMEM, "%s: no memory for its name", path);
	/* The open of a FIFO would wait for a program that writes to it. */
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	rc = f->fd < 0 ? tr_fail(err, errno == ENOENT ? TR_ENOENT : TR_EIO, "%s: %s", path,
				 strerror(errno)) :
		read_header(f, err);
	if (rc == 0)
		rc = check_documents(f, err);
	if (rc == 0 && f->n < 2)
		rc = tr_fail(err, TR_EINVAL, "%s: it has %" PRId64 " tokens, and the smallest "
			     "sample needs 2", path, f->n);
	if (rc < 0)
		tr_tokenfile_close(f);
	return rc;
}

void tr_tokenfile_close(struct tr_tokenfile *f)
{
	if (f->path && f->fd >= 0)
		close(f->fd);
	free(f->path);
	f->path = NULL;
	f->fd = -1;
}

static int read_tokens(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t vocab,
		       int32_t *token, struct tr_error *err)
{
	unsigned char bytes[TOKENS_AT_ONCE * 4];
	int rc = read_all(f, bytes, (size_t)(n * f->item_bytes),
			  f->tokens_at + first * f->item_bytes, err);

	for (int64_t i = 0; rc == 0 && i < n; i++) {
		const unsigned char *b = bytes + i * f->item_bytes;
		uint32_t id = (uint32_t)b[0] | (uint32_t)b[1] << 8;

		if (f->item_bytes == 4)
			id |= (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
		if ((int64_t)id >= vocab)
			return tr_fail(err, TR_EINVAL, "%s: token %" PRId64 " is %" PRIu32
				       ", and the model has a vocab_size of %" PRId64
				       "; use data of its tokenizer", f->path, first + i, id,
				       vocab);
		token[i] = (int32_t)id;
	}
	return rc;
}

int tr_tokenfile_read(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t vocab,
		      int32_t *token, struct tr_error *err)
{
	int rc = 0;

	for (int64_t at = 0; rc == 0 && at < n; at += TOKENS_AT_ONCE)
		rc = read_tokens(f, first + at, n - at < TOKENS_AT_ONCE ? n - at : TOKENS_AT_ONCE,
				 vocab, token + at, err);
	return rc;
}

int tr_tokenfile_mask(const struct tr_tokenfile *f, int64_t first, int64_t n, uint8_t *mask,
		      struct tr_error *err)
{
	int rc = 0;

	if (f->mask_at < 0)
		memset(mask, 1, (size_t)n);
	else
		rc = read_all(f, mask, (size_t)n, f->mask_at + first, err);
	for (int64_t i = 0; rc == 0 && i < n; i++)
		if (mask[i] > 1)
			rc = tr_fail(err, TR_EFORMAT, "%s: mask[%" PRId64 "] is %d, and must be 1, "
				     "where the token counts as a target, or 0; make it again",
				     f->path, first + i, mask[i]);
	return rc;
}

int tr_tokenfile_check_documents(const struct tr_tokenfile *f, struct tr_error *err)
{
	int64_t begin[CHECKED_AT_ONCE], all = f->documents + 1;
	int rc = 0;

	if (f->documents_at < 0)
		return tr_fail(err, TR_EFORMAT, "%s: it has no tensor documents, which "
			       "document-attention needs; make it with sheaf-train data", f->path);
	/* The last one that was read is read again, so that the next one is compared with it. */
	for (int64_t at = 0; rc == 0 && at < all; at += CHECKED_AT_ONCE - 1)
		rc = read_documents(f, at, all - at < CHECKED_AT_ONCE ? all - at : CHECKED_AT_ONCE,
				    begin, err);
	return rc;
}

/* Sets *low to the first document that begins after a token, or to the number of documents. */
static int find_document(const struct tr_tokenfile *f, int64_t token, int64_t *low,
			 struct tr_error *err)
{
	int64_t high = f->documents;
	int rc = 0;

	for (*low = 0; rc == 0 && *low < high;) {
		int64_t middle = *low + (high - *low) / 2, begin;

		rc = read_documents(f, middle, 1, &begin, err);
		if (rc == 0 && begin <= token)
			*low = middle + 1;
		else
			high = middle;
	}
	return rc;
}

int tr_tokenfile_documents(const struct tr_tokenfile *f, int64_t first, int64_t n, int64_t *begin,
			   int64_t *found, struct tr_error *err)
{
	int64_t at, last = first, got[DOCUMENTS_AT_ONCE];
	int rc;

	*found = 0;
	rc = find_document(f, first, &at, err);
	while (rc == 0 && at < f->documents) {
		int64_t some = f->documents - at;

		some = some < DOCUMENTS_AT_ONCE ? some : DOCUMENTS_AT_ONCE;
		rc = read_documents(f, at, some, got, err);
		for (int64_t i = 0; rc == 0 && i < some; i++) {
			if (got[i] >= first + n)
				return 0;
			if (got[i] > last)
				begin[(*found)++] = last = got[i];
		}
		at += some;
	}
	return rc;
}

/* Continues a hash over bytes [from, to) of the file, or over the last of them if they are many. */
static int hash_last(const struct tr_tokenfile *f, int64_t from, int64_t to, uint64_t *hash,
		     struct tr_error *err)
{
	size_t n = to - from < HASHED ? (size_t)(to - from) : HASHED;
	char *part = malloc(n + 1);
	int rc = part ? read_all(f, part, n, to - (int64_t)n, err) :
		tr_fail(err, TR_ENOMEM, "%s: no memory for its hash", f->path);

	if (rc == 0)
		*hash = tr_crc64_more(*hash, part, n);
	free(part);
	return rc;
}

int tr_tokenfile_hash(const struct tr_tokenfile *f, uint64_t *hash, struct tr_error *err)
{
	char size[24];
	int rc;

	snprintf(size, sizeof(size), "%" PRId64, f->bytes);
	*hash = tr_crc64(size);
	rc = hash_last(f, 0, f->header, hash, err);
	if (rc == 0)
		rc = hash_last(f, f->tokens_at, f->tokens_at + f->n * f->item_bytes, hash, err);
	if (rc == 0 && f->mask_at >= 0)
		rc = hash_last(f, f->mask_at, f->mask_at + f->n, hash, err);
	if (rc == 0 && f->documents_at >= 0)
		rc = hash_last(f, f->documents_at, f->documents_at + 8 * (f->documents + 1), hash,
			       err);
	return rc;
}

int64_t tr_tokenfile_samples(const struct tr_tokenfile *f, int64_t seq)
{
	return (f->n - 1 + seq - 1) / seq;
}
