"""Encodes images, files, audio and videos as blocks of a Converse request.

Only content is sent, never an address. If the address were in the provider's own storage, the
provider would read the file with the rights of the gateway's key.
"""

import re

from tollkeeper.backends.unsupported import check_detail
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inline_content import InlineContent, read_address, read_inline
from tollkeeper.domain.prompt import Audio, File, FreeObject, Image, Video

_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_OFFICE = "application/vnd.openxmlformats-officedocument."
_DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_EXTENSIONS = frozenset(_DOCUMENTS.values())
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
_AUDIO = frozenset(
    {"mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "m4a", "mpeg", "pcm", "webm"}
)
# Matches the characters that the provider rejects in the name of a document. The provider also
# rejects successive spaces.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9\s\-()\[\]]+")
_SPACES = re.compile(r"\s+")
# The maximum length of a name in characters, without the number that distinguishes equal names.
_NAME_MAX = 180


def image_block(image: Image) -> FreeObject:
    check_detail(image)
    content = _content(read_address(image.url), image.url, image.place)
    format_name = _IMAGES.get(content.media_type)
    return {"image": _format_and_source(format_name, content, _IMAGES, image.place)}


def video_block(video: Video) -> FreeObject:
    content = _content(read_address(video.url), video.url, video.place)
    format_name = _VIDEOS.get(content.media_type)
    return {"video": _format_and_source(format_name, content, _VIDEOS, video.place)}


def audio_block(audio: Audio) -> FreeObject:
    if audio.data is None:
        raise _content_required(audio.place)
    content = _content(read_inline(audio.data), audio.data, audio.place)
    requested = (audio.format or "").lower()
    format_name = requested if requested in _AUDIO else None
    return {"audio": _format_and_source(format_name, content, _AUDIO, audio.place)}


class Documents:
    """Encodes the files of one request. The provider allows only some characters in the name of a
    document, and requires a different name for each document."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        # The number at the end of the last name that was made from each file name.
        self._numbers: dict[str, int] = {}

    def block(self, file: File) -> FreeObject:
        if file.data is None:
            raise _content_required(file.place)
        content = _content(read_inline(file.data), file.data, file.place)
        extension = (file.filename or "").rpartition(".")[2].lower()
        format_name = _DOCUMENTS.get(content.media_type)
        if format_name is None and extension in _EXTENSIONS:
            format_name = extension
        if format_name is None and not content.media_type:
            # The file is treated as PDF, because clients that omit the type usually send PDF.
            format_name = "pdf"
        format_and_source = _format_and_source(format_name, content, _EXTENSIONS, file.place)
        return {"document": {"name": self._name(file.filename), **format_and_source}}

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


def _content(content: InlineContent | None, source: str, place: str) -> InlineContent:
    if content is not None:
        return content
    if "://" in source:
        raise _content_required(place)
    raise InvalidRequest("The content is neither a URL nor base64 data.", param=place)


def _format_and_source(
    format_name: str | None,
    content: InlineContent,
    accepted_types: "dict[str, str] | frozenset[str]",
    place: str,
) -> FreeObject:
    if format_name is None:
        raise OptionUnsupported(
            f"The backend accepts only the types {', '.join(sorted(accepted_types))}.", param=place
        )
    if not content.base64:
        raise InvalidRequest("The content is empty.", param=place)
    return {"format": format_name, "source": {"bytes": content.base64}}


def _content_required(place: str) -> OptionUnsupported:
    return OptionUnsupported(
        "The backend accepts only the content of media and files, not URLs or ids.", param=place
    )
