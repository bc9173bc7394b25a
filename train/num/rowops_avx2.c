/* SPDX-License-Identifier: Apache-2.0 */
#define ISA avx2
#include "rowops_body.h"
