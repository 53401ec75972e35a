"""Resolves the packages for Node anew and writes their locks: part of `make lock`."""

import subprocess

from bench.peer_programs import PORTKEY_PROJECT

from tests.journeys.clients.environments import NODE_PROJECT, node_environment


def main() -> None:
    node = node_environment()
    for project in (NODE_PROJECT, PORTKEY_PROJECT):
        subprocess.run(
            [
                *(node.program, node.npm, "update", "--package-lock-only", "--ignore-scripts"),
                *("--no-audit", "--no-fund", "--omit-lockfile-registry-resolved"),
            ],
            cwd=project,
            check=True,
        )


if __name__ == "__main__":
    main()
