package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// run executes the command line and returns the process's exit code:
// 0 fine, 1 failed, 2 usage, 3 a check fell short.
func run(args []string) int {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "Group commit and one ruler for every boundary of a database",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newLabCommand(), newProxyCommand())
	root.SetArgs(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weir:", err)
		return 1
	}
	return 0
}
