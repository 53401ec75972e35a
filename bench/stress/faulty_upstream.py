"""Runs an upstream that fails, cuts its stream, stalls or sends much data if the prompt asks for it."""

import uvloop

from bench.upstream import STREAM_HEAD, Upstream, piece, serve

FAILS, CUTS, STALLS, POURS = "please-fail", "please-cut", "please-stall", "please-pour"
_POURED_BYTES_MAX = 16 << 20
_FIRST = piece("word ")
_LARGE_PIECE = piece("pour " * 3000)
_BODY = b'{"error":{"message":"The model is on fire.","type":"server_error"}}'
_FAILURE = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class FaultyUpstream(Upstream):
    def on_message_complete(self) -> None:
        body = self._body
        if FAILS.encode() in body:
            self._body = b""
            self._transport.write(_FAILURE)
        elif CUTS.encode() in body:
            self._transport.write(STREAM_HEAD + _FIRST)
            self._transport.close()
        elif STALLS.encode() in body:
            self._body = b""
            self._transport.write(STREAM_HEAD + _FIRST)
        elif POURS.encode() in body:
            self._body = b""
            self._transport.write(STREAM_HEAD)
            self._poured = 0
            self._pour()
        else:
            super().on_message_complete()

    _poured: int | None = None

    def resume_writing(self) -> None:
        if self._poured is not None:
            self._pour()

    def _pour(self) -> None:
        """Sends large pieces as long as the gateway reads them, up to `_POURED_BYTES_MAX` bytes."""
        assert self._poured is not None
        while self._poured < _POURED_BYTES_MAX and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                return
            self._transport.write(_LARGE_PIECE)
            self._poured += len(_LARGE_PIECE)


if __name__ == "__main__":
    uvloop.run(serve(0, FaultyUpstream))
