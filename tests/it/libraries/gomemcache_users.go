// What users of gomemcache do, against HOST PORT, with keys prefixed with PREFIX. Prints a line "OK ..." per part. The first
// difference from memcached ends the run with a message and exit code 1. All of its reads are gets.
package main

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var prefix string

func k(name string) string { return prefix + name }

func fail(format string, args ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n%s", append(args, debug.Stack())...)
	os.Exit(1)
}

func same(got, expected interface{}) {
	if !reflect.DeepEqual(got, expected) {
		fail("got %.200s, expected %.200s", fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", expected))
	}
}

func item(name, value string) *memcache.Item {
	return &memcache.Item{Key: k(name), Value: []byte(value)}
}

// The value, or the error.
func got(client *memcache.Client, name string) interface{} {
	item, err := client.Get(k(name))
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

func done(what string) { fmt.Println("OK " + what) }

func main() {
	server := os.Args[1] + ":" + os.Args[2]
	prefix = os.Args[3]
	connect := func() *memcache.Client {
		client := memcache.New(server)
		client.Timeout = 10 * time.Second
		client.MaxIdleConns = 16
		return client
	}
	client := connect()
	miss := memcache.ErrCacheMiss

	same(client.Set(&memcache.Item{Key: k("a"), Value: []byte("1"), Flags: 42, Expiration: 100}), nil)
	a, err := client.Get(k("a"))
	same(err, nil)
	same([]interface{}{a.Key, string(a.Value), a.Flags}, []interface{}{k("a"), "1", uint32(42)})
	same(got(client, "none"), miss)
	same(client.Set(item("empty", "")), nil)
	same(got(client, "empty"), "")
	done("set and get")

	many := map[string]string{}
	keys := []string{}
	for i := 0; i < 100; i++ {
		name := fmt.Sprintf("many%d", i)
		many[k(name)] = fmt.Sprint("value ", i)
		keys = append(keys, k(name))
		same(client.Set(item(name, fmt.Sprint("value ", i))), nil)
	}
	asked := keys
	for i := 0; i < 10; i++ {
		asked = append(asked, k(fmt.Sprintf("absent%d", i)))
	}
	items, err := client.GetMulti(asked)
	same(err, nil)
	found := map[string]string{}
	for key, item := range items {
		found[key] = string(item.Value)
	}
	same(found, many)
	for _, key := range keys {
		same(client.Delete(key), nil)
	}
	items, err = client.GetMulti(keys)
	same(err, nil)
	same(len(items), 0)
	done("multi-get")

	same(client.Set(item("c", "1")), nil)
	seen, err := client.Get(k("c"))
	same(err, nil)
	late := *seen
	seen.Value = []byte("2")
	same(client.CompareAndSwap(seen), nil)
	late.Value = []byte("3")
	same(client.CompareAndSwap(&late), memcache.ErrCASConflict)
	same(got(client, "c"), "2")
	seen, err = client.Get(k("c"))
	same(err, nil)
	same(client.Delete(k("c")), nil)
	same(client.CompareAndSwap(seen), miss)
	done("cas")

	same(client.Set(item("n", "10")), nil)
	same(count(client.Increment(k("n"), 5)), uint64(15))
	same(count(client.Decrement(k("n"), 20)), uint64(0))
	same(count(client.Increment(k("n"), 1)), uint64(1))
	same(client.Set(item("wrap", "18446744073709551615")), nil)
	same(count(client.Increment(k("wrap"), 1)), uint64(0))
	same(count(client.Increment(k("absent"), 1)), miss)
	same(client.Set(item("word", "x")), nil)
	_, err = client.Increment(k("word"), 1)
	same(err != nil && strings.Contains(err.Error(), "cannot increment or decrement non-numeric value"), true)
	same(got(client, "word"), "x")
	done("counters")

	same(client.Add(item("added", "1")), nil)
	same(client.Add(item("added", "2")), memcache.ErrNotStored)
	same(client.Replace(item("added", "3")), nil)
	same(client.Replace(item("absent", "3")), memcache.ErrNotStored)
	same(client.Append(item("added", ">")), nil)
	same(client.Prepend(item("added", "<")), nil)
	same(client.Append(item("absent", ">")), memcache.ErrNotStored)
	same(got(client, "added"), "<3>")
	// Many clients fill a cache with add after a miss.
	same(got(client, "filled"), miss)
	same(client.Add(item("filled", "v")), nil)
	same(got(client, "filled"), "v")
	done("add, replace, append, prepend")

	same(client.Touch(k("a"), 100), nil)
	same(client.Touch(k("absent"), 100), miss)
	same(got(client, "a"), "1")
	done("touch")

	same(client.Set(item("gone", "x")), nil)
	same(client.Touch(k("gone"), -1), nil)
	same(got(client, "gone"), miss)
	for name, seconds := range map[string]int32{"negative": -1, "past": 1000000000} {
		same(client.Set(&memcache.Item{Key: k(name), Value: []byte("x"), Expiration: seconds}), nil)
		same(got(client, name), miss)
	}
	same(client.Set(&memcache.Item{Key: k("far"), Value: []byte("x"), Expiration: 2147483647}), nil)
	same(got(client, "far"), "x")
	done("expiry")

	same(client.Delete(k("added")), nil)
	same(client.Delete(k("added")), miss)
	same(got(client, "added"), miss)
	done("delete")

	big := make([]byte, 900*1024)
	for i := range big {
		big[i] = byte(i)
	}
	same(client.Set(&memcache.Item{Key: k("big"), Value: big}), nil)
	seen, err = client.Get(k("big"))
	same(err, nil)
	same(bytes.Equal(seen.Value, big), true)
	items, err = client.GetMulti([]string{k("big"), k("a")})
	same(err, nil)
	same(len(items), 2)
	err = client.Set(&memcache.Item{Key: k("big"), Value: append(big, big...)})
	same(err != nil && strings.Contains(err.Error(), "object too large for cache"), true)
	same(got(client, "big"), miss)
	same(got(client, "a"), "1")
	done("big values")

	same(client.Set(item("ключ-鍵", "значение")), nil)
	same(got(client, "ключ-鍵"), "значение")
	items, err = client.GetMulti([]string{k("ключ-鍵"), k("é")})
	same(err, nil)
	same(len(items), 1)
	same(client.Delete(k("ключ-鍵")), nil)
	done("non-ASCII")

	// Goroutines share a client, which has a pool of connections.
	same(client.Set(item("shared", "0")), nil)
	var all sync.WaitGroup
	for g := 0; g < 8; g++ {
		all.Add(1)
		go func(g int) {
			defer all.Done()
			for i := 0; i < 20; i++ {
				name, value := fmt.Sprintf("g%d-%d", g, i), fmt.Sprint(g*100+i)
				same(client.Set(item(name, value)), nil)
				same(got(client, name), value)
				_, err := client.Increment(k("shared"), 1)
				same(err, nil)
			}
		}(g)
	}
	all.Wait()
	same(got(client, "shared"), "160")
	done("goroutines")

	same(client.Ping(), nil)
	same(client.FlushAll(), nil)
	same(got(client, "far"), miss)
	same(client.DeleteAll(), nil)
	same(client.Close(), nil)
	done("ping and flush")
}
