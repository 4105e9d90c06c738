"""Published models become GGUF files: the logits of the original, every format, and refusals by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fucina
from fucina.cli import main
from fucina.convert import SOURCES, convert
from fucina.convert.rules import _cuts, rules_name
from fucina.convert.writing import read_config
from fucina.errors import BlockFormatError, ConvertError, FucinaError, UnsupportedTokenizerFormat
from fucina.gguf import GgufFile, dequantize, quantize
from fucina.models import FAMILIES
from fucina.tokenizers import PRE_TOKENIZERS, PreTokenizer, load_tokenizer, load_tokenizer_json
from tests.published import NAMES, PUBLISHED, published

from .tokenizer_texts import random_texts

TOLERANCE = {name: 1e-3 for name in NAMES if name.startswith("qwen35")}  # float64 moves those by up to 2e-4


def changed(folder, file="config.json", **values):
    """Change keys of a JSON file of a model; ... removes one."""
    path = folder / file
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = {key: value for key, value in {**found, **values}.items() if value is not ...}
    path.write_text(json.dumps(found), encoding="utf-8")
    return folder


def test_every_family_is_tried():
    assert {
        SOURCES[json.loads((PUBLISHED / f"{n}.json").read_text())["architectures"][0]].architecture for n in NAMES
    } == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_original(name, tmp_path):
    made = convert(published(name, tmp_path), tmp_path / "out.gguf", "F32")
    oracle = np.load(PUBLISHED / f"{name}.npz")
    model = fucina.load(tmp_path / "out.gguf", backend="naive", cache_dtype="f32")
    got = model.logits(oracle["tokens"])[::3]
    np.testing.assert_allclose(got, oracle["logits"], atol=TOLERANCE.get(name, 1e-4), rtol=0)
    assert (
        made.architecture
        == SOURCES[json.loads((PUBLISHED / f"{name}.json").read_text())["architectures"][0]].architecture
    )
    assert not made.remarks
    model.close()


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen35moe", "deepseek3", "gemma3", "gemma4_moe"])
def test_the_tokenizer_gives_the_same_ids(name, tmp_path):
    folder = published(name, tmp_path)
    convert(folder, tmp_path / "out.gguf")
    ours = load_tokenizer_json(folder)
    with GgufFile(tmp_path / "out.gguf") as file:
        made = load_tokenizer(file.metadata)
        for text in random_texts(3, 100):
            assert made.encode(text) == ours.encode(text)
            assert made.decode_bytes(made.encode(text)) == ours.decode_bytes(ours.encode(text))
        assert made.vocabulary.bos == ours.vocabulary.bos and made.vocabulary.eos == ours.vocabulary.eos
        assert made.vocabulary.add_bos == ours.vocabulary.add_bos and not made.vocabulary.add_eos
        assert len(made.vocabulary.tokens) == file.tensors["token_embd.weight"].shape[0]


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", None])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_format_is_what_quantize_makes_of_the_numbers(format, threads, tmp_path):
    folder, seen = published("qwen3moe", tmp_path), []
    convert(folder, tmp_path / "exact.gguf", "F32")
    made = convert(folder, tmp_path / "out.gguf", format, lambda done, total: seen.append((done, total)), threads)
    with GgufFile(tmp_path / "exact.gguf") as exact, GgufFile(tmp_path / "out.gguf") as file:
        assert list(file.tensors) == list(exact.tensors)
        for name, tensor in file.tensors.items():
            numbers = dequantize(exact.tensors[name].rows(), "F32")
            assert tensor.ggml_type == made.formats[name] and tensor.shape == exact.tensors[name].shape
            assert np.array_equal(tensor.rows(), quantize(numbers, tensor.ggml_type).reshape(tensor.rows().shape))
        total = sum(t.nbytes for t in file.tensors.values())
    assert made.formats["blk.0.attn_q.weight"].name == (format or "BF16")
    assert made.formats["blk.0.ffn_gate_inp.weight"].name == made.formats["blk.0.attn_norm.weight"].name == "F32"
    assert seen[-1] == (total, total)


def test_several_files_and_their_index_are_one_model(tmp_path):
    folder = published("llama", tmp_path)
    convert(folder, tmp_path / "one.gguf")
    split(folder)
    convert(folder, tmp_path / "two.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_the_text_model_of_one_that_sees(tmp_path):
    """Names and config as in a model with a vision part, which is left out and told."""
    folder = published("gemma3", tmp_path)
    convert(folder, tmp_path / "one.gguf", "F32")
    text = json.loads((folder / "config.json").read_text())
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 3},
    }
    (folder / "config.json").write_text(json.dumps(whole))
    header, data = parts(folder / "model.safetensors")
    names = {f"language_model.{name}": entry for name, entry in header.items()}
    end = len(data)
    names["vision_tower.x.weight"] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
    write(folder / "model.safetensors", names, data + bytes(4))
    made = convert(folder, tmp_path / "two.gguf", "F32")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    assert made.remarks == ["1 tensors of vision"]


def test_experts_of_their_own_equal_experts_in_one_tensor(tmp_path):
    """Both ways in which a published model may hold its experts."""
    folder = published("qwen3moe", tmp_path)
    convert(folder, tmp_path / "one.gguf", "F32")
    header, data = parts(folder / "model.safetensors")
    raw = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    for layer in range(3):
        name = f"model.layers.{layer}.mlp.experts"
        pairs = [raw.pop(f"{name}.{e}.{p}_proj.weight") for e in range(6) for p in ("gate", "up")]
        down = [raw.pop(f"{name}.{e}.down_proj.weight") for e in range(6)]
        header |= {f"{name}.gate_up_proj": {"dtype": "BF16", "shape": [6, 32, 32]}}
        header |= {f"{name}.down_proj": {"dtype": "BF16", "shape": [6, 32, 16]}}
        raw |= {f"{name}.gate_up_proj": b"".join(pairs), f"{name}.down_proj": b"".join(down)}
    write(folder / "model.safetensors", *laid_out(header, raw))
    convert(folder, tmp_path / "two.gguf", "F32")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_older_configs_say_the_same(tmp_path):
    """rope_theta and rope_scaling beside each other, and sizes that a config leaves out since they are the usual ones."""
    older = {
        "llama3rope": lambda rope: {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope},
        "qwen3_yarn": lambda rope: {
            "rope_theta": rope.pop("rope_theta"),
            "rope_scaling": {"type": rope.pop("rope_type"), **rope},
        },
        "gemma3": lambda rope: {
            "rope_theta": rope["full_attention"]["rope_theta"],
            "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
            "rope_scaling": None,
            "sliding_window_pattern": 6,
            "layer_types": ...,
            "vocab_size": ...,
        },
        "gemma4": lambda rope: {"per_layer_config": ..., "global_head_dim": 24, "rope_parameters": rope},
    }
    for name, change in older.items():
        folder = published(name, tmp_path)
        convert(folder, tmp_path / "one.gguf")
        rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
        changed(folder, **{"rope_parameters": ..., **change(rope)})
        convert(folder, tmp_path / "two.gguf")
        assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "value", "found"),
    [
        ("llama", "architectures", ["GPT2LMHeadModel"], "GPT2LMHeadModel"),
        ("llama", "architectures", None, "architectures None"),
        ("llama", "attention_bias", True, "attention_bias"),
        ("llama", "mlp_bias", True, "mlp_bias"),
        ("llama", "hidden_act", "gelu", "hidden_act"),
        ("llama", "query_scale", 2.0, "query_scale"),
        ("llama", "rope_parameters", {"rope_type": "longrope"}, "rope_type"),
        ("llama", "rope_parameters", {"rope_theta": 1e4, "short_factor": [1]}, "short_factor"),
        ("llama", "rms_norm_eps", "1e-5", "rms_norm_eps"),
        ("llama", "num_attention_heads", ..., "num_attention_heads"),
        ("llama", "num_attention_heads", 3, "heads"),
        ("llama", "num_attention_heads", True, "num_attention_heads"),
        ("llama", "num_hidden_layers", 4, "blk.3"),
        ("llama", "hidden_size", 64, r"expected \[64\]"),
        ("llama", "quantization_config", {"quant_method": "fp8"}, "quantization_config"),
        ("mistral", "sliding_window", 16, "sliding_window"),
        ("mistral", "tie_word_embeddings", "no", "tie_word_embeddings"),
        ("llama3rope", "tie_word_embeddings", False, "lm_head.weight is missing"),
        ("qwen3", "layer_types", ["sliding_attention"] * 3, "sliding_window"),
        ("qwen3moe", "norm_topk_prob", False, "norm_topk_prob"),
        ("qwen3moe", "mlp_only_layers", [1], "mlp_only_layers"),
        ("qwen3_yarn", "rope_parameters", {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings"),
        ("gemma3", "query_pre_attn_scalar", 24, "query_pre_attn_scalar"),
        ("gemma3", "use_bidirectional_attention", True, "use_bidirectional_attention"),
        ("gemma3", "final_logit_softcapping", 30.0, "final_logit_softcapping"),
        ("gemma3", "rope_parameters", {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention"),
        ("gemma3", "vocab_size", 321, "vocab_size"),
        ("gemma4", "use_bidirectional_attention", "all", "use_bidirectional_attention"),
        ("qwen35", "rope_parameters", {"rope_theta": 1e4, "mrope_section": 5}, "mrope_section"),
        ("gemma4", "per_layer_config", {"0": {"head_dim": 24}}, "per_layer_config"),
        ("gemma4", "per_layer_config", {"1": {"head_dim": 24}, "3": {"head_dim": 32}}, "head_dim"),
        ("deepseek2", "norm_topk_prob", True, "norm_topk_prob"),
        ("deepseek2", "moe_layer_freq", 2, "moe_layer_freq"),
        ("deepseek3", "v_head_dim", 8, "kv_b_proj"),
        ("qwen35", "attn_output_gate", False, "attn_output_gate"),
        ("qwen35", "linear_num_value_heads", 3, "linear_num_value_heads"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(name, key, value, found, tmp_path):
    folder = changed(published(name, tmp_path), **{key: value})
    with pytest.raises(ConvertError, match=found):
        convert(folder, tmp_path / "out.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_groups_by_their_best_expert_are_refused(tmp_path):
    folder = changed(published("deepseek2", tmp_path), topk_method="group_limited_greedy", n_group=4, topk_group=2)
    with pytest.raises(ConvertError, match="group_limited_greedy"):
        convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", NAMES)
def test_no_key_of_a_config_is_overlooked(name, tmp_path):
    """Any further key is refused, in every family and in the parameters of RoPE."""
    folder = changed(published(name, tmp_path), zeta=1)
    with pytest.raises(ConvertError, match="zeta"):
        convert(folder, tmp_path / "out.gguf")
    changed(folder, zeta=...)
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    nested = isinstance(next(iter(rope.values())), dict)
    changed(folder, rope_parameters={k: {**v, "zeta": 1} for k, v in rope.items()} if nested else {**rope, "zeta": 1})
    with pytest.raises(ConvertError, match="zeta"):
        convert(folder, tmp_path / "out.gguf")


def test_each_tensor_is_needed_and_no_other_is_taken(tmp_path):
    folder = published("qwen35moe", tmp_path)
    header, data = parts(folder / "model.safetensors")
    raw = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    for name in header:
        rest = {k: v for k, v in raw.items() if k != name}
        write(folder / "model.safetensors", *laid_out(header, rest))
        with pytest.raises(ConvertError, match=r"missing|no tensor|expected \[6"):
            convert(folder, tmp_path / "out.gguf")
    write(
        folder / "model.safetensors",
        *laid_out(
            header | {"model.layers.0.zeta": {"dtype": "BF16", "shape": [2]}}, raw | {"model.layers.0.zeta": bytes(4)}
        ),
    )
    with pytest.raises(ConvertError, match="zeta"):
        convert(folder, tmp_path / "out.gguf")


def test_numbers_that_cannot_be_converted(tmp_path):
    folder = published("llama", tmp_path)
    header, data = parts(folder / "model.safetensors")
    for dtype in ("F8_E4M3", "I16"):
        entry = header["model.norm.weight"]
        shape = [64] if dtype == "F8_E4M3" else [32]
        write(
            folder / "model.safetensors",
            header | {"model.norm.weight": {**entry, "dtype": dtype, "shape": shape}},
            data,
        )
        with pytest.raises(ConvertError, match=dtype):
            convert(folder, tmp_path / "out.gguf")
    with pytest.raises(BlockFormatError, match="IQ1_S"):
        convert(folder, tmp_path / "out.gguf", "IQ1_S")


# --- the tokenizer -----------------------------------------------------------------------------------------------


def test_rules_are_told_apart():
    """Rules that the probes do not tell apart are the same rules."""
    for name, rules in PRE_TOKENIZERS.items():
        found = PRE_TOKENIZERS[rules_name(rules)]
        assert (found.patterns, found.ignore_merges) == (rules.patterns, rules.ignore_merges), name
    assert len({_cuts(rules) for rules in PRE_TOKENIZERS.values()}) == len(
        {r.patterns for r in PRE_TOKENIZERS.values()}
    )


def test_rules_without_a_name_are_refused():
    with pytest.raises(ConvertError, match="none of those"):
        rules_name(PreTokenizer((r"\p{L}+|\p{N}",)))


def test_expressions_that_are_none_are_refused(tmp_path):
    folder = published("qwen3", tmp_path)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("(?i:", "(?i:("), encoding="utf-8")
    with pytest.raises(UnsupportedTokenizerFormat, match="is not valid"):
        convert(folder, tmp_path / "out.gguf")


def test_scores_that_cannot_say_what_merges_do_are_refused(tmp_path):
    """A list of merges that SentencePiece would not follow: it would join `a` and `n` although no merge says so."""
    folder = published("gemma3", tmp_path)
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    model = described["model"]
    model["merges"] = [m for m in model["merges"] if m != "h e"] + ["h ▁"]
    path.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(UnsupportedTokenizerFormat, match="cannot be written as GGUF"):
        convert(folder, tmp_path / "out.gguf")


def test_a_space_in_front_of_every_text(tmp_path):
    """As in Llama 2, whose texts begin with a space."""
    folder = published("gemma3", tmp_path)
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    replace = described["normalizer"]
    described |= {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}}
    described["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    path.write_text(json.dumps({**described, "pre_tokenizer": None}), encoding="utf-8")
    convert(folder, tmp_path / "out.gguf")
    ours = load_tokenizer_json(folder)
    with GgufFile(tmp_path / "out.gguf") as file:
        made = load_tokenizer(file.metadata)
    for text in random_texts(4, 100):
        ids = made.encode(text)
        assert ids == ours.encode(text) and made.decode(ids) == ours.decode(ids)


def test_ends_and_templates(tmp_path):
    folder = published("qwen3", tmp_path)
    changed(folder, "generation_config.json", eos_token_id=[289, 288, 5])
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    convert(folder, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        v = load_tokenizer(file.metadata).vocabulary
        ids = {text.decode(): i for i, text in enumerate(v.tokens)}
        assert v.eos == ids["<|im_end|>"] and 5 in v.more_ends
        assert file.metadata["tokenizer.chat_template"] == "{{ messages }}"
    changed(folder, "generation_config.json", eos_token_id=[5, 6, 7])
    with pytest.raises(ConvertError, match="can name two"):
        convert(folder, tmp_path / "out.gguf")
    changed(folder, "generation_config.json", eos_token_id=99999)
    with pytest.raises(ConvertError, match="eos_token_id"):
        convert(folder, tmp_path / "out.gguf")


def test_named_templates(tmp_path):
    folder = published("qwen3", tmp_path)
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    changed(folder, "tokenizer_config.json", chat_template=named)
    convert(folder, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as file:
        assert (
            file.metadata["tokenizer.chat_template"] == "a" and file.metadata["tokenizer.chat_template.tool_use"] == "b"
        )
    changed(folder, "tokenizer_config.json", chat_template=5)
    with pytest.raises(ConvertError, match="chat_template"):
        convert(folder, tmp_path / "out.gguf")


def test_a_vocabulary_that_is_larger_than_the_embedding(tmp_path):
    folder = published("qwen3", tmp_path)
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    described["added_tokens"].append({**described["added_tokens"][0], "id": 320, "content": "<|more|>"})
    path.write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(ConvertError, match="320 rows"):
        convert(folder, tmp_path / "out.gguf")


# --- files and the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_or_no_json(file, tmp_path):
    folder = published("qwen3", tmp_path)
    (folder / file).write_bytes(b"<html>")
    with pytest.raises(FucinaError, match=file.split(".")[0]):
        convert(folder, tmp_path / "out.gguf")
    (folder / file).unlink()
    with pytest.raises(FucinaError, match=file.split(".")[1]):
        convert(folder, tmp_path / "out.gguf")
    with pytest.raises(ConvertError, match="no such folder"):
        convert(tmp_path / "nothing", tmp_path / "out.gguf")


def test_an_older_file_stays_where_converting_fails(tmp_path):
    folder = changed(published("llama", tmp_path), num_hidden_layers=4)
    (tmp_path / "out.gguf").write_bytes(b"older")
    with pytest.raises(ConvertError):
        convert(folder, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"older"
    assert {path.name for path in tmp_path.iterdir()} == {"llama", "out.gguf"}


def test_interrupted(tmp_path):
    def stop(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(published("llama", tmp_path), tmp_path / "out.gguf", progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"llama"}


def test_the_command(tmp_path, capsys):
    folder, out = published("llama", tmp_path), tmp_path / "out.gguf"
    assert main(["convert", str(folder), str(out), "--type", "q8_0"]) == 0
    assert "llama, 0.1 MB" in capsys.readouterr().out
    assert main(["convert", str(folder), str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["convert", str(folder), str(out), "--force", "--json", "--threads", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["architecture"] == "llama" and document["bytes"] == out.stat().st_size and document["tensors"]["F16"]
    )
    assert main(["convert", str(folder), str(tmp_path / "x.gguf"), "--threads", "0"]) == 2
    changed(folder, mlp_bias=True)
    assert main(["convert", str(folder), str(tmp_path / "x.gguf")]) == 1
    assert "mlp_bias" in capsys.readouterr().err


def test_the_kind_of_a_model(tmp_path):
    source, config = read_config(published("qwen35", tmp_path))
    assert source.architecture == "qwen35" and config.count("num_hidden_layers") == 4


# --- safetensors by hand -----------------------------------------------------------------------------------------


def parts(path):
    """The header of a file, without its remarks, and its bytes after that."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    return header, raw[8 + n :]


def write(path, header, data):
    """A file of them."""
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def laid_out(header, raw):
    """A header whose offsets are those of the bytes put together, and these."""
    entries, at = {}, 0
    for name, data in raw.items():
        entries[name] = {**header[name], "data_offsets": [at, at + len(data)]}
        at += len(data)
    return entries, b"".join(raw.values())


def split(folder):
    """Two files and an index in place of one."""
    header, data = parts(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    raw = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    names = sorted(raw)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in files.items():
        write(folder / file, *laid_out(header, {name: raw[name] for name in inside}))
    places = {name: file for file, inside in files.items() for name in inside}
    index = {"metadata": {"total_size": len(data)}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
