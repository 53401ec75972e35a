"""How many tokens a text has, where no tokenizer can be asked: an estimate that errs high.

Byte-level tokenizers never make more tokens than bytes, and the fewer the more ordinary the text
is. So bytes are counted by class, at the speed of `bytes.translate`: letters and spaces run in
long tokens, digits and punctuation in short ones, everything beyond ASCII may take a token a byte.
"""

import string

_RUNS = (string.ascii_letters + " ").encode()
_OTHER_ASCII = bytes(set(range(128)) - set(_RUNS))
# Letters a token: English has more than four, code and rare names have fewer.
_LETTERS_PER_TOKEN = 3


def estimate_tokens(text: str) -> int:
    """At least as many as a common tokenizer would make of the text."""
    encoded = text.encode("utf-8", "surrogatepass")
    letters = len(encoded) - len(encoded.translate(None, _RUNS))
    other_ascii = len(encoded) - len(encoded.translate(None, _OTHER_ASCII))
    beyond = len(encoded) - letters - other_ascii
    return -(-letters // _LETTERS_PER_TOKEN) + other_ascii + beyond
