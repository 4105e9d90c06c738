"""Text to token ids and back: byte-level BPE and SentencePiece, built from a GGUF file's own metadata."""

from fucina.tokenizers.base import Tokenizer
from fucina.tokenizers.bpe import BytePairTokenizer
from fucina.tokenizers.loading import load_tokenizer
from fucina.tokenizers.pretokenize import PRE_TOKENIZERS, PreTokenizer
from fucina.tokenizers.spm import SentencePieceTokenizer
from fucina.tokenizers.streaming import StreamDecoder
from fucina.tokenizers.vocabulary import (
    TokenizerWarning,
    TokenType,
    UnencodableBytes,
    UnknownPreTokenizer,
    Vocabulary,
)

__all__ = [
    "PRE_TOKENIZERS",
    "BytePairTokenizer",
    "PreTokenizer",
    "SentencePieceTokenizer",
    "StreamDecoder",
    "TokenType",
    "Tokenizer",
    "TokenizerWarning",
    "UnencodableBytes",
    "UnknownPreTokenizer",
    "Vocabulary",
    "load_tokenizer",
]
