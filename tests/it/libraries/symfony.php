<?php
// What users of Symfony's MemcachedAdapter and MemcachedSessionHandler do, against HOST PORT, with keys prefixed with PREFIX. The
// connection has Symfony's own options: the binary protocol, and no blocking. Prints a line "OK ..." per part. The first
// difference from memcached ends the run with a message and exit code 1.

use Symfony\Component\Cache\Adapter\MemcachedAdapter;
use Symfony\Component\Cache\Adapter\TagAwareAdapter;
use Symfony\Component\HttpFoundation\Session\Storage\Handler\MemcachedSessionHandler;
use Symfony\Contracts\Cache\ItemInterface;

error_reporting(E_ALL & ~E_DEPRECATED & ~E_USER_DEPRECATED);
ini_set('display_errors', 'stderr');
[, $host, $port, $prefix] = $argv;
foreach (['Component/Cache', 'Component/HttpFoundation'] as $part) {
    require_once "Symfony/$part/autoload.php";
}

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
    fwrite(STDOUT, "OK $what\n"); // echo would end the time of headers, and sessions set some
}

set_error_handler(fn ($number, $text) => error_reporting() & $number ? fail("PHP says: $text") : false);

function connect(): Memcached
{
    global $host, $port, $prefix;
    return MemcachedAdapter::createConnection("memcached://$host:$port?poll_timeout=15000", ['prefix_key' => $prefix]);
}

$connection = connect();
same($connection->getOption(Memcached::OPT_BINARY_PROTOCOL), 1);
same($connection->getOption(Memcached::OPT_POLL_TIMEOUT), 15000);
$cache = new MemcachedAdapter($connection, 'app', 100);
$other = new MemcachedAdapter(connect(), 'app', 100);

$build = function (ItemInterface $item): string {
    $item->expiresAfter(60);
    return 'built';
};
same($cache->get('k', $build), 'built');
same($cache->get('k', fn () => fail('built twice')), 'built');
same($other->get('k', fn () => fail('built twice')), 'built');
same($cache->get('k', fn () => 'again', INF), 'again');
same($other->getItem('k')->get(), 'again');
same($cache->delete('k'), true);
same($other->hasItem('k'), false);
same($cache->get('k', $build), 'built');
done('get with a callback');

$objects = ['int' => 7, 'float' => 0.5, 'true' => true, 'false' => false, 'null' => null, 'array' => ['a' => [1, 'b']], 'bytes' => "\0\r\n\xff"];
foreach ($objects as $name => $value) {
    same($cache->save($cache->getItem($name)->set($value)), true);
    $item = $other->getItem($name);
    same([$item->isHit(), $item->get()], [true, $value]);
}
same($cache->getItem('none')->isHit(), false);
done('types');

// A commit is one setMulti, and getItems one getMulti.
for ($i = 0; $i < 100; $i++) {
    same($cache->saveDeferred($cache->getItem("many$i")->set("value $i")->expiresAfter(50 + $i % 2)), true);
}
same($cache->commit(), true);
$keys = array_merge(array_map(fn ($i) => "many$i", range(0, 99)), array_map(fn ($i) => "absent$i", range(0, 9)));
$hits = 0;
foreach ($other->getItems($keys) as $name => $item) {
    $hits += $item->isHit();
    same($item->get(), $item->isHit() ? str_replace('many', 'value ', $name) : null);
}
same($hits, 100);
same($cache->deleteItems($keys), true);
foreach ($other->getItems($keys) as $item) {
    same($item->isHit(), false);
}
done('many items');

same($cache->save($cache->getItem('past')->set('x')->expiresAt(new DateTime('-1 minute'))), true);
same($other->getItem('past')->isHit(), false);
same($cache->save($cache->getItem('far')->set('x')->expiresAt(new DateTime('2037-01-01'))), true);
same($other->getItem('far')->get(), 'x');
done('expiry');

$big = str_repeat(implode('', array_map('chr', range(0, 255))), 900 * 4);
same($cache->save($cache->getItem('big')->set($big)), true);
same($other->getItem('big')->get() === $big, true);
done('big values');

$tagged = fn () => new TagAwareAdapter(new MemcachedAdapter(connect(), 'tagged', 100));
$writer = $tagged();
same($writer->save($writer->getItem('post')->set('text')->tag(['author.1', 'posts'])), true);
same($writer->save($writer->getItem('page')->set('text')->tag('pages')), true);
same([$tagged()->getItem('post')->isHit(), $tagged()->getItem('page')->isHit()], [true, true]);
same($writer->invalidateTags(['author.1']), true);
same([$tagged()->getItem('post')->isHit(), $tagged()->getItem('page')->isHit()], [false, true]);
done('tags');

// A new version of the namespace, and what is outside of it stays.
same($cache->save($cache->getItem('kept')->set('x')), true);
same($cache->clear(), true);
same((new MemcachedAdapter(connect(), 'app', 100))->getItem('kept')->isHit(), false);
same($tagged()->getItem('page')->isHit(), true);
done('clear');

$visit = function (callable $use) {
    $handler = new MemcachedSessionHandler(connect(), ['prefix' => 'sf2s', 'ttl' => 100]);
    ini_set('session.use_cookies', '0');
    ini_set('session.use_strict_mode', '0');
    ini_set('session.cache_limiter', '');
    session_set_save_handler($handler, false);
    session_id('visitor');
    same(session_start(), true);
    $use();
};
for ($i = 0; $i < 3; $i++) {
    $visit(function () use ($i) {
        same($_SESSION['visits'] ?? 0, $i);
        $_SESSION['visits'] = $i + 1;
        same(session_write_close(), true);
    });
}
// Unchanged, it is touched.
$visit(fn () => same(session_write_close(), true));
same(connect()->get('sf2svisitor'), 'visits|i:3;');
$visit(fn () => same(session_destroy(), true));
same(connect()->get('sf2svisitor'), false);
done('sessions');
