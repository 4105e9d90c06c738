# ruff: noqa: F821
# mypy: ignore-errors
import re

# ======================================================================================================================
# 2. Text and tokens (chapter 02)
# ======================================================================================================================

#: ch02.alphabet
#: ch02.split
#: ch02.merge
#: ch02.chat
#: ch02.stream


class Words:
    """The tokenizer of SmolLM2: words, their bytes as letters, merges by rank.

    Parameters
    ----------
    tokens : list of str, spelt with a letter for each byte
    merges : list of str, "left right", the one of rank 0 first
    markers : dict of text -> id; they are no part of ordinary text
    eos : id that ends a text
    """

    def __init__(self, tokens, merges, markers, eos=None):
        letters = byte_alphabet()
        self.letters, self.byte_of = letters, {letter: byte for byte, letter in enumerate(letters)}
        self.tokens, self.markers, self.eos = tokens, markers, eos
        self.ids = {}
        for token, spelt in enumerate(tokens):
            if token not in set(markers.values()):
                self.ids.setdefault(spelt, token)
        self.ranks = {}
        for rank, pair in enumerate(merges):
            self.ranks.setdefault(tuple(pair.split(" ")), rank)
        longest_first = sorted(markers, key=len, reverse=True)
        self.marked = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if markers else None
        self.known = {}  # words repeat

    def encode(self, text, special=True):
        """Token ids; with special=False markers in the text are ordinary text."""
        parts = self.marked.split(text) if special and self.marked else [text]
        ids = []
        for place, part in enumerate(parts):
            if place % 2:
                ids.append(self.markers[part])
            else:
                for word in split(part):
                    ids += self.word(word)
        return ids

    def word(self, word):
        """The ids of one word; bytes that no token spells are left out, as llama.cpp does it."""
        if word not in self.known:
            pieces = merge([self.letters[byte] for byte in word.encode("utf-8")], self.ranks)
            spelt = [[piece] if piece in self.ids else piece for piece in pieces]
            self.known[word] = [self.ids[part] for piece in spelt for part in piece if part in self.ids]
        return self.known[word]

    encode_prompt = encode  # these models want nothing in front of a text

    def token_id(self, marker):
        """The id of a marker; None if it has none."""
        return self.markers.get(marker)

    def piece(self, token):
        """The bytes of a token."""
        spelt = self.tokens[token]
        if spelt in self.markers:
            return spelt.encode("utf-8")
        return bytes(self.byte_of[letter] for letter in spelt)

    def decode(self, ids):
        """The text of tokens."""
        stream = TextStream()
        return "".join(stream.push(self.piece(token)) for token in ids) + stream.end()


def open_text(path):
    """The tokenizer of a model file: this one where the rules are those of SmolLM2, else fucina's."""
    from fucina.gguf import GgufFile
    from fucina.tokenizers import TokenType, load_tokenizer

    with GgufFile(path) as file:
        theirs = load_tokenizer(file.metadata)
        if theirs.pre != "smollm":
            return theirs
        key = "tokenizer.ggml."
        tokens, merges = ([raw.decode() for raw in file.metadata.strings(key + name)] for name in ("tokens", "merges"))
        kinds = file.metadata.ints(key + "token_type").tolist()
        markers = {spelt: i for i, spelt in enumerate(tokens) if kinds[i] == TokenType.CONTROL}
        return Words(tokens, merges, markers, theirs.eos)
