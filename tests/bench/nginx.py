"""nginx, twice: as the upstream of everybody, and as the proxy that pass-through is compared with."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.bench import programs
from tests.bench.processes import cpu_of_tree
from tests.bench.programs import BenchError

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
BODY_BYTES = 1024
BODY = '{"id": "17", "note": "' + "n" * (BODY_BYTES - 24) + '"}'

# One worker on each side, and connections that live as long as the run: keep-alive is what is compared.
COMMON = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
{user}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    keepalive_timeout 300s;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {servers}
}}
"""
UPSTREAM = """
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        default_type application/json;
        location / {{ return 200 '{body}'; }}
    }}
"""
# Nothing that a plain proxy need not do: no extra headers, no log. That favours the peer.
PROXY = """
    upstream behind {{
        server 127.0.0.1:{upstream_port};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 300s;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
"""


class Nginx:
    """One nginx, its configuration and its processes."""

    def __init__(self, directory: Path, port: int, servers: str) -> None:
        self.port = port
        self._directory = directory
        self._servers = servers
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def upstream(cls, directory: Path, port: int) -> Nginx:
        """Answers everything at once with 1 KiB of JSON."""
        return cls(directory, port, UPSTREAM.format(port=port, body=BODY))

    @classmethod
    def proxy(cls, directory: Path, port: int, upstream_port: int) -> Nginx:
        """Passes everything to the upstream over connections that are kept."""
        return cls(directory, port, PROXY.format(port=port, upstream_port=upstream_port))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run it, and wait until it listens."""
        self._directory.mkdir(parents=True)
        user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""  # else its workers cannot enter here
        path = self._directory / "nginx.conf"
        path.write_text(COMMON.format(directory=self._directory, user=user, servers=self._servers))
        arguments = [
            programs.find("nginx"),
            "-p",
            str(self._directory),
            "-c",
            str(path),
            "-e",
            str(self._directory / "error.log"),
        ]
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._directory / "error.log").read_text()
                raise BenchError(f"nginx did not start:\n{said}")
            time.sleep(0.01)

    def cpu_s(self) -> float:
        """CPU seconds of master and worker."""
        assert self._process is not None
        return cpu_of_tree(self._process.pid)

    def stop(self) -> None:
        """End it; also one that never came up."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
