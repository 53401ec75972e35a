"""nginx and Caddy with our files, in front of a real gateway: streams arrive piece by piece."""

import asyncio
import os
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.journeys.clients.debian import DebianProgram, debian_program
from tests.support.certificates import make_certificate
from tests.support.paused_answer import PausedAnswer
from tests.support.scripted_gateway import ScriptedGateway, chat_body
from tests.support.upstream import chat

_DEPLOY = Path(__file__).parents[2] / "deploy"
_PATIENCE_S = 20
_WITHIN_S = 60


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Proxy:
    """A proxy with our file, in which only addresses and certificates are others."""

    def __init__(self, folder: Path, backend: str) -> None:
        _, self.certificate = make_certificate(folder)
        self.folder = folder
        self.port = _free_port()
        self.backend = backend

    def nginx(self) -> tuple[DebianProgram, list[str], list[str]]:
        """The program, how it checks its file, and how it runs."""
        text = (_DEPLOY / "nginx" / "nginx.conf").read_text()
        text = text.replace("127.0.0.1:8080", self.backend)
        text = text.replace("listen 443 ", f"listen 127.0.0.1:{self.port} ")
        text = text.replace("/etc/nginx/tls/gateway.crt", str(self.certificate))
        text = text.replace("/etc/nginx/tls/gateway.key", str(self.certificate.with_suffix(".key")))
        places = "".join(
            f"{name}_temp_path {self.folder / name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = text.replace("http {", f"http {{\naccess_log off;\n{places}")
        text = f"daemon off;\nmaster_process off;\npid {self.folder / 'pid'};\n{text}"
        config = self.folder / "nginx.conf"
        config.write_text(text)
        line = ["-p", str(self.folder), "-e", "stderr", "-c", str(config)]
        return debian_program("nginx", "usr/sbin/nginx"), ["-t", *line], line

    def caddy(self) -> tuple[DebianProgram, list[str], list[str]]:
        text = (_DEPLOY / "caddy" / "Caddyfile").read_text()
        text = text.replace("127.0.0.1:8080", self.backend)
        files = f"{self.certificate} {self.certificate.with_suffix('.key')}"
        site = f"https://127.0.0.1:{self.port} {{\n\ttls {files}"
        text = text.replace("gateway.example.com {", site)
        text = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text
        config = self.folder / "Caddyfile"
        config.write_text(text)
        line = ["--config", str(config), "--adapter", "caddyfile"]
        return debian_program("caddy", "usr/bin/caddy"), ["validate", *line], ["run", *line]

    @asynccontextmanager
    async def running(self, kind: str) -> AsyncIterator[httpx2.AsyncClient]:
        kinds: dict[str, Callable[[], tuple[DebianProgram, list[str], list[str]]]]
        kinds = {"nginx": self.nginx, "caddy": self.caddy}
        program, check, run = await asyncio.to_thread(kinds[kind])
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        environment = {**os.environ, **program.environment, **home}
        checked = await asyncio.to_thread(
            subprocess.run,
            [str(program.program), *check],
            env=environment,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr.decode()
        output = (self.folder / "output").open("wb")
        process = await asyncio.create_subprocess_exec(
            program.program, *run, env=environment, stdout=output, stderr=output
        )
        try:
            await self._until_it_listens(process)
            verify = ssl.create_default_context(cafile=self.certificate)
            address = f"https://127.0.0.1:{self.port}"
            async with httpx2.AsyncClient(
                base_url=address, verify=verify, timeout=_WITHIN_S
            ) as client:
                yield client
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(_PATIENCE_S):
                await process.wait()
            output.close()

    async def _until_it_listens(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                assert process.returncode is None, (self.folder / "output").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
async def test_a_piece_arrives_when_it_is_made(
    kind: str, scripted: ScriptedGateway, tmp_path: Path
) -> None:
    backend = re.sub(r"^http://", "", scripted.gateway.base_url)
    answer = PausedAnswer()
    async with Proxy(tmp_path, backend).running(kind) as client:
        scripted.upstream.play(answer.verb())
        async with (
            asyncio.timeout(_WITHIN_S),
            client.stream(
                "POST",
                "/v1/chat/completions",
                json=chat_body(stream=True),
                headers=scripted.tenant.as_customer,
            ) as response,
        ):
            assert response.status_code == 200
            lines = response.aiter_lines()
            # The answer cannot end yet: whoever buffers it would never pass this on.
            async for line in lines:
                if '"1 "' in line:
                    break
            answer.may_end.set()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        scripted.upstream.play(chat())
        elsewhere = await client.get("/metrics")
        assert elsewhere.status_code == 404
