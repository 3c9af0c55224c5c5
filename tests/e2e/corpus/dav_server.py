"""A WebDAV server as it is installed by many: WsgiDAV on cheroot, over a directory."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

from cheroot import wsgi
from wsgidav.fs_dav_provider import FilesystemProvider
from wsgidav.wsgidav_app import WsgiDAVApp


class DavServer:
    """Serves a directory, locks and all, on a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        logging.getLogger("wsgidav").setLevel(logging.CRITICAL)
        self._server = wsgi.Server(("127.0.0.1", 0), self._serve, numthreads=2)
        self._thread = threading.Thread(target=self._server.serve, name="test-dav", daemon=True)
        self.reset()

    def start(self) -> None:
        self._server.prepare()
        self.port: int = self._server.bind_addr[1]
        self._thread.start()

    def stop(self) -> None:
        self._server.stop()
        self._thread.join(10)

    def reset(self) -> None:
        """An empty directory, and an application that knows of no locks and no properties."""
        for entry in self.directory.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._app = WsgiDAVApp(
            {
                "provider_mapping": {"/": FilesystemProvider(str(self.directory), fs_opts={})},
                "simple_dc": {"user_mapping": {"*": True}},
                "property_manager": True,
                "lock_storage": True,
                "verbose": 0,
                "logging": {"enable": False},
            }
        )

    def _serve(self, environ: object, start_response: object) -> object:
        return self._app(environ, start_response)
