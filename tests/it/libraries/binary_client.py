"""pylibmc with its binary protocol on, and off: HOST PORT."""
import sys

import pylibmc

host, port = sys.argv[1:3]
server = ["%s:%s" % (host, port)]
client = pylibmc.Client(server, binary=True)
for operation in (lambda: client.set("raw:k", "v"), lambda: client.get("raw:k")):
    try:
        operation()
    except pylibmc.Error as error:
        print("refused: %s: %s" % (type(error).__name__, error))
    else:
        sys.exit("the binary protocol was spoken")
client = pylibmc.Client(server, binary=False)
assert client.set("raw:k", "v") and client.get("raw:k") == "v"
print("OK with binary=False")
