"""The upstream of the soak: words of a prompt tell it to fail, to cut its stream, or to stall."""

import uvloop

from bench.upstream import STREAM_HEAD, Upstream, first_piece, serve

FAILS, CUTS, STALLS = "please-fail", "please-cut", "please-stall"
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
            self._transport.write(STREAM_HEAD + first_piece())
            self._transport.close()
        elif STALLS.encode() in body:
            self._body = b""
            self._transport.write(STREAM_HEAD + first_piece())
        else:
            super().on_message_complete()


if __name__ == "__main__":
    uvloop.run(serve(0, FaultyUpstream))
