# Sets the keys that it reads, one a line, with Cache::Memcached, which spreads them itself.
# Arguments: cache_memcached VALUE PREFIX HOST:PORT:WEIGHT...
use strict;
use warnings;
use Cache::Memcached;

my ($library, $value, $prefix, @servers) = @ARGV;
my $client = Cache::Memcached->new({
    servers => [map { my ($host, $port, $weight) = split /:/; ["$host:$port", $weight] } @servers],
});
while (my $key = <STDIN>) {
    chomp $key;
    $client->set($key, $value) or die "$key is not stored";
}
