package core

import (
	"cmp"
	"slices"
	"sync"

	"github.com/weirdb/weir/internal/proxy/sight"
)

// LoginChecks count how logins were decided. Safe for concurrent use.
type LoginChecks struct {
	mu    sync.Mutex
	count map[[2]string]uint64 // guarded by mu: by method and way
}

// Add counts a successful login: see sight.CheckStatus.
func (c *LoginChecks) Add(method, way string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = make(map[[2]string]uint64)
	}
	c.count[[2]string{method, way}]++
}

func (c *LoginChecks) list() (all []sight.CheckStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range c.count {
		all = append(all, sight.CheckStatus{Method: k[0], Way: k[1], Count: n})
	}
	slices.SortFunc(all, func(a, b sight.CheckStatus) int {
		return cmp.Or(cmp.Compare(a.Method, b.Method), cmp.Compare(a.Way, b.Way))
	})
	return all
}
