<?php
// What users of Laravel's cache do with its memcached store, against HOST PORT, with keys prefixed with PREFIX, in the binary
// protocol if a fourth argument "binary" follows. Prints a line "OK ..." per part. The first difference from memcached ends the
// run with a message and exit code 1.

use Illuminate\Cache\MemcachedConnector;
use Illuminate\Cache\MemcachedStore;
use Illuminate\Cache\RateLimiter;
use Illuminate\Cache\Repository;

error_reporting(E_ALL & ~E_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $prefix] = $argv;
$binary = ($argv[4] ?? null) === 'binary';
require_once 'Illuminate/Cache/autoload.php';

function fail(string $what): never
{
    fwrite(STDERR, "$what\n" . (new Exception())->getTraceAsString() . "\n");
    exit(1);
}

function same(mixed $got, mixed $expected): void
{
    if ($got !== $expected) {
        fail(sprintf('got %.200s, expected %.200s', var_export($got, true), var_export($expected, true)));
    }
}

function done(string $what): void
{
    echo "OK $what\n";
}

function cache(): Repository
{
    global $host, $port, $prefix, $binary;
    $servers = [['host' => $host, 'port' => (int) $port, 'weight' => 100]];
    $options = [Memcached::OPT_BINARY_PROTOCOL => $binary, Memcached::OPT_POLL_TIMEOUT => 15000];
    // The store adds a colon to the prefix.
    return new Repository(new MemcachedStore((new MemcachedConnector())->connect($servers, null, $options), $prefix . 'laravel'));
}

[$cache, $other] = [cache(), cache()];
same($cache->put('a', '1', 100), true);
same($other->get('a'), '1');
same([$cache->get('none'), $cache->get('none', 'default'), $cache->has('a'), $cache->missing('none')], [null, 'default', true, true]);
same($cache->pull('a'), '1');
same($other->get('a'), null);
done('put, get and pull');

foreach (['int' => 7, 'float' => 0.5, 'false' => false, 'array' => ['a' => [1, 'b']], 'bytes' => "\0\r\n\xff"] as $name => $value) {
    same($cache->put($name, $value, 100), true);
    same($other->get($name), $value);
}
done('types');

same($cache->remember('built', 100, fn () => 'value'), 'value');
same($other->remember('built', 100, fn () => fail('built twice')), 'value');
same($cache->rememberForever('forever', fn () => 'value'), 'value');
same($other->get('forever'), 'value');
done('remember');

$many = [];
for ($i = 0; $i < 100; $i++) {
    $many["many$i"] = "value $i";
}
same($cache->putMany($many, 100), true);
same($other->many([...array_keys($many), 'absent']), $many + ['absent' => null]);
same($cache->deleteMultiple(array_keys($many)), true);
same(array_filter($other->many(array_keys($many))), []);
done('many');

same($cache->add('added', 'first', 100), true);
same($other->add('added', 'second', 100), false);
same($other->get('added'), 'first');
same($cache->forget('added'), true);
same($cache->forget('added'), false);
done('add and forget');

same($cache->put('n', 5, 100), true);
same([$cache->increment('n', 3), $cache->decrement('n', 2), $other->get('n')], [8, 6, 6]);
same($cache->increment('absent'), false);
$limiter = new RateLimiter($cache);
$allowed = array_map(fn () => $limiter->attempt('login', 3, fn () => true), range(1, 5));
same($allowed, [true, true, true, false, false]);
done('counters and rate limits');

$lock = $cache->getStore()->lock('job', 30);
same($lock->get(), true);
same($other->getStore()->lock('job', 30)->get(), false);
same($lock->release(), true);
same($other->getStore()->lock('job', 30)->get(fn () => 'did it'), 'did it');
done('locks');

same($cache->tags(['people', 'authors'])->put('ann', 'Ann', 100), true);
same($cache->tags(['people'])->put('bob', 'Bob', 100), true);
same($other->tags(['people', 'authors'])->get('ann'), 'Ann');
same($other->tags(['authors'])->flush(), true);
same([$cache->tags(['people', 'authors'])->get('ann'), $cache->tags(['people'])->get('bob')], [null, 'Bob']);
done('tags');

$cache->put('past', 'x', new DateTime('-1 minute'));
same($other->get('past'), null);
same($cache->put('far', 'x', new DateTime('+60 days')), true);
same($other->get('far'), 'x');
done('expiry');

same($cache->clear(), true);
same(cache()->get('far'), null);
done('clear');
