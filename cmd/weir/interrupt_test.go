package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/spf13/cobra"
)

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
	if code := executeRoot(ctx, root, []string{"work"}, new(bytes.Buffer), &stderr); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if got, want := stderr.String(), "weir: "+errInterrupted.Error()+"\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}
