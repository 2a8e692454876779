//go:build linux

package proxycmd

import (
	"errors"

	"github.com/weirdb/weir/internal/cli"
)

// cacheOptions lists those of the cache.
func cacheOptions() []cli.Option[proxyConfig] {
	return []cli.Option[proxyConfig]{
		{
			Group: groupCache, Name: "cache-size", Arg: "SIZE", Default: "64MB", Reload: true,
			Help: "memory for answers to reads with the hint ttl, in B, kB, MB or GB (powers of 1024), for PostgreSQL and MySQL separately; none disables the cache",
			Set: func(c *proxyConfig, v string) error {
				if cli.IsNone(v) {
					c.shared.CacheSize = -1
					return nil
				}
				n, err := cli.ParseSize(v)
				if err == nil && n < 1<<20 {
					err = errors.New("want none, or at least 1MB")
				}
				c.shared.CacheSize = int64(n)
				return err
			},
		},
		{
			Group: groupCache, Name: "cache-max-answer", Arg: "SIZE", Default: "1MB", Reload: true,
			Help: "largest answer to cache; larger ones are passed on without caching",
			Set: func(c *proxyConfig, v string) error {
				n, err := cli.ParseSize(v)
				if err == nil && (n < 1 || n > 64<<20) {
					err = errors.New("want 1B to 64MB")
				}
				c.shared.CacheMaxAnswer = int64(n)
				return err
			},
		},
	}
}
