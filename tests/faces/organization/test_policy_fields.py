"""Tests every field of a policy with values at its limits, every JSON type, and unusual characters."""

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx2
import pytest

from tests.support.gateway import Gateway, Tenant, assert_error, idempotency_key
from tests.support.tables import each

_POLICIES = "/v1/organization/policies"
_GRIN = "\U0001f600"

_TEXT_BOUNDS = {"name": (1, 80), "description": (0, 240), "rule": (1, 20000)}
_ENUMS = {
    "direction": ("request", "response", "both"),
    "mode": ("monitoring", "enforcing"),
    "scope": ("organization", "projects", "unattached"),
}
# For each field, the JSON types of which `_ONE_OF_EACH_TYPE` has a valid value.
_TYPES = {
    "name": {"string"},
    "description": {"string"},
    "rule": {"string"},
    "direction": set[str](),  # takes strings, but not "word?"
    "mode": set[str](),
    "scope": set[str](),
    "project_ids": {"array"},
    "match_threshold_basis_points": {"null", "integer"},
}
_ONE_OF_EACH_TYPE: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "string": "word?",
    "array": [],
    "object": {},
}


class Editor:
    """Sends fields of policies for one organization, in requests that create and that edit a policy."""

    def __init__(self, gateway: Gateway, tenant: Tenant) -> None:
        self.gateway = gateway
        self.tenant = tenant

    async def create(self, **fields: Any) -> httpx2.Response:
        return await self.gateway.client.post(
            _POLICIES,
            json={"name": "n", "rule": "r?", **fields},
            headers={**self.tenant.as_admin, **idempotency_key()},
        )

    async def edit(self, **fields: Any) -> httpx2.Response:
        policy = (await self.create()).json()
        return await self.gateway.client.patch(
            f"{_POLICIES}/{policy['id']}",
            json={"revision": 1, **fields},
            headers=self.tenant.as_admin,
        )

    async def both(self, field: str, values: Iterable[Any]) -> list[tuple[Any, httpx2.Response]]:
        """Sends each value in a creation and in an edit, and returns two pairs of value and answer for it."""
        tried = [(value, call) for value in values for call in (self.create, self.edit)]
        answers = await asyncio.gather(*(call(**{field: value}) for value, call in tried))
        return [(value, answer) for (value, _), answer in zip(tried, answers, strict=True)]

    async def accepts(self, field: str, values: Iterable[Any]) -> None:
        for value, answer in await self.both(field, values):
            assert _read(answer, field) == value

    async def refuses(self, field: str, values: Iterable[Any], param: str | None = None) -> None:
        for value, answer in await self.both(field, values):
            assert answer.status_code == 400, (field, value)
            assert_error(answer, 400, "invalid_request", param or field)


@pytest.fixture(scope="module")
async def editor(gateway: Gateway) -> Editor:
    return Editor(gateway, await gateway.make_tenant())


def _read(answer: httpx2.Response, field: str) -> Any:
    assert answer.status_code == 200, answer.text
    policy = answer.json()
    return policy[field] if field in policy else policy["draft"][field]


def _text(field: str, length: int, character: str) -> str:
    return character * (length - 1) + "?" if field == "rule" and length else character * length


@each("character", ["a", "é", _GRIN], ids=["ascii", "latin", "astral"])
@each("field", _TEXT_BOUNDS)
async def test_length_counts_characters(editor: Editor, field: str, character: str) -> None:
    low, high = _TEXT_BOUNDS[field]
    inside = [_text(field, length, character) for length in (low, low + 1, high - 1, high)]
    outside = [_text(field, length, character) for length in (low - 1, high + 1) if length >= 0]
    await editor.accepts(field, inside)
    await editor.refuses(field, outside)


@each("field", _ENUMS)
async def test_enum(editor: Editor, field: str) -> None:
    word = _ENUMS[field][0]
    await editor.accepts(field, _ENUMS[field])
    await editor.refuses(field, ["", "other", word.upper(), f"{word} ", None])


