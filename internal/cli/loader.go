package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Loader reads the options of one verb into its configuration C. It is used by one goroutine.
type Loader[C any] struct {
	Options []Option[C]
	Groups  []string // of the options, in the order of the usage; a last group for the verb's own flags is OwnFlags
	// Prefix is the prefix of environment variables, such as "WEIR_KV_".
	Prefix string
	// Verb is the name of the verb, if several share the options. Default: all options apply.
	Verb string
	// FileHelp is the help of --config.
	FileHelp string
	// Getenv looks up environment variables. Default: os.Getenv.
	Getenv func(string) string

	Flags map[string]string // flags that were given, by name
	File  string            // the value of --config
}

// Given is the value of an option as text, and its source in terms that users recognize:
// "--pool-size", "WEIR_POOL_SIZE", "weir.yaml:3: pool_size".
type Given struct {
	Text, Source string
}

// Found has the values by the name of the option, including defaults.
type Found map[string]Given

func (l *Loader[C]) getenv(name string) string {
	if l.Getenv == nil {
		return os.Getenv(name)
	}
	return l.Getenv(name)
}

func (l *Loader[C]) variable(o *Option[C]) string { return l.Prefix + strings.ToUpper(o.Key()) }

// Load assembles the configuration: a flag takes precedence over the environment, that over the
// file, and that over the default. Its errors are usage errors; all are reported at once.
func (l *Loader[C]) Load(c *C) (Found, error) {
	inFile := map[string]setting[C]{}
	var mistakes []error
	if file := cmp.Or(l.File, l.getenv(l.Prefix+"CONFIG")); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		var mistake error
		if inFile, mistake = readFile(file, text, l.Options); mistake != nil {
			mistakes = append(mistakes, mistake)
		}
	}
	found := make(Found)
	for i := range l.Options {
		o := &l.Options[i]
		s, ok := l.find(o, inFile)
		if !ok {
			continue
		}
		found[o.Name] = s.Given
		if err := s.put(c, o); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	return found, nil
}

// find returns the value with the highest precedence. Values in the file are parsed for options
// of other verbs, too, so that errors are found early.
func (l *Loader[C]) find(o *Option[C], inFile map[string]setting[C]) (setting[C], bool) {
	if v, ok := l.Flags[o.Name]; ok {
		return setting[C]{Given: Given{v, "--" + o.Name}}, true
	}
	if v := l.getenv(l.variable(o)); v != "" && o.of(l.Verb) {
		return setting[C]{Given: Given{v, l.variable(o)}}, true
	}
	if o.Was != "" && o.of(l.Verb) {
		name := l.Prefix + strings.ToUpper(strings.ReplaceAll(o.Was, "-", "_"))
		if v := l.getenv(name); v != "" {
			return setting[C]{Given: Given{v, name}}, true
		}
	}
	if s, ok := inFile[o.Key()]; ok {
		return s, true
	}
	return setting[C]{Given: Given{o.Default, "default of --" + o.Name}}, o.Default != ""
}

// Check reads a file and validates it and each of its values; examples in the documentation
// have to pass it.
func (l *Loader[C]) Check(name string, text []byte) (Found, error) {
	inFile, mistakes := readFile(name, text, l.Options)
	found := make(Found)
	var c C
	for i := range l.Options {
		o := &l.Options[i]
		if s, ok := inFile[o.Key()]; ok {
			found[o.Name] = s.Given
			mistakes = errors.Join(mistakes, s.put(&c, o))
		}
	}
	if mistakes != nil {
		return nil, mistakes
	}
	return found, nil
}

// setting is a value with its source.
type setting[C any] struct {
	Given
	apply func(*C) // instead of Option.Set, for a list
}

func (s setting[C]) put(c *C, o *Option[C]) error {
	if s.apply != nil {
		s.apply(c)
		return nil
	}
	err := o.Set(c, s.Text)
	switch {
	case err == nil:
		return nil
	case o.Secret:
		return fmt.Errorf("%s: %w", s.Source, err)
	}
	return fmt.Errorf("%s %q: %w", s.Source, s.Text, err)
}
