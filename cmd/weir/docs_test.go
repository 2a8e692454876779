package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command line of weir's in the documentation has verbs and flags that exist.
func TestCommandsOfTheDocumentation(t *testing.T) {
	pages := []string{"../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md", "../../deploy/README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md", "../../examples/*/*.md", "../../contrib/*/*.md", "../../contrib/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	root := newRoot() // cobra keeps every command that it has made
	commands := 0
	for _, page := range pages {
		if filepath.Base(page) == "errors.md" {
			continue // what weir says, not what is said to it
		}
		text, err := os.ReadFile(page)
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for _, c := range documentedCommands(string(text)) {
			commands++
			if err := checkCommand(root, c.words); err != nil {
				t.Errorf("%s:%d: weir %s: %v", strings.TrimPrefix(page, "../../"), c.line, strings.Join(c.words, " "), err)
			}
		}
	}
	if commands < 150 {
		t.Errorf("found %d commands only", commands)
	}
}

func TestCheckCommand(t *testing.T) {
	for line, want := range map[string]string{
		"weir proxy --pool-size 4 --mode=auto": "",
		"weir outbox":                          "",
		"weir … --json":                        "",
		"weir backup DSN --to DIR":             "",
		"weir proxi":                           `no verb "proxi"`,
		"weir outbox reley --db x":             `no verb "reley"`,
		"weir proxy --pool-siz 4":              "no flag --pool-siz",
		"X=1 sudo bin/weir kv put -q a":        "no flag -q",
		"weir backup schedule --keep last=3 -- DSN --unknown here": "",
		"timeout 5 weir version --long":                            "no flag --long",
		"weir proxy \\\n  --nothing 'a # b' # text":                "no flag --nothing",
	} {
		found := documentedCommands("```sh\n" + line + "\n```\n")
		if len(found) != 1 {
			t.Errorf("%s: found %v", line, found)
			continue
		}
		err := checkCommand(newRoot(), found[0].words)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if found := documentedCommands("`weir proxy --x`\n\n```\nweir: an error\nweir takes what waits\n  weir proxy, weir kv\n```\n"); len(found) != 1 {
		t.Errorf("found %v, want the first", found)
	}
}

// documented is a command line of weir's on a page, without the word weir.
type documented struct {
	line  int
	words []string
}

var inlineCommand = regexp.MustCompile("`(weir [^`]+)`")

// documentedCommands returns the command lines in a page's blocks of code, and those
// that are code within a line.
func documentedCommands(text string) (found []documented) {
	inBlock, number, pending := false, 0, ""
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(strings.TrimLeft(line, " "), "```"):
			inBlock, pending = !inBlock, ""
		case inBlock && strings.HasSuffix(line, `\`):
			pending += strings.TrimSuffix(line, `\`)
		case inBlock && strings.Contains(line, "█"): // a chart of a report
		case inBlock:
			for _, words := range shellCommands(pending + line) {
				if command, ok := afterWeir(words); ok {
					found = append(found, documented{number, command})
				}
			}
			pending = ""
		default:
			for _, m := range inlineCommand.FindAllStringSubmatch(line, -1) {
				for _, words := range shellCommands(m[1]) {
					if command, ok := afterWeir(words); ok {
						found = append(found, documented{number, command})
					}
				}
			}
		}
	}
	return found
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// afterWeir returns the arguments of weir, if that is the program that runs.
func afterWeir(words []string) ([]string, bool) {
	for i, w := range words {
		switch {
		case w == "weir" || strings.HasSuffix(w, "/weir"):
			rest := words[i+1:]
			// A verb with nothing but words after it may be a sentence.
			return rest, len(rest) > 0 && !sentence(rest)
		case assignment.MatchString(w), w == "$", w == "sudo", w == "exec", w == "time", w == "nohup":
		case w == "timeout", i > 0 && words[i-1] == "timeout":
		default:
			return nil, false
		}
	}
	return nil, false
}

// sentence reports whether words after weir are prose, which blocks of code hold as
// messages and drawings.
func sentence(words []string) bool {
	if len(words) < 2 {
		return strings.HasSuffix(words[0], ",") || strings.HasSuffix(words[0], ":")
	}
	if strings.HasSuffix(words[0], ",") {
		return true
	}
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			return false
		}
	}
	switch words[0] {
	case "as", "that", "the", "takes", "is", "has", "does", "asks", "cannot", "did", "was", "serves", "knows", "says", "could", "made", "closes":
		return true
	}
	return false
}

// shellCommands splits a line into commands, and these into words.
func shellCommands(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	quote, open := rune(0), false
	endWord := func() {
		if open || word.Len() > 0 {
			words = append(words, word.String())
		}
		word.Reset()
		open = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case (r == '\'' || r == '"'):
			quote, open = r, true
		case r == ' ' || r == '\t':
			endWord()
		case r == '#' && word.Len() == 0 && !open:
			endCommand()
			return commands
		case strings.ContainsRune("|;&()<>", r):
			endCommand()
		default:
			word.WriteRune(r)
		}
	}
	endCommand()
	return commands
}

// placeholder reports whether a word stands for others.
func placeholder(word string) bool {
	return word == "" || strings.ContainsAny(word, "…{<[$*") || strings.Contains(word, "...") || word == strings.ToUpper(word)
}

// checkCommand returns what of a command line does not exist.
func checkCommand(cmd *cobra.Command, words []string) error {
	if placeholder(words[0]) || words[0] == "help" || words[0] == "completion" {
		return nil
	}
	value, verbsEnded := false, false
	for _, w := range words {
		switch {
		case value:
			value = false
		case w == "--":
			return nil
		case strings.HasPrefix(w, "-") && w != "-":
			verbsEnded = true
			flag, given := lookup(cmd, w)
			if flag == nil {
				if placeholder(strings.TrimLeft(w, "-")) {
					continue
				}
				return fmt.Errorf("%s has no flag %s", cmd.CommandPath(), w)
			}
			value = !given && flag.NoOptDefVal == ""
		case verbsEnded || !cmd.HasSubCommands():
			verbsEnded = true
		default:
			sub, _, err := cmd.Find([]string{w})
			if err == nil && sub != cmd {
				cmd = sub
				continue
			}
			if placeholder(w) || cmd.Runnable() && cmd.HasParent() {
				verbsEnded = true
				continue
			}
			return fmt.Errorf("%s has no verb %q", cmd.CommandPath(), w)
		}
	}
	return nil
}

// lookup returns the flag of cmd that a word names, and whether its value is in it.
func lookup(cmd *cobra.Command, word string) (flag *pflag.Flag, given bool) {
	cmd.InitDefaultHelpFlag()
	name, _, given := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if strings.HasPrefix(word, "--") {
		if flag = cmd.Flags().Lookup(name); flag == nil {
			flag = cmd.InheritedFlags().Lookup(name)
		}
		return flag, given
	}
	return cmd.Flags().ShorthandLookup(name[:1]), given || len(name) > 1
}
