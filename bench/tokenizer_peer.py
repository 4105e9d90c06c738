"""Encode a text once with another tokenizer and print seconds of CPU, number of ids and a checksum of them.

Run by `bench.tokenizers` with the Python that has `llama_cpp` or `tokenizers`; it needs nothing else.
"""

import sys
import time
import zlib
from array import array

del sys.path[0]  # this folder, which has a module `tokenizers` of its own


def llama_cpp(vocabulary: str, raw: bytes):
    import ctypes

    import llama_cpp.llama_cpp as c
    from llama_cpp import Llama

    model = Llama(vocabulary, vocab_only=True, verbose=False)
    vocab = model._model.vocab
    ids = (ctypes.c_int32 * (len(raw) + 8))()
    start = time.process_time()
    n = c.llama_tokenize(vocab, raw, len(raw), ids, len(raw) + 8, False, False)
    return time.process_time() - start, array("i", ids[:n])


def tokenizers(vocabulary: str, raw: bytes):
    from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]

    tokenizer, text = Tokenizer.from_file(vocabulary), raw.decode()
    tokenizer.encode_special_tokens = True
    start = time.process_time()
    found = tokenizer.encode(text, add_special_tokens=False)
    return time.process_time() - start, array("i", found.ids)


if __name__ == "__main__":
    _, kind, vocabulary, page = sys.argv
    with open(page, "rb") as file:
        seconds, ids = {"llama.cpp": llama_cpp, "tokenizers": tokenizers}[kind](vocabulary, file.read())
    print(seconds, len(ids), zlib.crc32(ids.tobytes()))
