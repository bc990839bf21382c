<?php
// PHP's own sessions through HOST PORT, with their lock. Without further arguments, begins sessions and prints their ids; with ids,
// each is read and changed as soon as the server lets it be locked, and read again.

error_reporting(E_ALL & ~E_WARNING);
ini_set('display_errors', 'stderr');
[, $host, $port] = $argv;
$ids = array_slice($argv, 3);
foreach (['session.save_handler' => 'memcached', 'session.save_path' => "$host:$port", 'session.use_cookies' => '0',
    'session.use_strict_mode' => '0', 'session.cache_limiter' => '', 'memcached.sess_lock_retries' => '10'] as $name => $value) {
    ini_set($name, $value);
}
ob_start();

function until_true(callable $command): void
{
    for ($ends = hrtime(true) + 60e9; !$command(); usleep(100_000)) {
        if (hrtime(true) > $ends) {
            fwrite(STDERR, 'not within a minute');
            exit(1);
        }
    }
}

function begin(string $id): bool
{
    session_id($id); // PHP forgets it when it could not begin
    try {
        return session_start();
    } catch (Error) { // "Failed to create session ID": it cannot be locked
        return false;
    }
}

function visit(string $id, callable $use): void
{
    until_true(fn () => begin($id));
    $use();
    error_clear_last();
    session_write_close(); // true also if it has written nothing: then there is a warning
    if (error_get_last()) {
        visit($id, $use);
    }
}

function same(mixed $got, mixed $expected): void
{
    if ($got !== $expected) {
        fwrite(STDERR, 'got ' . var_export($got, true) . ', expected ' . var_export($expected, true));
        exit(1);
    }
}

for ($n = 0; $n < ($ids ? 0 : 20); $n++) {
    visit("visitor$n", fn () => $_SESSION['cart'] = [$n]);
    echo "visitor$n\n";
}
foreach ($ids as $n => $id) {
    visit($id, function () use ($n) {
        same($_SESSION['cart'] ?? null, [$n]);
    });
    visit($id, fn () => $_SESSION['cart'] = [$n, 'paid']);
    visit($id, fn () => same($_SESSION['cart'] ?? null, [$n, 'paid']));
}