async def test_threshold(editor: Editor) -> None:
    field = "match_threshold_basis_points"
    await editor.accepts(field, [1, 2, 9998, 9999, None])
    await editor.refuses(field, [0, -1, 10000, 2**31, 2**63, 2**64, 1.0, True, "5000"])


async def test_project_ids_bound(editor: Editor) -> None:
    own = str(editor.tenant.project_id)
    await editor.accepts("project_ids", [[], [own]])
    for _, answer in await editor.both("project_ids", [[own] * 1000]):
        assert _read(answer, "project_ids") == [own]
    await editor.refuses("project_ids", [[own] * 1001])


async def test_project_ids_are_texts(editor: Editor) -> None:
    own = str(editor.tenant.project_id)
    others: list[object] = [None, True, 1, 1.5, [], {}]
    lists = [[own, other] for other in others]
    await editor.refuses("project_ids", lists, "project_ids[1]")


@each("field", _TYPES)
async def test_type_confusion(editor: Editor, field: str) -> None:
    taken = [value for kind, value in _ONE_OF_EACH_TYPE.items() if kind in _TYPES[field]]
    await editor.accepts(field, taken)
    others = [value for kind, value in _ONE_OF_EACH_TYPE.items() if kind not in _TYPES[field]]
    await editor.refuses(field, others)


@each("suffix", ["", "/pause"])
async def test_revision_type_and_bounds(gateway: Gateway, editor: Editor, suffix: str) -> None:
    path = f"{_POLICIES}/{(await editor.create()).json()['id']}{suffix}"

    async def change(revision: object) -> httpx2.Response:
        return await gateway.client.request(
            "POST" if suffix else "PATCH",
            path,
            json={"revision": revision},
            headers=editor.tenant.as_admin,
        )

    wrong: list[object] = [0, -1, 2147483648, 2**64, 10**100, 1.0, True, None, "1", [], {}]
    for answer in await asyncio.gather(*map(change, wrong)):
        assert_error(answer, 400, "invalid_request", "revision")
    assert_error(await change(2147483647), 409, "revision_conflict", "revision")


@each("missing", ["name", "rule"])
async def test_required_of_creation(gateway: Gateway, editor: Editor, missing: str) -> None:
    body = {"name": "n", "rule": "r?"}
    del body[missing]
    headers = {**editor.tenant.as_admin, **idempotency_key()}
    answer = await gateway.client.post(_POLICIES, json=body, headers=headers)
    assert_error(answer, 400, "invalid_request", missing)


@each("suffix", ["", "/pause"])
async def test_revision_is_required(gateway: Gateway, editor: Editor, suffix: str) -> None:
    policy = (await editor.create()).json()
    answer = await gateway.client.request(
        "POST" if suffix else "PATCH",
        f"{_POLICIES}/{policy['id']}{suffix}",
        json={},
        headers=editor.tenant.as_admin,
    )
    assert_error(answer, 400, "invalid_request", "revision")


# The gateway uses the first ten names itself, but clients cannot set them.
_UNKNOWN = [
    "id",
    "object",
    "state",
    "current_version",
    "published",
    "base_version",
    "organization_id",
    "has_unpublished_changes",
    "created_at",
    "draft",
    "Name",
    "name ",
    "",
    "__proto__",
    "ключ",
]


@each("unknown", _UNKNOWN)
async def test_unknown_property(editor: Editor, unknown: str) -> None:
    for _, answer in await editor.both(unknown, ["x"]):
        assert_error(answer, 400, "invalid_request", unknown or None)


async def test_revision_is_unknown_to_creation(editor: Editor) -> None:
    assert_error(await editor.create(revision=1), 400, "invalid_request", "revision")


async def test_pause_takes_nothing_but_the_revision(gateway: Gateway, editor: Editor) -> None:
    policy = (await editor.create()).json()
    answer = await gateway.client.post(
        f"{_POLICIES}/{policy['id']}/pause",
        json={"revision": 1, "state": "paused"},
        headers=editor.tenant.as_admin,
    )
    assert_error(answer, 400, "invalid_request", "state")


