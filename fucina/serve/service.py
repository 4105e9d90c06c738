"""What the dialects share of one served model: its names, its template, and the way from messages to tokens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..chat.constrained import text_ends
from ..chat.formats import ChatFormat
from ..chat.messages import Message
from ..chat.prompts import choose_template, stop_ids
from ..errors import ChatTemplateError, ContextFull, EmptyInput
from ..known_models import entry_of_file
from ..sampling.recommended import recommended_sampling
from .scanners import CLOSE_THINK, OPEN_CALL, OPEN_THINK

if TYPE_CHECKING:
    from ..model import Model


def name_of(path: Path) -> str:
    """What the model of a file is called: its name in `fucina models`, else that of the file."""
    entry = entry_of_file(path)
    return path.stem if entry is None else entry.name


class Service:
    """A model as it is served.

    Parameters
    ----------
    model
    name : what it is called; default its name in `fucina models`, else that of its file.

    Attributes
    ----------
    template : the model's chat template, or None; `hermes` : whether it writes tools in Hermes form; `can_think` :
        whether replies may begin with reasoning.
    ends, grammar_ends : tokens that end a reply, and those of them that end a sentence of a grammar.
    sampling : fields of `SamplerOptions` that the model's makers recommend, for requests that have none.
    """

    def __init__(self, model: Model, name: str | None = None) -> None:
        self.model = model
        self.name = name or name_of(model.path)
        self.template = choose_template(model, None)
        self.source = "" if self.template is None else model.chat_template or ""
        self.hermes = OPEN_CALL in self.source and "tools" in self.source
        self.can_think = "enable_thinking" in self.source or CLOSE_THINK in self.source
        self.ends = stop_ids(model, self.template, ())
        self.grammar_ends = text_ends(model, self.ends)
        recommended = recommended_sampling(model.path, model.metadata)
        self.sampling: dict[str, Any] = {} if recommended is None else dict(recommended.options)
        self.fingerprint = model.fingerprint.hex()[:16]
        self.created = self.now()
        self._longest = max(map(len, model.tokenizer.vocabulary.tokens))  # bytes that a token spells, at most
        self._ordinals = itertools.count(1)

    def new_id(self) -> str:
        """An id that no other reply of this server has: 24 hexadecimal digits."""
        return f"{self.now() & 0xFFFFFFFF:08x}{next(self._ordinals):016x}"

    @staticmethod
    def now() -> int:
        """Seconds since 1970."""
        return int(time.time())

    def chat_ids(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, think: bool | None = None
    ) -> list[int]:
        """The tokens of a conversation, which ends with the opening of a reply.

        Parameters
        ----------
        think : whether the reply may begin with reasoning; None leaves that to the template.

        Raises
        ------
        ChatTemplateError, ContextFull
        """
        self.check_length(str(m.get("content") or "") for m in messages if m.get("role") != "assistant")
        if self.template is None:
            raise ChatTemplateError(
                "this model has no chat template: it was not trained on conversations; use /v1/completions"
            )
        if isinstance(self.template, ChatFormat):
            ids = self.template.encode_messages(self.model.tokenizer, messages, think is False)
        else:
            variables: dict[str, Any] = {} if think is None else {"enable_thinking": think}
            ids = self.template.encode(self.model.tokenizer, messages, tools=tools, **variables)
        return self.checked(ids)

    def text_ids(self, text: str) -> list[int]:
        """The tokens of a text that is to be continued; control markers in it become their tokens."""
        self.check_length([text])
        return self.checked(self.model.tokenizer.encode_prompt(text, True))

    def checked(self, ids: list[int]) -> list[int]:
        """Token ids that fit.  Raises EmptyInput or ContextFull."""
        if not ids:
            raise EmptyInput("the prompt has no token")
        if len(ids) > self.model.context:
            raise ContextFull(f"the prompt has {len(ids)} tokens, the context holds {self.model.context}")
        return ids

    def begins_inside(self, ids: Sequence[int]) -> bool:
        """Whether a prompt ends with the opening of a block of reasoning."""
        return self.can_think and self.model.tokenizer.decode(ids[-12:]).rstrip().endswith(OPEN_THINK)

    def check_length(self, texts: Iterable[str]) -> None:
        """Refuse at once what cannot fit, however it is cut into tokens: cutting it would take long."""
        size = sum(map(len, texts))
        if size > self._longest * self.model.context:
            raise ContextFull(f"a prompt of {size} characters cannot fit in a context of {self.model.context} tokens")
