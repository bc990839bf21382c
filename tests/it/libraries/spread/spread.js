// Sets the keys that it reads, one a line, with a client that spreads them itself.
// Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
// LIBRARY is node_memcached or memjs.
const [library, value, , ...servers] = process.argv.slice(2);
const keys = require('fs').readFileSync(0, 'utf8').split('\n').slice(0, -1);
const split = servers.map((server) => server.match(/^(.*):(\d+)$/).slice(1));

const client = library === 'memjs'
  ? require('memjs').Client.create(split.map(([address]) => address).join(','))
  : new (require('memcached'))(Object.fromEntries(split.map(([address, weight]) => [address, Number(weight)])));

const set = (key) => new Promise((resolve, reject) => {
  const done = (error) => (error ? reject(error) : resolve());
  if (library === 'memjs') client.set(key, value, {}, done);
  else client.set(key, value, 0, done);
});

(async () => {
  for (const key of keys) await set(key);
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
