"""Speculation from the command line, and a table of costs measured on one's own machine: from bench to generate and chat."""

import json

import pytest

import fucina
from fucina.chat import Conversation
from fucina.cli import main
from fucina.errors import InvalidOption
from fucina.measure import results, tables, verify_cost
from fucina.speculative import CostTable, Options, SourceDrafter
from tests.chat_model import write_chat_model
from tests.models import TINY

PATH = str(TINY / "llama.gguf")
PROMPT = "the the cat the the cat the"


@pytest.fixture(scope="module")
def chat_path(tmp_path_factory):
    return str(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))


@pytest.fixture(scope="module")
def model():
    m = fucina.load(PATH, backend="naive")
    yield m
    m.close()


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Compile whatever the commands need: the line that tells of it is no part of these tests."""
    base = ["generate", PROMPT, "-n", "8", "--ignore-eos", "--model", PATH, "--threads", "1"]
    assert main([*base, "-t", "0.8", "--seed", "3", "--repeat-penalty", "1.2"]) == 0
    assert main([*base, "--spec"]) == 0


@pytest.fixture
def documents(tmp_path):
    """Two texts, one of them with a character of several bytes."""
    (tmp_path / "one.txt").write_text("the cat sät on the cat", encoding="utf-8")
    (tmp_path / "two.txt").write_bytes(b"\xef\xbb\xbfa text that begins with a mark\r\n")
    return [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]


# --- generate, chat -----------------------------------------------------------------------------------------------


def test_generate(cli, documents):
    base = ("generate", PROMPT, "-n", 30, "--ignore-eos", "--model", PATH, "--threads", 1)
    for sampling in ((), ("-t", 0.8, "--seed", 3, "--repeat-penalty", 1.2, "--stop", "zz")):
        plain = cli(*base, *sampling)
        spec = cli(*base, *sampling, "--spec", "--spec-ref", documents[0], "--spec-ref", documents[1], "--spec-stats")
        assert (plain[0], plain[2]) == (0, "") and spec[:2] == plain[:2]
        counts, sources = spec[2].splitlines()
        assert counts.startswith("spec: steps=") and "committed=30" in counts
        assert sources.startswith("spec sources: conversation ") and " ref0 " in sources and " ref1 " in sources


def test_chat(cli, chat_path, documents):
    base = ("chat", "abab", "ab", "-n", 12, "--model", chat_path, "--threads", 1)
    for sampling in ((), ("-t", 0.9, "--seed", 3, "--format", "chatml")):
        plain = cli(*base, *sampling)
        spec = cli(*base, *sampling, "--spec", "--spec-ref", documents[0], "--spec-stats")
        assert plain[0] == 0 and spec[:2] == plain[:2]
        assert "committed=24" in spec[2] and " ref0 " in spec[2]
    document = json.loads(cli(*base, "--spec", "--spec-ref", documents[0], "--json")[1])
    assert document["speculation"]["committed"] == 24
    assert set(document["speculation"]["sources"]) == {"conversation", "ref0", "recycling"}
    assert "speculation" not in json.loads(cli(*base, "--json")[1])


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_is_refused(cli, tmp_path, command):
    """One line on stderr, before a model is loaded: exit code 2."""
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "list.json").write_text("[1, 2]", encoding="utf-8")
    (tmp_path / "low.json").write_text(json.dumps({"rows": [1, 2], "contexts": [0], "costs": [[1.0, -2.0]]}), "utf-8")
    good = tmp_path / "good.txt"
    good.write_text("text", encoding="utf-8")
    cases = [
        (("--spec-stats",), "--spec-stats needs --spec"),
        (("--spec-ref", good), "--spec-ref needs --spec"),
        (("--spec-costs", good), "--spec-costs needs --spec"),
        (("--spec", "--spec-ref", tmp_path / "latin.txt"), "latin.txt: not UTF-8, byte 0xE9 at 3"),
        (("--spec", "--spec-ref", tmp_path / "none.txt"), "none.txt: No such file"),
        (("--spec", "--spec-ref", tmp_path / "empty.txt"), "empty.txt: the file is empty"),
        (("--spec", "--spec-ref", good, "--spec-ref", tmp_path / "none.txt"), "none.txt: No such file"),
        (("--spec", "--spec-ref", tmp_path), "--spec-ref"),
        (("--spec", "--spec-costs", tmp_path / "none.json"), "none.json: No such file"),
        (("--spec", "--spec-costs", tmp_path), "--spec-costs"),
        (("--spec", "--spec-costs", good), "good.txt is not a table of verify costs"),
        (("--spec", "--spec-costs", tmp_path / "list.json"), "list.json is not a table of verify costs"),
        (("--spec", "--spec-costs", tmp_path / "latin.txt"), "latin.txt is not a table of verify costs"),
        (("--spec", "--spec-costs", tmp_path / "low.json"), "costs must be finite and positive, got -2.0"),
    ]
    for options, what in cases:
        status, out, err = cli(command, "hi", "--model", tmp_path / "no.gguf", *options)
        assert (status, out, err.count("\n")) == (2, "", 1) and what in err, options


def test_an_empty_table(cli, tmp_path):
    (tmp_path / "empty.json").write_text('{"rows": [], "contexts": [], "costs": []}', encoding="utf-8")
    status, out, err = cli("generate", "hi", "--spec", "--spec-costs", tmp_path / "empty.json", "--model", PATH)
    assert (status, out) == (1, "") and "at least one point" in err


# --- a table from a file --------------------------------------------------------------------------------------------


def test_a_table_goes_from_bench_to_the_drafter(cli, tmp_path, model, monkeypatch):
    file = tmp_path / "costs.json"
    bench = ("bench", "--verify-cost", "--quick", "--model", PATH, "--backend", "naive", "--threads", 1)
    status, out, err = cli(*bench, "--write", file)
    table = CostTable.load(file)
    assert status == 0 and err.startswith("context 128: 1: 1.00") and "after 128 tokens" in out and out.isascii()
    assert table.rows == verify_cost.ROWS and table.contexts == (128,) and table.costs[0][0] == 1.0
    told = table.provenance
    assert set(told) == {"model", "date", "command", "machine", "versions"} and told["model"] == "a file"
    assert told["command"] == "fucina bench --quick --verify-cost --threads 1 --rounds 15"
    assert [f.name for f in tmp_path.iterdir()] == ["costs.json"]  # no half-written file stays

    seen = []
    make = SourceDrafter.__init__
    monkeypatch.setattr(SourceDrafter, "__init__", lambda self, *a, **k: (make(self, *a, **k), seen.append(self))[0])
    base = ("generate", PROMPT, "-n", 20, "--ignore-eos", "--model", PATH, "--backend", "naive")
    assert cli(*base, "--spec", "--spec-costs", file)[:2] == cli(*base)[:2]
    options = Options(cost_table=CostTable.load(file))
    assert model.generate(PROMPT, max_tokens=20, ignore_eos=True, speculative=options).speculation.committed == 20
    Conversation(model, template="chatml", max_tokens=2, speculation=options, references=["a text"]).send("hi")
    assert [d.options.table.costs for d in seen] == [table.costs] * 3


def test_a_table_as_json(cli):
    status, out, _ = cli(
        "bench", "--verify-cost", "--quick", "--rounds", 1, "--model", PATH, "--backend", "naive", "--json"
    )
    document = json.loads(out)
    assert status == 0 and document["contexts"] == [128] and PATH not in out
    assert len(document["costs"][0]) == len(document["rows"]) == len(verify_cost.ROWS)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--write", "x.json"), "--write needs --verify-cost"),
        (("--verify-cost", "--rounds", "0"), "--rounds must be at least 1"),
        (("--verify-cost", "--write", "no/such/folder/x.json"), "there is no folder for such a file"),
        (("--verify-cost", "--streams"), "not allowed with argument"),
    ],
)
def test_bench_refuses(cli, options, what):
    status, out, err = cli("bench", "--model", PATH, *options)
    assert (status, out) == (2, "") and what in err


def test_a_folder_is_no_table(cli, tmp_path):
    status, _, err = cli("bench", "--model", PATH, "--verify-cost", "--write", tmp_path)
    assert status == 2 and "no folder for such a file" in err


def test_measuring_is_checked(model):
    for options in ({"rows": (2, 3)}, {"rows": ()}, {"rounds": 0}, {"rows": (1, 129)}, {"contexts": (600,)}):
        with pytest.raises(InvalidOption):
            verify_cost.measure(model, **{"rows": (1, 2), "contexts": (8,), "rounds": 1, **options})


def test_every_width_is_timed_in_every_round_after_plain_steps(model, monkeypatch):
    """What is timed: the given number of rows after a context, with all logits, from a cache that is put back.  Before
    it two passes of one row: what it is compared with comes after its own kind, as in plain decoding."""
    asked = []
    forward = type(model).forward_rows.__get__(model)

    def noting(requests):
        ((cache, ids, want),) = requests
        asked.append((cache.len, len(ids), want))
        return forward(requests)

    monkeypatch.setattr(model, "forward_rows", noting, raising=False)
    said = []
    costs = verify_cost.measure(model, (1, 3, 5), (4, 9), 2, said.append)
    per_context = lambda n: [(0, n, "none"), *[(n, r, "all") for _ in range(3) for k in (1, 3, 5) for r in (1, 1, k)]]
    assert asked == per_context(4) + per_context(9)
    assert [len(line) for line in costs] == [3, 3] and all(line[0] == 1.0 for line in costs) and len(said) == 2


def test_a_cost_is_a_width_over_the_plain_step_before_it(model, monkeypatch):
    """A pass of one row takes 3 after a wider one and 2 after its own kind; k rows take 2 + k: nothing is divided by 3."""
    clock, last = [0.0], [1]
    forward = type(model).forward_rows.__get__(model)

    def taking(requests):
        ((_, ids, _),) = requests
        clock[0] += (3 if last[0] > 1 else 2) if len(ids) == 1 else 2 + len(ids)
        last[0] = len(ids)
        return forward(requests)

    monkeypatch.setattr(model, "forward_rows", taking, raising=False)
    monkeypatch.setattr(verify_cost, "perf_counter", lambda: clock[0])
    assert verify_cost.measure(model, (1, 2, 4), (4,), 3) == ((1.0, 2.0, 3.0),)


def test_the_table_of_the_terminal():
    table = CostTable((1, 2, 5, 16), (128, 1024), ((1.0, 1.25, 2.0, 4.0), (1.0, 1.5, 3.0, 5.0)))
    lines = tables.text(verify_cost.shown(table)).splitlines()
    assert lines[0].split() == ["C(rows)", "1", "2", "16"] and lines[2].split()[-3:] == ["1.00", "1.25", "4.00"]


def test_records_hold_no_paths():
    assert verify_cost.public_name("smollm2") == "smollm2"
    for path in ("/home/x/m.gguf", "m.gguf", "C:\\m\\x.gguf", "./smollm2"):
        assert verify_cost.public_name(path) == "a file"


def test_a_written_table_is_the_stamped_one(tmp_path, model):
    table = verify_cost.measured_table(model, "m", "command", (1, 2), (4,), 1)
    table.save(tmp_path / "t.json")
    again = CostTable.load(tmp_path / "t.json")
    assert again == table and set(again.provenance) == {"model", *results.stamp("command")}
