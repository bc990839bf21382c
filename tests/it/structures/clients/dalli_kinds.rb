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

# Without raw, the owner is Ruby's own serialization.
same client.add('lock:report', 'host-1', 30, raw: true) ? 1 : 0, 1
same other.add('lock:report', 'host-2', 30, raw: true) ? 1 : 0, 0
same [other.get('lock:report'), other.delete('lock:report'), client.delete('lock:report')], ['host-1', false, true]
same other.add('lock:report', 'host-2', 30, raw: true) ? 1 : 0, 1
same other.delete('lock:report'), true
done 'lock'
