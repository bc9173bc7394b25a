/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a token file from text and JSONL, with a token for each byte. The bytes of the file do not
 * depend on the number of threads, nor on whether the program was killed meanwhile. */
#ifndef DATAPREP_H
#define DATAPREP_H
#include <stdint.h>

#include "tr_error.h"

#define TR_BYTE_END 256                 /* the token that ends each document */

struct tr_prepare {
	/* Files. Each line of a file *.jsonl or *.ndjson is a document: an object with `text`, or
	 * with `prompt` and `response`, of which the prompt is masked. Any other file is one. */
	const char *const *in;
	int n;
	const char *out;
	int jobs;                       /* threads */
	int64_t chunk;                  /* bytes of input that a thread takes at once; 0: 8 MiB */
	int64_t line_max;               /* bytes that a line of JSONL has at most; 0: 256 MiB */
};
struct tr_prepared {
	int64_t tokens, documents;
	int64_t chunks, kept;           /* kept: those that an earlier call had written */
};

/* Writes the token file p->out. It appears whole, or not at all. If a call like this one was killed
 * and the inputs have not changed since, this one continues it: until then there are files
 * OUT.part and OUT.part-log. They remain, too, after EIO: the disk is full, or has failed.
 * EINVAL: an input cannot be used, or OUT or one of these two files is an input or another
 *         program's. Of lines of JSONL that cannot be used the message names the first. */
int tr_prepare_bytes(const struct tr_prepare *p, struct tr_prepared *result, struct tr_error *err);
#endif
