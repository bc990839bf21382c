# frozen_string_literal: true

# What users of Dalli do, against HOST PORT, with keys that begin with PREFIX, in the protocol PROTOCOL (meta, or binary, which is
# Dalli 3's default). Prints a line "OK ..." a part; the first thing that is not as memcached would have it ends the run with a
# sentence and exit code 1.

require 'dalli'
require 'logger'

host, port, @prefix, protocol = ARGV
server = "#{host}:#{port}"
Dalli.logger = Logger.new($stderr, level: Logger::WARN)
connect = ->(options = {}) { Dalli::Client.new(server, { protocol: protocol.to_sym, socket_timeout: 10 }.merge(options)) }
client = connect.call

def same(got, expected)
  abort "got #{got.inspect[0, 200]}, expected #{expected.inspect[0, 200]}\n#{caller.join("\n")}" unless got == expected
end

def raises(error)
  got = yield
  abort "got #{got.inspect[0, 200]}, expected #{error}\n#{caller.join("\n")}"
rescue error => e
  e.message
end

def k(name)
  @prefix + name
end

# Waits until the key is gone.
def expires(client, key)
  200.times { client.get(key).nil? ? return : sleep(0.05) }
  abort "#{key} does not expire"
end

def done(what)
  puts "OK #{what}"
end


same client.set(k('a'), '1', 100).positive?, true
same client.get(k('a')), '1'
same client.get(k('none')), nil
same client.set(k('empty'), '').positive?, true
same client.get(k('empty')), ''
same client.fetch(k('fetched'), 100) { 'built' }, 'built'
same client.fetch(k('fetched'), 100) { abort 'built twice' }, 'built'
done 'set, get and fetch'

{ 'int' => 7, 'long' => 1 << 70, 'float' => 0.5, 'true' => true, 'symbol' => :s, 'hash' => { a: [1, nil, 'b'] } }.each do |name, value|
  client.set(k(name), value)
  same client.get(k(name)), value
end
bytes = (0..255).map(&:chr).join.b
client.set(k('raw'), bytes, 100, raw: true)
same client.get(k('raw')).b, bytes
done 'objects'

many = (0...100).to_h { |i| [k("many#{i}"), "value #{i}"] }
absent = (0...10).map { |i| k("absent#{i}") }
# The name before Dalli 3.1.
quiet = client.respond_to?(:quiet) ? :quiet : :multi
client.public_send(quiet) { many.each { |key, value| client.set(key, value, 100) } }
same client.get_multi(many.keys + absent), many
found = {}
client.get_multi(k('many1'), k('absent1'), k('many2')) { |key, value| found[key] = value }
same found, { k('many1') => 'value 1', k('many2') => 'value 2' }
same client.get_multi_cas(k('many3'), k('absent1')).transform_values(&:first), { k('many3') => 'value 3' }
client.public_send(quiet) { many.each_key { |key| client.delete(key) } }
same client.get_multi(many.keys), {}
done 'multi-get and quiet'

client.set(k('c'), '1')
same client.cas(k('c')) { |value| "#{value}2" }.positive?, true
same client.get(k('c')), '12'
lost = client.cas(k('c')) do |value|
  connect.call.set(k('c'), 'other')
  "#{value}3"
end
same lost, false
same client.get(k('c')), 'other'
same client.cas(k('absent')) { abort 'there is nothing' }, nil
value, cas = client.get_cas(k('c'))
same value, 'other'
same client.set_cas(k('c'), 'mine', cas).positive?, true
same client.replace_cas(k('c'), 'late', cas), false
same client.delete_cas(k('c'), cas), false
same client.get(k('c')), 'mine'
done 'cas'

same client.set(k('n'), 10, 100, raw: true).positive?, true
same client.incr(k('n'), 5), 15
same client.decr(k('n'), 20), 0
same client.incr(k('n')), 1
same client.get(k('n')).to_i, 1
client.set(k('wrap'), '18446744073709551615', 100, raw: true)
same client.incr(k('wrap')), 0
same client.incr(k('absent')), nil
same client.incr(k('initial'), 1, 100, 41), 41
same client.incr(k('initial'), 1, 100, 41), 42
done 'counters'

same client.add(k('added'), '1', 100, raw: true).positive?, true
same client.add(k('added'), '2', 100, raw: true), false
same client.replace(k('added'), '3', 100, raw: true).positive?, true
# The binary protocol's reply says that there is none, in meta it is not stored.
same client.replace(k('absent'), '3', 100, raw: true), protocol == 'binary' ? nil : false
same client.append(k('added'), '>'), true
same client.prepend(k('added'), '<'), true
same client.append(k('absent'), '>'), false
same client.get(k('added')), '<3>'
# Many clients fill a cache with add after a miss.
same client.get(k('filled')), nil
same client.add(k('filled'), 'v').positive?, true
same client.get(k('filled')), 'v'
done 'add, replace, append, prepend'

same client.touch(k('a'), 100), true
same client.touch(k('absent'), 100), nil
same client.gat(k('a'), 100), '1'
same client.gat(k('absent'), 100), nil
done 'touch and gat'

client.set(k('gone'), 'x', 100)
# In the binary protocol a time has no sign.
soon = protocol == 'binary' ? 1 : -1
client.touch(k('gone'), soon)
expires client, k('gone')
client.set(k('gone'), 'x', soon)
expires client, k('gone')
client.set(k('far'), 'x', 2_147_483_647 - Time.now.to_i)
same client.get(k('far')), 'x'
done 'expiry'

same client.delete(k('added')), true
same client.delete(k('added')), false
same client.get(k('added')), nil
done 'delete'

big = bytes * (900 * 4)
same client.set(k('big'), big, 100, raw: true).positive?, true
same client.get(k('big')).b, big
same client.get_multi(k('big'), k('int')).size, 2
said = raises(Dalli::ValueOverMaxSize) { client.set(k('big'), big * 2, 100, raw: true, compress: false) }
same said.include?('over max size'), true
# By default it does not send values larger than 1 MiB.
unlimited = connect.call(value_max_bytes: 1 << 22)
raises(Dalli::DalliError) { unlimited.set(k('big'), big * 2, 100, raw: true, compress: false) }
same unlimited.get(k('big')), nil
same unlimited.get(k('int')), 7
done 'big values'

# Compression is on by default.
client.set(k('z'), 'compress me ' * 150_000)
same client.get(k('z')), 'compress me ' * 150_000
done 'compression'

# In meta it sends such keys in base64.
same client.set(k('ключ-鍵'), 'значение').positive?, true
same client.get(k('ключ-鍵')), 'значение'
same client.get_multi(k('ключ-鍵'), k('é')), { k('ключ-鍵') => 'значение' }
same client.delete(k('ключ-鍵')), true
same client.get(k('with a space')), nil
same client.set(k('with a space'), 'x').positive?, true
same client.get(k('with a space')), 'x'
done 'non-ASCII'

app = connect.call(namespace: "#{@prefix}app1")
same app.set('x', 'mine').positive?, true
same app.get('x'), 'mine'
same app.get_multi('x', 'y'), { 'x' => 'mine' }
same client.get(k('app1:x')), 'mine'
done 'namespace'

stats = client.stats.fetch(server)
same stats['version'].start_with?('1.6.'), true
same stats['pid'].to_i.positive?, true
same client.version.fetch(server), stats['version']
same client.flush, [true]
same client.get(k('far')), nil
client.close
done 'version, stats and flush'
