/* SPDX-License-Identifier: Apache-2.0 */
/* What signals ask of a job. The command installs the handlers, since a process has only one of
 * each; a job reads what they leave here. */
#ifndef TRAINSIGNALS_H
#define TRAINSIGNALS_H
#include <stdatomic.h>
#include <stdint.h>

/* A handler may set the first two at any time. The caller has zeroed all. */
struct tr_signals {
	_Atomic int save;               /* 1: save, and go on; cleared when a save begins */
	_Atomic int64_t stop_ns;        /* when it was asked to save and stop, of tr_clock_ns; 0: it
	                                 * was not */
	_Atomic int ended;              /* 1: the job has ended well, and is saved */
};
#endif
