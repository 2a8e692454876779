//go:build !linux

package outboxcmd

import (
	"errors"

	"github.com/spf13/cobra"
)

// newOutboxTorture replaces the verb where it is not supported.
func newOutboxTorture() *cobra.Command {
	return &cobra.Command{
		Use:                "torture",
		Short:              "Runs on Linux only",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errors.New("weir outbox torture runs on Linux only") },
	}
}
