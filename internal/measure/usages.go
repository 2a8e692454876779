package measure

import (
	"fmt"
	"maps"
)

// ReadUsages reads what several processes have used so far, by role. Unless watch
// says otherwise, the role self is this process.
func ReadUsages(watch map[string]func() (Usage, error), self string) (map[string]Usage, error) {
	all := maps.Clone(watch)
	if all == nil {
		all = make(map[string]func() (Usage, error))
	}
	if all[self] == nil {
		all[self] = Self
	}
	out := make(map[string]Usage)
	for role, read := range all {
		u, err := read()
		if err != nil {
			return nil, fmt.Errorf("read usage of %s: %w", role, err)
		}
		out[role] = u
	}
	return out, nil
}
