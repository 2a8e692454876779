//go:build !demo

package main

import (
	"slices"

	"github.com/spf13/cobra"

	backupcmd "github.com/weirdb/weir/internal/backup/cmd"
	kvcmd "github.com/weirdb/weir/internal/kvd/cmd"
	outboxcmd "github.com/weirdb/weir/internal/outbox/cmd"
	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
)

// verbs are all verbs: those of the products and, except in the slim build, of the benchmarks and
// the lab. To remove a product, delete its directories and its line here and in ruler.go
// (docs/ARCHITECTURE.md).
func verbs() []*cobra.Command {
	return slices.Concat(
		proxycmd.Verbs(),
		outboxcmd.Verbs(),
		backupcmd.Verbs(),
		kvcmd.Verbs(),
		rulerVerbs(),
	)
}
