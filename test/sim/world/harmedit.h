/* SPDX-License-Identifier: Apache-2.0 */
/* Changes each value of a manifest. Parses the text itself; its strings have no escapes. */
#ifndef HARMEDIT_H
#define HARMEDIT_H
#include <stdbool.h>
#include <stddef.h>

enum { HARM_VALUES = 400 };
struct harm_value {
	size_t member, at, end;         /* member: begin of its key, or of the value if it has no
					 * key; the value is [at, end) */
	char path[160];                 /* for example files[0].crc */
};
struct harm_values {
	struct harm_value v[HARM_VALUES];
	int n;
};
void harm_values(struct harm_values *out, const char *text, size_t n);
enum harm_edit {
	HARM_OTHER,                     /* changes a string's last character, adds 1 to a number */
	HARM_EMPTY,                     /* replaces by "", 0, [] or {} */
	HARM_KIND,                      /* replaces by null, and null by 7 */
	HARM_GONE,                      /* removes the member or item with its comma */
	HARM_EDITS
};
/* Returns the changed text of *n bytes, from malloc, or NULL if the edit changes nothing. prove:
 * `self` is recomputed. */
char *harm_edit(const char *text, size_t *n, const struct harm_value *v, enum harm_edit edit,
                bool prove);
#endif
