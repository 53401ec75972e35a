"""Reads files of texts for a trial: JSON lines or CSV, each with a text or an exchange and a
label."""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tollkeeper.domain.errors import InvalidRequest
from tollkeeper.services.policies.trial import TEXTS_MAX, TrialText

BYTES_MAX = 32 << 20
_LABELS: dict[object, bool] = {"yes": True, "true": True, "1": True}
_LABELS |= {"no": False, "false": False, "0": False}
_FIELDS = "A line has a text, or a request and its answer, and a label of yes or no."
_objects = msgspec.json.Decoder(dict[str, Any])


def read_texts(content: bytes) -> list[TrialText]:
    """Reads all texts. Raises InvalidRequest with the number of the invalid line."""
    if len(content) > BYTES_MAX:
        raise InvalidRequest(f"A file has at most {BYTES_MAX >> 20} MiB.", param="file")
    texts: list[TrialText] = []
    lines: dict[tuple[str, str], int] = {}
    for number, fields in _rows(content):
        if len(texts) == TEXTS_MAX:
            raise _wrong(number, f"there are more than {TEXTS_MAX} texts.")
        text = _text(number, fields)
        first = lines.setdefault((text.request, text.text), number)
        if first != number:
            raise _wrong(number, f"it repeats line {first}.")
        texts.append(text)
    return texts


def _rows(content: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the number and the fields of each line that is not blank."""
    if not content.lstrip().startswith(b"{"):
        yield from _csv_rows(content)
        return
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                yield number, _objects.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                raise _wrong(number, f"{exc}.") from None


def _csv_rows(content: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        written = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("The file is not in UTF-8.", param="file") from None
    reader = csv.DictReader(io.StringIO(written, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, {name.strip().lower(): row[name] for name in row if name}
    except csv.Error as exc:
        raise _wrong(reader.line_num, f"{exc}.") from None


def _text(number: int, fields: Mapping[str, Any]) -> TrialText:
    request, text = fields.get("request", ""), fields.get("answer", fields.get("text"))
    if (
        not isinstance(request, str)
        or not isinstance(text, str)
        or ("answer" in fields) != bool(request)
    ):
        raise _wrong(number, _FIELDS)
    if not text.strip():
        raise _wrong(number, "the text is empty.")
    label = fields.get("label")
    if label is None or label == "":
        return TrialText(text, None, request)
    known = label if isinstance(label, bool) else _LABELS.get(str(label).strip().lower())
    if known is None:
        raise _wrong(number, f"{str(label)[:40]!r} is no label: write yes or no.")
    return TrialText(text, known, request)


def _wrong(number: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"Line {number} of the file: {what}", param="file")
