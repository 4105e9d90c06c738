"""Files of known families: what metadata means, which values are possible, and what is refused by name."""

import numpy as np
import pytest

from fucina.cache import Kv, State
from fucina.errors import GgufError, ModelError, UnsupportedArchitecture
from fucina.gguf import GgmlType, GgufFile, Typed, ValueType, write_gguf
from fucina.models import read_family
from fucina.ops.naive import Naive
from fucina.ops.rows import RowBatch
from tests.models import TINY

NAMES = ["llama", "gemma3", "qwen3", "qwen3moe", "deepseek2"]


def changed(tmp_path, name, keys=None, metadata=None, drop=(), add=None):
    """A copy of a tiny model with other metadata or tensors, opened.  `keys` have the architecture's prefix added."""
    file = GgufFile(TINY / f"{name}.gguf")
    values = {key: file.metadata.entry(key) for key in file.metadata}
    values |= {f"{name}.{key}": value for key, value in (keys or {}).items()} | (metadata or {})
    tensors = {n: t for n, t in file.tensors.items() if n not in drop} | (add or {})
    path = tmp_path / "changed.gguf"
    write_gguf(path, {k: v for k, v in values.items() if v is not None}, tensors)
    return GgufFile(path)


def logits(family, tokens):
    state, rows = State(family.parts, len(tokens), "f32"), np.arange(len(tokens))
    state.begin(len(tokens))
    return Naive(family).run(RowBatch(np.asarray(tokens), rows, 0 * rows, [state], rows))


