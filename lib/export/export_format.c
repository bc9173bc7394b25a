/* SPDX-License-Identifier: Apache-2.0 */
#include "export_format.h"
#include <string.h>

static const struct shf_export_format *const export_formats[] = { &shf_export_safetensors,
	&shf_export_torch, &shf_export_dcp, &shf_export_npz, &shf_export_paddle_save,
	&shf_export_paddle_unified, &shf_export_paddle_flex, &shf_export_paddle_sharding,
	&shf_export_universal, &shf_export_gguf, &shf_export_megatron };

const struct shf_export_format *shf_export_format(const char *name)
{
	for (size_t i = 0; i < sizeof(export_formats) / sizeof(export_formats[0]); i++)
		if (strcmp(export_formats[i]->name, name) == 0)
			return export_formats[i];
	return NULL;
}

void shf_export_formats_list(struct shf_buf *out)
{
	for (size_t i = 0; i < sizeof(export_formats) / sizeof(export_formats[0]); i++)
		shf_buf_addf(out, "%s%s", i ? ", " : "", export_formats[i]->name);
}
