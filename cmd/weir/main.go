// Command weir makes the write path between applications and databases cheap,
// safe and visible. Each verb lives in a file of its own name.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:]))
}
