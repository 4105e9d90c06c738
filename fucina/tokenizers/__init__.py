"""Text to token ids and back: BPE and SentencePiece, built from the metadata of a GGUF file or from a tokenizer.json."""

from .base import Tokenizer
from .bpe import BYTE_ALPHABET, BytePairTokenizer
from .loading import load_tokenizer
from .pretokenize import PreTokenizer
from .rules import PRE_TOKENIZERS
from .spm import SentencePieceTokenizer
from .streaming import StreamDecoder
from .textbpe import TextPairTokenizer
from .tokenizer_json import load_tokenizer_json, tokenizer_from_json
from .vocabulary import (
    TokenizerWarning,
    TokenType,
    UnencodableBytes,
    Vocabulary,
)

__all__ = [
    "BYTE_ALPHABET",
    "PRE_TOKENIZERS",
    "BytePairTokenizer",
    "PreTokenizer",
    "SentencePieceTokenizer",
    "StreamDecoder",
    "TextPairTokenizer",
    "TokenType",
    "Tokenizer",
    "TokenizerWarning",
    "UnencodableBytes",
    "Vocabulary",
    "load_tokenizer",
    "load_tokenizer_json",
    "tokenizer_from_json",
]
