# frozen_string_literal: true

# Rails' sessions in its cache through HOST PORT, by the calls of ActionDispatch::Session::CacheStore. Without further arguments, begins
# sessions and prints their ids; with ids, each is read, changed as soon as the server lets it, and read again.

require 'logger'
require 'securerandom'
require 'active_support'
require 'active_support/cache'
require 'active_support/cache/mem_cache_store'
require 'active_support/notifications'

host, port, *ids = ARGV
$cache = ActiveSupport::Cache::MemCacheStore.new("#{host}:#{port}", socket_timeout: 15)

def until_true
  ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
  until yield
    abort 'not within a minute' if Process.clock_gettime(Process::CLOCK_MONOTONIC) > ends
    sleep 0.1
  end
end

def write(id, session)
  until_true { $cache.write("_session_id:2::#{id}", session, expires_in: 1800) }
end

def must_be(id, session)
  found = $cache.read("_session_id:2::#{id}")
  abort "#{id} has #{found.inspect}" unless found == session
end

20.times do |n|
  break unless ids.empty?

  id = SecureRandom.hex(16)
  write(id, { 'cart' => [n] })
  puts id
end
ids.each_with_index do |id, n|
  must_be(id, { 'cart' => [n] })
  write(id, { 'cart' => [n, 'paid'] })
  must_be(id, { 'cart' => [n, 'paid'] })
end
