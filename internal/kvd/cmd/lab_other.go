//go:build !linux

package kvcmd

import (
	"errors"

	"github.com/spf13/cobra"
)

// newLabKVCommand returns a verb that fails.
func newLabKVCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kv",
		Short:              "Runs on Linux only",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errors.New("weir lab kv runs on Linux only") },
	}
}
