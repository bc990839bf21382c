// What users of memjs do, against HOST PORT, with keys prefixed with PREFIX, and with SASL if USER and PASSWORD follow. memjs
// speaks the binary protocol only. Prints a line "OK ..." per part. The first difference from memcached ends the run with a
// message and exit code 1.
'use strict';

const assert = require('node:assert');
const memjs = require('memjs');

const [, , host, port, prefix, username, password] = process.argv;
// Its log has a line for each expected refusal.
const quiet = { log() {} };
const connected = (options) =>
  memjs.Client.create(`${host}:${port}`, { timeout: 10, retries: 0, logger: quiet, username, password, ...options });

const client = connected();
const k = (name) => prefix + name;
const same = (got, expected) => assert.deepStrictEqual(got, expected);
const done = (what) => console.log('OK', what);
const refused = (promise) => promise.then((got) => assert.fail(`got ${got}, expected an error`), (e) => String(e.message ?? e));
const text = async (key, from = client) => {
  const { value } = await from.get(key);
  return value === null ? null : value.toString();
};

async function main() {
  same(await client.set(k('a'), '1', { expires: 100 }), true);
  same(await text(k('a')), '1');
  same(await client.get(k('none')), { value: null, flags: null });
  same(await client.set(k('empty'), '', {}), true);
  same(await text(k('empty')), '');
  done('set and get');

  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  same(await client.set(k('buffer'), bytes, { expires: 100 }), true);
  same((await client.get(k('buffer'))).value, bytes);
  done('all byte values');

  // As JSON, with flags of its own.
  const json = {
    serialize: (opcode, value, extras) => {
      if (opcode === 1) extras.writeUInt32BE(7, 0);
      return { value: JSON.stringify(value), extras };
    },
    deserialize: (opcode, value, extras) =>
      ({ value: value === null || value.length === 0 ? null : JSON.parse(value), extras: extras.readUInt32BE(0) }),
  };
  const objects = connected({ serializer: json });
  same(await objects.set(k('object'), { a: [1, null, 'ça'] }, { expires: 100 }), true);
  same(await objects.get(k('object')), { value: { a: [1, null, 'ça'] }, flags: 7 });
  done('a serializer with flags');

  const many = Array.from({ length: 100 }, (_, i) => [k(`many${i}`), `value ${i}`]);
  // Concurrently on one connection: memjs finds a reply's request by its opaque.
  same(await Promise.all(many.map(([key, value]) => client.set(key, value, { expires: 100 }))), many.map(() => true));
  const keys = many.flatMap(([key], i) => [key, k(`absent${i}`)]);
  same(await Promise.all(keys.map((key) => text(key))), many.flatMap(([, value]) => [value, null]));
  same(await Promise.all(many.map(([key]) => client.delete(key))), many.map(() => true));
  same(await Promise.all(many.map(([key]) => text(key))), many.map(() => null));
  done('many requests at once');

  same(await client.increment(k('n'), 5, { initial: 10, expires: 100 }), { success: true, value: 10 });
  same(await client.increment(k('n'), 5, {}), { success: true, value: 15 });
  same(await client.decrement(k('n'), 20, {}), { success: true, value: 0 });
  same(await client.increment(k('n'), 1, {}), { success: true, value: 1 });
  // memcached pads a number that lost digits.
  same(Number(await text(k('n'))), 1);
  same(await client.set(k('wrap'), '18446744073709551615', {}), true);
  same(await client.increment(k('wrap'), 1, {}), { success: true, value: 0 });
  same(await client.set(k('word'), 'x', {}), true);
  assert.match(await refused(client.increment(k('word'), 1, {})), /INCREMENT/);
  same(await text(k('word')), 'x');
  done('counters');

  same(await client.add(k('added'), '1', { expires: 100 }), true);
  same(await client.add(k('added'), '2', { expires: 100 }), false);
  same(await client.replace(k('added'), '3', { expires: 100 }), true);
  same(await client.replace(k('absent'), '3', {}), false);
  same(await client.append(k('added'), '>'), true);
  // Its prepend sends the opcode of append.
  same(await client.prepend(k('added'), '<'), true);
  assert.match(await refused(client.append(k('absent'), '>')), /not stored/i);
  same(await text(k('added')), '3><');
  // Many clients fill a cache with add after a miss.
  same(await text(k('filled')), null);
  same(await client.add(k('filled'), 'v', { expires: 100 }), true);
  same(await text(k('filled')), 'v');
  done('add, replace, append, prepend');

  same(await client.touch(k('a'), 100), true);
  same(await client.touch(k('absent'), 100), false);
  same(await text(k('a')), '1');
  done('touch');

  same(await client.touch(k('filled'), 1_000_000_000), true);
  same(await text(k('filled')), null);
  same(await client.set(k('gone'), 'x', { expires: 1_000_000_000 }), true);
  same(await text(k('gone')), null);
  same(await client.set(k('far'), 'x', { expires: 2147483647 }), true);
  same(await text(k('far')), 'x');
  done('expiry');

  same(await client.delete(k('added')), true);
  same(await client.delete(k('added')), false);
  same(await text(k('added')), null);
  done('delete');

  const big = Buffer.alloc(900 * 1024, bytes);
  same(await client.set(k('big'), big, { expires: 100 }), true);
  same((await client.get(k('big'))).value.equals(big), true);
  assert.match(await refused(client.set(k('big'), Buffer.concat([big, big]), { expires: 100 })), /SET/);
  same(await text(k('big')), null);
  same(await text(k('far')), 'x');
  done('big values');

  same(await client.set(k('ключ-鍵'), 'значение', { expires: 100 }), true);
  same(await text(k('ключ-鍵')), 'значение');
  same(await client.delete(k('ключ-鍵')), true);
  same(await client.set(k('with a space'), 'x', { expires: 100 }), true);
  same(await text(k('with a space')), 'x');
  done('non-ASCII');

  const stats = await new Promise((resolve, reject) =>
    client.stats((error, server, all) => (error ? reject(error) : resolve(all))));
  assert.match(stats.version, /^1\.6\./);
  assert(stats.pid > 0);
  same(Object.values(await client.flush()), [true]);
  same(await text(k('far')), null);
  [client, objects].forEach((c) => c.quit());
  done('stats and flush');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
