"""What users of pymemcache do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The first
thing that is not as docs/structures.md says ends the run with a traceback and exit code 1. The page shows the examples."""

import sys

from pymemcache.client.base import Client

host, port, other_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = Client((host, port), timeout=10, default_noreply=False)
other = Client((host, other_port), timeout=10, default_noreply=False)


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def done(what):
    print("OK", what, flush=True)


# example: counter
views = client.incr("hits:page:7", 1)
total = int(client.get("hits:page:7", 0))
# end
same((views, total, other.incr("hits:page:7", 2), other.get("hits:page:7")), (1, 1, 3, b"3"))
same((client.set("hits:page:7", 40), other.decr("hits:page:7", 1)), (True, 39))
done("counter")

address = "192.0.2.7"
# example: window
requests = client.incr(f"rate:{address}", 1)
is_too_many = requests > 100
# end
same((requests, is_too_many, other.incr(f"rate:{address}", 1), client.get(f"rate:{address}")), (1, False, 2, b"2"))
done("window")

visitor = "ann"
# example: unique window
is_new = client.add(f"online:blog:{visitor}", b"")
visitors = int(client.get("online:blog"))
# end
same((is_new, visitors), (True, 1))
same((other.add("online:blog:ann", b""), other.add("online:blog:bob", b""), client.get("online:blog")), (False, True, b"2"))
done("unique window")

seen = []
handle = seen.append
cursor = b"0"
# example: log
client.append("log:orders", b"order 17 paid\n")

answer = client.get(b"log:orders@" + cursor)  # cursor is b"0" at first
if answer is not None:  # None: the server did not answer
    cursor, entries = answer.split(b"\n", 1)
    for entry in entries.splitlines():
        handle(entry)
# end
same(other.append("log:orders", b"order 18 paid\n"), True)
cursor, entries = other.get(b"log:orders@" + cursor).split(b"\n", 1)
same((seen, entries), ([b"order 17 paid"], b"order 18 paid\n"))
same(client.get("log:orders"), b"order 17 paid\norder 18 paid\n")
done("log")

report = lambda: seen.append(other.add("lock:report", b"host-2", expire=30))
# example: lock
if client.add("lock:report", b"host-1", expire=30):
    try:
        report()
    finally:
        client.delete("lock:report")
# end
same((seen[-1], other.add("lock:report", b"host-2", expire=30)), (False, True))
same((client.delete("lock:report"), client.get("lock:report"), other.delete("lock:report")), (False, b"host-2", True))
done("lock")
