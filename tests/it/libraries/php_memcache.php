<?php
// What users of PHP's older Memcache (php-memcache) do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK
// ..." per part. The first difference from memcached ends the run with a message and exit code 1.

error_reporting(E_ALL & ~E_DEPRECATED); // it makes properties in a way that PHP deprecates
ini_set('display_errors', 'stderr');
[, $host, $port, $prefix] = $argv;

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

$notice = null;
set_error_handler(function ($number, $text) use (&$notice): bool {
    if (error_reporting() & $number) {
        $notice === false ? $notice = $text : fail("PHP says: $text");
    }
    return true;
});

function connect(): Memcache
{
    global $host, $port;
    $client = new Memcache();
    same($client->addServer($host, (int) $port, false, 1, 10), true);
    return $client;
}

/**
 * What PHP says in a notice while this is done, and that it gives false. To Memcache an error of any kind means that the server
 * has failed, and it leaves it alone for a while: so this is done by a client of its own.
 */
function refused(callable $f): string
{
    global $notice;
    $notice = false;
    same($f(connect()), false);
    [$said, $notice] = [$notice, null];
    return (string) $said;
}

$client = connect();
$k = fn (string $name): string => $prefix . $name;

same($client->set($k('a'), '1', 0, 100), true);
same($client->get($k('a')), '1');
same($client->get($k('none')), false);
same($client->set($k('empty'), ''), true);
same($client->get($k('empty')), '');
done('set and get');

foreach (['int' => 7, 'float' => 0.5, 'true' => true, 'false' => false, 'array' => ['a' => [1, 'b', null]]] as $name => $value) {
    same($client->set($k($name), $value), true);
    same($client->get($k($name)), $value);
}
$flags = null;
same($client->get($k('array'), $flags), ['a' => [1, 'b', null]]);
same($flags, 1);
done('types');

$many = [];
for ($i = 0; $i < 100; $i++) {
    $many[$k("many$i")] = "value $i";
}
$absent = array_map(fn ($i) => $k("absent$i"), range(0, 9));
same($client->set($many, null, 0, 100), true);
$got = $client->get(array_merge(array_keys($many), $absent));
ksort($got);
$expected = $many;
ksort($expected);
same($got, $expected);
same($client->delete(array_keys($many)), true);
same($client->get(array_keys($many)), []);
done('multi-get');

same($client->set($k('c'), '1'), true);
$cas = null;
same($client->get($k('c'), $flags, $cas), '1');
same($client->cas($k('c'), '2', 0, 0, $cas), true);
same($client->cas($k('c'), '3', 0, 0, $cas), false);
same($client->get($k('c')), '2');
same(str_contains(refused(fn ($other) => $other->cas($k('absent'), '3', 0, 0, $cas)), 'NOT_FOUND'), true);
done('cas');

same($client->set($k('n'), 10), true);
same($client->increment($k('n'), 5), 15);
same($client->decrement($k('n'), 20), 0);
same($client->increment($k('n')), 1);
same($client->get($k('n')), 1);
same($client->set($k('wrap'), '18446744073709551615'), true);
same($client->increment($k('wrap')), 0);
same($client->increment($k('absent')), false);
same($client->set($k('word'), 'x'), true);
$said = refused(fn ($other) => $other->increment($k('word')));
same(str_contains($said, 'cannot increment or decrement non-numeric value'), true);
same($client->get($k('word')), 'x');
done('counters');

same($client->add($k('added'), '1'), true);
same($client->add($k('added'), '2'), false);
same($client->replace($k('added'), '3'), true);
same($client->replace($k('absent'), '3'), false);
same($client->append($k('added'), '>'), true);
same($client->prepend($k('added'), '<'), true);
same($client->append($k('absent'), '>'), false);
same($client->get($k('added')), '<3>');
// Many clients fill a cache with add after a miss.
same($client->get($k('filled')), false);
same($client->add($k('filled'), 'v'), true);
same($client->get($k('filled')), 'v');
done('add, replace, append, prepend');

same($client->set($k('gone'), 'x', 0, -1), true);
same($client->get($k('gone')), false);
same($client->set($k('far'), 'x', 0, 2147483647), true);
same($client->get($k('far')), 'x');
same($client->set($k('past'), 'x', 0, 1000000000), true);
same($client->get($k('past')), false);
done('expiry');

same($client->delete($k('added')), true);
same($client->delete($k('added')), false);
same($client->get($k('added')), false);
done('delete');

// By default, compression begins at 20,000 bytes; these are shorter.
$big = random_bytes(900 * 1024);
same($client->set($k('big'), $big), true);
same($client->get($k('big')) === $big, true);
same(count($client->get([$k('big'), $k('int')])), 2);
$said = refused(fn ($other) => $other->set($k('big'), random_bytes(1800 * 1024)));
same(str_contains($said, 'object too large for cache'), true);
same($client->get($k('big')), false);
same($client->get($k('int')), 7);
done('big values');

same($client->set($k('z'), str_repeat('compress me ', 150000), MEMCACHE_COMPRESSED), true);
same($client->get($k('z')), str_repeat('compress me ', 150000));
done('compression');

same($client->set($k('ключ-鍵'), 'значение'), true);
same($client->get($k('ключ-鍵')), 'значение');
same($client->get([$k('ключ-鍵'), $k('é')]), [$k('ключ-鍵') => 'значение']);
same($client->delete($k('ключ-鍵')), true);
done('non-ASCII');

ini_set('session.save_handler', 'memcache');
ini_set('session.save_path', "tcp://$host:$port?timeout=10");
ini_set('session.use_cookies', '0');
ini_set('session.use_strict_mode', '0');
ini_set('session.cache_limiter', '');
ini_set('memcache.session_redundancy', '1');
for ($visit = 1; $visit <= 3; $visit++) {
    session_id(bin2hex($k('visitor')));
    same(session_start(), true);
    same($_SESSION['visits'] ?? 0, $visit - 1);
    $_SESSION['visits'] = $visit;
    same(session_write_close(), true);
}
session_start();
same(session_destroy(), true);
session_start();
same($_SESSION, []);
session_write_close();
done('sessions');

same(str_starts_with($client->getVersion(), '1.6.'), true);
$stats = $client->getStats();
same($stats['version'], $client->getVersion());
same($stats['pid'] > 0, true);
same($client->flush(), true);
same($client->get($k('far')), false);
done('version, stats and flush');

// An existing client notices one command late, so this is the last part, with a new client.
same($client->set($k('app1:x'), 'theirs'), true);
same(ini_set('memcache.prefix_static_key', $k('app1:')), '');
$app = connect();
same($app->get('x'), 'theirs');
same($app->set('y', 'mine'), true);
same($app->get(['x', 'y', 'z']), [$k('app1:x') => 'theirs', $k('app1:y') => 'mine']);
same($app->delete('x'), true);
same($app->get('x'), false);
same($client->close(), true);
done('prefix_static_key');
