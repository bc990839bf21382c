<?php
// One process of a Laravel application: a cached function through HOST PORT for SECONDS, with an expiry of 4 seconds. Prints
// when each build begins and ends, in nanoseconds of the monotonic clock.

use Illuminate\Cache\MemcachedStore;
use Illuminate\Cache\Repository;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds] = $argv;

function build(): string
{
    fwrite(STDOUT, 'begin ' . hrtime(true) . "\n");
    usleep(200_000);
    fwrite(STDOUT, 'end ' . hrtime(true) . "\n");
    return 'page';
}

require_once 'Illuminate/Cache/autoload.php';
$connection = new Memcached();
$connection->setOption(Memcached::OPT_POLL_TIMEOUT, 15000);
$connection->addServer($host, (int) $port);
$cache = new Repository(new MemcachedStore($connection, 'app:'));

$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    if (($got = $cache->remember('page', 4, build(...))) !== 'page') {
        fwrite(STDERR, var_export($got, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
