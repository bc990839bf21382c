<?php
// What users of PHP's Memcached (php-memcached, libmemcached) do, against HOST PORT, with keys prefixed with PREFIX, in the
// binary protocol if a fourth argument "binary" follows. Prints a line "OK ..." per part. The first difference from memcached
// ends the run with a message and exit code 1.

error_reporting(E_ALL);
ini_set('display_errors', 'stderr');
[, $host, $port, $prefix] = $argv;
$binary = ($argv[4] ?? null) === 'binary';

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

set_error_handler(fn ($number, $text) => fail("PHP says: $text"));

/** @param array<int, mixed> $options */
function connect(array $options = []): Memcached
{
    global $host, $port, $binary;
    $client = new Memcached();
    $client->setOption(Memcached::OPT_POLL_TIMEOUT, 10000);
    $client->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    same($client->setOptions($options), true);
    $client->addServer($host, (int) $port);
    return $client;
}

$client = connect();
$k = fn (string $name): string => $prefix . $name;

same($client->set($k('a'), '1', 100), true);
same($client->get($k('a')), '1');
same($client->get($k('none')), false);
same($client->getResultCode(), Memcached::RES_NOTFOUND);
same($client->set($k('empty'), ''), true);
same($client->get($k('empty')), '');
same($client->getResultCode(), Memcached::RES_SUCCESS);
$rebuild = function ($cache, string $key, &$value, &$expires): bool {
    [$value, $expires] = ['rebuilt', 60];
    return true;
};
same($client->get($k('read-through'), $rebuild), 'rebuilt');
same($client->get($k('read-through')), 'rebuilt');
done('set and get');

$object = (object) ['name' => 'x', 'list' => [1, null]];
foreach (['int' => 7, 'float' => 0.5, 'true' => true, 'false' => false, 'null' => null, 'array' => ['a' => [1, 'b']]] as $name => $value) {
    same($client->set($k($name), $value), true);
    same($client->get($k($name)), $value);
    same($client->getResultCode(), Memcached::RES_SUCCESS);
}
same($client->set($k('object'), $object), true);
same($client->get($k('object')) == $object, true);
done('types');

$many = [];
for ($i = 0; $i < 100; $i++) {
    $many[$k("many$i")] = "value $i";
}
$absent = array_map(fn ($i) => $k("absent$i"), range(0, 9));
same($client->setMulti($many, 100), true);
$got = $client->getMulti(array_merge(array_keys($many), $absent));
ksort($got);
$expected = $many;
ksort($expected);
same($got, $expected);
same($client->getMulti([$k('many2'), $k('absent1'), $k('many1')], Memcached::GET_PRESERVE_ORDER),
    [$k('many2') => 'value 2', $k('absent1') => null, $k('many1') => 'value 1']);
same($client->getDelayed([$k('many3'), $k('absent1')]), true);
$fetched = $client->fetchAll();
same(count($fetched), 1);
// The binary protocol always has a CAS and flags.
same(array_slice($fetched[0], 0, 2), ['key' => $k('many3'), 'value' => 'value 3']);
same($client->deleteMulti(array_keys($many)), array_fill_keys(array_keys($many), true));
same($client->getMulti(array_keys($many)), []);
done('multi-get');

same($client->set($k('c'), '1'), true);
$seen = $client->get($k('c'), null, Memcached::GET_EXTENDED);
same($seen['value'], '1');
same($client->cas($seen['cas'], $k('c'), '2'), true);
same($client->cas($seen['cas'], $k('c'), '3'), false);
same($client->getResultCode(), Memcached::RES_DATA_EXISTS);
same($client->get($k('c')), '2');
same($client->cas($seen['cas'], $k('absent'), '3'), false);
same($client->getResultCode(), Memcached::RES_NOTFOUND);
$all = $client->getMulti([$k('c'), $k('absent')], Memcached::GET_EXTENDED);
same(array_keys($all), [$k('c')]);
same($client->cas($all[$k('c')]['cas'], $k('c'), '4'), true);
done('cas');

same($client->set($k('n'), 10), true);
same($client->increment($k('n'), 5), 15);
same($client->decrement($k('n'), 20), 0);
same($client->increment($k('n')), 1);
same($client->get($k('n')), 1);
same($client->set($k('wrap'), '18446744073709551615'), true);
same($client->increment($k('wrap')), 0);
same($client->increment($k('absent')), false);
same($client->getResultCode(), Memcached::RES_NOTFOUND);
same($client->set($k('word'), 'x'), true);
same($client->increment($k('word')), false);
same($client->get($k('word')), 'x');
done('counters');

// Nothing can be appended to a value that may be compressed.
$plain = connect([Memcached::OPT_COMPRESSION => false]);
same($plain->add($k('added'), '1'), true);
same($plain->add($k('added'), '2'), false);
same($plain->getResultCode(), $binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED);
same($plain->replace($k('added'), '3'), true);
same($plain->replace($k('absent'), '3'), false);
same($plain->append($k('added'), '>'), true);
same($plain->prepend($k('added'), '<'), true);
same($plain->append($k('absent'), '>'), false);
same($client->get($k('added')), '<3>');
// Many clients fill a cache with add after a miss.
same($client->get($k('filled')), false);
same($client->add($k('filled'), 'v'), true);
same($client->get($k('filled')), 'v');
done('add, replace, append, prepend');

same($client->touch($k('a'), 100), true);
same($client->touch($k('absent'), 100), false);
same($client->getResultCode(), Memcached::RES_NOTFOUND);
same($client->get($k('a')), '1');
done('touch');

