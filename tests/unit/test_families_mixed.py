"""Families whose layers differ (qwen35, qwen35moe, gemma4): what metadata and tensors mean, and what is refused by name."""

import numpy as np
import pytest

from fucina.cache import Kv, Recurrent
from fucina.errors import GgufError, ModelError
from fucina.gguf import GgmlType, GgufFile, write_gguf
from fucina.models import read_family
from tests.models import TINY
from tests.unit.test_families import BAD_FLOATS, COUNTS, HUGE, YARN, logits

ARCHITECTURE = {"qwen35": "qwen35", "qwen35moe": "qwen35moe"}  # of a file; else gemma4
GEMMA4 = ("gemma4", "gemma4_kvshare", "gemma4_moe")
TOKENS = np.arange(5, 29)


def changed(folder, name, keys=None, drop=(), add=None):
    """A copy of a tiny model with other metadata or tensors, opened."""
    file, architecture = GgufFile(TINY / f"{name}.gguf"), ARCHITECTURE.get(name, "gemma4")
    values = {key: file.metadata.entry(key) for key in file.metadata}
    values |= {f"{architecture}.{key}": value for key, value in (keys or {}).items()}
    tensors = {n: t for n, t in file.tensors.items() if n not in drop} | (add or {})
    path = folder / "changed.gguf"
    write_gguf(path, {k: v for k, v in values.items() if v is not None}, tensors)
    return GgufFile(path)


def values_of(name, tensor):
    info = GgufFile(TINY / f"{name}.gguf").tensors[tensor]
    return info.data.view(np.float32).reshape(info.shape).copy()


def f32(values):
    return np.ascontiguousarray(values, np.float32), GgmlType.F32


def next_token_block():
    """What a file has after its trunk that predicts further tokens: a layer of attention, and some tensors."""
    tensors = GgufFile(TINY / "qwen35.gguf").tensors
    found = {f"blk.4.{n[6:]}": t for n, t in tensors.items() if n.startswith("blk.3.")}
    found["blk.4.nextn.eh_proj.weight"] = f32(np.zeros((40, 80)))
    return found | {f"blk.4.nextn.{n}.weight": f32(np.ones(40)) for n in ("enorm", "hnorm", "shared_head_norm")}


FUSED = [f"blk.{i}.ffn_gate_up_exps.weight" for i in range(6)]
SCALES = [f"blk.{i}.layer_output_scale.weight" for i in range(6)]


def apart():
    """Gates of experts and what they gate as two tensors."""
    halves = {n: np.split(values_of("gemma4_moe", n), 2, axis=1) for n in FUSED}
    gates = {n.replace("gate_up", "gate"): f32(gate) for n, (gate, _) in halves.items()}
    return gates | {n.replace("gate_up", "up"): f32(up) for n, (_, up) in halves.items()}


def of(keys=None, drop=(), add=dict):
    """Keys, tensors that are not there, and a function that makes those that are there besides."""
    return keys or {}, drop, add


