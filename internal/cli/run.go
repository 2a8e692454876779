package cli

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

	"github.com/weirdb/weir/internal/version"
)

// SameSignal is the time within which signals count as one. Some senders signal a process
// twice: timeout(1) signals it and its group, and both a terminal and a supervisor pass on
// Ctrl-C.
const SameSignal = 200 * time.Millisecond

// errInterrupted is the error of a verb that a signal has interrupted.
var errInterrupted = errors.New("interrupted; everything that was started has been stopped")

// Root returns the command weir with the given verbs, and with version and config.
func Root(verbs ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A proxy, an outbox, backups, a store and benchmarks for the write path of databases",
		Long: `weir is a proxy for PostgreSQL, MySQL and MariaDB that lets many clients share
one flush of the disk, and an outbox, backups, a replicated store, and benchmarks
that measure them. Each command below has its own --help.

Exit codes: 0 fine, 1 failed, 2 usage, 3 a check fell short.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
	}
	// cobra's own --version uses a template, for which the linker has to keep every exported
	// method of the program.
	root.Flags().BoolP("version", "v", false, "version for weir")
	root.SetUsageFunc(PlainUsage)
	root.SetFlagErrorFunc(wrongFlag) // for all verbs below, too
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if asked, err := cmd.Flags().GetBool("version"); err != nil || !asked {
			return errors.Join(err, cmd.Help())
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Line())
		return err
	}
	root.AddCommand(newVersionCommand(), newManualCommand(), newConfigCommand())
	for _, verb := range verbs {
		if verb.Annotations[below] == "" {
			root.AddCommand(verb)
		}
	}
	for _, verb := range verbs {
		for _, parent := range root.Commands() {
			if parent.Name() == verb.Annotations[below] {
				parent.AddCommand(verb)
			}
		}
	}
	complete(root)
	return root
}

const below = "below" // annotation: the parent verb

// Below makes verb a subcommand of another product's verb, such as bench of outbox. If weir
// does not have that parent, it does not have the verb.
func Below(parent string, verb *cobra.Command) *cobra.Command {
	verb.Annotations = map[string]string{below: parent}
	return verb
}

// Main executes the command line and returns the process's exit code. The first SIGINT or
// SIGTERM cancels the context of the verb; a second one ends the process at once.
func Main(root *cobra.Command, args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		time.Sleep(SameSignal)
		signal.Stop(signals) // from here on, signals have their default effect
	}()
	return Execute(ctx, root, args, os.Stdout, os.Stderr)
}

// Execute is Main without handling of signals and the process's streams. It is called once for
// a root.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...) // it remembers the output
	var began bool
	prepare(root, &began)
	if help, _, err := root.Find([]string{"help"}); err == nil && help != root {
		help.Args = knownTopic
	}
	var helpless error // why there is no help
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if helpless = knownVerb(cmd); helpless == nil {
			show(cmd, args)
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = helpless
	}
	if err == nil {
		return ExitFine
	}
	code := ExitCode(err)
	if !began && !errors.As(err, new(*exitError)) {
		code = ExitUsage
		if names, missing := strings.CutPrefix(err.Error(), "required flag(s) "); missing {
			names = strings.NewReplacer(`"`, "", ", ", ", --", " not set", "").Replace(names)
			err = fmt.Errorf("want --%s, which %q needs", names, cmd.CommandPath())
		}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted // whatever step noticed it
	}
	fmt.Fprintln(stderr, "weir:", err)
	if code == ExitUsage {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

// prepare makes each command set began when its RunE starts, and makes a command that only has
// subcommands reject unknown names: cobra prints help for those and reports success.
func prepare(cmd *cobra.Command, began *bool) {
	for _, sub := range cmd.Commands() {
		prepare(sub, began)
	}
	cmd.InitDefaultHelpFlag() // otherwise cobra would take kv in weir --help kv for the value of a flag
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = unknownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		return
	}
	if inner := cmd.Args; inner != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return namedArgs(cmd, args, inner(cmd, args)) }
	}
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return inner(cmd, args)
		}
	}
}

// namedArgs names the missing arguments in cobra's error, which only counts them.
func namedArgs(cmd *cobra.Command, args []string, err error) error {
	switch {
	case err == nil:
		return nil
	case strings.HasPrefix(err.Error(), "accepts "), strings.HasPrefix(err.Error(), "requires at least "):
		_, want, _ := strings.Cut(cmd.Use, " ")
		return fmt.Errorf("want %s after %q, got %d of them", want, cmd.CommandPath(), len(args))
	case strings.HasPrefix(err.Error(), "unknown command ") && !cmd.HasSubCommands():
		return fmt.Errorf("want no argument after %q, got %q", cmd.CommandPath(), args[0])
	}
	return err
}

// knownVerb rejects help for an unknown verb of cmd: cobra prints the help of cmd, and reports
// success. A word that may be an argument of cmd is accepted.
func knownVerb(cmd *cobra.Command) error {
	args := cmd.Flags().Args()
	if !cmd.HasSubCommands() || len(args) == 0 || cmd.Args == nil {
		return nil
	}
	return cmd.Args(cmd, args)
}

// knownTopic rejects help for unknown commands: cobra prints the help of the last known one,
// and reports success.
func knownTopic(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err != nil {
		return err
	}
	return unknownCommand(cmd, rest)
}

// unknownCommand rejects all arguments: known names would have been commands.
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
