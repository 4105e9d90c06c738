"""From the options of `generate` and `Conversation` to a decoder: plain, or one that drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .decoding import Decoder
from .errors import EmptyInput, InvalidOption, ReferencesUnsupported, SpeculationDisabled

if TYPE_CHECKING:
    from .model import Model
    from .speculative import DraftSource, Options

Document = str | bytes | Sequence[int] | np.ndarray


def make_decoder(
    model: Model,
    speculative: bool | Options | DraftSource | Decoder = False,
    references: Document | Sequence[Document] = (),
) -> Decoder:
    """Return the decoder that the options of `generate` describe.

    Parameters
    ----------
    speculative : False for plain decoding; True to draft from the text, from references and from recycled logits, with
        the default `fucina.speculative.Options`, or these options; a draft source; a decoder, which is used as it is.
    references : documents that may be quoted, of the first kind of drafting; a single text is one document.

    Raises
    ------
    InvalidOption : `speculative` is something else, or there are references for what does not take any.
    EmptyInput, TokenOutOfRange, InvalidText : a reference has no token, or is no text; see `reference_ids`.
    """
    if isinstance(references, (str, bytes)):
        references = [references]
    elif not isinstance(references, Iterable):
        raise InvalidOption(f"references must be a document or a sequence of documents, got {references!r}")
    documents = list(references)
    if speculative is False:
        _no_references(documents)
        return Decoder(model)
    if isinstance(speculative, Decoder):
        _no_references(documents)
        return speculative
    from .speculative import CascadeOptions, DraftSource, Options, SpeculationIndex, SpeculativeDecoder

    if speculative is True:
        speculative = Options()
    if isinstance(speculative, Options):
        ids = [reference_ids(model, document) for document in documents]  # all of them, before the first is indexed
        index = SpeculationIndex(model.config.vocab_size, CascadeOptions(accounting_min_draft=speculative.min_draft))
        for document in ids:
            index.add_reference(document)
        return SpeculativeDecoder(model, index, speculative)
    if isinstance(speculative, type) or not isinstance(speculative, DraftSource):
        raise InvalidOption(
            f"speculative must be True, False, speculative.Options, a draft source or a decoder, got {speculative!r}"
        )
    _no_references(documents)
    return SpeculativeDecoder(model, speculative)


def _no_references(documents: Sequence[Any]) -> None:
    if documents:
        raise InvalidOption(
            "references need speculation, turned on with True or Options; a source of your own gets its documents from you"
        )


def reference_ids(model: Model, document: Document) -> np.ndarray:
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
        document = model.tokenizer.encode(document, special=False)
    elif not isinstance(document, (Sequence, np.ndarray)):
        raise InvalidOption(f"a reference must be text or a sequence of token ids, got {type(document).__name__}")
    if np.size(document) == 0:
        raise EmptyInput("a reference has no token: there is nothing to quote")
    return model.check_tokens(document)


def reference_source(decoder: Decoder) -> Any:
    """Return the source of a decoder that takes references.

    Raises
    ------
    SpeculationDisabled : the decoder does not draft.
    ReferencesUnsupported : its source has no `add_reference` and `clear_references`.
    """
    source = getattr(decoder, "source", None)
    if source is None:
        raise SpeculationDisabled("references are for speculation, which is off here; turn it on with speculation=True")
    if not all(callable(getattr(source, name, None)) for name in ("add_reference", "clear_references")):
        raise ReferencesUnsupported(
            f"the draft source {type(source).__name__} takes no references; speculation=True does, "
            "or a SpeculationIndex"
        )
    return source
