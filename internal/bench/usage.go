package bench

import (
	"fmt"
	"maps"

	"github.com/weirdb/weir/internal/measure"
)

// ReadUsage reads what the processes of a round have used so far, by role.
// Unless watch says otherwise, the client is this process.
func ReadUsage(watch map[string]func() (measure.Usage, error)) (map[string]measure.Usage, error) {
	all := maps.Clone(watch)
	if all == nil {
		all = make(map[string]func() (measure.Usage, error))
	}
	if all[RoleClient] == nil {
		all[RoleClient] = measure.Self
	}
	out := make(map[string]measure.Usage)
	for role, read := range all {
		u, err := read()
		if err != nil {
			return nil, fmt.Errorf("read usage of %s: %w", role, err)
		}
		out[role] = u
	}
	return out, nil
}
