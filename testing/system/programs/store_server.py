"""Answers every upload with the SHA-256 of what has come: store_server.py PORT"""
import hashlib
import http.server
import sys


class Store(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            part = self.rfile.read(min(left, 1 << 16))
            if not part:
                return
            digest.update(part)
            left -= len(part)
        answer = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Store).serve_forever()
