"""The addresses of every page of the console, from the table of permissions: a new page is in them."""

from collections.abc import Mapping

from tollkeeper.console.permissions import PERMISSIONS
from tollkeeper.domain.people import Role

# Answers that are no pages: files, and a stream of events.
_NO_PAGES = (".csv", ".gz", "/export", "/tail")


def filled_paths(ids: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the method and the address of every route and action, in the order of the table."""
    filled = []
    for name in PERMISSIONS:
        method, path = name.split(" ")
        of_path = {**ids, "key": ids["admin_key"]} if "admin-keys" in path else ids
        filled.append((method, path.format_map(of_path)))
    return filled


def page_paths(ids: Mapping[str, str], role: Role = Role.OWNER) -> list[str]:
    """Return the address of every page that the role may see."""
    return [
        path
        for (method, path), access in zip(filled_paths(ids), PERMISSIONS.values(), strict=True)
        if method == "GET" and not path.endswith(_NO_PAGES) and access.allows(role)
    ]
