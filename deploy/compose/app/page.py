"""One page from a slow database, cached as usual: get, and on a miss build and set.

Only the tag that `publish` bumps is specific to Kennel. Without the sidecar, every reader that finds the page expired reads the
database; /count shows how many do.
"""

import html
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pymemcache.client.base import PooledClient

CACHE = os.environ.get("CACHE", "127.0.0.1:11211")  # host:port, or the path of a Unix socket
EXPTIME = int(os.environ.get("EXPTIME", "10"))  # seconds
SOURCE_SECONDS = float(os.environ.get("SOURCE_SECONDS", "1"))
KEY = "blog:7:page:front"
TAG = "@tag:blog:7"

# The timeout must be longer than the rule's cold_wait. ignore_exc treats an unavailable cache as a miss. Without no_delay, Nagle's
# algorithm delays a get that follows a noreply set by some 40 ms.
cache = PooledClient(CACHE, max_pool_size=1024, connect_timeout=1, timeout=5, no_delay=True, ignore_exc=True)


class Database:
    """A slow database that counts its reads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.builds = 0
        self.running = 0
        self.most_at_once = 0

    def build(self):
        with self.lock:
            self.builds += 1
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
            number = self.builds
        try:
            time.sleep(SOURCE_SECONDS)
            return f"build {number}, {time.strftime('%H:%M:%S')}"
        finally:
            with self.lock:
                self.running -= 1


database = Database()


def page():
    body = cache.get(KEY)
    if body is not None:
        return body.decode()
    body = database.build()
    cache.set(KEY, body.encode(), expire=EXPTIME)
    return body


class PageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/":
            began = time.monotonic()
            body = page()
            took = (time.monotonic() - began) * 1000
            self.reply(
                200,
                f"<!doctype html><title>A page</title><p>{html.escape(body)}<p>in {took:.0f} ms"
                '<form method="post" action="/publish"><button>publish</button></form>\n',
                "text/html; charset=utf-8",
            )
        elif self.path == "/count":
            self.reply(200, f"builds {database.builds}\nmost at once {database.most_at_once}\n")
        else:
            self.reply(404, "not found\n")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/publish":
            self.reply(404, "not found\n")
        # noreply=False: pymemcache does not wait for the reply by default, and an invalidation that is not acknowledged may not
        # have happened. With ignore_exc, delete returns False on an error.
        elif cache.delete(TAG, noreply=False):
            self.reply(303, "", location="/")
        else:
            self.reply(503, "the old page may still be served: the tag was not bumped\n")

    def reply(self, status, text, kind="text/plain; charset=utf-8", location=None):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


if __name__ == "__main__":
    Server(("0.0.0.0", int(os.environ.get("PORT", "8000"))), PageHandler).serve_forever()
