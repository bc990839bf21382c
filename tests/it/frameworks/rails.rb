# frozen_string_literal: true

# One process of a Rails application: Rails.cache.fetch of one key through HOST PORT for SECONDS, with an expiry of 4 seconds, and
# RACE_CONDITION_TTL if it is given. Prints when each build begins and ends, in nanoseconds of the monotonic clock.

require 'logger'
require 'active_support'
require 'active_support/cache'
require 'active_support/cache/mem_cache_store'
require 'active_support/notifications'

host, port, seconds, race_condition_ttl = ARGV
$stdout.sync = true

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

cache = ActiveSupport::Cache::MemCacheStore.new("#{host}:#{port}", socket_timeout: 15)
ends = now + seconds.to_i * 1_000_000_000
while now < ends
  value = cache.fetch('app:page', expires_in: 4, race_condition_ttl: race_condition_ttl&.to_i) do
    puts "begin #{now}"
    sleep 0.2
    puts "end #{now}"
    'page'
  end
  abort "got #{value.inspect}" unless value == 'page'
  sleep 0.02
end
