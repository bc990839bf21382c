"""What users of pylibmc do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The first
thing that is not as docs/structures.md says ends the run with a traceback and exit code 1."""

import sys

import pylibmc

host, port, other_port = sys.argv[1:4]
client, other = (pylibmc.Client([f"{host}:{at}"], behaviors={"tcp_nodelay": True}) for at in (port, other_port))


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def done(what):
    print("OK", what, flush=True)


def refused(command):
    try:
        command()
    except pylibmc.Error as error:
        return same("CLIENT ERROR" in str(error) or error, True)
    raise AssertionError("it was not refused")


same((client.incr("hits:page:7"), other.incr("hits:page:7", 2), client.get("hits:page:7")), (1, 3, b"3"))
# An int comes back as an int.
same((client.set("hits:page:7", 40), other.get("hits:page:7"), other.decr("hits:page:7")), (True, 40, 39))
done("counter")

same((client.incr("rate:192.0.2.7"), other.incr("rate:192.0.2.7"), client.get("rate:192.0.2.7")), (1, 2, b"2"))
done("window")

same((client.add("online:blog:ann", b""), other.add("online:blog:ann", b"")), (True, False))
same((other.add("online:blog:bob", b""), client.get("online:blog")), (True, b"2"))
done("unique window")

same((client.append("log:orders", b"order 17 paid\n"), other.append("log:orders", b"order 18 paid\n")), (True, True))
cursor, entries = client.get("log:orders@0").split(b"\n", 1)
same(entries, b"order 17 paid\norder 18 paid\n")
same(other.get("log:orders@" + cursor.decode()).split(b"\n", 1)[1], b"")
done("log")

same((client.append("friends:ann", b"+bob\n+cid\n"), other.append("friends:ann", "-cid\n+dan\n+jürgen\n")), (True, True))
same(sorted(client.get("friends:ann").splitlines()), [b"bob", b"dan", "jürgen".encode()])
same((other.get("friends:ann@bob"), other.get("friends:ann@cid"), other.get("friends:ann@jürgen")), (b"1", None, b"1"))
same(other.get_multi(["friends:ann@dan", "friends:ann@cid"]), {"friends:ann@dan": b"1"})
# What arrives compressed is no line.
refused(lambda: client.append("friends:ann", b"+eve\n" * 100, min_compress_len=10))
refused(lambda: client.set("friends:ann", b"+eve\n"))
same(len(other.get("friends:ann").splitlines()), 3)
same((other.delete("friends:ann"), client.delete("friends:ann"), client.get("friends:ann")), (True, False, None))
done("list")

# Values are those of the library: an int, an object, and one that is compressed.
large = {"of": "values " * 1000}
same((client.set("cart:7/book", 2), other.set("cart:7/ink/red", large, min_compress_len=100)), (True, True))
same((client.add("cart:7/book", 3), client.add("cart:7/jürgen", b"1")), (False, True))
names = sorted(other.get("cart:7").decode().splitlines())
same(names, ["book", "ink/red", "jürgen"])
same(client.get_multi([f"cart:7/{name}" for name in names]), {"cart:7/book": 2, "cart:7/ink/red": large, "cart:7/jürgen": b"1"})
same((other.incr("cart:7/book", 5), other.delete("cart:7/ink/red"), client.get("cart:7/ink/red")), (7, True, None))
same((other.touch("cart:7/book", 60), other.append("cart:7/jürgen", b"0"), client.get("cart:7/jürgen")), (True, True, b"10"))
refused(lambda: client.set("cart:7", b"1"))
same(sorted(client.get("cart:7").decode().splitlines()), ["book", "jürgen"])
same((client.delete("cart:7"), other.get("cart:7"), other.get("cart:7/book"), other.delete("cart:7")), (True, None, None, False))
done("table")

same((client.add("lock:report", b"host-1", time=30), other.add("lock:report", b"host-2", time=30)), (True, False))
same((other.get("lock:report"), other.delete("lock:report"), client.delete("lock:report")), (b"host-1", False, True))
same((other.add("lock:report", b"host-2", time=30), other.delete("lock:report")), (True, True))
same(client.add("lock:report", b"host-1"), True)
refused(lambda: client.set("lock:report", b"host-1"))
same(client.delete("lock:report"), True)
done("lock")
