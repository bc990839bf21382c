"""What users of pymemcache do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK ..." per part. The
first difference from memcached ends the run with a traceback and exit code 1."""

import sys

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

host, port, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = (host, port)
client = Client(server, timeout=10, connect_timeout=10, no_delay=True, default_noreply=False)


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def raises(error, f, *args, **named):
    try:
        got = f(*args, **named)
    except error:
        return
    raise AssertionError(f"got {got!r:.200}, expected {error.__name__}")


def k(name):
    return prefix + name


def done(what):
    print("OK", what, flush=True)


same(client.set(k("a"), b"1", expire=100), True)
same(client.get(k("a")), b"1")
same(client.get(k("none")), None)
same(client.get(k("none2"), b"default"), b"default")
same(client.set(k("flags"), b"f", flags=42), True)
same(client.get(k("flags")), b"f")
same(client.set(k("empty"), b""), True)
same(client.get(k("empty")), b"")
done("set and get")

objects = Client(server, timeout=10, serde=serde.pickle_serde, default_noreply=False)
for name, value in {"bytes": b"\x00\r\n", "text": "ça", "int": 7, "dict": {"a": [1, None, ("b",)]}}.items():
    same(objects.set(k(name), value), True)
    got = objects.get(k(name))
    same((got, type(got)), (value, type(value)))
compressed = Client(server, timeout=10, serde=serde.compressed_serde, default_noreply=False)
same(compressed.set(k("z"), "compress me " * 150_000), True)
same(compressed.get(k("z")), "compress me " * 150_000)
done("objects and compression")

many = {k(f"many{i}"): str(i).encode() for i in range(200)}
same(client.set_many(many), [])
same(client.get_many(list(many) + [k("none")]), many)
same(set(client.gets_many(list(many)[:10])), set(list(many)[:10]))
same(client.get_many([]), {})
same(client.delete_many(list(many)), True)
same(client.get_many(list(many)[:3]), {})
done("multi-get")

same(client.set(k("n"), b"10"), True)
same(client.incr(k("n"), 5), 15)
same(client.decr(k("n"), 20), 0)
same(client.get(k("n")).strip(), b"0")
same(client.incr(k("absent"), 1), None)
same(client.decr(k("absent"), 1), None)
same(client.set(k("wrap"), str((1 << 64) - 1)), True)
same(client.incr(k("wrap"), 1), 0)
same(client.set(k("word"), b"x"), True)
raises(MemcacheClientError, client.incr, k("word"), 1)
same(client.get(k("word")), b"x")
done("counters")

same(client.touch(k("n"), 100), True)
same(client.touch(k("absent"), 100), False)
same(client.touch(k("n"), -1), True)
same(client.get(k("n")), None)
done("touch")

for exptime, kept in {-1: None, 1_000_000_000: None, 2147483647: b"x"}.items():
    same(client.set(k("expires"), b"x", expire=exptime), True)
    same(client.get(k("expires")), kept)
done("expiry")

big = bytes(range(256)) * (900 * 1024 // 256)
same(client.set(k("big"), big), True)
same(client.get(k("big")), big)
same(client.get_many([k("big"), k("a")]), {k("big"): big, k("a"): b"1"})
raises(MemcacheServerError, client.set, k("big"), big + big)
same(client.get(k("big")), None)
same(client.get(k("a")), b"1")
done("big values")

same(client.set(k("c"), b"1"), True)
value, cas = client.gets(k("c"))
same(value, b"1")
same(client.cas(k("c"), b"2", cas), True)
same(client.cas(k("c"), b"3", cas), False)
same(client.get(k("c")), b"2")
same(client.cas(k("absent"), b"3", cas), None)
same(client.gets(k("absent")), (None, None))
done("cas")

same(client.delete(k("added")), False)
same(client.add(k("added"), b"1"), True)
same(client.add(k("added"), b"2"), False)
same(client.replace(k("added"), b"3"), True)
same(client.replace(k("absent"), b"3"), False)
same(client.append(k("added"), b">"), True)
same(client.prepend(k("added"), b"<"), True)
same(client.append(k("absent"), b">"), False)
same(client.get(k("added")), b"<3>")
# Many clients fill a cache with add after a miss.
same(client.get(k("filled")), None)
same(client.add(k("filled"), b"v"), True)
same(client.get(k("filled")), b"v")
done("add, replace, append, prepend")

same(client.delete(k("added")), True)
same(client.delete(k("added")), False)
same(client.get(k("added")), None)
done("delete")

spaced = Client(server, timeout=10, key_prefix=(prefix + "app1:").encode(), default_noreply=False)
same(spaced.set("x", b"mine"), True)
same(spaced.get("x"), b"mine")
same(spaced.get_many(["x", "y"]), {"x": b"mine"})
same(client.get(k("app1:x")), b"mine")
done("key_prefix")

# pymemcache's default: set, delete and add are noreply, and a get on the same connection reads what they did.
silent = Client(server, timeout=10)
for i in range(20):
    silent.set(k("s"), str(i).encode())
    same(silent.get(k("s")), str(i).encode())
silent.delete(k("s"))
same(silent.get(k("s")), None)
silent.set_many({k("s1"): b"1", k("s2"): b"2"})
same(silent.get_many([k("s1"), k("s2")]), {k("s1"): b"1", k("s2"): b"2"})
done("noreply by default")

unicode = Client(server, timeout=10, allow_unicode_keys=True, default_noreply=False)
same(unicode.set(k("ключ-鍵"), "значение".encode()), True)
same(unicode.get(k("ключ-鍵")), "значение".encode())
same(unicode.delete(k("ключ-鍵")), True)
done("non-ASCII")

pool = PooledClient(server, timeout=10, max_pool_size=4, default_noreply=False)
for i in range(50):
    same(pool.set(k(f"p{i}"), str(i).encode()), True)
    same(pool.get(k(f"p{i}")), str(i).encode())
hashed = HashClient([server], timeout=10, use_pooling=True, default_noreply=False)
same(hashed.set_many({k("h1"): b"1", k("h2"): b"2"}), [])
same(hashed.get_many([k("h1"), k("h2"), k("none")]), {k("h1"): b"1", k("h2"): b"2"})
done("pools")

if not client.version().startswith(b"1.6."):
    raise AssertionError(f"version {client.version()!r}")
stats = client.stats()
same(stats[b"version"], client.version())
same(stats[b"pid"] > 0, True)
same(client.flush_all(), True)
same(client.get(k("expires")), None)
client.quit()
done("version, stats and flush")
