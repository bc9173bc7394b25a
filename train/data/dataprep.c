/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs are cut into chunks of a fixed number of bytes, so the number of threads changes no
 * chunk. A first pass counts the tokens of each chunk, from which the place of its tokens in the
 * file follows. In a second pass threads write the chunks to their places, in any order. A line of
 * JSONL belongs to the chunk that has its first byte. */
#include "dataprep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "itemhash.h"
#include "jsonline.h"
#include "preplog.h"

enum { CHUNK_BYTES = 8 << 20, LINE_MAX_BYTES = 256 << 20, AT_ONCE = 1 << 16, TOKEN_BYTES = 2,
       BEGIN_BYTES = 8 };

/* Where a chunk writes: its next token, and the next document that begins in it. */
struct place {
	int64_t token, document;
};
struct preparing {
	const struct tr_prepare *o;
	struct tr_chunk *chunk;
	struct place *place;            /* [chunks + 1] */
	int64_t chunks;
	uint64_t work;                  /* a hash of the inputs */
	struct tr_preplog log;
	char *part;                     /* name of the file until it is whole; owned */
	int fd;                         /* of it */
	int masked;                     /* the file has a mask */
	int64_t data;                   /* where the tensors begin */

	pthread_mutex_t lock;
	int64_t next;                   /* chunk; guarded by lock, as the next three */
	int64_t bad;                    /* the first chunk that failed; chunks: none */
	int code;
	struct tr_error err;
};
/* Bytes on their way to a place in the file. */
struct stream {
	int64_t at;
	size_t n;
	unsigned char bytes[AT_ONCE];
};
/* A thread, and what it does with one chunk after the other. */
struct worker {
	pthread_t thread;
	int started;
	struct preparing *p;
	int (*work)(struct worker *w, const struct tr_chunk *c, struct tr_chunk *done,
		    struct tr_error *err);
	int writes;                     /* 1: `work` writes the chunk; 0: it only counts */
	struct place place;
	struct stream token, mask, begin;
};

static int failed(const char *name, struct tr_error *err)
{
	int passes = errno == EIO || errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
	int code = errno == ENOENT ? TR_ENOENT : passes ? TR_EIO : TR_EFAILED;

	return tr_fail(err, code, "%s: %s%s", name, strerror(errno),
		       passes ? "; run the same command again to continue" : "");
}

/* ---- what is to be done ---- */

static int is_jsonl(const char *name)
{
	size_t n = strlen(name);

	return (n > 6 && strcmp(name + n - 6, ".jsonl") == 0) ||
		(n > 7 && strcmp(name + n - 7, ".ndjson") == 0);
}

/* Looks at an input. Its size and time become part of the hash, so that a call does not continue
 * the work of one that had other inputs. */
static int look_at(const struct preparing *p, int i, struct stat *st, uint64_t *hash,
		   struct tr_error *err)
{
	char text[100];

