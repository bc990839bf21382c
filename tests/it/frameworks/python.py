"""One process of an application in Python: a cached function through HOST PORT for SECONDS, with an expiry of 4 seconds.

LIBRARY is django; dogpile; dogpile_locked, with dogpile.cache's own lock; or dogpile_endless, whose items have no exptime. Prints when
each build begins and ends, in nanoseconds of the monotonic clock.
"""

import sys
import time

host, port, seconds, library = sys.argv[1:]


def build():
    print("begin", time.monotonic_ns(), flush=True)
    time.sleep(0.2)
    print("end", time.monotonic_ns(), flush=True)
    return "page"


def django():
    from django.conf import settings

    backend = "django.core.cache.backends.memcached.PyMemcacheCache"
    options = {"timeout": 15}
    settings.configure(CACHES={"default": {"BACKEND": backend, "LOCATION": f"{host}:{port}", "OPTIONS": options}})
    from django.core.cache import cache

    return lambda: cache.get_or_set("app:page", build, 4)


def dogpile(**arguments):
    from dogpile.cache import make_region

    region = make_region(key_mangler=lambda key: key)
    arguments.update(url=f"{host}:{port}", socket_timeout=15)
    region.configure("dogpile.cache.pymemcache", expiration_time=4, arguments=arguments)
    return lambda: region.get_or_create("app:page", build)


get = {
    "django": django,
    "dogpile": lambda: dogpile(memcached_expire_time=4),
    "dogpile_locked": lambda: dogpile(memcached_expire_time=4, distributed_lock=True, lock_timeout=10),
    "dogpile_endless": dogpile,
}[library]()
ends = time.monotonic() + int(seconds)
while time.monotonic() < ends:
    assert get() == "page"
    time.sleep(0.02)
