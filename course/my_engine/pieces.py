"""What my_engine.py is made of: which definitions of which exercise, and in which order."""

from __future__ import annotations

FRAME = ("file", "text", "model", "sampler", "loop", "sources", "drafts", "streams", "requests", "serving", "command")
"""The sections between the pieces, files of `course/my_engine/frame/`."""

PIECES: dict[str, tuple[str, ...]] = {
    "ch01.read_header": ("read_value", "read_header"),
    "ch01.dequantize_q8_0": ("dequantize_q8_0",),
    "ch01.dequantize_q4_1": ("dequantize_q4_1",),
    "ch01.dequantize_q4_k": ("dequantize_q4_k",),
    "ch02.alphabet": ("byte_alphabet",),
    "ch02.split": ("split",),
    "ch02.merge": ("merge",),
    "ch02.chat": ("encode_chat",),
    "ch02.stream": ("TextStream",),
    "ch03.rms_norm": ("rms_norm",),
    "ch03.rope": ("angles", "rotate"),
    "ch03.attention": ("attention",),
    "ch03.swiglu": ("swiglu",),
    "ch03.layer": ("run_layer",),
    "ch03.forward": ("forward",),
    "ch04.softmax_temperature": ("softmax",),
    "ch04.top_p": ("top_p",),
    "ch04.min_p": ("min_p",),
    "ch04.draw": ("draw",),
    "ch04.penalties": ("penalise",),
    "ch04.ban": ("Ban",),
    "ch05.truncate": ("truncate",),
    "ch05.decode_loop": ("decode",),
    "ch06.lockstep": ("lockstep",),
    "ch06.isolate": ("step",),
    "ch06.admit": ("next_pass",),
    "ch07.verify": ("verify_step",),
    "ch07.mid_step": ("safe_step",),
    "ch07.drafter": ("PromptLookup",),
    "ch08.walk": ("walk",),
    "ch08.append": ("Automaton",),
    "ch08.draft": ("Drafter",),
    "ch08.recycle": ("TopKRow", "Recycler"),
    "ch08.cascade": ("Source", "choose", "SourceGate"),
    "ch09.break_even": ("break_even",),
    "ch09.best_draft": ("best_draft",),
    "ch09.ewma": ("LiveCost",),
    "ch09.gate": ("Gate",),
    "ch12.pool": ("Pool",),
    "ch15.step": ("Scheduler",),
    "ch15.frames": ("Frames",),
    "ch15.admit": ("admit",),
    "ch15.fair": ("FairQueue",),
}
"""Exercise -> the definitions that the engine takes from it.  What these need beside them comes along."""

GIVEN = dict.fromkeys(
    ("InvalidDecodeState", "KvCacheOverflow", "CounterRng", "Stream", "greedy", "Request", "Load"), ""
)
"""What chapters give their learners and the frame gives to all -> the exercise whose part holds it, "" for a file's top."""

PROVIDED = GIVEN | {name: exercise for exercise, names in PIECES.items() for name in names}
"""Name -> the same: what a piece need not bring along."""

READING = ("ch01.read_header", "ch01.dequantize_q8_0", "ch01.dequantize_q4_1", "ch01.dequantize_q4_k")
FORWARD = tuple(name for name in PIECES if name.startswith("ch03."))
INDEX = ("ch09.ewma", "ch08.append", "ch08.draft")
CASCADE = (*INDEX, "ch08.recycle", "ch08.cascade")
ALL_OF_IT = (*CASCADE, "ch09.best_draft", "ch09.break_even", "ch09.gate")

AT_WORK: dict[str, tuple[str, ...]] = {
    "reread": ("ch04.draw",),
    "cache": ("ch04.draw", "ch05.decode_loop"),
    "lookup": ("ch04.draw", "ch07.verify", "ch09.ewma", "ch07.drafter"),
    "index": ("ch04.draw", "ch07.verify", *INDEX),
    "cascade": ("ch04.draw", "ch07.verify", *CASCADE),
    "odds": ("ch04.draw", "ch07.verify", *CASCADE, "ch09.best_draft"),
    "gate": ("ch04.draw", "ch07.verify", *ALL_OF_IT),
    "sampled": (*(name for name in PIECES if name.startswith("ch04.")), "ch05.decode_loop"),
    "until a stop": ("ch04.draw", "ch07.mid_step", *CASCADE),
    "streaming": ("ch04.draw", "ch07.mid_step", *CASCADE),
    "from a document": ("ch04.draw", "ch07.verify", *ALL_OF_IT, "ch08.walk"),
    "three streams": ("ch06.admit", "ch06.lockstep"),
    "isolated": ("ch06.admit", "ch06.isolate"),
    "one by one": ("ch04.draw", "ch05.decode_loop", "ch12.pool"),
    "in words": ("ch02.alphabet", "ch02.split", "ch02.merge", "ch02.chat", "ch02.stream"),
    "served": ("ch15.step", "ch15.frames", "ch15.admit", "ch15.fair"),
}
"""Way of decoding -> the pieces that it runs through, beside those of the forward."""


def at_work(how: str, forward: str) -> tuple[str, ...]:
    """The pieces that a run in one of the ways of AT_WORK uses; `forward` is "numpy" or "fucina"."""
    beside: tuple[str, ...] = ()
    if forward == "numpy":  # the loop alone never goes back; a verify step does
        beside = (*READING, *FORWARD, *(("ch05.truncate",) if how not in ("reread", "cache") else ()))
    return tuple(dict.fromkeys((*beside, *AT_WORK[how])))
