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

// SameSignal is the time within which signals count as one. Some senders reach a
// process twice with what was meant once: timeout(1) signals it and its group, a
// terminal and a supervisor each pass on Ctrl-C.
const SameSignal = 200 * time.Millisecond

// errInterrupted is what a verb that did not finish because of a signal ends with.
var errInterrupted = errors.New("interrupted; everything that was started has been stopped")

// Root returns the command weir with these verbs, and with version and config.
func Root(verbs ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A proxy, an outbox, backups, a store and benchmarks for the write path of databases",
		Long: `weir makes the write path between applications and databases cheap, safe and
visible. Each command below has its own --help.

Exit codes: 0 fine, 1 failed, 2 usage, 3 a check fell short.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
	}
	// cobra's own --version goes through a template, for which the linker has to keep
	// every exported method of the program.
	root.Flags().BoolP("version", "v", false, "version for weir")
	root.SetUsageFunc(PlainUsage)
	root.SetFlagErrorFunc(wrongFlag) // of all verbs below, too
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

const below = "below" // annotation: the verb that a verb belongs to

// Below makes verb a part of another product's verb, such as bench of outbox.
// Where weir has no such parent, it has no such verb.
func Below(parent string, verb *cobra.Command) *cobra.Command {
	verb.Annotations = map[string]string{below: parent}
	return verb
}

// Main executes the command line and returns the process's exit code. The first
// SIGINT or SIGTERM ends the context that verbs run in; a second one ends the
// process at once.
func Main(root *cobra.Command, args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		time.Sleep(SameSignal)
		signal.Stop(signals) // from here on, signals do what they do by default
	}()
	return Execute(ctx, root, args, os.Stdout, os.Stderr)
}

// Execute is Main without the process around it. It is called once for a root.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...) // which remembers the output
	var began bool
	prepare(root, &began)
	if help, _, err := root.Find([]string{"help"}); err == nil && help != root {
		help.Args = knownTopic
	}
	var helpless error // why there was no help to give
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
		err = errInterrupted // whatever step it was that noticed
	}
	fmt.Fprintln(stderr, "weir:", err)
	if code == ExitUsage {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return code
}

// prepare has began set once the RunE of a command starts, and makes a command
// that only holds others refuse names that it does not know. cobra prints help
// for those and reports success.
func prepare(cmd *cobra.Command, began *bool) {
	for _, sub := range cmd.Commands() {
		prepare(sub, began)
	}
	cmd.InitDefaultHelpFlag() // or, of weir --help kv, cobra would take kv for the value of a flag
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

// namedArgs names the arguments that a command wants: cobra counts them.
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

// knownVerb refuses the help of a verb that cmd does not have: cobra prints that of cmd,
// and reports success. What may be an argument of cmd is none of its verbs.
func knownVerb(cmd *cobra.Command) error {
	args := cmd.Flags().Args()
	if !cmd.HasSubCommands() || len(args) == 0 || cmd.Args == nil {
		return nil
	}
	return cmd.Args(cmd, args)
}

// knownTopic accepts the names of commands: cobra prints help of what it found so far
// for others, and reports success.
func knownTopic(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err != nil {
		return err
	}
	return unknownCommand(cmd, rest)
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
