/* SPDX-License-Identifier: Apache-2.0 */
/* A group of ranks whose messages are delayed as a network would delay them, to measure on one
 * machine how much of the communication is hidden. The core stays free meanwhile. Each rank has one
 * link, over which its messages go one after the other: a message of n bytes arrives when the ones
 * before it were sent, the time of n bytes has passed, and then the latency. */
#ifndef LINK_H
#define LINK_H
#include "ranks.h"

/* Makes `g`, whose ranks are those of `under`, with such a link. Sub-groups of g use the same link.
 * The ranks must be on one machine, because a message carries the time at which it arrives.
 * gbps   10^9 bits each second; 0: a message takes no time to send
 * us     latency in microseconds
 * under  borrowed; use it again only after g was freed */
int tr_ranks_link(struct tr_ranks *g, const struct tr_ranks *under, double gbps, double us,
		  struct tr_error *err);
#endif
