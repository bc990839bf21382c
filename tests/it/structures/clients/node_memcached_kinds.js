// What users of node's memcached do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind.
// The first thing that is not as docs/structures.md says ends the run with a message and exit code 1.
'use strict';

const assert = require('node:assert');
const { promisify } = require('node:util');
const Memcached = require('memcached');

const [, , host, port, otherPort] = process.argv;

// With one connection, so that a lock is deleted on the connection that has taken it.
function connected(at) {
  const client = new Memcached(`${host}:${at}`, { timeout: 10000, poolSize: 1 });
  const methods = ['get', 'set', 'add', 'append', 'incr', 'decr', 'del'];
  const promised = methods.map((name) => [name, promisify(client[name]).bind(client)]);
  return { ...Object.fromEntries(promised), end: () => client.end() };
}

const [client, other] = [connected(port), connected(otherPort)];
const same = (got, expected) => assert.deepStrictEqual(got, expected);
const done = (what) => console.log('OK', what);
// What is not stored is an error.
const stored = (promise) => promise.then((got) => got, () => false);

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

  same([await client.add('lock:report', 'host-1', 30), await stored(other.add('lock:report', 'host-2', 30))], [true, false]);
  same([await other.get('lock:report'), await other.del('lock:report'), await client.del('lock:report')], ['host-1', false, true]);
  same([await other.add('lock:report', 'host-2', 30), await other.del('lock:report')], [true, true]);
  done('lock');
}

main().then(() => [client, other].forEach((each) => each.end()), (e) => {
  console.error(e);
  process.exit(1);
});
