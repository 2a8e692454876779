package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// pond is a configuration for these tests.
type pond struct {
	Depth   int
	Fish    []string
	Frozen  bool
	Drained time.Duration
	Key     string
}

func pondLoader(verb string, env map[string]string) *Loader[pond] {
	return &Loader[pond]{
		Groups: []string{OwnFlags, "Water", GroupOperation}, Prefix: "POND_", Verb: verb, FileHelp: "YAML file",
		Getenv: func(name string) string { return env[name] },
		Options: []Option[pond]{
			{Group: "Water", Name: "max-depth", Arg: "N", Default: "3", Help: "how deep", Set: Number(1, func(c *pond) *int { return &c.Depth })},
			{
				Group: "Water", Name: "fish", Arg: "NAMES", Help: "who lives there",
				Set: func(c *pond, v string) error { c.Fish = strings.Split(v, ","); return nil },
				SetList: func(f *File, list *yaml.Node) (string, func(*pond)) {
					var names []string
					for _, n := range list.Content {
						if n.Kind != yaml.ScalarNode {
							f.Fail(n, "fish: want names")
							return "", nil
						}
						names = append(names, n.Value)
					}
					return strings.Join(names, ","), func(c *pond) { c.Fish = names }
				},
			},
			{Group: "Water", Name: "frozen", Help: "it is winter", Set: Switch(func(c *pond) *bool { return &c.Frozen })},
			{Group: "Water", Name: "drained", Was: "dry-for", Arg: "DURATION", Default: "none", Verbs: []string{"drain"}, Help: "for how long", Set: Span(None, func(c *pond) *time.Duration { return &c.Drained })},
			{Group: GroupOperation, Name: "key", Arg: ArgFile, Secret: true, Help: "of the gate", Set: OneOf(func(c *pond, v string) { c.Key = v }, "brass", "iron")},
			{Name: "tide", Hidden: true, Arg: "N", Help: "for measurements", Set: func(*pond, string) error { return nil }},
		},
	}
}

