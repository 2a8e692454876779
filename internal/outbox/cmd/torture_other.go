//go:build !linux

package outboxcmd

import (
	"errors"

	"github.com/spf13/cobra"
)

// newOutboxTorture stands in for a verb that starts throwaway servers.
func newOutboxTorture() *cobra.Command {
	return &cobra.Command{
		Use:                "torture",
		Short:              "Runs on Linux only",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errors.New("weir outbox torture runs on Linux only") },
	}
}
