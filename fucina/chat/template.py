"""A model's own chat template: from messages to the text, or better the tokens, that the model was trained on.

Use `encode` for messages from outside.  Control tokens such as `<|im_end|>` come from the template alone: where a message, a tool or a
variable spells one, it is encoded as the characters it is (see `provenance`).

A conversation ends within the assistant's turn: with its opening, or, where the last message is the assistant's, with
the end of that message's text, so that the reply goes on with it and is only what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import ChatTemplateError, EmptyMessages
from .messages import Message, check_conversation, check_text, with_written_arguments
from .provenance import BEGUN, encode, of_reply, origins, own, plain

if TYPE_CHECKING:
    from ..model import Model
    from ..tokenizers import Tokenizer

_LONGEST_MESSAGE = 1000  # characters of a template's error message that are shown


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
            Tool calls are brought to the shape that templates expect (see `messages.check_messages`); a template that
            fails with arguments as a mapping is given their JSON text.
        add_generation_prompt : bool
            End within the assistant's turn: with its opening, or with the text of a last message that is the
            assistant's.  False: end where the template ends the last message.
        tools : sequence, optional
            Function descriptions, for templates that know tools.
        now : datetime, optional
            What `strftime_now` of the template shows; default the present.
        variables
            Further template variables, such as `enable_thinking=False`.

        Raises
        ------
        EmptyMessages
            There is no message.
        TrailingAssistantMessage
            The last message is an assistant's tool calls.
        ChatTemplateError
            Messages are malformed, or the template refuses them, fails or takes too much time or memory.
        """
        return plain(self._render(messages, add_generation_prompt, tools, now, variables))

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
        text = self._render(messages, add_generation_prompt, tools, now, variables)
        return tokenizer.with_bos(encode(tokenizer, text, self.source))

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Any] | None,
        now: datetime | None,
        variables: dict[str, Any],
    ) -> str:
        """Return a text that records which of its characters are the template's own."""
        checked = check_conversation(messages)
        for name, value in {"tools": tools, **variables}.items():
            check_text(name, value)
        last, begun = checked[-1], ""
        if add_generation_prompt and last["role"] == "assistant":
            begun = last["content"]
            if begun.strip():
                add_generation_prompt, last["content"] = False, of_reply(begun, begun=True)
            elif len(checked) > 1:
                checked.pop()
            else:
                raise EmptyMessages("the only message is an empty one of the assistant; expected one to answer")
        names = {
            **variables,
            "messages": [_with_origins(m) for m in checked],
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "bos_token": own(self.bos),
            "eos_token": own(self.eos),
        }
        text = self._run(names, now or datetime.now())
        if not begun.strip():
            return text
        end = origins(text).rfind(BEGUN) + 1
        if not end:
            raise ChatTemplateError("the chat template does not write the last message, which is to be continued")
        return text[:end]

    def _run(self, names: dict[str, Any], now: datetime) -> str:
        from .sandbox import run_template

        try:
            return run_template(self._template, names, now)
        except Exception as error:  # whatever foreign code raises: its own refusals, undefined names, wrong types
            refusal = ChatTemplateError(f"the chat template refuses these messages: {_describe(error)}")
            if not any("tool_calls" in m for m in names["messages"]):
                raise refusal from error
            failure = error
        try:
            return run_template(self._template, {**names, "messages": with_written_arguments(names["messages"])}, now)
        except Exception:
            raise refusal from failure


def _with_origins(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose texts record who wrote them; its role, one of `ROLES`, is no text from outside."""
    if message["role"] == "assistant":
        message = {k: of_reply(v) if type(v) is str else v for k, v in message.items()}
    return {**message, "role": own(plain(message["role"]))}


def _describe(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    text = str(error)[:_LONGEST_MESSAGE] or "no message"
    kind = "" if type(error).__name__ in ("TemplateError", "TemplateSyntaxError") else f"{type(error).__name__}: "
    return f"{kind}{text}" + (f" (line {line})" if line else "")