func TestLoaderTakesTheFirstOfFlagEnvironmentFileAndDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pond.yaml")
	if err := os.WriteFile(file, []byte("max_depth: 5\nfish: [carp, tench]\ndrained: 2d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(t.TempDir(), "former.yaml")
	if err := os.WriteFile(former, []byte("dry_for: 3d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		verb  string
		flags map[string]string
		env   map[string]string
		file  string
		want  pond
		found Given // of max-depth
	}{
		{"default", "", nil, nil, "", pond{Depth: 3}, Given{"3", "default of --max-depth"}},
		{"file", "", nil, nil, file, pond{5, []string{"carp", "tench"}, false, 48 * time.Hour, ""}, Given{"5", "pond.yaml:1: max_depth"}},
		{"file by variable", "", nil, map[string]string{"POND_CONFIG": file}, "", pond{5, []string{"carp", "tench"}, false, 48 * time.Hour, ""}, Given{"5", "pond.yaml:1: max_depth"}},
		{"variable", "", nil, map[string]string{"POND_MAX_DEPTH": "6", "POND_FISH": "eel"}, file, pond{6, []string{"eel"}, false, 48 * time.Hour, ""}, Given{"6", "POND_MAX_DEPTH"}},
		{"flag", "", map[string]string{"max-depth": "7", "frozen": "true"}, map[string]string{"POND_MAX_DEPTH": "6"}, file, pond{7, []string{"carp", "tench"}, true, 48 * time.Hour, ""}, Given{"7", "--max-depth"}},
		{"a former name in the file", "", nil, nil, former, pond{Depth: 3, Drained: 72 * time.Hour}, Given{"3", "default of --max-depth"}},
		{"a variable of a former name", "drain", nil, map[string]string{"POND_DRY_FOR": "1h"}, "", pond{Depth: 3, Drained: time.Hour}, Given{"3", "default of --max-depth"}},
		{"a variable of another verb", "fill", nil, map[string]string{"POND_DRAINED": "1h"}, "", pond{Depth: 3}, Given{"3", "default of --max-depth"}},
		{"a variable of this verb", "drain", nil, map[string]string{"POND_DRAINED": "1h"}, "", pond{Depth: 3, Drained: time.Hour}, Given{"3", "default of --max-depth"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := pondLoader(tt.verb, tt.env)
			l.Flags, l.File = tt.flags, tt.file
			var got pond
			found, err := l.Load(&got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			if found["max-depth"] != tt.found {
				t.Errorf("found %+v, want %+v", found["max-depth"], tt.found)
			}
		})
	}
}

func TestLoaderSaysWhatIsWrongAndWhere(t *testing.T) {
	for text, want := range map[string]string{
		"max_depth: 0":                       `pond.yaml:1: max_depth "0": want a whole number, at least 1`,
		"max_depht: 4":                       `pond.yaml:1: unknown key "max_depht"; did you mean max_depth?`,
		"frozen: yes":                        `pond.yaml:1: frozen "yes": want true or false`,
		"\nfrozen: [true]":                   "pond.yaml:2: frozen: want a single value",
		"frozen:":                            "pond.yaml:1: frozen has no value",
		"fish: [[carp]]":                     "pond.yaml:1: fish: want names",
		"fish: carp\nfish: eel":              "pond.yaml:2: fish is already set in line 1",
		"drained: 1d\ndry_for: 2d":           "pond.yaml:2: dry_for is already set, by its other name",
		"drained: 0.5d":                      `pond.yaml:1: drained "0.5d": want a duration above zero such as 250ms, 30s, 12h or 7d, or none`,
		"key: silver":                        "pond.yaml:1: key: want brass or iron",
		"- fish":                             "pond.yaml:1: want lines of the form key: value",
		"fish: carp\n---\nfish: eel":         "pond.yaml:2: a second document; want one",
		"frozen: true\nfish: a: b":           `pond.yaml:2: mapping values are not allowed in this context (a value such as "stdout:", in which a colon ends it or precedes a space, needs quotes)`,
		"max_depht: 1\nfrozen:\nmax_depth: ": "pond.yaml:1: unknown key \"max_depht\"; did you mean max_depth?\npond.yaml:2: frozen has no value\npond.yaml:3: max_depth has no value",
		"":                                   "",
		"# nothing but a comment":            "",
	} {
		got := ""
		if _, err := pondLoader("", nil).Check("/etc/pond.yaml", []byte(text)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q\nwant %q", text, got, want)
		}
	}
	l := pondLoader("", map[string]string{"POND_KEY": "platinum"})
	if _, err := l.Load(new(pond)); err == nil || err.Error() != "POND_KEY: want brass or iron" {
		t.Errorf("a secret: %v", err)
	}
}

func TestUsageShowsFlagsInGroups(t *testing.T) {
	var depth string
	cmd := &cobra.Command{Use: "drain", Example: "  pond drain", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().StringVar(&depth, "sluice", "", "NAME|which of the sluices is opened; this line is long enough to be wrapped")
	l := pondLoader("drain", nil)
	l.AddFlags(cmd)
	want := `Usage:
  drain [flags]

Examples:
  pond drain

This command:
      --sluice NAME                   which of the sluices is opened; this line is long enough
                                      to be wrapped

Water:
      --max-depth N                   how deep (default 3)
      --fish NAMES                    who lives there
      --frozen                        it is winter
      --drained DURATION              for how long (default none)

Operation:
      --key FILE                      of the gate
  -c, --config FILE                   YAML file
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(cmd.UsageString(), "\n")); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if err := cmd.ParseFlags([]string{"--max-depth", "9", "--frozen"}); err != nil {
		t.Fatal(err)
	}
	var c pond
	if _, err := l.Load(&c); err != nil || c.Depth != 9 || !c.Frozen {
		t.Errorf("read %+v, %v", c, err)
	}
	other := &cobra.Command{Use: "fill"}
	pondLoader("fill", nil).AddFlags(other)
	if other.Flags().Lookup("drained") != nil {
		t.Error("a verb has an option of another")
	}
}

func TestVerbsBelowAnother(t *testing.T) {
	verb := func(name string) *cobra.Command {
		return &cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}
	}
	root := Root(Below("pond", verb("bench")), Below("sea", verb("bench")), verb("pond"))
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	if diff := cmp.Diff([]string{"config", "manual", "pond", "version"}, names); diff != "" {
		t.Errorf("verbs (-want +got):\n%s", diff)
	}
	if c, _, err := root.Find([]string{"pond", "bench"}); err != nil || c.CommandPath() != "weir pond bench" {
		t.Errorf("found %v, %v", c.CommandPath(), err)
	}
}

func TestHelpShowsTypesInOneForm(t *testing.T) {
	cmd := &cobra.Command{Use: "dredge", Run: func(*cobra.Command, []string) {}}
	f := cmd.Flags()
	f.Duration("pause", 0, "between two buckets")
	f.Int("buckets", 3, "how many")
	f.String("log-file", "", "what was found")
	f.StringSlice("tools", nil, "what to take")
	f.String("to", "", "the `place` for it")
	f.Bool("dry", false, "look only")
	Root(cmd)
	want := `Usage:
  weir dredge [flags]

Flags:
      --buckets N                     how many (default 3)
      --dry                           look only
      --log-file FILE                 what was found
      --pause DURATION                between two buckets
      --to PLACE                      the place for it
      --tools TEXT,...                what to take
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(cmd.UsageString(), "\n")); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}
