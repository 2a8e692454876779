package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// renamedRoot has a verb with a flag of two names, at two places.
func renamedRoot() *cobra.Command {
	verb := func() *cobra.Command {
		var db string
		cmd := &cobra.Command{
			Use: "check", Short: "Check", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "db %q, given %v\n", db, cmd.Flags().Changed("db"))
				return err
			},
		}
		cmd.Flags().StringVar(&db, "db", "", "database")
		Renamed(cmd, "dsn", "db")
		Words(cmd, "db", "one", "other")
		return cmd
	}
	parent := &cobra.Command{Use: "backup", Short: "Back up"}
	parent.AddCommand(verb())
	return Root(parent, Moved(verb(), "backup check"))
}

func TestRenamed(t *testing.T) {
	for line, want := range map[string]string{
		"backup check --db x":  `0|db "x", given true|`,
		"backup check --dsn x": `0|db "x", given true|weir: --dsn is --db now`,
		"check --db x":         `0|db "x", given true|weir: weir check is weir backup check now`,
		"backup check":         `0|db "", given false|`,
		"backup check --dbb x": `2||weir: unknown flag: --dbb; did you mean --db? Run 'weir backup check --help' for usage.`,
		"backup check --away":  `2||weir: unknown flag: --away Run 'weir backup check --help' for usage.`,
		"backup chek":          `2||weir: unknown command "chek" for "weir backup"; did you mean check? Run 'weir backup --help' for usage.`,
		"help bakup":           `2||weir: unknown command "bakup" for "weir"; did you mean backup? Run 'weir help --help' for usage.`,
		"help backup chek":     `2||weir: unknown command "chek" for "weir backup"; did you mean check? Run 'weir help --help' for usage.`,
	} {
		var stdout, stderr bytes.Buffer
		code := Execute(context.Background(), renamedRoot(), strings.Fields(line), &stdout, &stderr)
		got := fmt.Sprintf("%d|%s|%s", code, strings.TrimSpace(stdout.String()), strings.Join(strings.Fields(stderr.String()), " "))
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", line, got, want)
		}
	}
}

// Former names are not in the help.
func TestRenamedIsHidden(t *testing.T) {
	for _, line := range []string{"--help", "backup check --help"} {
		var stdout, stderr bytes.Buffer
		Execute(context.Background(), renamedRoot(), strings.Fields(line), &stdout, &stderr)
		if out := stdout.String(); strings.Contains(out, "--dsn") || strings.Contains(out, "\n  check ") || out == "" {
			t.Errorf("%s:\n%s%s", line, out, stderr.String())
		}
	}
}

func TestWords(t *testing.T) {
	for line, want := range map[string]string{
		"__complete backup check --db ":       "one other",
		"__complete backup check --db o":      "one other",
		"__complete backup check --db one,ot": "one,other",
		"__complete backup check --db x":      "",
	} {
		var stdout, stderr bytes.Buffer
		words := strings.Split(line, " ")
		Execute(context.Background(), renamedRoot(), words, &stdout, &stderr)
		got, _, _ := strings.Cut(stdout.String(), ":")
		if got = strings.Join(strings.Fields(got), " "); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestCompletionsOfOptions(t *testing.T) {
	type config struct{ word, other string }
	for name, tt := range map[string]struct {
		option Option[config]
		want   string
	}{
		"OneOf":  {Option[config]{Arg: "X", Set: OneOf(func(c *config, w string) { c.word = w }, "disk", "memory", "both-of-them")}, "disk memory both-of-them"},
		"words":  {Option[config]{Arg: "X", Words: []string{"a"}, Set: OneOf(func(c *config, w string) { c.word = w }, "b", "c")}, "a"},
		"any":    {Option[config]{Arg: "X", Set: func(c *config, w string) error { c.other = w; return nil }}, ""},
		"switch": {Option[config]{Set: OneOf(func(c *config, w string) { c.word = w }, "true", "false")}, ""},
	} {
		if got := strings.Join(tt.option.completions(), " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestWrongValueOfAFlag: what is wanted is said, and no function of Go's.
func TestWrongValueOfAFlag(t *testing.T) {
	for arg, want := range map[string]string{
		"--count=x":       `--count "x": want a whole number`,
		"--count=2.5":     `--count "2.5": want a whole number`,
		"--limit=many":    `--limit "many": want a whole number, or none`,
		"--size=-1":       `--size "-1": want a whole number, at least 0`,
		"--share=half":    `--share "half": want a number`,
		"--wait=5":        `--wait "5": want a duration such as 250ms, 30s or 1h30m`,
		"--waits=1s,soon": `--waits "1s,soon": want a duration such as`,
		"--fast=perhaps":  `--fast "perhaps": want true or false`,
		"--json=perhaps":  `--json "perhaps": want true or false`,
		"-n=x":            `--count "x": want a whole number`,
	} {
		verb := &cobra.Command{Use: "verb", RunE: func(*cobra.Command, []string) error { return nil }}
		f := verb.Flags()
		f.IntP("count", "n", 1, "")
		f.Int64("limit", 0, "")
		OrNone(f, "limit", "0")
		f.Uint64("size", 0, "")
		f.Float64("share", 0, "")
		f.Duration("wait", 0, "")
		f.DurationSlice("waits", nil, "")
		f.Bool("fast", false, "")
		new(JSON[int]).Flag(f, "")
		var stderr bytes.Buffer
		if code := Execute(t.Context(), Root(verb), []string{"verb", arg}, &stderr, &stderr); code != ExitUsage || !strings.HasPrefix(stderr.String(), "weir: "+want) {
			t.Errorf("%s: exit code %d, %s", arg, code, stderr.String())
		}
	}
}
