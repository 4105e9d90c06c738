"""Real models: a process is killed during a reply, and its conversation goes on as if it had never been started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fucina
from fucina.chat import Conversation
from tests.conversations import check_state, same_rows
from tests.models import need_gemma3, need_smollm2

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"max_tokens": 12, "capacity": 700, "temperature": 0.8, "top_p": 0.9, "seed": 5}
CHILD = """
import sys, fucina
c = fucina.Conversation(fucina.load(sys.argv[1]), "Answer in one sentence.", save=sys.argv[2], **{options})
for text in sys.argv[4:]:
    for piece in c.send(text, stream=True):
        print("piece", flush=True)
        if text == sys.argv[3]:
            sys.stdin.read()  # here it is killed
    print("done", flush=True)
"""


def killed_during(model: Path, file: Path, last: str, texts: list[str], options: dict) -> None:
    """Let a process say the texts, and kill it in the reply to `last`."""
    code = CHILD.replace("{options}", repr(options))
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(model), str(file), last, *texts],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    done = 0
    for line in child.stdout:
        done += line == "done\n"
        if line == "piece\n" and done == len(texts) - 1:
            break
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL and done == len(texts) - 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("need, template", [(need_smollm2, None), (need_gemma3, "gemma")], ids=["smollm2", "gemma3"])
def test_killed_during_a_reply(need, template, tmp_path):
    path, file = need(), tmp_path / "talk.fuxkv"
    texts = ["Name a river.", "And a town at it? " + "Think of maps and bridges. " * 60, "Why there?", "Thank you."]
    model, options = fucina.load(path), {**OPTIONS, "template": template}
    twin = Conversation(model, "Answer in one sentence.", **options)
    for said in range(3):
        killed_during(path, file, texts[said], texts[said : said + 1], options)
        with Conversation(model, save=file, **options) as c:
            assert (c.messages, c.history) == (twin.messages, twin.history) and c.save_lost == ""
            assert c.sampler.state() == twin.sampler.state()
            if said:
                assert c.restored == len(c.history) or c.restored == len(c.history) - 1
                same_rows(c.cache, twin.cache)
            reply = c.send(texts[said])
            expected = twin.send(texts[said])
            assert (reply.tokens, reply.text) == (expected.tokens, expected.text)
            assert not said or reply.cached_tokens >= c.restored - 20
            check_state(c)
    model.close()
