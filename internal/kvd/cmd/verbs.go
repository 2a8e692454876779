// Package kvcmd is the command line of weir kv, and of weir lab kv, which starts
// clusters of it.
package kvcmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newKVCommand(),
		cli.Below("lab", newLabKVCommand()), // beside the servers that the lab knows
	}
}
