# Sets the keys that it reads, one a line, with a client that spreads them itself.
# Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
require 'dalli'

_library, value, _prefix, *servers = ARGV
client = Dalli::Client.new(servers, raw: true, failover: false)
$stdin.each_line(chomp: true) { |key| client.set(key, value, nil, raw: true) or abort "#{key} is not stored" }
