package cli

import (
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Option is a setting of a verb's configuration C: a flag --pool-size, an environment variable
// WEIR_POOL_SIZE, a key pool_size in the file. Set parses its value, which is text in all
// three, so that they accept the same values and report the same errors.
type Option[C any] struct {
	Group   string
	Name    string // of the flag
	Was     string // a former name, which still works
	Arg     string // placeholder of the value in the help; "" for a switch
	Default string // shown in the help; read by Set like any other value
	Help    string
	// Words are the values that shells complete. Default: those that the error for an invalid
	// value lists, as that of OneOf does.
	Words []string
	// Verbs are the verbs that have the option as a flag; none: all that share it.
	Verbs []string
	// Secret values do not appear in errors.
	Secret bool
	// Reload marks options that SIGHUP applies to a running process.
	Reload bool
	// Hidden options are for measurements, and are not in the help.
	Hidden bool
	Set    func(c *C, value string) error
	// SetList reads the option if its value in the file is a list. It reports errors in the
	// list to f, and returns the list as text and a function that applies it. Default: the
	// option accepts no list.
	SetList func(f *File, list *yaml.Node) (text string, apply func(c *C))
}

// Key returns the option's name in a file.
func (o *Option[C]) Key() string { return strings.ReplaceAll(o.Name, "-", "_") }

// called reports whether a key in a file is the option's, by its current or a former name.
func (o *Option[C]) called(key string) bool {
	return key == o.Key() || o.Was != "" && key == strings.ReplaceAll(o.Was, "-", "_")
}

func (o *Option[C]) of(verb string) bool { return o.Verbs == nil || slices.Contains(o.Verbs, verb) }

// ArgFile is the placeholder for the path of a file, which shells complete.
const ArgFile = "FILE"

// GroupOperation is the group of options that every verb with options has. The usage shows
// --config and --help in it.
const GroupOperation = "Operation"

// OneOf accepts one of some words.
func OneOf[C any](put func(c *C, word string), words ...string) func(*C, string) error {
	return func(c *C, v string) error {
		if !slices.Contains(words, v) {
			last := len(words) - 1
			return fmt.Errorf("want %s or %s", strings.Join(words[:last], ", "), words[last])
		}
		put(c, v)
		return nil
	}
}

// wanted matches the error of options that accept some words, such as OneOf.
var wanted = regexp.MustCompile(`^want ((?:[a-z0-9-]+, )*[a-z0-9-]+) or ([a-z0-9-]+)$`)

// completions returns the possible words for an option's value: its Words, or those that its
// error for another value lists.
func (o *Option[C]) completions() []string {
	if o.Words != nil || o.Arg == "" {
		return o.Words
	}
	var c C
	err := o.Set(&c, "\x00")
	if err == nil {
		return nil
	}
	m := wanted.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	return append(strings.Split(m[1], ", "), m[2])
}

// Number accepts an integer.
func Number[C any](least int, field func(*C) *int) func(*C, string) error {
	return func(c *C, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("want a whole number, at least %d", least)
		}
		*field(c) = n
		return nil
	}
}

// Switch accepts the values of strconv.ParseBool.
func Switch[C any](field func(*C) *bool) func(*C, string) error {
	return func(c *C, v string) (err error) {
		if *field(c), err = strconv.ParseBool(v); err != nil {
			return errors.New("want true or false")
		}
		return nil
	}
}

// Span accepts a duration above zero, also in days and weeks. If zero is None and not "", it
// also accepts that word.
func Span[C any](zero string, field func(*C) *time.Duration) func(*C, string) error {
	return func(c *C, v string) error {
		if zero != "" && IsNone(v) {
			*field(c) = 0
			return nil
		}
		d, err := ParseSpan(v)
		if err != nil {
			if zero != "" {
				return fmt.Errorf("%w, or %s", err, zero)
			}
			return err
		}
		*field(c) = d
		return nil
	}
}

var errSpan = errors.New("want a duration above zero such as 250ms, 30s, 12h or 7d")

// ParseSpan parses a duration above zero: in the format of time.ParseDuration, or in whole days
// and weeks.
func ParseSpan(v string) (time.Duration, error) {
	for suffix, unit := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, err := strconv.Atoi(strings.TrimSuffix(v, suffix)); err == nil && strings.HasSuffix(v, suffix) {
			if n < 1 || n > 36500 {
				return 0, errSpan
			}
			return time.Duration(n) * unit, nil
		}
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return 0, errSpan
	}
	return d, nil
}

// ParseSize parses a size as PostgreSQL does: units are powers of 1024.
func ParseSize(v string) (int, error) {
	digits := strings.TrimRight(v, "kKMGiBb ")
	shift, ok := map[string]uint{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30,
	}[strings.ToLower(strings.TrimSpace(v[len(digits):]))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 1 || n > math.MaxInt64>>shift {
		return 0, errors.New("want a size such as 64kB, 16MB or 1GB")
	}
	return int(n << shift), nil
}

// CheckHostPort returns an error if an address is not of the form host:port.
func CheckHostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return errors.New("want host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 (any free one) to 65535", port)
	}
	return nil
}
