// Package outboxcmd is the command line of weir outbox.
package outboxcmd

import (
	"github.com/spf13/cobra"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newOutboxCommand(),
	}
}
