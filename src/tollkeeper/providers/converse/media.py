"""Encodes media as Converse blocks: only content, never an address. The provider would read an
address in its own storage with the rights of the gateway's key."""

import re
from collections.abc import Callable, Mapping

from tollkeeper.core.inline_content import InlineContent
from tollkeeper.core.prompt import Audio, File, FreeObject, Image, Media, Video
from tollkeeper.providers.inline_media import (
    PDF,
    content_at,
    content_in,
    content_required,
    format_of,
)
from tollkeeper.providers.request_fields import check_detail

_OFFICE = "application/vnd.openxmlformats-officedocument."
_IMAGES = {f"image/{name}": name for name in ("png", "jpeg", "gif", "webp")}
_DOCUMENTS = {
    PDF: "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_VIDEOS = {
    "video/x-matroska": "mkv",
    "video/quicktime": "mov",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
# As clients name them.
_AUDIO = {
    name: name
    for name in (
        *("mp3", "opus", "wav", "aac", "flac", "mp4"),
        *("ogg", "m4a", "mpeg", "pcm", "webm"),
    )
}
_EXTENSIONS = {name: name for name in _DOCUMENTS.values()}
# What the provider rejects in a document's name, as it does successive spaces.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9\s\-()\[\]]+")
_SPACES = re.compile(r"\s+")
# In characters, without the number that tells equal names apart.
_NAME_MAX = 180


class MediaBlocks:
    """Every document needs its own name, of allowed characters only."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        # The last number appended to each file name.
        self._numbers: dict[str, int] = {}

    def block(self, media: Media) -> FreeObject:
        match media:
            case Image():
                check_detail(media)
                content = _content(content_at, media.url, media.place)
                return {"image": _source(content, content.media_type, _IMAGES, media.place)}
            case Video():
                content = _content(content_at, media.url, media.place)
                return {"video": _source(content, content.media_type, _VIDEOS, media.place)}
            case Audio():
                content = _content(content_in, media.data, media.place)
                asked = (media.format or "").lower()
                return {"audio": _source(content, asked, _AUDIO, media.place)}
            case File():
                return {"document": self._document(media)}

    def _document(self, file: File) -> FreeObject:
        content = _content(content_in, file.data, file.place)
        extension = (file.filename or "").rpartition(".")[2].lower()
        name = _DOCUMENTS.get(content.media_type, extension)
        if name not in _EXTENSIONS and not content.media_type:
            # Without a type, it's usually PDF.
            name = "pdf"
        source = _source(content, name, _EXTENSIONS, file.place)
        return {"name": self._name(file.filename), **source}

    def _name(self, filename: str | None) -> str:
        plain = _NOT_IN_NAMES.sub("-", (filename or "document")[:_NAME_MAX])
        plain = _SPACES.sub(" ", plain).strip() or "document"
        name, number = plain, self._numbers.get(plain, 1)
        while name in self._names:
            number += 1
            name = f"{plain} {number}"
        self._names.add(name)
        self._numbers[plain] = number
        return name


def _content(
    read: Callable[[str, str], InlineContent | None], source: str | None, place: str
) -> InlineContent:
    content = None if source is None or "://" in source else read(source, place)
    if content is None:
        raise content_required(place)
    return content


def _source(
    content: InlineContent, kind: str, formats: Mapping[str, str], place: str
) -> FreeObject:
    return {"format": format_of(kind, formats, place), "source": {"bytes": content.base64}}
