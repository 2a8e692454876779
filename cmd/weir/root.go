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
	backupbench "github.com/weirdb/weir/internal/ruler/bench/backup"
	kvbench "github.com/weirdb/weir/internal/ruler/bench/kv"
	outboxbench "github.com/weirdb/weir/internal/ruler/bench/outbox"
	proxybench "github.com/weirdb/weir/internal/ruler/bench/proxy"
	rulercmd "github.com/weirdb/weir/internal/ruler/cmd"
)

// newRoot returns weir.
func newRoot() *cobra.Command { return cli.Root(verbs()...) }

// product is a part of weir: its verbs, and how it is measured.
type product struct {
	verbs []*cobra.Command
	bench rulercmd.Bench
}

// products lists them. To take one away, delete its folders, its bench in
// internal/ruler/bench, and its line here.
func products() []product {
	return []product{
		{proxycmd.Verbs(), proxybench.Bench()},
		{outboxcmd.Verbs(), outboxbench.Bench()},
		{backupcmd.Verbs(), backupbench.Bench(newRoot)},
		{kvcmd.Verbs(), kvbench.Bench()},
	}
}

// verbs are all that weir can do.
func verbs() []*cobra.Command {
	var all []*cobra.Command
	var benches []rulercmd.Bench
	for _, p := range products() {
		all, benches = append(all, p.verbs...), append(benches, p.bench)
	}
	return slices.Concat(all, rulercmd.Verbs(benches...), labcmd.Verbs())
}
