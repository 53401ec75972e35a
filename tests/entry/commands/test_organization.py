"""Tests `tollkeeper organization`."""

from uuid import UUID, uuid4

from tests.support.program import Program


def test_created_shown_and_listed(program: Program) -> None:
    created = program.json("organization", "create", "Blue Ltd")
    assert set(created) == {"id", "name", "status", "checks", "created_at", "archived_at"}
    assert str(UUID(created["id"])) == created["id"]
    assert created["name"] == "Blue Ltd"
    assert created["checks"] == []
    assert program.json("organization", "show", created["id"]) == created
    listed = program.json("organization", "list")
    assert set(listed) == {"data"}
    assert created in listed["data"]


def test_renamed_and_archived(program: Program) -> None:
    name = f"Before {uuid4().hex}"
    created = program.json("organization", "create", name)
    assert (created["status"], created["archived_at"]) == ("active", None)
    project = program.json("project", "create", name, "Web")
    refusal = program.refusal("organization", "create", f" {name.upper()}")
    assert refusal == (
        f"The name {name.upper()!r} is taken already, by the organization {created['id']}."
    )
    renamed = program.json("organization", "rename", name, f"{name} Ltd")
    assert renamed == {**created, "name": f"{name} Ltd"}
    archived = program.json("organization", "archive", f"{name} Ltd")
    assert archived["status"] == "archived"
    assert archived["archived_at"] >= archived["created_at"]
    assert program.json("project", "show", project["id"])["status"] == "archived"
    refusal = program.refusal("project", "create", f"{name} Ltd", "Late")
    assert refusal == "The organization is archived."


def test_checks_are_granted_and_revoked(program: Program) -> None:
    organization = program.json("organization", "create", "Checked")["id"]
    granted = program.json("organization", "grant-check", organization, "kyc")
    assert granted["checks"] == ["kyc"]
    assert program.json("organization", "revoke-check", organization, "kyc")["checks"] == []
    refusal = program.refusal("organization", "revoke-check", organization, "kyc")
    assert refusal == "The organization does not hold the check 'kyc'."


def test_people_get_a_table_and_programs_the_same_facts(
    program: Program, organization: str
) -> None:
    outcome = program.run("organization", "show", organization)
    assert outcome.code == 0
    assert outcome.err == ""
    assert ["id", organization] in [line.split() for line in outcome.out.splitlines()]
    listed = program.run("organization", "list")
    assert organization in listed.out


def test_unknown_is_refused_in_one_line(program: Program) -> None:
    unknown = str(uuid4())
    refusal = program.refusal("organization", "show", unknown)
    assert refusal == f"There is no organization {unknown}."
    for verb in ("grant-check", "revoke-check"):
        refusal = program.refusal("organization", verb, unknown, "kyc")
        assert refusal == f"There is no organization {unknown}."
    assert program.refusal("organization", "show", "x\ny") == "There is no organization x; y."


def test_name_is_bounded(program: Program) -> None:
    refusal = program.refusal("organization", "create", "n" * 257)
    assert refusal == "A name has 1 to 256 characters."


def test_a_name_cannot_command_the_terminal(program: Program) -> None:
    name = "\x1b[31mred\x07 [bold]not markup[/bold]"
    created = program.json("organization", "create", name)
    assert created["name"] == name
    shown = program.run("organization", "show", created["id"])
    assert "\x1b" not in shown.out
    assert r"\x1b[31mred\x07 [bold]not markup[/bold]" in shown.out
