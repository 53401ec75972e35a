"""Reads values from forms and URLs. An error names the field with the invalid value."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import NAMESPACE_OID, UUID, uuid5

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.requests import Request

from tollkeeper.core.access import KeyId, OrganizationId, ProjectId
from tollkeeper.core.allowed_models import checked_entries, require_matches
from tollkeeper.core.catalog import Model
from tollkeeper.core.errors import InvalidRequest, NotFound, TollkeeperError
from tollkeeper.core.money import picousd_from_usd
from tollkeeper.core.reports import TIME_MAX
from tollkeeper.reports.traffic.rule import StatusRange, TimeRange

_FIELDS_MAX = 200
# The parser's limit for one field, in bytes. No field reaches this limit, because
# `console/guard.py` rejects every body above 4 MiB.
_FIELD_BYTES_MAX = 8_388_608
_UTF8 = (b"utf-8", b"utf8")
RANGES_S = {"1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}


@dataclass(frozen=True, slots=True)
class Form:
    data: FormData

    @property
    def id(self) -> UUID:
        """Returns the same id each time the form is sent, even if another console receives it."""
        return uuid5(NAMESPACE_OID, self.text("once"))

    @property
    def filled(self) -> Mapping[str, str]:
        return dict(self.text_items())

    def text_items(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.data.multi_items() if isinstance(value, str)]

    def text(self, name: str, *, default: str | None = None) -> str:
        """Returns the trimmed field. If the field is missing or empty, returns `default`; without a
        default, raises InvalidRequest."""
        value = self.data.get(name)
        if isinstance(value, str) and value.strip():
            # Browsers send each line end of a text as CRLF.
            return value.strip().replace("\r\n", "\n")
        if default is None:
            raise InvalidRequest(f"{_title(name)} is missing.", param=name)
        return default

    def texts(self, name: str) -> list[str]:
        return [value for value in self.data.getlist(name) if isinstance(value, str) and value]

    def words(self, name: str) -> list[str]:
        """Splits a field at spaces, commas and line ends."""
        return self.text(name, default="").replace(",", " ").split()

    def integer(self, name: str, *, optional: bool = False) -> int | None:
        text = self.text(name, default="" if optional else None)
        if not text:
            return None
        if not re.fullmatch(r"-?[0-9]{1,12}", text):
            raise InvalidRequest(
                f"{_title(name)} is a whole number of at most 12 digits.", param=name
            )
        return int(text)

    def required_integer(self, name: str) -> int:
        value = self.integer(name)
        assert value is not None
        return value

    def picousd(self, name: str) -> int:
        return picousd_from_usd(self.text(name), param=name)

    async def file(self, name: str) -> bytes:
        value = self.data.get(name)
        return await value.read() if isinstance(value, UploadFile) else b""


@dataclass(frozen=True, slots=True)
class Refused:
    """Contains the reason why a change was rejected, and the content of the form, which the user
    can then correct."""

    error: TollkeeperError
    filled: Mapping[str, str]


async def read_form(request: Request) -> Form:
    """Raises InvalidRequest unless the form is UTF-8, which is what browsers send. Python decodes a
    form in any other encoding that its header names, and some of these decoders take seconds."""
    # The parser of the form reads the header with the same function.
    _, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in _UTF8:
        raise InvalidRequest("A form must be encoded as UTF-8.")
    return Form(
        await request.form(max_fields=_FIELDS_MAX, max_files=1, max_part_size=_FIELD_BYTES_MAX)
    )


def model_list(form: Form, models: Iterable[Model]) -> tuple[str, ...]:
    """Reads a list of allowed models. Raises InvalidRequest if one of its entries matches no model."""
    entries = checked_entries(form.words("models"))
    require_matches(entries, [model.id for model in models])
    return entries


def organization_id(text: str) -> OrganizationId:
    return OrganizationId(_id(text, "organization"))


def project_id(text: str) -> ProjectId:
    return ProjectId(_id(text, "project"))


def key_id(text: str) -> KeyId:
    return KeyId(_id(text, "key"))


def request_id(text: str) -> UUID:
    return _id(text, "request")


def _id(text: str, noun: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {noun} {text[:80]}.") from None


def optional(query: QueryParams, name: str) -> str | None:
    return storable(query.get(name, "").strip(), name) or None


def storable(text: str, name: str) -> str:
    """Returns the text. Raises InvalidRequest if PostgreSQL cannot store or compare it."""
    if "\x00" in text:
        raise InvalidRequest(f"{_title(name)} must not contain a null character.", param=name)
    return text


def status_range(text: str | None) -> StatusRange | None:
    """Reads an HTTP status like 429, a class like 4xx, or `error`, which means 400 to 599. Returns
    None if there is no text."""
    if text is None:
        return None
    if text == "error":
        return StatusRange(400, 599)
    match = re.fullmatch(r"([1-5])(?:xx|([0-9]{2}))", text)
    if match is None:
        raise InvalidRequest(
            f"{text[:20]!r} is not a status: use 200, 4xx or error.", param="status"
        )
    if match[2] is None:
        return StatusRange(int(match[1]) * 100, int(match[1]) * 100 + 99)
    return StatusRange(int(text), int(text))


def time_range(query: QueryParams, now: int, *, default: str = "24h") -> TimeRange:
    """Reads a time range from the query: the last hours or days if the query has `range`, otherwise
    from `since` to `until`. Without any of them, returns the range `default`."""
    since, until = optional(query, "since"), optional(query, "until")
    if (since is not None or until is not None) and optional(query, "range") is None:
        end = now + 1 if until is None else unix_time(until, "until")
        start = max(0, end - RANGES_S[default]) if since is None else unix_time(since, "since")
        if start >= end:
            raise InvalidRequest("The time range must end after it begins.", param="until")
        return TimeRange(start, end)
    name = optional(query, "range") or default
    if name not in RANGES_S:
        raise InvalidRequest(f"A range is one of {', '.join(RANGES_S)}.", param="range")
    return TimeRange(max(0, now + 1 - RANGES_S[name]), now + 1)


def unix_time(text: str, param: str) -> int:
    """Reads Unix seconds, a date in UTC, or a date and time in UTC. Returns Unix seconds."""
    try:
        if text.isascii() and text.isdigit():
            timestamp = int(text)
        elif len(text) == len("2026-01-31"):
            day = date.fromisoformat(text)
            timestamp = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        else:
            timestamp = int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        timestamp = -1
    if not 0 <= timestamp <= TIME_MAX:
        raise InvalidRequest(
            f"{text[:40]!r} is not a date like 2026-01-31, or is out of range.", param=param
        )
    return timestamp


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
