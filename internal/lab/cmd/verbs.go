// Package labcmd is the command line of weir lab.
package labcmd

import (
	"github.com/spf13/cobra"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newLabCommand(),
	}
}
