package measure

import (
	"fmt"
	"maps"
)

// ClientRole is the role of this process among those that are watched.
const ClientRole = "client"

// Usages reads the usage of several processes, by role, and returns a function that returns the
// usage since then. Unless watch contains ClientRole, that is this process.
func Usages(watch map[string]func() (Usage, error)) (since func() (map[string]Usage, error), _ error) {
	all := map[string]func() (Usage, error){ClientRole: Self}
	maps.Copy(all, watch)
	read := func() (map[string]Usage, error) {
		out := make(map[string]Usage)
		for role, of := range all {
			u, err := of()
			if err != nil {
				return nil, fmt.Errorf("read usage of %s: %w", role, err)
			}
			out[role] = u
		}
		return out, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	return func() (map[string]Usage, error) {
		after, err := read()
		for role, u := range after {
			after[role] = u.Since(before[role])
		}
		return after, err
	}, nil
}
