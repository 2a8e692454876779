package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestExitCodes(t *testing.T) {
	sorry := errors.New("sorry")
	tests := []struct {
		name   string
		preRun error
		run    error
		args   []string
		want   int
	}{
		{"fine", nil, nil, nil, ExitFine},
		{"failed", nil, sorry, nil, ExitFailed},
		{"failed, wrapped", nil, fmt.Errorf("step: %w", sorry), nil, ExitFailed},
		{"usage, said by the verb", nil, UsageError(sorry), nil, ExitUsage},
		{"usage, wrapped", nil, fmt.Errorf("step: %w", UsageError(sorry)), nil, ExitUsage},
		{"shortfall", nil, Shortfall(sorry), nil, ExitShortfall},
		{"before it ran", sorry, nil, nil, ExitUsage},
		{"arguments", nil, nil, []string{"extra"}, ExitUsage},
		{"flag", nil, nil, []string{"--no-such"}, ExitUsage},
	}
	for _, tt := range tests {
		root := &cobra.Command{Use: "weir", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(&cobra.Command{
			Use: "verb", Args: cobra.NoArgs,
			PreRunE: func(*cobra.Command, []string) error { return tt.preRun },
			RunE:    func(*cobra.Command, []string) error { return tt.run },
		})
		var stderr bytes.Buffer
		if got := Execute(t.Context(), root, append([]string{"verb"}, tt.args...), &stderr, &stderr); got != tt.want {
			t.Errorf("%s: exit code %d, want %d\n%s", tt.name, got, tt.want, stderr.String())
		}
		if hinted := strings.Contains(stderr.String(), "Run 'weir verb --help'"); hinted != (tt.want == ExitUsage) {
			t.Errorf("%s: says %q", tt.name, stderr.String())
		}
	}
}

// TestInterruptionIsSaidInOneWord: a signal is no failure of the step that
// happened to run.
func TestInterruptionIsSaidInOneWord(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	root := &cobra.Command{Use: "weir", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(&cobra.Command{Use: "work", RunE: func(cmd *cobra.Command, _ []string) error {
		cancel()
		return fmt.Errorf("step 7: %w", cmd.Context().Err())
	}})
	var stderr bytes.Buffer
	if code := Execute(ctx, root, []string{"work"}, new(bytes.Buffer), &stderr); code != ExitFailed {
		t.Errorf("exit code %d, want %d", code, ExitFailed)
	}
	if got, want := stderr.String(), "weir: "+errInterrupted.Error()+"\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestHelpOfNoVerb: cobra would print the help of what it knew, and report success.
func TestHelpOfNoVerb(t *testing.T) {
	for line, want := range map[string]string{
		"nosuch --help":            `unknown command "nosuch" for "weir"`,
		"boat sial --help":         `unknown command "sial" for "weir boat"; did you mean sail?`,
		"boat sail --help extra":   "",
		"boat --help":              "",
		"ferry nosuch -h":          `unknown command "nosuch" for "weir ferry"`,
		"ferry --help":             "",
		"ferry --help load":        "",
		"boat sail north --help":   "",
		"--help boat nosuch":       `unknown command "nosuch" for "weir boat"`,
		"boat sail":                `want COURSE [SPEED] after "weir boat sail", got 0 of them`,
		"boat sail one 2 three":    `want COURSE [SPEED] after "weir boat sail", got 3 of them`,
		"ferry load cargo":         `want no argument after "weir ferry load", got "cargo"`,
		"boat sail north --nosuch": "unknown flag: --nosuch",
	} {
		boat := &cobra.Command{Use: "boat"}
		run := func(*cobra.Command, []string) error { return errors.New("it ran") }
		boat.AddCommand(&cobra.Command{Use: "sail COURSE [SPEED]", Args: cobra.RangeArgs(1, 2), RunE: run})
		ferry := &cobra.Command{Use: "ferry", Args: cobra.NoArgs, RunE: run}
		ferry.AddCommand(&cobra.Command{Use: "load", Args: cobra.NoArgs, RunE: run})
		var stdout, stderr bytes.Buffer
		code := Execute(t.Context(), Root(boat, ferry), strings.Fields(line), &stdout, &stderr)
		switch helped := strings.Contains(stdout.String(), "Usage:"); {
		case want == "" && (code != ExitFine || !helped):
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout.String(), stderr.String())
		case want != "" && (code != ExitUsage || helped || !strings.HasPrefix(stderr.String(), "weir: "+want)):
			t.Errorf("%s: exit code %d, %s%s; want %q", line, code, stdout.String(), stderr.String(), want)
		}
	}
}
