"""Tests that the API reference agrees with the OpenAPI document, and is complete."""

import json
import re

from tools.api_reference import PAGE, SOURCE, reference


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(json.loads(SOURCE.read_text())), "make openapi writes it"


def test_every_operation_and_every_object_that_it_names_is_there() -> None:
    document = json.loads(SOURCE.read_text())
    page = PAGE.read_text()
    operations = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    headings = set(re.findall(r"^##+ (\w+)$", page, re.MULTILINE))
    assert operations <= headings
    linked = set(re.findall(r"\(#(\w+)\)", page))
    assert linked - {heading.lower() for heading in headings} == set()
