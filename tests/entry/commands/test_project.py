"""Tests `tollkeeper project`."""

from uuid import uuid4

from tests.support.program import Program

_FIELDS = {"id", "name", "status", "created_at", "archived_at", "models", "organization_id"}


def test_created_shown_listed_and_archived(program: Program) -> None:
    organization = program.json("organization", "create", "Builders")["id"]
    assert program.json("project", "list", organization) == {"data": []}
    created = program.json("project", "create", organization, "Web")
    assert set(created) == _FIELDS
    assert (created["name"], created["status"], created["archived_at"]) == ("Web", "active", None)
    assert created["organization_id"] == organization
    assert program.json("project", "show", created["id"]) == created
    assert program.json("project", "list", organization) == {"data": [created]}

    archived = program.json("project", "archive", created["id"])
    assert archived["status"] == "archived"
    assert archived["archived_at"] is not None
    refusal = program.refusal("project-key", "create", created["id"], "late")
    assert refusal == "The project is archived."
    # The project is already archived, so this changes nothing.
    assert program.json("project", "archive", created["id"]) == archived


def test_a_list_of_models(program: Program, organization: str) -> None:
    project = program.json("project", "create", organization, "Listed")["id"]
    line = ("project", "allow-models", project)
    changed = program.json(*line, "example", "exam*")
    assert changed["models"] == ["example", "exam*"]
    for strange, named in (
        (["other", "exam*", "claude-*"], "other, claude-*"),
        (["claude-*"], "claude-*"),
    ):
        assert program.refusal(*line, *strange) == f"No model of the settings matches {named}."
    assert program.json("project", "show", project)["models"] == changed["models"]
    program.json(*line, "exam*")
    for wrong in (("*-mini",), ("a", "a"), ("m" * 201,)):
        assert program.refusal(*line, *wrong)
    # Without models, the command does not guess that every model is meant.
    assert "Give the models, or --every." in program.run(*line).err
    assert "Give the models, or --every." in program.run(*line, "exam*", "--every").err
    assert program.json("project", "show", project)["models"] == ["exam*"]
    assert program.json(*line, "--every")["models"] == []
    changes = program.json("audit", "list", "--object", project)["data"]
    assert [change["operation"] for change in changes[:2]] == ["project_allow_models"] * 2
    assert (changes[0]["before"], changes[0]["after"]) == (
        {"models": ["exam*"]},
        {"models": []},
    )


def test_an_empty_list_says_so(program: Program) -> None:
    organization = program.json("organization", "create", "Empty")["id"]
    assert program.run("project", "list", organization).out == "There are none.\n"


def test_unknown_is_refused(program: Program) -> None:
    unknown = str(uuid4())
    refusal = program.refusal("project", "create", unknown, "Web")
    assert refusal == f"There is no organization {unknown}."
    assert program.refusal("project", "list", unknown) == f"There is no organization {unknown}."
    for verb in ("show", "archive"):
        for named in (f"nobody {unknown}", unknown):
            refusal = program.refusal("project", verb, named)
            assert refusal == f"There is no project {named}."
