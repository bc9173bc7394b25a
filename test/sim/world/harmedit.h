/* SPDX-License-Identifier: Apache-2.0 */
/* Every value of a manifest, changed: by a reading of our own of the text, whose strings have no
 * escapes. */
#ifndef HARMEDIT_H
#define HARMEDIT_H
#include <stdbool.h>
#include <stddef.h>

enum { HARM_VALUES = 400 };
struct harm_value {
	size_t member, at, end;         /* from its key, or where it has none itself; [at, end) */
	char path[160];                 /* as files[0].crc */
};
struct harm_values {
	struct harm_value v[HARM_VALUES];
	int n;
};
void harm_values(struct harm_values *out, const char *text, size_t n);
enum harm_edit {
	HARM_OTHER,                     /* a string's last character, a number plus 1 */
	HARM_EMPTY,                     /* "", 0, [], {} */
	HARM_KIND,                      /* null, or what was null becomes 7 */
	HARM_GONE,                      /* the member or item with its comma */
	HARM_EDITS
};
/* malloc'ed text of *n bytes; NULL where that edit changes nothing. prove: `self` is made right. */
char *harm_edit(const char *text, size_t *n, const struct harm_value *v, enum harm_edit edit,
                bool prove);
#endif
