"""Images and files as blocks of a Messages request."""

import base64
import binascii
import re

from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.prompt import File, FreeObject, Image

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
_PLAIN_TEXT = "text/plain"
# The provider has one resolution. These say nothing else than that.
_DETAILS = (None, "auto", "high")


def image_block(image: Image, *, takes_urls: bool) -> FreeObject:
    if image.detail not in _DETAILS:
        raise OptionUnsupported(
            "The backend has no choice of an image's resolution.", param=f"{image.place}.detail"
        )
    found = _DATA_URL.match(image.url)
    if found is not None:
        media_type = found[1].lower()
        if media_type not in _IMAGE_TYPES:
            raise OptionUnsupported(
                f"The backend takes images of the types {', '.join(sorted(_IMAGE_TYPES))}.",
                param=image.place,
            )
        data = image.url[found.end() :]
        source = {"type": "base64", "media_type": media_type, "data": data}
    elif image.url.startswith(("https://", "http://")):
        if not takes_urls:
            raise OptionUnsupported(
                "The backend takes no images by URL: send the content.", param=image.place
            )
        source = {"type": "url", "url": image.url}
    else:
        raise InvalidRequest("The image is neither a URL nor base64 data.", param=image.place)
    return {"type": "image", "source": source}


def file_block(file: File) -> FreeObject:
    """A PDF goes as it is, a plain text as text."""
    if file.data is None:
        raise OptionUnsupported("The backend takes files by their content only.", param=file.place)
    found = _DATA_URL.match(file.data)
    media_type = found[1].lower() if found is not None else _guessed_type(file.filename)
    data = file.data[found.end() :] if found is not None else file.data
    if media_type == _PDF:
        source = {"type": "base64", "media_type": _PDF, "data": data}
    elif media_type == _PLAIN_TEXT:
        source = {"type": "text", "media_type": _PLAIN_TEXT, "data": _text(data, file.place)}
    else:
        raise OptionUnsupported(
            f"The backend takes files of the types {_PDF} and {_PLAIN_TEXT}.", param=file.place
        )
    block: FreeObject = {"type": "document", "source": source}
    if file.filename:
        block["title"] = file.filename
    return block


def _guessed_type(filename: str | None) -> str:
    """The type of data without one. Callers that leave it out send PDF."""
    return _PLAIN_TEXT if (filename or "").lower().endswith((".txt", ".md")) else _PDF


def _text(data: str, place: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("The file is not a text in base64.", param=place) from None
