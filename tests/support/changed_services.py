"""Replaces single services of a process."""

from copy import copy
from typing import Any

from tollkeeper.setup.services import Services


def changed(services: Services, **replaced: Any) -> Services:
    """Returns the same services, except for the replaced ones."""
    copied = copy(services)
    assert replaced.keys() <= vars(copied).keys()
    vars(copied).update(replaced)
    return copied
