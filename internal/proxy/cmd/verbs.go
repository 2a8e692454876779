//go:build linux

// Package proxycmd is the command line of weir proxy: flags, environment and file become
// the configuration of the proxy, which it runs.
package proxycmd

import (
	"github.com/spf13/cobra"
)

// Verbs returns the verbs of this part of weir.
func Verbs() []*cobra.Command {
	return []*cobra.Command{
		newProxyCommand(),
		newPgBouncerCommand(),
		newConvertCommand(),
	}
}
