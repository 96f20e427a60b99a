"""A server of files on asyncio's streams: asyncio_server.py PORT FOLDER"""
import asyncio
import os
import sys


async def answer(reader, writer):
    try:
        request = await reader.readuntil(b"\r\n\r\n")
        name = request.split()[1].decode().lstrip("/")
        with open(os.path.join(sys.argv[2], os.path.basename(name)), "rb") as file:
            content = file.read()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(answer, "0.0.0.0", int(sys.argv[1]), backlog=1024)
    async with server:
        await server.serve_forever()


asyncio.run(main())
