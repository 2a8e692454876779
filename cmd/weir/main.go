// Command weir makes the write path between applications and databases cheap, safe and visible.
// The packages of the products define its verbs.
package main

import (
	"os"

	"github.com/weirdb/weir/internal/cli"
)

func main() {
	os.Exit(cli.Main(newRoot(), os.Args[1:]))
}
