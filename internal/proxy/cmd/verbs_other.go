//go:build !linux

package proxycmd

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Verbs returns stand-ins for the verbs of the proxy, whose event loop is made of
// epoll: they say where it runs.
func Verbs() []*cobra.Command {
	var verbs []*cobra.Command
	for _, name := range []string{"proxy", "pgbouncer"} {
		verbs = append(verbs, &cobra.Command{
			Use:                name,
			Short:              "Runs on Linux only",
			DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return fmt.Errorf("weir %s runs on Linux only, not on %s: run it there, in a container or on a server", name, runtime.GOOS)
			},
		})
	}
	return verbs
}
