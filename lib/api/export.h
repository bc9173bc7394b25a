/* SPDX-License-Identifier: Apache-2.0 */
/* Marks a function that libsheaf.so exports. sheaf.h marks the declarations; this marks the
 * definitions for the reader. */
#ifndef SHF_EXPORT_H
#define SHF_EXPORT_H
#define SHEAF_API __attribute__((visibility("default")))
#endif
