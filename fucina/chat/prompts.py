"""What a conversation chooses before its first prompt: its template, and which tokens end a reply."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from .. import checks
from ..errors import InvalidOption
from .formats import ChatFormat
from .template import ChatTemplate

if TYPE_CHECKING:
    from ..model import Model


def choose_template(model: Model, template: ChatFormat | ChatTemplate | str | None) -> ChatFormat | ChatTemplate | None:
    """Return the template that an option names: by default the model's own, None where it has none.

    Raises
    ------
    InvalidOption : it is neither a ChatFormat, the name of one, nor a ChatTemplate.
    ChatTemplateError : the model's own does not compile.
    """
    names = [f.value for f in ChatFormat]
    if template in names:
        return ChatFormat(template)
    if not isinstance(template, (ChatFormat, ChatTemplate, type(None))):
        known = f"{', '.join(names)}, a ChatFormat or a ChatTemplate"
        raise InvalidOption(f"template must be one of {known}, got {checks.shown(template)}")
    return ChatTemplate.of(model) if template is None and model.chat_template is not None else template


def stop_ids(
    model: Model, template: ChatFormat | ChatTemplate | None, extra: Sequence[int] | Set[int]
) -> frozenset[int]:
    """Return the tokens that end a reply: the tokenizer's, the stop marker of the format, and extra ones."""
    tokenizer = model.tokenizer
    form = template if isinstance(template, ChatFormat) else ChatFormat.detect(model.chat_template)
    marker = None if form is None else tokenizer.token_id(form.stop_marker)
    own = tokenizer.eog_ids if marker is None else tokenizer.eog_ids | {marker}
    ids = list(extra) if isinstance(extra, Set) else extra
    return frozenset(own) | frozenset(checks.token_ids("extra_stop_ids", ids, model.n_tokens))


def rendered_ids(model: Model, rendered: str) -> list[int]:
    """Return the ids of a rendered text, its special tokens parsed; raises InvalidOption if it is none."""
    if not isinstance(rendered, str):
        raise InvalidOption(f"a rendered conversation must be text, got {type(rendered).__name__}")
    return model.tokenizer.encode(rendered)
