# frozen_string_literal: true

# What users of Dalli do with structures, through the sidecars at HOST and two PORTs, in the protocol PROTOCOL (meta, or binary, which
# is Dalli 3's default). Prints a line "OK KIND" per kind; the first thing that is not as docs/structures.md says ends the run with a
# sentence and exit code 1.

require 'dalli'
require 'logger'

host, port, other_port, protocol = ARGV
Dalli.logger = Logger.new($stderr, level: Logger::WARN)
client, other = [port, other_port].map do |at|
  Dalli::Client.new("#{host}:#{at}", protocol: protocol.to_sym, socket_timeout: 10)
end

def same(got, expected)
  abort "got #{got.inspect[0, 200]}, expected #{expected.inspect[0, 200]}\n#{caller.join("\n")}" unless got == expected
end

def done(what)
  puts "OK #{what}"
end

# What a list or a table shows is bytes, so its encoding must be said.
def lines(shown)
  shown.dup.force_encoding('UTF-8').lines(chomp: true).sort
end

def refused
  yield
rescue Dalli::DalliError => e
  abort "#{e.class}: #{e.message}" if e.is_a?(Dalli::NetworkError)
else
  abort "it was not refused\n#{caller.join("\n")}"
end

same [client.incr('hits:page:7'), other.incr('hits:page:7', 2), client.get('hits:page:7')], [1, 3, '3']
client.set('hits:page:7', 40, 0, raw: true)
same [other.get('hits:page:7'), other.decr('hits:page:7')], ['40', 39]
done 'counter'

same [client.incr('rate:192.0.2.7'), other.incr('rate:192.0.2.7'), client.get('rate:192.0.2.7')], [1, 2, '2']
done 'window'

same client.add('online:blog:ann', '', 0, raw: true) ? 1 : 0, 1
same other.add('online:blog:ann', '', 0, raw: true) ? 1 : 0, 0
same other.add('online:blog:bob', '', 0, raw: true) ? 1 : 0, 1
same client.get('online:blog'), '2'
done 'unique window'

client.append('log:orders', "order 17 paid\n")
other.append('log:orders', "order 18 paid\n")
cursor, entries = client.get('log:orders@0').split("\n", 2)
same entries, "order 17 paid\norder 18 paid\n"
same other.get("log:orders@#{cursor}").split("\n", 2)[1], ''
done 'log'

# `append` sends text as it is, in either protocol.
client.append('friends:ann', "+bob\n+cid\n")
other.append('friends:ann', "-cid\n+dan\n+jürgen\n")
same lines(client.get('friends:ann')), %w[bob dan jürgen]
same client.get('friends:ann').encoding, Encoding::BINARY
same [other.get('friends:ann@bob'), other.get('friends:ann@cid'), other.get('friends:ann@jürgen')], ['1', nil, '1']
same other.get_multi('friends:ann@dan', 'friends:ann@cid', 'friends:ann@jürgen'), { 'friends:ann@dan' => '1', 'friends:ann@jürgen' => '1' }
refused { client.set('friends:ann', "+eve\n", 0, raw: true) }
refused { client.append('friends:ann', "eve\n") }
# The namespace of a client is a part of the key, and so of the rule's match.
spaced = Dalli::Client.new("#{host}:#{port}", protocol: protocol.to_sym, socket_timeout: 10, namespace: 'app')
spaced.append('friends:ann', "+eve\n")
same [spaced.get('friends:ann'), spaced.get('friends:ann@bob'), other.get('app:friends:ann@eve')], ["eve\n", nil, '1']
# Dalli shortens a key of more than 250 bytes, so an element that long cannot be asked for.
same client.get("friends:ann@#{'x' * 250}"), nil
same [other.delete('friends:ann'), client.delete('friends:ann'), client.get('friends:ann')], [true, false, nil]
done 'list'

# Values are those of the library: text, numbers without `raw`, and one that is compressed.
large = { 'of' => 'values ' * 1000 }
same [client.set('cart:7/book', 2), other.set('cart:7/ink/red', large)].count { |stored| stored }, 2
same client.add('cart:7/book', 3) ? 1 : 0, 0
client.set('cart:7/jürgen', '10', 60, raw: true)
names = lines(other.get('cart:7'))
same names, %w[book ink/red jürgen]
cart = client.get_multi(names.map { |name| "cart:7/#{name}" })
same cart, { 'cart:7/book' => 2, 'cart:7/ink/red' => large, 'cart:7/jürgen' => '10' }
same [other.incr('cart:7/jürgen', 5), other.delete('cart:7/ink/red'), client.get('cart:7/ink/red')], [15, true, nil]
same client.cas('cart:7/book') { |value| value + 5 } ? 1 : 0, 1
same [other.get('cart:7/book'), other.touch('cart:7/book', 60) ? 1 : 0, other.gat('cart:7/book', 60)], [7, 1, 7]
# A name that Dalli shortens is listed as it was sent.
long = "cart:7/#{'x' * 250}"
client.set(long, 3)
shortened = (lines(other.get('cart:7')) - names).first
same [shortened.length, other.get("cart:7/#{shortened}"), other.get(long), other.delete(long)], [242, 3, 3, true]
refused { client.set('cart:7', 1, 0, raw: true) }
same lines(client.get('cart:7')), %w[book jürgen]
spaced.set('cart:7/book', 5)
same [spaced.get('cart:7'), client.get('app:cart:7/book')], ["book\n", 5]
same [client.delete('cart:7'), other.get('cart:7'), other.get('cart:7/book'), other.delete('cart:7')], [true, nil, nil, false]
done 'table'

# Without raw, the owner is Ruby's own serialization.
same client.add('lock:report', 'host-1', 30, raw: true) ? 1 : 0, 1
same other.add('lock:report', 'host-2', 30, raw: true) ? 1 : 0, 0
same [other.get('lock:report'), other.delete('lock:report'), client.delete('lock:report')], ['host-1', false, true]
same other.add('lock:report', 'host-2', 30, raw: true) ? 1 : 0, 1
same other.delete('lock:report'), true
# It closes its connection when a command is refused, so it no longer has the lock.
same client.add('lock:report', 'host-1', 0, raw: true) ? 1 : 0, 1
refused { client.set('lock:report', 'host-1', 0, raw: true) }
same client.delete('lock:report'), false
done 'lock'
