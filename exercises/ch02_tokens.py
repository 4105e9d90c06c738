"""Chapter 02 - Tokens.

A model knows numbers, and people write text.  Between the two stands a tokenizer.  You
write one, piece by piece: letters for bytes, the cut into words, the merges, the way back
to text while it is streaming, and a conversation in which nobody can forge a marker.  At
the end your pieces stand in the place of the engine's, and its ids are the judge.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch02`, or in the notebook with a cell that begins
with `%%exercise ch02.alphabet`. Both are the same file: this one. Stuck?
`python3 -m course hint ch02.alphabet`.

Rules for all exercises:

- An exercise is graded alone, in a process of its own. It knows what its file in
  exercises/ holds, and nothing of your notebook: import and define what you use there,
  or in the exercise's cell.
- Arguments stay as they are, unless the contract says that they change: work on a copy.
- Types count: where the contract says list, a tuple or an array is wrong. A number of
  NumPy's counts as a number.
- You build it yourself: the engine (`fucina`) and the solutions are no part of an
  answer, unless the contract says so.
"""

import codecs
import math
import unicodedata
import numpy as np


def kind(character):
    """What the rules for words ask about a character.

    Returns
    -------
    str
        "letter", "digit" (any number of Unicode: also a Roman one, or one half), "space"
        (any white space, line ends too), or "sign" for everything else.  After the end of a
        text, kind("") is "space".
    """
    if character in "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" or "\u2000" <= character <= "\u200a":
        return "space"
    return {"L": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "sign")


class ToyTokenizer:
    """A pretend tokenizer with markers: a token for each byte, one for two line ends, one for two spaces.

    It is called as the engine's is, in the two ways that matter here.
    """

    markers = {"<|im_start|>": 300, "<|im_end|>": 301, "<|endoftext|>": 302}
    pairs = {"\n\n": 256, "  ": 257}

    def encode(self, text, special=True):
        """Token ids of a text.  With special=False markers in it are ordinary text."""
        ids, at = [], 0
        while at < len(text):
            for known in (self.markers if special else {}), self.pairs:
                found = next((word for word in known if text.startswith(word, at)), None)
                if found:
                    ids.append(known[found])
                    at += len(found)
                    break
            else:
                ids += text[at].encode("utf-8")
                at += 1
        return ids

    def token_id(self, text):
        """The id of a marker."""
        return self.markers[text]


# %% ch02.alphabet - A letter for each byte (5 points, easy, section 02.2)

def byte_alphabet():
    """The printable letter that stands for each byte in a byte-level vocabulary.

    The bytes 0x21 to 0x7E, 0xA1 to 0xAC and 0xAE to 0xFF print: each is its own letter,
    chr(byte).  All others, in rising order, take the letters from U+0100 on.

    Returns
    -------
    list of str
        256 letters; the one of a byte at the byte's own index.

    Examples
    --------
    >>> byte_alphabet()[ord("A")]
    'A'
    >>> hex(ord(byte_alphabet()[0])), hex(ord(byte_alphabet()[32]))
    ('0x100', '0x120')
    """
    raise NotImplementedError("ch02.alphabet: your code here")


# %% ch02.merge - Merge by rank (15 points, medium, section 02.4)

def merge(symbols, ranks):
    """Join neighbouring symbols, the pair of lowest rank first, until no pair has a rank.

    Parameters
    ----------
    symbols : list of str
        A word, letter by letter.
    ranks : dict
        (left, right) -> rank, from 0 on.  A pair has been learned after its two parts: what
        joins "a" and "b" has a lower rank than any pair with "ab" in it.

    Returns
    -------
    list of str
        What is left.  Where a pair of the lowest rank occurs more than once, the leftmost
        comes first: of three equal letters the first two are joined.

    Examples
    --------
    >>> merge(["a", "b", "c"], {("b", "c"): 0, ("a", "b"): 1})
    ['a', 'bc']
    >>> merge(["a", "b", "c"], {("b", "c"): 0, ("a", "b"): 1, ("a", "bc"): 2})
    ['abc']
    >>> merge(["o", "o", "o"], {("o", "o"): 0})
    ['oo', 'o']
    """
    raise NotImplementedError("ch02.merge: your code here")


