"""The four built-in chat formats: ChatML, Llama 3, Gemma 1-3 and Gemma 4.

A model's own template (`ChatTemplate`) always renders a whole conversation.  A format can also render *one turn*, to be
put after what is already in the cache: nothing is rendered or encoded twice, and the tokens of a reply stay those that
were sampled.  The end of a reply is never in the cache (its stop token was dropped), so the next turn begins with it.

`render_turn` and `render_messages` give text; `encode_turn` and `encode_messages` give tokens, where control tokens
come from the format alone: markers that message text spells stay text (see `provenance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import ChatTemplateError, SystemMidConversation
from .messages import Message, check_conversation
from .provenance import encode, joined, of_reply, own, plain

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer

_SPACE = " \t\n\v\f\r"
_ROLES = ("system", "user", "assistant")
_REFUSED = ("tool_calls", "tool_call_id", "function_call")  # keys that these formats cannot write


class ChatFormat(Enum):
    """One of the built-in formats; `ChatFormat("chatml")` finds it by name."""

    CHATML = "chatml"
    LLAMA3 = "llama3"
    GEMMA = "gemma"
    GEMMA4 = "gemma4"

    @classmethod
    def detect(cls, template: str | None) -> ChatFormat | None:
        """Return the format that a model's template (`tokenizer.chat_template`) writes, or None.

        The first of these markers that the template contains decides, in this order.
        """
        for marker, found in _DETECT.items():
            if template is not None and marker in template:
                return found
        return None

    @property
    def stop_marker(self) -> str:
        """Text of the token that ends an assistant's turn."""
        return _STOP[self]

    # --- text -----------------------------------------------------------------------------------------------------

    def render_turn(self, user: str, system: str | None = None, first: bool = True, think_off: bool = False) -> str:
        """Return the text to feed for one user turn.

        Parameters
        ----------
        user : the user's message.
        system : opens the conversation; used in the first turn only.
        first : the conversation begins here; otherwise the assistant's last turn is closed first.
        think_off : begin the reply with an empty reasoning block (ChatML, Gemma 4; the others have none).
        """
        return plain(self._turn(user, system, first, think_off))

    def render_messages(self, messages: Sequence[Message], think_off: bool = False) -> str:
        """Return the text of a whole conversation, ending within the assistant's turn.

        That is its opening; or, if the last message is the assistant's, all of it but the end, so that the reply goes
        on with that message and is only what follows it.  Reasoning blocks at the beginning of earlier replies are left
        out, as the models' own templates do.  The text of a first turn is that of `render_turn`.

        Raises
        ------
        EmptyMessages : there is no message.
        SystemMidConversation : a system message after another one, in a Gemma format.
        ChatTemplateError : a message is malformed, has a role other than system, user, assistant, or tool calls, which
            these formats cannot write.
        """
        return plain(self._messages(messages, think_off))

    # --- tokens ---------------------------------------------------------------------------------------------------

    def encode_turn(
        self, tokenizer: Tokenizer, user: str, system: str | None = None, first: bool = True, think_off: bool = False
    ) -> list[int]:
        """Return the token ids of one turn, control tokens from the format alone; BOS in front of a first turn if the
        tokenizer wants it and the format has not written it.  Parameters are those of `render_turn`."""
        ids = encode(tokenizer, self._turn(user, system, first, think_off), self._spelled)
        return tokenizer.with_bos(ids) if first else ids

    def encode_messages(self, tokenizer: Tokenizer, messages: Sequence[Message], think_off: bool = False) -> list[int]:
        """Return the token ids of a whole conversation: `encode_turn` with the errors of `render_messages`."""
        return tokenizer.with_bos(encode(tokenizer, self._messages(messages, think_off), self._spelled))

    # --- inside ---------------------------------------------------------------------------------------------------

    @property
    def _spelled(self) -> str:
        """Every marker that the format writes."""
        return self._turn("", "", True, True) + self._turn("", "", True, False) + self._turn("", "", False, True)

    def _turn(self, user: str, system: str | None, first: bool, think_off: bool) -> str:
        return joined(_TURN[self](user, system if first else None, first, think_off))

    def _messages(self, messages: Sequence[Message], think_off: bool) -> str:
        turns = []
        for i, message in enumerate(check_conversation(messages)):
            role, content = message["role"], message["content"]
            if role not in _ROLES:
                raise ChatTemplateError(
                    f"message {i}: the {self.value} format has the roles {', '.join(_ROLES)}, got {role!r}"
                )
            for key in _REFUSED:
                if message.get(key):
                    raise ChatTemplateError(
                        f"message {i} ({role}) has {key}: the {self.value} format cannot write tool calls; use the "
                        "model's own template"
                    )
            turns.append((role, content))
        reasoning = _REASONING.get(self)
        begun = turns.pop()[1] if turns[-1][0] == "assistant" else None  # a reply that is to be continued
        if reasoning:
            turns = [(r, strip_reasoning(c, *reasoning) if r == "assistant" else c) for r, c in turns]
            think_off = think_off and not (begun or "").lstrip(_SPACE).startswith(reasoning[0])
        turns = [(r, of_reply(c) if r == "assistant" else c) for r, c in turns]
        return joined([*_MESSAGES[self](turns, think_off), of_reply(begun or "")])


