// Command weir makes the write path between applications and databases cheap,
// safe and visible. Its verbs live with the products that they run.
package main

import (
	"os"

	"github.com/weirdb/weir/internal/cli"
)

func main() {
	os.Exit(cli.Main(newRoot(), os.Args[1:]))
}
