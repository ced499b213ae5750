"""A web server on this machine that pip and huggingface_hub take for theirs, and wheels for it to serve."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def wheel(name: str, members: dict[str, bytes]) -> tuple[str, bytes]:
    """The file name and the bytes of a wheel of version 1.0 that holds these members."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {f"{module}/{member}": data for member, data in members.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return f"{module}-1.0-py3-none-any.whl", buffer.getvalue()


class FileServer(ThreadingHTTPServer):
    """Serves `files` by the last component of their path: to pip a page of links, to the other a hub."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.downloads: list[str] = []
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        """Clear it, and a download stops half-way until it is set."""
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_HEAD(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        body = self.server.files.get(name)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()

    def do_GET(self) -> None:
        if self.path == "/":
            page = "".join(f'<a href="/{name}">{name}</a>\n' for name in self.server.files).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        self.do_HEAD()
        name = self.path.rsplit("/", 1)[-1]
        body = self.server.files.get(name, b"")
        self.server.downloads.append(name)
        half = len(body) // 2
        self.wfile.write(body[:half])
        if not self.server.go_on.is_set():
            self.server.stalled.set()
            self.server.go_on.wait(60)
        self.wfile.write(body[half:])

    def log_message(self, *_: object) -> None:
        pass