same($client->set($k('gone'), 'x', 100), true);
same($client->touch($k('gone'), 1000000000), true);
same($client->get($k('gone')), false);
// In the binary protocol a time has no sign.
same($client->set($k('gone'), 'x', $binary ? 1000000000 : -1), true);
same($client->get($k('gone')), false);
same($client->set($k('far'), 'x', 2147483647), true);
same($client->get($k('far')), 'x');
same($client->set($k('past'), 'x', 1000000000), true);
same($client->get($k('past')), false);
done('expiry');

same($client->delete($k('added')), true);
same($client->delete($k('added')), false);
same($client->getResultCode(), Memcached::RES_NOTFOUND);
same($client->get($k('added')), false);
done('delete');

$big = str_repeat(implode('', array_map('chr', range(0, 255))), 900 * 4);
same($plain->set($k('big'), $big), true);
same($plain->get($k('big')) === $big, true);
same(count($plain->getMulti([$k('big'), $k('int')])), 2);
same($plain->set($k('big'), $big . $big), false);
same($plain->getResultCode() !== Memcached::RES_SUCCESS, true);
same($plain->get($k('big')), false);
same($plain->get($k('int')), 7);
done('big values');

// Compression is on by default.
same($client->set($k('z'), $big . $big), true);
same($client->get($k('z')) === $big . $big, true);
same(strlen($client->get($k('z'))), 1843200);
done('compression');

// It does not send such keys in a text protocol, so users encode them.
same($client->set($k('ключ-鍵'), 'значение'), $binary);
same($client->getResultCode(), $binary ? Memcached::RES_SUCCESS : Memcached::RES_BAD_KEY_PROVIDED);
same($client->get($k('ключ-鍵')), $binary ? 'значение' : false);
$encoded = $k(rawurlencode('ключ-鍵'));
same($client->set($encoded, 'значение'), true);
same($client->getMulti([$encoded, $k('%20')]), [$encoded => 'значение']);
same($client->delete($encoded), true);
done('non-ASCII');

$app = connect([Memcached::OPT_PREFIX_KEY => $prefix . 'app1:']);
same($app->set('x', 'mine'), true);
same($app->get('x'), 'mine');
same($app->getMulti(['x', 'y']), ['x' => 'mine']);
same($app->increment('none'), false);
same($app->delete('y'), false);
same($client->get($k('app1:x')), 'mine');
done('OPT_PREFIX_KEY');

// A get on the same connection reads what the noreply commands did.
$silent = connect([Memcached::OPT_NOREPLY => true, Memcached::OPT_TCP_NODELAY => true]);
for ($i = 0; $i < 20; $i++) {
    $silent->set($k('s'), "$i");
    same($silent->get($k('s')), "$i");
}
$silent->delete($k('s'));
same($silent->get($k('s')), false);
$buffered = connect([Memcached::OPT_BUFFER_WRITES => true, Memcached::OPT_NO_BLOCK => true]);
for ($i = 0; $i < 100; $i++) {
    $buffered->set($k("b$i"), "$i");
}
same($buffered->get($k('b99')), '99');
same($client->get($k('b0')), '0');
done('noreply and buffered writes');

// PHP's own sessions: sess_binary_protocol and locking are on by default.
ini_set('session.save_handler', 'memcached');
ini_set('session.save_path', "$host:$port");
ini_set('session.use_cookies', '0');
ini_set('session.use_strict_mode', '0');
ini_set('session.cache_limiter', '');
ini_set('memcached.sess_binary_protocol', $binary ? '1' : '0');
ini_set('memcached.sess_prefix', $k('sess.'));
for ($visit = 1; $visit <= 3; $visit++) {
    session_id('visitor');
    same(session_start(), true);
    same($_SESSION['visits'] ?? 0, $visit - 1);
    $_SESSION['visits'] = $visit;
    same(session_write_close(), true);
}
same($client->get($k('sess.visitor')), 'visits|i:3;');
// Several processes use a session at once: each waits for its lock, so no visit is lost.
$visits = <<<'PHP'
    for ($visit = 0; $visit < 5; $visit++) {
        session_id('visitor');
        if (!session_start()) exit(1);
        $_SESSION['visits']++;
        usleep(1000);
        if (!session_write_close()) exit(1);
    }
    PHP;
$settings = ['memcached.sess_lock_wait_min=5', 'memcached.sess_lock_wait_max=20', 'memcached.sess_lock_retries=1000'];
foreach (['session.save_handler', 'session.save_path', 'session.use_cookies', 'session.use_strict_mode', 'session.cache_limiter',
    'memcached.sess_binary_protocol', 'memcached.sess_prefix'] as $setting) {
    $settings[] = "$setting=\"" . ini_get($setting) . '"';
}
$command = [PHP_BINARY];
foreach ($settings as $setting) {
    array_push($command, '-d', $setting);
}
$visitors = array_map(fn () => proc_open([...$command, '-r', $visits], [], $pipes), range(1, 3));
same(array_map('proc_close', $visitors), [0, 0, 0]);
same($client->get($k('sess.visitor')), 'visits|i:18;');
session_id('visitor');
session_start();
same(session_destroy(), true);
same($client->get($k('sess.visitor')), false);
done('sessions');

[$stats] = array_values($client->getStats());
[$version] = array_values($client->getVersion());
same(str_starts_with($version, '1.6.'), true);
same($stats['version'], $version);
same($stats['pid'] > 0, true);
same($client->flush(), true);
same($client->get($k('far')), false);
same($client->quit(), true);
done('version, stats and flush');