	if (stat(p->o->in[i], st) < 0)
		return failed(p->o->in[i], err);
	if (!S_ISREG(st->st_mode))
		return tr_fail(err, TR_EINVAL, "%s: not a file; give files of text or JSONL",
			       p->o->in[i]);
	snprintf(text, sizeof(text), " %lld %lld %ld ", (long long)st->st_size,
		 (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
	*hash = tr_crc64_more(*hash, p->o->in[i], strlen(p->o->in[i]) + 1);
	*hash = tr_crc64_more(*hash, text, strlen(text));
	return 0;
}

/* Fails if a file that will be written is an input. */
static int check_no_input(const struct preparing *p, const char *name, struct tr_error *err)
{
	struct stat st, in;

	if (stat(name, &st) < 0)
		return errno == ENOENT ? 0 : failed(name, err);
	for (int i = 0; i < p->o->n; i++)
		if (stat(p->o->in[i], &in) == 0 && in.st_dev == st.st_dev &&
		    in.st_ino == st.st_ino)
			return tr_fail(err, TR_EINVAL, "%s: it is an input, too; write to "
				       "another file", name);
	return 0;
}

/* Fails if the files that will be written are inputs, if OUT is no file, or if OUT.part is not of
 * an earlier call, which left its log beside it. */
static int check_names(const struct preparing *p, const char *log, struct tr_error *err)
{
	struct stat out, part, log_st;
	int rc = check_no_input(p, p->o->out, err);

	if (rc == 0 && stat(p->o->out, &out) == 0 && !S_ISREG(out.st_mode))
		rc = tr_fail(err, TR_EINVAL, "%s: it exists and is not a file; write to another "
			     "file", p->o->out);
	if (rc == 0)
		rc = check_no_input(p, p->part, err);
	if (rc == 0)
		rc = check_no_input(p, log, err);
	if (rc == 0 && lstat(p->part, &part) == 0 &&
	    (!S_ISREG(part.st_mode) || lstat(log, &log_st) < 0))
		rc = tr_fail(err, TR_EINVAL, "%s: it is in the way, and no earlier call has left "
			     "it; move it, or write to another file", p->part);
	return rc;
}

static int64_t chunk_bytes(const struct preparing *p)
{
	return p->o->chunk ? p->o->chunk : CHUNK_BYTES;
}

/* Fails if an input is not the one that it was at the start. */
static int check_inputs(const struct preparing *p, struct tr_error *err)
{
	int64_t size = chunk_bytes(p);
	uint64_t hash = tr_crc64_more(0, &size, sizeof(size));
	struct stat st;
	int rc = 0;

	for (int i = 0; rc == 0 && i < p->o->n; i++)
		rc = look_at(p, i, &st, &hash, err);
	if (rc == 0 && hash != p->work)
		rc = tr_fail(err, TR_EFAILED, "an input changed while it was read; run this again "
			     "when all are complete");
	return rc;
}

/* Lists the chunks. The tokens of a chunk of text follow from its size, so it is
 * counted already. */
static int list_chunks(struct preparing *p, struct tr_error *err)
{
	int64_t size = chunk_bytes(p), room = 0;

	p->work = tr_crc64_more(0, &size, sizeof(size));
	for (int i = 0; i < p->o->n; i++) {
		struct stat st;
		int rc = look_at(p, i, &st, &p->work, err), lines = is_jsonl(p->o->in[i]);
		int64_t from = 0, n = st.st_size / size + 1;

		if (rc < 0)
			return rc;
		if (p->chunks + n > room) {
			struct tr_chunk *more;

			room = 2 * (p->chunks + n);
			more = realloc(p->chunk, (size_t)room * sizeof(*more));
			if (!more)
				return tr_fail(err, TR_ENOMEM, "no memory for a list of chunks");
			p->chunk = more;
		}
		do {
			int64_t to = st.st_size - from > size ? from + size : st.st_size;
			int first = from == 0, last = to == st.st_size;

			p->chunk[p->chunks++] = (struct tr_chunk){ .in = i, .from = from,
				.to = to, .first = first, .last = last, .counted = !lines,
				.tokens = to - from + last, .documents = first };
			from = to;
		} while (from < st.st_size);
	}
	return 0;
}

/* ---- what a chunk has ---- */

static int flush(const struct preparing *p, struct stream *s, struct tr_error *err)
{
	const unsigned char *bytes = s->bytes;

	while (s->n > 0) {
		ssize_t put = pwrite(p->fd, bytes, s->n, s->at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return failed(p->part, err);
		bytes += put;
		s->at += put;
		s->n -= (size_t)put;
	}
	return 0;
}

static int put(const struct preparing *p, struct stream *s, uint64_t x, size_t bytes,
	       struct tr_error *err)
{
	int rc = s->n + bytes > sizeof(s->bytes) ? flush(p, s, err) : 0;

	for (size_t i = 0; i < bytes; i++)
		s->bytes[s->n++] = (unsigned char)(x >> 8 * i);
	return rc;
}

/* Counts a document that begins here, and writes where. */
static int put_begin(struct worker *w, struct tr_chunk *done, struct tr_error *err)
{
	done->documents++;
	return w->writes ? put(w->p, &w->begin, (uint64_t)(w->place.token + done->tokens),
			       BEGIN_BYTES, err) : 0;
}

/* Counts n tokens, and writes them.
 * text    NULL: one token, the end of a document
 * counts  whether they count as targets */
static int put_tokens(struct worker *w, struct tr_chunk *done, const char *text, size_t n,
		      int counts, struct tr_error *err)
{
	int rc = 0;

	done->tokens += (int64_t)n;
	for (size_t i = 0; w->writes && rc == 0 && i < n; i++) {
		uint64_t token = text ? (unsigned char)text[i] : TR_BYTE_END;

		rc = put(w->p, &w->token, token, TOKEN_BYTES, err);
		if (rc == 0 && w->p->masked)
			rc = put(w->p, &w->mask, counts != 0, 1, err);
	}
	return rc;
}

static int work_on_text(struct worker *w, const struct tr_chunk *c, struct tr_chunk *done,
			struct tr_error *err)
{
	const char *name = w->p->o->in[c->in];
	FILE *f = fopen(name, "rbe");
	char text[AT_ONCE];
	int rc = f && fseeko(f, c->from, SEEK_SET) == 0 ? 0 : failed(name, err);

	if (rc == 0 && c->first)
		rc = put_begin(w, done, err);
	for (int64_t left = c->to - c->from; rc == 0 && left > 0;) {
		size_t n = fread(text, 1, left < AT_ONCE ? (size_t)left : AT_ONCE, f);

		if (n == 0 && ferror(f))
			rc = failed(name, err);
		if (n == 0)
			break;
		left -= (int64_t)n;
		rc = put_tokens(w, done, text, n, 1, err);
	}
	if (rc == 0 && c->last)
		rc = put_tokens(w, done, NULL, 1, 1, err);
	if (f)
		fclose(f);
	return rc;
}

/* Counts the lines before a byte. They are needed for messages only. */
static int64_t lines_before(const char *name, int64_t byte)
{
	FILE *f = fopen(name, "rbe");
	int64_t lines = 0;
	int c;

	for (int64_t i = 0; f && i < byte && (c = getc(f)) != EOF; i++)
		lines += c == '\n';
	if (f)
		fclose(f);
	return lines;
}

static int work_on_line(struct worker *w, const struct tr_chunk *c, int64_t at, const char *line,
			size_t n, struct tr_chunk *done, struct tr_error *err)
{
	const char *name = w->p->o->in[c->in];
	struct tr_jsonline l;
	int rc = tr_jsonline_read(&l, line, n);

	if (rc < 0) {
		rc = tr_fail(err, TR_EINVAL, "%s: line %" PRId64 ": %s; correct the line or "
			     "remove it", name, lines_before(name, at) + 1, l.why);
	} else if (rc > 0) {
		done->masked |= l.has_prompt;
		rc = put_begin(w, done, err);
		if (rc == 0)
			rc = put_tokens(w, done, l.prompt, l.prompt_n, 0, err);
		if (rc == 0)
			rc = put_tokens(w, done, l.text, l.text_n, 1, err);
		if (rc == 0)
			rc = put_tokens(w, done, NULL, 1, 1, err);
	}
	tr_jsonline_release(&l);
	return rc;
}

/* Moves to the first line that begins in bytes [from, to). Returns where that is: `to` or later if
 * there is none, or at the end of the file. */
static int64_t find_line(FILE *f, int64_t from, int64_t to)
{
	int c = 0;

	if (from == 0 || fseeko(f, from - 1, SEEK_SET) < 0)
		return 0;
	for (from--; from < to && c != '\n' && (c = getc(f)) != EOF; from++)
		;
	return from;
}

static int work_on_lines(struct worker *w, const struct tr_chunk *c, struct tr_chunk *done,
			 struct tr_error *err)
{
	const char *name = w->p->o->in[c->in];
	FILE *f = fopen(name, "rbe");
	int rc = f ? 0 : failed(name, err);
	int64_t at = f ? find_line(f, c->from, c->to) : 0;
	const int64_t most = w->p->o->line_max ? w->p->o->line_max : LINE_MAX_BYTES;
	char *line = NULL;
	size_t room = 0;

	while (rc == 0 && at < c->to) {
		int64_t n = tr_line_get(f, &line, &room, most);

		if (n == 0)
			break;
		if (n < 0)
			rc = errno == ENOMEM ? tr_fail(err, TR_ENOMEM, "%s: no memory for a line",
						       name) : failed(name, err);
		else if (n > most)
			rc = tr_fail(err, TR_EINVAL, "%s: line %" PRId64 " has more than %" PRId64
				     " bytes; make several documents of it, or a file of text",
				     name, lines_before(name, at) + 1, most);
		else
			rc = work_on_line(w, c, at, line, (size_t)n, done, err);
		at += n;
	}
	if (f)
		fclose(f);
	free(line);
	return rc;
}

/* ---- threads ---- */

/* Takes the next chunk, in order, so that the first one that fails is always found. */
static int64_t take_chunk(struct worker *w)
{
	struct preparing *p = w->p;
	int64_t i;

	pthread_mutex_lock(&p->lock);
	while (p->next < p->chunks && (w->writes ? p->chunk[p->next].written :
				       p->chunk[p->next].counted))
		p->next++;
	i = p->bad < p->chunks ? p->chunks : p->next;
	p->next += i < p->chunks;
	pthread_mutex_unlock(&p->lock);
	return i;
}

/* Keeps the result of a chunk. */
static void give_chunk(struct worker *w, int64_t i, const struct tr_chunk *done, int code,
		       const struct tr_error *why)
{
	struct tr_error err = { .code = 0 };
	struct preparing *p = w->p;
	struct tr_chunk *c = &p->chunk[i];

	if (code)
		err = *why;
	pthread_mutex_lock(&p->lock);
	if (code == 0) {
		c->written = w->writes;
		c->counted = 1;
		c->tokens = done->tokens;
		c->documents = done->documents;
		c->masked = done->masked;
		code = tr_preplog_add(&p->log, i, c, &err);
	}
	if (code && i < p->bad) {
		p->bad = i;
		p->code = code;
		p->err = err;
	}
	pthread_mutex_unlock(&p->lock);
}

static int work_on_chunk(struct worker *w, const struct tr_chunk *c, struct tr_chunk *done,
			 struct tr_error *err)
{
	const char *name = w->p->o->in[c->in];
	int rc = is_jsonl(name) ? work_on_lines(w, c, done, err) : work_on_text(w, c, done, err);

	if (rc == 0 && w->writes)
		rc = flush(w->p, &w->token, err);
	if (rc == 0 && w->writes)
		rc = flush(w->p, &w->mask, err);
	if (rc == 0 && w->writes)
		rc = flush(w->p, &w->begin, err);
	if (rc == 0 && w->writes && (done->tokens != c->tokens || done->masked != c->masked ||
				     done->documents != c->documents))
		rc = tr_fail(err, TR_EFAILED, "%s: it changed while it was read; run this again "
			     "when it is complete", name);
	return rc;
}

/* Where the tensors are in the file: documents, tokens, mask. */
static int64_t tokens_at(const struct preparing *p)
{
	return p->data + (p->place[p->chunks].document + 1) * BEGIN_BYTES;
}

static int64_t mask_at(const struct preparing *p)
{
	return tokens_at(p) + p->place[p->chunks].token * TOKEN_BYTES;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct preparing *p = w->p;
	int64_t i;

	while ((i = take_chunk(w)) < p->chunks) {
		struct tr_chunk c = p->chunk[i], done = { .tokens = 0 };
		struct tr_error err = { .code = 0 };
		int rc;

		w->token.n = w->mask.n = w->begin.n = 0;
		if (w->writes) {
			w->place = p->place[i];
			w->token.at = tokens_at(p) + w->place.token * TOKEN_BYTES;
			w->mask.at = mask_at(p) + w->place.token;
			w->begin.at = p->data + w->place.document * BEGIN_BYTES;
		}
		rc = work_on_chunk(w, &c, &done, &err);
		give_chunk(w, i, &done, rc, &err);
	}
	return NULL;
}

/* Counts or writes all chunks that were not yet. */
static int run_threads(struct preparing *p, int writes, struct tr_error *err)
{
	int jobs = p->o->jobs < 1 ? 1 : p->o->jobs;
	struct worker *w = calloc((size_t)jobs, sizeof(*w));

	if (!w)
		return tr_fail(err, TR_ENOMEM, "no memory for %d threads", jobs);
	p->next = 0;
	p->bad = p->chunks;
	for (int i = 0; i < jobs; i++) {
		w[i].p = p;
		w[i].writes = writes;
		w[i].started = i > 0 && pthread_create(&w[i].thread, NULL, work, &w[i]) == 0;
	}
	work(&w[0]);
	for (int i = 0; i < jobs; i++)
		if (w[i].started)
			pthread_join(w[i].thread, NULL);
	free(w);
	if (p->bad == p->chunks)
		return 0;
	if (err)
		*err = p->err;
	return p->code;
}

/* ---- the file ---- */

static void find_places(struct preparing *p)
{
	for (int64_t i = 0; i < p->chunks; i++) {
		const struct tr_chunk *c = &p->chunk[i];

		p->place[i + 1] = (struct place){ p->place[i].token + c->tokens,
						  p->place[i].document + c->documents };
		p->masked |= c->masked;
	}
}

/* Writes the header to s, and sets p->data. */
static int put_header(struct preparing *p, struct stream *s, struct tr_error *err)
{
	const struct place *all = &p->place[p->chunks];
	int64_t documents = (all->document + 1) * BEGIN_BYTES, end = documents + 2 * all->token;
	char text[512], mask[120] = "";
	int n, rc;

	if (p->masked)
		snprintf(mask, sizeof(mask), ",\"mask\":{\"dtype\":\"U8\",\"shape\":[%" PRId64
			 "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", all->token, end,
			 end + all->token);
	n = snprintf(text, sizeof(text), "{\"__metadata__\":{\"tokenizer\":\"bytes\"},"
		     "\"documents\":{\"dtype\":\"I64\",\"shape\":[%" PRId64 "],"
		     "\"data_offsets\":[0,%" PRId64 "]},\"tokens\":{\"dtype\":\"U16\",\"shape\":[%"
		     PRId64 "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}%s}", all->document + 1,
		     documents, all->token, documents, end, mask);
	while (n % 8)
		text[n++] = ' ';
	p->data = 8 + n;
	rc = put(p, s, (uint64_t)n, 8, err);
	for (int i = 0; rc == 0 && i < n; i++)
		rc = put(p, s, (unsigned char)text[i], 1, err);
	return rc;
}

/* Forgets which chunks were written, if some were. */
static int forget_written(struct preparing *p, struct tr_error *err)
{
	int written = 0, rc = 0;

	for (int64_t i = 0; i < p->chunks; i++) {
		written |= p->chunk[i].written;
		p->chunk[i].written = 0;
	}
	if (written)
		rc = tr_preplog_clear(&p->log, p->work, err);
	for (int64_t i = 0; written && rc == 0 && i < p->chunks; i++)
		rc = tr_preplog_add(&p->log, i, &p->chunk[i], err);
	return rc;
}

/* Makes the file with its header and its size. What an earlier call has written of it stays, if the
 * file is there and has that size. */
static int make_file(struct preparing *p, struct tr_error *err)
{
	struct stream s = { .at = 0 }, end = { .at = 0 };
	struct stat st = { .st_size = 0 };
	int64_t size;
	int rc = put_header(p, &s, err);

	if (rc < 0)
		return rc;
	size = mask_at(p) + (p->masked ? p->place[p->chunks].token : 0);
	p->fd = open(p->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (p->fd < 0 || fstat(p->fd, &st) < 0)
		return failed(p->part, err);
	if (st.st_size != size) {
		rc = forget_written(p, err);
		if (rc < 0)
			return rc;
		if (ftruncate(p->fd, 0) < 0 || ftruncate(p->fd, size) < 0)
			return failed(p->part, err);
	}
	rc = flush(p, &s, err);
	end.at = tokens_at(p) - BEGIN_BYTES;
	if (rc == 0)
		rc = put(p, &end, (uint64_t)p->place[p->chunks].token, BEGIN_BYTES, err);
	return rc == 0 ? flush(p, &end, err) : rc;
}

static int finish_file(struct preparing *p, struct tr_error *err)
{
	int rc = fsync(p->fd) < 0 ? failed(p->part, err) : 0;

	if (close(p->fd) < 0 && rc == 0)
		rc = failed(p->part, err);
	p->fd = -1;
	if (rc == 0 && rename(p->part, p->o->out) < 0)
		rc = failed(p->o->out, err);
	return rc;
}

static int prepare(struct preparing *p, const char *log, struct tr_prepared *result,
		   struct tr_error *err)
{
	int rc = list_chunks(p, err);

	if (rc == 0)
		rc = check_names(p, log, err);
	if (rc == 0)
		rc = tr_preplog_open(&p->log, log, p->work, p->chunk, p->chunks, err);
	if (rc == 0)
		rc = run_threads(p, 0, err);
	if (rc < 0)
		return rc;
	p->place = calloc((size_t)p->chunks + 1, sizeof(*p->place));
	if (!p->place)
		return tr_fail(err, TR_ENOMEM, "no memory for the places of %" PRId64 " chunks",
			       p->chunks);
	find_places(p);
	rc = make_file(p, err);
	*result = (struct tr_prepared){ p->place[p->chunks].token, p->place[p->chunks].document,
					p->chunks, 0 };
	for (int64_t i = 0; i < p->chunks; i++)
		result->kept += p->chunk[i].written;
	if (rc == 0)
		rc = run_threads(p, 1, err);
	if (rc == 0)
		rc = check_inputs(p, err);
	return rc == 0 ? finish_file(p, err) : rc;
}

int tr_prepare_bytes(const struct tr_prepare *o, struct tr_prepared *result, struct tr_error *err)
{
	struct preparing p = { .o = o, .fd = -1, .log = { .fd = -1 } };
	size_t n = strlen(o->out) + 12;
	char *log = malloc(n);
	int rc, gone;

	p.part = malloc(n);
	if (!log || !p.part) {
		free(log);
		free(p.part);
		return tr_fail(err, TR_ENOMEM, "no memory for names");
	}
	snprintf(p.part, n, "%s.part", o->out);
	snprintf(log, n, "%s.part-log", o->out);
	pthread_mutex_init(&p.lock, NULL);
	rc = prepare(&p, log, result, err);
	pthread_mutex_destroy(&p.lock);
	gone = rc != TR_EIO || tr_preplog_is_empty(&p.log);
	if (p.fd >= 0)
		close(p.fd);
	/* Without a log the process has not locked the file, which may be another one's. */
	if (rc < 0 && gone && p.log.fd >= 0)
		unlink(p.part);
	tr_preplog_close(&p.log, gone);
	free(p.chunk);
	free(p.place);
	free(p.part);
	free(log);
	return rc;
}
