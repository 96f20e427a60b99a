#!/usr/bin/python3
"""Workers that share a listener, as servers that fork do. Each answer names its worker: workers.py PORT MILLISECONDS...

A worker takes connections at once, and so long to answer each; nothing but its service time tells that it is slow.
"""
import asyncio
import os
import signal
import socket
import sys


async def serve(listener, number, seconds):
    async def answer(reader, writer):
        try:
            await reader.readline()
            await asyncio.sleep(seconds)
            writer.write(b"%d\n" % number)
            await writer.drain()
            writer.close()
        except ConnectionError:
            pass

    server = await asyncio.start_server(answer, sock=listener)
    await server.serve_forever()


def main():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", int(sys.argv[1])))
    listener.listen(1024)
    listener.setblocking(False)
    children = []
    for number, milliseconds in enumerate(sys.argv[2:]):
        child = os.fork()
        if child == 0:
            asyncio.run(serve(listener, number, float(milliseconds) / 1000))
            os._exit(0)
        children.append(child)
    # Only the workers accept.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for child in children:
            os.waitpid(child, 0)
    finally:
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass


main()
