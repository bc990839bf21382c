// Sets the keys that it reads, one a line, with a client that spreads them itself.
// Arguments: LIBRARY VALUE PREFIX HOST:PORT:WEIGHT...
package main

import (
	"bufio"
	"log"
	"os"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	var servers []string
	for _, server := range os.Args[4:] {
		servers = append(servers, server[:strings.LastIndex(server, ":")])
	}
	client := memcache.New(servers...)
	keys := bufio.NewScanner(os.Stdin)
	for keys.Scan() {
		if err := client.Set(&memcache.Item{Key: keys.Text(), Value: []byte(os.Args[2])}); err != nil {
			log.Fatal(keys.Text(), err)
		}
	}
}
