"""Reads the draft of a policy from a form. Texts have the same maximum lengths as in the API."""

from tollkeeper.console.forms import Form, project_id
from tollkeeper.core.errors import InvalidRequest
from tollkeeper.core.percent import basis_points_of
from tollkeeper.policies.policy import Direction, Mode, Rule, Scope, check_rule
from tollkeeper.policies.trial.service import RULE_LENGTH_MAX

_NAME_LENGTH_MAX = 80
_DESCRIPTION_LENGTH_MAX = 240


def name_of(form: Form) -> str:
    return _limited(form.text("name"), _NAME_LENGTH_MAX, "name")


def description_of(form: Form) -> str:
    return _limited(form.text("description", default=""), _DESCRIPTION_LENGTH_MAX, "description")


def rule_of(form: Form) -> Rule:
    try:
        direction = Direction(form.text("direction"))
        mode = Mode(form.text("mode"))
        scope = Scope(form.text("scope"))
    except ValueError as exc:
        raise InvalidRequest(f"The form is not complete: {exc}.") from None
    threshold = form.text("threshold", default="")
    rule = Rule(
        rule=_limited(form.text("rule"), RULE_LENGTH_MAX, "rule"),
        direction=direction,
        mode=mode,
        scope=scope,
        project_ids=tuple(project_id(text) for text in form.texts("project_ids")),
        match_threshold_basis_points=basis_points_of(threshold) if threshold else None,
    )
    check_rule(rule)
    return rule


def _limited(text: str, longest: int, name: str) -> str:
    if len(text) > longest or "\x00" in text:
        raise InvalidRequest(f"The {name} has at most {longest} characters.", param=name)
    return text
