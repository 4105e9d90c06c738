"""my_engine.py: assembled from whatever a learner has passed, it runs, and its tokens are ours."""

import http.client
import json
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fucina
from course.catalogue import Course
from course.files import ExerciseFiles, FilesError
from course.my_engine import assemble
from course.my_engine.pieces import AT_WORK, PIECES, READING, at_work
from course.platform import main
from course.progress import Progress
from course.race import cases
from course.race.plan import SAMPLING
from tests.models import need_smollm2
from tests.unit.course_kit import REAL, make_course
from tests.unit.engine_kit import PROMPT, broken, execute, small_model, solve

LADDER = ("reread", "cache", "lookup", "index", "cascade", "odds", "gate")
N = 12


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model_path: Path) -> fucina.Model:
    return fucina.load(model_path, backend="naive", cache_dtype="f32")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.delenv("FUCINA_COURSE_STATE", raising=False)
    return make_course(tmp_path / "course")


@pytest.fixture
def solved(course: Course) -> Course:
    solve(course)
    return course


def said(reference, n=N, **options):
    return reference.generate(PROMPT, max_tokens=n, ignore_eos=True, **options).tokens


def faults(text):
    """What ruff's F rules find in a text."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--stdin-filename", "m.py", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def run(engine, model, how, **more):
    ask = {"how": how, "ids": PROMPT, "n": N, "document": [], "prompts": [PROMPT, PROMPT[:3], [5]], **more}
    return cases.run(engine, model, {}, ask)


# --- what is assembled --------------------------------------------------------------------------------------------------


def test_without_a_solved_exercise_all_is_ours(course, tmp_path, model_path, reference):
    assembly = assemble(course)
    assert assembly.yours == ()
    assert all(piece.reason == f"until {piece.exercise} passes" for piece in assembly.pieces)
    assert "# --- ch07.verify, Verify a draft in one pass: ours, until ch07.verify passes" in assembly.text
    assert faults(assembly.text) == ""
    engine = execute(assembly, tmp_path)
    model = engine.NumPyModel(str(model_path))
    assert run(engine, model, "cache")["tokens"] == said(reference)
    heads = np.ones((4, 64), np.float32)
    keys = np.ones((2, 1, 64), np.float32)
    assert (
        engine.OPS.attention(heads, keys, keys, 1 / np.sqrt(64), 0).dtype == np.float32
    )  # a float64 number is no reason
    assert model.forward([1, 2], model.new_cache(4)).dtype == np.float32


def test_with_all_solved_all_is_the_learners(solved, tmp_path, model_path, reference):
    assembly = assemble(solved)
    assert assembly.yours == tuple(PIECES)
    assert ": ours" not in assembly.text
    assert faults(assembly.text) == ""
    engine = execute(assembly, tmp_path)
    forwards = (engine.NumPyModel(str(model_path)), engine.CompiledModel(reference))
    for model in forwards:
        for how in LADDER:
            got = run(engine, model, how)
            assert got["tokens"] == said(reference), (how, model)
            assert got["steps"] <= N


def test_pieces_keep_the_learners_text_and_know_their_lines(course):
    _, exercise = course.exercise("ch05.truncate")
    mine = exercise.solution.replace("    if keep < 0", "    # my own comment\n    if keep < 0")
    solve(course, ("ch03.rms_norm",), {"ch05.truncate": mine})
    assembly = assemble(course)
    assert assembly.yours == ("ch03.rms_norm", "ch05.truncate")
    assert mine in assembly.text
    lines = assembly.text.splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if "my own comment" in line)
    assert assembly.at(number).exercise == "ch05.truncate" and assembly.at(number).who == "yours"
    assert assembly.at(1) is None
    assert faults(assembly.text) == ""
    ours = assembly.swapped("ch05.truncate")
    assert mine not in ours.text and ours.yours == ("ch03.rms_norm",)


def test_what_is_not_known_to_pass_is_graded(course):
    _, wrong = course.exercise("ch05.truncate")
    solve(course, ("ch03.swiglu", "ch05.truncate"), passed=False)
    solve(course, (), {"ch04.min_p": "def min_p(probabilities, least):\n    return [0]\n"}, passed=False)
    told = []
    assembly = assemble(course, told.append)
    assert assembly.yours == ("ch03.swiglu", "ch05.truncate")
    assert told == ["checking ch03.swiglu", "checking ch04.min_p", "checking ch05.truncate"]
    (piece,) = [p for p in assembly.pieces if p.exercise == "ch04.min_p"]
    assert piece.who == "ours" and "not yet" in piece.reason
    assert Progress(course).entry("ch05.truncate")["passed_at"]
    again = []
    assemble(course, again.append)
    assert again == ["checking ch04.min_p"]
    solve(course, (), {"ch05.truncate": wrong.solution + "\n    cache.len += 1"}, passed=False)
    assert "ch05.truncate" not in assemble(course).yours  # a pass of an older text is none


def test_a_state_folder_that_cannot_be_written_keeps_nothing_and_hinders_nothing(course, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FUCINA_COURSE_STATE", str(tmp_path / "file" / "state"))
    solve(course, ("ch03.swiglu",), passed=False)
    assert assemble(course).yours == ("ch03.swiglu",)


# --- how pieces are joined ----------------------------------------------------------------------------------------------


def head_of(course, name, text):
    """Put lines at the top of the file of an exercise."""
    chapter, _ = course.exercise(name)
    path = ExerciseFiles(course).path(chapter)
    path.write_text(path.read_text("utf-8").replace('"""\n\n', f'"""\n\n{text}\n', 1), "utf-8")


def test_helpers_come_along_from_wherever_they_stand(course):
    top_p = "def top_p(probabilities, p):\n    return _cut(probabilities)[: int(floor(p))]\n"
    min_p = "print('tried')\n\n\ndef _cut(x):\n    return x[:LIMIT]\n\n\ndef min_p(a, b):\n    return _cut(a)\n\n\nassert 1\n"
    solve(course, (), {"ch04.top_p": top_p, "ch04.min_p": min_p})
    head_of(course, "ch04.top_p", "from math import floor\nimport os\nLIMIT = 5\nUNUSED = 6\n")
    text = assemble(course).text
    assert text.count("def _cut") == 1 and text.index("LIMIT = 5") < text.index("def top_p")
    assert "from math import floor" in text and "import os" not in text and "UNUSED" not in text
    assert "print('tried" not in text and "assert 1" not in text
    assert faults(text) == ""


def test_helpers_of_one_name_do_not_meet(course):
    first = "def _help(x):\n    return x\n\n\ndef swiglu(gate, up):\n    return _help(gate) * up\n"
    second = (
        "def _help(x):\n    return 2 * x\n\n\ndef softmax(logits, temperature):\n    é = 'è'; return _help(logits)\n"
    )
    solve(course, (), {"ch03.swiglu": first, "ch04.softmax_temperature": second})
    assembly = assemble(course)
    scope = {"__name__": "joined"}
    exec(compile(assembly.text, "joined.py", "exec"), scope)
    assert (scope["swiglu"](3, 4), scope["softmax"](3, 1)) == (12, 6)
    assert "_help_ch04_softmax_temperature" in assembly.text


@pytest.mark.parametrize(
    ("helper", "told"),
    [
        ("def step(x):\n    return 3 * x\n", ""),
        ("def main(x):\n    return 3 * x\n", ""),
        ("from math import exp as main\n", "means something else"),
        ("from course import grading as main\n", "exists in the course alone"),
        ("main = lambda x, main=3: x\n", "in use for something else"),
    ],
)
def test_a_name_that_is_taken(course, helper, told):
    word = "step" if "def step" in helper else "main"
    text = f"{helper}\n\ndef swiglu(gate, up):\n    return {word}(gate) * up\n"
    solve(course, (), {"ch03.swiglu": text})
    assembly = assemble(course)
    (piece,) = [p for p in assembly.pieces if p.exercise == "ch03.swiglu"]
    assert (piece.who == "ours") == bool(told)
    if not told:
        scope = {"__name__": "joined"}
        exec(compile(assembly.text, "joined.py", "exec"), scope)
        assert scope["swiglu"](2, 5) == 30 and scope[word] is not scope[f"{word}_ch03_swiglu"]
    assert told in piece.reason
    assert faults(assembly.text) == ""


def test_what_patches_a_definition_comes_along(course):
    _, exercise = course.exercise("ch04.ban")
    patched = exercise.solution + "\n\n\ndef _said(self, token):\n    self.said += 1\n\n\nBan.commit = _said\n"
    solve(course, (), {"ch04.ban": patched})
    text = assemble(course).text
    assert text.index("class Ban") < text.index("def _said") < text.index("Ban.commit = _said")


def test_an_append_and_a_gate_may_call_the_learners_other_exercises(course, tmp_path, reference):
    _, append = course.exercise("ch08.append")
    _, gate = course.exercise("ch09.gate")
    _, losing = course.exercise("ch09.losing")
    called = "self.walk(self.match_state, self.match_length, token)"
    judged = "(enough and tokens < paid)"
    texts = {
        "ch08.append": append.solution.replace(called, called.replace("self.walk(", "walk(self, ")),
        "ch09.gate": gate.solution.replace(judged, "losing(self.window, self.enough)").replace(
            "if enough and tokens < paid:", "if losing(self.window, self.enough):"
        ),
    }
    assert all(text != course.exercise(name)[1].solution for name, text in texts.items())
    solve(course)
    solve(course, ("ch09.losing",), texts)
    assembly = assemble(course)
    assert assembly.yours == tuple(PIECES) and losing.solution in assembly.text
    assert texts["ch08.append"] in assembly.text and assembly.text.count("def walk(index") == 1
    engine = execute(assembly, tmp_path)
    assert run(engine, engine.CompiledModel(reference), "gate")["tokens"] == said(reference)
    gate = engine.Gate()
    for _ in range(2):
        gate.record(1, 0, 4, 2.0)
    assert gate.state == "off"


# --- every piece is at work ---------------------------------------------------------------------------------------------


def way_of(name):
    """(way of decoding, forward) of a run that goes through a piece."""
    for how in AT_WORK:
        for forward in ("fucina", "numpy"):
            if name in at_work(how, forward):
                return how, forward
    raise AssertionError(f"no run goes through {name}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """One course for tests that bring a piece back after they broke it."""
    return make_course(tmp_path_factory.mktemp("shared") / "course")


@pytest.mark.parametrize("name", PIECES)
def test_a_passed_piece_is_really_used(shared, tmp_path, model_path, reference, name):
    course = shared
    mark = f"raise RuntimeError('here is {name}')"
    solve(course, (), {name: broken(course, name, mark)})
    how, forward = way_of(name)
    engine = execute(assemble(course), tmp_path)
    solve(course, (name,))
    with pytest.raises(RuntimeError, match=f"here is {name}"):
        model = engine.NumPyModel(str(model_path)) if forward == "numpy" else engine.CompiledModel(reference)
        for way in dict.fromkeys((how, "isolated" if how == "three streams" else how)):
            known = {"stop": said(reference)[4], "document": [*PROMPT[-1:], *said(reference)]}
            run(engine, model, way, sampling=SAMPLING, banned=[1], **known)
        if name == "ch09.break_even":  # a run may have odds for all of its drafts, and then it is not asked
            judge = engine.Judge(gate=SimpleNamespace(allows=lambda: True, budget=lambda: 2))
            judge.begin()
            judge.shorten([1, 2], None, float)


def test_a_run_goes_through_no_other_piece_than_is_said(course, tmp_path, model_path, reference):
    """With every piece outside `at_work` broken, the run is right: blame looks at these pieces alone."""
    for how in (
        "cache",
        "lookup",
        "odds",
        "gate",
        "sampled",
        "until a stop",
        "from a document",
        "three streams",
        "one by one",
        "served",
    ):
        outside = [n for n in PIECES if n not in at_work(how, "fucina")]
        solve(course, (), {n: broken(course, n, "raise RuntimeError('not at work')") for n in outside})
        engine = execute(assemble(course), tmp_path)
        known = {"stop": said(reference)[4], "document": [*PROMPT[-1:], *said(reference)]}
        run(engine, engine.CompiledModel(reference), how, sampling=SAMPLING, banned=[1], **known)
        solve(course, outside)
    assert set(READING) <= set(at_work("cache", "numpy"))


# --- what it says -------------------------------------------------------------------------------------------------------


def test_sampling_stops_and_streams_give_the_engines_tokens(solved, tmp_path, reference):
    engine = execute(assemble(solved), tmp_path)
    model = engine.CompiledModel(reference)
    plain = said(reference)

    class Forbid:
        def process(self, logits, history):
            logits[[1, 2]] = -float("inf")

        def commit(self, token):
            pass

    names = {"repeat": "repeat_penalty", "frequency": "frequency_penalty", "presence": "presence_penalty"}
    options = {names.get(key, key): value for key, value in SAMPLING.items()}
    got = run(engine, model, "sampled", sampling=SAMPLING, banned=[1, 2])["tokens"]
    assert got == said(reference, processor=Forbid(), **options) != plain
    stop = plain[5]
    assert run(engine, model, "until a stop", stop=stop)["tokens"] == plain[: plain.index(stop) + 1]
    assert run(engine, model, "streaming")["tokens"] == plain
    quoted = run(engine, model, "from a document", document=[*PROMPT[-2:], *plain])
    assert quoted["tokens"] == plain and quoted["steps"] < N / 2 < quoted["accepted"]
    assert run(engine, model, "from a document", document=[*PROMPT[-2:], 9, *plain[1:]])["tokens"] == plain
    each = [reference.generate(ids, max_tokens=4, ignore_eos=True).tokens for ids in (PROMPT, PROMPT[:3], [5])]
    assert run(engine, model, "three streams", n=4)["tokens"] == sum(each, [])
    assert run(engine, model, "isolated", n=4)["tokens"] == each[0][:2] + each[1] + each[2]
    assert run(engine, model, "served", n=4)["tokens"] == sum(each, [])


def test_a_server_of_the_pieces_streams_refuses_and_shares(solved, tmp_path, reference):
    engine = execute(assemble(solved), tmp_path)

    class Letters:
        eos = None

        def encode_prompt(self, text):
            return [int(word) for word in text.split()]

        def piece(self, token):
            return b"%d " % token

    service = engine.Service(engine.CompiledModel(reference), streams=2, longest=32, limit=2)
    site = engine.listen(service, Letters(), 0)
    threads = [threading.Thread(target=work, daemon=True) for work in (service.run, site.serve_forever)]
    for thread in threads:
        thread.start()

    def ask(**asked):
        connection = http.client.HTTPConnection(*site.server_address, timeout=60)
        connection.request("POST", "/", json.dumps(asked))
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
        connection.close()
        return status, body

    def tokens(body):
        *texts, finish, done = body.decode().split("\n\n")[:-1]
        assert done == "data: [DONE]" and json.loads(finish[6:]) == {"finish": "length"}
        return [int(word) for text in texts for word in json.loads(text[6:])["text"].split()]

    try:
        prompts = [PROMPT, PROMPT[:3], [5]]
        with ThreadPoolExecutor(3) as crowd:
            got = list(crowd.map(lambda ids: ask(prompt=" ".join(map(str, ids)), max_tokens=4), prompts))
        assert [status for status, _ in got] == [200] * 3
        for ids, (_, body) in zip(prompts, got, strict=True):
            assert tokens(body) == reference.generate(ids, max_tokens=4, ignore_eos=True).tokens
        assert ask(prompt="1 2", max_tokens=40)[0] == 400  # more than the memory of a place
        for wrong in ({"max_tokens": 4}, {"prompt": "1", "max_tokens": 0}, {"prompt": "1", "max_tokens": "many"}):
            assert ask(**wrong)[0] == 400
        service.limit = 0
        waiting = [engine.Request([5], 20) for _ in range(2)]  # both places are taken
        service.scheduler.running = waiting
        with pytest.raises(engine.Busy) as busy:
            service.submit(engine.Request([5], 4))
        assert busy.value.seconds >= 1
    finally:
        service.close()
        site.shutdown()
        site.server_close()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_pool_serves_both_forwards_with_the_engines_tokens(solved, tmp_path, model_path, reference):
    engine = execute(assemble(solved), tmp_path)
    prompts = [PROMPT, PROMPT[:3], [*PROMPT, 9, 8], [5]]
    each = [reference.generate(ids, max_tokens=4, ignore_eos=True).tokens for ids in prompts]
    for model in (engine.NumPyModel(str(model_path)), engine.CompiledModel(reference)):
        got = run(engine, model, "one by one", n=4, prompts=prompts)
        assert got["tokens"] == sum([*each, each[0]], [])
        assert got["cached"] == [0, 2, len(PROMPT), 0, len(PROMPT) - 1]

    class Broken:
        def __getattr__(self, name):
            return getattr(model, name)

        def forward(self, tokens, cache):
            if cache.len == len(PROMPT) + 1:
                raise OSError("in the middle of an answer")
            return model.forward(tokens, cache)

    server = engine.Server(Broken(), 2, 64)
    with pytest.raises(OSError, match="in the middle"):
        server.answer(PROMPT, 4)
    (slot,) = server.pool.slots
    assert slot.shadow == [*PROMPT, *each[0][:1]] and slot.cache.len == len(slot.shadow)
    server.model = model
    assert server.answer(PROMPT, 4)[0] == each[0]


class Source:
    """In the place of a cascade: knows its odds, or none."""

    def __init__(self, odds):
        self.odds = lambda: odds


def test_odds_decide_how_much_is_verified_and_the_gate_where_there_are_none(solved, tmp_path):
    engine = execute(assemble(solved), tmp_path)
    draft, likely = [1, 2, 3, 4], [0.9, 0.9, 0.1, 0.1]

    def price(rows):
        return 1 + 0.25 * (rows - 1)

    judge = engine.Judge(True, engine.Gate())
    judge.gate.state, judge.gate.backoff = "off", 100
    judge.begin()
    assert judge.gate.waited == 1
    assert judge.shorten(draft, Source(likely), price) == [1, 2]  # although the gate is off
    assert judge.shorten(draft, Source([0.1] * 4), price) == []
    assert judge.shorten(draft, Source(None), price) == []
    judge = engine.Judge(True, engine.Gate())
    judge.begin()
    assert judge.shorten(draft, Source(None), price) == draft[: judge.gate.budget()]
    judge.record(1, 0, 3, 1.75)
    assert len(judge.gate.window) == 1 and judge.ledger.won == -0.75
    assert judge.shorten(draft, Source(None), lambda rows: 2.0 * rows) == []  # it could not win
    assert judge.shorten(draft, Source([1.0] * 4), price) == [1]  # 0.26 steps may be lost
    judge.record(2, 1, 1, 1.25)
    assert len(judge.gate.window) == 1  # the gate is told of what it judged alone
    assert engine.Judge(False, None).shorten(draft, Source(likely), price) == draft


def test_odds_follow_what_came(solved, tmp_path):
    engine = execute(assemble(solved), tmp_path)
    odds = engine.Odds()
    before = odds.of(2, 3)
    assert before == sorted(before) and before[0] == 0.5 and odds.of(40, 1) == odds.of(16, 1)
    odds.learn(2, [7, 8, 9], [7, 5])
    right, wrong, unknown = odds.of(2, 3)
    assert right > before[0] and wrong < before[1] and unknown == before[2]


def test_an_error_in_the_middle_leaves_history_and_cache_in_step(solved, tmp_path, reference):
    engine = execute(assemble(solved), tmp_path)
    model = engine.CompiledModel(reference)
    for how in ("cache", "gate"):
        history, seen = list(PROMPT), []

        def emit(token, seen=seen):
            seen.append(token)
            if len(seen) == 3:
                raise KeyboardInterrupt

        cache = engine.read_prompt(model, history, 64)
        with pytest.raises(KeyboardInterrupt):
            engine.go_on(model, cache, history, N, how, emit=emit)
        assert history[len(PROMPT) :] == seen == said(reference)[:3]
        assert cache.len == len(history) - 1


def test_a_model_of_another_family_is_refused(solved, tmp_path):
    engine = execute(assemble(solved), tmp_path)
    data = Path(__file__).parents[1] / "data" / "models"
    for name in ("gemma3.gguf", "llama3rope.gguf"):
        with pytest.raises(engine.UnknownModel, match="llama family"):
            engine.NumPyModel(str(data / name))


def test_the_file_runs_by_itself(solved, tmp_path):
    path = need_smollm2()
    assert main(["engine", "--write", str(tmp_path / "my_engine.py")], solved) == 0
    command = [sys.executable, "my_engine.py", "The capital of Italy is", "--model", str(path), "--forward", "fucina"]
    (tmp_path / "notes.txt").write_text("They say that the capital of Italy is Rome. <|im_end|>", "utf-8")
    command += ["--reference", "notes.txt"]
    done = subprocess.run([*command, "--max-tokens", "6"], capture_output=True, text=True, cwd=tmp_path)
    with warnings.catch_warnings():
        model = fucina.load(path)
    want = model.generate("The capital of Italy is", max_tokens=6).text
    assert (done.returncode, done.stdout) == (0, f"The capital of Italy is{want}"), done.stderr
    assert "6 tokens in" in done.stderr


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_says_whose_is_what(course, capsys, tmp_path):
    solve(course, ("ch05.truncate",))
    assert main(["engine"], course) == 0
    out = capsys.readouterr().out
    assert "ch05.truncate              yours" in out and f"1 of its {len(PIECES)} pieces are yours." in out
    path = tmp_path / "deep" / "mine.py"
    assert main(["engine", "--write", str(path)], course) == 0
    assert path.read_text("utf-8") == assemble(course).text
    path.write_text("something of mine", "utf-8")
    assert main(["engine", "--write", str(path)], course) == 0
    (kept,) = (course.state / "backups").glob("mine.*.py")
    assert kept.read_text("utf-8") == "something of mine" and str(kept) in capsys.readouterr().out
    assert list(path.parent.iterdir()) == [path]  # nothing half-written stays


def test_a_place_that_cannot_be_written(course, capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert main(["engine", "--write", str(tmp_path / "file" / "my_engine.py")], course) == 2
    assert "cannot write" in capsys.readouterr().err
    with pytest.raises(FilesError):
        assemble(course).write(tmp_path / "file" / "my_engine.py")


def test_a_file_that_python_cannot_read_is_ours(course):
    chapter, _ = course.exercise("ch05.truncate")
    solve(course, ("ch05.truncate", "ch03.swiglu"))
    path = ExerciseFiles(course).path(chapter)
    path.write_text(path.read_text("utf-8") + "\n\nif True return\n", "utf-8")
    assembly = assemble(course)
    assert assembly.yours == ("ch03.swiglu",)
    path.write_bytes(b"\xff\xfe broken")
    assert assemble(course).yours == ("ch03.swiglu",)


def test_the_real_course_can_be_assembled():
    assert {piece.exercise for piece in assemble(REAL).pieces} == set(PIECES)
