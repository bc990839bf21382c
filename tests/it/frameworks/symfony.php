<?php
// One process of a Symfony application: a cached function through HOST PORT for SECONDS, with an expiry of 4 seconds. Prints when
// each build begins and ends, in nanoseconds of the monotonic clock; of one that the library has begun by chance, before the
// expiry, only "early". With BETA 0 there is none.

use Symfony\Component\Cache\Adapter\MemcachedAdapter;
use Symfony\Contracts\Cache\ItemInterface;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $seconds, $beta] = $argv;

function build(ItemInterface $item): string
{
    $is_early = $item->isHit() && $item->getMetadata()[ItemInterface::METADATA_EXPIRY] > microtime(true);
    // Its expiry is kept inside the value only if it is set here.
    $item->expiresAfter(4);
    if ($is_early) {
        fwrite(STDOUT, "early 0\n");
        usleep(200_000);
        return 'page';
    }
    fwrite(STDOUT, 'begin ' . hrtime(true) . "\n");
    usleep(200_000);
    fwrite(STDOUT, 'end ' . hrtime(true) . "\n");
    return 'page';
}

require_once 'Symfony/Component/Cache/autoload.php';
$connection = MemcachedAdapter::createConnection("memcached://$host:$port?poll_timeout=15000");
// On the command line there is no lock between the processes of one machine, as there is none between machines.
$cache = new MemcachedAdapter($connection, 'app');

$ends = hrtime(true) + (int) $seconds * 1_000_000_000;
while (hrtime(true) < $ends) {
    if (($got = $cache->get('page', build(...), (float) $beta)) !== 'page') {
        fwrite(STDERR, var_export($got, true) . "\n");
        exit(1);
    }
    usleep(20_000);
}
