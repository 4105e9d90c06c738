"""One exercise as Markdown: contract, what is given, starter, hints one by one, and the solution after them."""

from __future__ import annotations

import html

from course.book.contract import as_markdown, escape, fenced, methods, signature
from course.source import ChapterSource, Definition, ExerciseSource

WARNING = "Write yours first: what you have found yourself is what you keep. The hints above come in small steps."


def anchor(name: str) -> str:
    """The name under which pages link to an exercise."""
    return "exercise-" + name.replace(".", "-").replace("_", "-")


def fold(title: str, body: str, kind: str = "") -> str:
    """Something that opens when its title is clicked."""
    return f'<details class="fold {kind}">\n<summary>{html.escape(title)}</summary>\n\n{body}\n\n</details>'


def as_text(chapter: ChapterSource, exercise: ExerciseSource) -> str:
    """The part of a chapter's page that stands for an exercise."""
    unit = "point" if exercise.points == 1 else "points"
    place = f"`exercises/{chapter.file_name}`"
    parts = [
        f"({anchor(exercise.name)})=",
        f"**Exercise `{exercise.name}`: {escape(exercise.title)}** ({exercise.points} {unit}, {exercise.level})",
        *[_definition(definition) for definition in exercise.definitions],
        f"Write it in the notebook, or in {place}. Check it: `python3 -m course check {exercise.name}`.",
        fold("The starter", fenced(exercise.starter), "starter"),
    ]
    total = len(exercise.hints)
    parts += [fold(f"Hint {i} of {total}", hint_text(hint), "hint") for i, hint in enumerate(exercise.hints, 1)]
    inside = f"<p><strong>{WARNING}</strong></p>\n\n" + fold(
        "Show the solution", fenced("\n\n\n".join(d.text for d in exercise.written)), "answer"
    )
    parts.append(fold("Our solution: only after yours", inside, "solution"))
    return '<div class="exercise">\n\n' + "\n\n".join(parts) + "\n\n</div>"


def hint_text(hint: str) -> str:
    """A hint: prose, or code where it is laid out in lines."""
    blocks = hint.split("\n\n")
    return "\n\n".join(fenced(b) if _is_code(b) else escape(b) for b in blocks)


def _is_code(block: str) -> bool:
    lines = block.splitlines()
    return len(lines) > 1 and sum(line.startswith((" ", "\t")) for line in lines) > 0


def _definition(definition: Definition) -> str:
    """What is given is shown as code; what the learner writes as a contract to read."""
    if not definition.written:
        return fenced(definition.text)
    parts = [fenced(signature(definition.text)), as_markdown(definition.doc)]
    if found := methods(definition.starter):
        parts.append("**Methods**")
        parts += [fenced(f"def {head}", "python") + "\n\n" + as_markdown(doc) for head, doc in found]
    return "\n\n".join(parts)
