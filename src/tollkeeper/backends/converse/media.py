"""Images, files, audio and video as blocks of a Converse request. The provider takes their content
only: an address in its own storage would be read with the rights of the gateway's key."""

import re

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import Audio, File, FreeObject, Image, Video

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
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
# The provider has one resolution. These say nothing else than that.
_DETAILS = (None, "auto", "high")
# What a document's name may not have, and spaces in a row.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9\s\-()\[\]]+")
_SPACES = re.compile(r"\s+")
_NAME_MAX = 180


def image_block(image: Image) -> FreeObject:
    if image.detail not in _DETAILS:
        raise OptionUnsupported(
            "The backend has no choice of an image's resolution.", param=f"{image.place}.detail"
        )
    media_type, data = _content(image.url, image.place)
    return {"image": _described(_IMAGES.get(media_type), data, _IMAGES, image.place)}


def video_block(video: Video) -> FreeObject:
    media_type, data = _content(video.url, video.place)
    return {"video": _described(_VIDEOS.get(media_type), data, _VIDEOS, video.place)}


def audio_block(audio: Audio) -> FreeObject:
    if audio.data is None:
        raise _by_content_only(audio.place)
    name = (audio.format or "").lower()
    described = _described(name if name in _AUDIO else None, audio.data, _AUDIO, audio.place)
    return {"audio": described}


class Documents:
    """Files of one request. Their names have few characters, and each occurs once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def block(self, file: File) -> FreeObject:
        if file.data is None:
            raise _by_content_only(file.place)
        found = _DATA_URL.match(file.data)
        data = file.data if found is None else file.data[found.end() :]
        extension = (file.filename or "").rpartition(".")[2].lower()
        name = None if found is None else _DOCUMENTS.get(found[1].lower())
        if name is None and extension in _EXTENSIONS:
            name = extension
        if name is None and found is None:
            # Callers that leave the type out send PDF.
            name = "pdf"
        described = _described(name, data, _EXTENSIONS, file.place)
        return {"document": {"name": self._name(file.filename), **described}}

    def _name(self, filename: str | None) -> str:
        plain = _NOT_IN_NAMES.sub("-", (filename or "document")[:_NAME_MAX])
        plain = _SPACES.sub(" ", plain).strip() or "document"
        name, number = plain, 1
        while name in self._names:
            number += 1
            name = f"{plain} {number}"
        self._names.add(name)
        return name


def _content(url: str, place: str) -> tuple[str, str]:
    """The type and the base64 of a data URL."""
    found = _DATA_URL.match(url)
    if found is not None:
        return found[1].lower(), url[found.end() :]
    if "://" in url:
        raise _by_content_only(place)
    raise InvalidRequest("The content is neither a URL nor base64 data.", param=place)


def _described(
    name: str | None, data: str, possible: "dict[str, str] | frozenset[str]", place: str
) -> FreeObject:
    if name is None:
        raise OptionUnsupported(
            f"The backend takes the types {', '.join(sorted(possible))}.", param=place
        )
    if not data:
        raise InvalidRequest("The content is empty.", param=place)
    return {"format": name, "source": {"bytes": data}}


def _by_content_only(place: str) -> OptionUnsupported:
    return OptionUnsupported(
        "The backend takes media and files by their content only.", param=place
    )