# --- what metadata means ----------------------------------------------------------------------------------------------

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
# logits of llama.cpp b11739 for files changed in this way, after the tokens below
VARIANTS = {
    "gemma3-pattern0": {"attention.sliding_window_pattern": 0},
    "gemma3-pattern2": {"attention.sliding_window_pattern": 2},
    "gemma3-pattern4": {"attention.sliding_window_pattern": 4},
    "gemma3-pattern6": {"attention.sliding_window_pattern": 6},
    "gemma3-pattern9": {"attention.sliding_window_pattern": 9},
    "gemma3-flags": {"attention.sliding_window_pattern": np.array([True, False] * 3)},
    "gemma3-no_base": {"rope.freq_base": None},
    "gemma3-no_local_base": {"rope.freq_base_swa": None},
    "gemma3-dims16": {"rope.dimension_count": 16},
    "gemma3-factor": {"rope.scaling.factor": 8.0},
    "gemma3-none": {"rope.scaling.factor": 8.0, "rope.scaling.type": "none"},
    "gemma3-linear": {"rope.scaling.factor": 8.0, "rope.scaling.type": "linear"},
    "llama-factor": {"rope.scaling.factor": 4.0},
    "llama-old_factor": {"rope.scale_linear": 4.0},
    "llama-both_factors": {"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0},
    "llama-no_base": {"rope.freq_base": None},
    "llama-per_layer": {
        "attention.head_count_kv": np.array([2, 2], np.uint32),
        "feed_forward_length": np.array([80, 80], np.uint32),
    },
    "llama-yarn": YARN,
    "qwen3-yarn": YARN,
    "qwen3-yarn_long": YARN | {"rope.scaling.original_context_length": None},
    "qwen3moe-yarn": YARN,
    "qwen3moe-one": {"expert_used_count": 1},
    "qwen3moe-five": {"expert_used_count": 5},
    "deepseek2-yarn": YARN | {"rope.scaling.yarn_log_multiplier": 0.0707},
    "deepseek2-norm": {"expert_weights_norm": True, "expert_weights_scale": 1.5},
    "deepseek2-no_norm": {"expert_weights_norm": False, "expert_weights_scale": 0.0},
    "deepseek2-sigmoid": {"expert_gating_func": 2},
    "deepseek2-softmax": {"expert_gating_func": 1},
    "deepseek2-groups": {"expert_group_count": 4, "expert_group_used_count": 1},
    "deepseek2-two_groups": {"expert_group_count": 4, "expert_group_used_count": 2, "expert_used_count": 3},
    "deepseek2-no_groups": {"expert_group_count": None, "expert_group_used_count": None},
}
TOKENS = np.arange(5, 13)


@pytest.fixture(scope="module")
def variants():
    return dict(np.load(TINY / "variants.npz"))


@pytest.mark.parametrize("name", VARIANTS)
def test_metadata_means_what_it_means_to_llama_cpp(tmp_path, variants, name):
    family = read_family(changed(tmp_path, name.split("-")[0], VARIANTS[name]))
    # llama.cpp's CPU GELU is a table of float16
    atol = 2e-3 if name.startswith("gemma3") else 1e-4
    np.testing.assert_allclose(logits(family, variants["tokens"])[-4:], variants[name], atol=atol, rtol=0)


def test_the_variants_differ_where_they_should(variants):
    different = ["pattern0", "pattern2", "pattern4", "no_base", "dims16", "factor"]
    for name in different:
        assert np.abs(variants[f"gemma3-{name}"] - variants["gemma3-pattern6"]).max() > 0.05, name
    assert np.abs(variants["llama-factor"] - variants["llama-both_factors"]).max() > 0.05


@pytest.mark.parametrize(
    ("pattern", "local"),
    [(None, [1, 1, 1, 1, 1, 0]), (0, [1] * 6), (1, [0] * 6), (2, [1, 0] * 3), (6, [1, 1, 1, 1, 1, 0]), (4096, [1] * 6)],
)
def test_window_pattern(tmp_path, pattern, local):
    family = read_family(changed(tmp_path, "gemma3", {"attention.sliding_window_pattern": pattern}))
    assert family.parts == tuple(Kv(2, 32, 32, 8 * is_local) for is_local in local)


def test_keys_that_change_nothing(tmp_path):
    keys = {
        "attention.causal": True,
        "expert_count": 0,
        "final_logit_softcapping": 0.0,
        "rope.scaling.finetuned": True,
        "rope.scaling.original_context_length": 512,
        "tensor_data_layout": "Meta AI original pth",
    }
    expected = logits(read_family(GgufFile(TINY / "llama.gguf")), TOKENS)
    assert logits(read_family(changed(tmp_path, "llama", keys)), TOKENS).tobytes() == expected.tobytes()


def test_padded_vocabulary(tmp_path):
    """More rows than tokens are fine; a token without a row is not."""
    fewer = {
        "tokenizer.ggml.tokens": GgufFile(TINY / "llama.gguf").metadata.strings("tokenizer.ggml.tokens")[:250],
        "tokenizer.ggml.token_type": np.ones(250, np.int32),
    }
    assert read_family(changed(tmp_path, "llama", metadata=fewer)).config.vocab_size == 256
    more = {"tokenizer.ggml.tokens": [b"t%d" % i for i in range(257)]}
    with pytest.raises(ModelError, match="257 tokens, token_embd.weight only 256 rows"):
        read_family(changed(tmp_path, "llama", metadata=more))


# --- what is refused --------------------------------------------------------------------------------------------------

HUGE = [0, 2**31, Typed(2**40, ValueType.U64), Typed(-1, ValueType.I32)]
BAD_FLOATS = [0.0, -1.0, float("nan"), float("inf"), 1e30]
COUNTS = {
    "block_count": HUGE,
    "context_length": [*HUGE, 2**27],
    "embedding_length": HUGE,
    "feed_forward_length": HUGE,
    "attention.head_count": HUGE,
    "attention.head_count_kv": [*HUGE, 8],
    "attention.key_length": [*HUGE, 1],
    "attention.value_length": [*HUGE, 15],
    "rope.dimension_count": [*HUGE, 31, 1, 34, 64],
    "vocab_size": [*HUGE, 257],
    "attention.layer_norm_rms_epsilon": BAD_FLOATS,
    "rope.freq_base": BAD_FLOATS,
    "rope.scaling.factor": BAD_FLOATS,
    "rope.scale_linear": BAD_FLOATS,
}
GEMMA3 = {
    "attention.sliding_window": HUGE,
    "attention.sliding_window_pattern": HUGE[1:],
    "rope.freq_base_swa": BAD_FLOATS,
}
EXPERTS = {"expert_count": HUGE, "expert_used_count": [*HUGE, 9], "expert_feed_forward_length": HUGE}
DEEPSEEK2 = EXPERTS | {
    "attention.head_count_kv": [*HUGE, 2],
    "attention.key_length_mla": [*HUGE, 1],
    "attention.value_length_mla": HUGE,
    "attention.kv_lora_rank": HUGE,
    "attention.q_lora_rank": HUGE[1:],
    "attention.key_length": [*HUGE, 39],
    "attention.value_length": [*HUGE, 31],
    "expert_gating_func": [3, 4],
    "expert_group_count": HUGE[1:],
    "expert_group_used_count": HUGE[1:],
    "expert_shared_count": HUGE,
    "expert_weights_scale": [-1.0, float("nan"), float("inf")],
    "leading_dense_block_count": [*HUGE[1:], 4],
}
OWN = {"gemma3": GEMMA3, "qwen3moe": EXPERTS, "deepseek2": DEEPSEEK2}
CASES = [(n, k, v) for n in NAMES for k, vs in (COUNTS | OWN.get(n, {})).items() for v in vs]


@pytest.mark.parametrize(("name", "key", "value"), CASES)
def test_numbers_out_of_range(tmp_path, name, key, value):
    with pytest.raises(ModelError) as caught:
        read_family(changed(tmp_path, name, {key: value}))
    number = value.value if isinstance(value, Typed) else value
    assert f"{name}.{key} is " in str(caught.value) and "expected" in str(caught.value)
    assert str(number) in str(caught.value) or isinstance(number, float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [k for k in COUNTS if "." not in k or k.startswith("attention.head")])
def test_numbers_of_the_wrong_type(tmp_path, name, key):
    with pytest.raises(GgufError, match="expected an integer"):
        read_family(changed(tmp_path, name, {key: 2.0}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("attention.causal", False, "False"),
        ("attention.scale", 0.5, "0.5"),
        ("attention.clamp_kqv", 8.0, "8.0"),
        ("attn_logit_softcapping", 50.0, "50.0"),
        ("final_logit_softcapping", 30.0, "30.0"),
        ("rope.scaling.attn_factor", 2.0, "2.0"),
        ("rope.scaling.type", "longrope", "longrope"),
        ("rope.scaling.yarn_ext_factor", 0.5, "0.5"),
        ("rope.scaling.yarn_attn_factor", 0.5, "0.5"),
        ("attention.temperature_scale", 0.1, "0.1"),
        ("attention.sinks", True, "True"),
        ("nextn_predict_layers", 1, "1"),
        ("rope.dimension_sections", np.array([8, 4, 4, 0], np.int32), "array of 4"),
        ("rope.freq_base_global", 1e6, "1000000"),
        ("something.new", "a text", "a text"),
        ("attention.head_count_kv", np.array([2, 1], np.uint32), "[2, 1]"),
        ("feed_forward_length", np.array([], np.uint32), "[]"),
    ],
)
def test_keys_that_may_change_the_mathematics(tmp_path, name, key, value, shown):
    with pytest.raises(ModelError) as caught:
        read_family(changed(tmp_path, name, {key: value}))
    assert f"{name}.{key}" in str(caught.value) and shown in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("llama", {"expert_count": 8}, "llama.expert_count is u32 8"),
        ("qwen3", {"expert_count": 8}, "qwen3.expert_count is u32 8"),
        ("gemma3", {"rope.scaling.type": "yarn"}, "gemma3.rope.scaling.type is 'yarn'; implemented: none, linear"),
        ("qwen3", {"rope.dimension_count": 16}, "qwen3.rope.dimension_count is 16, expected 32"),
        ("qwen3", {"attention.sliding_window": 64}, "qwen3.attention.sliding_window is u32 64; implemented: 0"),
        ("qwen3moe", {"expert_shared_count": 1}, "qwen3moe.expert_shared_count is u32 1; implemented: 0"),
        ("qwen3moe", {"expert_gating_func": 2}, "qwen3moe.expert_gating_func .* is not known"),
        ("qwen3moe", {"expert_group_count": 2}, "qwen3moe.expert_group_count .* is not known"),
        ("qwen3moe", {"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier .* is not known"),
        ("deepseek2", {"rope.scaling.factor": 4.0}, "rope.scaling.factor is 4.0 without YaRN; implemented: 1"),
        ("deepseek2", {"expert_group_count": 3}, "8 experts cannot form 3 groups"),
        ("deepseek2", {"expert_group_count": 8}, "8 experts cannot form 8 groups of one size, two at least"),
        (
            "deepseek2",
            {"expert_group_count": 4, "expert_group_used_count": 1, "expert_used_count": 3},
            "1 to 2 experts, got 3",
        ),
        ("deepseek2", {"rope.dimension_count": 24}, "RoPE turns all 24 numbers of a head"),
        ("qwen3", YARN | {"rope.freq_base": 1.0}, "YaRN with base 1 and factor 4; expected a base above 1"),
        ("llama", YARN | {"rope.scaling.factor": 0.5}, "YaRN with base 10000 and factor 0.5; expected"),
    ],
)
def test_what_a_family_does_not_implement(tmp_path, name, keys, message):
    with pytest.raises(ModelError, match=message):
        read_family(changed(tmp_path, name, keys))


