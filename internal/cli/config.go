package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/internal/measure/check"
)

const checked = "checked" // annotation: weir config check supports files of this verb

// Checked makes weir config check support the configuration files of a verb. It runs the verb's
// PreRunE, which reads the file of --config and starts nothing.
func Checked(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = make(map[string]string)
	}
	cmd.Annotations[checked] = "true"
	return cmd
}

func newConfigCommand() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Check configuration files"}
	var of string
	var connect bool
	var asJSON JSON[[]check.Check]
	checkCmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file, without starting anything",
		Long: `Read a configuration file as its verb would, with the environment and the files that
it names, and report invalid values and unknown keys, with line and likely correction.
Nothing is started, and no connection is made.

The keys show which verb the file is for; if they fit several verbs, use --of. Exit
code 0: the verb would start with this file; 2: it would not.

--connect also checks the servers that the file names, as weir doctor -c does:
versions, roles, privileges, connections, durability. Exit code 3: one of these checks
failed.`,
		Example: `  weir config check /etc/weir/weir.yaml
  weir config check --connect /etc/weir/weir.yaml
  weir config check --of 'kv serve' kv.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if connect {
				return Examine(cmd, args[0], of, &asJSON)
			}
			verb, err := verbOf(cmd.Root(), args[0], of)
			if err == nil {
				err = checkFile(verb, args[0])
			}
			if asJSON.Given() {
				c := check.Check{Name: "configuration", State: check.Yes, For: "starting with " + args[0]}
				if err != nil {
					c.State, c.Detail, err = check.No, err.Error(), UsageError(err)
				} else {
					c.Detail = "fine for " + verb.CommandPath()
				}
				return errors.Join(asJSON.Print(cmd.OutOrStdout(), []check.Check{c}), err)
			}
			if err != nil {
				return UsageError(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: fine for %s\n", args[0], verb.CommandPath())
			return err
		},
	}
	checkCmd.Flags().StringVar(&of, "of", "", "the `VERB` that the file is for, such as proxy or 'kv serve'")
	checkCmd.Flags().BoolVar(&connect, "connect", false, "also check the servers that the file names")
	asJSON.Flag(checkCmd.Flags(), "print JSON: a check of the file, or with --connect all")
	config.AddCommand(checkCmd)
	return config
}

// Examined makes Examine call look, once the PreRunE of a verb has read its configuration.
func Examined(cmd *cobra.Command, look func(context.Context) []check.Check) *cobra.Command {
	cmd.Flags().AddFlag(&pflag.Flag{Name: examine, Hidden: true, Value: &examiner{look}})
	return cmd
}

const examine = "examine"

// examiner attaches look to a verb, as a flag that cannot be given.
type examiner struct {
	look func(context.Context) []check.Check
}

func (*examiner) String() string   { return "" }
func (*examiner) Type() string     { return "" }
func (*examiner) Set(string) error { return errors.New("weir config check --connect does this") }

// Examine reads a configuration file as its verb would, checks the servers that it names, and
// prints the results. It returns a Shortfall if a check fails.
func Examine(cmd *cobra.Command, file, of string, asJSON *JSON[[]check.Check]) error {
	verb, err := verbOf(cmd.Root(), file, of)
	if err == nil {
		err = checkFile(verb, file)
	}
	if err != nil {
		return UsageError(err)
	}
	flag := verb.Flags().Lookup(examine)
	if flag == nil {
		return UsageError(fmt.Errorf("%s is for %s, and only the servers of weir proxy can be checked: weir config check FILE checks this file", file, verb.CommandPath()))
	}
	checks := flag.Value.(*examiner).look(cmd.Context())
	if asJSON.Given() {
		err = asJSON.Print(cmd.OutOrStdout(), checks)
	} else {
		err = check.Print(cmd.OutOrStdout(), checks)
	}
	if n := check.Count(checks, check.No); err == nil && n > 0 {
		err = Shortfall(fmt.Errorf("%s: %d of %d checks do not work", file, n, len(checks)))
	}
	return err
}

func checkFile(verb *cobra.Command, file string) error {
	if err := verb.Flags().Set("config", file); err != nil {
		return err
	}
	return verb.PreRunE(verb, nil)
}

// checkedVerbs returns the verbs below cmd that Checked has marked.
func checkedVerbs(cmd *cobra.Command) (list []*cobra.Command) {
	if cmd.Annotations[checked] != "" {
		list = append(list, cmd)
	}
	for _, sub := range cmd.Commands() {
		list = append(list, checkedVerbs(sub)...)
	}
	return list
}

// verbOf returns the verb with the given name, or else the one that knows most keys of a file.
func verbOf(root *cobra.Command, file, named string) (*cobra.Command, error) {
	verbs := checkedVerbs(root)
	names := make([]string, len(verbs))
	for i, v := range verbs {
		names[i] = strings.TrimPrefix(v.CommandPath(), root.Name()+" ")
		if names[i] == named {
			return v, nil
		}
	}
	if named != "" {
		return nil, fmt.Errorf("--of %s: want one of %s%s", named, strings.Join(names, ", "), Suggest(named, names))
	}
	keys, err := keysOf(file)
	if err != nil {
		return nil, err
	}
	var best *cobra.Command
	most, tie := 0, false
	for _, v := range verbs {
		known := 0
		for _, key := range keys {
			if takes(v, key.Value) {
				known++
			}
		}
		if known > most {
			best, most, tie = v, known, false
		} else if known == most {
			tie = true
		}
	}
	if best != nil && !tie {
		return best, nil
	}
	err = fmt.Errorf("%s: its keys do not say which verb it is for: give --of %s", file, strings.Join(names, ", "))
	if len(keys) == 0 {
		err = fmt.Errorf("%s: it has no lines of the form key: value", file)
	}
	return nil, errors.Join(append(unknownKeys(filepath.Base(file), keys, verbs), err)...)
}

// takes reports whether a file for verb may have key.
func takes(verb *cobra.Command, key string) bool {
	return verb.Flags().Lookup(strings.ReplaceAll(key, "_", "-")) != nil
}

// unknownKeys returns an error for each key that none of the verbs accepts, with a suggestion.
func unknownKeys(file string, keys []*yaml.Node, verbs []*cobra.Command) []error {
	var all []string
	for _, v := range verbs {
		v.Flags().VisitAll(func(f *pflag.Flag) {
			if key := strings.ReplaceAll(f.Name, "-", "_"); !f.Hidden && !slices.Contains(all, key) {
				all = append(all, key)
			}
		})
	}
	f := &File{name: file}
	for _, key := range keys {
		switch {
		case slices.ContainsFunc(verbs, func(v *cobra.Command) bool { return takes(v, key.Value) }):
		case slices.ContainsFunc(verbs, func(v *cobra.Command) bool { return slices.Contains(strings.Fields(v.CommandPath()), key.Value) }):
			f.Fail(key, "unknown key %q: a file is for one verb, whose keys stand in the first column", key.Value)
		default:
			f.Fail(key, "unknown key %q%s", key.Value, Suggest(key.Value, all))
		}
	}
	return f.mistakes
}

// keysOf returns the keys of a file; none if it is not a mapping.
func keysOf(path string) ([]*yaml.Node, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, (&File{name: filepath.Base(path)}).syntax(text, err)
	}
	var keys []*yaml.Node
	if len(doc.Content) > 0 && doc.Content[0].Kind == yaml.MappingNode {
		for i := 0; i < len(doc.Content[0].Content); i += 2 {
			keys = append(keys, doc.Content[0].Content[i])
		}
	}
	return keys, nil
}