def strip_reasoning(content: str, opening: str, closing: str) -> str:
    """Return a reply without a reasoning block at its beginning; one that is never closed is left as it is."""
    body = content.lstrip(_SPACE)
    end = body.find(closing, len(opening)) if body.startswith(opening) else -1
    return content if end < 0 else body[end + len(closing) :].lstrip(_SPACE)


_DETECT = {
    "<|im_start|>": ChatFormat.CHATML,
    "<|start_header_id|>": ChatFormat.LLAMA3,
    "<|turn>": ChatFormat.GEMMA4,
    "<start_of_turn>": ChatFormat.GEMMA,
}
_STOP = {
    ChatFormat.CHATML: "<|im_end|>",
    ChatFormat.LLAMA3: "<|eot_id|>",
    ChatFormat.GEMMA: "<end_of_turn>",
    ChatFormat.GEMMA4: "<turn|>",
}
_REASONING = {
    ChatFormat.CHATML: ("<think>", "</think>"),
    ChatFormat.GEMMA4: ("<|channel>thought", "<channel|>"),
}
_Turns = list[tuple[str, str]]
_Pieces = list[str]  # of text: the format's own, and those of messages


# --- ChatML ---------------------------------------------------------------------------------------------------------


def _chatml_block(role: str, content: str) -> _Pieces:
    return [own(f"<|im_start|>{role}\n"), content, own("<|im_end|>\n")]


def _chatml_opener(think_off: bool) -> str:
    return own("<|im_start|>assistant\n" + ("<think>\n\n</think>\n\n" if think_off else ""))


def _chatml_turn(user: str, system: str | None, first: bool, think_off: bool) -> _Pieces:
    opening = [] if first else [own("<|im_end|>\n")]
    if system is not None:
        opening += _chatml_block("system", system)
    return [*opening, *_chatml_block("user", user), _chatml_opener(think_off)]


def _chatml_messages(turns: _Turns, think_off: bool) -> _Pieces:
    return [piece for role, content in turns for piece in _chatml_block(role, content)] + [_chatml_opener(think_off)]


# --- Llama 3 --------------------------------------------------------------------------------------------------------


def _llama3_header(role: str) -> str:
    return own(f"<|start_header_id|>{role}<|end_header_id|>\n\n")


def _llama3_block(role: str, content: str) -> _Pieces:
    return [_llama3_header(role), content, own("<|eot_id|>")]


def _llama3_messages(turns: _Turns, think_off: bool) -> _Pieces:
    blocks = [piece for role, content in turns for piece in _llama3_block(role, content)]
    return [own("<|begin_of_text|>"), *blocks, _llama3_header("assistant")]


