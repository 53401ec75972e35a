"""When the blocks of an answer begin and end, for the faces whose answers are lists of blocks.

Text or reasoning ends when another block begins. A tool call only does so if its arguments are a
complete JSON object by then, because a backend may send pieces of several calls in turn.
"""

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from tollkeeper.core.errors import BackendFailed
from tollkeeper.core.inference import ToolCallPiece
from tollkeeper.core.prompt import decode_arguments


class Block(Protocol):
    index: int

    @property
    def whole(self) -> str:
        """Read for tool calls only, whose pieces are arguments."""
        ...


_Block = TypeVar("_Block", bound=Block)


class AnswerBlocks(ABC, Generic[_Block]):
    def __init__(self) -> None:
        self._count = 0
        self._open: dict[int, _Block] = {}
        # Text or reasoning that the next piece may extend.
        self._current: _Block | None = None
        self._calls: dict[int, _Block] = {}
        # Got the latest arguments, if no other block has begun since.
        self._last_call: _Block | None = None

    @abstractmethod
    def _new_call(self, piece: ToolCallPiece, index: int) -> _Block: ...

    @abstractmethod
    def _announce(self, block: _Block) -> None:
        """Tell the client that it has begun."""

    @abstractmethod
    def _extend_call(self, call: _Block, arguments: str) -> None: ...

    @abstractmethod
    def _close(self, block: _Block) -> None:
        """Tell the client that it has ended."""

    def _begin(self, block: _Block) -> _Block:
        self._end_finished()
        self._open[block.index] = block
        self._count += 1
        self._announce(block)
        return block

    def _end(self, block: _Block) -> None:
        if self._current is block:
            self._current = None
        del self._open[block.index]
        self._close(block)

    def _end_finished(self) -> None:
        if self._current is not None:
            self._end(self._current)
        call, self._last_call = self._last_call, None
        if call is not None and decode_arguments(call.whole) is not None:
            self._end(call)

    def _end_all(self) -> None:
        """They end in the order in which they began."""
        for block in list(self._open.values()):
            self._end(block)

    def _add_call(self, piece: ToolCallPiece) -> None:
        call = self._calls.get(piece.index)
        if call is None:
            call = self._calls[piece.index] = self._begin(self._new_call(piece, self._count))
        if piece.arguments and call.index in self._open:
            self._last_call = call
            self._extend_call(call, piece.arguments)
        elif piece.arguments.strip():
            raise BackendFailed("The backend added arguments to a complete tool call.")
