# frozen_string_literal: true

# Several Dalli clients read a key while it expires, through HOST PORT, with keys prefixed with PREFIX: exactly one of them
# rebuilds it, and the others receive the old value meanwhile. Dalli's meta mode does not use W. Prints a line "OK ..." per
# method of reading. The first failure ends the run with a message and exit code 1.

require 'dalli'
require 'logger'

CLIENTS = 8
REBUILD = 0.3 # seconds

host, port, @prefix = ARGV
Dalli.logger = Logger.new($stderr, level: Logger::WARN)
@connect = -> { Dalli::Client.new("#{host}:#{port}", protocol: :meta, socket_timeout: 10) }

# Each client reads the key until it has the new value. `read` takes a client, the key and a function that builds the value.
def rebuilt_once(key, &read)
  key = @prefix + key
  @connect.call.set(key, 'old', 1)
  # An upper limit: it may be served for 30 s after its expiry.
  give_up = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
  builds = Queue.new
  seen = Array.new(CLIENTS) do
    Thread.new do
      client = @connect.call
      build = lambda do
        builds << Thread.current
        sleep REBUILD
        'new'
      end
      values = []
      until values.last == 'new'
        abort "#{key} has not been rebuilt" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > give_up
        values << read.call(client, key, build)
        sleep 0.01
      end
      client.close
      values
    end
  end.map(&:value)
  abort "#{key} was rebuilt #{builds.size} times" unless builds.size == 1
  abort "#{key} was #{seen.flatten.uniq}" unless seen.flatten.uniq.sort == %w[new old]
end

def done(what)
  puts "OK #{what}"
end

rebuilt_once('get') do |client, key, build|
  client.get(key) || build.call.tap { |value| client.set(key, value, 100) }
end
done 'get and set'

rebuilt_once('fetch') { |client, key, build| client.fetch(key, 100) { build.call } }
done 'fetch'

rebuilt_once('multi') do |client, key, build|
  client.get_multi(key, "#{key}:other").fetch(key) { build.call.tap { |value| client.set(key, value, 100) } }
end
done 'multi-get and set'
