"""One page over a slow source, cached as any application caches it: get, and on a miss build and set.

Nothing in here knows about Kennel but one line, the tag that `publish` bumps. Count what it saves:
without the sidecar, every reader that finds the page expired goes to the source.
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

# The timeout is above the rule's cold_wait, or the client would give up on a wait that pays.
# A cache that is down is a miss (ignore_exc), as it is for the sidecar. Without no_delay, Nagle holds a
# get behind the unanswered noreply set before it for some 40 ms.
cache = PooledClient(CACHE, max_pool_size=1024, connect_timeout=1, timeout=5, no_delay=True, ignore_exc=True)


class Source:
    """A database that takes its time, and counts who asks."""

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


source = Source()


def page():
    body = cache.get(KEY)
    if body is not None:
        return body.decode()
    body = source.build()
    cache.set(KEY, body.encode(), expire=EXPTIME)
    return body


class Visitor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/":
            began = time.monotonic()
            body = page()
            took = (time.monotonic() - began) * 1000
            self.answer(
                200,
                f"<!doctype html><title>A page</title><p>{html.escape(body)}<p>in {took:.0f} ms"
                '<form method="post" action="/publish"><button>publish</button></form>\n',
                "text/html; charset=utf-8",
            )
        elif self.path == "/count":
            self.answer(200, f"builds {source.builds}\nmost at once {source.most_at_once}\n")
        else:
            self.answer(404, "not found\n")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/publish":
            self.answer(404, "not found\n")
        # noreply=False: pymemcache's default does not wait, and an invalidation that nobody
        # acknowledged may not have happened. False is what ignore_exc makes of an error.
        elif cache.delete(TAG, noreply=False):
            self.answer(303, "", location="/")
        else:
            self.answer(503, "the old page may still be served: the tag was not bumped\n")

    def answer(self, status, text, kind="text/plain; charset=utf-8", location=None):
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
    Server(("0.0.0.0", int(os.environ.get("PORT", "8000"))), Visitor).serve_forever()
