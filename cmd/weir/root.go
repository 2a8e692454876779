package main

import (
	"slices"

	"github.com/spf13/cobra"

	backupcmd "github.com/weirdb/weir/internal/backup/cmd"
	"github.com/weirdb/weir/internal/cli"
	kvcmd "github.com/weirdb/weir/internal/kvd/cmd"
	labcmd "github.com/weirdb/weir/internal/lab/cmd"
	outboxcmd "github.com/weirdb/weir/internal/outbox/cmd"
	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
	rulercmd "github.com/weirdb/weir/internal/ruler/cmd"
)

// newRoot returns weir.
func newRoot() *cobra.Command { return cli.Root(verbs()...) }

// verbs are all that weir can do: a line for each product.
func verbs() []*cobra.Command {
	return slices.Concat(
		proxycmd.Verbs(),
		outboxcmd.Verbs(),
		backupcmd.Verbs(),
		kvcmd.Verbs(),
		rulercmd.Verbs(newRoot),
		labcmd.Verbs(),
	)
}
