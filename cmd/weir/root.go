package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// The exit codes of every verb.
const (
	exitFine      = 0
	exitFailed    = 1
	exitUsage     = 2 // the command line or the configuration makes no sense
	exitShortfall = 3 // all ran, and a check fell short: a gate, a verification
)

// exitError is an error that chooses its exit code; every other error that a
// verb returns is exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// UsageError marks an error as the user's to correct in what was asked. Verbs
// need it only within RunE: all that fails before, PreRunE included, counts as
// usage by itself.
func UsageError(err error) error { return &exitError{exitUsage, err} }

// Shortfall marks an error as the result of a check that ran and was not met,
// for scripts to tell from a check that could not run.
func Shortfall(err error) error { return &exitError{exitShortfall, err} }

// sameSignal is the time within which signals count as one. Some senders reach a
// process twice with what was meant once: timeout(1) signals it and its group, a
// terminal and a supervisor each pass on Ctrl-C.
const sameSignal = 200 * time.Millisecond

// errInterrupted is what a verb that did not finish because of a signal ends with.
var errInterrupted = errors.New("interrupted; everything that was started has been stopped")

// run executes the command line and returns the process's exit code. The first
// SIGINT or SIGTERM ends the context that verbs run in; a second one ends the
// process at once.
func run(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		time.Sleep(sameSignal)
		signal.Stop(signals) // from here on, signals do what they do by default
	}()
	return execute(ctx, args, os.Stdout, os.Stderr)
}

// execute is run without the process around it.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return executeRoot(ctx, newRootCommand(), args, stdout, stderr)
}

func executeRoot(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...) // which remembers the output
	var began bool
	prepare(root, &began)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitFine
	}
	code := exitFailed
	var chosen *exitError
	switch {
	case errors.As(err, &chosen):
		code = chosen.code
	case !began:
		code = exitUsage
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted // whatever step it was that noticed
	}
	fmt.Fprintln(stderr, "weir:", err)
	if code == exitUsage {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Group commit and one ruler for every boundary of a database",
		Long: `weir makes the write path between applications and databases cheap, safe and
visible. Each command below has its own --help.

Exit codes: 0 fine, 1 failed, 2 usage, 3 a check fell short.`,
		Version:       versionLine(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newLabCommand(), newProxyCommand(), newOutboxCommand(), newKVCommand(), newBenchCommand(), newProfileCommand(), newReportCommand(), newDoctorCommand(), newDemoCommand(), newVersionCommand(),
		newBackupCommand(), newRestoreCommand(), newVerifyCommand(), newListCommand(), newPruneCommand(), newCatCommand(), newScheduleCommand(), newWALFetchCommand())
	return root
}

// prepare has began set once the RunE of a command starts, and makes a command
// that only holds others refuse names that it does not know. cobra prints help
// for those and reports success.
func prepare(cmd *cobra.Command, began *bool) {
	for _, sub := range cmd.Commands() {
		prepare(sub, began)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = unknownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		return
	}
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return inner(cmd, args)
		}
	}
}

// unknownCommand accepts no arguments: all that are known were commands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return err
}
