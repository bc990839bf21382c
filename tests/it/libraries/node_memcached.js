// What users of node's memcached do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK ..." per part. The
// first difference from memcached ends the run with a message and exit code 1.
'use strict';

const assert = require('node:assert');
const { promisify } = require('node:util');
const Memcached = require('memcached');

const [, , host, port, prefix] = process.argv;
const server = `${host}:${port}`;

// Its methods take callbacks; promisified, they are called as here.
function connected(options) {
  const client = new Memcached(server, { timeout: 10000, ...options });
  const methods = ['get', 'gets', 'getMulti', 'set', 'add', 'replace', 'append', 'prepend', 'cas', 'incr', 'decr', 'touch',
    'del', 'version', 'stats', 'flush', 'items'];
  const promised = methods.map((name) => [name, promisify(client[name]).bind(client)]);
  return { ...Object.fromEntries(promised), end: () => client.end() };
}

const client = connected();
const k = (name) => prefix + name;
const same = (got, expected) => assert.deepStrictEqual(got, expected);
const done = (what) => console.log('OK', what);
// The method's error, as text.
const refused = (promise) => promise.then((got) => assert.fail(`got ${got}, expected an error`), (e) => String(e.message ?? e));

async function main() {
  same(await client.set(k('a'), '1', 100), true);
  same(await client.get(k('a')), '1');
  same(await client.get(k('none')), undefined);
  same(await client.set(k('empty'), '', 0), true);
  same(await client.get(k('empty')), '');
  done('set and get');

  for (const [name, value] of Object.entries({ object: { a: [1, null, 'b'] }, int: 7, yes: true, no: false, text: 'ça' })) {
    same(await client.set(k(name), value, 100), true);
    same(await client.get(k(name)), value);
  }
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  same(await client.set(k('buffer'), bytes, 100), true);
  same(await client.get(k('buffer')), bytes);
  done('types');

  const many = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [k(`many${i}`), `value ${i}`]));
  const absent = Array.from({ length: 10 }, (_, i) => k(`absent${i}`));
  // Concurrently, on up to ten connections.
  const stored = await Promise.all(Object.entries(many).map(([key, value]) => client.set(key, value, 100)));
  same(stored, stored.map(() => true));
  same({ ...await client.getMulti([...Object.keys(many), ...absent]) }, many);
  const read = await Promise.all(Object.keys(many).map((key) => client.get(key)));
  same(read, Object.values(many));
  const deleted = await Promise.all(Object.keys(many).map((key) => client.del(key)));
  same(deleted, deleted.map(() => true));
  same({ ...await client.getMulti(Object.keys(many)) }, {});
  done('multi-get, and ten connections');

  same(await client.set(k('c'), '1', 100), true);
  const seen = await client.gets(k('c'));
  same(seen[k('c')], '1');
  same(await client.cas(k('c'), '2', seen.cas, 100), true);
  same(await client.cas(k('c'), '3', seen.cas, 100), false);
  same(await client.get(k('c')), '2');
  same(await client.gets(k('absent')), undefined);
  done('cas');

  same(await client.set(k('n'), 10, 100), true);
  same(await client.incr(k('n'), 5), 15);
  same(await client.decr(k('n'), 20), 0);
  same(await client.incr(k('n'), 1), 1);
  same(await client.get(k('n')), 1);
  same(await client.set(k('wrap'), '18446744073709551615', 100), true);
  same(await client.incr(k('wrap'), 1), 0);
  same(await client.incr(k('absent'), 1), false);
  same(await client.set(k('word'), 'x', 100), true);
  assert.match(await refused(client.incr(k('word'), 1)), /cannot increment or decrement non-numeric value/);
  same(await client.get(k('word')), 'x');
  done('counters');

  same(await client.add(k('added'), '1', 100), true);
  assert.match(await refused(client.add(k('added'), '2', 100)), /not stored/);
  same(await client.replace(k('added'), '3', 100), true);
  assert.match(await refused(client.replace(k('absent'), '3', 100)), /not stored/);
  same(await client.append(k('added'), '>'), true);
  same(await client.prepend(k('added'), '<'), true);
  assert.match(await refused(client.append(k('absent'), '>')), /not stored/);
  same(await client.get(k('added')), '<3>');
  // Many clients fill a cache with add after a miss.
  same(await client.get(k('filled')), undefined);
  same(await client.add(k('filled'), 'v', 100), true);
  same(await client.get(k('filled')), 'v');
  done('add, replace, append, prepend');

  same(await client.touch(k('a'), 100), true);
  same(await client.touch(k('absent'), 100), false);
  same(await client.get(k('a')), '1');
  done('touch');

  same(await client.set(k('gone'), 'x', 100), true);
  same(await client.touch(k('gone'), -1), true);
  same(await client.get(k('gone')), undefined);
  same(await client.set(k('gone'), 'x', -1), true);
  same(await client.get(k('gone')), undefined);
  same(await client.set(k('forever'), 'x', 0), true);
  same(await client.get(k('forever')), 'x');
  done('expiry');

  same(await client.del(k('added')), true);
  same(await client.del(k('added')), false);
  same(await client.get(k('added')), undefined);
  done('delete');

  // Text, and one line: it writes half of all byte values as two bytes each, and escapes line ends.
  const big = 'abcdefghij'.repeat(90 * 1024);
  same(await client.set(k('big'), big, 100), true);
  same(await client.get(k('big')) === big, true);
  same(Object.keys(await client.getMulti([k('big'), k('a')])).length, 2);
  // By default it does not send values larger than 1 MiB.
  const larger = big + big;
  assert.match(await refused(client.set(k('big'), larger, 100)), /greater than 1048576/);
  const unlimited = connected({ maxValue: 1 << 22 });
  same(await unlimited.set(k('big'), larger, 100), false);
  // It treats a SERVER_ERROR as a dead server and sends nothing for `retry` ms, so another client reads.
  assert.match(await refused(unlimited.get(k('a'))), /not available/);
  same(await client.get(k('big')), undefined);
  same(await client.get(k('a')), '1');
  done('big values');

  same(await client.set(k('ключ-鍵'), 'значение', 100), true);
  same(await client.get(k('ключ-鍵')), 'значение');
  same({ ...await client.getMulti([k('ключ-鍵'), k('é')]) }, { [k('ключ-鍵')]: 'значение' });
  same(await client.del(k('ключ-鍵')), true);
  done('non-ASCII');

  const app = connected({ namespace: k('app1:') });
  same(await app.set('x', 'mine', 100), true);
  same(await app.get('x'), 'mine');
  same(await client.get(k('app1:x')), 'mine');
  done('namespace');

  const [version] = await client.version();
  assert.match(version.version, /^1\.6\./);
  const [stats] = await client.stats();
  same(stats.version, version.version);
  assert(stats.pid > 0);
  same(await client.flush(), [true]);
  same(await client.get(k('forever')), undefined);
  [client, app].forEach((c) => c.end());
  done('version, stats and flush');
  // The refused client continues for minutes.
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
