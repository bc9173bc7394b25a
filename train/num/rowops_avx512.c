/* SPDX-License-Identifier: Apache-2.0 */
#define ISA avx512
#include "rowops_body.h"
