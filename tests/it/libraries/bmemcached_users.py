"""What users of bmemcached (python-binary-memcached) do, against HOST PORT, with keys prefixed with PREFIX, and with SASL if USER
and PASSWORD follow. It speaks the binary protocol only. Prints a line "OK ..." per part. The first difference from memcached ends
the run with a traceback and exit code 1."""

import sys

import bmemcached
from bmemcached.exceptions import MemcachedException

host, port, prefix = sys.argv[1:4]
username, password = sys.argv[4:] or (None, None)


def connect(**options):
    return bmemcached.Client((f"{host}:{port}",), username, password, socket_timeout=10, **options)


client = connect()


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


same(client.set(k("a"), "1", time=100), True)
same(client.get(k("a")), "1")
same(client.get(k("none")), None)
same(client.get(k("none2"), "default"), "default")
same(client.set(k("empty"), ""), True)
same(client.get(k("empty")), "")
done("set and get")

objects = {"bytes": b"\x00\r\n", "text": "ça", "int": 7, "float": 0.5, "dict": {"a": [1, None, ("b",)]}}
for name, value in objects.items():
    same(client.set(k(name), value), True)
    got = client.get(k(name))
    same((got, type(got)), (value, type(value)))
done("objects")

many = {k(f"many{i}"): f"value {i}" for i in range(100)}
absent = [k(f"absent{i}") for i in range(10)]
# Quiet sets, and a noop behind them.
same(client.set_multi(many, time=100), [])
same(client.get_multi(list(many) + absent), many)
with_cas = client.get_multi([k("many1"), k("absent1")], get_cas=True)
same({key: value for key, (value, _) in with_cas.items()}, {k("many1"): "value 1"})
same(client.delete_multi(list(many)), True)
same(client.get_multi(list(many)), {})
done("multi-get")

same(client.set(k("c"), "1"), True)
value, cas = client.gets(k("c"))
same(value, "1")
same(client.cas(k("c"), "2", cas), True)
same(client.cas(k("c"), "3", cas), False)
same(client.get(k("c")), "2")
same(client.delete(k("c"), cas=cas), False)
same(client.gets(k("absent")), (None, None))
done("cas")

same(client.incr(k("n"), 5, default=10, time=100), 10)
same(client.incr(k("n"), 5), 15)
same(client.decr(k("n"), 20), 0)
same(client.incr(k("n"), 1), 1)
# 2^64 - 1 as the first value.
same(client.incr(k("wrap"), 1, default=(1 << 64) - 1, time=100), (1 << 64) - 1)
same(client.incr(k("wrap"), 1), 0)
same(client.set(k("word"), "x"), True)
raises(MemcachedException, client.incr, k("word"), 1)
same(client.get(k("word")), "x")
done("counters")

same(client.add(k("added"), "1"), True)
same(client.add(k("added"), "2"), False)
same(client.replace(k("added"), "3"), True)
same(client.replace(k("absent"), "3"), False)
same(client.get(k("added")), "3")
# Many clients fill a cache with add after a miss.
same(client.get(k("filled")), None)
same(client.add(k("filled"), "v"), True)
same(client.get(k("filled")), "v")
done("add and replace")

same(client.set(k("gone"), "x", time=1_000_000_000), True)
same(client.get(k("gone")), None)
same(client.set(k("far"), "x", time=2147483647), True)
same(client.get(k("far")), "x")
done("expiry")

same(client.delete(k("added")), True)
same(client.delete(k("added")), True)  # it does not tell that there was nothing
same(client.get(k("added")), None)
done("delete")

big = bytes(range(256)) * (900 * 1024 // 256)
plain = connect(raw_data=True)
same(plain.set(k("big"), big), True)
same(plain.get(k("big")), big)
raises(MemcachedException, plain.set, k("big"), big + big)
same(plain.get(k("big")), None)
same(client.get(k("int")), 7)
done("big values")

same(client.set(k("z"), "compress me " * 150_000, compress_level=6), True)
same(client.get(k("z")), "compress me " * 150_000)
done("compression")

same(client.set(k("ключ-鍵"), "значение"), True)
same(client.get(k("ключ-鍵")), "значение")
same(client.get_multi([k("ключ-鍵"), k("é")]), {k("ключ-鍵"): "значение"})
same(client.delete(k("ключ-鍵")), True)
done("non-ASCII")

[stats] = client.stats().values()
same(stats["version"].decode().startswith("1.6."), True)
same(int(stats["pid"]) > 0, True)
same(client.flush_all(), True)
same(client.get(k("far")), None)
client.disconnect_all()
plain.disconnect_all()
done("stats and flush")
