/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a file whose data is as long as the input's last byte says, times eight. What is
 * taken tiles, and is taken again when it is written anew. */
#include "dtype.h"
#include "fuzz.h"
#include "json.h"
#include "safetensors.h"
#include "valid.h"

static void check_tensor(const struct shf_st_tensor *t, uint64_t payload)
{
	size_t n = strlen(t->name);

	/* Whatever stood there is text that can be shown. */
	MUST(n == 0 || n > SHF_NAME_MAX || shf_name_is_valid(t->name, n));
	MUST(shf_utf8_is_valid(t->name, n));
	MUST(shf_dtype(t->dtype));
	MUST(t->ndim >= 0);
	MUST(t->off <= payload && t->bytes <= payload - t->off);
	for (int d = 0; d < SHEAF_DIMS_MAX; d++)
		MUST(t->shape[d] >= 0);
}

/* Empty ones first among equals, as the writer wants them. */
static int by_place(const void *a, const void *b)
{
	const struct shf_st_tensor *x = a, *y = b;

	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	if (!x->bytes != !y->bytes)
		return x->bytes ? 1 : -1;
	return strcmp(x->name, y->name);
}

static void check_again(const struct shf_st *st)
{
	struct shf_buf b = SHF_BUF_INIT;
	struct shf_arena arena = { 0 };
	struct sheaf_error err;
	struct shf_st back;

	for (size_t i = 0; i < st->n; i++)
		if (st->tensors[i].ndim > SHEAF_DIMS_MAX ||
		    !shf_name_is_valid(st->tensors[i].name, strlen(st->tensors[i].name)))
			return;
	qsort(st->tensors, st->n, sizeof(*st->tensors), by_place);
	MUST(shf_st_write(&b, st->tensors, st->n, &err) == 0);
	MUST(shf_st_parse(&back, &arena, b.data, b.len, b.len + st->payload_bytes, "again",
			  &err) == 0);
	MUST(back.n == st->n && back.payload_bytes == st->payload_bytes);
	qsort(back.tensors, back.n, sizeof(*back.tensors), by_place);
	for (size_t i = 0; i < st->n; i++)
		MUST(!strcmp(back.tensors[i].name, st->tensors[i].name) &&
		     back.tensors[i].off == st->tensors[i].off &&
		     back.tensors[i].dtype == st->tensors[i].dtype);
	shf_arena_release(&arena);
	shf_buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t payload = size ? data[size - 1] * UINT64_C(8) : 0, sum = 0;
	struct shf_arena arena = { 0 };
	struct shf_st st = { 0 };
	struct sheaf_error err;
	uint8_t *bytes;
	int rc;

	if (size < 1)
		return 0;
	size--;
	bytes = malloc(8 + size);       /* the length is made right: that check has its own test */
	MUST(bytes);
	shf_put64(bytes, size);
	memcpy(bytes + 8, data, size);
	rc = shf_st_parse(&st, &arena, bytes, 8 + size, 8 + size + payload, "input", &err);
	MUST(rc == 0 || (rc == SHEAF_EFORMAT && !strncmp(err.msg, "input: ", 7)));
	for (size_t i = 0; i < st.n; i++) {
		check_tensor(&st.tensors[i], payload);
		sum += st.tensors[i].bytes;
	}
	MUST(rc < 0 || sum == payload);
	if (rc == 0)
		check_again(&st);
	shf_arena_release(&arena);
	free(bytes);
	return 0;
}