def test_yarn_of_deepseek_needs_its_multiplier(tmp_path):
    with pytest.raises(GgufError, match="yarn_log_multiplier"):
        read_family(changed(tmp_path, "deepseek2", YARN))


def test_older_files_of_deepseek_are_refused(tmp_path):
    """Those from before the split of attn_kv_b."""
    old = {"blk.0.attn_kv_b.weight": (np.zeros((128, 32), np.float32), GgmlType.F32)}
    with pytest.raises(ModelError, match="attn_kv_b.weight is not split into attn_k_b and attn_v_b"):
        read_family(changed(tmp_path, "deepseek2", add=old))
    with pytest.raises(GgufError, match="key_length_mla"):
        read_family(changed(tmp_path, "deepseek2", {"attention.key_length_mla": None}))


READ = {  # every key whose value may vary without another tensor changing its shape
    "qwen3": [
        {"attention.layer_norm_rms_epsilon": 1e-2},
        {"rope.freq_base": 1e4},
        {"rope.scaling.factor": 2.0},
        YARN,
        YARN | {"rope.scaling.factor": 2.0},
        YARN | {"rope.scaling.original_context_length": 512},
        YARN | {"rope.scaling.original_context_length": 512, "rope.scaling.yarn_beta_fast": 4.0},
        YARN | {"rope.scaling.original_context_length": 512, "rope.scaling.yarn_beta_slow": 0.1},
    ],
    "qwen3moe": [{"expert_used_count": 1}, {"rope.freq_base": 1e4}],
    "deepseek2": [
        {"attention.layer_norm_rms_epsilon": 1e-2},
        {"rope.freq_base": 100.0},
        {"expert_used_count": 1},
        {"expert_weights_norm": True},
        {"expert_weights_scale": 2.5},
        {"expert_gating_func": 2},
        {"expert_group_count": 4},
        {"expert_group_count": 2},
        YARN | {"rope.scaling.yarn_log_multiplier": 0.1},
        YARN | {"rope.scaling.yarn_log_multiplier": 0.05},
    ],
}


