"""Tests that commands accept names and beginnings of ids in place of ids."""

from uuid import uuid4

import psycopg
import pytest

from tests.support.program import Program
from tests.support.tables import each


@pytest.fixture(scope="module")
def named(program: Program) -> dict[str, str]:
    """Creates an organization with names that no other test uses. Returns `mark` (a part of the names)
    and the ids."""
    mark = uuid4().hex
    organization = program.json("organization", "create", f"org {mark}")
    project = program.json("project", "create", organization["id"], f"project {mark}")
    key = program.json("project-key", "create", project["id"], f"key {mark}")
    admin = program.json(
        "admin-key", "create", organization["id"], f"a {mark}", "--all-permissions"
    )
    return {
        "mark": mark,
        "organization": organization["id"],
        "project": project["id"],
        "key": key["id"],
        "admin": admin["id"],
    }


def test_an_organization_by_its_name_in_any_case(program: Program, named: dict[str, str]) -> None:
    for name in (f"org {named['mark']}", f"ORG {named['mark'].upper()}"):
        assert program.json("organization", "show", name)["id"] == named["organization"]
    assert program.json("credit", "show", f"org {named['mark']}")["available"] == "0"


def test_white_space_at_the_ends_of_a_name_does_not_matter(
    program: Program, named: dict[str, str]
) -> None:
    found = program.json("organization", "show", f" org {named['mark']}\n")
    assert found["id"] == named["organization"]


def test_a_key_with_white_space_at_the_ends_of_its_name_is_found(
    program: Program, named: dict[str, str], shared_conninfo: str
) -> None:
    """The API keeps the white space in the names of keys."""
    project = program.json("project", "create", named["organization"], "spaced")["id"]
    created = program.json("project-key", "create", project, "spaced")
    with psycopg.connect(shared_conninfo) as connection:
        name = f" spaced {uuid4().hex} "
        connection.execute("UPDATE project_keys SET name = %s WHERE id = %s", (name, created["id"]))
    for verb, text in (("suspend", name), ("unsuspend", name.strip())):
        assert program.json("project-key", verb, text)["id"] == created["id"]


@pytest.mark.parametrize("length", [13, 18, 30])
def test_things_by_the_beginning_of_their_id(
    program: Program, named: dict[str, str], length: int
) -> None:
    def beginning(noun: str) -> str:
        return named[noun][:length]

    found = program.json("organization", "show", beginning("organization"))
    assert found["id"] == named["organization"]
    assert program.json("project", "show", beginning("project"))["id"] == named["project"]
    assert program.json("project-key", "suspend", beginning("key"))["id"] == named["key"]
    assert program.json("project-key", "unsuspend", named["key"])["status"] == "active"


def test_projects_and_keys_by_name(program: Program, named: dict[str, str]) -> None:
    project = f"project {named['mark']}"
    assert program.json("project", "show", project)["id"] == named["project"]
    assert program.json("limit", "show", project)["project_id"] == named["project"]
    listed = program.json("project-key", "list", project)["data"]
    assert [key["id"] for key in listed] == [named["key"]]
    suspended = program.json("project-key", "suspend", f"key {named['mark']}")
    assert suspended["status"] == "suspended"
    program.json("project-key", "unsuspend", named["key"])
    line = ("cap", "set", f"org {named['mark']}", "1", "--period", "total", "--project", project)
    assert program.json(*line)["project_id"] == named["project"]


def test_projects_and_keys_are_renamed(program: Program) -> None:
    mark = uuid4().hex
    organization = program.json("organization", "create", f"renaming {mark}")["id"]
    admin = ("admin-key", "create", organization, f"old {mark}", "--all-permissions")
    created = {
        "project": program.json("project", "create", organization, f"old {mark}"),
        "project-key": program.json("project-key", "create", f"old {mark}", f"old {mark}"),
        "admin-key": program.json(*admin),
    }
    for noun, before in created.items():
        renamed = program.json(noun, "rename", f"old {mark}", f"new {mark}")
        assert (renamed["id"], renamed["name"]) == (before["id"], f"new {mark}")
        assert "There is no" in program.refusal(noun, "rename", f"old {mark}", "x")


