package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

const checked = "checked" // annotation: config check judges files of this verb

// Checked has weir config check judge configuration files of a verb: by its PreRunE,
// which reads the file that --config names and starts nothing.
func Checked(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = make(map[string]string)
	}
	cmd.Annotations[checked] = "true"
	return cmd
}

func newConfigCommand() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Configuration files"}
	var of string
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a configuration file, and start nothing",
		Long: `Read a configuration file as its verb would, with the environment and the files that
it names, and report each unknown key with its line and what was probably meant, and
each value that makes no sense. Nothing is started and nothing is connected to.

Which verb the file is for is seen from its keys; --of says it where they fit several.
Exit code 0: the verb would start with it; 2: it would not.`,
		Example: `  weir config check /etc/weir/weir.yaml
  weir config check --of 'kv serve' kv.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			verb, err := verbOf(cmd.Root(), args[0], of)
			if err == nil {
				err = checkFile(verb, args[0])
			}
			if err != nil {
				return UsageError(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: fine for %s\n", args[0], verb.CommandPath())
			return err
		},
	}
	check.Flags().StringVar(&of, "of", "", "the `VERB` that the file is for, such as proxy or 'kv serve'")
	config.AddCommand(check)
	return config
}

func checkFile(verb *cobra.Command, file string) error {
	if err := verb.Flags().Set("config", file); err != nil {
		return err
	}
	return verb.PreRunE(verb, nil)
}

// checkedVerbs lists the verbs below cmd that Checked has marked.
func checkedVerbs(cmd *cobra.Command) (list []*cobra.Command) {
	if cmd.Annotations[checked] != "" {
		list = append(list, cmd)
	}
	for _, sub := range cmd.Commands() {
		list = append(list, checkedVerbs(sub)...)
	}
	return list
}

// verbOf returns the verb named, or else the one that knows most keys of a file.
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
			if v.Flags().Lookup(strings.ReplaceAll(key, "_", "-")) != nil {
				known++
			}
		}
		if known > most {
			best, most, tie = v, known, false
		} else if known == most {
			tie = true
		}
	}
	if best == nil || tie {
		return nil, fmt.Errorf("%s: its keys do not say which verb it is for: give --of %s", file, strings.Join(names, ", "))
	}
	return best, nil
}

// keysOf returns the keys of a file, none where it is no mapping.
func keysOf(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, (&File{name: filepath.Base(path)}).syntax(err)
	}
	var keys []string
	if len(doc.Content) > 0 && doc.Content[0].Kind == yaml.MappingNode {
		for i := 0; i < len(doc.Content[0].Content); i += 2 {
			keys = append(keys, doc.Content[0].Content[i].Value)
		}
	}
	return keys, nil
}
