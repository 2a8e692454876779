package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// versionReport is what `weir version --json` prints.
type versionReport struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"` // of the source, if it was built from a checkout
	Modified bool   `json:"modified"`         // the checkout had changes besides
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func currentVersion() versionReport {
	r := versionReport{Version: sight.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Commit = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	return r
}

// versionLine is the version for people: "weir 0.1.0 (commit 1a2b3c4, go1.26, linux/amd64)".
func versionLine() string {
	r := currentVersion()
	commit := ""
	if r.Commit != "" {
		commit = "commit " + r.Commit[:min(len(r.Commit), 12)]
		if r.Modified {
			commit += " with changes"
		}
		commit += ", "
	}
	return fmt.Sprintf("weir %s (%s%s, %s)", r.Version, commit, r.Go, r.Platform)
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of weir",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(currentVersion())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}
