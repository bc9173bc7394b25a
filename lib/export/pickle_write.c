/* SPDX-License-Identifier: Apache-2.0 */
/* Source: Lib/pickletools.py of Python 3.14. */
#include "pickle_write.h"
#include <string.h>

#define KNOWN_MAX (sizeof(((struct shf_pkw *)0)->known) / (2 * sizeof(char *)))

void shf_pkw_op(struct shf_pkw *w, char opcode)
{
	shf_buf_u8(&w->out, (uint8_t)opcode);
}

void shf_pkw_begin(struct shf_pkw *w, uint8_t protocol)
{
	*w = (struct shf_pkw){ 0 };
	shf_pkw_op(w, '\x80');          /* PROTO */
	shf_buf_u8(&w->out, protocol);
}

void shf_pkw_end(struct shf_pkw *w)
{
	shf_pkw_op(w, '.');
}

void shf_pkw_release(struct shf_pkw *w)
{
	shf_buf_release(&w->out);
}

void shf_pkw_int(struct shf_pkw *w, uint64_t v)
{
	if (v <= UINT8_MAX) {
		shf_pkw_op(w, 'K');
		shf_buf_u8(&w->out, (uint8_t)v);
	} else if (v <= UINT16_MAX) {
		shf_pkw_op(w, 'M');
		shf_buf_u16(&w->out, (uint16_t)v);
	} else if (v <= INT32_MAX) {
		shf_pkw_op(w, 'J');
		shf_buf_u32(&w->out, (uint32_t)v);
	} else {
		shf_buf_add(&w->out, "\x8a\x08", 2);    /* LONG1 of 8 bytes */
		shf_buf_u64(&w->out, v);
	}
}

void shf_pkw_float(struct shf_pkw *w, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof(bits));
	shf_pkw_op(w, 'G');             /* BINFLOAT: 8 bytes, the highest one first */
	for (int i = 56; i >= 0; i -= 8)
		shf_buf_u8(&w->out, (uint8_t)(bits >> i));
}

void shf_pkw_next_item(struct shf_pkw *w, size_t i)
{
	if (i && i % 1000 == 0)
		shf_pkw_op(w, SHF_PKW_SETITEMS);
	if (i % 1000 == 0)
		shf_pkw_op(w, SHF_PKW_MARK);
}

void shf_pkw_text(struct shf_pkw *w, const char *text, size_t n)
{
	shf_pkw_op(w, 'X');
	shf_buf_u32(&w->out, (uint32_t)n);
	shf_buf_add(&w->out, text, n);
}

bool shf_pkw_recall(struct shf_pkw *w, const char *module, const char *name)
{
	for (uint32_t i = 0; i < w->memo; i++)
		if (!module == !w->known[i].module && strcmp(w->known[i].name, name) == 0 &&
		    (!module || strcmp(w->known[i].module, module) == 0)) {
			shf_pkw_op(w, 'h');
			shf_buf_u8(&w->out, (uint8_t)i);
			return true;
		}
	return false;
}

void shf_pkw_keep(struct shf_pkw *w, const char *module, const char *name)
{
	if (w->memo == KNOWN_MAX)
		return;
	shf_pkw_op(w, 'q');
	shf_buf_u8(&w->out, (uint8_t)w->memo);
	w->known[w->memo].module = module;
	w->known[w->memo++].name = name;
}

void shf_pkw_known_text(struct shf_pkw *w, const char *text)
{
	if (shf_pkw_recall(w, NULL, text))
		return;
	shf_pkw_text(w, text, strlen(text));
	shf_pkw_keep(w, NULL, text);
}

void shf_pkw_global(struct shf_pkw *w, const char *module, const char *name)
{
	if (shf_pkw_recall(w, module, name))
		return;
	shf_pkw_op(w, 'c');
	shf_buf_adds(&w->out, module);
	shf_buf_adds(&w->out, "\n");
	shf_buf_adds(&w->out, name);
	shf_buf_adds(&w->out, "\n");
	shf_pkw_keep(w, module, name);
}

void shf_pkw_object_begin(struct shf_pkw *w, const char *module, const char *name)
{
	shf_pkw_global(w, module, name);
	shf_pkw_op(w, SHF_PKW_EMPTY_TUPLE);
	shf_pkw_op(w, SHF_PKW_NEWOBJ);
	shf_pkw_op(w, SHF_PKW_EMPTY_DICT);
	shf_pkw_op(w, SHF_PKW_MARK);
}

void shf_pkw_object_end(struct shf_pkw *w)
{
	shf_pkw_op(w, SHF_PKW_SETITEMS);
	shf_pkw_op(w, SHF_PKW_BUILD);
}

void shf_pkw_ints(struct shf_pkw *w, const int64_t *v, int n)
{
	if (n == 0) {
		shf_pkw_op(w, SHF_PKW_EMPTY_TUPLE);
		return;
	}
	shf_pkw_op(w, SHF_PKW_MARK);
	for (int i = 0; i < n; i++)
		shf_pkw_int(w, (uint64_t)v[i]);
	shf_pkw_op(w, SHF_PKW_TUPLE);
}
