<?php
// One process of an application in PHP: a cached function through HOST PORT for SECONDS, with an expiry of 4 seconds, by LIBRARY:
// symfony or laravel. Prints when each build begins and ends, in nanoseconds of the monotonic clock.

use Illuminate\Cache\MemcachedStore;
use Illuminate\Cache\Repository;
use Symfony\Component\Cache\Adapter\MemcachedAdapter;
use Symfony\Contracts\Cache\ItemInterface;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds, $library] = $argv;

function build(): string
{
    fwrite(STDOUT, 'begin ' . hrtime(true) . "\n");
    usleep(200_000);
    fwrite(STDOUT, 'end ' . hrtime(true) . "\n");
    return 'page';
}

if ($library === 'symfony') {
    require_once 'Symfony/Component/Cache/autoload.php';
    $connection = MemcachedAdapter::createConnection("memcached://$host:$port?poll_timeout=15000");
    $cache = new MemcachedAdapter($connection, 'app', 100);
    $get = fn () => $cache->get('page', function (ItemInterface $item): string {
        $item->expiresAfter(4);
        return build();
    });
} else {
    require_once 'Illuminate/Cache/autoload.php';
    $connection = new Memcached();
    $connection->setOption(Memcached::OPT_POLL_TIMEOUT, 15000);
    $connection->addServer($host, (int) $port);
    $cache = new Repository(new MemcachedStore($connection, 'app:'));
    $get = fn () => $cache->remember('page', 4, build(...));
}

$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    if (($got = $get()) !== 'page') {
        fwrite(STDERR, var_export($got, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
