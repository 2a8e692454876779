package main

import (
	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// newRoot returns the root command.
func newRoot() *cobra.Command { return cli.Root(verbs()...) }
