// Package kvcmd has the verbs of weir kv, and weir lab kv, which starts clusters.
package kvcmd

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// Verbs returns the verbs of this package.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newKVCommand(),
		cli.Below("lab", newLabKVCommand()), // beside the other servers of the lab
	}
}