def _llama3_turn(user: str, system: str | None, first: bool, think_off: bool) -> _Pieces:
    turns = ([] if system is None else [("system", system)]) + [("user", user)]
    begun = _llama3_messages(turns, think_off)
    return begun if first else [own("<|eot_id|>"), *begun[1:]]


# --- Gemma 1-3: no system role, its text opens the first user turn --------------------------------------------------


def _gemma_block(role: str, *contents: str) -> _Pieces:
    return [own(f"<start_of_turn>{role}\n"), *contents, own("<end_of_turn>\n")]


def _gemma_turn(user: str, system: str | None, first: bool, think_off: bool) -> _Pieces:
    opening = [] if first else [own("<end_of_turn>\n")]
    folded = [] if system is None else [system, "\n\n"]
    return [*opening, *_gemma_block("user", *folded, user), own("<start_of_turn>model\n")]


def _gemma_messages(turns: _Turns, think_off: bool) -> _Pieces:
    systems, turns = _leading_systems(turns, ChatFormat.GEMMA)
    if systems and all(role != "user" for role, _ in turns):
        raise ChatTemplateError(
            "the gemma format has no system role: a system message needs a user's message to become part of"
        )
    folded = [piece for s in systems for piece in (s, "\n\n")]
    pieces: _Pieces = []
    for role, content in turns:
        if role == "user":
            pieces += _gemma_block("user", *folded, content)
            folded = []
        else:
            pieces += _gemma_block("model", content)
    return [*pieces, own("<start_of_turn>model\n")]


# --- Gemma 4 --------------------------------------------------------------------------------------------------------


def _gemma4_block(role: str, *contents: str) -> _Pieces:
    return [own(f"<|turn>{role}\n"), *contents, own("<turn|>\n")]


def _gemma4_opener(think_off: bool) -> str:
    return own("<|turn>model\n" + ("<|channel>thought\n<channel|>" if think_off else ""))


def _gemma4_start(system: str | None, think_off: bool) -> _Pieces:
    """`system` is trimmed already."""
    if system is None and think_off:
        return [own("<bos>")]
    return [own("<bos>"), *_gemma4_block("system", own("" if think_off else "<|think|>\n"), system or "")]


def _gemma4_turn(user: str, system: str | None, first: bool, think_off: bool) -> _Pieces:
    trimmed = None if system is None else system.strip(_SPACE)
    opening = _gemma4_start(trimmed, think_off) if first else [own("<turn|>\n")]
    return [*opening, *_gemma4_block("user", user), _gemma4_opener(think_off)]


def _gemma4_messages(turns: _Turns, think_off: bool) -> _Pieces:
    systems, turns = _leading_systems(turns, ChatFormat.GEMMA4)
    pieces = _gemma4_start("\n\n".join(s.strip(_SPACE) for s in systems) if systems else None, think_off)
    for role, content in turns:
        pieces += _gemma4_block("user" if role == "user" else "model", content)
    return [*pieces, _gemma4_opener(think_off)]


def _leading_systems(turns: _Turns, form: ChatFormat) -> tuple[list[str], _Turns]:
    n = 0
    while n < len(turns) and turns[n][0] == "system":
        n += 1
    for i, (role, _) in enumerate(turns[n:], n):
        if role == "system":
            raise SystemMidConversation(
                f"message {i}: the {form.value} format takes system messages at the beginning only"
            )
    return [content for _, content in turns[:n]], turns[n:]


_TURN = {
    ChatFormat.CHATML: _chatml_turn,
    ChatFormat.LLAMA3: _llama3_turn,
    ChatFormat.GEMMA: _gemma_turn,
    ChatFormat.GEMMA4: _gemma4_turn,
}
_MESSAGES = {
    ChatFormat.CHATML: _chatml_messages,
    ChatFormat.LLAMA3: _llama3_messages,
    ChatFormat.GEMMA: _gemma_messages,
    ChatFormat.GEMMA4: _gemma4_messages,
}
