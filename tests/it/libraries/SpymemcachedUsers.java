// What users of spymemcached do, with its binary connection, against HOST PORT, with keys prefixed with PREFIX. Prints a line
// "OK ..." per part. The first difference from memcached ends the run with a stack trace and exit code 1.

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.MemcachedClient;

public class SpymemcachedUsers {
    static void same(Object got, Object expected) {
        if (!Objects.deepEquals(got, expected)) {
            throw new AssertionError("got " + got + ", expected " + expected);
        }
    }

    static void done(String what) {
        System.out.println("OK " + what);
    }

    public static void main(String[] arguments) {
        try {
            run(arguments[0], Integer.parseInt(arguments[1]), arguments[2]);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static MemcachedClient connect(String host, int port) throws Exception {
        BinaryConnectionFactory binary = new BinaryConnectionFactory() {
            @Override
            public long getOperationTimeout() {
                return 10_000;
            }
        };
        return new MemcachedClient(binary, List.of(new InetSocketAddress(host, port)));
    }

    static void run(String host, int port, String prefix) throws Exception {
        MemcachedClient client = connect(host, port);
        same(client.set(prefix + "a", 100, "1").get(), true);
        same(client.get(prefix + "a"), "1");
        same(client.get(prefix + "none"), null);
        same(client.set(prefix + "empty", 100, "").get(), true);
        same(client.get(prefix + "empty"), "");
        same(client.asyncGet(prefix + "a").get(), "1");
        done("set and get");

        byte[] bytes = new byte[256];
        for (int i = 0; i < 256; i++) {
            bytes[i] = (byte) i;
        }
        Map<String, Object> objects = new HashMap<>();
        objects.put("int", 7);
        objects.put("long", 1L << 40);
        objects.put("double", 0.5);
        objects.put("boolean", true);
        objects.put("bytes", bytes);
        objects.put("list", new ArrayList<>(Arrays.asList("ça", null, 3)));
        for (Map.Entry<String, Object> object : objects.entrySet()) {
            same(client.set(prefix + object.getKey(), 100, object.getValue()).get(), true);
            same(client.get(prefix + object.getKey()), object.getValue());
        }
        done("objects");

        Map<String, Object> many = new HashMap<>();
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            many.put(prefix + "many" + i, "value " + i);
            keys.add(prefix + "absent" + i);
            keys.add(prefix + "many" + i);
        }
        // Without waiting for each: it sends them together, quietly, with a noop behind them.
        for (Map.Entry<String, Object> entry : many.entrySet()) {
            client.set(entry.getKey(), 100, entry.getValue());
        }
        same(client.getBulk(keys), many);
        List<net.spy.memcached.internal.OperationFuture<Boolean>> deleted = new ArrayList<>();
        for (String key : many.keySet()) {
            deleted.add(client.delete(key));
        }
        for (net.spy.memcached.internal.OperationFuture<Boolean> each : deleted) {
            same(each.get(), true);
        }
        same(client.getBulk(keys), new HashMap<String, Object>());
        done("multi-get");

        same(client.set(prefix + "c", 100, "1").get(), true);
        CASValue<Object> seen = client.gets(prefix + "c");
        same(seen.getValue(), "1");
        same(client.cas(prefix + "c", seen.getCas(), "2"), CASResponse.OK);
        same(client.cas(prefix + "c", seen.getCas(), "3"), CASResponse.EXISTS);
        same(client.cas(prefix + "absent", seen.getCas(), "3"), CASResponse.NOT_FOUND);
        same(client.get(prefix + "c"), "2");
        same(client.delete(prefix + "c", seen.getCas()).get(), false);
        done("cas");

        same(client.incr(prefix + "n", 5, 10, 100), 10L);
        same(client.incr(prefix + "n", 5), 15L);
        same(client.decr(prefix + "n", 20), 0L);
        same(client.incr(prefix + "n", 1), 1L);
        same(client.incr(prefix + "absent", 1), -1L);
        same(client.set(prefix + "wrap", 100, "18446744073709551615").get(), true);
        same(client.incr(prefix + "wrap", 1), 0L);
        done("counters");

        same(client.add(prefix + "added", 100, "1").get(), true);
        same(client.add(prefix + "added", 100, "2").get(), false);
        same(client.replace(prefix + "added", 100, "3").get(), true);
        same(client.replace(prefix + "absent", 100, "3").get(), false);
        same(client.append(prefix + "added", ">").get(), true);
        same(client.prepend(prefix + "added", "<").get(), true);
        same(client.append(prefix + "absent", ">").get(), false);
        same(client.get(prefix + "added"), "<3>");
        same(client.get(prefix + "filled"), null);
        same(client.add(prefix + "filled", 100, "v").get(), true);
        same(client.get(prefix + "filled"), "v");
        done("add, replace, append, prepend");

        same(client.touch(prefix + "a", 100).get(), true);
        same(client.touch(prefix + "absent", 100).get(), false);
        same(client.getAndTouch(prefix + "a", 100).getValue(), "1");
        same(client.getAndTouch(prefix + "absent", 100), null);
        done("touch and gat");

        same(client.set(prefix + "gone", 1_000_000_000, "x").get(), true);
        same(client.get(prefix + "gone"), null);
        same(client.set(prefix + "far", 2147483647, "x").get(), true);
        same(client.get(prefix + "far"), "x");
        done("expiry");

        same(client.delete(prefix + "added").get(), true);
        same(client.delete(prefix + "added").get(), false);
        same(client.get(prefix + "added"), null);
        done("delete");

        byte[] big = new byte[900 * 1024];
        new java.util.Random(1).nextBytes(big);
        same(client.set(prefix + "big", 100, big).get(), true);
        same(client.get(prefix + "big"), big);
        // Its compression is on by default.
        String text = "compress me ".repeat(150_000);
        same(client.set(prefix + "z", 100, text).get(), true);
        same(client.get(prefix + "z"), text);
        done("big values");

        same(client.set(prefix + "ключ-鍵", 100, "значение").get(), true);
        same(client.get(prefix + "ключ-鍵"), "значение");
        same(client.delete(prefix + "ключ-鍵").get(), true);
        done("non-ASCII");

        Map<String, String> stats = client.getStats().values().iterator().next();
        same(stats.get("version").startsWith("1.6."), true);
        same(client.getVersions().values().iterator().next(), stats.get("version"));
        same(client.flush().get(), true);
        same(client.get(prefix + "far"), null);
        client.shutdown(5, TimeUnit.SECONDS);
        done("version, stats and flush");
    }
}
