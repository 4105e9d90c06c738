"""Models written once more in another format: which tensor gets which, whole files or none, what is in them."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.cli import main
from fucina.errors import BlockFormatError, GgufError
from fucina.gguf import GgmlType, GgufFile, dequantize, quantize, quantize_file, row_bytes, write_gguf, writer
from fucina.gguf.requantize import FILE_TYPES, fitting, planned

SHAPES = {
    "token_embd.weight": (40, 256),
    "output_norm.weight": (256,),
    "blk.0.attn_q.weight": (64, 256),
    "blk.0.attn_k_norm.weight": (2, 64),
    "blk.0.ffn_gate_inp.weight": (8, 256),
    "blk.0.ffn_down_exps.weight": (3, 256, 96),
    "blk.0.odd.weight": (16, 40),
    "blk.0.attn_q.bias": (64,),
}


@pytest.fixture
def model(tmp_path):
    """A file of float32 tensors."""
    rng = np.random.default_rng(0)
    tensors = {n: (rng.standard_normal(s).astype(np.float32), "F32") for n, s in SHAPES.items()}
    tensors["table"] = (np.arange(12, dtype=np.int32), "I32")
    write_gguf(tmp_path / "in.gguf", {"general.architecture": "toy", "general.file_type": 0, "x": [1, 2]}, tensors)
    with GgufFile(tmp_path / "in.gguf") as file:
        yield file


@pytest.mark.parametrize("t", FILE_TYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_tensor_is_what_quantize_gives(model, tmp_path, monkeypatch, t, threads):
    monkeypatch.setattr(writer, "PIECE", 1000)  # some rows at a time
    seen = []
    plan = quantize_file(model, tmp_path / "out.gguf", t, lambda done, total: seen.append((done, total)), threads)
    with GgufFile(tmp_path / "out.gguf") as out:
        assert list(out.tensors) == list(model.tensors)
        assert out.metadata["general.file_type"] == FILE_TYPES[t] and list(out.metadata["x"]) == [1, 2]
        assert out.metadata["general.quantization_version"] == 2
        for name, tensor in out.tensors.items():
            source = model.tensors[name]
            assert tensor.shape == source.shape and tensor.ggml_type == plan[name]
            if tensor.ggml_type == source.ggml_type:
                assert np.array_equal(tensor.rows(), source.rows())
            else:
                wanted = quantize(dequantize(source.rows(), source.ggml_type), plan[name])
                assert np.array_equal(tensor.rows(), wanted)
        total = sum(tensor.nbytes for tensor in out.tensors.values())
    assert seen[-1] == (total, total) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_which_tensor_gets_which_format(model):
    plan = {name: t.name for name, t in planned(model.tensors, GgmlType.Q4_K).items()}
    assert plan == {
        "token_embd.weight": "Q6_K",  # it makes the logits too
        "output_norm.weight": "F32",
        "blk.0.attn_q.weight": "Q4_K",
        "blk.0.attn_k_norm.weight": "F32",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.0.ffn_down_exps.weight": "Q5_0",  # 96 columns
        "blk.0.odd.weight": "F16",  # 40 columns
        "blk.0.attn_q.bias": "F32",
        "table": "I32",
    }
    more = {**model.tensors, "output.weight": model.tensors["token_embd.weight"]}
    for t, embedding, output in (
        ("Q4_K", "Q4_K", "Q6_K"), ("TQ2_0", "Q4_K", "Q6_K"), ("Q8_0", "Q8_0", "Q8_0"), ("BF16", "BF16", "BF16"),
    ):  # fmt: skip
        plan = planned(more, GgmlType[t])
        assert (plan["token_embd.weight"].name, plan["output.weight"].name) == (embedding, output)


def test_what_stands_in_for_a_format():
    found = {t.name: (fitting(t, 96).name, fitting(t, 256), fitting(t, 33).name) for t in FILE_TYPES}
    assert found["Q6_K"] == ("Q8_0", GgmlType.Q6_K, "F16") and found["Q5_K"][0] == "Q5_1" and found["Q4_K"][0] == "Q5_0"
    assert {found[t][0] for t in ("Q2_K", "Q3_K", "TQ2_0")} == {"Q4_0"} and found["Q8_0"][0] == "Q8_0"
    assert found["F32"][2] == "F32" and found["BF16"][2] == "BF16"
    for t in FILE_TYPES:
        for cols in (1, 32, 96, 256, 320, 1000):
            assert row_bytes(cols, fitting(t, cols)) > 0


def test_quantised_models_are_converted_too(model, tmp_path):
    quantize_file(model, tmp_path / "a.gguf", "Q8_0")
    quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "F16")
    with GgufFile(tmp_path / "a.gguf") as a, GgufFile(tmp_path / "b.gguf") as b:
        x, y = (f.tensors["blk.0.attn_q.weight"] for f in (a, b))
        assert y.ggml_type == GgmlType.F16
        np.testing.assert_allclose(
            dequantize(x.rows(), x.ggml_type), dequantize(y.rows(), y.ggml_type), rtol=1e-3, atol=1e-7
        )


def test_nothing_is_left_of_a_failure(model, tmp_path):
    rng = np.random.default_rng(0)
    bad = rng.standard_normal((64, 256)).astype(np.float32)
    bad[50, 3] = np.nan
    write_gguf(tmp_path / "bad.gguf", {}, {"a.weight": (bad, "F32")})
    (tmp_path / "out.gguf").write_bytes(b"older")
    for source, target, t, said in (
        (tmp_path / "bad.gguf", tmp_path / "out.gguf", "Q4_K", "quantize Q4_K: NaN"),
        (
            tmp_path / "bad.gguf",
            tmp_path / "out.gguf",
            "IQ2_S",
            r"models cannot be written in 22 \(IQ2_S\); formats: F32",
        ),
        (tmp_path / "bad.gguf", tmp_path / "bad.gguf", "Q8_0", "expected another name"),
        (tmp_path / "none.gguf", tmp_path / "out.gguf", "Q8_0", "none.gguf"),
    ):
        with pytest.raises(GgufError, match=said):
            quantize_file(source, target, t)
        assert (tmp_path / "out.gguf").read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf", "in.gguf", "out.gguf"]

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, tmp_path / "out.gguf", "Q8_0", stop)
    assert (tmp_path / "out.gguf").read_bytes() == b"older" and len(list(tmp_path.iterdir())) == 3


def test_an_integer_tensor_is_not_converted(model, tmp_path):
    with pytest.raises(BlockFormatError, match="I32 cannot be written as F16"):
        write_gguf(tmp_path / "x.gguf", {}, {"t": (model.tensors["table"], "F16")})


def test_the_command(model, tmp_path, capsys):
    source, target = str(model.path), str(tmp_path / "out.gguf")
    assert main(["quantize", source, target, "q5_0"]) == 0
    assert "2 Q5_0" in capsys.readouterr().out
    with GgufFile(target) as out:
        assert out.tensors["blk.0.attn_q.weight"].ggml_type == GgmlType.Q5_0
    assert main(["quantize", source, target, "Q4_K"]) == 2  # it exists
    assert "--force" in capsys.readouterr().err
    assert main(["quantize", source, target, "Q4_K", "--force", "--json", "--threads", "2"]) == 0
    assert '"Q4_K": 1' in capsys.readouterr().out
    assert main(["quantize", source, str(tmp_path / "o.gguf"), "Q9"]) == 1
    assert "not a tensor format" in capsys.readouterr().err
    assert main(["quantize", source, source, "Q8_0", "--force"]) == 1
    assert main(["quantize", source, target, "Q8_0", "--force", "--threads", "0"]) == 2


def test_the_command_names_a_file_that_cannot_be_written(model, tmp_path, capsys):
    target = tmp_path / "no such folder" / "o.gguf"
    assert main(["quantize", str(model.path), str(target), "Q8_0"]) == 1
    assert f"{target} cannot be written: " in capsys.readouterr().err
    (tmp_path / "a folder.gguf").mkdir()
    assert main(["quantize", str(model.path), str(tmp_path / "a folder.gguf"), "Q8_0", "--force"]) == 1
    assert not list(tmp_path.glob(".*.tmp"))
