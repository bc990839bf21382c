"""Sets the keys that it reads, one a line, with a client that spreads them itself.

Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
LIBRARY is pymemcache, python_memcached, or pylibmc:DISTRIBUTION:HASH.
"""

import sys

library, value, prefix, *servers = sys.argv[1:]
servers = [server.rsplit(":", 2) for server in servers]
keys = sys.stdin.read().split("\n")[:-1]

if library == "pymemcache":
    from pymemcache.client.hash import HashClient

    client = HashClient([(host, int(port)) for host, port, _ in servers], key_prefix=prefix.encode(), allow_unicode_keys=True)
    for key in keys:
        assert client.set(key, value, noreply=False)
elif library == "python_memcached":
    import memcache

    client = memcache.Client([(f"{host}:{port}", int(weight)) for host, port, weight in servers])
    for key in keys:
        assert client.set(key, value)
else:
    import pylibmc

    _, distribution, hash = library.split(":")
    client = pylibmc.Client([f"{host}:{port}:{weight}" for host, port, weight in servers])
    if distribution:
        client.behaviors = {"distribution": distribution, "hash": hash}
    for key in keys:
        assert client.set(key, value)
