"""A conversation under a grammar: which processor, drafter and ends a turn has."""

from __future__ import annotations

import warnings
from types import EllipsisType
from typing import TYPE_CHECKING, NamedTuple

from ..sampling import Constraint, Grammar, compose, structure_of
from ..speculative.factory import constrain
from ..tokenizers.vocabulary import TokenType
from .formats import ChatFormat
from .template import ChatTemplate

if TYPE_CHECKING:
    from ..model import Model
    from .token_conversation import TokenConversation

TurnGrammar = Grammar | EllipsisType | None
"""Of one turn: a grammar, None for none, ... for the conversation's own."""


class ReasoningOff(UserWarning):
    """A reply under a grammar begins without reasoning: the grammar governs the reply from its first token on."""


class Constrained(NamedTuple):
    """The grammar of a turn, and the turn's place in it."""

    grammar: Grammar
    constraint: Constraint


def constrain_turn(
    conversation: TokenConversation, grammar: TurnGrammar, before: Constrained | None
) -> Constrained | None:
    """Let a conversation's sampler and drafter follow a grammar in the next turn, or none.

    What the turn before has put in is taken out; the caller's own processor stays.
    """
    c = conversation
    chosen = c.grammar if grammar is ... else grammar
    constraint = None if chosen is None else chosen.constraint(c.model, text_ends(c.model, c.stop_ids))
    own = [p for p in c.sampler.processors if before is None or p is not before.constraint]
    c.sampler.processor = compose(*own, constraint)
    constrain(c.drafter, structure_of(c.sampler.processor))
    return None if chosen is None or constraint is None else Constrained(chosen, constraint)


def text_ends(model: Model, stop_ids: frozenset[int]) -> frozenset[int]:
    """Of the tokens that end a reply, those that are no text; a text token that ends it may still be part of it."""
    tokenizer = model.tokenizer
    markers = {
        i for i in stop_ids if tokenizer.is_special(i) or tokenizer.vocabulary.types[i] == TokenType.USER_DEFINED
    }
    return tokenizer.eog_ids | markers


def think_off_for(model: Model, template: ChatFormat | ChatTemplate, think_off: bool, told: bool) -> bool:
    """Return whether a constrained reply is asked for without reasoning; warn if that was not asked for before.

    Models that do not reason are asked as always.
    """
    source = template.source if isinstance(template, ChatTemplate) else model.chat_template or ""
    if think_off or not (template is ChatFormat.GEMMA4 or "enable_thinking" in source):
        return think_off
    if not told:
        warnings.warn(
            "the reply is under a grammar, so the model is asked not to reason before it (think_off=True says so at once)",
            ReasoningOff,
            stacklevel=5,
        )
    return True
