<?php
// One process of a Laravel application: a cached function through HOST PORT for SECONDS, with an expiry of 4 seconds. METHOD is
// remember or flexible. Prints when each build begins and ends, in nanoseconds of the monotonic clock.

use Illuminate\Cache\MemcachedStore;
use Illuminate\Cache\Repository;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds, $method] = $argv;

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

// What Laravel's flexible does since 11.23, by the operations of this version: the time of the build is a key of its own, and after
// the first expiry whoever has the lock builds. Laravel does that after the response.
function flexible(Repository $cache, int $fresh_for, int $kept_for): string
{
    $made_key = 'illuminate:cache:flexible:created:page';
    $build = fn () => $cache->putMany(['page' => build(), $made_key => time()], $kept_for);
    ['page' => $value, $made_key => $made] = $cache->many(['page', $made_key]);
    if ($value === null || $made === null) {
        $build();
        return 'page';
    }
    if ($made + $fresh_for <= time()) {
        $is_as_before = fn () => $cache->get($made_key) === $made;
        $lock = $cache->getStore()->lock('illuminate:cache:flexible:lock:page', 0);
        $lock->get(fn () => $is_as_before() && $build());
    }
    return $value;
}

$get = match ($method) {
    'remember' => fn () => $cache->remember('page', 4, build(...)),
    'flexible' => fn () => flexible($cache, 4, 60),
};
$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    if (($got = $get()) !== 'page') {
        fwrite(STDERR, var_export($got, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
