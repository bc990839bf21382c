"""What users of python-memcached (all Python) do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK
..." per part. The first difference from memcached ends the run with a traceback and exit code 1."""

import sys

import memcache

host, port, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = [f"{host}:{port}"]
client = memcache.Client(server, cache_cas=True, socket_timeout=10)


def same(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def k(name):
    return prefix + name


def done(what):
    print("OK", what, flush=True)


same(client.set(k("a"), "1", time=100), True)
same(client.get(k("a")), "1")
same(client.get(k("none")), None)
same(client.get(k("none2"), "default"), "default")
same(client.set(k("empty"), b""), True)
same(client.get(k("empty")), b"")
done("set and get")

objects = {"bytes": b"\x00\r\n", "text": "ça", "int": 7, "long": 1 << 70, "float": 0.5, "dict": {"a": [1, None, ("b",)]}}
for name, value in objects.items():
    same(client.set(k(name), value), True)
    got = client.get(k(name))
    same((got, type(got)), (value, type(value)))
done("objects")

many = {f"many{i}": f"value {i}" for i in range(100)}
absent = [f"absent{i}" for i in range(10)]
same(client.set_multi(many, time=100, key_prefix=prefix), [])
same(client.get_multi(list(many) + absent, key_prefix=prefix), many)
same(client.get_multi([k("many7"), k("absent7")]), {k("many7"): "value 7"})
same(client.delete_multi(list(many), key_prefix=prefix), 1)
same(client.get_multi(list(many), key_prefix=prefix), {})
done("multi-get")

same(client.set(k("c"), "1"), True)
same(client.gets(k("c")), "1")
other = memcache.Client(server, cache_cas=True)
same(other.gets(k("c")), "1")
same(client.cas(k("c"), "2"), True)
same(bool(other.cas(k("c"), "3")), False)
same(client.get(k("c")), "2")
same(client.gets(k("absent")), None)
done("cas")

same(client.set(k("n"), 10), True)
same(client.incr(k("n"), 5), 15)
same(client.decr(k("n"), 20), 0)
same(client.incr(k("n")), 1)
same(client.set(k("wrap"), str((1 << 64) - 1)), True)
same(client.incr(k("wrap")), 0)
same(client.incr(k("absent")), None)
done("counters")

same(client.add(k("added"), "1"), True)
same(client.add(k("added"), "2"), False)
same(client.replace(k("added"), "3"), True)
same(client.replace(k("absent"), "3"), False)
same(client.append(k("added"), ">"), True)
same(client.prepend(k("added"), "<"), True)
same(client.append(k("absent"), ">"), False)
same(client.get(k("added")), "<3>")
# Many clients fill a cache with add after a miss.
same(client.get(k("filled")), None)
same(client.add(k("filled"), "v"), True)
same(client.get(k("filled")), "v")
done("add, replace, append, prepend")

# For python-memcached NOT_FOUND is a success, too.
same(client.touch(k("a"), 100), 1)
same(client.get(k("a")), "1")
done("touch")

same(client.set(k("gone"), "x", time=100), True)
same(client.touch(k("gone"), -1), 1)
same(client.get(k("gone")), None)
same(client.set(k("gone"), "x", time=-1), True)
same(client.get(k("gone")), None)
same(client.set(k("far"), "x", time=2147483647), True)
same(client.get(k("far")), "x")
same(client.set(k("past"), "x", time=1_000_000_000), True)
same(client.get(k("past")), None)
done("expiry")

same(client.delete(k("added")), 1)
same(client.get(k("added")), None)
same(client.incr(k("added")), None)
done("delete")

big = bytes(range(256)) * (900 * 1024 // 256)
same(client.set(k("big"), big), True)
same(client.get(k("big")), big)
same(client.get_multi([k("big"), k("int")]), {k("big"): big, k("int"): 7})
# By default it does not send values larger than 1 MiB.
same(bool(client.set(k("big"), big + big)), False)
same(client.get(k("big")), big)
unlimited = memcache.Client(server, server_max_value_length=0, socket_timeout=10)
same(bool(unlimited.set(k("big"), big + big)), False)
same(unlimited.get(k("big")), None)
same(unlimited.get(k("int")), 7)
done("big values")

same(client.set(k("z"), "compress me " * 10_000, min_compress_len=1000), True)
same(client.get(k("z")), "compress me " * 10_000)
done("compression")

same(client.set(k("ключ-鍵"), "значение"), True)
same(client.get(k("ключ-鍵")), "значение")
same(client.get_multi([k("ключ-鍵"), k("é")]), {k("ключ-鍵"): "значение"})
same(client.delete(k("ключ-鍵")), 1)
done("non-ASCII")

# A get on the same connection reads what the noreply commands did.
for i in range(20):
    client.set(k("s"), str(i), noreply=True)
    same(client.get(k("s")), str(i))
client.delete(k("s"), noreply=True)
same(client.get(k("s")), None)
done("noreply")

[(_, stats)] = client.get_stats()
if not stats["version"].startswith("1.6.") or not stats["pid"].isdigit():
    raise AssertionError(f"stats {stats!r}")
client.flush_all()
same(client.get(k("far")), None)
client.quit_all()
done("stats and flush")
