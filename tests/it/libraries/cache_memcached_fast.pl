# What users of Perl's Cache::Memcached::Fast do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK ..." per
# part. The first difference from memcached ends the run with a message and exit code 1.

use strict;
use warnings FATAL => 'all';
use utf8;
use Cache::Memcached::Fast;
use Carp qw(confess);
use Encode qw(encode_utf8);

$| = 1;
my ($host, $port, $prefix) = @ARGV;

sub connected {
    return Cache::Memcached::Fast->new({ servers => ["$host:$port"], io_timeout => 10, connect_timeout => 10, @_ });
}
my $client = connected();

# As text: a hash by its sorted keys.
sub text {
    my ($value) = @_;
    return 'undef' unless defined $value;
    return '[' . join(',', map { text($_) } @$value) . ']' if ref $value eq 'ARRAY';
    return '{' . join(',', map { "$_=" . text($value->{$_}) } sort keys %$value) . '}' if ref $value eq 'HASH';
    return $value;
}

# The prototype evaluates both in scalar context: some methods return an empty list for a miss.
sub same($$) {
    my ($got, $expected) = map { text($_) } @_;
    confess encode_utf8(sprintf 'got %.200s, expected %.200s', $got, $expected) if $got ne $expected;
}

sub k { return $prefix . $_[0] }
sub done { print "OK $_[0]\n" }

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
my @absent = map { k("absent$_") } 0 .. 9;
my $stored = $client->set_multi(map { [$_, $many{$_}, 100] } keys %many);
same($stored, { map { $_ => 1 } keys %many });
same($client->get_multi(keys %many, @absent), \%many);
same({ map { $_ => scalar @{ $client->gets_multi($_)->{$_} } } k('many1') }, { k('many1') => 2 });
same($client->delete_multi(keys %many), { map { $_ => 1 } keys %many });
same($client->get_multi(keys %many), {});
done('multi-get');

same($client->set(k('c'), '1'), 1);
my ($cas, $value) = @{ $client->gets(k('c')) };
same($value, '1');
same($client->cas(k('c'), $cas, '2'), 1);
same($client->cas(k('c'), $cas, '3'), '');
same($client->get(k('c')), '2');
same($client->cas(k('absent'), $cas, '3'), '');
same($client->gets(k('absent')), undef);
done('cas');

same($client->set(k('n'), 10), 1);
same($client->incr(k('n'), 5), 15);
same($client->decr(k('n'), 20), '0E0'); # zero, but true
same($client->incr(k('n')), 1);
same($client->set(k('wrap'), '18446744073709551615'), 1);
same($client->incr(k('wrap')), '0E0');
same($client->incr(k('absent')), '');
same($client->set_multi([k('n1'), 1], [k('n2'), 2]), { k('n1') => 1, k('n2') => 1 });
same($client->incr_multi([k('n1'), 10], [k('n2'), 10]), { k('n1') => 11, k('n2') => 12 });
same($client->set(k('word'), 'x'), 1);
same($client->incr(k('word')), undef);
same($client->get(k('word')), 'x');
done('counters');

same($client->add(k('added'), '1'), 1);
same($client->add(k('added'), '2'), '');
same($client->replace(k('added'), '3'), 1);
same($client->replace(k('absent'), '3'), '');
same($client->append(k('added'), '>'), 1);
same($client->prepend(k('added'), '<'), 1);
same($client->append(k('absent'), '>'), '');
same($client->get(k('added')), '<3>');
# Many clients fill a cache with add after a miss.
same($client->get(k('filled')), undef);
same($client->add(k('filled'), 'v'), 1);
same($client->get(k('filled')), 'v');
done('add, replace, append, prepend');

same($client->touch(k('a'), 100), 1);
same($client->touch(k('absent'), 100), '');
same($client->gat(100, k('a')), '1');
same($client->gat(100, k('absent')), undef);
same($client->gat_multi(100, k('a'), k('absent'), k('n1')), { k('a') => '1', k('n1') => 11 });
($cas, $value) = @{ $client->gats(100, k('a')) };
same($value, '1');
same($client->cas(k('a'), $cas, '2'), 1);
done('touch and gat');

same($client->set(k('gone'), 'x', 100), 1);
same($client->touch(k('gone'), -1), 1);
same($client->get(k('gone')), undef);
same($client->set(k('gone'), 'x', -1), 1);
same($client->get(k('gone')), undef);
same($client->set(k('far'), 'x', 2147483647), 1);
same($client->get(k('far')), 'x');
same($client->set(k('past'), 'x', 1000000000), 1);
same($client->get(k('past')), undef);
done('expiry');

same($client->delete(k('added')), 1);
same($client->delete(k('added')), '');
same($client->get(k('added')), undef);
done('delete');

my $big = join('', map { chr } 0 .. 255) x (900 * 4);
same($client->set(k('big'), $big), 1);
same($client->get(k('big')) eq $big, 1);
same(scalar keys %{ $client->get_multi(k('big'), k('a')) }, 2);
# By default it does not send values larger than 1 MiB.
same($client->set(k('big'), $big . $big), undef);
my $unlimited = connected(max_size => 1 << 22);
same($unlimited->set(k('big'), $big . $big), undef);
same($unlimited->get(k('big')), undef);
same($unlimited->get(k('a')), '2');
done('big values');

my $small = connected(compress_threshold => 10_000);
same($small->set(k('z'), 'compress me ' x 150_000), 1);
same($small->get(k('z')) eq 'compress me ' x 150_000, 1);
done('compression');

my $unicode = connected(utf8 => 1);
my $key = encode_utf8(k('ключ-鍵'));
same($unicode->set($key, 'значение'), 1);
same($unicode->get($key), 'значение');
same($unicode->get_multi($key, encode_utf8(k('é'))), { $key => 'значение' });
same($unicode->delete($key), 1);
done('non-ASCII');

my $app = connected(namespace => k('app1:'));
same($app->set('x', 'mine'), 1);
same($app->get('x'), 'mine');
same($app->get_multi('x', 'y'), { x => 'mine' });
same($client->get(k('app1:x')), 'mine');
done('namespace');

# In void context it sends noreply, and with nowait it does not wait; a get on the same connection reads what they did.
my $silent = connected(nowait => 1);
for my $i (0 .. 19) {
    $silent->set(k('s'), $i);
    same($silent->get(k('s')), $i);
}
$silent->incr(k('n1'), 5);
$silent->delete(k('s'));
same($silent->get(k('s')), undef);
$silent->nowait_push;
same($client->get(k('n1')), 16);
done('noreply and nowait');

my ($version) = values %{ $client->server_versions };
same($version =~ /^1\.6\./ ? 1 : 0, 1);
same($client->flush_all, { "$host:$port" => 1 });
same($client->get(k('far')), undef);
$client->disconnect_all;
done('version and flush');
