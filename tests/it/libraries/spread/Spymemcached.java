// Sets the keys that it reads, one a line, with a client that spreads them itself.
// Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
// LIBRARY is spymemcached, with the ketama that its manual recommends, or spymemcached:array, its default.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.KetamaConnectionFactory;
import net.spy.memcached.MemcachedClient;

public class Spymemcached {
    public static void main(String[] arguments) throws Exception {
        List<InetSocketAddress> servers = new ArrayList<>();
        for (int at = 3; at < arguments.length; at++) {
            String[] parts = arguments[at].split(":");
            servers.add(new InetSocketAddress(InetAddress.getByName(parts[0]), Integer.parseInt(parts[1])));
        }
        MemcachedClient client = new MemcachedClient(
            arguments[0].endsWith(":array") ? new DefaultConnectionFactory() : new KetamaConnectionFactory(), servers);
        BufferedReader keys = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String key = keys.readLine(); key != null; key = keys.readLine()) {
            if (!client.set(key, 0, arguments[1]).get()) {
                throw new IllegalStateException(key + " is not stored");
            }
        }
        client.shutdown();
    }
}
