"""A model's own chat template: from messages to the text, or better the tokens, that the model was trained on.

`encode` is the safe way.  Control tokens such as `<|im_end|>` come from the template alone: where a user's text spells
one, it is encoded as the characters it is (see `shield`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import ChatTemplateError
from .messages import Message, check_messages, check_text, map_strings
from .shield import ControlMarkers, unused_character, with_bos

if TYPE_CHECKING:
    from ..model import Model
    from ..tokenizers import Tokenizer


class ChatTemplate:
    """A compiled chat template.

    Parameters
    ----------
    source : str or None
        Jinja source, from `tokenizer.chat_template` of a GGUF.
    bos, eos : str
        Text of the two tokens, as templates use them.

    Raises
    ------
    ChatTemplateError
        There is no template (`source` is None or blank), or it does not compile.
    """

    def __init__(self, source: str | None, bos: str = "", eos: str = ""):
        from jinja2 import TemplateError

        from .sandbox import compile_template

        if source is None or not source.strip():
            raise ChatTemplateError(
                "this model has no chat template (tokenizer.chat_template): a base model continues text, "
                "it was not trained on conversations; use generate"
            )
        self.source, self.bos, self.eos = source, bos, eos
        try:
            self._template = compile_template(source)
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise ChatTemplateError(f"the chat template does not compile: {_describe(error)}") from error

    @classmethod
    def of(cls, model: Model) -> ChatTemplate:
        """Return the template of a loaded model; raises ChatTemplateError if it has none."""
        tokenizer = model.tokenizer
        bos, eos = ("" if t is None else tokenizer.decode([t]) for t in (tokenizer.bos, tokenizer.eos))
        return cls(model.chat_template, bos, eos)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation.

        Encoding this text with special tokens parsed would let message text forge turns: use `encode`.

        Parameters
        ----------
        messages : sequence of mappings
            `role` (see `messages.ROLES`) and `content`: text, or a list of text parts.
        add_generation_prompt : bool
            End with the opening of the assistant's turn.
        tools : sequence, optional
            Function descriptions, for templates that know tools.
        now : datetime, optional
            What `strftime_now` of the template shows; default the present.
        variables
            Further template variables, such as `enable_thinking=False`.

        Raises
        ------
        ChatTemplateError
            Messages are malformed, or the template refuses them, fails or runs away.
        """
        messages = check_messages(messages)
        check_text("tools", tools)
        return self._render(messages, add_generation_prompt, tools, now, variables)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a conversation; control tokens come from the template alone.

        A BOS token is put in front if the tokenizer asks for one and the template has not already written it.
        Parameters and errors are those of `render`.
        """
        messages = check_messages(messages)
        check_text("tools", tools)
        markers = ControlMarkers.of(tokenizer)
        mark = unused_character(self.source, messages, tools)

        def protect(text: str) -> str:
            return markers.split(text, mark)

        # roles stay as they are: templates compare them, and check_messages knows them all
        shielded = [{**map_strings(protect, m), "role": m["role"]} for m in messages]
        text = self._render(shielded, add_generation_prompt, map_strings(protect, tools), now, variables)
        return with_bos(tokenizer, markers.encode(tokenizer, text, mark))

    def _render(self, messages, add_generation_prompt, tools, now, variables) -> str:
        from .sandbox import run_template

        names = {
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "bos_token": self.bos,
            "eos_token": self.eos,
        }
        try:
            return run_template(self._template, names, now or datetime.now())
        except ChatTemplateError:
            raise
        except Exception as error:  # whatever foreign code raises: its own refusals, undefined names, wrong types
            raise ChatTemplateError(f"the chat template refuses these messages: {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    text = str(error) or "no message"
    kind = "" if type(error).__name__ in ("TemplateError", "TemplateSyntaxError") else f"{type(error).__name__}: "
    return f"{kind}{text}" + (f" (line {line})" if line else "")
