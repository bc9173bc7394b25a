# SPDX-License-Identifier: Apache-2.0
"""Seeds of fuzz_deepspeed: saves of DeepSpeed, sound and almost sound."""
import struct


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def number(v):
    return b"\x8a\x08" + struct.pack("<q", v) if abs(v) > 255 or v < 0 else b"K" + bytes([v])


def row(numbers):
    return b"(" + b"".join(map(number, numbers)) + b"t"


def tensor(dims=(4,), key="0", kind="Float", stride=None, items=None, at=0):
    n, steps = 1, []
    for d in reversed(dims):
        steps.insert(0, n)
        n *= d
    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\n" +
            kind.encode() + b"Storage\n" + text(key) + text("cpu") +
            number(n if items is None else items) + b"tQ" + number(at) + row(dims) +
            row(stride or steps) + b"\x89NtR")


def pairs(*of):
    return b"}(" + b"".join((text(k) if isinstance(k, str) else number(k)) + v
                            for k, v in of) + b"u"


def several(*of):
    return b"](" + b"".join(of) + b"e"


def saved(*of):
    return b"\x80\x02" + pairs(*of) + b"."


def shapes(*groups):
    return ("param_shapes", several(*(pairs(*((k, row(v)) for k, v in g)) for g in groups)))


def model(*more, module=("w", tensor((2, 3), kind="BFloat16"))):
    return saved(("module", pairs(module)), *more, ("global_steps", number(5)),
                 ("ds_version", text("0.19.8")))


W = ("w", (2, 3))
MODELS = [
    model(shapes([W])), model(shapes([W], [])), model(shapes([W, ("v", (2,))])),
    model(shapes([W, W])), model(shapes([("w", (3, 2))])), model(shapes([("w", (-2, 3))])),
    model(shapes([("w", (2**62, 8))])), model(shapes([("w", ())])), model(shapes([("w", (0, 3))])),
    model(("param_shapes", pairs(("w", row((2, 3)))))), model(("param_shapes", text("w"))), model(),
    model(shapes([W]), ("shared_params", pairs(("t", text("w")), ("u", text("t"))))),
    model(shapes([W]), module=("w", tensor((2, 3)))), model(shapes([W]), module=("w", number(1))),
    model(shapes([("w", (1,) * 9)])), text("no dictionary") + b".",
    model(shapes([W]), ("lr_scheduler", pairs(("a", tensor()), ("b", several(number(1)))))),
]


def optimizer(stage=1, flat=None, state=None, counts=None, *more, groups=1, step=number(5)):
    n = 4 if stage == 1 else 3
    flat = tensor((n,), "1") if flat is None else flat
    state = [("exp_avg", tensor((n,)))] if state is None else state
    counts = (several(number(2)) if stage == 1 else number(2)) if counts is None else counts
    base, groups_key = (("base_optimizer_state", "single_partition_of_fp32_groups") if stage == 1
                        else ("optimizer_state_dict", "fp32_flat_groups"))
    return saved(("optimizer_state_dict", pairs(
        (base, pairs(("state", pairs(*((g, pairs(("step", step), *state)) for g in range(groups)))),
                     ("param_groups", several(pairs(("lr", b"G" + struct.pack(">d", 0.1))))))),
        (groups_key, several(*[flat] * groups)), ("partition_count", counts), *more)),
        ("ds_version", text("0.19.8")))


def mapped(start, items):
    return ("param_slice_mappings", several(pairs(("w", (
        b"cdeepspeed.utils.tensor_fragment\nfragment_address\n)\x81" +
        pairs(("numel", number(items)), ("start", number(start))) + b"b")))))


ENUM = ("zero_stage", b"c__builtin__\ngetattr\ncdeepspeed.runtime.zero.config\nZeroStageEnum\n" +
        text("gradients") + b"\x86R")
OPTIMIZERS = [
    optimizer(), optimizer(1, None, None, None, mapped(0, 4), ENUM),
    optimizer(1, None, None, None, mapped(1, 3)), optimizer(1, None, None, number(2)),
    optimizer(1, None, None, several(number(3))), optimizer(1, None, None, several(number(1))),
    optimizer(1, tensor((3,), "1")), optimizer(1, tensor((5,), "1")),
    optimizer(1, tensor((2, 2), "1")), optimizer(1, tensor((4,), "1", stride=(2,), items=7)),
    optimizer(1, tensor((4,), "1", at=61)), optimizer(1, tensor((2**61,), "1", items=2**61)),
    optimizer(1, tensor((4,), "1", "Double")), optimizer(1, None, [("exp_avg", tensor((9,)))]),
    optimizer(1, None, [("exp_avg", tensor((1,)))]), optimizer(1, None, [("a/b", tensor())]),
    optimizer(1, None, [("x%d" % i, tensor()) for i in range(20)]), optimizer(groups=3),
    optimizer(step=tensor((), "0")), optimizer(step=tensor((1,), "0")), optimizer(step=text("x")),
    optimizer(1, None, None, None, ("param_alignment_paddings", several(several(number(2))))),
    optimizer(1, None, None, None, ("param_alignment_paddings", several(several(number(-2))))),
    saved(("optimizer_state_dict", pairs(("single_partition_of_fp32_groups", several(tensor((4,)))),
                                         ("base_optimizer_state", several(pairs(
                                             ("exp_avg", tensor((4,))))))))),
    saved(("optimizer_state_dict", number(1))),
]
FROZEN = [("frozen_param_shapes", pairs(("f", row((4,))))),
          ("frozen_param_fragments", pairs(("f", tensor((2,), "1"))))]
