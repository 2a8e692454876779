package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// None is the word for a limit, a wait or a period that does not apply. For features and
// addresses that are off there are other words.
const None = "none"

// IsNone reports whether a value is None or one of its former synonyms, which are still
// accepted.
func IsNone(v string) bool {
	return slices.Contains([]string{None, "never", "forever", "off", "0"}, v)
}

// OrNone makes a flag of pflag accept None for its value zero, and show it. Each part of a list
// may be None.
func OrNone(f *pflag.FlagSet, name, zero string) {
	flag := f.Lookup(name)
	if flag == nil {
		panic("cli: no flag --" + name)
	}
	flag.Value = &noneFlag{flag.Value, zero}
	if flag.DefValue == zero {
		flag.DefValue = None
	}
}

type noneFlag struct {
	pflag.Value
	zero string
}

func (n *noneFlag) Set(v string) error {
	parts := []string{v}
	if _, ok := n.Value.(pflag.SliceValue); ok {
		parts = strings.Split(v, ",")
	}
	for i := range parts {
		word := strings.TrimSpace(parts[i])
		if word == "0" && strings.HasPrefix(n.zero, "-") {
			continue // if negative values mean none, 0 is an ordinary value
		}
		if IsNone(word) {
			parts[i] = n.zero
		}
	}
	return n.Value.Set(strings.Join(parts, ","))
}
