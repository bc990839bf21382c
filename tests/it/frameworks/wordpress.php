<?php
// One process of a WordPress site: a transient through HOST PORT for SECONDS, with an expiry of 4 seconds, by the calls of the
// drop-in Memcached Object Cache. Prints when each build begins and ends, in nanoseconds of the monotonic clock.

error_reporting(E_ALL);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds] = $argv;

$cache = new Memcache();
// As the drop-in, with a longer timeout.
$cache->addServer($host, (int) $port, true, 1, 15, 15, true);
$cache->setCompressThreshold(20000, 0.2);

$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    // A request: what it has read before is in an array of the drop-in.
    $flags = false;
    $value = $cache->get('1:wp_:transient:page', $flags);
    if ($flags === false) {
        fwrite(STDOUT, 'begin ' . hrtime(true) . "\n");
        usleep(200_000);
        fwrite(STDOUT, 'end ' . hrtime(true) . "\n");
        $value = ['page'];
        $cache->set('1:wp_:transient:page', $value, 0, 4);
    }
    if ($value !== ['page']) {
        fwrite(STDERR, var_export($value, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
