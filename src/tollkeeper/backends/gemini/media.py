"""Encodes images, audio, videos and files as parts of a Gemini request."""

import mimetypes
from urllib.parse import urlsplit

from tollkeeper.backends.unsupported import check_detail
from tollkeeper.domain.errors import InvalidRequest, OptionUnsupported
from tollkeeper.domain.inline_content import is_inline, read_inline
from tollkeeper.domain.prompt import Audio, File, FreeObject, Image, Media, Video

# The hosts of the provider's own storage. Addresses at these hosts are rejected, because the provider
# would read the files with the rights of the gateway's account.
_PROVIDER_STORAGE_HOSTS = ("generativelanguage.googleapis.com", "aiplatform.googleapis.com")
# The hosts of video pages. An address at these hosts is sent without a media type.
_VIDEO_PAGES = ("www.youtube.com", "youtube.com", "youtu.be", "m.youtube.com")
_PDF = "application/pdf"


def media_part(media: Media) -> FreeObject:
    """Encodes an image, video, audio or file. Raises InvalidRequest and OptionUnsupported."""
    match media:
        case Image():
            check_detail(media)
            return _by_address(media.url, media.place)
        case Video():
            return _by_address(media.url, media.place)
        case Audio():
            return _audio_part(media)
        case File():
            return _file_part(media)


def _audio_part(audio: Audio) -> FreeObject:
    if audio.url is not None:
        return _by_address(audio.url, audio.place)
    return _inline(audio.data or "", f"audio/{(audio.format or 'wav').lower()}", audio.place)


def _file_part(file: File) -> FreeObject:
    if file.url is not None:
        return _by_address(file.url, file.place)
    if file.data is None:
        raise OptionUnsupported(
            "The backend does not accept file ids: send the content.", param=file.place
        )
    guessed_type = mimetypes.guess_type(file.filename or "")[0]
    # If the type is unknown, the file is treated as PDF, because clients that omit the type usually
    # send PDF.
    return _inline(file.data, guessed_type or _PDF, file.place)


def _by_address(url: str, place: str) -> FreeObject:
    if is_inline(url):
        return _inline(url, "", place)
    if not url.startswith(("https://", "http://")):
        raise InvalidRequest("The content is neither a URL nor base64 data.", param=place)
    try:
        address = urlsplit(url)
        host = (address.hostname or "").rstrip(".")
    except ValueError:
        raise InvalidRequest("The URL cannot be read.", param=place) from None
    if host in _PROVIDER_STORAGE_HOSTS or host.endswith(
        tuple(f"-{storage}" for storage in _PROVIDER_STORAGE_HOSTS)
    ):
        raise OptionUnsupported("Files in the provider's own storage are not allowed.", param=place)
    if host in _VIDEO_PAGES:
        return {"fileData": {"fileUri": url}}
    media_type = mimetypes.guess_type(address.path)[0]
    if media_type is None:
        raise InvalidRequest(
            "The URL must end with a file extension. Otherwise send the content.",
            param=place,
        )
    return {"fileData": {"fileUri": url, "mimeType": media_type}}


def _inline(data: str, guessed_type: str, place: str) -> FreeObject:
    content = read_inline(data)
    if content is None:
        raise InvalidRequest("The content is neither a URL nor base64 data.", param=place)
    if not content.base64:
        raise InvalidRequest("The content is empty.", param=place)
    media_type = content.media_type or guessed_type
    return {"inlineData": {"mimeType": media_type, "data": content.base64}}
