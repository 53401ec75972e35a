"""Encodes images and files as blocks of a Messages request."""

import base64

from tollkeeper.backends.unsupported import check_detail
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inline_content import read_address, read_inline
from tollkeeper.domain.prompt import File, FreeObject, Image

_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
_PLAIN_TEXT = "text/plain"


def image_block(image: Image, *, takes_urls: bool) -> FreeObject:
    """Encodes an image. Raises InvalidRequest and OptionUnsupported."""
    check_detail(image)
    content = read_address(image.url)
    if content is not None:
        media_type = content.media_type
        if media_type not in _IMAGE_TYPES:
            raise OptionUnsupported(
                f"The backend accepts only images of the types {', '.join(sorted(_IMAGE_TYPES))}.",
                param=image.place,
            )
        source = {"type": "base64", "media_type": media_type, "data": content.base64}
    elif image.url.startswith(("https://", "http://")):
        if not takes_urls:
            raise OptionUnsupported(
                "The backend does not accept image URLs: send the content.", param=image.place
            )
        source = {"type": "url", "url": image.url}
    else:
        raise InvalidRequest("The image is neither a URL nor base64 data.", param=image.place)
    return {"type": "image", "source": source}


def file_block(file: File) -> FreeObject:
    """Encodes a file. A PDF stays in base64; plain text is decoded. Raises InvalidRequest and
    OptionUnsupported."""
    if file.data is None:
        raise OptionUnsupported(
            "The backend does not accept file ids or URLs: send the content.", param=file.place
        )
    content = read_inline(file.data)
    if content is None:
        raise InvalidRequest("The file is not in base64.", param=file.place)
    media_type = content.media_type or _guessed_type(file.filename)
    if media_type == _PDF:
        source = {"type": "base64", "media_type": _PDF, "data": content.base64}
    elif media_type == _PLAIN_TEXT:
        text = _text(content.base64, file.place)
        source = {"type": "text", "media_type": _PLAIN_TEXT, "data": text}
    else:
        raise OptionUnsupported(
            f"The backend accepts only files of the types {_PDF} and {_PLAIN_TEXT}.",
            param=file.place,
        )
    block: FreeObject = {"type": "document", "source": source}
    if file.filename:
        block["title"] = file.filename
    return block


def _guessed_type(filename: str | None) -> str:
    """Returns the media type of a file that a client sent without a type: plain text for `.txt` and
    `.md`, otherwise PDF, because clients that omit the type usually send PDF."""
    return _PLAIN_TEXT if (filename or "").lower().endswith((".txt", ".md")) else _PDF


def _text(data: str, place: str) -> str:
    try:
        return base64.b64decode(data).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is not a text in base64.", param=place) from None
