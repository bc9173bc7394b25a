/* SPDX-License-Identifier: Apache-2.0 */
/* Marks a definition that leaves libsheaf.so. sheaf.h says the same of what it declares; here it
 * is said where one reads the function. */
#ifndef SHF_EXPORT_H
#define SHF_EXPORT_H
#define SHEAF_API __attribute__((visibility("default")))
#endif
