// What users of gomemcache do with structures, through the sidecars at HOST and two PORTs. Prints a line "OK KIND" per kind. The
// first thing that is not as docs/structures.md says ends the run with a message and exit code 1.
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func same(got, expected interface{}) {
	if !reflect.DeepEqual(got, expected) {
		fmt.Fprintf(os.Stderr, "got %.200s, expected %.200s\n%s", fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", expected), debug.Stack())
		os.Exit(1)
	}
}

func done(what string) { fmt.Println("OK " + what) }

// The value, or the error.
func got(client *memcache.Client, key string) interface{} {
	item, err := client.Get(key)
	if err != nil {
		return err
	}
	return string(item.Value)
}

func count(n uint64, err error) interface{} {
	if err != nil {
		return err
	}
	return n
}

// The lines that a list or a table shows, or its error.
func lines(shown interface{}) interface{} {
	text, is := shown.(string)
	if !is {
		return shown
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	sort.Strings(lines)
	return lines
}

func many(client *memcache.Client, keys ...string) interface{} {
	items, err := client.GetMulti(keys)
	if err != nil {
		return err
	}
	values := map[string]string{}
	for key, item := range items {
		values[key] = string(item.Value)
	}
	return values
}

func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "CLIENT_ERROR")
}

func item(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

func lock(owner string) *memcache.Item {
	return &memcache.Item{Key: "lock:report", Value: []byte(owner), Expiration: 30}
}

func main() {
	connect := func(port string) *memcache.Client {
		client := memcache.New(os.Args[1] + ":" + port)
		client.Timeout = 10 * time.Second
		// One connection, so that a lock is deleted on the connection that has taken it.
		client.MaxIdleConns = 1
		return client
	}
	client, other := connect(os.Args[2]), connect(os.Args[3])

	same(count(client.Increment("hits:page:7", 1)), uint64(1))
	same(count(other.Increment("hits:page:7", 2)), uint64(3))
	same(got(client, "hits:page:7"), "3")
	same(client.Set(item("hits:page:7", "40")), nil)
	same(count(other.Decrement("hits:page:7", 1)), uint64(39))
	done("counter")

	same(count(client.Increment("rate:192.0.2.7", 1)), uint64(1))
	same(count(other.Increment("rate:192.0.2.7", 1)), uint64(2))
	same(got(client, "rate:192.0.2.7"), "2")
	done("window")

	same(client.Add(item("online:blog:ann", "")), nil)
	same(other.Add(item("online:blog:ann", "")), memcache.ErrNotStored)
	same(other.Add(item("online:blog:bob", "")), nil)
	same(got(client, "online:blog"), "2")
	done("unique window")

	same(client.Append(item("log:orders", "order 17 paid\n")), nil)
	same(other.Append(item("log:orders", "order 18 paid\n")), nil)
	answer := strings.SplitN(got(client, "log:orders@0").(string), "\n", 2)
	same(answer[1], "order 17 paid\norder 18 paid\n")
	same(got(other, "log:orders@"+answer[0]).(string)[len(answer[0]):], "\n")
	done("log")

	same(client.Append(item("friends:ann", "+bob\n+cid\n")), nil)
	same(other.Append(item("friends:ann", "-cid\n+dan\n+jürgen\n")), nil)
	same(lines(got(client, "friends:ann")), []string{"bob", "dan", "jürgen"})
	same(got(other, "friends:ann@bob"), "1")
	same(got(other, "friends:ann@cid"), memcache.ErrCacheMiss)
	same(many(other, "friends:ann@dan", "friends:ann@cid", "friends:ann@jürgen"), map[string]string{"friends:ann@dan": "1", "friends:ann@jürgen": "1"})
	same(refused(client.Set(item("friends:ann", "+eve\n"))), true)
	same(refused(client.Append(item("friends:ann", "eve\n"))), true)
	same(other.Delete("friends:ann"), nil)
	same(client.Delete("friends:ann"), memcache.ErrCacheMiss)
	same(got(client, "friends:ann"), memcache.ErrCacheMiss)
	done("list")

	same(client.Set(item("cart:7/book", "2")), nil)
	same(other.Set(item("cart:7/ink/red", "3")), nil)
	same(client.Add(item("cart:7/book", "3")), memcache.ErrNotStored)
	same(client.Add(item("cart:7/jürgen", "x")), nil)
	names := lines(got(other, "cart:7"))
	same(names, []string{"book", "ink/red", "jürgen"})
	keys := []string{}
	for _, name := range names.([]string) {
		keys = append(keys, "cart:7/"+name)
	}
	same(many(client, keys...), map[string]string{"cart:7/book": "2", "cart:7/ink/red": "3", "cart:7/jürgen": "x"})
	same(count(other.Increment("cart:7/book", 5)), uint64(7))
	same(other.Delete("cart:7/ink/red"), nil)
	same(got(client, "cart:7/ink/red"), memcache.ErrCacheMiss)
	found, err := client.Get("cart:7/jürgen")
	same(err, nil)
	found.Value = []byte("y")
	same(client.CompareAndSwap(found), nil)
	same(client.CompareAndSwap(found), memcache.ErrCASConflict)
	same(other.Touch("cart:7/jürgen", 60), nil)
	same(other.Append(item("cart:7/jürgen", "+")), nil)
	same(got(client, "cart:7/jürgen"), "y+")
	same(refused(client.Set(item("cart:7", "1"))), true)
	same(lines(got(client, "cart:7")), []string{"book", "jürgen"})
	same(client.Delete("cart:7"), nil)
	same(got(other, "cart:7"), memcache.ErrCacheMiss)
	same(got(other, "cart:7/book"), memcache.ErrCacheMiss)
	same(other.Delete("cart:7"), memcache.ErrCacheMiss)
	done("table")

	same(client.Add(lock("host-1")), nil)
	same(other.Add(lock("host-2")), memcache.ErrNotStored)
	same(got(other, "lock:report"), "host-1")
	same(other.Delete("lock:report"), memcache.ErrCacheMiss)
	same(client.Delete("lock:report"), nil)
	same(other.Add(lock("host-2")), nil)
	same(other.Delete("lock:report"), nil)
	// It closes its connection when a command is refused, so it no longer has the lock.
	same(client.Add(lock("host-1")), nil)
	same(refused(client.Set(lock("host-1"))), true)
	same(client.Delete("lock:report"), memcache.ErrCacheMiss)
	done("lock")
}
