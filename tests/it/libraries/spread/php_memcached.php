<?php
// Sets the keys that it reads, one a line, with a client that spreads them itself.
// Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
// LIBRARY is php_memcached, with :consistent or :compatible, or php_memcache, with :consistent for its default.
[, $library, $value, $prefix] = $argv;
$servers = array_map(fn ($server) => explode(':', $server), array_slice($argv, 4));
if (explode(':', $library)[0] == 'php_memcache') {
    if ($library == 'php_memcache') {
        ini_set('memcache.hash_strategy', 'standard');
    }
    $client = new Memcache();
    foreach ($servers as [$host, $port, $weight]) {
        $client->addServer($host, (int) $port, true, (int) $weight);
    }
} else {
    $client = new Memcached();
    if ($library == 'php_memcached:consistent') {
        $client->setOption(Memcached::OPT_DISTRIBUTION, Memcached::DISTRIBUTION_CONSISTENT);
    } elseif ($library == 'php_memcached:compatible') {
        $client->setOption(Memcached::OPT_LIBKETAMA_COMPATIBLE, true);
    }
    if ($prefix != '') {
        $client->setOption(Memcached::OPT_PREFIX_KEY, $prefix);
    }
    foreach ($servers as [$host, $port, $weight]) {
        $client->addServer($host, (int) $port, (int) $weight);
    }
}
foreach (explode("\n", rtrim(stream_get_contents(STDIN), "\n")) as $key) {
    if (!$client->set($key, $value)) {
        fwrite(STDERR, "$key is not stored\n");
        exit(1);
    }
}
