/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of DeepSpeed on two ranks. The first byte, modulo 9, says what the rest of the input
 * is; all other files are sound:
 * 0: the pickle of the file of the model, of ZeRO 1;
 * 1: that of the optimizer of rank 0;
 * 2: the pickle of the file of the model of rank 0, of ZeRO 3;
 * 3: that of the optimizer of rank 0;
 * 4: zero/w/fp32.pt of a universal checkpoint;
 * 5: the file latest;
 * 6: the pickle of the file of a layer of a pipeline;
 * 7: that of the optimizer of rank 0, of which rank 1 has another expert;
 * 8: that of the model of the first of two ranks of tensor parallelism.
 * An input that is accepted can be listed and read to its end. */
#include "foreign_check.h"
#include "fuzz.h"

#define DIR_PATH "d"

static struct ramdisk disk;
struct pickle { const void *bytes; size_t n; };
#define PICKLE(text) { text, sizeof(text) - 1 }

/* A text, and a flat tensor of n items in its own storage. */
#define TEXT(n, s) "X" n "\0\0\0" s
#define FLAT(type, key, n) "ctorch._utils\n_rebuild_tensor_v2\n((" TEXT("\7", "storage") \
	"ctorch\n" type "Storage\n" TEXT("\1", key) TEXT("\3", "cpu") "K" n "tQK\0K" n \
	"\x85K\1\x85\x89NtR"

/* "w" has 2 x 3 items. The parts of ranks have 4 items, or 3 of ZeRO 3. */
#define SHAPES TEXT("\x0c", "param_shapes") "]}" TEXT("\1", "w") "K\2K\3\x86sa"
static const struct pickle model_1 = PICKLE("\x80\2}(" TEXT("\6", "module") "}" TEXT("\1", "w")
	FLAT("BFloat16", "0", "\6") "s" SHAPES TEXT("\x0c", "global_steps") "K\5u.");
static const struct pickle model_tp = PICKLE("\x80\2}" TEXT("\6", "module") "}" TEXT("\1", "w")
	FLAT("BFloat16", "0", "\6") "ss.");
static const struct pickle model_3 = PICKLE("\x80\2}(" TEXT("\6", "module") "}" TEXT("\1", "w")
	FLAT("BFloat16", "0", "\0") "s" SHAPES TEXT("\x0d", "shared_params") "}" TEXT("\1", "t")
	TEXT("\1", "w") "s" TEXT("\x13", "frozen_param_shapes") "}" TEXT("\1", "f") "K\4\x85s"
	TEXT("\x16", "frozen_param_fragments") "}" TEXT("\1", "f") FLAT("Float", "1", "\2") "su.");
#define SHAPES_2 TEXT("\x0c", "param_shapes") "](}" TEXT("\1", "w") "K\2K\2\x86s}" \
	TEXT("\x17", "m.deepspeed_experts.0.w") "K\2\x85se"
#define OPTIMIZER(base, list, n, m, count) \
	"\x80\2}" TEXT("\x14", "optimizer_state_dict") "}(" base "}" TEXT("\5", "state") \
	"}K\0}(" TEXT("\4", "step") "K\5" TEXT("\7", "exp_avg") FLAT("Float", "0", n) "uss" \
	list "]" FLAT("Float", "1", m) "a" TEXT("\x0f", "partition_count") count "us."
#define BASE_1 TEXT("\x14", "base_optimizer_state")
#define LIST_1 TEXT("\x1f", "single_partition_of_fp32_groups")
#define BASE_3 TEXT("\x14", "optimizer_state_dict")
#define LIST_3 TEXT("\x10", "fp32_flat_groups")
static const struct pickle rank_0 = PICKLE(OPTIMIZER(BASE_1, LIST_1, "\4", "\4", "]K\2a"));
static const struct pickle rank_1 = PICKLE(OPTIMIZER(BASE_1, LIST_1, "\4", "\2", "]K\2a"));
static const struct pickle rank_3 = PICKLE(OPTIMIZER(BASE_3, LIST_3, "\3", "\3", "K\2"));
/* Of a layer "0", whose weight is "w"; and of one expert on each rank. */
static const struct pickle model_layer = PICKLE("\x80\2}(" TEXT("\6", "module") "N"
	TEXT("\x0c", "param_shapes") "]}" TEXT("\3", "0.w") "K\2K\3\x86sau.");
