"""Text to token ids and back: byte-level BPE and SentencePiece, built from a GGUF file's own metadata."""

from .base import Tokenizer
from .bpe import BytePairTokenizer
from .loading import load_tokenizer
from .pretokenize import PRE_TOKENIZERS, PreTokenizer
from .spm import SentencePieceTokenizer
from .streaming import StreamDecoder
from .vocabulary import (
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
