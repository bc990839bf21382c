"""pylibmc with its binary protocol: HOST PORT."""
import sys

import pylibmc

host, port = sys.argv[1:3]
server = ["%s:%s" % (host, port)]
client = pylibmc.Client(server, binary=True, behaviors={"cas": True, "ketama": True})
for prefix in ("raw:", "hot:"):
    key = prefix + "k"
    assert client.get(key) is None
    assert client.set(key, "v", time=60)
    assert client.get(key) == "v"
    value, cas = client.gets(key)
    assert client.cas(key, "w", cas) and not client.cas(key, "x", cas)
    assert client.get(key) == "w"
    assert not client.add(key, "x") and client.replace(key, "1")
    assert client.set(prefix + "n", 5) and client.incr(prefix + "n", 2) == 7 and client.decr(prefix + "n", 9) == 0
    assert client.set(prefix + "s", "b") and client.append(prefix + "s", "c") and client.prepend(prefix + "s", "a")
    assert client.get(prefix + "s") == "abc"
    assert client.touch(key, 100)
    many = {prefix + "m%d" % n: n for n in range(300)}
    assert client.set_multi(many) == []
    assert client.get_multi(list(many) + [prefix + "absent"]) == many
    assert client.delete_multi(list(many))
    assert client.get_multi(list(many)) == {}
    assert client.delete(key) and not client.delete(key)
    # A value that is not copied on its way.
    large = "x" * 700000
    assert client.set(key, large) and client.get(key) == large
assert client.get_stats()[0][1]["version"]
client.disconnect_all()
print("OK")
