//go:build (slim || !linux) && !demo

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// rulerVerbs are placeholders for the verbs that a slim build, or one for another system than
// Linux, leaves out: they tell the user why the verb is missing.
func rulerVerbs() []*cobra.Command {
	var verbs []*cobra.Command
	for _, name := range []string{"bench", "demo", "doctor", "lab", "profile", "report"} {
		verbs = append(verbs, &cobra.Command{
			Use:                name,
			Short:              "Not in this build",
			Hidden:             true,
			DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				if runtime.GOOS != "linux" {
					return fmt.Errorf("weir %s runs on Linux only, not on %s", name, runtime.GOOS)
				}
				return fmt.Errorf("weir %s is not in this build, which was made with the tag slim for servers: use the full one", name)
			},
		})
	}
	return verbs
}
