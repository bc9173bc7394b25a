/* SPDX-License-Identifier: Apache-2.0 */
#define ISA portable
#include "rowops_body.h"
