/* SPDX-License-Identifier: Apache-2.0 */
#include "have_table.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "run_files.h"

#define RANKS_MAX (1 << 24)     /* limit for numbers of ranks */

int32_t shf_have_put(struct shf_buf *text, const struct shf_buf *cards, const char *job)
{
	int32_t lowest = INT32_MAX;

	for (size_t at = 0; at < cards->len; at += sizeof(struct shf_card_info)) {
		struct shf_card_info c;

		memcpy(&c, cards->data + at, sizeof(c));
		/* The agent may also keep steps of other jobs. */
		if (strcmp(c.job, job))
			continue;
		lowest = c.rank < lowest ? c.rank : lowest;
		shf_buf_addf(text, "%s %" PRId64 " %d %d %" PRIx64 " %" PRIx64 " %" PRIx64 " %"
		             PRIu64 " %" PRIu64 " %" PRIu64 "\n", c.session, c.step, c.rank,
		             c.ranks, c.base, c.next, c.from, c.due, c.tries, c.bytes);
	}
	shf_line_sum(text, 0);
	return lowest;
}

/* Parses one line. Another process, perhaps of another version, wrote it, so every number is
 * bounded. */
static bool have_line(const char *line, struct shf_card_info *c)
{
	return sscanf(line, "%32[0-9a-f] %19" SCNd64 " %9d %9d %16" SCNx64 " %16" SCNx64
	              " %16" SCNx64 " %20" SCNu64 " %20" SCNu64 " %20" SCNu64, c->session,
	              &c->step, &c->rank, &c->ranks, &c->base, &c->next, &c->from, &c->due,
	              &c->tries, &c->bytes) == 10 &&
	       strlen(c->session) == 32 && c->step >= 0 && c->rank >= 0 && c->rank < c->ranks &&
	       c->ranks <= RANKS_MAX;
}

bool shf_have_get(struct shf_buf *cards, const char *job, const uint8_t *text, size_t n)
{
	const char *start = (const char *)text, *end = start + n, *p = start;
	size_t was = cards->len;

	while (p < end) {
		struct shf_card_info c = { .step = -1 };
		const char *at = p;
		char line[400];

		if (!shf_line_get(&p, end, "", line, sizeof(line)))
			break;
		if (strncmp(line, "sum ", 4) == 0 && shf_line_sum_is_right(start, at, end))
			return true;
		if (!have_line(line, &c))
			break;
		snprintf(c.job, sizeof(c.job), "%s", job);
		shf_buf_add(cards, &c, sizeof(c));
	}
	cards->len = was;
	return false;
}
