/* SPDX-License-Identifier: Apache-2.0 */
/* What the shared library shows: the functions of sheaf.h and nothing else. */
#ifndef SHF_EXPORT_H
#define SHF_EXPORT_H

#define SHEAF_API __attribute__((visibility("default")))

#endif
