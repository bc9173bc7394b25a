/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the latest step, in memory and on disk. */
#include "latest_search.h"
#include <string.h>

void shf_latest_search_pass(struct shf_latest_search *s, const char *name, const char *why)
{
	shf_buf_add(&s->passed, name, strlen(name) + 1);
	shf_buf_add(&s->passed, why, strlen(why) + 1);
}
