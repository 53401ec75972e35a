"""Reads a trial's texts from JSON lines or CSV: a text, or a request with its answer, maybe
labelled."""

import codecs
import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tollkeeper.core.errors import InvalidRequest
from tollkeeper.policies.trial.service import TEXTS_MAX, TrialText

BYTES_MAX = 32 << 20
_LABELS: dict[object, bool] = {"yes": True, "true": True, "1": True}
_LABELS |= {"no": False, "false": False, "0": False}
_FIELDS_OF_A_LINE = (
    "A line has a text, or a request and its answer, and optionally a label (yes or no)."
)
_objects = msgspec.json.Decoder(dict[str, Any])


def read_texts(content: bytes) -> list[TrialText]:
    """Raises InvalidRequest with the line number if a line is invalid or repeats another."""
    if len(content) > BYTES_MAX:
        raise InvalidRequest(f"A file has at most {BYTES_MAX >> 20} MiB.", param="file")
    texts: list[TrialText] = []
    line_numbers: dict[tuple[str, str], int] = {}
    for number, fields in _rows(content.removeprefix(codecs.BOM_UTF8)):
        if len(texts) == TEXTS_MAX:
            raise _invalid_line(number, f"there are more than {TEXTS_MAX} texts.")
        text = _text(number, fields)
        first_number = line_numbers.setdefault((text.request, text.text), number)
        if first_number != number:
            raise _invalid_line(number, f"it repeats line {first_number}.")
        texts.append(text)
    return texts


def _rows(content: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Skips blank lines."""
    if not content.lstrip().startswith(b"{"):
        yield from _csv_rows(content)
        return
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                yield number, _objects.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                raise _invalid_line(number, f"{exc}.") from None


def _csv_rows(content: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        decoded = content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is not in UTF-8.", param="file") from None
    reader = csv.DictReader(io.StringIO(decoded, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, {name.strip().lower(): row[name] for name in row if name}
    except csv.Error as exc:
        raise _invalid_line(reader.line_num, f"{exc}.") from None


def _text(number: int, fields: Mapping[str, Any]) -> TrialText:
    request, text = fields.get("request", ""), fields.get("answer", fields.get("text"))
    if (
        not isinstance(request, str)
        or not isinstance(text, str)
        or ("answer" in fields) != bool(request)
    ):
        raise _invalid_line(number, _FIELDS_OF_A_LINE)
    if not text.strip():
        raise _invalid_line(number, "the text is empty.")
    label = fields.get("label")
    if label is None or label == "":
        return TrialText(text, None, request)
    is_match = label if isinstance(label, bool) else _LABELS.get(str(label).strip().lower())
    if is_match is None:
        raise _invalid_line(number, f"{str(label)[:40]!r} is no label: write yes or no.")
    return TrialText(text, is_match, request)


def _invalid_line(number: int, problem: str) -> InvalidRequest:
    return InvalidRequest(f"Line {number} of the file: {problem}", param="file")
