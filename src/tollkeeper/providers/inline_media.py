"""Reads media whose content a request carries in base64, and looks its type up in a protocol's table."""

from collections.abc import Callable, Collection, Mapping

from tollkeeper.core.errors import InvalidRequest, OptionUnsupported
from tollkeeper.core.inline_content import InlineContent, read_address, read_inline

PDF = "application/pdf"


def content_at(url: str, place: str) -> InlineContent | None:
    """Of a `data:` URL; None for the address of a page."""
    if url.startswith(("https://", "http://")):
        return None
    return _required(read_address, url, place)


def content_in(data: str, place: str) -> InlineContent:
    """For a field without room for an address."""
    return _required(read_inline, data, place)


def _required(
    read: Callable[[str], InlineContent | None], source: str, place: str
) -> InlineContent:
    content = read(source)
    if content is None:
        raise InvalidRequest("The content is neither a URL nor base64 data.", param=place)
    if not content.base64:
        raise InvalidRequest("The content is empty.", param=place)
    return content


def format_of(media_type: str, formats: Mapping[str, str], place: str) -> str:
    if media_type not in formats:
        raise type_unsupported(formats, place)
    return formats[media_type]


def type_unsupported(accepted: Collection[str], place: str) -> OptionUnsupported:
    return OptionUnsupported(
        f"The backend accepts only the types {', '.join(sorted(accepted))}.", param=place
    )


def content_required(place: str) -> OptionUnsupported:
    return OptionUnsupported(
        "The backend accepts only the content of media and files, not URLs or ids.", param=place
    )