static const struct pickle model_expert = PICKLE("\x80\2}(" TEXT("\6", "module") "}" SHAPES_2
	TEXT("\x0b", "num_experts") "]K\2au.");
static const struct pickle rank_expert = PICKLE("\x80\2}" TEXT("\x14", "optimizer_state_dict")
	"}(" BASE_1 "}" TEXT("\5", "state") "}K\1}(" TEXT("\7", "exp_avg")
	FLAT("Float", "0", "\2") "uss" LIST_1 "](" FLAT("Float", "1", "\2")
	FLAT("Float", "1", "\2") "e" TEXT("\x0f", "partition_count") "](K\2K\1eus.");
static const struct pickle whole = PICKLE("\x80\2" FLAT("Float", "0", "\6") ".");

/* The disk owns the bytes of its files. */
static void put(struct ram_node *dir, const char *name, const struct pickle *p)
{
	static const uint8_t data[256] = { 7 };
	struct ram_record r[] = { { "a/data.pkl", p->bytes, p->n, 0 }, { "a/data/0", data, 64, 0 },
		{ "a/data/1", data, 256, 0 } };
	struct shf_buf file = SHF_BUF_INIT;

	put_archive(&file, r, 3);
	MUST(!file.oom);
	ram_put(&disk, dir, name, SHF_T_FILE, file.data, file.len);
}

static void zero_1(struct ram_node *dir, const struct pickle *model, const struct pickle *first)
{
	put(dir, "mp_rank_00_model_states.pt", model);
	put(dir, "zero_pp_rank_0_mp_rank_00_optim_states.pt", first);
	put(dir, "zero_pp_rank_1_mp_rank_00_optim_states.pt", &rank_1);
}

static void zero_3(struct ram_node *dir, const struct pickle *model, const struct pickle *first)
{
	put(dir, "zero_pp_rank_0_mp_rank_00_model_states.pt", model);
	put(dir, "zero_pp_rank_1_mp_rank_00_model_states.pt", &model_3);
	put(dir, "zero_pp_rank_0_mp_rank_00_optim_states.pt", first);
	put(dir, "zero_pp_rank_1_mp_rank_00_optim_states.pt", &rank_3);
}

static void universal(struct ram_node *dir, const struct pickle *weights)
{
	struct ram_node *zero = ram_put(&disk, dir, "zero", SHF_T_DIR, NULL, 0);
	struct ram_node *w = ram_put(&disk, zero, "w", SHF_T_DIR, NULL, 0);

	put(dir, "mp_rank_00_model_states.pt", &model_1);
	put(w, "fp32.pt", weights);
	put(w, "exp_avg.pt", &whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct pickle p = { data + 1, size - 1 };
	struct shf_buf latest = SHF_BUF_INIT;
	struct ram_node *dir;

	if (size < 2)
		return 0;
	ramdisk_init(&disk);
	dir = ram_put(&disk, NULL, DIR_PATH, SHF_T_DIR, NULL, 0);
	switch (data[0] % 9) {
	case 0: zero_1(dir, &p, &rank_0); break;
	case 1: zero_1(dir, &model_1, &p); break;
	case 2: zero_3(dir, &p, &rank_3); break;
	case 3: zero_3(dir, &model_3, &p); break;
	case 4: universal(dir, &p); break;
	case 6:
		zero_1(dir, &model_layer, &rank_0);
		put(dir, "layer_00-model_states.pt", &p);
		break;
	case 7:
		put(dir, "mp_rank_00_model_states.pt", &model_expert);
		put(dir, "zero_pp_rank_0_mp_rank_00_optim_states.pt", &p);
		put(dir, "zero_pp_rank_1_mp_rank_00_optim_states.pt", &rank_expert);
		break;
	case 8:
		put(dir, "mp_rank_00_model_states.pt", &p);
		put(dir, "mp_rank_01_model_states.pt", &model_tp);
		break;
	default:
		shf_buf_add(&latest, p.bytes, p.n);
		MUST(!latest.oom);
		ram_put(&disk, dir, "latest", SHF_T_FILE, latest.data, latest.len);
		zero_1(ram_put(&disk, dir, "global_step5", SHF_T_DIR, NULL, 0), &model_1, &rank_0);
	}
	check_foreign(&disk, DIR_PATH);
	return 0;
}
