package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// OwnFlags is the group of the flags that a verb has beside its options.
const OwnFlags = "This command"

// AddFlags gives cmd the flags of the loader's options, and the usage that shows
// them in groups. Flags that cmd has already are its own; their help is
// "ARGUMENT|text" where there is an argument.
func (l *Loader[C]) AddFlags(cmd *cobra.Command) {
	if l.Flags == nil {
		l.Flags = make(map[string]string)
	}
	f := cmd.Flags()
	f.SortFlags = false
	own := unsorted(OwnFlags)
	args := map[string]string{"config": ArgFile}
	f.VisitAll(func(flag *pflag.Flag) {
		if arg, text, ok := strings.Cut(flag.Usage, "|"); ok {
			args[flag.Name], flag.Usage = arg, text
		}
		own.AddFlag(flag)
	})
	for i := range l.Options {
		o := &l.Options[i]
		if !o.of(l.Verb) {
			continue
		}
		args[o.Name] = o.Arg
		flag := f.VarPF(&textFlag{name: o.Name, into: l.Flags}, o.Name, "", o.Help)
		flag.DefValue, flag.Hidden = o.Default, o.Hidden
		if o.Arg == "" {
			flag.NoOptDefVal = "true"
		}
		if o.Arg == ArgFile {
			_ = cmd.MarkFlagFilename(o.Name) // for completion; the flag exists
		}
	}
	f.StringVarP(&l.File, "config", "c", "", l.FileHelp)
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // the flag exists
	cmd.SetUsageFunc(func(cmd *cobra.Command) error { return l.usage(cmd, own, args) })
}

// usage prints the flags in the groups of their options.
func (l *Loader[C]) usage(cmd *cobra.Command, own *pflag.FlagSet, args map[string]string) error {
	w := cmd.OutOrStderr()
	fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
	for _, group := range l.Groups {
		set := unsorted(group)
		if group == OwnFlags {
			set.AddFlagSet(own)
		}
		for i := range l.Options {
			if o := &l.Options[i]; o.Group == group && o.of(l.Verb) {
				set.AddFlag(cmd.Flags().Lookup(o.Name))
			}
		}
		if group == GroupOperation {
			set.AddFlag(cmd.Flags().Lookup("config"))
			if help := cmd.Flags().Lookup("help"); help != nil {
				set.AddFlag(help)
			}
		}
		if set.HasFlags() {
			fmt.Fprintf(w, "\n%s:\n%s", group, FlagTable(set, args))
		}
	}
	return nil
}

func unsorted(name string) *pflag.FlagSet {
	set := pflag.NewFlagSet(name, pflag.ContinueOnError)
	set.SortFlags = false
	return set
}

// textFlag records the text of a flag, which Option.Set reads later: only then is
// it known which of several sources counts.
type textFlag struct {
	name string
	into map[string]string
}

func (f *textFlag) Set(v string) error { f.into[f.name] = v; return nil }
func (f *textFlag) String() string     { return f.into[f.name] }
func (f *textFlag) Type() string       { return "" }

// FlagTable renders flags and their arguments with the help beside them, wrapped
// to 96 columns.
func FlagTable(set *pflag.FlagSet, args map[string]string) string {
	const margin, width = 38, 58
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		name := "      --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		if arg := args[f.Name]; arg != "" {
			name += " " + arg
		}
		help := f.Usage
		if f.DefValue != "" && f.DefValue != "false" {
			help += " (default " + f.DefValue + ")"
		}
		b.WriteString(name)
		column := len(name)
		if column+2 > margin {
			b.WriteString("\n")
			column = 0
		}
		b.WriteString(strings.Repeat(" ", margin-column))
		used := 0
		for _, word := range strings.Fields(help) {
			if used > 0 && used+1+len(word) > width {
				b.WriteString("\n" + strings.Repeat(" ", margin))
				used = 0
			} else if used > 0 {
				b.WriteByte(' ')
				used++
			}
			b.WriteString(word)
			used += len(word)
		}
		b.WriteByte('\n')
	})
	return b.String()
}
