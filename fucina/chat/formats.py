"""The four chat formats that the engine knows by heart: ChatML, Llama 3, Gemma 1-3 and Gemma 4 (facts 7).

A model's own template (`ChatTemplate`) always renders a whole conversation.  A format can also render *one turn*, to be
put behind what is already in the cache: nothing is rendered or encoded twice, and the tokens of a reply stay those that
were sampled.  The end of a reply is never in the cache (its stop token was dropped), so the next turn begins with it.

`render_turn` and `render_messages` give text; `encode_turn` and `encode_messages` give tokens, where control tokens
come from the format alone: markers that message text spells stay text (see `shield`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import ChatTemplateError, EmptyMessages, SystemMidConversation, TrailingAssistantMessage
from .messages import Message, check_messages
from .shield import ControlMarkers, unused_character, with_bos

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer

_SPACE = " \t\n\v\f\r"
_ROLES = ("system", "user", "assistant")
_Change = Callable[[str], str]


def _same(text: str) -> str:
    return text


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

    def render_turn(
        self, user: str, system: str | None = None, first: bool = True, think_off: bool = False, change: _Change = _same
    ) -> str:
        """Return the text to feed for one user turn.

        Parameters
        ----------
        user : what the user says.
        system : opens the conversation; looked at in the first turn only.
        first : the conversation begins here; otherwise the assistant's last turn is closed first.
        think_off : prime the reply with an empty reasoning block (ChatML, Gemma 4; the others have none).
        change : applied to the message texts as they are put in.
        """
        return _TURN[self](change(user), system if first else None, first, think_off, change)

    def render_messages(self, messages: Sequence[Message], think_off: bool = False, change: _Change = _same) -> str:
        """Return the text of a whole conversation, ending with the opening of the assistant's turn.

        Reasoning blocks at the beginning of earlier replies are left out, as the models' own templates do.  The text of
        a first turn is that of `render_turn`.

        Raises
        ------
        EmptyMessages : there is no message.
        TrailingAssistantMessage : the last one is the assistant's: there is nothing to answer.
        SystemMidConversation : a system message behind another one, in a Gemma format.
        ChatTemplateError : a message is malformed, or has a role other than system, user, assistant.
        """
        turns = []
        for i, message in enumerate(check_messages(messages)):
            role, content = message["role"], message["content"]
            if role not in _ROLES:
                raise ChatTemplateError(
                    f"message {i}: the {self.value} format has the roles {', '.join(_ROLES)}, got {role!r}"
                )
            if role == "assistant" and self in _REASONING:
                content = strip_reasoning(content, *_REASONING[self])
            turns.append((role, content))
        if not turns:
            raise EmptyMessages("a conversation needs at least one message, got none")
        if turns[-1][0] == "assistant":
            raise TrailingAssistantMessage("the last message is the assistant's; expected one that can be answered")
        return _MESSAGES[self](turns, think_off, change)

    # --- tokens ---------------------------------------------------------------------------------------------------

    def encode_turn(
        self, tokenizer: Tokenizer, user: str, system: str | None = None, first: bool = True, think_off: bool = False
    ) -> list[int]:
        """Return the token ids of one turn, control tokens from the format alone; BOS in front of a first turn if the
        tokenizer wants it and the format has not written it.  Parameters are those of `render_turn`."""
        mark = unused_character(user, system)
        markers = ControlMarkers.of(tokenizer)
        text = self.render_turn(user, system, first, think_off, lambda t: markers.split(t, mark))
        ids = markers.encode(tokenizer, text, mark)
        return with_bos(tokenizer, ids) if first else ids

    def encode_messages(self, tokenizer: Tokenizer, messages: Sequence[Message], think_off: bool = False) -> list[int]:
        """Return the token ids of a whole conversation: `encode_turn` with the errors of `render_messages`."""
        mark = unused_character(list(messages))
        markers = ControlMarkers.of(tokenizer)
        text = self.render_messages(messages, think_off, lambda t: markers.split(t, mark))
        return with_bos(tokenizer, markers.encode(tokenizer, text, mark))


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


# --- ChatML ---------------------------------------------------------------------------------------------------------


def _chatml_block(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _chatml_opener(think_off: bool) -> str:
    return "<|im_start|>assistant\n" + ("<think>\n\n</think>\n\n" if think_off else "")


def _chatml_turn(user: str, system: str | None, first: bool, think_off: bool, change: _Change) -> str:
    opening = "" if first else "<|im_end|>\n"
    if system is not None:
        opening += _chatml_block("system", change(system))
    return opening + _chatml_block("user", user) + _chatml_opener(think_off)


def _chatml_messages(turns: _Turns, think_off: bool, change: _Change) -> str:
    return "".join(_chatml_block(role, change(content)) for role, content in turns) + _chatml_opener(think_off)


# --- Llama 3 --------------------------------------------------------------------------------------------------------


def _llama3_header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _llama3_messages(turns: _Turns, think_off: bool, change: _Change) -> str:
    blocks = "".join(f"{_llama3_header(role)}{change(content)}<|eot_id|>" for role, content in turns)
    return "<|begin_of_text|>" + blocks + _llama3_header("assistant")


def _llama3_turn(user: str, system: str | None, first: bool, think_off: bool, change: _Change) -> str:
    opening = "<|begin_of_text|>" if first else "<|eot_id|>"
    if system is not None:
        opening += f"{_llama3_header('system')}{change(system)}<|eot_id|>"
    return f"{opening}{_llama3_header('user')}{user}<|eot_id|>{_llama3_header('assistant')}"


# --- Gemma 1-3: no system role, its text opens the first user turn --------------------------------------------------


def _gemma_block(role: str, content: str) -> str:
    return f"<start_of_turn>{role}\n{content}<end_of_turn>\n"


def _gemma_turn(user: str, system: str | None, first: bool, think_off: bool, change: _Change) -> str:
    opening = "" if first else "<end_of_turn>\n"
    folded = "" if system is None else change(system) + "\n\n"
    return opening + _gemma_block("user", folded + user) + "<start_of_turn>model\n"


def _gemma_messages(turns: _Turns, think_off: bool, change: _Change) -> str:
    systems, turns = _leading_systems(turns, ChatFormat.GEMMA)
    folded = "".join(change(s) + "\n\n" for s in systems)
    if folded and all(role != "user" for role, _ in turns):
        raise ChatTemplateError(
            "the gemma format has no system role: a system message needs a user's message to stand in"
        )
    text = ""
    for role, content in turns:
        if role == "user":
            text, folded = text + _gemma_block("user", folded + change(content)), ""
        else:
            text += _gemma_block("model", change(content))
    return text + "<start_of_turn>model\n"


# --- Gemma 4 --------------------------------------------------------------------------------------------------------


def _gemma4_block(role: str, content: str) -> str:
    return f"<|turn>{role}\n{content}<turn|>\n"


def _gemma4_opener(think_off: bool) -> str:
    return "<|turn>model\n" + ("<|channel>thought\n<channel|>" if think_off else "")


def _gemma4_start(system: str | None, think_off: bool) -> str:
    """`system` is trimmed and changed already."""
    if system is None and think_off:
        return "<bos>"
    return "<bos>" + _gemma4_block("system", ("" if think_off else "<|think|>\n") + (system or ""))


def _gemma4_turn(user: str, system: str | None, first: bool, think_off: bool, change: _Change) -> str:
    told = None if system is None else change(system.strip(_SPACE))
    opening = _gemma4_start(told, think_off) if first else "<turn|>\n"
    return opening + _gemma4_block("user", user) + _gemma4_opener(think_off)


def _gemma4_messages(turns: _Turns, think_off: bool, change: _Change) -> str:
    systems, turns = _leading_systems(turns, ChatFormat.GEMMA4)
    told = "\n\n".join(change(s.strip(_SPACE)) for s in systems) if systems else None
    text = _gemma4_start(told, think_off)
    for role, content in turns:
        text += _gemma4_block("user" if role == "user" else "model", change(content))
    return text + _gemma4_opener(think_off)


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
