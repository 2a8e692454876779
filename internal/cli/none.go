package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// None is the word for a limit, a wait or a period that there is not. What is off is
// something else: an address, a feature.
const None = "none"

// IsNone reports whether a value is None, or one of the words by which it was called:
// all are taken wherever one is.
func IsNone(v string) bool {
	return slices.Contains([]string{None, "never", "forever", "off", "0"}, v)
}

// OrNone lets a flag of pflag's own take None for its value zero, and shows it so. Of a
// flag that takes a list each part may be None.
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
			continue // where less than 0 is none, 0 is a time like others
		}
		if IsNone(word) {
			parts[i] = n.zero
		}
	}
	return n.Value.Set(strings.Join(parts, ","))
}
