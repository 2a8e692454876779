package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is a configuration file that is being read: YAML, a mapping of option keys
// to values. All mistakes are reported at once, each with its line.
type File struct {
	name     string
	mistakes []error
}

// readFile returns the settings of a file by key.
func readFile[C any](path string, text []byte, options []Option[C]) (map[string]setting[C], error) {
	f := &File{name: filepath.Base(path)}
	found := map[string]setting[C]{}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return found, nil
	case err != nil:
		return nil, f.syntax(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		f.Fail(&more, "a second document; want one")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntax(err)
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

// Fail notes a mistake in the line of n.
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

// Resolve follows an alias to what it stands for.
func Resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntax rewrites an error of the YAML library to the form of all others.
func (f *File) syntax(err error) error {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		what := err.Error()[len(m[0]):]
		if what == "mapping values are not allowed in this context" {
			what += " (a value such as \"stdout:\", in which a colon ends it or precedes a space, needs quotes)"
		}
		return fmt.Errorf("%s:%s: %s", f.name, m[1], what)
	}
	return fmt.Errorf("%s: %s", f.name, strings.TrimPrefix(err.Error(), "yaml: "))
}

// Suggest names what was probably meant, behind a semicolon, or is empty.
func Suggest(word string, names []string) string {
	best, least := "", 3
	for _, n := range names {
		if d := editDistance(word, n); d < least {
			best, least = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// editDistance is Levenshtein's: insertions, deletions and replacements of one
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
