// Package version has the version of weir, and what the Go tool recorded about the source that
// it was built from.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Number is the version of weir.
const Number = "0.1.0"

// Report is the output of `weir version --json`.
type Report struct {
	Version  string `json:"version"`          // of weir
	Commit   string `json:"commit,omitempty"` // of the source, if it was built from a checkout
	Time     string `json:"time,omitempty"`   // of the commit, RFC 3339
	Modified bool   `json:"modified"`         // the checkout had uncommitted changes
	Go       string `json:"go"`               // version of Go that built it
	Platform string `json:"platform"`         // operating system and processor
	Tags     string `json:"tags,omitempty"`   // build tags, such as slim
}

// Current describes the running program.
func Current() Report {
	r := Report{Version: Number, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Commit = s.Value
		case "vcs.time":
			r.Time = s.Value
		case "-tags":
			r.Tags = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	return r
}

// Line returns the version for people: "weir 0.1.0 (commit 1a2b3c4, go1.26, linux/amd64)".
func Line() string {
	r := Current()
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

// Modules returns the modules linked into the program, as "path version", sorted by path.
func Modules() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var list []string
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, m.Path+" "+m.Version)
	}
	return list
}