@pytest.mark.parametrize("name", READ)
def test_every_key_that_is_read_changes_the_logits(tmp_path, name):
    variants = [{}, *READ[name]]
    found = [logits(read_family(changed(tmp_path, name, keys)), np.arange(5, 29)) for keys in variants]
    for i, a in enumerate(found):
        for j, b in enumerate(found[:i]):
            assert np.abs(a - b).max() > 1e-3, (variants[i], variants[j])


def test_a_window_is_refused_where_it_is_not_implemented(tmp_path):
    with pytest.raises(ModelError, match=r"llama.attention.sliding_window is u32 4096; implemented: 0"):
        read_family(changed(tmp_path, "llama", {"attention.sliding_window": 4096}))
    with pytest.raises(ModelError, match="holds 5 values, expected 6, one per layer"):
        read_family(changed(tmp_path, "gemma3", {"attention.sliding_window_pattern": np.array([True] * 5)}))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_frequency_factors(tmp_path, bad):
    factors = np.ones(8, np.float32)
    factors[3] = bad
    with pytest.raises(ModelError, match="rope_freqs.weight"):
        read_family(changed(tmp_path, "llama", add={"rope_freqs.weight": (factors, GgmlType.F32)}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"metadata": {"general.architecture": "nope"}}, UnsupportedArchitecture, "'nope' is not implemented"),
        ({"keys": {"block_count": 3}}, ModelError, "blk.2.attn_norm.weight"),
        ({"keys": {"block_count": 1}}, ModelError, "does not use"),
        ({"keys": {"attention.head_count_kv": 3}}, ModelError, "cannot share"),
        ({"keys": {"feed_forward_length": 81}}, ModelError, "expected"),
        ({"keys": {"embedding_length": None}}, GgufError, "llama.embedding_length"),
        ({"keys": {"attention.key_length": 15, "attention.value_length": 15}}, ModelError, "even"),
        ({"drop": ["output_norm.weight"]}, ModelError, "output_norm.weight is missing"),
        ({"drop": ["token_embd.weight"]}, ModelError, "token_embd.weight is missing"),
        ({"drop": ["blk.1.ffn_up.weight"]}, ModelError, "blk.1.ffn_up.weight is missing"),
        ({"add": {"blk.0.attn_q.bias": (np.zeros(64, np.float32), GgmlType.F32)}}, ModelError, "blk.0.attn_q.bias"),
        ({"add": {"token_embd.weight": (np.zeros(64, np.float32), GgmlType.F32)}}, ModelError, "expected a matrix"),
        (
            {"add": {"output.weight": (np.zeros((255, 40), np.float32), GgmlType.F32)}},
            ModelError,
            r"expected \[256, 40\]",
        ),
        ({"add": {"output_norm.weight": (np.zeros(32, np.float32), GgmlType.Q8_0)}}, ModelError, "output_norm.weight"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        read_family(changed(tmp_path, "llama", **change))


def test_tied_output_uses_the_embedding(tmp_path):
    tied = read_family(changed(tmp_path, "llama", drop=["output.weight"]))
    assert tied.weights.output is tied.weights.embedding and np.isfinite(logits(tied, TOKENS)).all()
    untied = read_family(GgufFile(TINY / "llama.gguf")).weights
    assert untied.output is not untied.embedding
