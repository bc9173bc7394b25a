/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared by the ranks of a node. */
#ifndef SHF_SHM_H
#define SHF_SHM_H
#include "sys_shm.h"

extern const struct shf_shm_ops shf_real_shm;
#endif