async def test_rule_ends_with_a_question_mark(editor: Editor) -> None:
    wrong = [
        "Is it",
        "Is it? ",
        "Is it?\n",
        "Is it\uff1f",
        "Is it?!",
        "Is it?\u200b",
        "?x",
        "\u037e",
    ]
    await editor.refuses("rule", wrong)


_AWKWARD = [
    "?",
    "'; DROP TABLE policies; --?",
    "a\tb\r\nc?",
    "\u202eright to left?",
    "e\u0301 stays two characters?",
    "\ufeff\uffff\ufffd?",
    "\x7f\x80\u2028?",
    "%s %(x)s {0} ${jndi}?",
    '"quotes" \\ and / slashes?',
    "\U0001f469\u200d\U0001f469\u200d\U0001f467?",
    "\\u0000?",
]


@each("field", _TEXT_BOUNDS)
async def test_text_round_trips_exactly(editor: Editor, field: str) -> None:
    await editor.accepts(field, _AWKWARD)


@each("field", _TEXT_BOUNDS)
async def test_nul_is_refused_by_name(editor: Editor, field: str) -> None:
    await editor.refuses(field, ["\x00?", "a\x00b?", "a\x00?"])


async def test_nul_in_other_places(editor: Editor) -> None:
    await editor.refuses("project_ids", [["\x00"]])
    await editor.refuses("mode", ["monitoring\x00"])
    await editor.refuses("na\x00me", ["x"])


_LONE = [r"\ud800", r"\udbff", r"\udc00", r"\udfff", r"\ude00\ud83d", r"\ud83dx", r"\ud83d\ud83d"]


@each("escape", _LONE)
async def test_lone_surrogate_is_refused(gateway: Gateway, editor: Editor, escape: str) -> None:
    bodies = [
        rf'{{"name": "{escape}", "rule": "r?"}}',
        rf'{{"name": "n", "rule": "{escape}?"}}',
        rf'{{"name": "n", "rule": "r?", "description": "{escape}"}}',
        rf'{{"name": "n", "rule": "r?", "mode": "{escape}"}}',
        rf'{{"name": "n", "rule": "r?", "project_ids": ["{escape}"]}}',
        rf'{{"name": "n", "rule": "r?", "{escape}": 1}}',
    ]
    for body in bodies:
        answer = await gateway.client.post(
            _POLICIES,
            content=body.encode(),
            headers={
                **editor.tenant.as_admin,
                **idempotency_key(),
                "Content-Type": "application/json",
            },
        )
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["error"]["code"] == "invalid_request"


async def test_escaped_pair_is_one_character(gateway: Gateway, editor: Editor) -> None:
    pair = r"\ud83d\ude00"
    answer = await gateway.client.post(
        _POLICIES,
        content=rf'{{"name": "{pair * 80}", "rule": "r?"}}'.encode(),
        headers={
            **editor.tenant.as_admin,
            **idempotency_key(),
            "Content-Type": "application/json",
        },
    )
    assert _read(answer, "name") == _GRIN * 80


# Path segments that name no policy, and the status of the answer.
_PATH_IDS = [
    ("x", 404),
    ("a" * 200, 404),
    ("a" * 201, 400),
    ("%F0%9F%98%80" * 200, 404),
    ("%F0%9F%98%80" * 201, 400),
    ("%00", 404),
    ("pol_%00", 404),
    ("%FF", 400),
    ("%ED%A0%80", 400),
    ("%", 404),
    ("%zz", 404),
    ("..%2F..%2Fcosts", 404),
    ("'%20OR%20'1'%3D'1", 404),
]


@each(("segment", "status"), _PATH_IDS)
async def test_policy_id_in_the_path(
    gateway: Gateway, editor: Editor, segment: str, status: int
) -> None:
    answer = await gateway.client.get(f"{_POLICIES}/{segment}", headers=editor.tenant.as_admin)
    code = {400: "invalid_request", 404: "not_found"}[status]
    assert_error(answer, status, code, "policy_id")
