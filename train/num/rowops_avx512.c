/* SPDX-License-Identifier: Apache-2.0 */
#define ISA avx512
#include "rowops_body.h"

#define TYPE f32
#include "itemops_body.h"
#undef TYPE
#define TYPE bf16
#define ITEMS_ARE_BF16
#include "itemops_body.h"
