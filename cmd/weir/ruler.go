//go:build linux && !slim && !demo

package main

import (
	"slices"

	"github.com/spf13/cobra"

	labcmd "github.com/weirdb/weir/internal/lab/cmd"
	backupbench "github.com/weirdb/weir/internal/ruler/bench/backup"
	kvbench "github.com/weirdb/weir/internal/ruler/bench/kv"
	outboxbench "github.com/weirdb/weir/internal/ruler/bench/outbox"
	proxybench "github.com/weirdb/weir/internal/ruler/bench/proxy"
	rulercmd "github.com/weirdb/weir/internal/ruler/cmd"
)

// stack is weir demo --stack.
var stack = rulercmd.Stack()

// rulerVerbs are the verbs that measure weir's products and start throwaway servers.
func rulerVerbs() []*cobra.Command {
	return slices.Concat(rulercmd.Verbs(
		proxybench.Bench(stack),
		outboxbench.Bench(),
		backupbench.Bench(newRoot),
		kvbench.Bench(),
	), labcmd.Verbs())
}
