// Command weir is a database proxy, an outbox, backups, a replicated store, and benchmarks.
// The packages of the products define its verbs.
package main

import (
	"os"

	"github.com/weirdb/weir/internal/cli"
)

func main() {
	os.Exit(cli.Main(newRoot(), os.Args[1:]))
}