EMPTY = ("w", tensor((0,), kind="BFloat16"))
MODELS_3 = [
    model(shapes([W]), *FROZEN, module=EMPTY), model(shapes([W]), FROZEN[1], module=EMPTY),
    model(shapes([W]), FROZEN[0], module=EMPTY), model(shapes([("w", (4, 3))]), module=EMPTY),
    model(shapes([("w", (5,))]), *FROZEN, module=EMPTY), model(*FROZEN, module=EMPTY),
    model(shapes([W]), ("frozen_param_shapes", pairs(("f", row((5,))))), FROZEN[1], module=EMPTY),
    model(shapes([W]), *FROZEN, ("shared_params", pairs(("t", text("w")), ("g", text("f")))),
          module=EMPTY), model(shapes([("w", (0,)), W]), module=EMPTY),
]
OPTIMIZERS_3 = [
    optimizer(3), optimizer(3, tensor((2,), "1")), optimizer(3, tensor((4,), "1")),
    optimizer(3, None, [("exp_avg", tensor((2,)))]), optimizer(3, groups=2),
    optimizer(3, tensor((3,), "1", "Half")), optimizer(3, None, None, number(9)),
    optimizer(3, None, None, None, ENUM),
]
WHOLE = [
    b"\x80\x02" + x + b"." for x in (
        tensor((6,)), tensor((2, 3)), pairs(("param", tensor((2, 3)))),
        pairs(("cat_dim", b"K\x00")),
        tensor((5,)), tensor((3, 2)), pairs(("param", tensor((6,), kind="Long"))), number(1),
        several(tensor((6,))))]
LATEST = [b"global_step5", b"global_step5\n", b"global_step6", b"..", b"", b"a/b", b"\0",
          b"x" * 300]
LAYERS = [saved(("w", tensor((2, 3), kind="BFloat16"))), saved(("w", tensor((2, 3)))), saved(),
          saved(("v", tensor((2, 3)))), saved(("w", number(1))), tensor() + b"."]


def expert(n=2, counts=(2, 1), dims=(2,)):
    flat = [tensor((2,), "1"), tensor(dims, "1")][:n]
    return saved(("optimizer_state_dict", pairs(
        ("base_optimizer_state", pairs(("state", pairs((1, pairs(("exp_avg", tensor(dims))))))),),
        ("single_partition_of_fp32_groups", several(*flat)),
        ("partition_count", several(*map(number, counts))))))


EXPERTS = [expert(), expert(1), expert(counts=(2, 2)), expert(counts=(1, 1)), expert(dims=(3,)),
           expert(counts=(2, 0)), expert(counts=(2, 3)), expert(counts=(2, -1))]


def numbers(*of):
    return several(*map(number, of))


def cut(whole=(12,), shard=(6,), starts=(0, 6), name="^w$", strides=(1,), pieces=1):
    def memory(at):
        return several(number(at), numbers(*strides))
    ranks = [(mp, pairs(("shard_shape", numbers(*shard)), ("pieces", several(*[pairs(
        ("shape", numbers(*shard)), ("dest", memory(0)), ("source", memory(at)))] * pieces))))
             for mp, at in enumerate(starts)]
    return model(("universal_checkpoint_info", pairs(("affine_map", pairs(("params", pairs(
        (name, pairs(("logical_shape", numbers(*whole)), ("ranks", pairs(*ranks)))))))))),
                 module=("w", tensor((6,), kind="BFloat16")))


CUTS = [cut(), cut((6,), starts=(0, 0)), cut((13,)), cut(starts=(0, 5)), cut(starts=(0, 2**40)),
        cut((11,)), cut(shard=(5,)), cut(name=r"^\w$"), cut(name="^w.$"), cut(strides=(2,)),
        cut(pieces=2), cut((2**31, 2**31), (6, 1), strides=(1, 1)), cut((0,)), cut(starts=(0,))]
DEEPSPEED = [bytes([kind]) + x for kind, inputs in enumerate((
    MODELS, OPTIMIZERS, MODELS_3, OPTIMIZERS_3, WHOLE, LATEST, LAYERS, EXPERTS,
    CUTS)) for x in inputs]
