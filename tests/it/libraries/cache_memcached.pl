# What users of Perl's Cache::Memcached do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK ..." per part.
# The first difference from memcached ends the run with a message and exit code 1.

use strict;
use warnings FATAL => 'all';
use Cache::Memcached;
use Carp qw(confess);
use Time::HiRes qw(time);

$| = 1;
my ($host, $port, $prefix) = @ARGV;
my $client = Cache::Memcached->new({ servers => ["$host:$port"], select_timeout => 5, connect_timeout => 10 });

# As text: a hash by its sorted keys.
sub text {
    my ($value) = @_;
    return 'undef' unless defined $value;
    return '[' . join(',', map { text($_) } @$value) . ']' if ref $value eq 'ARRAY';
    return '{' . join(',', map { "$_=" . text($value->{$_}) } sort keys %$value) . '}' if ref $value eq 'HASH';
    return $value;
}

sub same($$) {
    my ($got, $expected) = map { text($_) } @_;
    confess sprintf 'got %.200s, expected %.200s', $got, $expected if $got ne $expected;
}

sub k { return $prefix . $_[0] }
sub done { print "OK $_[0]\n" }

# It waits for END or ERROR, or five seconds.
sub at_once {
    my ($what, $ask) = @_;
    my $began = time;
    my $said = $ask->();
    my $took = time - $began;
    confess sprintf '%s has taken %.1f s', $what, $took if $took > 4;
    return $said;
}

same($client->set(k('a'), '1', 100), 1);
same($client->get(k('a')), '1');
same($client->get(k('none')), undef);
same($client->set(k('empty'), ''), 1);
same($client->get(k('empty')), '');
done('set and get');

same($client->set(k('object'), { a => [1, 'b'], c => {} }), 1);
same($client->get(k('object')), { a => [1, 'b'], c => {} });
same($client->set(k('bytes'), "\x00\r\n\xff"), 1);
same($client->get(k('bytes')), "\x00\r\n\xff");
done('objects');

my %many = map { k("many$_") => "value $_" } 0 .. 99;
$client->set($_, $many{$_}, 100) foreach keys %many;
same($client->get_multi(keys %many, map { k("absent$_") } 0 .. 9), \%many);
done('multi-get');

same($client->set(k('c'), '1'), 1);
same($client->incr(k('c'), 5), 6);
same($client->decr(k('c')), 5);
done('counters');

same($client->add(k('a'), 'x'), '');
same($client->add(k('new'), 'x'), 1);
same($client->replace(k('a'), 'y'), 1);
same($client->append(k('a'), 'z'), 1);
same($client->prepend(k('a'), 'x'), 1);
same($client->get(k('a')), 'xyz');
done('add, replace, append and prepend');

same($client->delete(k('a')), 1);
same($client->delete(k('a')), '');
same($client->get(k('a')), undef);
done('delete');

same($client->delete(k('new'), 5), 1);
same($client->get(k('new')), undef);
done('delete with a time');

my $stats = at_once('stats', sub { $client->stats });
confess text($stats) unless $stats->{hosts}{"$host:$port"}{misc}{pid} > 0;
done('stats');

at_once("stats $_", sub { $client->stats([$_]) }) foreach 'sizes', 'malloc';
foreach my $kind ('items', 'slabs', 'settings', 'maps') {
    my $said = at_once("stats $kind", sub { $client->stats([$kind]) });
    confess "stats $kind: " . text($said) unless exists $said->{hosts}{"$host:$port"};
}
done('kinds of stats');

foreach my $kind ('cachedump 1 10', 'detail dump') {
    my $said = at_once("stats $kind", sub { $client->stats([$kind]) });
    confess "stats $kind: " . text($said) unless defined $said->{hosts}{"$host:$port"}{$kind};
}
done('dumps');

same($client->flush_all, 1);
same($client->get(k('c')), undef);
done('flush_all');

$client->disconnect_all;
done('disconnect_all');
