<?php
// What users of php-memcached do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The
// first thing that is not as docs/structures.md says ends the run with a message and exit code 1. The page shows the examples.

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
done('lock');
