/* SPDX-License-Identifier: Apache-2.0 */
#include "export_place.h"
#include "err.h"
#include "sort.h"

struct source {                 /* where a tensor of the plan lies in the step */
	uint64_t off;
	uint32_t family, file, tensor;
};

static int source_order(const void *a, const void *b)
{
	const struct source *x = a, *y = b;

	if (x->family != y->family)
		return x->family < y->family ? -1 : 1;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

void shf_export_count(struct shf_layout *l)
{
	for (size_t f = 0; f < l->families_n; f++) {
		l->families[f].tensors_n = 0;
		l->families[f].bytes = 0;
	}
	for (size_t i = 0; i < l->tensors_n; i++) {
		struct shf_lt_family *fam = &l->families[l->tensors[i].family];

		if (fam->tensors_n++ == 0)
			fam->first_tensor = (uint32_t)i;
		fam->bytes += l->tensors[i].bytes;
	}
}

uint32_t *shf_export_by_source(struct shf_export_plan *plan, const struct sheaf_checkpoint *step,
                               struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;
	struct source *list = shf_alloc(l->tensors_n, sizeof(*list));
	uint32_t *order = shf_arena_alloc(&l->arena, l->tensors_n, sizeof(*order));

	shf_export_count(l);
	for (size_t i = 0; list && order && i < l->tensors_n; i++) {
		const struct shf_lt_tensor *t = &step->layout.tensors[plan->from[i]];

		list[i] = (struct source){ t->off, l->tensors[i].family, t->file, (uint32_t)i };
	}
	if (list && order)
		shf_records_sort(list, l->tensors_n, sizeof(*list), source_order);
	for (size_t i = 0; list && order && i < l->tensors_n; i++)
		order[i] = list[i].tensor;
	if (!list || !order)
		shf_fail(err, SHEAF_ENOMEM, "no memory to place %zu tensors", l->tensors_n);
	order = list ? order : NULL;
	shf_free(list);
	return order;
}

size_t shf_export_divide(struct shf_export_plan *plan, const uint32_t *order, uint64_t most,
                         uint64_t more)
{
	struct shf_layout *l = &plan->out;
	size_t n = 0;

	for (size_t f = 0; f < l->families_n; f++) {
		struct shf_lt_family *fam = &l->families[f];
		uint64_t room = most;

		fam->first_file = (uint32_t)n++;
		for (uint32_t i = 0; i < fam->tensors_n; i++) {
			struct shf_lt_tensor *t = &l->tensors[order[fam->first_tensor + i]];
			uint64_t need = t->bytes + more;

			if (i && need > room) {
				room = most;
				n++;
			}
			t->file = (uint32_t)n - 1;
			room -= need < room ? need : room;
		}
		fam->files_n = (uint32_t)n - fam->first_file;
	}
	return n;
}

int shf_export_files_make(struct shf_export_plan *plan, size_t files_n, bool zip,
                          struct sheaf_error *err)
{
	struct shf_layout *l = &plan->out;

	l->files = shf_arena_alloc(&l->arena, files_n, sizeof(*l->files));
	plan->files = shf_zalloc(files_n, sizeof(*plan->files));
	plan->crc = zip ? shf_alloc(1, sizeof(*plan->crc)) : NULL;
	if (!l->files || !plan->files || (zip && !plan->crc))
		return shf_fail(err, SHEAF_ENOMEM, "no memory for %zu files", files_n);
	if (zip)
		shf_crc32_init(plan->crc);
	l->files_n = files_n;
	return 0;
}

int shf_export_file_end(struct shf_export_plan *plan, uint32_t f, const char *name, uint64_t bytes,
                        struct sheaf_error *err)
{
	plan->files[f].name = plan->out.files[f].name = name ? name : "";
	plan->files[f].bytes = plan->out.files[f].bytes = bytes;
	return !name || plan->files[f].header.oom || plan->files[f].holes.oom
	       ? shf_fail(err, SHEAF_ENOMEM, "no memory for the headers of file %s",
	                  plan->files[f].name) : 0;
}

const char *shf_export_index_end(const char *name, const struct shf_buf *out, int *rc,
                                 struct sheaf_error *err)
{
	if (*rc == 0 && (!name || out->oom))
		*rc = shf_fail(err, SHEAF_ENOMEM, "no memory for index %s", name ? name : "");
	return name ? name : "";
}

int shf_export_only_file_end(struct shf_export_plan *plan, uint64_t bytes, struct sheaf_error *err)
{
	int rc = shf_export_file_end(plan, 0, "archive", bytes, err);

	return rc == 0 ? shf_layout_number(&plan->out, err) : rc;
}
