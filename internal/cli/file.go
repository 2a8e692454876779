package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// File is a configuration file being read: YAML, a mapping of option keys to values. All errors
// are reported at once, each with its line.
type File struct {
	name     string
	mistakes []error
}

// readFile returns the settings in a file by key.
func readFile[C any](path string, text []byte, options []Option[C]) (map[string]setting[C], error) {
	f := &File{name: filepath.Base(path)}
	found := map[string]setting[C]{}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return found, nil
	case err != nil:
		return nil, f.syntax(text, err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		f.Fail(&more, "a second document; want one")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntax(text, err)
	}
	if root := Resolve(doc.Content[0]); root.Kind == yaml.MappingNode {
		f.Pairs(root, func(key, value *yaml.Node) { readSetting(f, key, value, options, found) })
	} else if root.Tag != "!!null" {
		f.Fail(root, "want lines of the form key: value")
	}
	return found, errors.Join(f.mistakes...)
}

// readSetting records the value of one option.
func readSetting[C any](f *File, key, value *yaml.Node, options []Option[C], found map[string]setting[C]) {
	i := slices.IndexFunc(options, func(o Option[C]) bool { return o.called(key.Value) })
	if i < 0 {
		names := make([]string, len(options))
		for i := range options {
			names[i] = options[i].Key()
		}
		f.Fail(key, "unknown key %q%s", key.Value, Suggest(key.Value, names))
		return
	}
	if found[options[i].Key()].Source != "" {
		f.Fail(key, "%s is already set, by its other name", key.Value)
		return
	}
	s := setting[C]{Given: Given{Source: fmt.Sprintf("%s:%d: %s", f.name, key.Line, key.Value)}}
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		f.Fail(key, "%s has no value", key.Value)
		return
	case value.Kind == yaml.ScalarNode:
		s.Text = value.Value
	case value.Kind == yaml.SequenceNode && options[i].SetList != nil:
		if s.Text, s.apply = options[i].SetList(f, value); s.apply == nil {
			return
		}
	default:
		f.Fail(key, "%s: want a single value", key.Value)
		return
	}
	found[options[i].Key()] = s
}

// Fail records an error in the line of n.
func (f *File) Fail(n *yaml.Node, format string, args ...any) {
	f.mistakes = append(f.mistakes, fmt.Errorf("%s:%d: %s", f.name, n.Line, fmt.Sprintf(format, args...)))
}

// Pairs calls put for each key of a mapping, once per key.
func (f *File) Pairs(n *yaml.Node, put func(key, value *yaml.Node)) {
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if line, twice := seen[key.Value]; twice {
			f.Fail(key, "%s is already set in line %d", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		put(key, Resolve(n.Content[i+1]))
	}
}

// Resolve returns the node that an alias refers to.
func Resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

var (
	yamlLine   = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	yamlParser = regexp.MustCompile(`^(did not find expected (<|node content|'-' indicator|key|',')|found (undefined tag handle|duplicate %|incompatible))`)
	yamlReader = regexp.MustCompile(`^(control characters|invalid|incomplete|unexpected low|expected low) `)
	indentTab  = regexp.MustCompile(`(?m)^ *\t`)
)

// syntax converts an error of the YAML library to the form of all others. The library omits the
// line if it is the first one, or if a character cannot be read; for errors of its parser, as
// opposed to its scanner, it names the previous line; and if a tab begins a line, it reports
// what it expected instead.
func (f *File) syntax(text []byte, err error) error {
	m := yamlLine.FindStringSubmatch(err.Error())
	what := strings.TrimPrefix(err.Error(), m[0])
	line, _ := strconv.Atoi(m[1]) // 0 if missing
	if line == 0 || yamlParser.MatchString(what) {
		line++
	}
	tab := indentTab.FindIndex(text)
	switch {
	case yamlReader.MatchString(what):
		line = lineOf(text, strings.IndexFunc(string(text), unreadable))
		what += ": is this a text file, in UTF-8?"
	case tab != nil && (strings.Contains(what, " tab ") || strings.Contains(what, "cannot start any token")):
		line, what = lineOf(text, tab[0]), "a tab before the first character: indent with spaces"
	case what == "mapping values are not allowed in this context":
		what += " (a value such as \"stdout:\", in which a colon ends it or precedes a space, needs quotes)"
	}
	return fmt.Errorf("%s:%d: %s", f.name, line, what)
}

// unreadable reports whether a character is not allowed in YAML. Invalid UTF-8, and with it the
// replacement character, is not.
func unreadable(r rune) bool {
	return r == utf8.RuneError || unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r)
}

// lineOf returns the number of the line with byte i; the first line if i is negative.
func lineOf(text []byte, i int) int { return 1 + bytes.Count(text[:max(i, 0)], []byte("\n")) }

// Suggest returns a suggestion after a semicolon, or "": the most similar name, otherwise those
// that begin with the word, such as listen_mysql for listen.
func Suggest(word string, names []string) string {
	best, least := "", 3
	var longer []string
	for _, n := range names {
		if d := editDistance(word, n); d < least {
			best, least = n, d
		}
		if len(word) > 2 && (strings.HasPrefix(n, word+"_") || strings.HasPrefix(n, word+"-")) {
			longer = append(longer, n)
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %s?", best)
	case len(longer) > 0 && len(longer) <= 3:
		return fmt.Sprintf("; did you mean %s?", strings.Join(longer, " or "))
	}
	return ""
}

// editDistance returns the Levenshtein distance: insertions, deletions and replacements of one
// byte each.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
