"""What users of pylibmc (libmemcached, in C) do, against HOST PORT, with keys prefixed with PREFIX, in the binary protocol
if a fourth argument "binary" follows. Prints a line "OK ..." per part. The first difference from memcached ends the run with
a traceback and exit code 1."""

import sys

import pylibmc

host, port, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = [f"{host}:{port}"]
binary = sys.argv[4:] == ["binary"]
# As pylibmc's documentation recommends.
client = pylibmc.Client(server, binary=binary, behaviors={"tcp_nodelay": True, "ketama": True, "cas": True})


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
same(client.set(k("empty"), b""), True)
same(client.get(k("empty")), b"")
client[k("item")] = "x"
same((client[k("item")], k("item") in client, k("no item") in client), ("x", True, False))
del client[k("item")]
raises(KeyError, lambda: client[k("item")])
done("set and get")

objects = {"bytes": b"\x00\r\n", "text": "ça", "int": 7, "long": 1 << 70, "float": 0.5,
           "dict": {"a": [1, None, ("b",)]}}
for name, value in objects.items():
    same(client.set(k(name), value), True)
    got = client.get(k(name))
    same((got, type(got)), (value, type(value)))
done("objects")

many = {k(f"many{i}"): f"value {i}" for i in range(100)}
absent = [k(f"absent{i}") for i in range(10)]
same(client.set_multi(many, time=100), [])
same(client.get_multi(list(many) + absent), many)
same(client.get_multi([f"many{i}" for i in range(5)], key_prefix=prefix), {f"many{i}": f"value {i}" for i in range(5)})
same(client.get_multi([]), {})
same(client.delete_multi(list(many)), True)
same(client.get_multi(list(many)), {})
done("multi-get")

same(client.set(k("c"), "1"), True)
value, cas = client.gets(k("c"))
same(value, "1")
same(client.cas(k("c"), "2", cas), True)
same(client.cas(k("c"), "3", cas), False)
same(client.get(k("c")), "2")
raises(pylibmc.NotFound, client.cas, k("absent"), "3", cas)
same(client.gets(k("absent")), (None, None))
done("cas")

same(client.set(k("n"), 10), True)
same(client.incr(k("n"), 5), 15)
same(client.decr(k("n"), 20), 0)
same(client.incr(k("n")), 1)
same(client.set(k("wrap"), str((1 << 64) - 1).encode()), True)
same(client.incr(k("wrap")), 0)
raises(pylibmc.NotFound, client.incr, k("absent"))
same(client.set_multi({k("n1"): 1, k("n2"): 2}), [])
client.incr_multi([k("n1"), k("n2")], delta=10)
same(client.get_multi([k("n1"), k("n2")]), {k("n1"): 11, k("n2"): 12})
same(client.set(k("word"), "x"), True)
# libmemcached takes this status of the binary protocol for a dead server, and sends it nothing for two seconds.
if not binary:
    raises(pylibmc.ClientError, client.incr, k("word"))
same(client.get(k("word")), "x")
done("counters")

same(client.add(k("added"), "1"), True)
same(client.add(k("added"), "2"), False)
same(client.replace(k("added"), "3"), True)
if binary:
    raises(pylibmc.NotFound, client.replace, k("absent"), "3")
else:
    same(client.replace(k("absent"), "3"), False)
same(client.append(k("added"), ">"), True)
same(client.prepend(k("added"), "<"), True)
same(client.append(k("absent"), ">"), False)
same(client.get(k("added")), "<3>")
same(client.add_multi({k("added"): "4", k("added2"): "5"}), [k("added")])
# Many clients fill a cache with add after a miss.
same(client.get(k("filled")), None)
same(client.add(k("filled"), "v"), True)
same(client.get(k("filled")), "v")
done("add, replace, append, prepend")

same(client.touch(k("a"), 100), True)
same(client.touch(k("absent"), 100), False)
same(client.get(k("a")), "1")
done("touch")

same(client.set(k("gone"), "x", time=100), True)
# libmemcached itself fails on a touch to -1.
same(client.touch(k("gone"), 1_000_000_000), True)
same(client.get(k("gone")), None)
# In the binary protocol a time has no sign.
same(client.set(k("gone"), "x", time=1_000_000_000 if binary else -1), True)
same(client.get(k("gone")), None)
same(client.set(k("far"), "x", time=2147483647), True)
same(client.get(k("far")), "x")
same(client.set(k("past"), "x", time=1_000_000_000), True)
same(client.get(k("past")), None)
done("expiry")

same(client.delete(k("added")), True)
same(client.delete(k("added")), False)
same(client.get(k("added")), None)
done("delete")

big = bytes(range(256)) * (900 * 1024 // 256)
same(client.set(k("big"), big), True)
same(client.get(k("big")), big)
same(client.get_multi([k("big"), k("int")]), {k("big"): big, k("int"): 7})
raises(pylibmc.Error, client.set, k("big"), big + big)
same(client.get(k("big")), None)
same(client.get(k("int")), 7)
done("big values")

same(client.set(k("z"), "compress me " * 10_000, min_compress_len=1000, compress_level=6), True)
same(client.get(k("z")), "compress me " * 10_000)
done("compression")

same(client.set(k("ключ-鍵"), "значение"), True)
same(client.get(k("ключ-鍵")), "значение")
same(client.get_multi([k("ключ-鍵"), k("é")]), {k("ключ-鍵"): "значение"})
same(client.delete(k("ключ-鍵")), True)
done("non-ASCII")

# noreply, and a get on the same connection reads what it did.
silent = pylibmc.Client(server, binary=binary, behaviors={"_noreply": True})
for i in range(20):
    silent.set(k("s"), str(i))
    same(silent.get(k("s")), str(i))
silent.delete(k("s"))
same(silent.get(k("s")), None)
done("noreply")

pool = pylibmc.ClientPool(client, 4)
for i in range(50):
    with pool.reserve() as one, pool.reserve() as other:
        same(one.set(k(f"p{i}"), i), True)
        same(other.get(k(f"p{i}")), i)
[(_, stats)] = client.get_stats()
if not stats["version"].startswith(b"1.6.") or not stats["pid"].isdigit():
    raise AssertionError(f"stats {stats!r}")
same(client.flush_all(), True)
same(client.get(k("far")), None)
done("pool, stats and flush")
