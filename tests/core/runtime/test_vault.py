"""Tests that sealed or signed data can be read only with the same secret, purpose and context."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import each
from tollkeeper.core.runtime.vault import Vault

_VAULT = Vault(b"m" * 32)
_OTHER = Vault(b"n" * 32)


@given(st.binary(max_size=100), st.lists(st.binary(max_size=10), max_size=3))
def test_sealed_is_unsealed_by_its_context_only(plain: bytes, context: list[bytes]) -> None:
    sealed = _VAULT.seal(plain, "p", *context)
    assert _VAULT.unseal(sealed, "p", *context) == plain
    assert _VAULT.unseal(sealed, "q", *context) is None
    assert _VAULT.unseal(sealed, "p", *context, b"") is None
    assert _OTHER.unseal(sealed, "p", *context) is None


def test_sealing_twice_gives_two_texts_and_neither_shows_the_plain() -> None:
    plain = b"tkp_a-secret-that-is-long-enough"
    first, second = _VAULT.seal(plain, "p"), _VAULT.seal(plain, "p")
    assert first != second
    assert plain not in first + second


def test_every_bit_of_a_sealed_text_counts() -> None:
    sealed = _VAULT.seal(b"secret", "p")
    for bit in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        assert _VAULT.unseal(bytes(changed), "p") is None


@each("length", range(30))
def test_short_or_empty_text_unseals_to_nothing(length: int) -> None:
    assert _VAULT.unseal(b"\x00" * length, "p") is None


@given(st.binary(max_size=50), st.binary(max_size=10))
def test_signature(payload: bytes, context: bytes) -> None:
    signed = _VAULT.sign(payload, "p", context)
    assert _VAULT.verify(signed, "p", context) == payload
    assert _VAULT.verify(signed, "p", context + b"x") is None
    assert _VAULT.verify(signed, "q", context) is None
    assert _OTHER.verify(signed, "p", context) is None
    assert _VAULT.verify(signed[:-1], "p", context) is None


def test_parts_of_a_context_do_not_run_into_each_other() -> None:
    derived = {
        _VAULT.derive("p", b"ab", b"c"),
        _VAULT.derive("p", b"a", b"bc"),
        _VAULT.derive("p", b"abc"),
        _VAULT.derive("pa", b"b", b"c"),
        _VAULT.derive("p", b"ab", b"c", b""),
    }
    assert len(derived) == 5
