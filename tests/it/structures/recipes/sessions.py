"""Django's sessions in its cache through HOST PORT. Without further arguments, begins sessions and prints their keys; with keys, each is
read, changed as soon as the server lets it, and read again."""

import sys
import time

from django.conf import settings

host, port, keys = sys.argv[1], sys.argv[2], sys.argv[3:]
cache = {
    "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
    "LOCATION": f"{host}:{port}",
    "KEY_PREFIX": "session",
    "OPTIONS": {"timeout": 15},
}
settings.configure(CACHES={"default": cache}, SESSION_ENGINE="django.contrib.sessions.backends.cache")
from django.contrib.sessions.backends.cache import SessionStore


def until_done(command):
    ends = time.monotonic() + 60
    while True:
        try:
            return command()
        except Exception:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


for n in range(0 if keys else 20):
    session = SessionStore()
    session["cart"] = [n]
    until_done(session.save)
    print(session.session_key)
for n, key in enumerate(keys):
    session = SessionStore(session_key=key)
    if session.get("cart") != [n]:
        sys.exit(f"{n} has {session.get('cart')}")
    session["cart"] = [n, "paid"]
    until_done(session.save)
    if SessionStore(session_key=key).get("cart") != [n, "paid"]:
        sys.exit(f"{n} is not as it was saved")
