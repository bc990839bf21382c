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

same((client.add("lock:report", b"host-1", time=30), other.add("lock:report", b"host-2", time=30)), (True, False))
same((other.get("lock:report"), other.delete("lock:report"), client.delete("lock:report")), (b"host-1", False, True))
same((other.add("lock:report", b"host-2", time=30), other.delete("lock:report")), (True, True))
done("lock")
