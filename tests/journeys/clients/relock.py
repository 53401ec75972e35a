"""Resolves the Node packages again and writes their lock files, as a part of `make lock`."""

import json
import subprocess
from pathlib import Path

from bench.peer_programs import PORTKEY_PROJECT, PRISMA_PROJECT

from tests.journeys.clients.environments import (
    AXE_PROJECT,
    NODE_PROJECT,
    NODE_PROJECTS,
    node_environment,
)

# The optional packages of these projects are for terminals, clipboards and sound on all platforms.
# Some registries lack them, and npm installs nothing if it cannot find a locked package.
_WITHOUT_OPTIONAL = (NODE_PROJECTS["qwen"],)


def main() -> None:
    node = node_environment()
    peers = (PORTKEY_PROJECT, PRISMA_PROJECT)
    for project in (NODE_PROJECT, AXE_PROJECT, *NODE_PROJECTS.values(), *peers):
        subprocess.run(
            [
                *(node.program, node.npm, "update", "--package-lock-only", "--ignore-scripts"),
                *("--no-audit", "--no-fund", "--omit-lockfile-registry-resolved"),
            ],
            cwd=project,
            check=True,
        )
        if project in _WITHOUT_OPTIONAL:
            leave_out_optional_packages(project / "package-lock.json")


def leave_out_optional_packages(lock: Path) -> None:
    locked = json.loads(lock.read_text())
    locked["packages"] = {
        name: {key: value for key, value in package.items() if key != "optionalDependencies"}
        for name, package in locked["packages"].items()
        if not package.get("optional")
    }
    lock.write_text(json.dumps(locked, indent=2) + "\n")


if __name__ == "__main__":
    main()
