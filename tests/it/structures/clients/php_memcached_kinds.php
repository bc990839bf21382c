<?php
// What users of php-memcached do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The
// first thing that is not as docs/structures.md says ends the run with a message and exit code 1.

error_reporting(E_ALL);
ini_set('display_errors', 'stderr');
[, $host, $port, $otherPort] = $argv;

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

function refused(mixed $got, Memcached $client): void
{
    same([$got, $client->getResultCode()], [false, Memcached::RES_CLIENT_ERROR]);
}

set_error_handler(fn ($number, $text) => fail("PHP says: $text"));

function connect(string $port): Memcached
{
    global $host;
    $client = new Memcached();
    $client->setOption(Memcached::OPT_POLL_TIMEOUT, 10000);
    $client->addServer($host, (int) $port);
    return $client;
}

[$client, $other] = [connect($port), connect($otherPort)];

// example: counter
$views = $client->increment('hits:page:7');
$total = (int) $client->get('hits:page:7');
// end
same([$views, $total, $other->increment('hits:page:7', 2), $other->get('hits:page:7')], [1, 1, 3, '3']);
// An int comes back as an int.
same([$client->set('hits:page:7', 40), $other->get('hits:page:7'), $other->decrement('hits:page:7')], [true, 40, 39]);
done('counter');

$address = '192.0.2.7';
// example: window
$requests = $client->increment("rate:$address");
$isTooMany = $requests > 100;
// end
same([$requests, $isTooMany, $other->increment("rate:$address"), $client->get("rate:$address")], [1, false, 2, '2']);
done('window');

$visitor = 'ann';
// example: unique window
$isNew = $client->add("online:blog:$visitor", '');
$visitors = (int) $client->get('online:blog');
// end
same([$isNew, $visitors, $other->add('online:blog:ann', ''), $other->add('online:blog:bob', '')], [true, 1, false, true]);
same($client->get('online:blog'), '2');
done('unique window');

$seen = [];
$handle = function (string $entry) use (&$seen): void {
    $seen[] = $entry;
};
$cursor = '0';
// example: log
$client->setOption(Memcached::OPT_COMPRESSION, false); // append needs it
$client->append('log:orders', "order 17 paid\n");

$answer = $client->get("log:orders@$cursor"); // $cursor is '0' at first
if ($answer !== false) { // false: the server did not answer
    [$cursor, $entries] = explode("\n", $answer, 2);
    foreach (explode("\n", $entries, -1) as $entry) {
        $handle($entry);
    }
}
// end
$other->setOption(Memcached::OPT_COMPRESSION, false);
same($other->append('log:orders', "order 18 paid\n"), true);
[$cursor, $entries] = explode("\n", $other->get("log:orders@$cursor"), 2);
same([$seen, $entries], [['order 17 paid'], "order 18 paid\n"]);
same($client->get('log:orders'), "order 17 paid\norder 18 paid\n");
done('log');

// example: list
$client->setOption(Memcached::OPT_COMPRESSION, false); // append needs it
$client->append('friends:ann', "+bob\n+cid\n");
$client->append('friends:ann', "-cid\n+dan\n");
$friends = explode("\n", (string) $client->get('friends:ann'), -1);
$isFriend = $client->get('friends:ann@bob') !== false;
// end
sort($friends);
same([$friends, $isFriend], [['bob', 'dan'], true]);
same($other->append('friends:ann', "-bob\n+bob\n-dan\n+jürgen\n"), true);
$friends = explode("\n", $client->get('friends:ann'), -1);
sort($friends);
same($friends, ['bob', 'jürgen']);
$asked = ['friends:ann@bob', 'friends:ann@dan', 'friends:ann@jürgen', 'friends:none'];
same($client->getMulti($asked), ['friends:ann@bob' => '1', 'friends:ann@jürgen' => '1']);
// Only `getMulti` takes a key that is not ASCII.
same([$client->get('friends:ann@jürgen'), $client->getResultCode()], [false, Memcached::RES_BAD_KEY_PROVIDED]);
same([$client->set('cart:7/jürgen', 'x'), $client->getResultCode()], [false, Memcached::RES_BAD_KEY_PROVIDED]);
refused($client->set('friends:ann', "+eve\n"), $client);
refused($client->append('friends:ann', "eve\n"), $client);
// The prefix of a client is a part of the key, and so of the rule's match.
$prefixed = connect($otherPort);
$prefixed->setOptions([Memcached::OPT_COMPRESSION => false, Memcached::OPT_PREFIX_KEY => 'app:']);
same([$prefixed->append('friends:ann', "+eve\n"), $prefixed->get('friends:ann')], [true, "eve\n"]);
same([$client->get('app:friends:ann@eve'), $prefixed->get('friends:ann@bob')], ['1', false]);
same([$other->delete('friends:ann'), $client->delete('friends:ann'), $client->get('friends:ann')], [true, false, false]);
$client->setOption(Memcached::OPT_COMPRESSION, true);
done('list');

// example: table
$client->set('cart:7/book', 2);
$client->set('cart:7/pen', 10);
$names = explode("\n", (string) $client->get('cart:7'), -1);
$cart = $client->getMulti(array_map(fn ($name) => "cart:7/$name", $names));
$client->delete('cart:7/pen');
// end
ksort($cart);
same($cart, ['cart:7/book' => 2, 'cart:7/pen' => 10]);
same([$other->get('cart:7'), $client->get('cart:7/pen')], ["book\n", false]);
// Values are those of the library: an array, compressed.
$large = ['of' => str_repeat('values ', 1000)];
same([$other->add('cart:7/book', 3), $client->add('cart:7/ink/red', $large), $other->get('cart:7/ink/red')], [false, true, $large]);
['value' => $value, 'cas' => $cas] = $client->get('cart:7/book', null, Memcached::GET_EXTENDED);
same([$client->cas($cas, 'cart:7/book', 7), $client->cas($cas, 'cart:7/book', 8)], [true, false]);
same([$other->increment('cart:7/book', 2), $other->touch('cart:7/book', 60), $client->set('cart:7/ink', 'x')], [9, true, true]);
same($other->append('cart:7/ink', 'y'), true);
same([$client->get('cart:7/ink'), $client->get('cart:7/book')], ['xy', 9]);
$names = explode("\n", $other->get('cart:7'), -1);
sort($names);
same($names, ['book', 'ink', 'ink/red']);
refused($client->set('cart:7', 1), $client);
same([$prefixed->set('cart:7/book', 5), $prefixed->get('cart:7'), $client->get('app:cart:7/book')], [true, "book\n", 5]);
same([$other->delete('cart:7'), $client->get('cart:7'), $client->get('cart:7/book'), $client->delete('cart:7')], [true, false, false, false]);
done('table');

$report = function () use ($other, &$seen): void {
    $seen[] = $other->add('lock:report', 'host-2', 30);
};
// example: lock
if ($client->add('lock:report', 'host-1', 30)) {
    try {
        $report();
    } finally {
        $client->delete('lock:report');
    }
}
// end
same([end($seen), $other->add('lock:report', 'host-2', 30)], [false, true]);
same([$client->delete('lock:report'), $client->get('lock:report'), $other->delete('lock:report')], [false, 'host-2', true]);
same($client->add('lock:report', 'host-1'), true);
refused($client->set('lock:report', 'host-1'), $client);
same($client->delete('lock:report'), true);
done('lock');