NEXT = {"block_count": 5, "nextn_predict_layers": 1}
# Files, by how they differ from a tiny model.  Their logits of llama.cpp b11434 after TOKENS are in variants2.npz
# and differ from those of the model itself, but for the names in SAME.
VARIANTS = {
    "qwen35-yarn": of(YARN),
    "qwen35-linear": of({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "qwen35-no_flags": of({"attention.recurrent_layers": None}),
    "qwen35-no_interval": of({"attention.recurrent_layers": None, "full_attention_interval": None}),
    "qwen35-dims": of({"rope.dimension_count": 16, "rope.dimension_sections": np.array([4, 2, 2, 0], np.int32)}),
    "qwen35-no_dims": of({"rope.dimension_count": None}),
    "qwen35-base": of({"rope.freq_base": 100.0}),
    "qwen35-eps": of({"attention.layer_norm_rms_epsilon": 1e-3}),
    "qwen35-nextn": of(NEXT | {"attention.recurrent_layers": None}, add=next_token_block),
    "qwen35-next_flags": of(
        NEXT | {"attention.recurrent_layers": np.array([True, True, True, False, False])}, add=next_token_block
    ),
    "qwen35moe-one": of({"expert_used_count": 1}),
    "qwen35moe-five": of({"expert_used_count": 5}),
    "gemma4-no_cap": of({"final_logit_softcapping": None}),
    "gemma4-cap": of({"final_logit_softcapping": 1.0}),
    "gemma4-window": of({"attention.sliding_window": 3}),
    "gemma4-no_scale": of(drop=SCALES),
    "gemma4-scale": of(add=lambda: {n: f32([0.7 + 0.1 * i]) for i, n in enumerate(SCALES)}),
    "gemma4-dims": of({"rope.dimension_count_swa": 16}),
    "gemma4-no_local_base": of({"rope.freq_base_swa": None}),
    "gemma4-base": of({"rope.freq_base": 100.0}),
    "gemma4_moe-apart": of(drop=FUSED, add=apart),
    "gemma4_moe-three": of({"expert_used_count": 3}),
}
SAME = ("no_flags", "no_interval", "nextn", "next_flags", "no_scale", "no_local_base", "apart")


def variant(folder, name):
    keys, drop, add = VARIANTS[name]
    return changed(folder, name.split("-")[0], keys, drop, add())


@pytest.fixture(scope="module")
def expected():
    return dict(np.load(TINY / "variants2.npz"))


@pytest.fixture(scope="module")
def unchanged():
    names = {name.split("-")[0] for name in VARIANTS}
    return {name: logits(read_family(GgufFile(TINY / f"{name}.gguf")), TOKENS)[-4:] for name in names}


@pytest.mark.parametrize("name", VARIANTS)
def test_files_mean_what_they_mean_to_llama_cpp(tmp_path, expected, unchanged, name):
    base, what = name.split("-")
    got = logits(read_family(variant(tmp_path, name)), TOKENS)[-4:]
    # llama.cpp's CPU GELU is a table of float16
    np.testing.assert_allclose(got, expected[name], atol=5e-2 if base in GEMMA4 else 1e-3, rtol=0)
    least = 1e-3 if what == "no_cap" else 5e-2
    assert (np.abs(got - unchanged[base]).max() > least) == (what not in SAME)


# --- what a stream keeps ----------------------------------------------------------------------------------------------


def test_parts_of_qwen35():
    delta = (Recurrent((3, 128)), Recurrent((4, 16, 16)))
    assert read_family(GgufFile(TINY / "qwen35.gguf")).parts == (*delta * 3, Kv(2, 32, 32))


def test_parts_of_gemma4():
    """Layers that look at others' keys and values keep none."""
    local, whole = Kv(2, 32, 32, 8), Kv(2, 64, 64)
    assert read_family(GgufFile(TINY / "gemma4.gguf")).parts == (local, local, whole) * 2
    shared = read_family(GgufFile(TINY / "gemma4_kvshare.gguf"))
    assert shared.parts == (local, local, whole)
    assert [s.slot for s in shared.config.layers] == [0, 1, 2, 1, 1, 2]
    assert read_family(GgufFile(TINY / "gemma4_moe.gguf")).parts == (local, local, Kv(1, 64, 64)) * 2


def test_keys_and_values_that_nobody_reads_may_be_there(tmp_path, unchanged):
    """Files of models that share them may still hold the matrices of the layers that do not use them."""
    names = [f"blk.{i}.{n}.weight" for i in (3, 4) for n in ("attn_k", "attn_v", "attn_k_norm")]
    more = {n: f32(values_of("gemma4", n)) for n in names}
    got = logits(read_family(changed(tmp_path, "gemma4_kvshare", add=more)), TOKENS)
    want = logits(read_family(GgufFile(TINY / "gemma4_kvshare.gguf")), TOKENS)
    assert got.tobytes() == want.tobytes()


# --- what is refused --------------------------------------------------------------------------------------------------

COMMON = ("block_count", "context_length", "embedding_length", "attention.head_count", "vocab_size")
OWN = {
    "qwen35": {
        "ssm.conv_kernel": [*HUGE, 1],
        "ssm.state_size": HUGE,
        "ssm.group_count": [*HUGE, 5],
        "ssm.time_step_rank": HUGE,
        "ssm.inner_size": [63, 128],
        "full_attention_interval": HUGE,
        "nextn_predict_layers": [4, 2**31],
        "rope.freq_base": BAD_FLOATS,
        "feed_forward_length": HUGE,
    },
    "qwen35moe": {
        "expert_count": HUGE,
        "expert_used_count": [*HUGE, 9],
        "expert_feed_forward_length": HUGE,
        "expert_shared_feed_forward_length": HUGE,
    },
    "gemma4": {
        "attention.key_length_swa": [*HUGE, 1],
        "attention.value_length_swa": [*HUGE, 31],
        "attention.shared_kv_layers": [6, 2**31],
        "attention.sliding_window": HUGE,
        "embedding_length_per_layer_input": HUGE[1:],
        "rope.dimension_count_swa": [*HUGE, 31, 34],
        "rope.freq_base_swa": BAD_FLOATS,
        "final_logit_softcapping": [-1.0, float("nan"), float("inf")],
    },
    "gemma4_moe": {"expert_count": HUGE[1:], "expert_used_count": [*HUGE, 7], "expert_feed_forward_length": HUGE},
}
CASES = [(n, k, v) for n in OWN for k, vs in ({key: COUNTS[key] for key in COMMON} | OWN[n]).items() for v in vs]


@pytest.mark.parametrize(("name", "key", "value"), CASES)
def test_numbers_out_of_range(tmp_path, name, key, value):
    with pytest.raises(ModelError) as caught:
        read_family(changed(tmp_path, name, {key: value}))
    assert f".{key} is " in str(caught.value) and "expected" in str(caught.value)


MORE = {"qwen35": "blk.0.ssm_conv1d.bias", "qwen35moe": "blk.1.exp_probs_b.bias", "gemma4": "blk.0.attn_qkv.weight"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qwen35", {"keys": {"expert_count": 4}}, "qwen35.expert_count is u32 4; implemented: 0"),
        ("qwen35", {"keys": {"final_logit_softcapping": 30.0}}, "qwen35.final_logit_softcapping"),
        ("qwen35", {"keys": {"ssm.dt_b_c_rms": True}}, "qwen35.ssm.dt_b_c_rms .* is not known"),
        ("qwen35", {"keys": {"ssm.group_count": 3}}, "4 value heads cannot share 3 key heads"),
        ("qwen35", {"keys": {"attention.recurrent_layers": np.array([True] * 3)}}, "3 values, expected 4"),
        ("qwen35", {"keys": {"rope.dimension_sections": np.array([5, 1, 1, 0], np.int32)}}, "is 5 in one place"),
        ("qwen35", {"keys": {"rope.scaling.type": "longrope"}}, "longrope"),
        (
            "qwen35",
            {"keys": {"block_count": 5, "attention.recurrent_layers": None}},
            "blk.4.attn_norm.weight is missing",
        ),
        ("qwen35", {"drop": ["blk.0.ssm_a"]}, "blk.0.ssm_a is missing"),
        ("qwen35", {"drop": ["blk.1.ssm_dt.bias"]}, "blk.1.ssm_dt.bias is missing"),
        ("qwen35moe", {"keys": {"expert_weights_scale": 2.0}}, "qwen35moe.expert_weights_scale .* is not known"),
        ("qwen35moe", {"keys": {"expert_gating_func": 2}}, "qwen35moe.expert_gating_func .* is not known"),
        ("qwen35moe", {"keys": {"expert_shared_count": 2}}, "qwen35moe.expert_shared_count is u32 2"),
        ("gemma4", {"keys": {"attention.sliding_window_pattern": 6}}, "must hold a boolean per layer"),
        ("gemma4", {"keys": {"attention.sliding_window_pattern": np.array([True] * 5)}}, "5 values, expected 6"),
        ("gemma4", {"keys": {"attention.head_count_kv": np.array([2, 2], np.uint32)}}, "2 values, expected 6"),
        ("gemma4", {"keys": {"attention.head_count_kv": 3}}, "cannot share 3 key heads"),
        ("gemma4", {"keys": {"rope.scaling.factor": 8.0}}, "rope.scaling.factor is 8.0; implemented: 1"),
        ("gemma4", {"keys": {"attn_logit_softcapping": 50.0}}, "gemma4.attn_logit_softcapping"),
        ("gemma4", {"keys": {"attention.shared_kv_layers": 5}}, "no earlier layer of its kind"),
        ("gemma4", {"keys": {"embedding_length_per_layer_input": 0}}, "per_layer_token_embd"),
        ("gemma4", {"drop": ["blk.2.attn_k.weight"]}, "blk.2.attn_k.weight is missing"),
        ("gemma4_moe", {"drop": ["blk.1.ffn_down_exps.scale"]}, "blk.1.ffn_down_exps.scale is missing"),
        ("gemma4_moe", {"drop": FUSED}, "blk.0.ffn_gate_exps.weight is missing"),
        *((name, {"add": {extra: f32(np.ones(40))}}, extra) for name, extra in MORE.items()),
    ],
)
def test_what_is_not_implemented_is_named(tmp_path, name, change, message):
    with pytest.raises((ModelError, GgufError), match=message):
        read_family(changed(tmp_path, name, **change))
