<?php
// One process of a WordPress site: a transient through HOST PORT for SECONDS, with an expiry of 4 seconds, by the drop-in DROP_IN; if
// there is none, by the calls of Memcached Object Cache. Prints when each build begins and ends, in nanoseconds of the monotonic clock.

error_reporting(E_ALL & ~E_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds] = $argv;
$drop_in = $argv[4] ?? null;

if ($drop_in) {
    // Each drop-in's form of the list.
    $memcached_servers = str_contains($drop_in, 'wordpress_memcached/') ? [[$host, (int) $port]] : ["$host:$port"];
    $table_prefix = 'wp_';
    require $drop_in;
} else {
    $cache = new Memcache();
    // As the drop-in, with a longer timeout.
    $cache->addServer($host, (int) $port, true, 1, 15, 15, true);
    $cache->setCompressThreshold(20000, 0.2);
}

function get(bool &$found): mixed
{
    global $cache, $drop_in;
    if ($drop_in) {
        // A request: what it has read before is in an array of the drop-in.
        wp_cache_init();
        $value = wp_cache_get('page', 'transient', false, $found);
        return $value;
    }
    $flags = false;
    $value = $cache->get('1:wp_:transient:page', $flags);
    $found = $flags !== false;
    return $value;
}

function set(mixed $value): void
{
    global $cache, $drop_in;
    $drop_in ? wp_cache_set('page', $value, 'transient', 4) : $cache->set('1:wp_:transient:page', $value, 0, 4);
}

$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    $found = false;
    $value = get($found);
    if (!$found) {
        fwrite(STDOUT, 'begin ' . hrtime(true) . "\n");
        usleep(200_000);
        fwrite(STDOUT, 'end ' . hrtime(true) . "\n");
        $value = ['page'];
        set($value);
    }
    if ($value !== ['page']) {
        fwrite(STDERR, var_export($value, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
