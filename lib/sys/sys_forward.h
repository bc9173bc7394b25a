/* SPDX-License-Identifier: Apache-2.0 */
/* A machine over another one, which does all that is not done here: who makes one replaces in `ops`
 * what he does himself. */
#ifndef SHF_SYS_FORWARD_H
#define SHF_SYS_FORWARD_H
#include "sys.h"

struct shf_over {               /* first member of what makes it */
	struct shf_sys sys;
	struct shf_sys_ops ops;
	const struct shf_sys *in;       /* borrowed */
};
void shf_over_init(struct shf_over *over, const struct shf_sys *in);
#endif
