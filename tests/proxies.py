"""What stands before a cluster's job server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from pathlib import Path

from clusters import free_port


class Proxy:
    """What stands before a cluster: a certificate that no authority signed, and a header.

    Attributes:
      address: of the proxy.
      certificate: the file that a client verifies it with.
    """

    def __init__(self, port: int, directory: Path, header: str) -> None:
        self.upstream, self.header = port, header.lower().encode()
        self.certificate, key = directory / "proxy.pem", directory / "proxy.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, key)
        own = free_port()
        self.address = f"https://127.0.0.1:{own}"
        self.loop = asyncio.new_event_loop()
        serve = asyncio.start_server(self.answer, "127.0.0.1", own, ssl=context)
        self.loop.run_until_complete(serve)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if self.header not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self.upstream)
        forth.write(head)
        await asyncio.gather(copied(reader, forth), copied(back, writer))


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
