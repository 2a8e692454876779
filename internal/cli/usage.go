package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// OwnFlags is the group of a verb's flags that are not options.
const OwnFlags = "This command"

// AddFlags adds the loader's options to cmd as flags, and a usage that shows them in groups.
// Flags that cmd has already are its own; their help is "ARGUMENT|text" if there is an
// argument.
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
		if o.Was != "" {
			Renamed(cmd, o.Was, o.Name)
		}
		switch {
		case o.Arg == "DIR":
			_ = cmd.MarkFlagDirname(o.Name) // for completion; the flag exists
		case strings.HasPrefix(o.Arg, ArgFile), o.Arg == "SOCKET":
			_ = cmd.MarkFlagFilename(o.Name)
		case o.Arg != "":
			Words(cmd, o.Name, o.completions()...) // without words: no completion of file names either
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

// textFlag records the text of a flag for Option.Set, which parses it later: the flag may not
// have precedence.
type textFlag struct {
	name string
	into map[string]string
}

func (f *textFlag) Set(v string) error { f.into[f.name] = v; return nil }
func (f *textFlag) String() string     { return f.into[f.name] }
func (f *textFlag) Type() string       { return "" }

// arguments are the placeholders for values in the help, by pflag's types.
var arguments = map[string]string{
	"string": "TEXT", "strings": "TEXT,...", "stringArray": "TEXT", "stringToString": "NAME=VALUE", "duration": "DURATION",
	"durationSlice": "DURATION,...", "int": "N", "uint": "N", "ints": "N,...", "float": "NUMBER",
	"count": "", "float64Slice": "NUMBER,...", "int64Slice": "N,...",
}

// zeroValues are defaults that pflag's own help does not show, either.
var zeroValues = map[string]bool{"0": true, "0s": true, "[]": true}

// defaultText returns a default as the help shows it: a list without brackets, a minute as 1m
// and not as 1m0s. It is "" if the default is not shown.
func defaultText(f *pflag.Flag) string {
	text := f.DefValue
	if text == "false" || zeroValues[text] && f.Value.Type() != "" {
		return ""
	}
	if _, ok := f.Value.(pflag.SliceValue); ok {
		text = strings.Trim(text, "[]")
	}
	if f.Value.Type() == "duration" {
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		if strings.HasSuffix(text, "h0m") {
			text = strings.TrimSuffix(text, "0m")
		}
	}
	return text
}

// argument returns the placeholder for the value of a flag in the help: the word in backquotes
// in its help, or else a word for its type. It also returns the help without backquotes.
func argument(f *pflag.Flag) (arg, help string) {
	name, help := pflag.UnquoteUsage(f)
	if arg, ok := arguments[name]; ok && !strings.Contains(f.Usage, "`") {
		switch {
		case arg == "TEXT" && strings.HasSuffix(f.Name, "-file"):
			arg = ArgFile
		case arg == "TEXT" && strings.HasSuffix(f.Name, "dir"):
			arg = "DIR"
		}
		return arg, help
	}
	return strings.ToUpper(name), help
}

// PlainUsage prints the usage of a verb without groups of options, or with subcommands: cobra's
// text, with flags in weir's format.
func PlainUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	fmt.Fprint(w, "Usage:")
	if cmd.Runnable() {
		fmt.Fprintf(w, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n  %s [command]", cmd.CommandPath())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "\n\nAliases:\n  %s", cmd.NameAndAliases())
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\n\nExamples:\n%s", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprint(w, "\n\nAvailable Commands:")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(w, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(w, "\n\nFlags:\n%s", strings.TrimRight(FlagTable(cmd.LocalFlags(), nil), "\n"))
	}
	if cmd.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\n\nGlobal Flags:\n%s", strings.TrimRight(FlagTable(cmd.InheritedFlags(), nil), "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n\nUse \"%s [command] --help\" for more information about a command.", cmd.CommandPath())
	}
	fmt.Fprintln(w)
	return nil
}

// FlagTable formats flags and their arguments with the help beside them, wrapped to 96 columns.
func FlagTable(set *pflag.FlagSet, args map[string]string) string {
	const margin, width = 38, 58
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "      --" + f.Name
		if f.Shorthand != "" {
			name = "  -" + f.Shorthand + ", --" + f.Name
		}
		arg, help := args[f.Name], f.Usage
		if arg == "" {
			arg, help = argument(f)
		}
		switch {
		case arg == "":
		case f.NoOptDefVal != "": // the flag also stands alone: its value needs the =
			name += "[=" + arg + "]"
		default:
			name += " " + arg
		}
		if text := defaultText(f); text != "" {
			help += " (default " + text + ")"
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
