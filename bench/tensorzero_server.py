"""Runs the TensorZero gateway of its Python package. The arguments are its settings file, and a file to which
the chosen port is written."""

import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tensorzero.tensorzero import _start_http_gateway  # type: ignore[import-not-found]

gateway = _start_http_gateway(
    config_file=sys.argv[1],
    clickhouse_url=None,
    postgres_url=None,
    valkey_url=None,
    async_setup=False,
)
written = Path(sys.argv[2]).with_suffix(".new")
written.write_text(str(urlsplit(gateway.base_url).port))
written.rename(sys.argv[2])
threading.Event().wait()