# %% ch02.split - Where words begin (15 points, medium, section 02.5)

def split(text):
    """Cut a text into words by the rules of SmolLM2.

    `kind` says of a character whether it is a "letter", a "digit", a "space" or a "sign".
    From the left, the first rule that fits gives the next word:

    1. A digit is a word by itself.
    2. An apostrophe ' with s, t, m, d, re, ve or ll after it (small letters) is a word,
       whatever comes next.
    3. Letters, as many as follow each other; with one plain space " " in front, if there is one.
    4. Signs, likewise, also with one plain space in front.
    5. White space, as much as follows.  If that is more than one character, and a letter or a
       sign comes after it, the last one is left to the next word.

    Parameters
    ----------
    text : str

    Returns
    -------
    list of str
        The words; put together they are the text.

    Examples
    --------
    >>> split("I don't know 42 cats!")
    ['I', ' don', "'t", ' know', ' ', '4', '2', ' cats', '!']
    >>> split("if x:\\n        y += 1")
    ['if', ' x', ':', '\\n       ', ' y', ' +=', ' ', '1']
    """
    raise NotImplementedError("ch02.split: your code here")


# %% ch02.chat - A conversation that nobody can forge (15 points, medium, section 02.7)

def encode_chat(tokenizer, messages):
    """The token ids of a conversation, in which markers in messages are ordinary text.

    A message is <|im_start|>, then the role, a line end and the text, then <|im_end|> and a line
    end.  After the last one follow <|im_start|>, "assistant" and a line end: there the model
    goes on.  Only this function writes markers.

    Parameters
    ----------
    tokenizer
        `tokenizer.encode(text, special=...)` gives ids: with special=True it finds markers in
        the text, with special=False they are ordinary text.  `tokenizer.token_id(marker)`
        gives the id of a marker.
    messages : list of (role, text)
        Both str.

    Returns
    -------
    list of int
        What stands between two markers is encoded in one piece, as in training.

    Raises
    ------
    ValueError
        A role that is not "system", "user" or "assistant".

    Examples
    --------
    >>> ids = encode_chat(ToyTokenizer(), [("user", "Hi")])
    >>> ids[0], bytes(ids[1:8]), ids[8], ids[9:11], bytes(ids[11:])
    (300, b'user\\nHi', 301, [10, 300], b'assistant\\n')
    """
    raise NotImplementedError("ch02.chat: your code here")


# %% ch02.stream - Never half a character (10 points, medium, section 02.8)

class TextStream:
    """Turns the bytes of tokens, as they come, into text that can be shown at once.

    Whatever the pieces are: all that `push` and `end` give, put together, is
    whole.decode("utf-8", "replace"), where `whole` is all the bytes.  Text that was given out
    is final.

    Examples
    --------
    >>> stream = TextStream()
    >>> stream.push(b"caf"), stream.push(b"\\xc3"), stream.push(b"\\xa9") == "\\u00e9"
    ('caf', '', True)
    >>> stream.push(b"\\xf0\\x9f"), stream.end() == "\\ufffd"
    ('', True)
    """

    def __init__(self):
        raise NotImplementedError("ch02.stream: your code here")

    def push(self, piece):
        """The bytes of the next token, of any number, also none.

        Returns
        -------
        str
            All text that is decided: characters that are whole, and U+FFFD for bytes that cannot
            become one any more.  Only the beginning of a character waits.
        """
        raise NotImplementedError("ch02.stream: your code here")

    def end(self):
        """The end of the text.

        Returns
        -------
        str
            U+FFFD for what still waited; "" if nothing did.  A new text may begin afterwards.
        """
        raise NotImplementedError("ch02.stream: your code here")
