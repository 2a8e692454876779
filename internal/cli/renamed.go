package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Former names still work, hidden from the help, and print the new name to standard error:
// docs/design/008-words.md.

// Renamed makes cmd accept a former name of a flag. The flag counts as given by its current
// name, so that verbs need to check only that.
func Renamed(cmd *cobra.Command, was, is string) { RenamedP(cmd, was, "", is) }

// RenamedP is Renamed for a flag that also had a one-letter form.
func RenamedP(cmd *cobra.Command, was, letter, is string) {
	f := cmd.Flags()
	flag := f.Lookup(is)
	if flag == nil {
		panic("cli: " + cmd.Name() + " has no flag --" + is)
	}
	f.AddFlag(&pflag.Flag{
		Name: was, Shorthand: letter, Usage: "the former name of --" + is, Value: &renamedFlag{cmd, was, flag},
		DefValue: flag.DefValue, NoOptDefVal: flag.NoOptDefVal, Hidden: true,
	})
}

// renamedFlag passes a value on to another flag. pflag's own notice about a deprecated flag
// would go to standard output.
type renamedFlag struct {
	cmd *cobra.Command
	was string
	is  *pflag.Flag
}

func (r *renamedFlag) Set(v string) error {
	notice(r.cmd, "--"+r.was, "--"+r.is.Name)
	return r.cmd.Flags().Set(r.is.Name, v)
}
func (r *renamedFlag) String() string { return r.is.Value.String() }
func (r *renamedFlag) Type() string   { return r.is.Value.Type() }

// notice prints the new name, to standard error like everything that is not a result.
func notice(cmd *cobra.Command, was, is string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "weir: %s is %s now\n", was, is)
}

// Moved makes verb a former name of the verb at path.
func Moved(verb *cobra.Command, path string) *cobra.Command {
	verb.Hidden = true
	inner := verb.PreRunE
	verb.PreRunE = func(cmd *cobra.Command, args []string) error {
		notice(cmd, cmd.CommandPath(), cmd.Root().Name()+" "+path)
		if inner == nil {
			return nil
		}
		return inner(cmd, args)
	}
	return verb
}

// wrongFlag adds a suggestion to the error for an unknown flag, and what is wanted to that for
// an invalid value.
func wrongFlag(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return wrongValue(invalid)
	}
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || missing.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	note := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	}
	cmd.Flags().VisitAll(note)
	cmd.InheritedFlags().VisitAll(note)
	return fmt.Errorf("%w%s", err, Suggest("--"+missing.GetSpecifiedName(), names))
}

// wrongValue returns the error for an invalid value in the same form as for options in files:
// pflag's error is that of a Go function.
func wrongValue(e *pflag.InvalidValueError) error {
	flag, want := e.GetFlag(), ""
	switch kind := flag.Value.Type(); {
	case strings.HasPrefix(kind, "int"), kind == "count":
		want = "want a whole number"
	case strings.HasPrefix(kind, "uint"):
		want = "want a whole number, at least 0"
	case strings.HasPrefix(kind, "float"):
		want = "want a number"
	case strings.HasPrefix(kind, "duration"):
		want = "want a duration such as 250ms, 30s or 1h30m"
	case kind == "bool":
		want = "want true or false"
	default:
		return fmt.Errorf("--%s %q: %w", flag.Name, e.GetValue(), e.Unwrap())
	}
	if _, ok := flag.Value.(*noneFlag); ok {
		want += ", or none"
	}
	return fmt.Errorf("--%s %q: %s", flag.Name, e.GetValue(), want)
}

// taken is the annotation of a flag with the words of Takes.
const taken = "weir_words"

// Takes is Words for callers that have the flags but not the verb.
func Takes(f *pflag.FlagSet, flag string, words ...string) {
	if err := f.SetAnnotation(flag, taken, words); err != nil {
		panic(err) // the flag does not exist
	}
}

// complete registers the words of the flags of cmd, and of the verbs below it, for completion.
func complete(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if words := f.Annotations[taken]; words != nil {
			if _, known := cmd.GetFlagCompletionFunc(f.Name); !known {
				Words(cmd, f.Name, words...)
			}
		}
	})
	for _, verb := range cmd.Commands() {
		complete(verb)
	}
}

// Words sets the words that shells complete for the value of a flag.
func Words(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		// In a list, the last word is completed.
		head, last := "", begun
		if i := strings.LastIndexByte(begun, ','); i >= 0 {
			head, last = begun[:i+1], begun[i+1:]
		}
		var fit []string
		for _, w := range words {
			if strings.HasPrefix(w, last) {
				fit = append(fit, head+w)
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist, or has words already
	}
}
