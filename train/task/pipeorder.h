/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a stage of a pipeline works. A model is cut into stages * chunks parts. Stage
 * s has `chunks` of them: part s of the model, part s + stages, and so on. A step has
 * micro-batches, each of which goes forward through all parts, and then back. */
#ifndef PIPEORDER_H
#define PIPEORDER_H
#include <stdint.h>

enum tr_order {
	/* One forward pass, one backward pass, so that few micro-batches are in work at once. */
	TR_ORDER_1F1B,
	/* First all forward passes, and then all backward passes. */
	TR_ORDER_AFAB,
	/* As 1F1B, but with several parts in each stage, between which the stages take turns. A
	 * stage waits for less time at the beginning and the end of a step. */
	TR_ORDER_INTERLEAVED,
	/* Only forward passes. */
	TR_ORDER_FORWARD
};
struct tr_pipe {
	enum tr_order order;
	int stages, stage, chunks;
	int64_t micros;                 /* micro-batches */
};
struct tr_work {
	int backward;                   /* 0: forward */
	int part;                       /* of this stage: 0 to chunks - 1 */
	int64_t micro;
};
/* Returns the length of the list. */
int64_t tr_work_count(const struct tr_pipe *p);
/* Lists the work of a stage. Each part takes the micro-batches in ascending order, both forward and
 * backward. If each stage works in this order, and sends what it has computed without waiting until
 * it is received, every input arrives. */
void tr_work_list(const struct tr_pipe *p, struct tr_work *list);
/* Returns the largest number of micro-batches whose activations a part keeps at once, which is 1 at
 * least. The activations of micro-batch m then have place m modulo this number. */
int tr_work_slots(const struct tr_work *list, int64_t n, int part);
#endif
