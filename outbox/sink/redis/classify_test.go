package redis

import (
	"testing"

	"github.com/weirdb/weir/outbox"
)

// A script of a server before 7 puts its line before what a command was refused with.
func TestRefusalsOfOldServers(t *testing.T) {
	plain := func(err error) bool {
		return !outbox.IsUnavailable(err) && !outbox.IsRejected(err) && !outbox.IsDoubtful(err)
	}
	for text, is := range map[string]func(error) bool{
		"@user_script: 17: -OOM command not allowed when used memory > 'maxmemory'.":  outbox.IsUnavailable,
		"@user_script: 17: -READONLY You can't write against a read only replica.":    outbox.IsUnavailable,
		"@user_script: 17: -MISCONF Redis is configured to save RDB snapshots":        outbox.IsUnavailable,
		"@user_script: 17: -NOPERM this user has no permissions to access one":        outbox.IsDoubtful,
		"@user_script: 17: Unknown Redis command called from Lua script":              plain,
		"OOM command not allowed when used memory > 'maxmemory'.":                     outbox.IsUnavailable,
		"WRONGTYPE Operation against a key holding the wrong kind of value: -OOM ...": outbox.IsRejected,
	} {
		if err := classify(serverError(text)); !is(err) {
			t.Errorf("%q is of another kind than wanted: %v", text, err)
		}
	}
}
