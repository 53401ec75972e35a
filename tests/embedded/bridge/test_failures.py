"""Errors of a library as statuses, by which the gateway decides whether a call may have run."""

import pytest

from tollkeeper.embedded.bridge.failures import Failure, failure_of, unsupported


class LibraryError(Exception):
    """As the library raises it."""

    def __init__(self, message: str = "no", **attributes: object) -> None:
        super().__init__(message)
        for name, value in attributes.items():
            setattr(self, name, value)


class ConnectError(Exception):
    """Has the name that HTTP clients give to a connection that was never made."""


def _failure(error: Exception) -> Failure:
    return failure_of(error, "provider", ("secret",))


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 502, 529])
def test_the_status_of_the_provider_is_kept(status: int) -> None:
    assert _failure(LibraryError(status_code=status)).status == status


def test_the_status_may_be_that_of_the_error_inside() -> None:
    inner = LibraryError(status_code=503)
    assert _failure(LibraryError(original_exception=inner)).status == 503


@pytest.mark.parametrize(
    ("kind", "status"), [("overloaded_error", 529), ("invalid_request_error", 400), ("new", 502)]
)
def test_an_error_in_a_stream_that_began_well_is_known_by_its_type(kind: str, status: int) -> None:
    assert _failure(LibraryError(status_code=200, error_type=kind)).status == status


def test_without_a_connection_nothing_was_sent() -> None:
    outer = LibraryError()
    outer.__cause__ = ConnectError()
    assert _failure(outer).status == 503
    context = LibraryError()
    context.__context__ = ConnectError()
    assert _failure(context).status == 503


def test_anything_else_may_have_run() -> None:
    assert _failure(LibraryError()).status == 502
    assert _failure(KeyError("choices")).status == 502
    circle = LibraryError()
    circle.original_exception = circle  # type: ignore[attr-defined]
    assert _failure(circle).status == 502


def test_an_error_while_the_request_was_written_is_a_rejection() -> None:
    def _convert_completion_params() -> None:
        raise ValueError("a tool message needs a call")

    with pytest.raises(ValueError) as raised:
        _convert_completion_params()
    failure = _failure(LibraryError(original_exception=raised.value))
    assert failure.status == 400


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (LibraryError(parameter_name="seed"), "seed"),
        (LibraryError(parameter_name="reasoning_effort with max_tokens"), "reasoning_effort"),
        (TypeError("create() got an unexpected keyword argument 'seed'"), "seed"),
        (TypeError("chat() got an unexpected keyword argument 'stop_sequences'"), "stop"),
    ],
)
def test_what_the_library_lacks_is_named(error: Exception, param: str) -> None:
    failure = _failure(error)
    assert failure == unsupported(param, "provider")
    assert failure.status == 501
    assert failure.body()["error"]["type"] == "option_unsupported"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("17", 17), ("0.2", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", None), (None, None), ("nan", None)],
)
def test_the_wait_of_a_rate_limit(said: str | None, seconds: int | None) -> None:
    failure = _failure(LibraryError(status_code=429, retry_after=said))
    assert failure.retry_after_s == seconds


def test_the_words_are_those_of_the_provider_without_secrets() -> None:
    body = {"error": {"message": "no key secret here"}}
    failure = _failure(LibraryError("Error code: 400", status_code=400, body=body))
    assert failure.message == "no key [removed] here"
    assert _failure(LibraryError("a secret", status_code=400)).message == "a [removed]"
    assert len(_failure(LibraryError("x" * 10_000)).message) == 1000
