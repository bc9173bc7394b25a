/* SPDX-License-Identifier: Apache-2.0 */
#include "numpyfile.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "packedfile.h"

struct torch_bytes npy_of(const char *header, struct torch_bytes items)
{
	struct torch_bytes out = { NULL, 0, 0 };
	size_t n = strlen(header), pad = 63 - (10 + n) % 64;

	torch_add(&out, "\x93NUMPY\1\0", 8);
	packed_number(&out, n + pad + 1, 2);
	torch_add(&out, header, n);
	for (size_t i = 0; i < pad; i++)
		torch_add(&out, " ", 1);
	torch_add(&out, "\n", 1);
	torch_add(&out, items.p, items.n);
	return out;
}

static const char *descr_of(int dtype)
{
	return dtype == SHEAF_F64 ? "<f8" : dtype == SHEAF_F16 ? "<f2" : dtype == SHEAF_I8 ? "|i1"
	     : "<f4";
}

struct torch_bytes npy_file(const struct torch_tensor *t, bool fortran)
{
	struct torch_tensor turned = *t;
	struct torch_bytes items, out;
	char text[400], *p = text;
	int64_t step = 1;

	p += sprintf(p, "{'descr': '%s', 'fortran_order': %s, 'shape': (", descr_of(t->dtype),
	             fortran ? "True" : "False");
	for (int d = 0; d < t->ndim; d++) {
		p += sprintf(p, "%" PRId64 "%s", t->shape[d],
		             t->ndim == 1 ? "," : d + 1 < t->ndim ? ", " : "");
		turned.stride[d] = fortran ? step : 0;
		step *= t->shape[d];
	}
	sprintf(p, "), }");
	items = torch_storage(&turned);
	out = npy_of(text, items);
	free(items.p);
	return out;
}

struct torch_bytes npz_file(const struct torch_tensor *t, int n, bool deflated)
{
	struct torch_record r[16] = { 0 };
	struct torch_bytes out;
	char names[16][64];

	for (int i = 0; i < n; i++) {
		snprintf(names[i], sizeof(names[i]), "%s.npy", t[i].name);
		r[i] = (struct torch_record){ .name = names[i], .data = npy_file(&t[i], i % 2) };
		if (deflated)
			r[i].packed = packed_deflate(r[i].data);
	}
	out = torch_zip(r, n);
	for (int i = 0; i < n; i++) {
		free(r[i].data.p);
		free(r[i].packed.p);
	}
	return out;
}
