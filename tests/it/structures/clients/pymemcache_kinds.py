"""What users of pymemcache do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The first
thing that is not as docs/structures.md says ends the run with a traceback and exit code 1. The page shows the examples."""

import sys

from pymemcache import serde
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError

host, port, other_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = Client((host, port), timeout=10, default_noreply=False)
other = Client((host, other_port), timeout=10, default_noreply=False)


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def done(what):
    print("OK", what, flush=True)


def refused(command):
    try:
        command()
    except MemcacheIllegalInputError as error:
        return error.args[0]
    except MemcacheClientError as error:
        return error.args[0].decode()
    raise AssertionError("it was not refused")


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

# example: list
client.append("friends:ann", b"+bob\n+cid\n")
client.append("friends:ann", b"-cid\n+dan\n")
friends = client.get("friends:ann", b"").splitlines()
is_friend = client.get("friends:ann@bob") is not None
# end
same((sorted(friends), is_friend), ([b"bob", b"dan"], True))
same(other.append("friends:ann", "-bob\n+bob\n-dan\n+jürgen\n".encode()), True)
same(sorted(client.get("friends:ann").splitlines()), [b"bob", "jürgen".encode()])
asked = ["friends:ann@bob", "friends:ann@dan", "friends:ann@jürgen".encode(), "friends:none"]
unicode_client = Client((host, port), timeout=10, default_noreply=False, allow_unicode_keys=True)
same(unicode_client.get_many(asked), {"friends:ann@bob": b"1", "friends:ann@jürgen".encode(): b"1"})
same(refused(lambda: client.get("friends:ann@jürgen"))[:13], "Non-ASCII key")
same(refused(lambda: client.set("friends:ann", b"+eve\n"))[:33], "a list has only the commands appe")
same(refused(lambda: client.append("friends:ann", b"eve\n"))[:33], "each line of a list must be + or ")
# The prefix of a client is a part of the key, and so of the rule's match.
prefixed = Client((host, other_port), timeout=10, default_noreply=False, key_prefix=b"app:")
same((prefixed.append("friends:ann", b"+eve\n"), prefixed.get("friends:ann")), (True, b"eve\n"))
same((client.get("app:friends:ann@eve"), prefixed.get("friends:ann@bob")), (b"1", None))
same((other.delete("friends:ann"), client.delete("friends:ann"), client.get("friends:ann")), (True, False, None))
done("list")

# example: table
client.set("cart:7/book", b"2")
client.set("cart:7/pen", b"10")
names = client.get("cart:7", b"").splitlines()
cart = client.get_many([b"cart:7/" + name for name in names])
client.delete("cart:7/pen")
# end
same(cart, {b"cart:7/book": b"2", b"cart:7/pen": b"10"})
same((other.get("cart:7"), client.get("cart:7/pen")), (b"book\n", None))
same((other.add("cart:7/book", b"3"), other.add("cart:7/ink/red", b"3")), (False, True))
value, cas = client.gets("cart:7/book")
same((client.cas("cart:7/book", b"7", cas), client.cas("cart:7/book", b"8", cas)), (True, False))
same((other.incr("cart:7/book", 2), other.touch("cart:7/book", 60), other.append("cart:7/ink/red", b"+")), (9, True, True))
same(unicode_client.set("cart:7/jürgen", b"1"), True)
same(sorted(other.get("cart:7").splitlines()), [b"book", b"ink/red", "jürgen".encode()])
with_values = Client((host, port), timeout=10, default_noreply=False, serde=serde.pickle_serde)
same((with_values.set("cart:7/set", {"of": ["values"]}), with_values.get("cart:7/set")), (True, {"of": ["values"]}))
same(refused(lambda: client.set("cart:7", b"1"))[:33], "a table has only the commands get")
same((prefixed.set("cart:7/book", b"5"), prefixed.get("cart:7"), client.get("app:cart:7/book")), (True, b"book\n", b"5"))
same((other.delete("cart:7"), client.get("cart:7"), client.get("cart:7/book"), client.delete("cart:7")), (True, None, None, False))
done("table")

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
# It closes its connection when a command is refused, so it no longer has the lock.
same(client.add("lock:report", b"host-1"), True)
refused(lambda: client.set("lock:report", b"host-1"))
same(client.delete("lock:report"), False)
done("lock")
