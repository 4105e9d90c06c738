"""From the options of `generate` and `Conversation` to a drafter, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..checks import shown, token_ids
from ..engine.drafts import Drafter
from ..errors import EmptyInput, InvalidOption, ReferencesUnsupported, SpeculationDisabled
from .cascade import CascadeOptions, SpeculationIndex
from .constrained import Structure
from .drafter import SourceDrafter, Vocabulary
from .options import Options, Stats
from .source import DraftSource

if TYPE_CHECKING:
    from ..tokenizers import Tokenizer

Document = str | bytes | Sequence[int] | np.ndarray


class TextVocabulary(Vocabulary, Protocol):
    """What references need of a model: `fucina.Model` has it."""

    tokenizer: Tokenizer


def make_drafter(
    model: TextVocabulary,
    speculative: bool | Options | DraftSource | Drafter = False,
    references: Document | Sequence[Document] = (),
    structure: Structure | None = None,
) -> Drafter | None:
    """Return the drafter that the options of `generate` describe; None for plain decoding.

    Parameters
    ----------
    speculative : False for plain decoding; True to draft from the text, from references and from recycled logits, with
        the default `fucina.speculative.Options`, or these options; a draft source; a drafter, which is used as it is.
    structure : a processor that knows what may follow (`fucina.sampling.structure_of`): drafts then keep to it, and what
        must follow drafts itself.
    references : documents that may be quoted, for the first kind of drafting; a single text is one document.

    Raises
    ------
    InvalidOption : `speculative` is something else, or there are references for what does not take any.
    EmptyInput, TokenOutOfRange, InvalidText : a reference has no token, or is no text; see `reference_ids`.
    """
    drafter = _make(model, speculative, references)
    constrain(drafter, structure)
    return drafter


def constrain(drafter: Drafter | None, structure: Structure | None) -> None:
    """Let a drafter that can keep to a grammar, or to none."""
    if isinstance(drafter, SourceDrafter):
        drafter.constrain(structure)


def _make(
    model: TextVocabulary,
    speculative: bool | Options | DraftSource | Drafter,
    references: Document | Sequence[Document],
) -> Drafter | None:
    if isinstance(references, (str, bytes)):
        references = [references]
    elif not isinstance(references, Iterable):
        raise InvalidOption(f"references must be a document or a sequence of documents, got {shown(references)}")
    documents = list(references)
    if speculative is True or isinstance(speculative, Options):
        options = speculative if isinstance(speculative, Options) else Options()
        ids = [reference_ids(model, document) for document in documents]  # all of them, before the first is indexed
        index = SpeculationIndex(model.n_tokens, CascadeOptions(accounting_min_draft=options.min_draft))
        for document in ids:
            index.add_reference(document)
        return SourceDrafter(model, index, options)
    if documents:
        raise InvalidOption(
            "references need speculation, turned on with True or Options; a source of your own gets its documents from you"
        )
    if speculative is False:
        return None
    if isinstance(speculative, Drafter):
        return speculative
    if isinstance(speculative, type) or not isinstance(speculative, DraftSource):
        raise InvalidOption(
            f"speculative must be True, False, speculative.Options, a draft source or a drafter, got {shown(speculative)}"
        )
    return SourceDrafter(model, speculative)


def reference_ids(model: TextVocabulary, document: Document) -> np.ndarray:
    """Return the tokens of a document that may be quoted: int64 [n].

    Parameters
    ----------
    document : text (markers in it are text), or token ids of the model.

    Raises
    ------
    EmptyInput : it has no token.
    TokenOutOfRange : an id is none of the vocabulary.
    InvalidOption : it is neither text nor a sequence of ids.
    InvalidText : the text holds half a surrogate pair.
    """
    if isinstance(document, (str, bytes)):
        ids = model.tokenizer.encode(document, special=False)
    elif isinstance(document, (Sequence, np.ndarray)):
        ids = token_ids("a reference", document, model.n_tokens)
    else:
        raise InvalidOption(f"a reference must be text or a sequence of token ids, got {type(document).__name__}")
    if not ids:
        raise EmptyInput("a reference has no token: there is nothing to quote")
    return np.asarray(ids, np.int64)


def stats_of(drafter: Drafter | None) -> Stats | None:
    """Return a copy of the counts of a drafter's steps; None for plain decoding, or a drafter without counts."""
    return copy(getattr(drafter, "stats", None))


def reference_source(drafter: Drafter | None) -> Any:
    """Return the source of a drafter that takes references.

    Raises
    ------
    SpeculationDisabled : there is no drafter.
    ReferencesUnsupported : its source has no `add_reference` and `clear_references`.
    """
    if drafter is None:
        raise SpeculationDisabled("references are for speculation, which is off here; turn it on with speculation=True")
    source = getattr(drafter, "source", None)
    if not all(callable(getattr(source, name, None)) for name in ("add_reference", "clear_references")):
        raise ReferencesUnsupported(
            f"the draft source {type(source).__name__} takes no references; speculation=True does, or a SpeculationIndex"
        )
    return source
