"""Resolves the packages for Node anew and writes their lock: part of `make lock`."""

import subprocess

from tests.clients.environments import NODE_PROJECT, node_environment


def main() -> None:
    node = node_environment()
    subprocess.run(
        [
            *(node.program, node.npm, "update", "--package-lock-only", "--ignore-scripts"),
            *("--no-audit", "--no-fund", "--omit-lockfile-registry-resolved"),
        ],
        cwd=NODE_PROJECT,
        check=True,
    )


if __name__ == "__main__":
    main()