def test_a_name_that_looks_like_another_keys_id_does_not_take_its_place(
    program: Program, named: dict[str, str]
) -> None:
    """Tenants choose the names of their keys, so a name can look like the id of a foreign key."""
    beginning = named["key"][:8]
    other = program.json("organization", "create", f"hostile {uuid4().hex}")["id"]
    project = program.json("project", "create", other, "p")["id"]
    theirs = program.json("project-key", "create", project, beginning)["id"]
    refusal = program.refusal("project-key", "revoke", beginning)
    assert named["key"] in refusal
    assert theirs in refusal
    assert program.json("project-key", "suspend", named["key"])["status"] == "suspended"
    program.json("project-key", "unsuspend", named["key"])


def test_a_project_is_looked_for_in_its_organization(
    program: Program, named: dict[str, str]
) -> None:
    other = program.json("organization", "create", f"other {uuid4().hex}")["id"]
    line = ("cap", "clear", other, "--project", f"project {named['mark']}")
    assert "There is no project" in program.refusal(*line)


def test_a_policy_by_the_beginning_of_its_id(program: Program, named: dict[str, str]) -> None:
    rule = ("--rule", "Is it rude?")
    policy = program.json("policy", "create", named["organization"], f"p {named['mark']}", *rule)
    found = program.json("policy", "show", policy["id"][: len("pol_") + 12])
    assert found["id"] == policy["id"]
    for text in ("p", "pol_", policy["id"][: len("pol_") + 3]):
        assert program.refusal("policy", "show", text) == f"There is no policy {text}."


@pytest.mark.parametrize("verb", ["list", "export"])
def test_the_project_of_an_activity_filter_is_looked_for_in_its_organization(
    program: Program, verb: str
) -> None:
    """Two organizations have projects with the same name."""
    mark = uuid4().hex
    for owner in (f"first {mark}", f"second {mark}"):
        program.json("organization", "create", owner)
        program.json("project", "create", owner, f"same {mark}")
    line = ("activity", verb, "--project", f"same {mark}")
    assert "fits more than one project" in program.refusal(*line)
    assert program.run(*line, "--organization", f"first {mark}").code == 0
    assert "There is no" in program.refusal(*line[:2], "--organization", str(uuid4()))


@each("text", ["", "nobody-is-called-so", "abc", "%", "no such name", "'; DROP TABLE x"])
def test_what_fits_nothing(program: Program, text: str) -> None:
    assert program.refusal("organization", "show", text).startswith("There is no organization")


def test_what_fits_several_things_is_told_apart(program: Program) -> None:
    """A rotated key and its successor have the same name. Projects of two organizations may, too."""
    mark = uuid4().hex
    owners = [
        program.json("organization", "create", f"{side} {mark}") for side in ("left", "right")
    ]
    left, right = (
        program.json("project", "create", owner["id"], f"search {mark}") for owner in owners
    )
    program.json("project", "archive", right["id"])
    refusal = program.refusal("project", "show", f"search {mark}")
    assert f"({left['id']}, of left {mark})" in refusal
    assert f"({right['id']}, of right {mark}, archived)" in refusal
    old = program.json("project-key", "create", left["id"], f"app {mark}")
    new = program.json("project-key", "rotate", old["id"], "--grace", "24h")
    program.json("project-key", "suspend", new["id"])
    refusal = program.refusal("project-key", "revoke", f"app {mark}")
    assert f"({old['id']}, {old['redacted_value']}, replaced)" in refusal
    assert f"({new['id']}, {new['redacted_value']}, suspended)" in refusal


@pytest.mark.parametrize("noun", ["project-key", "admin-key"])
def test_the_value_of_a_key_is_not_repeated(program: Program, noun: str) -> None:
    organization = program.json("organization", "create", f"pasted {uuid4().hex}")["id"]
    project = program.json("project", "create", organization, "p")["id"]
    value = program.json("project-key", "create", project, "k")["value"]
    refusal = program.refusal(noun, "revoke", value)
    assert value not in refusal
    assert refusal.endswith(
        f"key {value[:8]}...: this is the value of a key. Give a name or an id."
    )
