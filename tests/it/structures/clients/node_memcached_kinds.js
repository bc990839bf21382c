// What users of node's memcached do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind.
// The first thing that is not as docs/structures.md says ends the run with a message and exit code 1.
'use strict';

const assert = require('node:assert');
const { createHash } = require('node:crypto');
const { promisify } = require('node:util');
const Memcached = require('memcached');

const [, , host, port, otherPort] = process.argv;

// With one connection, so that a lock is deleted on the connection that has taken it.
function connected(at, namespace = '') {
  const client = new Memcached(`${host}:${at}`, { timeout: 10000, poolSize: 1, namespace });
  const methods = ['get', 'getMulti', 'gets', 'set', 'add', 'append', 'cas', 'incr', 'decr', 'touch', 'del'];
  const promised = methods.map((name) => [name, promisify(client[name]).bind(client)]);
  return { ...Object.fromEntries(promised), end: () => client.end() };
}

const [client, other, spaced] = [connected(port), connected(otherPort), connected(port, 'app:')];
const same = (got, expected) => assert.deepStrictEqual(got, expected);
const done = (what) => console.log('OK', what);
// What is not stored is an error.
const stored = (promise) => promise.then((got) => got, () => false);
// What an error says.
const refused = (promise) => promise.then((got) => assert.fail(`not refused: ${got}`), (e) => e.message.trim());
const lines = (shown) => shown.split('\n').slice(0, -1).sort();

async function main() {
  same(await client.incr('hits:page:7', 1), 1);
  same([await other.incr('hits:page:7', 2), await client.get('hits:page:7')], [3, '3']);
  // A number comes back as a number.
  same([await client.set('hits:page:7', 40, 0), await other.get('hits:page:7')], [true, 40]);
  same(await other.decr('hits:page:7', 1), 39);
  done('counter');

  same([await client.incr('rate:192.0.2.7', 1), await other.incr('rate:192.0.2.7', 1)], [1, 2]);
  same(await client.get('rate:192.0.2.7'), '2');
  done('window');

  same([await client.add('online:blog:ann', '', 0), await stored(other.add('online:blog:ann', '', 0))], [true, false]);
  same([await other.add('online:blog:bob', '', 0), await client.get('online:blog')], [true, '2']);
  done('unique window');

  same([await client.append('log:orders', 'order 17 paid\n'), await other.append('log:orders', 'order 18 paid\n')], [true, true]);
  const answer = await client.get('log:orders@0');
  const cursor = answer.slice(0, answer.indexOf('\n'));
  same(answer.slice(cursor.length + 1), 'order 17 paid\norder 18 paid\n');
  same((await other.get(`log:orders@${cursor}`)).split('\n').slice(1), ['']);
  done('log');

  // It puts a backslash before each line feed, so each line is an append of its own.
  const added = ['+bob', '+cid', '+dan', '+jürgen'].map((line) => client.append('friends:ann', line));
  same([await Promise.all(added), await other.append('friends:ann', '-cid')], [[true, true, true, true], true]);
  same(lines(await client.get('friends:ann')), ['bob', 'dan', 'jürgen']);
  same([await other.get('friends:ann@bob'), await other.get('friends:ann@cid')], ['1', undefined]);
  same(await other.getMulti(['friends:ann@dan', 'friends:ann@cid', 'friends:ann@jürgen']), { 'friends:ann@dan': '1', 'friends:ann@jürgen': '1' });
  same(await refused(client.set('friends:ann', '+eve\n', 0)), 'a list has only the commands append, get, get KEY@ELEMENT, delete');
  for (const lines of ['+eve\n', '+eve\n+fy', ['+eve']]) {
    same((await refused(client.append('friends:ann', lines))).slice(0, 32), 'each line of a list must be + or');
  }
  // The namespace of a client is a part of the key, and so of the rule's match.
  same([await spaced.append('friends:ann', '+eve'), await spaced.get('friends:ann')], [true, 'eve\n']);
  same([await client.get('app:friends:ann@eve'), await spaced.get('friends:ann@bob')], ['1', undefined]);
  same([await other.del('friends:ann'), await client.del('friends:ann'), await client.get('friends:ann')], [true, false, undefined]);
  done('list');

  // Values are those of the library: a number, an object, and text.
  same([await client.set('cart:7/book', 2, 0), await other.set('cart:7/ink/red', { of: ['values'] }, 0)], [true, true]);
  same([await stored(client.add('cart:7/book', 3, 0)), await client.add('cart:7/jürgen', 'x', 0)], [false, true]);
  const names = lines(await other.get('cart:7'));
  same(names, ['book', 'ink/red', 'jürgen']);
  const cart = await client.getMulti(names.map((name) => `cart:7/${name}`));
  same(cart, { 'cart:7/book': 2, 'cart:7/ink/red': { of: ['values'] }, 'cart:7/jürgen': 'x' });
  same([await other.incr('cart:7/book', 5), await other.del('cart:7/ink/red'), await client.get('cart:7/ink/red')], [7, true, undefined]);
  const { cas } = await client.gets('cart:7/jürgen');
  same([await client.cas('cart:7/jürgen', 'y', cas, 0), await stored(client.cas('cart:7/jürgen', 'z', cas, 0))], [true, false]);
  same([await other.touch('cart:7/jürgen', 60), await other.append('cart:7/jürgen', '+'), await client.get('cart:7/jürgen')], [true, true, 'y+']);
  // It replaces a key of more than 250 bytes by a hash, which is no element of the table.
  const long = `cart:7/${'x'.repeat(250)}`;
  same([await client.set(long, 3, 0), await other.get(createHash('md5').update(long).digest('hex'))], [true, 3]);
  same(await refused(client.set('cart:7', 1, 0)), 'a table has only the commands get, delete, and any command on KEY/NAME');
  same(lines(await client.get('cart:7')), ['book', 'jürgen']);
  same([await spaced.set('cart:7/book', 5, 0), await spaced.get('cart:7'), await client.get('app:cart:7/book')], [true, 'book\n', 5]);
  same([await client.del('cart:7'), await other.get('cart:7'), await other.get('cart:7/book'), await other.del('cart:7')], [true, undefined, undefined, false]);
  done('table');

  same([await client.add('lock:report', 'host-1', 30), await stored(other.add('lock:report', 'host-2', 30))], [true, false]);
  same([await other.get('lock:report'), await other.del('lock:report'), await client.del('lock:report')], ['host-1', false, true]);
  same([await other.add('lock:report', 'host-2', 30), await other.del('lock:report')], [true, true]);
  same(await client.add('lock:report', 'host-1', 0), true);
  same(await refused(client.set('lock:report', 'host-1', 0)), 'a lock has only the commands add, get, delete');
  same(await client.del('lock:report'), true);
  done('lock');
}

main().then(() => [client, other, spaced].forEach((each) => each.end()), (e) => {
  console.error(e);
  process.exit(1);
});
