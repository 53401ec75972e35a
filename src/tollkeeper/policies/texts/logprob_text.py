"""Extracts the words in an answer's log-probabilities. Clients can read them, so policies judge them like its
text.

The alternatives of one rank are joined over all positions, because a word may be spread over several tokens.
Lists of bytes are decoded. The probabilities themselves have no words.
"""

import msgspec

# How backends describe a token. Any other name is a word, unless it's a number (a token id).
_TOKEN_PROPERTIES = frozenset(
    {"content", "refusal", "token", "logprob", "bytes", "top_logprobs", "decoded_token", "rank"}
)
# In the JSON object, without the position of the token.
_Path = tuple[str | int, ...]
# Of an answer and of a prompt. What's inside a position stays undecoded until it's read: all at once would
# block other threads for long.
_usual_decoder = msgspec.json.Decoder(
    dict[str, list[dict[str, msgspec.Raw]] | None] | list[dict[str, msgspec.Raw] | None]
)


class LogprobText:
    def __init__(self, logprobs: msgspec.Raw) -> None:
        self._words: dict[_Path, list[str]] = {}
        self._bytes: dict[_Path, bytearray] = {}
        # In characters and bytes.
        self.length = 0
        try:
            self._walk(_decode(logprobs), (), in_position=False)
        except (ValueError, RecursionError):
            # What isn't JSON, or is nested too deeply, is taken as a whole.
            self._add_words((), bytes(logprobs).decode("utf-8", "replace"))
        self._words = {path: ["".join(words)] for path, words in self._words.items()}

    def append(self, later: "LogprobText") -> None:
        for path, words in later._words.items():
            self._words.setdefault(path, []).extend(words)
        for path, found in later._bytes.items():
            self._bytes.setdefault(path, bytearray()).extend(found)
        self.length += later.length

    def texts(self) -> list[str]:
        """Each once."""
        joined = ["".join(words) for words in self._words.values()]
        decoded = [found.decode("utf-8", "replace") for found in self._bytes.values()]
        return list(dict.fromkeys(joined + decoded))

    def _walk(self, value: object, path: _Path, *, in_position: bool) -> None:
        """`in_position`: inside the list of positions, where another list is one of ranks."""
        match value:
            case msgspec.Raw():
                self._walk(msgspec.json.decode(value), path, in_position=in_position)
            case str():
                self._add_words(path, value)
            case dict():
                for rank, (name, inner) in enumerate(value.items()):
                    is_property = name in _TOKEN_PROPERTIES
                    if not is_property and not name.isdigit():
                        self._add_words((*path, "names", rank), name)
                    self._walk(
                        inner, (*path, name if is_property else rank), in_position=in_position
                    )
            case list() if value and all(map(_is_byte, value)):
                self._bytes.setdefault(path, bytearray()).extend(value)
                self.length += len(value)
            case list():
                for rank, inner in enumerate(value):
                    inner_path = (*path, rank) if in_position else path
                    self._walk(inner, inner_path, in_position=True)

    def _add_words(self, path: _Path, words: str) -> None:
        self._words.setdefault(path, []).append(words)
        self.length += len(words)


def _decode(logprobs: msgspec.Raw) -> object:
    try:
        return _usual_decoder.decode(logprobs)
    except msgspec.ValidationError:
        return msgspec.json.decode(logprobs)


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 256
